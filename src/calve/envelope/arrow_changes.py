"""Changes of small checkpoints, computed on Arrow data in the driver, without a Spark job.

A job costs several tenths of a second of CPU, whatever it does; converting a hundred thousand typed records takes a few
milliseconds. `arrow_upserts` supports the plain cases: typed columns that the table takes as they are, and conditions
that compare columns with constants, as Spark itself has parsed and typed them. The result is what `upsert` and
`write.changes` make of the same records.

Only records without any problem are converted. For everything else `changes` returns None, and Spark converts the
checkpoint: there is one place that finds, words and delivers bad rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.fields import Retyped
from calve.envelope.upsert import UpsertPlan
from calve.model.change import DELETE, OP, ORDER, ORDER_PREFIX, UPSERT
from calve.model.scan import AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition
from calve.reader.conditions import exact_condition, unread_frame
from calve.records import frames
from calve.spark.version import arrow_schema_of

_PLAIN = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}
    | {"string", "binary", "date", "timestamp", "timestamp_ntz"}
)
_INEXACT = frozenset({"float", "double"})
"""Types that conditions of this module do not compare: Spark has its own rules for NaN and zeros."""
_COUNTED: Mapping[str, pa.DataType] = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}
"""Types whose constants are numbers in conditions: of days, of microseconds."""

_COMPARED = {
    ComparisonOperator.EQUAL: pc.equal,
    ComparisonOperator.LESS: pc.less,
    ComparisonOperator.LESS_OR_EQUAL: pc.less_equal,
    ComparisonOperator.GREATER: pc.greater,
    ComparisonOperator.GREATER_OR_EQUAL: pc.greater_equal,
}


@dataclass(frozen=True)
class ArrowUpserts:
    """An upsert envelope for records in memory."""

    plan: UpsertPlan
    records: T.StructType
    """The columns of records that it needs."""
    condition: Condition | None
    """Which records delete; None: none of them."""
    stores_order: bool

    @property
    def table(self) -> T.StructType:
        """The columns of its changes that are stored in the table."""
        return T.StructType([*self.plan.table.fields, *([self._stored_order] if self.stores_order else [])])

    def changes(self, records: pa.Table) -> pa.Table | None:
        """The changes of records in the order of arrival; None if one of them has a problem."""
        deleted = None if self.condition is None else _meets(records, self.condition, self.records)
        if deleted is not None and not pc.any(deleted).as_py():
            deleted = None
        if not self._fine(records, deleted):
            return None
        key = set(self.plan.key)
        columns = {
            name: records[name]
            if deleted is None or name in key
            else pc.if_else(deleted, pa.scalar(None, records[name].type), records[name])
            for name in self.plan.table.names
        }
        order = [records[name] for name in self.plan.envelope.order_by]
        if self.stores_order:
            columns[ORDER] = order[0] if len(order) == 1 else _struct(order)
        columns[OP] = _operations(records.num_rows, deleted)
        columns |= {f"{ORDER_PREFIX}{i}": values for i, values in enumerate(order)}
        columns[f"{ORDER_PREFIX}{len(order)}"] = pa.array(np.arange(records.num_rows))
        return pa.table(columns)

    @property
    def beside(self) -> T.StructType:
        """The other columns of its changes."""
        order = [*(self.records[name].dataType for name in self.plan.envelope.order_by), T.LongType()]
        fields = [T.StructField(f"{ORDER_PREFIX}{i}", kind) for i, kind in enumerate(order)]
        return T.StructType([T.StructField(OP, T.ByteType(), nullable=False), *fields])

    @property
    def _stored_order(self) -> T.StructField:
        kinds = [self.records[name].dataType for name in self.plan.envelope.order_by]
        struct = T.StructType([T.StructField(f"_{i}", kind) for i, kind in enumerate(kinds)])
        return T.StructField(ORDER, kinds[0] if len(kinds) == 1 else struct)

    def _fine(self, records: pa.Table, deleted: pa.ChunkedArray | None) -> bool:
        """Whether nothing is missing, and every string is valid UTF-8."""
        plan = self.plan
        if any(records[name].null_count for name in (*plan.key, *plan.envelope.order_by)):
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


def arrow_upserts(plan: UpsertPlan, spark: SparkSession, *, stores_order: bool) -> ArrowUpserts | None:
    """The same upserts for records in memory; None if they need Spark."""
    record = T.StructType(frames.record_fields(plan.schema))
    types = {field.name: field.dataType for field in record.fields}
    envelope = plan.envelope
    if plan.json or any(name not in types for name in envelope.order_by):
        return None
    if not all(Retyped.of(field, types[field.name]).same for field in plan.table.fields):
        return None
    condition, read = None, set[str]()
    if envelope.delete_when is not None:
        condition = _parsed(record.json(), envelope.delete_when, spark)
        if condition is None:
            return None
        read = _columns(condition)
    needed = {*plan.table.names, *envelope.order_by, *read}
    records = T.StructType([field for field in record.fields if field.name in needed])
    if not all(_is_plain(field.dataType) for field in records.fields) or not all(
        _is_exact(types[name]) for name in read
    ):
        return None
    return ArrowUpserts(plan, records, condition, stores_order)


def matches(found: pa.Schema, records: T.StructType) -> bool:
    """Whether columns have exactly the names and types that records of a schema have in Arrow."""
    wanted = arrow_schema_of(records)
    return found.names == wanted.names and all(a.equals(b) for a, b in zip(found.types, wanted.types, strict=True))


def _is_plain(kind: T.DataType) -> bool:
    return kind.simpleString() in _PLAIN or isinstance(kind, T.DecimalType)


def _is_exact(kind: T.DataType) -> bool:
    return kind.simpleString() in _PLAIN - _INEXACT


@lru_cache(maxsize=64)
def _parsed(schema: str, condition: str, spark: SparkSession) -> Condition | None:
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


def _struct(columns: list[pa.ChunkedArray]) -> pa.Array:
    return pa.StructArray.from_arrays(
        [pa.concat_arrays(column.chunks) for column in columns], names=[f"_{i}" for i in range(len(columns))]
    )
