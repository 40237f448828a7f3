"""Starts a defined sink: assembles all parts of a run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from calve.clock import Clock, IdSource, RandomIds, SystemClock, Timer
from calve.commit.committer import CommitHooks, Committer, Signals
from calve.commit.journal import Journal
from calve.commit.ports import Stopwatch, TableMaintenance
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.envelope.envelopes import check_envelope, table_schema
from calve.envelope.log import LOG_FIELDS
from calve.errors import InvalidInput, TransientError
from calve.iceberg.loading import check_adoptable, check_found_by_all, load_or_create_table, load_table
from calve.iceberg.planning.compaction_groups import policy_of
from calve.iceberg.schema.creation import iceberg_schema, partition_spec, reserved
from calve.iceberg.schema.evolution import Shape, StoredOrder, creation_properties
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.iceberg.snapshot.compaction import CompactionOwner
from calve.iceberg.snapshot.expired_files import IcebergFiles
from calve.iceberg.snapshot.removal_journal import RemovalJournal
from calve.keylookup.index.key_index import KeyIndex
from calve.keylookup.indexed import IndexedSearch
from calve.keylookup.ordered import OrderedResolver
from calve.keylookup.resolver import PositionResolver
from calve.keylookup.search import SparkJobs
from calve.lake import TableRef, same_table, table_id
from calve.maintain.beside import PROCESSES
from calve.maintain.compact import CompactionScope, Compactor, RewriteRoom
from calve.maintain.convert import ConversionTools
from calve.maintain.expire import work_in
from calve.maintain.removal import Removal
from calve.maintain.removal_tasks import SparkComparison
from calve.model.change import ORDER
from calve.model.checkpoint import CheckpointIdentity
from calve.model.files import NO_NEEDS, KeyPlace
from calve.model.health import Health
from calve.model.letters import LetterChoice, ReplayReport, keeps_no_letters
from calve.model.spec import (
    Deletes,
    Maintenance,
    OnSchemaChange,
    SinkSpec,
)
from calve.pipeline.dead_letters import DeadLetters, ReplayedLetters, checkpoints_of
from calve.pipeline.existing_rows import TableRows, check_adopted_view, check_adoption
from calve.pipeline.feed import Feed, SourceFeed
from calve.pipeline.letter_requests import Requests
from calve.pipeline.monitor import RunMonitor
from calve.pipeline.pipeline import Intake, Pipeline, PipelineParts
from calve.pipeline.query import Query
from calve.pipeline.registration import RegisteredTable, TableRegistration
from calve.pipeline.removals import AllMaintenance, RemovalUpkeep
from calve.pipeline.replay import (
    LETTER_COLUMNS,
    STALLED_SECONDS,
    Judge,
    LetterFeed,
    LetterRows,
    ReplayParts,
    check_replay,
    complete,
    judge_all,
)
from calve.pipeline.spark_feed import SparkFeed
from calve.pipeline.survey import Measures, Survey
from calve.pipeline.upkeep import HERE_ROWS, Upkeep
from calve.pipeline.views import narrow
from calve.reader.local import read_here
from calve.reader.resources import process_memory
from calve.source.files.definition import Files, FileSource
from calve.source.port import BoundedFrame, Source
from calve.source.table import TableChanges, with_reader
from calve.spark.executors import check_executors, on_cluster, refuse_connect, warn_of_local_place
from calve.spark.session import is_local
from calve.storage.filesystems import NO_LOCAL_FILES, io_properties_of
from calve.storage.listing import check_there
from calve.storage.local_folders import location_of
from calve.storage.sizes import home_sizes, state_sizes
from calve.storage.state import StateFolder, StateStore, check_apart, local_folder
from calve.view.plan import Mode, ViewPlan
from calve.view.run import View
from calve.watch.status_files import read_status, status_file
from calve.write.batch import largest_batch
from calve.write.row_ids import RowIdWriter

if TYPE_CHECKING:
    from calve.pipeline.sink import Sink

_RUNNING: "WeakValueDictionary[tuple[Path, str], Query]" = WeakValueDictionary()
"""Runs of this process by home and name of the sink."""
IDLE_CHECK_SECONDS = 60.0
"""How often an idle sink loads its table, to detect rollback, recreation and a lost fence."""


@dataclass(frozen=True)
class Reading:
    """How a sink interprets its frames: the specification with its key, the table's columns, records to changes."""

    spec: SinkSpec
    columns: StructType
    intake: Intake


def reading_of(sink: "Sink", spark: SparkSession, frame_schema: StructType, state: StateStore) -> Reading:
    """Determine the table's columns, and how frames of this schema become changes of the table."""
    spec, over = sink.spec, sink.view
    time = spec.times.field if spec.times else None
    if over is None:
        key = sink.record_key if spec.append else spec.key
        intake = Intake(spec.envelope, key, None, time, log=spec.append, ordered_globally=spec.ordered)
        check_envelope(frame_schema, spec.envelope, key)
        columns = table_schema(frame_schema, spec.envelope, key)
    else:
        plan = over.planned(spark, frame_schema, spec.envelope, spec.key or None)
        _check_view(spec, plan)
        view = View(spark, plan, state=state, resolve=over.resolve)
        intake = Intake(spec.envelope, over.record_key(spec.envelope), view, time, log=spec.append)
        spec, columns = replace(spec, key=() if spec.append else plan.key), plan.schema
    if ORDER in columns.names:
        raise reserved(ORDER)
    more: list[StructField] = list(LOG_FIELDS) if spec.append else []
    if time or spec.ordered:
        made = intake.changes(spark.createDataFrame([], frame_schema), CheckpointIdentity("", 0, None, None))
        more += [made.schema[ORDER]] if spec.ordered else []
    return Reading(spec, StructType([*columns.fields, *more]), intake)


def _check_view(spec: SinkSpec, plan: ViewPlan) -> None:
    check_adopted_view(spec, plan)
    if spec.ordered:
        raise InvalidInput(
            f'rows of view "{plan.name}" have no order of their own',
            hint="Leave across_checkpoints out of the envelope.",
        )
    if spec.append and plan.mode is not Mode.INSERT:
        raise InvalidInput(
            f'view "{plan.name}" does not keep every change',
            hint="MODE APPEND takes views that filter and compute rows of a source with ENVELOPE NONE.",
        )
    if spec.times and plan.mode in {Mode.REKEY, Mode.GROUP}:
        raise InvalidInput(
            f'rows of view "{plan.name}" have no time of their own',
            hint="TIME COLUMN takes views that filter and compute rows, with the key of their source.",
        )


def source_store(state: StateStore, spec: SinkSpec) -> StateStore:
    """Return where a source records what it has read; a new generation starts from the beginning."""
    return StateFolder(state, f"source-{spec.generation}" if spec.generation else "source")


def _absolute_location(state: str) -> str:
    """Write a state location in the form of table locations, which all machines resolve."""
    folder = local_folder(state)
    return state.rstrip("/") if folder is None else location_of(folder)


def _place_of_state(state: str) -> str:
    """Write a state location as the table states it: a URI, or an absolute path on this machine."""
    folder = local_folder(state)
    return state.rstrip("/") if folder is None else str(folder.absolute())


def _unfinished(cause: str) -> TransientError:
    return TransientError(
        "the replay of dead letters was not finished",
        detail=cause,
        hint="Run it again: it continues, and applies no letter twice.",
    )


class Start:
    """Assembles the parts of one run."""

    def __init__(self, sink: "Sink", state: str | None, replay: LetterChoice | None = None) -> None:
        """With `replay` the run applies dead letters, and reads nothing of the source."""
        self._replay = replay
        self._letter_feed_made: LetterFeed | None = None
        self._sink, self._spec, self._home = sink, sink.spec, sink.lake.home
        self._clock: Clock = SystemClock()
        self._ids: IdSource = RandomIds()
        self._signals = Signals()
        changes = sink.changes
        self._spark = changes.sparkSession if isinstance(changes, DataFrame) else sink.lake.spark()
        refuse_connect(self._spark)
        if state is None and on_cluster(self._spark):
            raise InvalidInput(
                "a sink on a cluster needs a state location",
                hint="Give start(state=\"s3://...\"), or WITH (STATE LOCATION = 's3://...').",
            )
        if state is not None:
            warn_of_local_place(self._spark, f'the state location of sink "{self._spec.name}"', state)
        self._state_root: StateStore = sink.lake.state_root(state)
        self._state: StateStore = StateFolder(self._state_root, self._spec.sink_id)
        self._state_location = state or str(self._home / "state")

    def query(self) -> Query:
        """Start the sink."""
        check_executors(self._spark)
        self._check_name_is_free()
        check_adoption(self._sink)
        source, reading, table = self._open()
        if self._replay is not None:
            self._check_replay(source, reading)
        spec = reading.spec
        counts = source.counts if source else "offsets"
        file, reads = status_file(self._home, spec.name), source.name if source else "Spark's streaming source"
        monitor = RunMonitor(spec, self._clock, file, self._signals.wake, counts=counts, source=reads)
        try:
            query, pipeline = self._assembled(source, reading, table, monitor)
        except BaseException as error:
            monitor.not_started(error)
            raise
        _RUNNING[self._home, spec.name] = query
        known = table_id(TableRef(self._sink.lake, spec.table))
        begun = query.begin(
            pipeline,
            TableRegistration(RegisteredTable(self._home, known, spec, table.standing), self._clock),
            Survey(self._measures(table), monitor, self._clock),
        )
        if not begun and isinstance(source, BoundedFrame):
            raise InvalidInput(
                f'sink "{spec.name}" is complete: it applies one bounded DataFrame',
                detail="It applied one before. Nothing of this one was read.",
                hint="To apply this one to the same table, give the sink another name and options(adopt=True). To "
                "apply new data at every start: calve.files(...), or a streaming DataFrame.",
            )
        return query

    def _check_replay(self, source: Source | None, reading: Reading) -> None:
        """Refuse a replay that is not possible, before the status of the sink says anything else."""
        if self._spec.dead_letters is None:
            raise keeps_no_letters(f'sink "{self._spec.name}"', self._spec.name)
        self._judge(source, reading, self._replay or LetterChoice())

    def _assembled(
        self, source: Source | None, reading: Reading, table: IcebergTable, monitor: RunMonitor
    ) -> tuple[Query, Pipeline]:
        """Build the parts of a run; nothing runs yet."""
        spec, letters = reading.spec, self._letters(monitor)
        feed: Feed
        if self._replay is None:
            feed = self._feed(source)
        else:
            feed = self._letter_feed(source, reading, table, letters)
            monitor.stopping("its dead letters were replayed")  # it ends by itself
        resolver = self._resolver(table, Stopwatch(self._clock, monitor))
        existing = TableRows(spec, table, source, self._jobs)
        ports = RunPorts(self._clock, self._ids, monitor, self._signals, resolver, existing)
        run = SinkRun(spec, table, Journal(self._state), ports, feed.can_reread)
        parts = PipelineParts(self._spark, self._state, table, monitor, self._clock, self._ids, letters)
        pipeline = Pipeline(spec, reading.intake, run, parts)
        hooks = CommitHooks(pipeline.close_due, resolver.look_ahead, self._upkeep(run, monitor, resolver, table))
        committer = Committer(run, self._signals, hooks, idle_check_seconds=IDLE_CHECK_SECONDS)

        def release() -> None:
            resolver.close()
            if reading.intake.view is not None:
                reading.intake.view.close()

        return Query(run, feed, committer, self._signals, monitor, self._clock, release=release), pipeline

    def replay(self) -> ReplayReport:
        """Apply dead letters, and wait for the end. Raises what made it fail."""
        self._check_not_running()
        query = self.query()
        stalled_since: float | None = None
        try:
            while not query.await_end(1.0):
                now, stalled = self._clock.monotonic(), query.status().health is Health.STALLED
                stalled_since = None if not stalled else now if stalled_since is None else stalled_since
                if stalled_since is not None and now - stalled_since > STALLED_SECONDS:
                    raise _unfinished(query.status().cause)
        finally:
            query.stop()
        feed = self._letter_feed_made
        if query.failure is not None:
            raise query.failure
        if query.sealed:
            raise complete(self._spec.name)
        if feed is None or not feed.done:
            raise _unfinished("It was stopped.")
        return feed.report

    def _check_not_running(self) -> None:
        """Raise InvalidInput if the sink is running: a replay would take the table from it."""
        status = read_status(status_file(self._home, self._spec.name), self._clock.now_ms())
        if status is not None and status.health.active:
            there = f" by process {status.process.pid} on {status.process.host}" if status.process else ""
            raise InvalidInput(
                f'sink "{self._spec.name}" is running',
                detail=f"It is run{there}.",
                hint=f"Stop it, or pause it meanwhile: ALTER SINK {self._spec.name} PAUSE, and RESUME.",
            )

    def judge_letters(self, choice: LetterChoice) -> ReplayReport:
        """Report what a replay of dead letters would do. Raises InvalidInput, TransientError."""
        source, reading, table = self._open()
        judge = self._judge(source, reading, choice)
        needs = NO_NEEDS if table.behind else table.needs  # a replay changes the table first
        return judge_all(self._letter_rows(), choice, judge, needs, reading.spec.name)

    def _open(self) -> tuple[Source | None, Reading, IcebergTable]:
        """Open the source and the table, which is created if it is missing."""
        source = self._source()
        frame_schema = source.schema(self._spark) if source else cast("DataFrame", self._sink.changes).schema
        reading = reading_of(self._sink, self._spark, frame_schema, self._state)
        columns, spec = reading.columns, reading.spec
        if reading.intake.view is not None and spec.times is None:  # else times of skipped rows are needed, too
            narrow(source, self._sink.changes, reading.intake.view.plan, self._home, self._spark)
        catalog = self._sink.lake.open()
        if spec.adopts:
            load_table(catalog, spec.table)  # it has to exist: a new table has no rows to adopt
        schema = iceberg_schema(columns, spec.key, spec.uuids)
        partitions = partition_spec(schema, spec.partition_by)
        evolves = spec.on_schema_change is OnSchemaChange.EVOLVE
        order = StoredOrder(spec.order_by, spec.generation) if spec.ordered else None
        iceberg = load_or_create_table(
            catalog,
            spec.table,
            schema,
            spec.key,
            creation_properties(spec.sink_id, spec.partition_by, order),
            spec=partitions,
            known_to=spec.sink_id,
            evolves=evolves,
            format_version=spec.table_format,
            upgrades=spec.format_version is not None,
        )
        if spec.adopts:
            check_adoptable(iceberg, spec.table, spec.sink_id)
        warn_of_local_place(self._spark, f'the location of table "{spec.table}"', iceberg.location())
        check_apart(self._state_location, iceberg.location())
        if spec.deletes is Deletes.EQUALITY:
            check_found_by_all(iceberg, spec.key)
        asked = spec.partition_by if spec.partition_by or spec.unpartitioned else None
        shape = Shape(schema, asked, evolves, spec.branch, order, spec.format_version)
        table = IcebergTable(
            iceberg,
            spec.sink_id,
            spec.key,
            self._clock,
            self._ids,
            shape=shape,
            keys_at=self._keys_at,
            retention=spec.retention,
            removals=RemovalJournal(self._state_root),
            state_location=_place_of_state(self._state_location),
        )
        return source, reading, table

    def _check_name_is_free(self) -> None:
        """Raise InvalidInput if a sink of this name writes to another table: both would write the same status file."""
        other = _RUNNING.get((self._home, self._spec.name))
        if other is not None and other.active and other.status().table != str(self._spec.table):
            raise InvalidInput(
                f'another sink "{self._spec.name}" is running',
                detail=f"It writes to table {other.status().table}, this one to {self._spec.table}.",
                hint="Give each sink its own name.",
            )

    def _measures(self, table: IcebergTable) -> Measures:
        io = io_properties_of(self._sink.lake.properties)
        return Measures(
            lambda: table.health(self._spec.write),
            lambda: state_sizes(self._state_location, self._spec.sink_id, io),
            lambda: home_sizes(self._home),
        )

    def _resolver(self, table: IcebergTable, timed: Timer) -> OrderedResolver | PositionResolver:
        rows = RowIdWriter(table, self._spec.write, self._jobs)
        if self._spec.ordered:
            return OrderedResolver(table, self._ids, rows)
        apart = PROCESSES.call if is_local(str(self._spark.sparkContext.master)) and sys.executable else None
        index = KeyIndex(StateFolder(self._state, "index"), self._ids, memory=process_memory(), apart=apart)
        search = IndexedSearch(index, self._spec.key_index)
        return PositionResolver(table, self._jobs, self._ids, search, rows, memory=process_memory(), timed=timed)

    @property
    def _keys_at(self) -> KeyPlace:
        """Where key files go if the table's store forbids deletion. Equality deletes are part of the table instead."""
        return KeyPlace(
            f"{_absolute_location(self._state_location)}/{self._spec.sink_id}/keys",
            {k: v for k, v in io_properties_of(self._sink.lake.properties).items() if k != NO_LOCAL_FILES},
            takes_new=self._spec.deletes is not Deletes.EQUALITY,
        )

    @property
    def _jobs(self) -> SparkJobs:
        return SparkJobs(lambda: self._spark, self._spec.sink_id)

    @property
    def _maintenance_pool(self) -> str:
        return f"{self._spec.sink_id}-maintenance"

    def _upkeep(
        self, run: SinkRun, monitor: RunMonitor, resolver: OrderedResolver | PositionResolver, table: IcebergTable
    ) -> TableMaintenance:
        """Build the maintenance: compactions, and the removal of files of expired snapshots."""
        spec, lake, grace_ms = self._spec, self._sink.lake, self._spec.retention.grace_ms
        compactions = self._compactions(run, monitor, resolver)
        ready = compactions.ready_files if compactions else frozenset[str]
        journal, in_flight = RemovalJournal(self._state_root), work_in(self._state_root, lake.state_root, ready)

        def removal(check: Callable[[], None]) -> Removal:
            files = IcebergFiles(lake.open(), spec.table)
            jobs = SparkJobs(lambda: self._spark, self._maintenance_pool)
            tasks = SparkComparison(files, jobs, spec.compaction.core_share)
            return Removal(files, journal, in_flight, self._clock, grace_ms=grace_ms, check=check, tasks=tasks)

        removals = RemovalUpkeep(
            removal,
            lambda: table.expiries,
            monitor,
            self._clock,
            self._signals.wake,
            grace_ms=grace_ms,
        )
        return AllMaintenance([removals, *([compactions] if compactions else [])])

    def _compactions(
        self, run: SinkRun, monitor: RunMonitor, resolver: OrderedResolver | PositionResolver
    ) -> Upkeep | None:
        """Build the compactions, with their own catalog client: they work in parallel with commits."""
        spec, lake = self._spec, self._sink.lake
        if spec.maintenance is Maintenance.OFF:
            return None
        scope, tools = (
            CompactionScope(spec.table, spec.branch, spec.write, order=spec.compaction.order),
            ConversionTools(lambda: self._spark, self._clock, self._ids),
        )
        owner = CompactionOwner(spec.sink_id, lambda: run.state.fence)
        room = RewriteRoom(HERE_ROWS, spec.compaction.core_share, self._maintenance_pool, beside=True)

        def compactor() -> Compactor:  # made when it is needed
            return Compactor(lake.open(), scope, tools, owner=owner, room=room)

        return Upkeep(
            compactor,
            resolver,
            monitor,
            self._clock,
            self._signals.wake,
            policy=policy_of(spec.compaction),
            hours=spec.compaction.hours,
        )

    def _letters(self, monitor: RunMonitor) -> DeadLetters | None:
        """Build the dead letters, with their own catalog client: the feed's thread writes them."""
        name = self._spec.dead_letters
        if name is None:
            return None
        table = LetterTable(self._sink.lake.open(), name, self._spec.name, self._clock, self._ids)
        kind = DeadLetters if self._replay is None else ReplayedLetters
        return kind(table, monitor, self._spec)

    def _letter_rows(self) -> LetterRows:
        """Load the dead letters. Raises TransientError; InvalidInput if the sink keeps none."""
        if self._spec.dead_letters is None:
            raise keeps_no_letters(f'sink "{self._spec.name}"', self._spec.name)
        table = TableRef(self._sink.lake, self._spec.dead_letters)
        return LetterRows(read_here(table, columns=LETTER_COLUMNS), self._spec.name)

    def _judge(self, source: Source | None, reading: Reading, choice: LetterChoice) -> Judge:
        """Build what decides which letters are good. Raises InvalidInput if they cannot be replayed."""
        rereads = check_replay(reading.spec, source, reading.intake, choice)
        once = reading.spec.append and not choice.force
        return Judge(self._spark, rereads, reading.intake, checkpoints_of(reading.spec) if once else "")

    def _letter_feed(
        self, source: Source | None, reading: Reading, table: IcebergTable, letters: DeadLetters | None
    ) -> LetterFeed:
        """Build the feed of a replay of dead letters. Raises InvalidInput if they cannot be replayed."""
        choice = self._replay or LetterChoice()
        if letters is None:
            raise keeps_no_letters(f'sink "{self._spec.name}"', self._spec.name)
        parts = ReplayParts(
            reading.spec,
            choice,
            self._judge(source, reading, choice),
            self._letter_rows,
            letters.table,
            table,
            Requests(self._state),
            source.name if source else "",
            self._ids,
        )
        self._letter_feed_made = LetterFeed(parts, self._spark, self._signals, self._clock, self._spec.pace)
        return self._letter_feed_made

    def _source(self) -> Source | None:
        changes = self._sink.changes
        if isinstance(changes, Files):
            warn_of_local_place(self._spark, f'the input of sink "{self._spec.name}"', changes.path)
            check_there(changes.path)
        if isinstance(changes, TableChanges):
            changes = self._reading_table(changes)
        if not isinstance(changes, DataFrame):
            return changes.open(source_store(self._state, self._spec), self._clock)
        return None if changes.isStreaming else BoundedFrame(changes)

    def _reading_table(self, changes: TableChanges) -> TableChanges:
        """Refuse a sink that would read what it writes itself."""
        target = TableRef(self._sink.lake, self._spec.table)
        if same_table(changes.table, target):
            raise InvalidInput(
                f'sink "{self._spec.name}" reads the table that it writes to',
                detail=f"Table {target}.",
                hint="Choose another table.",
            )
        return with_reader(changes, self._spec.sink_id)

    def _feed(self, source: Source | None) -> Feed:
        if isinstance(source, FileSource):
            source.limit(partial(largest_batch, self._spark.sparkContext, for_driver=source.typed))
        if source is not None:
            return SourceFeed(self._spark, source, self._signals, self._clock, self._spec.pace)
        folder = self._home / "spark" / self._spec.sink_id
        frame = cast("DataFrame", self._sink.changes)  # without a source it is a streaming frame
        return SparkFeed(frame, folder, self._signals, self._clock, self._ids, self._spec.pace)
