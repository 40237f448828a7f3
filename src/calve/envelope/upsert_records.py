"""Reads upserts from JSON in `value` (and Kafka's `key`), in tasks.

The rows have the declared columns (for a null value those of the key, from `key`), the fields that only the condition
names as strings, the order columns, and two errors: one for the key and the order, which always counts, and one for the
other columns, which a delete does not need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.envelope import order
from calve.envelope.fields import Path, check_time, text_fields
from calve.model.spec import Upsert
from calve.records import frames
from calve.records.documents import UNREADABLE, Codings, Malformed, codings_of, field_of, is_wrapped, malformed, parsed
from calve.records.frames import STEP, Columns, Records, RowCode, bad_row, map_rows
from calve.records.scalars import Settings, text_of
from calve.records.strict import Columns as Typed
from calve.records.strict import Misfit

GONE = f"{STEP}gone"
ORDER = f"{STEP}order_"
BAD_KEY = f"{STEP}bad_key"
BAD_REST = f"{STEP}bad_rest"


def read_records(
    records: Records,
    schema: T.StructType,
    table: T.StructType,
    key: Sequence[str],
    options: tuple[Upsert, Sequence[Path]],
    *,
    timed: bool = False,
) -> DataFrame:
    """Read records as typed rows. `timed` says that the first order field is the time of a record."""
    added = frames.arrival_columns(schema, streaming=frames.is_streaming(records))
    code = upsert_code(schema, table, key, options, frames.time_zone_of(records), timed=timed)
    return map_rows(frames.with_columns(records, schema, added), code)


def upsert_code(
    schema: T.StructType,
    table: T.StructType,
    key: Sequence[str],
    options: tuple[Upsert, Sequence[Path]],
    zone: str,
    *,
    timed: bool = False,
) -> RowCode:
    """Reads records of a schema, with the columns of their arrival."""
    envelope, paths = options
    arrivals = tuple(frames.arrival_columns(schema))
    settings = Settings(envelope.epoch_unit, zone)
    reader = UpsertReader(table, tuple(key), tuple(paths), envelope.order_by, settings, arrivals, timed=timed)
    types = [*reader.order_types(), *frames.arrival_types(schema)]
    output = T.StructType(
        [
            *(T.StructField(f.name, f.dataType) for f in table.fields),
            *text_fields(paths),
            T.StructField(GONE, T.BooleanType()),
            *(T.StructField(f"{ORDER}{i}", data_type) for i, data_type in enumerate(types)),
            T.StructField(BAD_KEY, T.StringType()),
            T.StructField(BAD_REST, T.StringType()),
        ]
    )
    inputs = [name for name in ("key", "value") if name in schema.names]
    taken = dict.fromkeys([*inputs, *frames.origin_columns(schema), *arrivals])
    return RowCode(tuple(taken), reader.rows, output)


@dataclass(frozen=True)
class UpsertRecord:
    """A parsed record."""

    values: list[Any]
    texts: list[Any]
    order: list[Any]
    gone: bool = False
    rest: Malformed | None = None


@dataclass(frozen=True)
class UpsertReader:
    """Reads the records of one table. Pickled into tasks."""

    table: T.StructType
    key: tuple[str, ...]
    paths: tuple[Path, ...]
    order_by: tuple[str, ...]
    settings: Settings
    arrivals: tuple[str, ...]
    """Columns with the order of arrival."""
    timed: bool = False
    """Whether the first order field is the time of a record."""

    def order_types(self) -> list[T.DataType]:
        """The types of the order columns, without those of arrival."""
        types: list[T.DataType] = []
        for path in self.order_by:
            types += [self.table[path].dataType] if path in self.table.names else order.PAIR
        return types

    def rows(self) -> "UpsertRows":
        """Prepare reading, in a task."""
        return UpsertRows(self)


class UpsertRows:
    """A running reader."""

    def __init__(self, reader: UpsertReader) -> None:
        fields = reader.table.fields
        self._reader = reader
        self._width = len(fields)
        self._key_at = [i for i, f in enumerate(fields) if f.name in reader.key]
        self._rest_at = [i for i, f in enumerate(fields) if f.name not in reader.key]
        self._key = Typed.of([fields[i] for i in self._key_at], reader.settings)
        self._rest = Typed.of([fields[i] for i in self._rest_at], reader.settings)
        self._index = {f.name: i for i, f in enumerate(fields)}
        self._tops = [(f.name, f.dataType) for f in text_fields(reader.paths)]
        self._order = [(path, self._index.get(path), field_of(path)) for path in reader.order_by]
        self._timed = reader.timed
        self._nothing = UpsertRecord([None] * self._width, [None] * len(self._tops), [None] * len(reader.order_types()))

    def __call__(self, columns: Columns, count: int) -> Iterator[list[Any]]:
        keys = columns["key"] if "key" in columns else [None] * count
        arrivals = zip(*(columns[name] for name in self._reader.arrivals), strict=True)
        unread = columns.get(frames.SOURCE_PROBLEM) or [None] * count
        for row, arrived in enumerate(arrivals):
            found, bad_key, bad_rest = self._nothing, unread[row], None
            if bad_key is None:
                try:
                    found = self._found(keys[row], columns, row)
                except UNREADABLE as error:
                    bad_key = bad_row(malformed(error), frames.origin(columns, row))
            if found.rest is not None:
                bad_rest = bad_row(found.rest, frames.origin(columns, row))
            yield [*found.values, *found.texts, found.gone, *found.order, *arrived, bad_key, bad_rest]

    def _found(self, key: Any, columns: Columns, row: int) -> UpsertRecord:
        record, codings = _payload(columns["value"][row])
        if record is None:
            return self._deleted(key)
        if not isinstance(record, dict):
            raise Malformed("it is not a JSON object")
        record = self._with_key(frames.with_included(record, columns, row), key)
        values: list[Any] = [None] * self._width
        rest = None
        for i, converted in zip(self._key_at, self._key.values(record, codings), strict=True):
            values[i] = converted
        try:
            for i, converted in zip(self._rest_at, self._rest.values(record, codings), strict=True):
                values[i] = converted
        except Misfit as error:
            rest = Malformed.of(error)
        return UpsertRecord(values, self._texts(record), self._ordered(record, values), rest=rest)

    def _with_key(self, record: dict[str, Any], key: Any) -> dict[str, Any]:
        """A record with the key columns that only Kafka's key has."""
        lacking = [name for name in self._key.names if record.get(name) is None]
        if not lacking or key is None:
            return record
        try:
            known, _ = keyed(key, self._key.names)
        except Malformed:
            return record
        return {**record, **{name: known.get(name) for name in lacking}}

    def _deleted(self, data: Any) -> UpsertRecord:
        """A null value: the key's JSON identifies the row, as an object or as the bare value of a single column."""
        record, codings = keyed(data, self._key.names)
        values: list[Any] = [None] * self._width
        for i, converted in zip(self._key_at, self._key.values(record, codings), strict=True):
            values[i] = converted
        return UpsertRecord(values, [None] * len(self._tops), self._ordered({}, values), gone=True)

    def _ordered(self, record: dict[str, Any], values: list[Any]) -> list[Any]:
        ordered: list[Any] = []
        for at, (path, index, look_up) in enumerate(self._order):
            if self._timed and not at:
                check_time(path, look_up(record) if index is None else self._millis(index, values))
            if index is None:
                ordered += order.pair_of(path, look_up(record))
            elif values[index] is None:
                raise order.missing(path)
            else:
                ordered.append(values[index])
        return ordered

    def _millis(self, index: int, values: list[Any]) -> Any:
        """A declared time in milliseconds: a TIMESTAMP is in microseconds here."""
        value = values[index]
        is_moment = isinstance(self._reader.table.fields[index].dataType, T.TimestampType)
        return value // 1000 if is_moment and value is not None else value

    def _texts(self, record: dict[str, Any]) -> list[Any]:
        found = []
        for name, data_type in self._tops:
            try:
                found.append(_text_below(record.get(name), data_type))
            except ValueError as error:
                raise Malformed(f'the field "{name}" of the condition is not a valid string') from error
        return found


def keyed(data: Any, names: Sequence[str]) -> tuple[dict[str, Any], Codings]:
    """The key columns in a record's key: an object, or the bare value of a single one."""
    record, codings = _payload(data)
    if isinstance(record, dict):
        return record, codings
    return ({names[0]: record} if len(names) == 1 else {}), codings


def _payload(data: Any) -> tuple[Any, Codings]:
    if data is None:
        return None, None
    value = parsed(data)
    if not is_wrapped(value):
        return value, None
    return value["payload"], codings_of((value["schema"] or {}).get("fields"))


def _text_below(value: Any, data_type: T.DataType) -> Any:
    if isinstance(data_type, T.StructType):
        inner = value if isinstance(value, dict) else {}
        return {f.name: _text_below(inner.get(f.name), f.dataType) for f in data_type.fields}
    return None if value is None else text_of(value)
