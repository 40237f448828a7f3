"""Debezium change records: create, read, update, delete, truncate, message; tombstones.

A record is columns of the frame (`before`, `after`, `op`, also inside `payload`), or JSON in `value` with the key's
JSON in `key` (also inside Kafka Connect's schema/payload wrapper, whose schema part says how times and decimals are
encoded).

    c, r, u       `after` replaces the row with its key. If `before` has another key, the row with that key is deleted.
                  An update whose record has a key, but this table's key neither there nor in `before`, is a bad row:
                  its key may have changed unnoticed.
    d             deletes the row with the key in `before`, else in the record's key.
    t             truncate: a bad row or ignored, as `on_truncate` says.
    m             a message: ignored.
    null value    a tombstone: deletes the row with the record's key. Debezium sends it after the delete itself, so
                  without a usable key, or with `order_by` (it has no fields to order by), it is ignored.

The connector may omit a large value that did not change (`unavailable_value` replaces it, in base64 for BINARY, as the
only entry of an ARRAY or a MAP). It is taken from `before`; if that lacks it too, `on_unavailable_value` decides.

With `before=True` every change carries the row as it was before: an update or a delete whose `before` is not the whole
row is a bad row, and tombstones, which follow a delete, are ignored.

Everything else is a bad row: invalid JSON, a missing or unknown `op`, a missing image, a value that does not convert
(see `records.strict`), a missing key or NOT NULL column, a missing order field.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.envelope import order
from calve.envelope.debezium_records import RECORD, UNREAD, DebeziumReader
from calve.envelope.finish import change_schema
from calve.errors import InvalidInput
from calve.model.spec import Debezium
from calve.records import frames
from calve.records.columns import field_at, require, table_fields, table_of
from calve.records.frames import Records, RowCode, map_rows
from calve.records.problem import bad_row, first_problem, no_moment, no_text
from calve.records.scalars import GUARDED_MICROS, Settings
from calve.records.strict import declared_in_json, type_name
from calve.spark.sqltext import ident, not_utf8, outside_of_years

_FIELDS = ("before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction", "message")


@dataclass(frozen=True)
class DebeziumPlan:
    """A checked Debezium envelope for records of one schema."""

    envelope: Debezium
    schema: T.StructType
    table: T.StructType
    key: tuple[str, ...]
    record: T.StructType | None
    """The fields of a record in columns; None for JSON."""

    @property
    def order_types(self) -> list[T.DataType]:
        """The types of the order columns, without those of arrival."""
        if self.record is None:
            return [*order.PAIR] * len(self.envelope.order_by)
        return [field_at(self.record, path, "order field") for path in self.envelope.order_by]


def plan(schema: T.StructType, envelope: Debezium, key: Sequence[str]) -> DebeziumPlan:
    """Check the envelope against the schema of records. Raises InvalidInput."""
    if not key:
        raise InvalidInput("change records need a key", hint="Name the columns that identify a row.")
    if not envelope.order_by and not frames.is_kafka(schema):
        raise InvalidInput(
            "change records need an order",
            detail="The frame does not come from Kafka, whose offsets order changes of one key.",
            hint='Set order_by to a field that increases with every change, such as "source.lsn".',
        )
    record = _record_of(schema)
    if record is not None:
        image = _image_of(record)
        fields = table_fields(envelope.columns, image.fields)
        _check_types(fields, image)
        order.of_columns(record, envelope.order_by)
    else:
        fields = _declared(schema, envelope)
        for path in envelope.order_by:
            require(path.split(".")[0], _FIELDS, "field of change records named")
    return DebeziumPlan(envelope, schema, table_of(fields, key), tuple(key), record)


def _unreadable(schema: T.StructType, record: T.StructType, inside: Sequence[str]) -> str:
    """SQL of the error of a record in columns that Python cannot read, or null."""
    values = [(f.name, ident(*inside, f.name), f.dataType) for f in record.fields]
    garbled = [(no_text(name), sql) for name, value, kind in values if (sql := not_utf8(value, kind))]
    outside = [(no_moment(name), sql) for name, value, kind in values if (sql := outside_of_years(value, kind))]
    found = first_problem([f"if({sql}, {words}, null)" for words, sql in (*garbled, *outside)])
    return bad_row(f"({found})", frames.where(schema), frames.sample(schema), frames.origin_sql(schema))


def _record_of(schema: T.StructType) -> T.StructType | None:
    """The fields of a record in columns: the frame's own, or those of `payload`."""
    for candidate in (schema, schema["payload"].dataType if "payload" in schema.names else None):
        if isinstance(candidate, T.StructType) and {"op", "after"} <= set(candidate.names):
            return candidate
    return None


def _image_of(record: T.StructType) -> T.StructType:
    image = record["after"].dataType
    if not isinstance(image, T.StructType):
        raise InvalidInput(
            'the column "after" is not a struct',
            detail=f"It has type {image.simpleString()}.",
            hint='Give the record as JSON in the column "value", or parse it first.',
        )
    return image


def _check_types(fields: Sequence[T.StructField], image: T.StructType) -> None:
    for field in fields:
        found = image[field.name].dataType
        if found.simpleString() != field.dataType.simpleString():
            raise InvalidInput(
                f'column "{field.name}" is declared as {type_name(field.dataType)}, but is {type_name(found)} in after',
                hint="Declare the type that it has, or cast it first.",
            )


def _declared(schema: T.StructType, envelope: Debezium) -> list[T.StructField]:
    if "value" not in schema.names or not frames.is_text(schema["value"].dataType):
        raise InvalidInput(
            "the frame has no change records",
            detail=f"Its columns are {', '.join(schema.names)}.",
            hint='Give the columns "before", "after" and "op", or the record as JSON in a column "value".',
        )
    return declared_in_json(envelope.columns)


def changes_of_records(
    records: Records, checked: DebeziumPlan, *, before: bool = False, timed: bool = False
) -> DataFrame:
    """The changes in change records; with `before`, each with the row as it was before.

    `timed` says that the first order field is the time of a record.
    """
    schema, record = checked.schema, checked.record
    added = frames.arrival_columns(schema, streaming=frames.is_streaming(records))
    if before and frames.SOURCE_INCLUDED in schema.names:
        raise InvalidInput(
            "INCLUDE cannot be combined with old rows: they lack its columns",
            hint="Leave INCLUDE out, or write the source's rows to a table with MODE UPSERT.",
        )
    if record is not None:
        inside = [] if record is schema else ["payload"]
        unread = _unreadable(schema, record, inside)
        whole = f"struct({', '.join(ident(*inside, name) for name in record.names)})"
        added |= {RECORD: f"if({unread} is null, {whole}, null)", UNREAD: unread}
    code = debezium_code(checked, frames.time_zone_of(records), before=before, timed=timed)
    return map_rows(frames.with_columns(records, schema, added), code)


def debezium_code(checked: DebeziumPlan, zone: str, *, before: bool = False, timed: bool = False) -> RowCode:
    """Makes changes of records, with the columns of their arrival and, of records in columns, RECORD and UNREAD."""
    schema, typed = checked.schema, checked.record is not None
    settings = Settings(checked.envelope.epoch_unit or GUARDED_MICROS, zone)
    arrivals = tuple(frames.arrival_columns(schema))
    reader = DebeziumReader(
        checked.envelope, checked.table, checked.key, settings, arrivals, typed=typed, before=before, timed=timed
    )
    inputs = ["key"] if "key" in schema.names and frames.is_text(schema["key"].dataType) else []
    inputs += [RECORD, UNREAD] if typed else ["value"]
    taken = dict.fromkeys([*inputs, *arrivals, *frames.origin_columns(schema)])
    output = change_schema(checked.table, [*checked.order_types, *frames.arrival_types(schema)], before=before)
    return RowCode(tuple(taken), reader.rows, output)
