"""Writes any schema to any store: Spark shuffles and sorts by key, Python tasks write.

The sort spills to disk in the JVM, and Python sees a stream, so memory per task does not grow with the batch. For a
partitioned table Spark also selects the last change per key and sorts by partition (`clusters.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.model.change import OP, UPSERT
from calve.model.files import WriteResult
from calve.spark.sqltext import quoted
from calve.spark.tasks import Tasks
from calve.spark.version import in_own_session
from calve.write.clusters import cluster
from calve.write.job import WriteJob
from calve.write.worker import TaskPlan, discard, write_partition

UTC = {"spark.sql.session.timeZone": "UTC"}
"""Partition transforms use UTC; expressions of the frame itself already have their zone."""
CLUSTER = "_calve_cluster"
_LATER = "_calve_later"


@dataclass(frozen=True)
class TaskWriter:
    """Writes with `partitions` tasks; None lets Spark decide by size."""

    partitions: int | None
    batch_rows: int
    """Rows per Arrow batch sent to Python."""

    def write(self, job: WriteJob) -> WriteResult:
        settings = SHUFFLE | {"spark.sql.execution.arrow.maxRecordsPerBatch": str(self.batch_rows)}
        if job.target.data_spec_json:
            return self._write_by_partition(job, settings)
        frame = by_key(in_own_session(job.frame, settings), job, self.partitions)
        if not job.layout.key:
            return self._run_tasks(job, frame, last_only=True)
        key = [quoted(name) for name in job.layout.key_names]
        frame = frame.sortWithinPartitions(*key, *[F.col(name) for name in job.layout.order])
        return self._run_tasks(job, frame, last_only=False)

    def _write_by_partition(self, job: WriteJob, settings: dict[str, str]) -> WriteResult:
        last = LastChanges.of(job, settings, self.partitions)
        result = self._run_tasks(job, last.frame.drop(*job.layout.order, CLUSTER), last_only=True)
        return WriteResult(result.files, last.changes())

    def _run_tasks(self, job: WriteJob, frame: DataFrame, *, last_only: bool) -> WriteResult:
        key = tuple(job.layout.key_names)
        plan = TaskPlan(job.target, tuple(frame.columns), key, last_only, job.deletes, job.batch_id)
        frame = frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])  # mapInArrow fails for names with a dot
        tasks = Tasks("the batch could not be written", partial(discard, plan))
        results = tasks.over(frame, partial(write_partition, plan))
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
"""If the size is unknown, small adjacent shuffle partitions are coalesced to this size."""


def by_key(frame: DataFrame, job: WriteJob, partitions: int | None) -> DataFrame:
    """Put all changes of a key into one partition. Without a key, balance the partitions."""
    key = [quoted(name) for name in job.layout.key_names]
    if not key:
        return frame.hint("rebalance") if partitions is None else frame.repartition(partitions)
    return frame.repartition(*key) if partitions is None else frame.repartition(partitions, *key)


@dataclass(frozen=True)
class LastChanges:
    """The last change per key, as a frame sorted by operation, partition and key within tasks.

    The column `CLUSTER` identifies the partition; it is 0 for deletes.
    """

    frame: DataFrame
    _counter: Observation

    @classmethod
    def of(cls, job: WriteJob, settings: Mapping[str, str], partitions: int | None) -> Self:
        counter = Observation()
        frame = in_own_session(job.frame, {**settings, **UTC})
        frame = frame.observe(counter, F.count(F.lit(1)).alias("changes"))
        key = [quoted(name) for name in job.layout.key_names]
        if not key:
            clustered = by_key(frame, job, partitions).withColumn(CLUSTER, cluster(job.target))
            return cls(clustered.sortWithinPartitions(CLUSTER), counter)
        last = last_by_window(frame, job, partitions)
        clustered = last.withColumn(CLUSTER, F.when(F.col(OP) == UPSERT, cluster(job.target)).otherwise(0))
        return cls(clustered.sortWithinPartitions(OP, CLUSTER, *key), counter)

    def changes(self) -> int:
        """The number of all changes; known once the frame has been computed."""
        return observed(self._counter)


def last_by_window(frame: DataFrame, job: WriteJob, partitions: int | None) -> DataFrame:
    """The last change per key, found by Spark; all changes of a key are in one task."""
    key = [quoted(name) for name in job.layout.key_names]
    later = F.lead(F.lit(1)).over(Window.partitionBy(*key).orderBy(*job.layout.order))
    return by_key(frame, job, partitions).withColumn(_LATER, later).where(F.col(_LATER).isNull()).drop(_LATER)


def observed(counter: Observation) -> int:
    """The number of changes that an observation counted."""
    try:
        return int(counter.get["changes"])
    except Py4JError:  # Spark optimized an empty plan away and counted nothing
        return 0
