"""What the footer of a Parquet file tells: columns, rows, and for each row group nulls and bounds of columns.

It runs in Spark's tasks when there are many files, and in this process when there are few. An error comes back as a
value: whoever asked raises it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.columns import bounded, columns_of, kind_of, schema_of, spark_type
from calve.analyze.subject import FileLook, GroupLook, ListedFile, Wanted
from calve.errors import CalveError, InvalidInput, TransientError
from calve.metastore.statistics import ColumnStatistics, ColumnType, merge_columns
from calve.spark.failures import told_as

FEW: Final = 64
"""Footers that this process reads by itself: less work than starting tasks."""
_PER_TASK: Final = 250
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_FIELD_ID: Final = b"PARQUET:field_id"

Open = Callable[[str], Any]
"""A file for random reads, by its path. Raises OSError."""


@dataclass(frozen=True)
class Footers:
    """How footers are read; goes to tasks."""

    open: Open
    wanted: Wanted
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of columns by field id, where files may have others."""

    def of(self, files: Sequence[ListedFile]) -> list[FileLook] | CalveError:
        """What is in the files, or why that cannot be told."""
        found = []
        for file in files:
            try:
                with self.open(file.path) as source:
                    found.append(self._look(pq.ParquetFile(source)))
            except pa.ArrowInvalid as error:
                return InvalidInput("a file is no Parquet file", detail=f"{file.path}: {error}")
            except OSError as error:
                return TransientError("a file could not be read", detail=f"{file.path}: {error}")
        return found

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
            if kind is not None:  # Spark cannot read it, whatever is known of it
                fields.append(T.StructField(self._name(one), kind))
        return T.StructType(fields)

    def _name(self, one: pa.Field) -> str:
        known = (one.metadata or {}).get(_FIELD_ID)
        return self.names.get(int(known), one.name) if known is not None else str(one.name)

    def _places(self, file: pq.ParquetFile, wanted: Mapping[str, ColumnType]) -> dict[str, tuple[int, ColumnType]]:
        """The wanted columns by the number that they have in the file; lists and maps have no bounds."""
        top = {one.name: self._name(one) for one in file.schema_arrow}
        found: dict[str, tuple[int, ColumnType]] = {}
        for number in range(len(file.schema)):
            column = file.schema.column(number)
            first, dot, rest = column.path.partition(".")
            name = top[column.path] if column.path in top else f"{top.get(first, first)}{dot}{rest}"
            if name in wanted and name not in found and column.max_repetition_level == 0:
                found[name] = number, wanted[name]
        return found


def _group(group: pq.RowGroupMetaData, places: Mapping[str, tuple[int, ColumnType]]) -> GroupLook:
    columns = {name: _statistics(group.column(number), kind) for name, (number, kind) in places.items()}
    return GroupLook(group.num_rows, group.total_byte_size, columns)


def _statistics(chunk: pq.ColumnChunkMetaData, kind: ColumnType) -> ColumnStatistics:
    found = chunk.statistics
    if found is None:
        return ColumnStatistics(kind)
    nulls = found.null_count if found.has_null_count else None
    values = None if nulls is None else chunk.num_values - nulls
    if not found.has_min_max:
        return ColumnStatistics(kind, nulls, values)
    try:
        least, greatest = found.min, found.max
    except (NotImplementedError, ValueError, OverflowError):  # values that Python does not have
        return ColumnStatistics(kind, nulls, values)
    return bounded(kind, nulls, values, _python(least), _python(greatest))


def _python(value: Any) -> Any:
    """Nanoseconds come as pandas' timestamps, which are cut to microseconds: no bounds."""
    return None if hasattr(value, "nanosecond") and value.nanosecond else value


def _nullable(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(one.name, one.dataType) for one in schema.fields])


def read_footers(spark: Callable[[], SparkSession], footers: Footers, files: Sequence[ListedFile]) -> list[FileLook]:
    """What is in the files, by tasks of Spark when they are many. Raises InvalidInput, TransientError."""
    if len(files) <= FEW:
        answers = [footers.of(files)]
    else:
        context = spark().sparkContext
        size = min(_PER_TASK, -(-len(files) // context.defaultParallelism))
        rest = iter(files)
        chunks = list(iter(lambda: list(islice(rest, size)), []))
        with told_as("the files could not be read"):
            answers = context.parallelize(chunks, len(chunks)).map(footers.of).collect()
    found: list[FileLook] = []
    for answer in answers:
        if isinstance(answer, CalveError):
            raise answer
        found += answer
    return found
