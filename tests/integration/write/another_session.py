"""A Spark whose settings a running session cannot change: tasks are tried twice, and the driver takes little.

Writes one batch by tasks whose first attempts fail in the middle of a file, and one that is too large for the driver,
which it stages as well. The pickled results go to <folder>/results.
"""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession

from calve import faults
from calve.clock import RandomIds
from calve.model.change import BAD, OP, UPSERT
from calve.model.checkpoint import RowKind, SizeHint, Staged
from calve.model.files import WriteResult
from calve.spark.session import embedded_session
from calve.storage.state import LocalState
from calve.write import task_writer
from calve.write.batch import write_batch
from calve.write.staging import StageFolder, stage_batch
from calve.write.worker import TaskPlan, write_partition
from tests.integration.write.test_writers import target_for
from tests.support.jvm import QUICK

ROWS = 20_000
KIND = RowKind("", "", ("id",), ("id",), "Upsert", append=False, time_column=None)


def fail_in_the_first_attempt(point: str) -> None:
    context = TaskContext.get()
    if point == "task.write" and context is not None and context.attemptNumber() == 0:
        raise OSError("the first attempt fails midway")


def write_at_the_second_attempt(plan: TaskPlan, batches: Iterator[pa.RecordBatch], attempt: str) -> WriteResult:
    faults.install(fail_in_the_first_attempt)
    return write_partition(plan, batches, attempt)


def changes(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr(
        "id",
        "uuid() AS noise",
        f"CAST({UPSERT} AS TINYINT) AS {OP}",
        "id AS _calve_order_0",
        f"CAST(NULL AS STRING) AS {BAD}",
    )


def results(folder: Path) -> tuple[dict[str, WriteResult], Staged]:
    settings = {**QUICK, "spark.driver.maxResultSize": "100k"}
    spark = embedded_session(folder / "home", master="local[2,2]", conf=settings)
    frame, ids = changes(spark), RandomIds()
    large = write_batch(
        frame, target_for(frame, ["id"], folder / "large"), deletes=True, size=SizeHint(rows=ROWS), ids=ids
    )
    staging = StageFolder(LocalState(folder / "state"), "stage")
    staged = stage_batch(frame, target_for(frame, ["id"], folder / "staged"), staging, KIND, size=SizeHint(rows=ROWS))
    vars(task_writer)["write_partition"] = write_at_the_second_attempt
    target = target_for(frame, ["id"], folder / "retried", compression="lz4")  # which Spark's writer is not asked for
    retried = write_batch(frame, target, deletes=True, size=SizeHint(rows=10**6), ids=ids)
    spark.stop()
    return {"large": large, "retried": retried}, staged


def main() -> int:
    """The command: the argument is the folder."""
    register_pickle_by_value(sys.modules[__name__])  # tasks need not import the tests
    here = Path(sys.argv[1])
    (here / "results").write_bytes(pickle.dumps(results(here)))
    return 0
