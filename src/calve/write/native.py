"""Large flat batches: Spark's own Parquet writer, which spares the way of every row to Python and back.

One job shuffles by key, keeps the last change per key, and writes upserts and deletes apart into a folder of its own
inside the table's data location; `adopt.py` makes table files of them. Field ids come from the columns' metadata, which
Spark knows for columns only, not for elements of lists and maps: hence flat. A file is ended by a number of rows, hence
a guess of their width; one that grew too large is split afterwards.
"""

from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.iceberg.store import filesystem_of
from calve.model.change import OP, UPSERT
from calve.model.files import WriteResult
from calve.write.adopt import adopt
from calve.write.changes import quoted
from calve.write.job import WriteJob
from calve.write.rolling import FileNames
from calve.write.session import first_per_key, in_own_session
from calve.write.tasks import SHUFFLE, by_key

CODECS = frozenset({"zstd", "snappy", "gzip", "none"})
"""Names that Arrow and Spark share."""

_SETTINGS = SHUFFLE | {
    "spark.sql.maxConcurrentOutputFileWriters": "4",  # upserts and deletes side by side, without a sort by operation
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
}
_OPTIONS = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",  # the other one shows files of tasks that failed
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.compression.codec.zstd.level": "1",  # Arrow's level; Spark's own is 3, slower and hardly smaller
}


@dataclass(frozen=True)
class NativeWriter:
    """Writes with `partitions` tasks; None lets Spark decide by the size that it sees."""

    partitions: int | None

    def write(self, job: WriteJob) -> WriteResult:
        names = FileNames(job.target, job.batch_id, "native")
        folder = f"{job.target.data_location.rstrip('/')}/calve-unfinished-{job.batch_id}"
        try:
            changes = self._spark_files(job, folder)
            return WriteResult(adopt(folder, job, names), changes)
        finally:
            filesystem, path = filesystem_of(folder, job.target.io_properties)
            with suppress(OSError):  # it is not part of the table; maintenance removes what stays
                filesystem.delete_dir(path)

    def _spark_files(self, job: WriteJob, folder: str) -> int:
        """Parquet files in `folder`; the number of changes."""
        counter = Observation()
        frame = in_own_session(job.frame, _SETTINGS).observe(counter, F.count(F.lit(1)).alias("changes"))
        writer = self._last(frame, job).write
        if job.deletes:
            writer = writer.partitionBy(OP)
        options = job.target.options
        writer.options(**_OPTIONS).options(
            compression=options.compression,
            maxRecordsPerFile=max(1, options.target_file_size // _row_width(job)),
            **{"parquet.block.row.count.limit": options.row_group_rows},
        ).parquet(_spark_path(folder))
        return int(counter.get["changes"])

    def _last(self, frame: DataFrame, job: WriteJob) -> DataFrame:
        """The last change per key, sorted by key in every partition, columns with their ids."""
        key = [quoted(name) for name in job.layout.key_names]
        newest_first = [F.col(name).desc() for name in job.layout.order]
        last = first_per_key(by_key(frame, job, self.partitions), key, newest_first)
        columns = [
            quoted(column.name).alias(column.name, metadata={"parquet.field.id": column.field_id})
            for column in job.layout.columns
        ]
        if job.deletes:
            return last.select(*columns, OP)
        return last.where(F.col(OP) == UPSERT).select(*columns)


def _row_width(job: WriteJob) -> int:
    rows, size = job.size.rows, job.size.bytes
    return max(1, size // rows) if rows and size else job.layout.row_width


def _spark_path(location: str) -> str:
    """Spark takes a location without a scheme for one of the cluster's default filesystem."""
    return f"file:{location}" if location.startswith("/") else location
