"""Changes as a DataFrame.

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
from calve.changelog.pairing import Pairing
from calve.changelog.worker import EventTask, PartitionPairing, RangePairing, events_of_task
from calve.iceberg.planning.change_range import ChangeRange
from calve.model.changelog import CHANGE_TYPE, FRONTIER, TIMESTAMP, VERSION, ChangedFile, ChangeScanPlan
from calve.reader.conditions import Where, understand, unread_frame
from calve.reader.splits import read_tasks
from calve.reader.worker import TaskList, names_by_place
from calve.spark.sqltext import ident

_PARTITION_ROWS = 500_000
"""The most events of a partition, if keys are spread evenly: a task holds them in memory."""

_ONE_TASK_ROWS, _ONE_TASK_SCANNED = 500_000, 30_000_000
"""Ranges of fewer changed rows, in files of fewer rows, are read by one task if only keys and new rows are needed: a
shuffle, and the second stage of Python tasks, would cost more than reading."""

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
class ChangeRequest:
    """What is asked for."""

    range: ChangeRange
    """With the columns of the result."""
    key: tuple[str, ...]
    net: bool
    before: bool

    @classmethod
    def of(
        cls, found: ChangeRange, *, key: Sequence[str] | None, columns: Sequence[str] | None, net: bool, before: bool
    ) -> "ChangeRequest":
        """Check the key and the columns, which include the key. Raises InvalidInput."""
        chosen = found.key if key is None else found.named(key)
        found.check_key(chosen)
        wanted = found.columns if columns is None else found.named(columns)
        missing = [name for name in chosen if name not in wanted]
        return cls(found.select([*missing, *wanted]), tuple(chosen), net, before)

    def pairing(self, plan: ChangeScanPlan) -> Pairing:
        """How events become changes."""
        places = tuple(self.range.columns.index(name) for name in self.key)
        return Pairing(plan.steps, places, self.net, self.before)

    def into(self, needed: ChangeRange, plan: ChangeScanPlan, condition_columns: Sequence[str] = ()) -> EventTarget:
        """What events are read into. Without a key, rows are compared by all columns."""
        light = tuple(dict.fromkeys([*self.key, *condition_columns]))
        return EventTarget(needed.target(plan), light, images=self.before or not self.key)


def event_tasks(files: Sequence[ChangedFile], parallelism: int) -> tuple[EventTask, ...]:
    """Tasks that read each file once: `parallelism` or a multiple of it, of about equal cost."""
    changed = {id(one.file): one for one in files}  # a file that came back is there twice, with other deletes
    tasks = read_tasks([one.file for one in files], parallelism)
    return tuple(EventTask(tuple((split, changed[id(split.file)]) for split in task.splits)) for task in tasks)


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
    parallelism = int(spark.sparkContext.defaultParallelism)
    tasks = TaskList.of(
        request.into(needed, plan, condition_columns), event_tasks(plan.files, parallelism), events_of_task
    )
    events = _events(spark, needed, tasks)
    if where is not None:
        events = events.where(where).select(*map(ident, [*wanted.columns, *FLAGS]))
    by_place = [T.StructField(f"c{n}", f.dataType) for n, f in enumerate([*schema, *_META])]
    names = [*schema.fieldNames(), *(f.name for f in _META)]
    if where is None and _is_small(request, plan):
        numbers = spark.range(0, len(tasks.tasks), 1, 1)
        paired = numbers.mapInArrow(RangePairing(tasks, request.pairing(plan)).read, T.StructType(by_place))
        return PlannedChanges(paired.toDF(*names), plan)
    partitions = max(min(parallelism, len(tasks.tasks)), -(-plan.rows // _PARTITION_ROWS))
    events = events.toDF(*names_by_place(len(events.columns)))
    if partitions > 1:
        events = events.repartition(partitions, *shuffled_by(request.key, schema))
    elif len(tasks.tasks) > 1:
        events = events.coalesce(1)
    paired = events.mapInArrow(PartitionPairing(request.pairing(plan)).read, T.StructType(by_place))
    return PlannedChanges(paired.toDF(*names), plan)


def _is_small(request: ChangeRequest, plan: ChangeScanPlan) -> bool:
    """Whether one task reads a range in less time than several take to exchange its events."""
    if request.before or not request.key:
        return False
    return plan.rows <= _ONE_TASK_ROWS and sum(one.file.rows for one in plan.files) <= _ONE_TASK_SCANNED


def _events(spark: SparkSession, needed: ChangeRange, tasks: TaskList[EventTask, EventTarget]) -> DataFrame:
    fields = [*T.StructType.fromJson(needed.spark_schema), *FLAG_FIELDS]
    by_place = [T.StructField(f"c{n}", f.dataType) for n, f in enumerate(fields)]
    count = len(tasks.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(tasks.read, T.StructType(by_place)).toDF(*(f.name for f in fields))


def shuffled_by(key: Sequence[str], schema: T.StructType) -> list[str]:
    """Columns by place whose values are equal in equal rows: the key, else all that Spark can hash."""
    names = key or [f.name for f in schema if not _has_map(f.dataType)]
    places = {f.name: f"c{place}" for place, f in enumerate(schema)}
    return [places[name] for name in names]


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
