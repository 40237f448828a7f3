"""A table as a DataFrame.

    plan ──► tasks ──► range of task numbers, one per partition ──► mapInArrow ──► columns

`columns` and `where` are arguments because Spark tells Python nothing of a later `select` or `where`. Its Python Data
Source API does in part, and was tried (PySpark 4.1.4): a reader always gets the whole schema; it gets filters where
the session sets `spark.sql.python.filterPushdown.enabled`, and fails elsewhere (4.0 has no filters); and every
query is planned by a Python process of its own, so that the same 2.6M generated rows took 1.0 s where `mapInArrow` took
0.5 s (medians of eight runs, in turns). A later `where` on the frame is right as well; it only reads more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from calve.iceberg.scan import NOTHING, Scan
from calve.model.scan import EVERYTHING, ScanPlan
from calve.scan.conditions import Where, understand
from calve.scan.splits import read_tasks
from calve.scan.worker import TaskList


@dataclass(frozen=True)
class PlannedFrame:
    """A frame, and what reading it takes."""

    frame: DataFrame
    plan: ScanPlan


def frame_of(spark: SparkSession, scan: Scan, columns: Sequence[str] | None, where: Where | None) -> PlannedFrame:
    """The rows of a scan, of the columns asked for, that meet the condition. Planned now, read by every action."""
    wanted = scan if columns is None else scan.select(columns)
    if where is None:
        plan = wanted.plan(EVERYTHING)
        tasks = TaskList.of(wanted.target(plan), read_tasks(plan.files, _parallelism(spark)))
        return PlannedFrame(_frame(spark, wanted, tasks), plan)
    empty = TaskList.of(scan.target(NOTHING), ())
    understood = understand(_frame(spark, scan, empty), where)
    needed = scan.select(list(dict.fromkeys([*wanted.columns, *understood.columns])))
    plan = needed.plan(understood.condition)
    tasks = TaskList.of(needed.target(plan), read_tasks(plan.files, _parallelism(spark)))
    frame = _frame(spark, needed, tasks).where(where).select(*[f"`{_escaped(name)}`" for name in wanted.columns])
    return PlannedFrame(frame, plan)


def _frame(spark: SparkSession, scan: Scan, tasks: TaskList) -> DataFrame:
    schema = StructType.fromJson(scan.spark_schema)
    # mapInArrow fails for names with a dot: columns are named by place on the way.
    by_place = [StructField(f"c{i}", f.dataType, f.nullable, f.metadata) for i, f in enumerate(schema)]
    count = len(tasks.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(tasks.read, StructType(by_place)).toDF(*schema.fieldNames())


def _parallelism(spark: SparkSession) -> int:
    return int(spark.sparkContext.defaultParallelism)


def _escaped(name: str) -> str:
    return name.replace("`", "``")
