"""Statistics of files: columns, rows, and for each row group of a Parquet file nulls and bounds of columns.

Footers are read in Spark tasks when there are many files, and in this process when there are few.

CSV and JSON files have no statistics of their own: they are read whole, in one aggregation by file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.column_types import bounded, columns_of, instant, kind_of, schema_of, spark_type
from calve.analyze.subject import FileLook, GroupLook, ListedFile, WantedFacts
from calve.errors import CalveError, InvalidInput, TransientError
from calve.metastore.statistics import ColumnStatistics, StatisticsType, merge_columns
from calve.spark.failures import failure_of
from calve.spark.sqltext import ident
from calve.spark.tasks import Tasks

FEW: Final = 64
"""The most footers that this process reads itself: that is cheaper than starting tasks."""
_PER_TASK: Final = 250
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_FIELD_ID: Final = b"PARQUET:field_id"

Open = Callable[[str], Any]
"""Opens a file for random reads by its path. Raises OSError."""


@dataclass(frozen=True)
class Footers:
    """How to read footers; sent to tasks."""

    open: Open
    wanted: WantedFacts
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of columns by field id, if files may have different names."""

    def of(self, files: Sequence[ListedFile]) -> list[FileLook]:
        """Read the footers of files. Raises InvalidInput, TransientError."""
        return [self._read(file.path) for file in files]

    def _read(self, path: str) -> FileLook:
        try:
            with self.open(path) as source:
                return self._look(pq.ParquetFile(source))
        except pa.ArrowInvalid as error:
            raise InvalidInput("a file is not a valid Parquet file", detail=f"{path}: {error}") from error
        except OSError as error:
            raise TransientError("a file could not be read", detail=f"{path}: {error}") from error

    def _look(self, file: pq.ParquetFile) -> FileLook:
        footer, schema = file.metadata, self._schema(file)
        kinds = {".".join(path): kind_of(kind) for path, kind in columns_of(schema)}
        wanted = {name: kind for name, kind in kinds.items() if self.wanted.has(name)}
        places = self._places(file, wanted)
        groups = [_group(footer.row_group(number), places) for number in range(footer.num_row_groups)]
        empty = {name: ColumnStatistics(kind, 0, 0) for name, kind in wanted.items()}
        columns = merge_columns(dict(group.columns) for group in groups) if groups else empty
        kept = tuple(groups) if self.wanted.row_groups else ()
        return FileLook(str(schema.json()), footer.num_rows, columns, kept)

    def _schema(self, file: pq.ParquetFile) -> T.StructType:
        kept = (file.metadata.metadata or {}).get(_SPARK_SCHEMA)
        if kept is not None and not self.names:
            return _nullable(schema_of(kept.decode()))
        fields = []
        physical = {file.schema.column(n).path: file.schema.column(n).physical_type for n in range(len(file.schema))}
        for one in file.schema_arrow:
            kind = T.TimestampType() if physical.get(one.name) == "INT96" else spark_type(one.type)
            if kind is not None:  # otherwise Spark cannot read it
                fields.append(T.StructField(self._name(one), kind))
        return T.StructType(fields)

    def _name(self, one: pa.Field) -> str:
        known = (one.metadata or {}).get(_FIELD_ID)
        return self.names.get(int(known), one.name) if known is not None else str(one.name)

    def _places(
        self, file: pq.ParquetFile, wanted: Mapping[str, StatisticsType]
    ) -> dict[str, tuple[int, StatisticsType]]:
        """The wanted columns with their index in the file; lists and maps have no bounds."""
        top = {one.name: self._name(one) for one in file.schema_arrow}
        found: dict[str, tuple[int, StatisticsType]] = {}
        for number in range(len(file.schema)):
            column = file.schema.column(number)
            first, dot, rest = column.path.partition(".")
            name = top[column.path] if column.path in top else f"{top.get(first, first)}{dot}{rest}"
            if name in wanted and name not in found and column.max_repetition_level == 0:
                found[name] = number, wanted[name]
        return found


def _group(group: pq.RowGroupMetaData, places: Mapping[str, tuple[int, StatisticsType]]) -> GroupLook:
    columns = {name: _statistics(group.column(number), kind) for name, (number, kind) in places.items()}
    return GroupLook(group.num_rows, group.total_byte_size, columns)


def _statistics(chunk: pq.ColumnChunkMetaData, kind: StatisticsType) -> ColumnStatistics:
    found = chunk.statistics
    if found is None:
        return ColumnStatistics(kind)
    nulls = found.null_count if found.has_null_count else None
    values = None if nulls is None else chunk.num_values - nulls
    if not found.has_min_max:
        return ColumnStatistics(kind, nulls, values)
    try:
        least, greatest = found.min, found.max
    except (NotImplementedError, ValueError, OverflowError):  # values outside of Python's range
        return ColumnStatistics(kind, nulls, values)
    return bounded(kind, nulls, values, _python(least), _python(greatest))


def _python(value: Any) -> Any:
    """Nanoseconds arrive as pandas timestamps, which are truncated to microseconds: they cannot be bounds."""
    return None if hasattr(value, "nanosecond") and value.nanosecond else value


def _nullable(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(one.name, one.dataType) for one in schema.fields])


def read_footers(spark: Callable[[], SparkSession], footers: Footers, files: Sequence[ListedFile]) -> list[FileLook]:
    """Read the footers of files, in Spark tasks when there are many. Raises InvalidInput, TransientError."""
    if len(files) <= FEW:
        return footers.of(files)
    session = spark()
    size = min(_PER_TASK, -(-len(files) // session.sparkContext.defaultParallelism))
    chunks = [files[first : first + size] for first in range(0, len(files), size)]
    tasks: Tasks[list[FileLook]] = Tasks("the files could not be read")
    return [look for looks in tasks.run(session, chunks, partial(_looks_of, footers)) for look in looks]


def _looks_of(footers: Footers, files: Sequence[ListedFile], _attempt: str) -> list[FileLook]:
    return footers.of(files)


_FILE: Final = "_calve_file"
_ORDERED: Final = frozenset(StatisticsType) - {StatisticsType.OTHER}

Measured = Mapping[str, tuple[tuple[str, ...], StatisticsType]]


def look_at_records(frame: DataFrame, files: Sequence[ListedFile], wanted: WantedFacts) -> list[FileLook]:
    """Aggregate the files that a frame reads, in their order. Raises InvalidInput if they cannot be read."""
    schema = frame.schema
    measured = {
        ".".join(path): (path, kind_of(kind)) for path, kind in columns_of(schema) if wanted.has(".".join(path))
    }
    named = frame.withColumn(_FILE, F.col("_metadata.file_path"))
    try:
        rows = named.groupBy(_FILE).agg(F.count(F.lit(1)).alias("rows"), *_aggregates(measured)).collect()
    except (PySparkException, Py4JError) as error:
        raise _unreadable(error) from error
    found = {_path(row[_FILE]): row for row in rows}
    text = str(T.StructType([T.StructField(f.name, f.dataType) for f in schema.fields]).json())
    return [_look(found.get(_path(file.path)), measured, text) for file in files]


def _aggregates(measured: Measured) -> list[Any]:
    found = []
    for number, (path, kind) in enumerate(measured.values()):
        column = F.col(ident(*path))
        found.append(F.count(column).alias(f"v{number}"))
        if kind in _ORDERED:
            low, high = F.min(column), F.max(column)
            micros = (
                F.unix_micros if kind is StatisticsType.TIMESTAMP else _same
            )  # Python's timestamps would have no zone
            found += [micros(low).alias(f"l{number}"), micros(high).alias(f"g{number}")]
    return found


def _same(column: Any) -> Any:
    return column


def _look(row: Row | None, measured: Measured, schema: str) -> FileLook:
    if row is None:  # the file has no records
        return FileLook(schema, 0, {name: ColumnStatistics(kind, 0, 0) for name, (_, kind) in measured.items()})
    columns = {}
    for number, (name, (_, kind)) in enumerate(measured.items()):
        values = row[f"v{number}"]
        low, high = (row[f"l{number}"], row[f"g{number}"]) if kind in _ORDERED else (None, None)
        if kind is StatisticsType.TIMESTAMP:
            low, high = (None if one is None else instant(one, kind) for one in (low, high))
        columns[name] = bounded(kind, row["rows"] - values, values, low, high)
    return FileLook(schema, row["rows"], columns)


def _path(location: str) -> str:
    """A comparable path: Spark's is a URI with percent-encoding, ours a plain path or a URI."""
    found = urlsplit(location)
    return unquote(f"{found.netloc}{found.path}") if found.scheme else location


def _unreadable(error: Exception) -> CalveError:
    found = failure_of(error, "the files could not be read")
    if isinstance(found, TransientError):
        return found
    return InvalidInput(
        "files cannot be read in the format of their extension",
        detail=found.detail or found.primary,
        hint="Declare their columns in a source (CREATE SOURCE ... FROM FILES), and analyze the source.",
    )
