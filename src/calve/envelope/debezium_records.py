"""Turns Debezium records into changes, one by one, in tasks; the rules are in `debezium`. Plain Python."""

import json
import uuid
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.envelope import order
from calve.envelope.fields import check_time
from calve.envelope.upsert_records import keyed
from calve.model.change import DELETE, UPSERT
from calve.model.spec import Debezium, OnTruncate, OnUnavailableValue
from calve.records import frames
from calve.records.columns import is_uuid
from calve.records.documents import (
    UNREADABLE,
    Codings,
    Malformed,
    field_of,
    image_codings,
    is_wrapped,
    malformed,
    parsed,
    shortened,
)
from calve.records.frames import STEP, Columns, bad_row
from calve.records.scalars import Settings
from calve.records.strict import Columns as Typed
from calve.records.strict import Misfit, uuid_text

RECORD = f"{STEP}record"
"""The column with the record, where the record is columns of the frame."""

_LOG_FULL_ROWS = "The view needs complete rows in before: make the source log them (REPLICA IDENTITY FULL)."

UNREAD = f"{STEP}unread"
"""The column with the error of a record in columns that Python cannot read."""

Image = dict[str, Any]


@dataclass(frozen=True)
class DebeziumReader:
    """Reads the records of one table. Pickled into tasks."""

    envelope: Debezium
    table: T.StructType
    key: tuple[str, ...]
    settings: Settings
    arrivals: tuple[str, ...]
    """Columns with the order of arrival."""
    typed: bool
    """Whether records are structs in `RECORD`, not JSON in `value`."""
    before: bool = False
    """Whether every change carries the row as it was before."""
    timed: bool = False
    """Whether the first order field is the time of a record."""

    def rows(self) -> "DebeziumRows":
        """Prepare reading, in a task."""
        return DebeziumRows(self)


@dataclass(frozen=True)
class DebeziumRecord:
    """An unwrapped change record. `fields` is None for a tombstone."""

    fields: dict[str, Any] | None
    schema: Any = None

    @property
    def op(self) -> Any:
        """The operation."""
        return (self.fields or {}).get("op")

    def image(self, name: str) -> Image | None:
        """`before` or `after`."""
        found = (self.fields or {}).get(name)
        return found if isinstance(found, dict) else None

    def codings(self, name: str) -> Codings:
        """The encodings of the columns of an image."""
        return image_codings(self.schema, name)


class DebeziumRows:
    """A running reader."""

    def __init__(self, reader: DebeziumReader) -> None:
        table, key = reader.table, reader.key
        self._envelope, self._typed = reader.envelope, reader.typed
        self._arrivals = reader.arrivals
        self._names = table.names
        self._key = key
        self._key_at = [table.names.index(name) for name in key]
        self._all = _Values(table.fields, reader.settings, typed=reader.typed)
        self._keys = _Values([table[name] for name in key], reader.settings, typed=reader.typed)
        self._record_key = _Values([table[name] for name in key], reader.settings, typed=False)
        self._order = [(path, field_of(path)) for path in reader.envelope.order_by]
        self._timed = reader.timed
        self._no_row = [None] * len(table.names)
        width = 1 if reader.typed else len(order.PAIR)
        self._no_order = [None] * (len(self._order) * width + len(reader.arrivals))
        self._placeholder = Placeholder(reader.envelope.unavailable_value)
        self._with_before = reader.before
        self._no_before = [None] if reader.before else []

    def __call__(self, columns: Columns, count: int) -> Iterator[list[Any]]:
        records = columns[RECORD if self._typed else "value"]
        keys = columns.get("key") or [None] * count
        arrivals = list(zip(*(columns[name] for name in self._arrivals), strict=True))
        nothing: list[Any] = [None] * count
        found = zip(columns.get(frames.SOURCE_PROBLEM, nothing), columns.get(UNREAD, nothing), strict=True)
        unread = [of_source or own for of_source, own in found]
        for row in range(count):
            if unread[row] is not None:
                yield [*self._no_row, UPSERT, *self._no_order, unread[row], *self._no_before]
                continue
            try:
                yield from list(self._changes(self._record(columns, row), keys[row], arrivals[row]))
            except UNREADABLE as error:
                bad = bad_row(malformed(error), frames.origin(columns, row, _text_of(records[row])))
                yield [*self._no_row, UPSERT, *self._no_order, bad, *self._no_before]

    def _record(self, columns: Columns, row: int) -> DebeziumRecord:
        if self._typed:
            return DebeziumRecord(columns[RECORD][row])
        record = _unwrapped(columns["value"][row])
        after = record.image("after")
        if after is None or frames.SOURCE_INCLUDED not in columns:
            return record
        return DebeziumRecord(
            {**(record.fields or {}), "after": frames.with_included(after, columns, row)}, record.schema
        )

    def _changes(self, record: DebeziumRecord, key: Any, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        if record.fields is None:
            yield from () if self._with_before else self._tombstone(key, arrival)
        elif record.op in ("c", "r", "u"):
            written = self._replaced if self._with_before else self._written
            yield from written(record, key, arrival)
        elif record.op == "d" and self._with_before:
            yield self._removed(self._whole_before(record), [*self._ordered(record), *arrival])
        elif record.op == "d":
            yield self._change(self._deleted(record, key), DELETE, [*self._ordered(record), *arrival])
        elif record.op == "t":
            if self._envelope.on_truncate is OnTruncate.HALT:
                raise Malformed("the source table was truncated", "Set on_truncate to ignore to keep the rows.")
        elif record.op != "m":
            what = "op is missing" if record.op is None else f'op "{shortened(str(record.op), 60)}" is unknown'
            raise Malformed(what, "Known operations are c, r, u, d, t and m.")

    def _tombstone(self, key: Any, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        values = None if self._order else self._in_record_key(key)
        if values is not None:
            yield self._change(values, DELETE, arrival)

    def _written(self, record: DebeziumRecord, key: Any, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        after, before = record.image("after"), record.image("before")
        if after is None:
            raise Malformed(f'op "{record.op}" needs the row in after')
        ordered = [*self._ordered(record), *arrival]
        row = self._all.of(self._available(after, before), record.codings("after"))
        old = self._in_before(record)
        if old is not None:
            if old != [row[i] for i in self._key_at]:
                yield self._change(old, DELETE, ordered)
        elif record.op == "u" and key is not None and self._in_record_key(key) is None:
            raise Malformed(
                "it is unknown which row was updated: the key is neither in before nor in the record's key",
                "Make the source log full rows (REPLICA IDENTITY FULL), or use the key of the source's table.",
            )
        yield [*row, UPSERT, *ordered, None]

    def _replaced(self, record: DebeziumRecord, _key: Any, arrival: Sequence[Any]) -> Iterator[list[Any]]:
        """The row after, with the row before; if its key changed, a delete and a new row."""
        ordered = [*self._ordered(record), *arrival]
        after, before = record.image("after"), record.image("before")
        if after is None:
            raise Malformed(f'op "{record.op}" needs the row in after')
        old = self._whole_before(record) if record.op == "u" or before is not None else None
        row = self._all.of(self._available(after, before), record.codings("after"))
        if old is not None and any(old[i] != row[i] for i in self._key_at):
            yield self._removed(old, ordered)
            old = None
        yield [*row, UPSERT, *ordered, None, old and dict(zip(self._names, old, strict=True))]

    def _removed(self, old: list[Any], ordered: Sequence[Any]) -> list[Any]:
        deleted = self._change([old[i] for i in self._key_at], DELETE, ordered)
        return [*deleted, dict(zip(self._names, old, strict=True))]

    def _whole_before(self, record: DebeziumRecord) -> list[Any]:
        """All columns of the image before. Databases that log keys only send null for the other columns."""
        before = record.image("before")
        if before is None:
            raise Malformed("the record has no row in before", _LOG_FULL_ROWS)
        for name in self._names:
            if name not in before or self._placeholder.stands_in(before[name]):
                raise Malformed(f'the row in before has no column "{name}"', _LOG_FULL_ROWS)
        others = [before[name] for name in self._names if name not in self._key]
        if record.op == "d" and len(others) > 1 and all(value is None for value in others):
            raise Malformed("the row in before contains only its key", _LOG_FULL_ROWS)
        return self._all.of(before, record.codings("before"))

    def _deleted(self, record: DebeziumRecord, key: Any) -> list[Any]:
        values = self._in_before(record)
        if values is None:
            values = self._in_record_key(key)
        if values is None:
            raise Malformed("a delete has the key neither in before nor in the record's key")
        return values

    def _in_before(self, record: DebeziumRecord) -> list[Any] | None:
        """The key columns in the image before; None if one is missing."""
        before = record.image("before")
        if before is None or any(before.get(name) is None for name in self._key):
            return None
        return self._keys.of(before, record.codings("before"))

    def _in_record_key(self, data: Any) -> list[Any] | None:
        """The key columns in the record's key; None if one is missing."""
        try:
            return self._record_key.of(*keyed(data, self._key))
        except (Malformed, Misfit):
            return None

    def _available(self, after: Image, before: Image | None) -> Image:
        """The row, with the values that the connector omitted."""
        left_out = [name for name in self._names if self._placeholder.stands_in(after.get(name))]
        row = dict(after) if left_out else after
        for name in left_out:
            known = (before or {}).get(name)
            if known is not None and not self._placeholder.stands_in(known):
                row[name] = known
            elif self._envelope.on_unavailable_value is OnUnavailableValue.NULL:
                row[name] = None
            else:
                raise Malformed(
                    f'the value of column "{name}" is not in the record',
                    "Make the source log full rows (REPLICA IDENTITY FULL), or set on_unavailable_value to null.",
                )
        return row

    def _ordered(self, record: DebeziumRecord) -> list[Any]:
        ordered: list[Any] = []
        for at, (path, look_up) in enumerate(self._order):
            value = look_up(record.fields)
            if self._timed and not at:
                check_time(path, value)
            if not self._typed:
                ordered += order.pair_of(path, value)
            elif value is None:
                raise order.missing(path)
            else:
                ordered.append(value)
        return ordered

    def _change(self, key: Sequence[Any], op: int, ordered: Sequence[Any]) -> list[Any]:
        row: list[Any] = list(self._no_row)
        for i, value in zip(self._key_at, key, strict=True):
            row[i] = value
        return [*row, op, *ordered, None]


class _Values:
    """The columns of an image, converted from JSON or, if they are typed already, unchanged."""

    def __init__(self, fields: Sequence[T.StructField], settings: Settings, *, typed: bool) -> None:
        self._names = [f.name for f in fields]
        self._required = [f.name for f in fields if not f.nullable]
        self._uuids = [f.name for f in fields if is_uuid(f)]
        self._columns = None if typed else Typed.of(fields, settings)

    def of(self, image: Image, codings: Codings) -> list[Any]:
        """The values in order. Raises Misfit."""
        if self._columns is not None:
            return self._columns.values(image, codings)
        for name in self._required:
            if image.get(name) is None:
                raise Misfit(name, None, "NOT NULL")
        for name in self._uuids:
            if image.get(name) is not None:
                uuid_text(image[name], name)
        return [image.get(name) for name in self._names]


class Placeholder:
    """The placeholder for a value that the connector omitted.

    It is the configured text; in base64 (or as bytes) for binary columns; as its bytes in arrays of numbers; as a UUID
    derived from it in arrays of UUIDs; and as the only entry of string arrays and of maps, which may be JSON in a
    string themselves.
    """

    def __init__(self, text: str) -> None:
        data = text.encode()
        named = uuid.UUID(bytes=md5(data, usedforsecurity=False).digest(), version=3)
        words = (text, b64encode(data).decode())
        self._scalars = frozenset(
            {*words, data, json.dumps({text: text}), json.dumps({text: text}, separators=(",", ":"))}
        )
        self._lists: list[list[Any]] = [[word] for word in (*words, data, str(named))]
        self._lists += [list(data), [(text, text)]]
        self._map = {text: text}

    def stands_in(self, value: Any) -> bool:
        """Whether the value was omitted."""
        if isinstance(value, str | bytes):
            return value in self._scalars
        if isinstance(value, list):
            return value in self._lists
        return isinstance(value, dict) and value == self._map


def _unwrapped(data: Any) -> DebeziumRecord:
    if data is None:
        return DebeziumRecord(None)
    value = parsed(data)
    schema = None
    if is_wrapped(value):
        value, schema = value["payload"], value["schema"]
    elif isinstance(value, dict) and "op" not in value and isinstance(value.get("payload"), dict):
        value = value["payload"]
    if value is not None and not isinstance(value, dict):
        raise Malformed("it is not a JSON object")
    return DebeziumRecord(value, schema)


def _text_of(record: Any) -> str | None:
    """A record in columns as text; None for one that is text already."""
    return json.dumps(record, default=str, ensure_ascii=False) if isinstance(record, dict) else None
