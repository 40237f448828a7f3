"""Reads JSON lines and CSV rows as typed records, by the rules of `records.strict`.

Spark's own readers are lenient even in their strictest mode: of `{"id": 1}{"id": 2}` they take the first record,
12.345 becomes 12.35 in a DECIMAL(5,2), `12:30` a time of today. Here a record that does not convert is a bad row that
names the file. NOT NULL is checked for every record. Blank lines are skipped.

A frame has the declared columns, and those of `records.frames` with the file of a record and its problem.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.model.change import Origin
from calve.records.documents import UNREADABLE, Malformed, malformed, parsed
from calve.records.frames import SOURCE_FILE, SOURCE_PROBLEM, STEP, Columns, RowCode, bad_row, map_rows, time_zone
from calve.records.scalars import Settings
from calve.records.strict import Columns as Typed
from calve.records.strict import check_type
from calve.source.files.csv_text import CsvText
from calve.spark.sqltext import ident
from calve.storage.listing import spark_options

_CORRUPT = f"{STEP}corrupt"
_WHOLE = f"{STEP}whole"
_LINE = "value"


def record_schema(fields: Sequence[T.StructField]) -> T.StructType:
    """The columns of a frame of records."""
    return with_origin([T.StructField(f.name, f.dataType) for f in fields])


def with_origin(fields: Sequence[T.StructField]) -> T.StructType:
    """Columns as they are, and those that describe where a record came from."""
    return T.StructType([*fields, *(T.StructField(name, T.StringType()) for name in (SOURCE_FILE, SOURCE_PROBLEM))])


def typed_rows(rows: DataFrame) -> DataFrame:
    """Rows that Spark read from files, with the columns of `with_origin`."""
    return rows.selectExpr("*", _FILE, f"cast(null as string) as {SOURCE_PROBLEM}")


def check_fields(fields: Sequence[T.StructField], *, nested: bool) -> None:
    """Reject types that text files cannot have. Raises InvalidInput."""
    for field in fields:
        check_type(field.dataType, field.name)
        if not nested and isinstance(field.dataType, T.ArrayType | T.MapType | T.StructType):
            raise InvalidInput(f'column "{field.name}" of CSV files cannot be {field.dataType.typeName().upper()}')


def json_records(
    spark: SparkSession, paths: list[str], fields: Sequence[T.StructField], unit: str | None = None
) -> DataFrame:
    """The records in files with one JSON object per line. `unit` is that of numbers in TIMESTAMP columns."""
    lines = _lines(spark, paths)
    chosen = lines.selectExpr(f"cast({_LINE} as binary) as {_LINE}", _FILE)  # keeps bytes that are not UTF-8
    return read_lines(chosen, fields, unit)


def read_lines(lines: DataFrame, fields: Sequence[T.StructField], unit: str | None = None) -> DataFrame:
    """The records in lines with the columns `LINES`."""
    return map_rows(lines, line_code(fields, unit, time_zone(lines.sparkSession)))


def line_code(fields: Sequence[T.StructField], unit: str | None, zone: str) -> RowCode:
    """Reads lines with the columns `LINES` as records."""
    reader = LineReader(tuple(fields), Settings(unit, zone), csv=None)
    return RowCode((_LINE, SOURCE_FILE), reader.rows, record_schema(fields))


def json_lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The lines that are not blank, for an envelope that parses them."""
    lines = _lines(spark, paths).where(f"trim({_LINE}) != ''")
    return lines.selectExpr(f"cast({_LINE} as binary) as {_LINE}", _FILE)


LINES = T.StructType([T.StructField(_LINE, T.BinaryType()), T.StructField(SOURCE_FILE, T.StringType())])
"""The columns of `json_lines`."""


def csv_records(
    spark: SparkSession, paths: list[str], fields: Sequence[T.StructField], options: Mapping[str, str]
) -> DataFrame:
    """The records in CSV files. Names in a header must be those of the columns."""
    text = CsvText.of(options)
    texts = _texts([text.seen(f.name) for f in fields])
    settings = {"enforceSchema": "false", **text.options(options), **_MUST_EXIST, **spark_options(paths)}
    settings |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    rows = spark.read.format("csv").options(**settings).schema(texts).load(paths)
    named = (f"{ident(text.seen(f.name))} as {ident(f.name)}" for f in fields)
    return _read_texts(rows.selectExpr(*named, _CORRUPT, _FILE), fields, text)


def _texts(names: Iterable[str]) -> T.StructType:
    """The columns that Spark reads from CSV files: texts, and the whole line if their number is wrong."""
    return T.StructType([T.StructField(name, T.StringType()) for name in (*names, _CORRUPT)])


def _read_texts(rows: DataFrame, fields: Sequence[T.StructField], text: CsvText) -> DataFrame:
    reader = LineReader(tuple(fields), Settings(zone=time_zone(rows.sparkSession)), csv=text)
    inputs = (*(f.name for f in fields), _CORRUPT, SOURCE_FILE)
    return map_rows(rows, RowCode(inputs, reader.rows, record_schema(fields)))


def csv_records_of(lines: DataFrame, fields: Sequence[T.StructField], options: Mapping[str, str]) -> DataFrame:
    """The records in letters of CSV files, with the columns `LINES`: rows as JSON, or lines as they were."""
    text = CsvText.of(options)
    names = tuple(f.name for f in fields)
    texts = _texts(names)
    split = T.StructType([*texts.fields, *LINES.fields])
    values = map_rows(lines, RowCode(tuple(LINES.names), lambda: CsvLetterSplitter(names, text), split))
    settings = {**text.options(options), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    declared = ", ".join(f"{ident(name)} string" for name in texts.names)
    line = F.decode(_LINE, "ISO-8859-1") if text.bytewise else F.col(_LINE).cast("string")
    parsed_line = F.from_csv(line, declared, settings)
    whole = F.when(F.col(_LINE).isNotNull(), parsed_line).otherwise(F.struct(*(F.col(ident(n)) for n in texts.names)))
    chosen = values.select(whole.alias(_WHOLE), SOURCE_FILE).select(f"{_WHOLE}.*", SOURCE_FILE)
    return _read_texts(chosen, fields, text)


class CsvLetterSplitter:
    """Splits letters of CSV files into texts; a line is left to Spark's parser. Runs in tasks.

    Values are matched to columns by their order, as in a file: columns may have other names by now. A row whose null
    values are left out is matched by names.
    """

    def __init__(self, names: tuple[str, ...], text: CsvText) -> None:
        self._names = tuple(map(text.seen, names))
        self._text = text

    def __call__(self, columns: Columns, _: int) -> Iterator[list[Any]]:
        for value, file in zip(columns[_LINE], columns[SOURCE_FILE], strict=True):
            texts = self._texts(value)
            yield [*(texts or [None] * len(self._names)), None, value if texts is None else None, file]

    def _texts(self, value: bytes) -> list[str | None] | None:
        try:
            row = self._row(value)
        except (ValueError, RecursionError):
            return None
        if row is None or not all(text is None or isinstance(text, str) for text in row.values()):
            return None
        if len(row) != len(self._names):
            if not row.keys() <= set(self._names):
                return None
            row = {name: row.get(name) for name in self._names}
        return list(row.values())

    def _row(self, value: bytes) -> dict[str, Any] | None:
        """Names and texts as the parser sees them; None if it is no object. Raises ValueError and RecursionError."""
        seen: Callable[[str], str] = self._text.seen
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text, seen = self._text.seen_of(value), str
        row = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
        if not isinstance(row, dict):
            return None
        row = {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
        return {seen(name): seen(value) if isinstance(value, str) else value for name, value in row.items()}


_FILE = f"nullif(regexp_replace(_metadata.file_path, '^file:/+', 'file:///'), '') as {SOURCE_FILE}"
"""The same for all of Hadoop's local filesystems: it is part of the identity of a dead letter."""
_MUST_EXIST = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def _lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    return spark.read.format("text").options(**_MUST_EXIST, **spark_options(paths)).load(paths)


@dataclass(frozen=True)
class LineReader:
    """Reads lines and rows. Pickled into tasks."""

    fields: tuple[T.StructField, ...]
    settings: Settings
    csv: CsvText | None
    """How the texts of CSV rows were read; None for lines of JSON."""

    def rows(self) -> "LineRows":
        """Prepare reading, in a task."""
        return LineRows(self)


class LineRows:
    """A running reader."""

    def __init__(self, reader: LineReader) -> None:
        self._csv = reader.csv
        self._typed = Typed.of(reader.fields, reader.settings)
        self._nothing = [None] * len(reader.fields)

    def __call__(self, columns: Columns, _: int) -> Iterator[list[Any]]:
        files = columns[SOURCE_FILE]
        for (text, record), file in zip(self._records(columns), files, strict=True):
            if self._csv is None and not text.strip():
                continue
            try:
                yield [*self._typed.values(self._object(text) if record is None else record), file, None]
            except UNREADABLE as error:
                yield [*self._nothing, file, bad_row(malformed(error), Origin(file=file, value=_bytes_of(text)))]

    def _records(self, columns: Columns) -> Iterator[tuple[Any, dict[str, Any] | None]]:
        if self._csv is None:
            yield from ((text, None) for text in columns[_LINE])
            return
        names, text_of = self._typed.names, self._csv.text
        for corrupt, *values in zip(columns[_CORRUPT], *(columns[name] for name in names), strict=True):
            if corrupt is not None:
                yield self._csv.data(corrupt), None
                continue
            try:
                record = {n: v if v is None else text_of(v) for n, v in zip(names, values, strict=True)}
            except UnicodeDecodeError:
                seen = {self._csv.seen(n): v for n, v in zip(names, values, strict=True)}
                yield self._csv.data(json.dumps(seen, ensure_ascii=False)), None
            else:
                yield record, record

    def _object(self, text: bytes | str) -> dict[str, Any]:
        if self._csv is not None:
            raise _wrong_with_row(text)
        record = parsed(text)
        if not isinstance(record, dict):
            raise Malformed("it is not a JSON object")
        return record


def _wrong_with_row(row: bytes | str) -> Malformed:
    """Why a CSV row has no values."""
    try:
        _ = row.decode() if isinstance(row, bytes) else row
    except UnicodeDecodeError:
        return Malformed("it is not UTF-8", "Convert the file, or declare its encoding: calve.files(..., options=...).")
    return Malformed("it has more or fewer columns than declared")


def _bytes_of(record: bytes | str | dict[str, Any]) -> bytes:
    """A record as it was read: a line, or the values of a CSV row as JSON."""
    if isinstance(record, bytes):
        return record
    return (record if isinstance(record, str) else json.dumps(record, ensure_ascii=False)).encode()
