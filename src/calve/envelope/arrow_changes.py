"""Changes of small checkpoints, computed on Arrow data in the driver, without a Spark job.

A job costs several tenths of a second of CPU, whatever it does; converting a hundred thousand typed records takes a few
milliseconds. The plain cases are supported: typed columns that the table takes as they are, and records in JSON, which
the same Python code reads as in tasks; conditions that compare columns with constants, as Spark itself has parsed and
typed them. The result is what the envelope's frame and `write.changes` make of the same records.

Only records without any problem are converted. For everything else `changes` returns None, and Spark converts the
checkpoint: there is one place that finds, words and delivers bad rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.change_rows import BEFORE_TYPES, ChangeRowsPlan
from calve.envelope.debezium import DebeziumPlan, debezium_code
from calve.envelope.fields import Retyped, text_fields
from calve.envelope.upsert import UpsertPlan
from calve.envelope.upsert_records import BAD_KEY, BAD_REST, GONE, upsert_code
from calve.envelope.upsert_records import ORDER as STEP_ORDER
from calve.model.change import BAD, DELETE, OP, ORDER, ORDER_PREFIX, UPSERT, order_columns
from calve.model.changelog import CHANGE_TYPE, VERSION
from calve.model.scan import AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition
from calve.reader.conditions import exact_condition, unread_frame
from calve.records import frames
from calve.records.frames import RowCode

_PLAIN = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}
    | {"string", "binary", "date", "timestamp", "timestamp_ntz"}
)
_INEXACT = frozenset({"float", "double"})
"""Types that conditions of this module do not compare: Spark has its own rules for NaN and zeros."""
_COUNTED: Mapping[str, pa.DataType] = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}
"""Types whose constants are numbers in conditions: of days, of microseconds."""

_CHANGE_ORDER: tuple[T.DataType, ...] = (T.LongType(), T.ByteType())
"""The order of rows of a change feed: the version, and deletes before upserts."""

_COMPARED = {
    ComparisonOperator.EQUAL: pc.equal,
    ComparisonOperator.LESS: pc.less,
    ComparisonOperator.LESS_OR_EQUAL: pc.less_equal,
    ComparisonOperator.GREATER: pc.greater,
    ComparisonOperator.GREATER_OR_EQUAL: pc.greater_equal,
}


class ArrowConversion(Protocol):
    """An envelope for records in memory."""

    @property
    def records(self) -> T.StructType:
        """The columns of records that it needs."""
        ...

    @property
    def table(self) -> T.StructType:
        """The columns of its changes that are stored in the table."""
        ...

    @property
    def beside(self) -> T.StructType:
        """The other columns of its changes."""
        ...

    def changes(self, records: pa.Table) -> pa.Table | None:
        """The changes of records in the order of arrival; None if one of them has a problem."""
        ...


@dataclass(frozen=True)
class OrderColumn:
    """The order of a change as a column of the table: one field as it is, several as a struct."""

    kinds: tuple[T.DataType, ...]

    @property
    def field(self) -> T.StructField:
        """The column."""
        struct = T.StructType([T.StructField(f"_{i}", kind) for i, kind in enumerate(self.kinds)])
        return T.StructField(ORDER, self.kinds[0] if len(self.kinds) == 1 else struct)

    def values(self, order: Sequence[pa.ChunkedArray]) -> pa.Array | pa.ChunkedArray:
        """Its values."""
        if len(order) == 1:
            return order[0]
        arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in order]
        return pa.StructArray.from_arrays(arrays, names=[f"_{i}" for i in range(len(arrays))])


@dataclass(frozen=True)
class ArrowUpserts:
    """Upserts whose records are columns."""

    plan: UpsertPlan
    records: T.StructType
    condition: Condition | None
    """Which records delete; None: none of them."""
    stored_order: OrderColumn | None

    @property
    def table(self) -> T.StructType:
        return _stored(self.plan.table, self.stored_order)

    @property
    def beside(self) -> T.StructType:
        order = [*(self.records[name].dataType for name in self.plan.envelope.order_by), T.LongType()]
        return _beside(order)

    def changes(self, records: pa.Table) -> pa.Table | None:
        deleted = None if self.condition is None else _meets(records, self.condition, self.records)
        if deleted is not None and not pc.any(deleted).as_py():
            deleted = None
        if not _are_complete(records, self.plan, self.plan.envelope.order_by, deleted):
            return None
        order = [records[name] for name in self.plan.envelope.order_by]
        arrival = pa.array(np.arange(records.num_rows))
        return _changes(self.plan, records, deleted, (order, [arrival]), self.stored_order)


@dataclass(frozen=True)
class ArrowChangeRows:
    """Rows of a change feed of a table."""

    plan: ChangeRowsPlan
    records: T.StructType
    stored_order: OrderColumn | None

    @property
    def table(self) -> T.StructType:
        return _stored(self.plan.table, self.stored_order)

    @property
    def beside(self) -> T.StructType:
        return _beside([*_CHANGE_ORDER, T.LongType()])

    def changes(self, records: pa.Table) -> pa.Table | None:
        deleted = _is_before(records)
        keyless = [pc.is_null(records[name]) for name in self.plan.key if records[name].null_count]
        if keyless:  # such a row was never written, so that there is nothing to delete
            records = records.filter(pc.invert(pc.and_(deleted, reduce(pc.or_, keyless))))
            deleted = _is_before(records)
        if not _are_complete(records, self.plan, (VERSION,), deleted):
            return None
        order = [records[VERSION], pc.if_else(deleted, pa.scalar(0, pa.int8()), pa.scalar(1, pa.int8()))]
        arrival = pa.array(np.arange(records.num_rows))
        return _changes(self.plan, records, deleted, (order, [arrival]), self.stored_order)


def _is_before(records: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(records[CHANGE_TYPE], value_set=pa.array([one.value for one in BEFORE_TYPES]))


def _are_complete(
    records: pa.Table, plan: UpsertPlan | ChangeRowsPlan, order_by: Sequence[str], deleted: pa.ChunkedArray | None
) -> bool:
    """Whether no record lacks a value that it needs, and every string is valid UTF-8."""
    if any(records[name].null_count for name in (*plan.key, *order_by)):
        return False
    for field in plan.table.fields:
        values = records[field.name]
        if field.nullable or not values.null_count:
            continue
        if deleted is None or pc.any(pc.and_(pc.is_null(values), pc.invert(deleted))).as_py():
            return False
    try:
        records.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class _Plan(Protocol):
    """What conversions by Python code need of an envelope's plan."""

    @property
    def schema(self) -> T.StructType: ...

    @property
    def table(self) -> T.StructType: ...


P = TypeVar("P", bound=_Plan)


@dataclass(frozen=True)
class _ByCode(Generic[P]):
    """Records that Python code reads one by one, as it does in tasks."""

    plan: P
    code: RowCode
    stored_order: OrderColumn | None

    @property
    def records(self) -> T.StructType:
        """The columns that the code takes, without those that are added for the order of arrival."""
        schema = self.plan.schema
        return T.StructType([schema[name] for name in self.code.inputs if name in schema.names])

    @property
    def table(self) -> T.StructType:
        return _stored(self.plan.table, self.stored_order)

    def read(self, records: pa.Table) -> pa.Table:
        """What the code makes of records, which have the order in which they are if they have no other."""
        for name in self.code.inputs:
            if name not in records.column_names:
                records = records.append_column(name, pa.array(np.arange(records.num_rows)))
        return self.code.in_memory(records)


@dataclass(frozen=True)
class ArrowJsonUpserts(_ByCode[UpsertPlan]):
    """Upserts in JSON."""

    condition: Condition | None
    """Which records delete, besides those without a value."""

    @property
    def beside(self) -> T.StructType:
        return _beside([field.dataType for field in self.code.output.fields if field.name.startswith(STEP_ORDER)])

    def changes(self, records: pa.Table) -> pa.Table | None:
        read = self.read(records)
        deleted = read[GONE]
        if self.condition is not None:
            deleted = pc.or_(deleted, _meets(read, self.condition, self.code.output))
        if not pc.all(
            pc.and_(pc.is_null(read[BAD_KEY]), pc.or_(deleted, pc.is_null(read[BAD_REST]))), min_count=0
        ).as_py():
            return None
        order = [read[name] for name in read.column_names if name.startswith(STEP_ORDER)]
        own = len(order) - len(frames.arrival_types(self.plan.schema))
        return _changes(self.plan, read, deleted, (order[:own], order[own:]), self.stored_order)


class ArrowChangeRecords(_ByCode[DebeziumPlan]):
    """Debezium's change records in JSON."""

    @property
    def beside(self) -> T.StructType:
        table = {*self.plan.table.names, BAD}
        return T.StructType([field for field in self.code.output.fields if field.name not in table])

    def changes(self, records: pa.Table) -> pa.Table | None:
        read = self.read(records)
        if read[BAD].null_count < read.num_rows:
            return None
        read = read.drop_columns([BAD])
        if self.stored_order is None:
            return read
        own = order_columns(read.column_names)[: len(self.stored_order.kinds)]
        values = self.stored_order.values([read[name] for name in own])
        return read.add_column(len(self.plan.table), ORDER, values)


def arrow_upserts(plan: UpsertPlan, spark: SparkSession, *, stores_order: bool) -> ArrowConversion | None:
    """The same upserts for records in memory; None if they need Spark."""
    if plan.json:
        return _json_upserts(plan, spark, stores_order=stores_order)
    record = T.StructType(frames.record_fields(plan.schema))
    types = {field.name: field.dataType for field in record.fields}
    envelope = plan.envelope
    if frames.is_kafka(plan.schema) or any(name not in types for name in envelope.order_by):
        return None
    if not all(Retyped.of(field, types[field.name]).same for field in plan.table.fields):
        return None
    parsed = _condition(envelope.delete_when, record, spark)
    if parsed is None:
        return None
    needed = {*plan.table.names, *envelope.order_by, *parsed.columns}
    records = T.StructType([field for field in record.fields if field.name in needed])
    if not all(_is_plain(field.dataType) for field in records.fields):
        return None
    stored = OrderColumn(tuple(types[name] for name in envelope.order_by)) if stores_order else None
    return ArrowUpserts(plan, records, parsed.condition, stored)


def _json_upserts(plan: UpsertPlan, spark: SparkSession, *, stores_order: bool) -> ArrowConversion | None:
    named = T.StructType([*plan.table.fields, *text_fields(plan.texts)])
    parsed = _condition(plan.envelope.delete_when, named, spark)
    if parsed is None:
        return None
    zone = frames.time_zone(spark)
    code = upsert_code(plan.schema, plan.table, plan.key, (plan.envelope, plan.texts), zone)
    kinds = [field.dataType for field in code.output.fields if field.name.startswith(STEP_ORDER)]
    own = kinds[: len(kinds) - len(frames.arrival_types(plan.schema))]
    return ArrowJsonUpserts(plan, code, OrderColumn(tuple(own)) if stores_order else None, parsed.condition)


def arrow_change_rows(plan: ChangeRowsPlan, *, stores_order: bool) -> ArrowConversion | None:
    """The same rows of a change feed in memory; None if they need Spark."""
    needed = {*plan.table.names, CHANGE_TYPE, VERSION}
    records = T.StructType([field for field in plan.schema.fields if field.name in needed])
    if frames.is_kafka(plan.schema) or not all(_is_plain(field.dataType) for field in records.fields):
        return None
    return ArrowChangeRows(plan, records, OrderColumn(_CHANGE_ORDER) if stores_order else None)


def arrow_change_records(plan: DebeziumPlan, spark: SparkSession, *, stores_order: bool) -> ArrowConversion | None:
    """The same change records in memory; None if they need Spark."""
    if plan.record is not None:
        return None
    stored = OrderColumn(tuple(plan.order_types)) if stores_order else None
    return ArrowChangeRecords(plan, debezium_code(plan, frames.time_zone(spark)), stored)


def _stored(table: T.StructType, order: OrderColumn | None) -> T.StructType:
    return table if order is None else T.StructType([*table.fields, order.field])


def _beside(order: Sequence[T.DataType]) -> T.StructType:
    fields = [T.StructField(f"{ORDER_PREFIX}{i}", kind) for i, kind in enumerate(order)]
    return T.StructType([T.StructField(OP, T.ByteType(), nullable=False), *fields])


def _changes(
    plan: UpsertPlan | ChangeRowsPlan,
    values: pa.Table,
    deleted: pa.ChunkedArray | None,
    orders: tuple[Sequence[pa.ChunkedArray], Sequence[pa.ChunkedArray]],
    stored: OrderColumn | None,
) -> pa.Table:
    """The columns of changes. `orders` are those of the envelope, and those of arrival."""
    own, arrival = orders
    columns = {
        name: values[name]
        if deleted is None or name in plan.key
        else pc.if_else(deleted, pa.scalar(None, values[name].type), values[name])
        for name in plan.table.names
    }
    if stored is not None:
        columns[ORDER] = stored.values(own)
    columns[OP] = _operations(values.num_rows, deleted)
    return pa.table(columns | {f"{ORDER_PREFIX}{i}": column for i, column in enumerate((*own, *arrival))})


@dataclass(frozen=True)
class _Parsed:
    """A condition, and the columns that it names."""

    condition: Condition | None
    columns: frozenset[str] = frozenset()


def _condition(text: str | None, columns: T.StructType, spark: SparkSession) -> _Parsed | None:
    """A condition as text; None if it needs Spark."""
    if text is None:
        return _Parsed(None)
    condition = _parsed(columns.json(), text, spark, frames.time_zone(spark))
    if condition is None:
        return None
    named = _columns(condition)
    return _Parsed(condition, frozenset(named)) if all(_is_exact(columns[name].dataType) for name in named) else None


def _is_plain(kind: T.DataType) -> bool:
    return kind.simpleString() in _PLAIN or isinstance(kind, T.DecimalType)


def _is_exact(kind: T.DataType) -> bool:
    return kind.simpleString() in _PLAIN - _INEXACT


@lru_cache(maxsize=64)
def _parsed(schema: str, condition: str, spark: SparkSession, _zone: str) -> Condition | None:
    """A condition for all checkpoints. The time zone of the session is part of its constants."""
    return exact_condition(unread_frame(spark, T.StructType.fromJson(json.loads(schema))), condition)


def _columns(condition: Condition) -> set[str]:
    if isinstance(condition, ColumnComparison):
        return {condition.column}
    return {name for part in condition.parts for name in _columns(part)}


def _meets(records: pa.Table, condition: Condition, schema: T.StructType) -> pa.ChunkedArray:
    """Which records meet a condition; null counts as false, as there is no negation in a condition."""
    match condition:
        case AllOf(parts):
            return reduce(pc.and_, (_meets(records, part, schema) for part in parts), _all(records, value=True))
        case AnyOf(parts):
            return reduce(pc.or_, (_meets(records, part, schema) for part in parts), _all(records, value=False))
        case ColumnComparison(column, operator, value):
            return pc.fill_null(_compared(records[column], schema[column].dataType, operator, value), False)  # noqa: FBT003


def _compared(values: pa.ChunkedArray, kind: T.DataType, operator: ComparisonOperator, value: Any) -> pa.ChunkedArray:
    counted = _COUNTED.get(kind.simpleString())
    if counted is not None:
        values = values.cast(counted)
    if operator is ComparisonOperator.IS_NULL:
        return pc.is_null(values)
    if operator is ComparisonOperator.NOT_NULL:
        return pc.is_valid(values)
    if operator is ComparisonOperator.STARTS_WITH:
        return pc.starts_with(values, pattern=value)
    if operator is ComparisonOperator.IN:
        return pc.is_in(values, pa.array(value, values.type))
    return _COMPARED[operator](values, pa.scalar(value, values.type))


def _all(records: pa.Table, *, value: bool) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(value, records.num_rows)])


def _operations(rows: int, deleted: pa.ChunkedArray | None) -> pa.Array | pa.ChunkedArray:
    upsert, delete = pa.scalar(UPSERT, pa.int8()), pa.scalar(DELETE, pa.int8())
    return pa.repeat(upsert, rows) if deleted is None else pc.if_else(deleted, delete, upsert)
