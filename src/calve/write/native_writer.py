"""Writes large flat batches with Spark's own Parquet writer, which saves moving every row to Python.

One job shuffles and sorts by key and writes into its own folder inside the table's data location; `native_files.py`
turns the result into files of the table. Field ids come from the metadata of columns, which Spark does not support for
elements of lists and maps: hence flat schemas only. Spark ends a file after a number of rows, so their width has to be
estimated; a file that grows too large is split afterwards.

Only the last change of a key must be kept. A window function finds it, at a fifth of the total cost. Upserts alone do
not need it: all rows are written in order, and `native_files.py` looks for repeated keys, which is cheap if there are
none. This is used if the plan says that every change is an upsert (rows without envelope, upserts that never delete),
and tried if the table has no rows yet (initial loads seldom delete): the first delete fails the attempt in its task,
before anything is shuffled.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.iceberg.files.names import own_name
from calve.iceberg.files.store import filesystem_of
from calve.model.change import OP, UPSERT
from calve.model.files import FileOptions, WriteResult
from calve.spark.sqltext import quoted
from calve.spark.version import constant_of, in_own_session
from calve.write.data_files import FileNames
from calve.write.job import WriteJob
from calve.write.native_files import SparkOutput
from calve.write.task_writer import SHUFFLE, by_key, last_by_window, observed

CODECS = frozenset({"zstd", "snappy", "gzip", "none"})
"""Codecs that have the same name in Arrow and Spark."""

_SETTINGS = SHUFFLE | {
    "spark.sql.maxConcurrentOutputFileWriters": "4",  # upserts and deletes side by side, without a sort by operation
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
}
_OPTIONS = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",  # no checksum file beside every local file
    "fs.file.impl.disable.cache": "true",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",  # version 2 exposes files of failed tasks
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.page.write-checksum.enabled": "false",  # as Arrow does
}
_DELETE_FOUND = "calve found a delete in the first batch of a table; it writes the batch with a window instead"


@dataclass(frozen=True)
class NativeWriter:
    """Writes with `partitions` tasks; None lets Spark decide by size."""

    partitions: int | None

    def write(self, job: WriteJob) -> WriteResult:
        folder = f"{job.target.data_location.rstrip('/')}/{own_name(job.target.mark, f'unfinished-{job.batch_id}')}"
        names = FileNames(job.target, job.batch_id, "native")
        with (
            _temporary_folder(f"{folder}-all", job),
            _temporary_folder(f"{folder}-last", job),
            names.removed_on_failure(),
        ):
            if self._write_all(job, f"{folder}-all"):
                output = SparkOutput(f"{folder}-all", job, names, unique=False)
                return WriteResult(output.files(), output.rows)
            changes = self._write_last(job, f"{folder}-last")
            return WriteResult(SparkOutput(f"{folder}-last", job, names, unique=True).files(), changes)

    def _write_all(self, job: WriteJob, folder: str) -> bool:
        """Write every row, sorted by key and order; returns False if there are, or may be, deletes."""
        if constant_of(job.frame, OP) == UPSERT:
            self._write_upserts(job.frame, job, folder)
            return True
        if job.deletes:
            return False
        name = job.layout.key_names[0]
        met = F.when(F.col(OP) != UPSERT, F.raise_error(F.lit(_DELETE_FOUND))).otherwise(quoted(name))
        try:
            self._write_upserts(job.frame.withColumn(name, met), job, folder)
        except (PySparkException, Py4JError) as error:
            if _DELETE_FOUND in str(error):
                return False
            raise
        return True

    def _write_upserts(self, upserts: DataFrame, job: WriteJob, folder: str) -> None:
        frame = by_key(in_own_session(upserts, _SETTINGS), job, self.partitions)
        key = [quoted(name) for name in job.layout.key_names]
        frame = frame.sortWithinPartitions(*key, *job.layout.order)
        _write(frame.select(*_with_ids(job)), job, folder, apart=[])

    def _write_last(self, job: WriteJob, folder: str) -> int:
        """Write the last change per key, upserts and deletes apart; returns the number of all changes."""
        counter = Observation()
        counted = in_own_session(job.frame, _SETTINGS).observe(counter, F.count(F.lit(1)).alias("changes"))
        last = last_by_window(counted, job, self.partitions)
        if job.deletes:
            _write(last.select(*_with_ids(job), OP), job, folder, apart=[OP])
        else:
            _write(last.where(F.col(OP) == UPSERT).select(*_with_ids(job)), job, folder, apart=[])
        return observed(counter)


@contextmanager
def _temporary_folder(folder: str, job: WriteJob) -> Iterator[None]:
    """Remove a folder at the end. It is not part of the table; maintenance removes it if this fails."""
    try:
        yield
    finally:
        filesystem, path = filesystem_of(folder, job.target.io_properties)
        with suppress(OSError):
            filesystem.delete_dir(path)


def _with_ids(job: WriteJob) -> list[Column]:
    return [
        quoted(column.name).alias(column.name, metadata={"parquet.field.id": column.field_id})
        for column in job.layout.columns
    ]


def _write(frame: DataFrame, job: WriteJob, folder: str, *, apart: list[str]) -> None:
    options = job.target.options
    frame.write.options(**_OPTIONS, **_file_settings(options)).options(
        compression=options.compression, maxRecordsPerFile=_rows_per_file(job)
    ).partitionBy(*apart).parquet(_spark_path(folder))


def _file_settings(options: FileOptions) -> dict[str, str]:
    """Settings of Parquet's Java library. The level is Arrow's default; Spark's, 3, is slower and hardly smaller."""
    settings: dict[str, Any] = {
        "parquet.block.row.count.limit": options.row_group_rows,
        "parquet.block.size": options.row_group_size,
        "parquet.compression.codec.zstd.level": options.compression_level or 1,
        "parquet.dictionary.page.size": options.dictionary_size,
        "parquet.page.row.count.limit": options.page_rows,
        "parquet.page.size": options.page_size,
    }
    for bloom in options.bloom_filters:
        settings[f"parquet.bloom.filter.enabled#{bloom.column}"] = "true"
        settings[f"parquet.bloom.filter.fpp#{bloom.column}"] = bloom.false_positives
        settings[f"parquet.bloom.filter.expected.ndv#{bloom.column}"] = bloom.distinct
    return {name: str(value) for name, value in settings.items() if value is not None}


def _rows_per_file(job: WriteJob) -> int:
    """Spark's writer counts rows, not bytes. If their size in Parquet is unknown, files get smaller."""
    target, size = job.target.options.target_file_size, job.size
    if size.rows and size.stored:
        return max(1, -(-size.rows // -(-size.stored // target)))
    return max(1, target // job.layout.row_width)


def _spark_path(location: str) -> str:
    """Add the scheme: Spark looks for a location without one in the cluster's default filesystem."""
    return f"file:{location}" if location.startswith("/") else location
