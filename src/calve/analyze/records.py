"""Statistics of CSV and JSON files: they tell nothing of themselves, so all is read, in one aggregation by file."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.columns import bounded, columns_of, instant, kind_of
from calve.analyze.subject import FileLook, ListedFile, Wanted
from calve.errors import CalveError, InvalidInput, TransientError
from calve.metastore.statistics import ColumnStatistics, ColumnType
from calve.spark.failures import failure_of
from calve.sparktext import ident

_FILE: Final = "_calve_file"
_ORDERED: Final = frozenset(ColumnType) - {ColumnType.OTHER}

Measured = Mapping[str, tuple[tuple[str, ...], ColumnType]]


def look_at_records(frame: DataFrame, files: Sequence[ListedFile], wanted: Wanted) -> list[FileLook]:
    """What is in the files that a frame reads, in their order. Raises InvalidInput when they cannot be read."""
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
            micros = F.unix_micros if kind is ColumnType.TIMESTAMP else _same  # Python's own have no zone
            found += [micros(low).alias(f"l{number}"), micros(high).alias(f"g{number}")]
    return found


def _same(column: Any) -> Any:
    return column


def _look(row: Row | None, measured: Measured, schema: str) -> FileLook:
    if row is None:  # no record in it
        return FileLook(schema, 0, {name: ColumnStatistics(kind, 0, 0) for name, (_, kind) in measured.items()})
    columns = {}
    for number, (name, (_, kind)) in enumerate(measured.items()):
        values = row[f"v{number}"]
        low, high = (row[f"l{number}"], row[f"g{number}"]) if kind in _ORDERED else (None, None)
        if kind is ColumnType.TIMESTAMP:
            low, high = (None if one is None else instant(one, kind) for one in (low, high))
        columns[name] = bounded(kind, row["rows"] - values, values, low, high)
    return FileLook(schema, row["rows"], columns)


def _path(location: str) -> str:
    """A path as both sides can write it: Spark's is a URI with percent-encoding, ours a plain path or a URI."""
    found = urlsplit(location)
    return unquote(f"{found.netloc}{found.path}") if found.scheme else location


def _unreadable(error: Exception) -> CalveError:
    found = failure_of(error, "the files could not be read")
    if isinstance(found, TransientError):
        return found
    return InvalidInput(
        "files cannot be read as what they seem to be",
        detail=found.detail or found.primary,
        hint="Declare their columns in a source (CREATE SOURCE ... FROM FILES), and analyze the source.",
    )
