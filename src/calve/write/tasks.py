"""Any schema, any store: Spark shuffles and sorts by key, Python tasks write.

Sorting spills to disk in the JVM; the Python side sees a stream, so memory per task does not grow with the batch.
"""

import pickle
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.model.files import WriteResult
from calve.write.changes import quoted
from calve.write.job import WriteJob
from calve.write.session import in_own_session
from calve.write.worker import REPORT, TaskPlan, write_partition


@dataclass(frozen=True)
class TaskWriter:
    """Writes with `partitions` tasks; None lets Spark decide by the size that it sees."""

    partitions: int | None
    batch_rows: int
    """Rows that go to Python at a time."""

    def write(self, job: WriteJob) -> WriteResult:
        settings = SHUFFLE | {"spark.sql.execution.arrow.maxRecordsPerBatch": str(self.batch_rows)}
        frame = by_key(in_own_session(job.frame, settings), job, self.partitions)
        key = [quoted(name) for name in job.layout.key_names]
        frame = frame.sortWithinPartitions(*key, *[F.col(name) for name in job.layout.order])
        plan = TaskPlan(job.target, tuple(frame.columns), tuple(job.layout.key_names), job.deletes, job.batch_id)
        frame = frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])  # mapInArrow fails for names with a dot
        reports = frame.mapInArrow(partial(write_partition, plan), f"{REPORT} binary").collect()
        results: list[WriteResult] = [pickle.loads(row[REPORT]) for row in reports]  # noqa: S301 - of our own tasks
        return WriteResult(
            files=tuple(file for result in results for file in result.files),
            changes=sum(result.changes for result in results),
        )


SHUFFLE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "128MB",
}
"""Where the size is not known, small neighbours of the shuffle are joined to partitions of this size."""


def by_key(frame: DataFrame, job: WriteJob, partitions: int | None) -> DataFrame:
    """No two partitions have the same key."""
    key = [quoted(name) for name in job.layout.key_names]
    return frame.repartition(*key) if partitions is None else frame.repartition(partitions, *key)
