"""A table as a DataFrame.

    plan ──► files ──► splits of about equal size ──► tasks
    tasks ──► range of task numbers, one per partition ──► mapInArrow ──► columns

`columns` and `where` are arguments because Spark does not push a later `select` or `where` down to Python. Its Python
Data Source API does in part, and was tried (PySpark 4.1.4): a reader always gets the whole schema; it gets filters only
if the session sets `spark.sql.python.filterPushdown.enabled`, and fails otherwise (4.0 has no filters); and a separate
Python process plans every query, so that the same 2.6M generated rows took 1.0 s where `mapInArrow` took 0.5 s (medians
of eight alternating runs). A later `where` on the frame is correct as well; it only reads more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from calve.iceberg.planning.table_scan import NOTHING, Scan
from calve.iceberg.schema.readable import ReadTarget
from calve.model.scan import EVERYTHING, ReadTask, ScanPlan
from calve.reader.conditions import Where, understand
from calve.reader.splits import read_tasks
from calve.reader.worker import TaskList, rows_of_task
from calve.spark.sqltext import ident


@dataclass(frozen=True)
class PlannedFrame:
    """A frame and its scan plan."""

    frame: DataFrame
    plan: ScanPlan


def frame_of(spark: SparkSession, scan: Scan, columns: Sequence[str] | None, where: Where | None) -> PlannedFrame:
    """The requested columns of the rows that match the condition. Planned now, read by every action."""
    wanted = scan if columns is None else scan.select(columns)
    if where is None:
        plan = wanted.plan(EVERYTHING)
        tasks = TaskList.of(wanted.target(plan), read_tasks(plan.files, _parallelism(spark)), rows_of_task)
        return PlannedFrame(_frame(spark, wanted, tasks), plan)
    empty = TaskList.of(scan.target(NOTHING), (), rows_of_task)
    understood = understand(_frame(spark, scan, empty), where)
    needed = scan.select(list(dict.fromkeys([*wanted.columns, *understood.columns])))
    plan = needed.plan(understood.condition)
    tasks = TaskList.of(needed.target(plan), read_tasks(plan.files, _parallelism(spark)), rows_of_task)
    frame = _frame(spark, needed, tasks).where(where).select(*map(ident, wanted.columns))
    return PlannedFrame(frame, plan)


def _frame(spark: SparkSession, scan: Scan, tasks: TaskList[ReadTask, ReadTarget]) -> DataFrame:
    schema = StructType.fromJson(scan.spark_schema)
    # mapInArrow fails for names with a dot: columns are renamed by index meanwhile.
    by_place = [StructField(f"c{i}", f.dataType, f.nullable, f.metadata) for i, f in enumerate(schema)]
    count = len(tasks.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(tasks.read, StructType(by_place)).toDF(*schema.fieldNames())


def _parallelism(spark: SparkSession) -> int:
    return int(spark.sparkContext.defaultParallelism)
