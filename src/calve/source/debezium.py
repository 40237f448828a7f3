"""Debezium change records: create, read, update, delete, truncate, message; tombstones.

A record is columns of the frame (`before`, `after`, `op`, also inside `payload`), or JSON in `value` with the key's
JSON in `key` (also inside Kafka Connect's schema/payload wrapper, whose schema part says how times and decimals are
encoded).

    c, r, u       `after` replaces the row with its key. If `before` has another key, the row with that key is
    deleted. d             deletes the row with the key in `before`, else in the record's key. t             truncate:
    a bad row, or nothing, as `on_truncate` says. m             a message: nothing. null value    a tombstone: deletes
    the row of the record's key. Debezium sends it after the delete itself, so without a
                  usable key, or with `order_by` (it has no fields to be ordered by), it is left out.

A large value that did not change may be left out by the connector (`unavailable_value` stands in its place, in base64
for BINARY, alone in an ARRAY or a MAP). It is taken from `before`; if that lacks it too, `on_unavailable_value`
decides.

Everything else is a bad row: no JSON, no or an unknown `op`, a missing image, a value that does not convert (see
`strict`), a missing key or NOT NULL column, no value to be ordered by.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.model.change import DELETE, UPSERT
from calve.model.spec import Debezium, OnTruncate, OnUnavailableValue
from calve.source import frames, order
from calve.source.arrowmap import Columns, bad_row, mapped
from calve.source.columns import declared_names, declared_schema, field_at, table_fields, table_of
from calve.source.documents import Codings, Malformed, field_of, image_codings, is_wrapped, parsed
from calve.source.finish import change_schema
from calve.source.frames import STEP
from calve.source.scalars import GUARDED_MICROS, Settings
from calve.source.sqltext import ident
from calve.source.strict import Columns as Typed
from calve.source.strict import Misfit, check_type
from calve.source.upsert_json import keyed

_ARRIVAL = f"{STEP}arrival_"
_RECORD = f"{STEP}record"
_WRITES = frozenset("cru")


@dataclass(frozen=True)
class DebeziumPlan:
    """A Debezium envelope on frames of one schema, checked."""

    envelope: Debezium
    schema: T.StructType
    table: T.StructType
    key: tuple[str, ...]
    record: T.StructType | None
    """Fields of the record when it is columns; None for JSON."""

    @property
    def order_types(self) -> list[T.DataType]:
        """Types of the order columns before those of arrival."""
        if self.record is None:
            return [*order.PAIR] * len(self.envelope.order_by)
        return [field_at(self.record, path, "order field") for path in self.envelope.order_by]


def plan(schema: T.StructType, envelope: Debezium, key: Sequence[str]) -> DebeziumPlan:
    """Check the envelope against the frame's schema."""
    if not key:
        raise InvalidInput("change records need a key", hint="Name the columns that identify a row.")
    if not envelope.order_by and not frames.is_kafka(schema):
        raise InvalidInput(
            "change records need an order",
            detail="The frame does not come from Kafka, whose offsets order changes of one key.",
            hint='Say order_by with a field that grows from change to change, like "source.lsn".',
        )
    record = _record_of(schema)
    if record is not None:
        fields = table_fields(envelope.columns, _image_of(record).fields)
        order.of_columns(record, envelope.order_by)
    else:
        fields = _declared(schema, envelope)
    return DebeziumPlan(envelope, schema, table_of(fields, key), tuple(key), record)


def _record_of(schema: T.StructType) -> T.StructType | None:
    """The fields of the record where it is columns: the frame's own, or those of `payload`."""
    for candidate in (schema, schema["payload"].dataType if "payload" in schema.names else None):
        if isinstance(candidate, T.StructType) and {"op", "after"} <= set(candidate.names):
            return candidate
    return None


def _image_of(record: T.StructType) -> T.StructType:
    image = record["after"].dataType
    if not isinstance(image, T.StructType):
        raise InvalidInput(
            "the column after is not a struct",
            detail=f"It has type {image.simpleString()}.",
            hint="Give the record as JSON text in the column value, or parse it first.",
        )
    return image


def _declared(schema: T.StructType, envelope: Debezium) -> list[T.StructField]:
    if "value" not in schema.names or not frames.is_text(schema["value"].dataType):
        raise InvalidInput(
            "the frame has no change records",
            detail=f"Its columns are {', '.join(schema.names)}.",
            hint="Give before, after and op as columns, or the record's JSON in a column value.",
        )
    if envelope.columns is None or declared_names(envelope.columns) is not None:
        raise InvalidInput(
            "the columns are not declared",
            detail="The records are JSON text.",
            hint="Declare the table's columns: columns='id BIGINT NOT NULL, amount DECIMAL(12,2)'.",
        )
    fields = declared_schema(envelope.columns).fields
    for field in fields:
        check_type(field.dataType, field.name)
    return fields


def changes_of_records(frame: DataFrame, checked: DebeziumPlan) -> DataFrame:
    """The changes in a frame of change records."""
    schema = checked.schema
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    settings = Settings(checked.envelope.epoch_unit or GUARDED_MICROS, zone)
    arrival = [f"{sql} as {_ARRIVAL}{i}" for i, sql in enumerate(frames.arrival(schema, streaming=frame.isStreaming))]
    if checked.record is None:
        record = [name for name in schema.names if name in {"key", "value"}]
    else:
        inside = [] if checked.record is schema else ["payload"]
        columns = ", ".join(ident(*inside, name) for name in checked.record.names)
        arrival.append(f"struct({columns}) as {_RECORD}")
        record = [_RECORD, *(["key"] if "key" in schema.names and frames.is_text(schema["key"].dataType) else [])]
    arrivals = [f"{_ARRIVAL}{i}" for i in range(len(frames.arrival_types(schema)))]
    inputs = list(dict.fromkeys([*record, *arrivals, *frames.place_columns(schema)]))
    output = change_schema(checked.table, [*checked.order_types, *frames.arrival_types(schema)])
    return mapped(frame.selectExpr("*", *arrival), inputs, Reader(checked, settings, tuple(arrivals)).rows, output)


@dataclass(frozen=True)
class Reader:
    """Reads records; goes to tasks."""

    plan: DebeziumPlan
    settings: Settings
    arrivals: tuple[str, ...]

    def rows(self) -> "Rows":
        """Ready to read, in a task."""
        return Rows(self)


Image = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A change record, taken out of its wrapper. `fields` is None for a tombstone."""

    fields: dict[str, Any] | None
    schema: Any = None

    def image(self, name: str) -> Image | None:
        """`before` or `after`."""
        found = (self.fields or {}).get(name)
        return found if isinstance(found, dict) else None

    def codings(self, name: str) -> Codings:
        """How the columns of an image are encoded."""
        return image_codings(self.schema, name)


class Rows:
    """A reader at work: records to changes."""

    def __init__(self, reader: Reader) -> None:
        self._plan, self._arrivals = reader.plan, reader.arrivals
        envelope, table, key = reader.plan.envelope, reader.plan.table, reader.plan.key
        self._envelope = envelope
        self._typed = reader.plan.record is not None
        self._names = table.names
        self._key = list(key)
        self._all = _Values(table.fields, reader.settings, typed=self._typed)
        self._keys = _Values([table[name] for name in key], reader.settings, typed=self._typed)
        self._record_key = _Values([table[name] for name in key], reader.settings, typed=False)
        self._order = [(path, field_of(path)) for path in envelope.order_by]
        self._no_row = [None] * len(table.names)
        self._no_order = [None] * (len(reader.plan.order_types) + len(reader.arrivals))
        self._placeholder = _Placeholder(envelope.unavailable_value)

    def __call__(self, columns: Columns, count: int) -> Iterator[list[Any]]:
        records = columns[_RECORD if self._typed else "value"]
        keys = columns.get("key") or [None] * count
        arrivals = list(zip(*(columns[name] for name in self._arrivals), strict=True))
        for row in range(count):
            try:
                yield from self._changes(records[row], keys[row], arrivals[row])
            except (Malformed, Misfit) as error:
                problem = Malformed.of(error) if isinstance(error, Misfit) else error
                bad = bad_row(problem, frames.place(columns, row), records[row])
                yield [*self._no_row, UPSERT, *self._no_order, bad]

    def _changes(self, data: Any, key: Any, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        record = Record(data) if self._typed else _unwrapped(data)
        if record.fields is None:
            yield from self._tombstone(key, arrival)
            return
        op = record.fields.get("op")
        if op in _WRITES:
            yield from self._written(record, arrival)
        elif op == "d":
            yield self._change(self._deleted(record, key), DELETE, [*self._ordered(record), *arrival])
        elif op == "t":
            if self._envelope.on_truncate is OnTruncate.HALT:
                raise Malformed("the source table was truncated", "Set on_truncate to ignore to keep the rows.")
        elif op != "m":
            raise Malformed(
                "op is missing" if op is None else f'op "{op}" is unknown', "c, r, u, d, t and m are known."
            )

    def _tombstone(self, data: Any, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        if self._order:
            return
        try:
            values = self._record_key.of(*keyed(data, self._key))
        except (Malformed, Misfit):
            return  # the delete came before it
        yield self._change(values, DELETE, arrival)

    def _written(self, record: Record, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        after = record.image("after")
        if after is None:
            raise Malformed(f'op "{(record.fields or {}).get("op")}" needs the row in after')
        before = record.image("before")
        ordered = [*self._ordered(record), *arrival]
        row = self._all.of(self._available(after, before), record.codings("after"))
        if before is not None and all(before.get(name) is not None for name in self._key):
            old = self._keys.of(before, record.codings("before"))
            if old != [row[self._names.index(name)] for name in self._key]:
                yield self._change(old, DELETE, ordered)
        yield [*row, UPSERT, *ordered, None]

    def _deleted(self, record: Record, key: Any) -> list[Any]:
        before = record.image("before")
        if before is not None and all(before.get(name) is not None for name in self._key):
            return self._keys.of(before, record.codings("before"))
        if key is None:
            raise Malformed("a delete has the key neither in before nor in the record's key")
        return self._record_key.of(*keyed(key, self._key))

    def _available(self, after: Image, before: Image | None) -> Image:
        """The row with the values that the connector left out."""
        left_out = [name for name in self._names if self._placeholder.stands_in(after.get(name))]
        if not left_out:
            return after
        row = dict(after)
        for name in left_out:
            known = (before or {}).get(name)
            if known is not None and not self._placeholder.stands_in(known):
                row[name] = known
            elif self._envelope.on_unavailable_value is OnUnavailableValue.NULL:
                row[name] = None
            else:
                raise Malformed(
                    f'the value of column "{name}" is not in the record',
                    "Let the source log full rows (REPLICA IDENTITY FULL), or set on_unavailable_value to null.",
                )
        return row

    def _ordered(self, record: Record) -> list[Any]:
        ordered: list[Any] = []
        for path, look_up in self._order:
            value = look_up(record.fields)
            if not self._typed:
                ordered += order.pair_of(path, value)
            elif value is None:
                raise order.missing(path)
            else:
                ordered.append(value)
        return ordered

    def _change(self, key: Sequence[Any], op: int, ordered: Sequence[Any]) -> list[Any]:
        known = dict(zip(self._key, key, strict=True))
        return [*(known.get(name) for name in self._names), op, *ordered, None]


class _Values:
    """Columns of an image, converted from JSON or, where they have their types already, taken as they are."""

    def __init__(self, fields: Sequence[T.StructField], settings: Settings, *, typed: bool) -> None:
        self._typed = typed
        self._required = [f.name for f in fields if not f.nullable]
        self._columns = Typed.of(fields, settings)

    def of(self, image: Image, codings: Codings) -> list[Any]:
        """Values in order; raises Misfit."""
        if not self._typed:
            return self._columns.values(image, codings)
        for name in self._required:
            if image.get(name) is None:
                raise Misfit(name, None, "NOT NULL")
        return [image.get(name) for name in self._columns.names]


class _Placeholder:
    """What stands in the place of a value that the connector left out."""

    def __init__(self, text: str) -> None:
        self._forms = (text, b64encode(text.encode()).decode(), text.encode())

    def stands_in(self, value: Any) -> bool:
        """True for the placeholder itself, and for a list or an object of nothing else."""
        if isinstance(value, list):
            return bool(value) and all(entry in self._forms for entry in value)
        if isinstance(value, dict):
            return bool(value) and all(k in self._forms and v in self._forms for k, v in value.items())
        return isinstance(value, str | bytes) and value in self._forms


def _unwrapped(data: Any) -> Record:
    if data is None:
        return Record(None)
    value = parsed(data)
    schema = None
    if is_wrapped(value):
        value, schema = value["payload"], value["schema"]
    if value is not None and not isinstance(value, dict):
        raise Malformed("it is not a JSON object")
    return Record(value, schema)
