"""`calve.stream_changes`: the changes of a table as a streaming DataFrame, for any query of Spark.

    offsets ──► tasks ──► events ──► where ──► shuffle by key ──► changes
    (a process of the driver)  (executors: `python_source.py`)   (executors)

Spark's checkpoint contains the offsets: the table's uuid and the snapshot up to which it was read. A batch is what
whole snapshots change, or the rows of one of them; the same offsets always give the same rows.

Spark does not log where a query starts, only where each batch ends, and computes the start again if the first batch has
to be repeated. `latest` would then be another snapshot. So the end of the first batch states where it starts ("first"),
and whether the rows of that snapshot come first ("rows").

This module knows nothing of Spark's data source API, which is the thin layer in `python_source.py`.
"""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the usual name

from calve.calls import for_users
from calve.changelog.events import FLAGS, EventTarget
from calve.changelog.frame import FLAG_FIELDS, shuffled
from calve.changelog.request import ChangeRequest, event_tasks
from calve.changelog.worker import STEP_FIELDS, EventTask, StreamPairing, events_of_task
from calve.clock import Clock
from calve.errors import InvalidInput, SourceChanged, SourceLost, TransientError
from calve.iceberg.loading import LoadedTable, load_table, load_table_or_none
from calve.iceberg.planning.change_range import ChangeRange, Point, step_of
from calve.iceberg.planning.change_steps import (
    TableShape,
    TableStep,
    check_order,
    check_version,
    newest_place,
    oldest_place,
    place_at,
    shape_of,
    steps_after,
)
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.snapshot.consumers import OF_STREAM, ConsumerTag, consumer_tag
from calve.lake import TableRef
from calve.model.changelog import (
    CHANGE_TYPE,
    EARLIEST,
    FRONTIER,
    LATEST,
    MAX_HOLD_MS,
    SNAPSHOT,
    TIMESTAMP,
    VERSION,
    ChangeStep,
    TablePlace,
)
from calve.model.names import check_consumer
from calve.model.scan import EVERYTHING, Condition, ReadTask
from calve.reader.arguments import check_list, check_session_and_table
from calve.reader.conditions import Where, understand, unread_frame
from calve.reader.splits import read_tasks
from calve.reader.worker import names_by_place, rows_of_task
from calve.retry import Backoff, retry_on
from calve.source.following import POLL_SECONDS, ConsumerHold, differs, steps_taken
from calve.spark.sqltext import ident
from calve.spark.version import require_python_sources

Offset = dict[str, Any]

BEGINNING: Offset = {"at": "beginning"}
"""The offset of a query that has read nothing; the end of its first batch says what that means."""

_ATTEMPTS = 5
_AGAIN = (
    "Undo the change, or start the query with another checkpoint location: it reads the table from its start again."
)
_numbers = count(1)
_log = logging.getLogger("calve")


# ------------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class ChangeStreamDefinition:
    """What is read. Pickled to the process that plans batches."""

    table: TableRef
    start: Point
    shape: TableShape
    """The columns of the table when the frame was made: all snapshots are read with them."""
    key: tuple[str, ...]
    columns: tuple[str, ...]
    """Of the result, the key among them."""
    every: tuple[str, ...]
    """All columns of the table."""
    types: str
    """JSON of the Spark schema of all columns."""
    before: bool
    condition: Condition = EVERYTHING
    condition_columns: tuple[str, ...] = ()
    consumer: str | None = None
    max_rows: int | None = None
    parallelism: int = 1

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(dict.fromkeys([*self.columns, *self.condition_columns]))

    def struct(self, columns: Sequence[str]) -> T.StructType:
        """The Spark schema of some columns."""
        known = T.StructType.fromJson(json.loads(self.types))
        return T.StructType([known[name] for name in columns])

    def open(self, clock: Clock) -> "ChangeStream":
        """Follow the table."""
        return ChangeStream(self, clock)


@dataclass(frozen=True)
class StreamTask:
    """A part of a batch: events of changed files, or rows of the first snapshot. Pickled to executors."""

    task: EventTask | ReadTask
    target: EventTarget | ReadTarget
    steps: tuple[ChangeStep, ...]
    """All steps of the batch, or the snapshot whose rows are read."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Its events with their steps, columns named by index. Raises TransientError, TerminalError."""
        if isinstance(self.task, EventTask) and isinstance(self.target, EventTarget):
            batches = events_of_task(self.task, self.target)
        elif isinstance(self.task, ReadTask) and isinstance(self.target, ReadTarget):
            batches = map(_as_events, rows_of_task(self.task, self.target))
        else:
            raise TypeError("a task and its target do not belong together")
        versions = pa.array([step.version for step in self.steps], pa.int64())
        times = pa.array([step.timestamp_ms for step in self.steps], pa.int64())
        frontiers = pa.array([step.frontier for step in self.steps], pa.string())
        for batch in batches:
            number = batch.column(batch.num_columns - len(FLAGS))
            at = pa.compute.max_element_wise(number, 0)
            columns = [*batch.columns, *(known.take(at) for known in (versions, times, frontiers))]
            yield pa.RecordBatch.from_arrays(columns, names=names_by_place(len(columns)))


def _as_events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a snapshot as events of no step (-1): they are inserted, whatever else happens to their keys."""
    values = (pa.scalar(-1, pa.int32()), pa.scalar(value=True), pa.scalar(value=True), pa.scalar(0, pa.int64()))
    flags = (pa.repeat(value, rows.num_rows) for value in values)
    return pa.RecordBatch.from_arrays([*rows.columns, *flags], names=[*rows.schema.names, *FLAGS])


class ChangeStream:
    """Follows a table for one query. Called by one thread."""

    def __init__(self, definition: ChangeStreamDefinition, clock: Clock) -> None:
        self._definition, self._clock = definition, clock
        self._catalog = definition.table.lake.open()
        self._at: Offset | None = None
        """How far the query is, as far as Spark has said; None before it has."""
        self._beginning: tuple[TablePlace, bool] | None = None
        self._committed: TablePlace | None = None
        self._idle_since: float | None = None
        self._planned: tuple[Offset, Offset, tuple[StreamTask, ...]] | None = None
        tag = None
        if definition.consumer is not None:
            tag = ConsumerTag(consumer_tag(definition.consumer, OF_STREAM), MAX_HOLD_MS, clock)
        self._consumer = ConsumerHold(tag, clock)

    def latest(self) -> Offset:
        """How far the next batch can read; where the query is if there is nothing new.

        Before Spark has said where the query is, that is the newest snapshot, without a limit: Spark asks for it once
        with `trigger(availableNow=True)`, and reads no further. Raises TransientError, SourceLost, SourceChanged.
        """
        self._rest()
        table = self._load()
        if self._at is None:
            return self._first_end(table)
        place = _place(self._at)
        steps = self._steps(table, place)
        if self._committed is not None:
            self._move(table, self._committed)
        taken = steps_taken(table, steps, self._definition.shape, self._definition.max_rows)
        if steps and not taken:
            raise self._columns_changed(steps[0].place)
        self._idle_since = None if taken else self._clock.monotonic()
        return _offset(steps[taken - 1].place) if taken else self._at

    def plan(self, start: Offset, end: Offset) -> tuple[StreamTask, ...]:
        """The tasks of a batch. Spark may ask for them several times. Raises SourceLost, SourceChanged."""
        if start != BEGINNING:
            self._committed = _place(start)
        self._at = end
        if start == end:
            return ()
        if self._planned is None or self._planned[:2] != (start, end):
            self._planned = start, end, self._tasks(start, end)
        return self._planned[2]

    def commit(self, end: Offset) -> None:
        """Note that everything up to `end` was processed, and let the consumer's tag follow. Raises TransientError."""
        self._committed = _place(end)
        if self._definition.consumer is not None:
            self._move(self._load(), self._committed)

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def _first_end(self, table: LoadedTable) -> Offset:
        end = _offset(newest_place(table))
        try:
            first, rows = self._start(table)
        except InvalidInput:
            return end  # a query that started long ago does not need its start; another one fails when it is planned
        if self._definition.consumer is not None:
            retry_on(TransientError, _ATTEMPTS, lambda: self._consumer.hold_first(self._load(), first))
        return {**end, "first": _offset(first), "rows": rows}

    def _start(self, table: LoadedTable) -> tuple[TablePlace, bool]:
        """Where a new query starts, and whether with the rows that are there; decided once. Raises InvalidInput."""
        if self._beginning is None:
            start = self._definition.start
            if start in {SNAPSHOT, LATEST}:
                self._beginning = newest_place(table), start == SNAPSHOT
            elif start == EARLIEST:
                self._beginning = oldest_place(table), True
            else:
                self._beginning = place_at(table, start), False
        return self._beginning

    def _tasks(self, start: Offset, end: Offset) -> tuple[StreamTask, ...]:
        table, until = self._load(), _place(end)
        since, rows = _place(start), False
        if start == BEGINNING:
            since, rows = (_place(end["first"]), end["rows"]) if "first" in end else self._start(table)
        steps = self._steps(table, since)
        places = [step.place for step in steps]
        if until != since and until not in places:
            raise SourceLost(
                f'the history of table "{self._definition.table}" was changed',
                detail=f"Snapshot {until.snapshot_id} was being read, and no longer follows {since.snapshot_id}.",
                hint=_AGAIN,
            )
        taken = steps[: places.index(until) + 1] if until != since else ()
        for step in taken:
            if differs(table, step, self._definition.shape):
                raise self._columns_changed(step.place)
        contents = self._contents(table, since) if rows else ()
        return (*contents, *(self._changes(table, since, until) if taken else ()))

    def _contents(self, table: LoadedTable, place: TablePlace) -> tuple[StreamTask, ...]:
        snapshot = None if place.snapshot_id is None else table.metadata.snapshot_by_id(place.snapshot_id)
        if snapshot is None:
            return ()
        definition = self._definition
        scan = Scan.of(table, AsOf(snapshot_id=place.snapshot_id)).read_as(definition.shape.schema_id)
        needed = scan.select(definition.needed)
        plan = needed.plan(definition.condition)
        target = needed.target(plan)
        tasks = read_tasks(plan.files, definition.parallelism)
        return tuple(StreamTask(task, target, (step_of(snapshot),)) for task in tasks)

    def _changes(self, table: LoadedTable, since: TablePlace, until: TablePlace) -> tuple[StreamTask, ...]:
        definition = self._definition
        found = ChangeRange.of(table, since.snapshot_id, until.snapshot_id, net=False)
        every = found.read_as(definition.shape.schema_id)
        check_order(table, [snapshot for _, snapshot in every.pairs])
        request = ChangeRequest(every.select(definition.columns), definition.key, net=False, before=definition.before)
        needed = every.select(definition.needed)
        plan = needed.plan(definition.condition)
        into = request.into(needed, plan, definition.condition_columns)
        tasks = event_tasks(plan.files, definition.parallelism)
        return tuple(StreamTask(task, into, plan.steps) for task in tasks)

    def _move(self, table: LoadedTable, place: TablePlace) -> None:
        """Move the consumer's tag, unless another commit wins: then it moves with a later poll."""
        try:
            self._consumer.hold(table, place)
        except TransientError as error:
            _log.warning("the tag of consumer %s was not moved: %s", self._definition.consumer, error)

    def _steps(self, table: LoadedTable, place: TablePlace) -> tuple[TableStep, ...]:
        try:
            return steps_after(table, place)
        except SourceLost as error:
            raise SourceLost(
                error.primary, detail=error.detail, hint=f"{_AGAIN} A consumer keeps its snapshots from expiring."
            ) from error

    def _load(self) -> LoadedTable:
        backoff = Backoff(0.5)

        def once() -> LoadedTable:
            found = load_table_or_none(self._catalog, self._definition.table.name)
            if found is None:
                raise SourceLost(f'table "{self._definition.table}" was dropped', hint="Restore it.")
            return found

        return retry_on(TransientError, _ATTEMPTS, once, lambda _: time.sleep(backoff.next()))

    def _rest(self) -> None:
        """Wait, if the last poll has just found nothing: Spark polls every ten milliseconds."""
        if self._idle_since is not None:
            time.sleep(max(0.0, min(POLL_SECONDS, self._idle_since + POLL_SECONDS - self._clock.monotonic())))

    def _columns_changed(self, place: TablePlace) -> SourceChanged:
        return SourceChanged(
            f'the columns of table "{self._definition.table}" changed',
            detail=f"Snapshot {place.snapshot_id} has other columns than those of the frame.",
            hint="Start the query again, with a new frame: it continues with the new columns.",
        )


def _offset(place: TablePlace) -> Offset:
    return {"table": place.uuid, "snapshot": place.snapshot_id, "sequence": place.sequence_number}


def _place(offset: Offset) -> TablePlace:
    return TablePlace(offset.get("table", ""), offset.get("snapshot"), offset.get("sequence", 0))


# -------------------------------------------------------------------------------------------------------------- frame


@for_users
def stream_changes(  # noqa: PLR0913 - options by name
    spark: SparkSession,
    table: TableRef,
    *,
    start: Point = SNAPSHOT,
    before: bool = False,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    key: Sequence[str] | None = None,
    consumer: str | None = None,
    max_rows_per_batch: int | None = None,
) -> DataFrame:
    """Follow the changes of a table as a streaming DataFrame. Needs Spark 4; no jar.

        orders = calve.stream_changes(spark, lake.table("shop.orders"), start="latest")
        orders.writeStream.foreachBatch(notify).option("checkpointLocation", "out/checkpoint").start()

    A query without a checkpoint starts with `start`: `"snapshot"`, the rows that the table has now, as inserts, and
    then its changes; `"earliest"`, the rows of its oldest snapshot, and then all changes; `"latest"`, changes from now
    on; or the changes after a snapshot id, a time, a frontier, a branch or a tag. Later, its checkpoint decides.

    Rows are those of `calve.changes(..., net=False)`: the changes of every snapshot, with `_change_type`,
    `_commit_version`, `_commit_timestamp` and `_calve_frontier`; the same `before`, `columns`, `where` and `key`.
    A snapshot is never split between two batches. A batch takes all that there is, or several snapshots up to about
    `max_rows_per_batch` changed rows; the first batch has no limit.

    A `consumer` keeps snapshots that the query has not processed from expiring, by a tag of the table. Each query needs
    a name of its own. If the table gets other columns, or its history was changed, the query ends and says so.
    """
    require_python_sources("calve.stream_changes")
    check_session_and_table("calve.stream_changes", spark, table)
    defined = define_stream(
        table,
        start=start,
        before=before,
        columns=columns,
        key=key,
        consumer=consumer,
        max_rows=max_rows_per_batch,
        parallelism=int(spark.sparkContext.defaultParallelism),
    )
    if where is not None:
        understood = understand(unread_frame(spark, defined.struct(defined.every)), where)
        defined = replace(defined, condition=understood.condition, condition_columns=understood.columns)
    return _frame(spark, defined, where)


def define_stream(  # noqa: PLR0913 - options by name
    table: TableRef,
    *,
    start: Point = SNAPSHOT,
    before: bool = False,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    consumer: str | None = None,
    max_rows: int | None = None,
    parallelism: int = 1,
) -> ChangeStreamDefinition:
    """Check what was asked for against the table as it is now. Raises InvalidInput."""
    if consumer is not None:
        check_consumer(consumer)
    check_list("columns", columns)
    check_list("key", key)
    if max_rows is not None and max_rows < 1:
        raise InvalidInput("max_rows_per_batch must be at least 1", detail=f"Got {max_rows}.")
    loaded = load_table(table.lake.open(), table.name)
    check_version(loaded)
    newest = newest_place(loaded).snapshot_id
    shape = shape_of(loaded)
    every = ChangeRange.of(loaded, newest, newest).read_as(shape.schema_id)
    request = ChangeRequest.of(every, key=key, columns=columns, net=False, before=before)
    return ChangeStreamDefinition(
        table=table,
        start=start,
        shape=shape,
        key=request.key,
        columns=tuple(request.range.columns),
        every=tuple(every.columns),
        types=json.dumps(every.spark_schema),
        before=before,
        consumer=consumer,
        max_rows=max_rows,
        parallelism=parallelism,
    )


def _frame(spark: SparkSession, definition: ChangeStreamDefinition, where: Where | None) -> DataFrame:
    from calve.source.python_source import data_source  # noqa: PLC0415 - Spark 3.5 has no such sources

    steps = zip(STEP_FIELDS, (T.LongType(), T.LongType(), T.StringType()), strict=True)
    extra = [*FLAG_FIELDS, *(T.StructField(name, kind) for name, kind in steps)]
    read = [*definition.struct(definition.needed), *extra]
    name = f"calve_changes_{next(_numbers)}"
    spark.dataSource.register(data_source(name, definition, _by_place(read)))
    events = spark.readStream.format(name).load()
    if where is not None:
        kept = [*definition.columns, *(f.name for f in extra)]
        events = events.toDF(*(f.name for f in read)).where(where).select(*map(ident, kept))
        events = events.toDF(*names_by_place(len(kept)))
    schema = definition.struct(definition.columns)
    if definition.parallelism > 1:
        events = shuffled(events, definition.parallelism, definition.key, schema)
    else:
        events = events.coalesce(1)
    meta = [
        T.StructField(CHANGE_TYPE, T.StringType()),
        T.StructField(VERSION, T.LongType()),
        T.StructField(TIMESTAMP, T.TimestampType()),
        T.StructField(FRONTIER, T.StringType()),
    ]
    places = tuple(definition.columns.index(column) for column in definition.key)
    paired = events.mapInArrow(StreamPairing(places, definition.before).read, _by_place([*schema, *meta]))
    return paired.toDF(*definition.columns, *(f.name for f in meta))


def _by_place(fields: Sequence[T.StructField]) -> T.StructType:
    """The same types with names that Arrow functions of Spark accept."""
    return T.StructType([T.StructField(f"c{place}", f.dataType) for place, f in enumerate(fields)])
