"""A table as a DataFrame.

    plan ──► files ──► splits of about equal size ──► tasks
    tasks ──► range of task numbers, one per partition ──► mapInArrow ──► columns

A task reads splits whose files are adjacent by sequence number, because they share most deletes.

`columns` and `where` are arguments because Spark does not push a later `select` or `where` down to Python. Its Python
Data Source API does in part, and was tried (PySpark 4.1.4): a reader always gets the whole schema; it gets filters only
if the session sets `spark.sql.python.filterPushdown.enabled`, and fails otherwise (4.0 has no filters); and a separate
Python process plans every query, so that the same 2.6M generated rows took 1.0 s where `mapInArrow` took 0.5 s (medians
of eight alternating runs). A later `where` on the frame is correct as well; it only reads more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from calve.iceberg.planning.table_scan import NOTHING, Scan
from calve.model.scan import EVERYTHING, FileSplit, ReadTask, ScanFile, ScanPlan
from calve.reader.conditions import Where, understand
from calve.reader.worker import TaskList
from calve.spark.sqltext import ident

TASK_BYTES = 128 << 20
"""The most bytes that a task reads, unless one row group is larger."""
OPEN_COST = 4 << 20
"""Opening a file takes about as long as reading this many bytes."""


def read_tasks(files: Sequence[ScanFile], parallelism: int) -> tuple[ReadTask, ...]:
    """Tasks that read each file once: `parallelism` or a multiple of it, of about equal cost."""
    total = sum(file.size + OPEN_COST for file in files)
    size = min(TASK_BYTES, max(OPEN_COST, total // max(1, parallelism)))
    ordered = sorted(files, key=lambda file: (file.sequence_number, file.path))
    splits = [split for file in ordered for split in _splits(file, size)]
    rounds = -(-total // (TASK_BYTES * max(1, parallelism)))
    return tuple(ReadTask(tuple(members)) for members in _shared(splits, rounds * max(1, parallelism)))


def whole(file: ScanFile) -> ReadTask:
    """A task that reads one file."""
    return ReadTask((FileSplit(file, 0, file.size),))


def _splits(file: ScanFile, size: int) -> Iterator[FileSplit]:
    """Parts of a file of about `size` bytes, cut at row groups if their offsets are known."""
    if file.size <= size:
        yield FileSplit(file, 0, file.size)
        return
    cuts: Iterable[int] = file.split_offsets or range(0, file.size, size)
    start = 0
    for cut in cuts:
        if cut - start >= size and cut < file.size:
            yield FileSplit(file, start, cut)
            start = cut
    yield FileSplit(file, start, file.size)


def _shared(splits: Sequence[FileSplit], tasks: int) -> Iterator[list[FileSplit]]:
    """Distribute splits, in order, to at most `tasks` lists of about equal cost."""
    costs = [split.end - split.start + OPEN_COST for split in splits]
    total, before = sum(costs), 0
    lists: dict[int, list[FileSplit]] = {}
    for split, cost in zip(splits, costs, strict=True):
        lists.setdefault((2 * before + cost) * tasks // (2 * total), []).append(split)
        before += cost
    yield from lists.values()


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
        tasks = TaskList.of(wanted.target(plan), read_tasks(plan.files, _parallelism(spark)))
        return PlannedFrame(_frame(spark, wanted, tasks), plan)
    empty = TaskList.of(scan.target(NOTHING), ())
    understood = understand(_frame(spark, scan, empty), where)
    needed = scan.select(list(dict.fromkeys([*wanted.columns, *understood.columns])))
    plan = needed.plan(understood.condition)
    tasks = TaskList.of(needed.target(plan), read_tasks(plan.files, _parallelism(spark)))
    frame = _frame(spark, needed, tasks).where(where).select(*map(ident, wanted.columns))
    return PlannedFrame(frame, plan)


def _frame(spark: SparkSession, scan: Scan, tasks: TaskList) -> DataFrame:
    schema = StructType.fromJson(scan.spark_schema)
    # mapInArrow fails for names with a dot: columns are renamed by index meanwhile.
    by_place = [StructField(f"c{i}", f.dataType, f.nullable, f.metadata) for i, f in enumerate(schema)]
    count = len(tasks.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(tasks.read, StructType(by_place)).toDF(*schema.fieldNames())


def _parallelism(spark: SparkSession) -> int:
    return int(spark.sparkContext.defaultParallelism)
