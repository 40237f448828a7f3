"""Compares the files of many manifests with Spark tasks, for the removal of large expiries.

    names of manifests ──► tasks read their entries ──► group by path ──► those of no kept manifest ──► a local file
    candidates, kept       path, kept or not             a shuffle

The tasks read, and nothing else: what is removed, and when, stays with `removal.py`. All results are in the file before
the first one is used, so no lost executor makes a task read manifests again after files were removed. The driver's
memory holds the names of the manifests and one partition of the result.

Manifests are read on at most a share of the cores, one task each; they stream, so the size of a task does not matter.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from calve.clock import IdSource, RandomIds
from calve.iceberg.snapshot.expired_files import DATA, DELETES, NamedFile, live_files
from calve.keylookup.search import SparkJobs
from calve.maintain.removal import FileDifference, unreadable
from calve.reader.worker import failing_in_task
from calve.spark.failures import told_as
from calve.spark.tasks import run_checked
from calve.spark.version import frame_of_rows
from calve.storage.filesystems import StoreIO
from calve.storage.spool import BATCH, Spool, batches_of

TASK_BYTES = 64 << 20
"""Manifests of this size have a million entries if the table has few columns. One process takes 15 s of CPU for them,
longer than Spark takes to start."""

_KINDS = (DATA, DELETES)
_MISSING = len(_KINDS)
"""The kind of a row that tells of a kept manifest that does not exist."""
_MANIFESTS = T.StructType([T.StructField("manifest", T.StringType()), T.StructField("kept", T.BooleanType())])
_FOUND = "path string, kind tinyint, size bigint, kept boolean"
_FOUND_ARROW = pa.schema([("path", pa.string()), ("kind", pa.int8()), ("size", pa.int64()), ("kept", pa.bool_())])
_UNNAMED = pa.schema([("path", pa.string()), ("kind", pa.int8()), ("size", pa.int64())])


class StoredFiles(Protocol):
    """Where the manifests are."""

    def task_properties(self) -> dict[str, str]:
        """What opens files in a task. Raises OSError."""
        ...


@dataclass(frozen=True)
class SparkComparison:
    """Implements the port `TaskComparison` of `removal.py`."""

    files: StoredFiles
    jobs: SparkJobs
    core_share: float = 1.0
    """Share of Spark's cores that may read manifests at the same time; at least one does."""
    from_bytes: int = TASK_BYTES
    ids: IdSource = field(default_factory=RandomIds)

    @contextmanager
    def compare(
        self, candidates: Collection[str], kept: Collection[str], check: Callable[[], None]
    ) -> Iterator[FileDifference]:
        """Compare the files of manifests. Raises TransientError."""
        with tempfile.TemporaryDirectory(prefix="calve-removal-") as scratch:
            file = Path(scratch) / "unnamed.arrow"

            def run(spark: SparkSession) -> frozenset[str]:
                return _write(self._difference(spark, candidates, kept), file)

            name = f"calve-removal-{self.ids.new_id()}"
            with told_as("files of expired snapshots were not removed"):
                missing = run_checked(self.jobs.session, name, run, check)
            yield FileDifference(missing, _chunks(file))

    def _difference(self, spark: SparkSession, candidates: Collection[str], kept: Collection[str]) -> DataFrame:
        rows = [*((path, False) for path in candidates), *((path, True) for path in kept)]
        tasks = max(1, int(self.core_share * spark.sparkContext.defaultParallelism))
        manifests = frame_of_rows(spark, rows, _MANIFESTS).repartition(tasks)
        found = manifests.mapInArrow(partial(_read, self.files.task_properties()), _FOUND)
        by_path = found.groupBy("path").agg(F.max("kind").alias("kind"), F.max("size").alias("size"), F.max("kept"))
        return by_path.where(~F.col("max(kept)")).select("path", "kind", "size")


def _write(unnamed: DataFrame, file: Path) -> frozenset[str]:
    """Write the result to a file, partition by partition; returns the manifests that are missing."""
    missing = set()
    with Spool(file, _UNNAMED) as spool:
        for path, kind, size in unnamed.toLocalIterator():
            if kind == _MISSING:
                missing.add(path)
            else:
                spool.add((path, kind, size))
    return frozenset(missing)


def _chunks(file: Path) -> Iterator[list[NamedFile]]:
    for batch in batches_of(file):
        columns = (column.to_pylist() for column in batch.columns)
        yield [NamedFile(path, _KINDS[kind], size) for path, kind, size in zip(*columns, strict=True)]


# ---- in a task


def _read(io_properties: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: names of manifests -> their files."""
    io = StoreIO(dict(io_properties))
    with failing_in_task():
        rows: list[tuple[str, int, int, bool]] = []
        for batch in batches:
            for manifest, kept in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                for row in _rows_of(io, manifest, kept=kept):
                    rows.append(row)
                    if len(rows) == BATCH:
                        yield _batch(rows)
                        rows = []
        yield _batch(rows)


def _rows_of(io: StoreIO, manifest: str, *, kept: bool) -> Iterator[tuple[str, int, int, bool]]:
    try:
        for file in live_files(io, manifest):
            yield file.path, _KINDS.index(file.kind), file.size, kept
    except FileNotFoundError:
        if kept:  # files of a missing candidate were removed before it
            yield manifest, _MISSING, 0, False
    except OSError as error:
        raise unreadable(str(error)) from error


def _batch(rows: list[tuple[str, int, int, bool]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_FOUND_ARROW)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _FOUND_ARROW.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_FOUND_ARROW)
