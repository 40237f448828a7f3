"""Changes as a DataFrame.

    plan ──► few files and rows ──► one task ──► mapInArrow ──► changes         (`local`)
    plan ──► files ──► tasks ──► mapInArrow ──► events ──► where ──► shuffle by key ──► mapInArrow ──► changes

A condition is applied to events, before they are paired: the changes are those of the filtered table. A row that an
update moves out of the condition is a delete, one that it moves in is an insert. So files and row groups that cannot
match are skipped, and the columns of the condition are read of deleted rows, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the usual name

from calve.changelog.events import FLAGS, EventTarget
from calve.changelog.local import is_small, range_read
from calve.changelog.request import ChangeRequest, event_tasks
from calve.changelog.worker import EventTask, PartitionPairing, events_of_task
from calve.iceberg.planning.change_range import ChangeRange
from calve.model.changelog import CHANGE_TYPE, FRONTIER, TIMESTAMP, VERSION, ChangeScanPlan
from calve.reader.conditions import Where, understand, unread_frame
from calve.reader.worker import TaskList, names_by_place
from calve.spark.sqltext import ident

_PARTITION_ROWS = 500_000
"""The most events of a partition, if keys are spread evenly: a task holds them in memory."""

ONE_TASK_ROWS = 500_000
"""Ranges of fewer changed rows, in few files, are read by one task: a shuffle, and the second stage of Python tasks,
would cost more than reading."""

_META = [
    T.StructField(CHANGE_TYPE, T.StringType(), nullable=False),
    T.StructField(VERSION, T.LongType(), nullable=False),
    T.StructField(TIMESTAMP, T.TimestampType(), nullable=False),
    T.StructField(FRONTIER, T.StringType(), nullable=True),
]
FLAG_FIELDS = tuple(
    T.StructField(name, kind)
    for name, kind in zip(FLAGS, (T.IntegerType(), T.BooleanType(), T.BooleanType(), T.LongType()), strict=True)
)
"""The flags of events."""


@dataclass(frozen=True)
class PlannedChanges:
    """A frame of changes and its plan."""

    frame: DataFrame
    plan: ChangeScanPlan


def changes_frame(spark: SparkSession, request: ChangeRequest, where: Where | None) -> PlannedChanges:
    """The changes of a range. Planned now, read by every action. Raises Spark's exceptions for a wrong condition."""
    wanted = request.range
    schema = T.StructType.fromJson(wanted.spark_schema)
    condition_columns: tuple[str, ...] = ()
    if where is None:
        needed, plan = wanted, wanted.plan()
    else:
        every = wanted.widened()
        understood = understand(unread_frame(spark, T.StructType.fromJson(every.spark_schema)), where)
        condition_columns = understood.columns
        needed = every.select(list(dict.fromkeys([*wanted.columns, *condition_columns])))
        plan = needed.plan(understood.condition)
    names = [*schema.fieldNames(), *(f.name for f in _META)]
    by_place = [T.StructField(f"c{n}", f.dataType) for n, f in enumerate([*schema, *_META])]
    if where is None and is_small(request, plan, ONE_TASK_ROWS):
        one = spark.range(0, 1, 1, 1)
        if any("." in name for name in names):
            paired = one.mapInArrow(range_read(request, plan, by_place=True).read, T.StructType(by_place))
            return PlannedChanges(paired.toDF(*names), plan)
        by_name = [T.StructField(name, f.dataType) for name, f in zip(names, by_place, strict=True)]
        return PlannedChanges(one.mapInArrow(range_read(request, plan).read, T.StructType(by_name)), plan)
    parallelism = int(spark.sparkContext.defaultParallelism)
    tasks = TaskList.of(
        request.into(needed, plan, condition_columns), event_tasks(plan.files, parallelism), events_of_task
    )
    events = _events(spark, needed, tasks)
    if where is not None:
        events = events.where(where).select(*map(ident, [*wanted.columns, *FLAGS]))
    partitions = max(min(parallelism, len(tasks.tasks)), -(-plan.rows // _PARTITION_ROWS))
    events = events.toDF(*names_by_place(len(events.columns)))
    if partitions > 1:
        events = shuffled(events, partitions, request.key, schema)
    elif len(tasks.tasks) > 1:
        events = events.coalesce(1)
    paired = events.mapInArrow(PartitionPairing(request.pairing(plan)).read, T.StructType(by_place))
    return PlannedChanges(paired.toDF(*names), plan)


def _events(spark: SparkSession, needed: ChangeRange, tasks: TaskList[EventTask, EventTarget]) -> DataFrame:
    fields = [*T.StructType.fromJson(needed.spark_schema), *FLAG_FIELDS]
    by_place = [T.StructField(f"c{n}", f.dataType) for n, f in enumerate(fields)]
    count = len(tasks.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(tasks.read, T.StructType(by_place)).toDF(*(f.name for f in fields))


def shuffled(events: DataFrame, partitions: int, key: Sequence[str], schema: T.StructType) -> DataFrame:
    """Events, whose columns are named by index, with those of a key in one partition.

    Without a key those of equal rows: by all columns that Spark can hash. Without such columns there is one partition.
    """
    names = key or [f.name for f in schema if not _has_map(f.dataType)]
    places = {f.name: f"c{place}" for place, f in enumerate(schema)}
    return events.repartition(partitions if names else 1, *(places[name] for name in names))


def _has_map(kind: T.DataType) -> bool:
    match kind:
        case T.MapType():
            return True
        case T.ArrayType():
            return _has_map(kind.elementType)
        case T.StructType():
            return any(_has_map(f.dataType) for f in kind)
        case _:
            return False
