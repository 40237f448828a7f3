"""JSON values of a topic as typed columns, where every record is a row: ENVELOPE NONE and DIFF. See `strict`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.source import frames
from calve.source.arrowmap import Columns, bad_row, mapped
from calve.source.documents import UNREADABLE, Malformed, codings_of, is_wrapped, malformed, parsed
from calve.source.scalars import Settings
from calve.source.strict import Columns as Typed

_PLACE = {frames.SOURCE_TOPIC: T.StringType(), frames.SOURCE_PARTITION: T.IntegerType()}


def typed_schema(fields: Sequence[T.StructField]) -> T.StructType:
    """The columns of a frame of such records."""
    return T.StructType(
        [
            *(T.StructField(f.name, f.dataType) for f in fields),
            *(T.StructField(name, kind) for name, kind in _PLACE.items()),
            T.StructField(frames.SOURCE_OFFSET, T.LongType()),
            T.StructField(frames.SOURCE_PROBLEM, T.StringType()),
        ]
    )


def typed_records(frame: DataFrame, fields: Sequence[T.StructField], unit: str | None) -> DataFrame:
    """The values of a frame of records as columns. `unit` is what numbers count in TIMESTAMP columns."""
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    reader = Reader(tuple(fields), Settings(unit, zone))
    return mapped(frame, frame.columns, reader.rows, typed_schema(fields))


@dataclass(frozen=True)
class Reader:
    """What it takes to read records; goes to tasks."""

    fields: tuple[T.StructField, ...]
    settings: Settings

    def rows(self) -> "Rows":
        """Ready to read, in a task."""
        return Rows(self)


class Rows:
    """A reader at work."""

    def __init__(self, reader: Reader) -> None:
        self._typed = Typed.of(reader.fields, reader.settings)
        self._nothing = [None] * len(reader.fields)

    def __call__(self, columns: Columns, count: int) -> Iterator[list[Any]]:
        unread = columns.get(frames.SOURCE_PROBLEM) or [None] * count
        places = zip(columns["topic"], columns["partition"], columns["offset"], strict=True)
        for row, place in enumerate(places):
            values, problem = self._nothing, unread[row]
            if problem is None:
                try:
                    values = self._values(columns, row)
                except UNREADABLE as error:
                    problem = bad_row(malformed(error), frames.origin(columns, row))
            yield [*values, *place, problem]

    def _values(self, columns: Columns, row: int) -> list[Any]:
        data = columns["value"][row]
        if data is None:
            raise Malformed("the value is null", "ENVELOPE UPSERT takes a null value as a delete.")
        record, codings = parsed(data), None
        if is_wrapped(record):
            record, codings = record["payload"], codings_of((record["schema"] or {}).get("fields"))
        if not isinstance(record, dict):
            raise Malformed("it is not a JSON object")
        return self._typed.values(frames.with_included(record, columns, row), codings)
