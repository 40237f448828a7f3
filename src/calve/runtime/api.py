"""The Python interface: `calve.connect`, `calve.sink(...).start()`.

lake = calve.connect()
query = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start()
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from calve.catalog.connect import Catalog, connect_embedded, open_catalog
from calve.catalog.stores import io_properties_of
from calve.catalog.tables import load_or_create_table
from calve.clock import Clock, IdSource, RandomIds, SystemClock, sink_id_of
from calve.commit.committer import Committer, Signals
from calve.commit.journal import Journal
from calve.commit.ports import Resolver
from calve.commit.run import Outside, SinkRun
from calve.errors import InvalidInput
from calve.iceberg.dead_letters import LetterTable
from calve.iceberg.evolution import Shape, creation_properties
from calve.iceberg.schema import iceberg_schema, reserved
from calve.iceberg.specs import partition_spec
from calve.iceberg.table import IcebergTable
from calve.index.key_index import KeyIndex
from calve.metastore.tables import TableId
from calve.model.change import ORDER
from calve.model.checkpoint import CheckpointIdentity
from calve.model.partitioning import PartitionBy
from calve.model.spec import (
    HEARTBEAT_MS,
    Deletes,
    Diff,
    Envelope,
    KeyIndexUse,
    LateRows,
    NoEnvelope,
    OnForeignCommit,
    OnKeyViolation,
    OnSchemaChange,
    RowTimes,
    SinkSpec,
    TableName,
    WriteOptions,
)
from calve.resolve.indexed import IndexedSearch
from calve.resolve.ordered import OrderedResolver
from calve.resolve.resolver import PositionResolver
from calve.resolve.search import Jobs
from calve.runtime.deadletters import DeadLetters
from calve.runtime.executors import check_executors, on_cluster, refuse_connect, warn_of_local_place
from calve.runtime.feed import Feed, SourceFeed
from calve.runtime.monitor import RunMonitor, status_file
from calve.runtime.narrowing import narrow
from calve.runtime.pipeline import Around, Intake, Pipeline
from calve.runtime.query import Query
from calve.runtime.registry import Registry, Written
from calve.runtime.session import embedded_session
from calve.runtime.sparkfeed import SparkFeed
from calve.runtime.views import ViewOver
from calve.source.bounded import BoundedFrame
from calve.source.envelope import check_envelope, table_schema
from calve.source.files import Files
from calve.source.frames import extensions_of
from calve.source.log import LOG_FIELDS
from calve.source.port import Source, SourceDefinition
from calve.sql.parser import parse_partition_field
from calve.sql.values import parse_duration, parse_size
from calve.state import Folder, StateStore, open_state
from calve.view.plan import Mode, ViewPlan
from calve.view.run import View

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

IDLE_CHECK_SECONDS = 60.0
"""How often an idle sink looks at its table, to notice rollback, recreation and a lost fence."""


def default_home() -> Path:
    """`CALVE_HOME`, or `.calve` in the working directory."""
    return Path(os.environ.get("CALVE_HOME", ".calve")).absolute()


@dataclass(frozen=True)
class Lake:
    """A catalog. Every sink opens its own client of it."""

    home: Path
    properties: Mapping[str, str] = field(repr=False)

    @property
    def label(self) -> str:
        """How the metastore calls it: the same for all connections to one catalog, and without logins."""
        if not self.properties:
            return "embedded"
        address = urlsplit(self.properties.get("uri", ""))
        port = f":{address.port}" if address.port else ""
        place = f"{address.hostname}{port}" if address.hostname else address.path
        said = [self.properties.get("type", ""), place, self.properties.get("warehouse", "")]
        return " ".join(filter(None, said)) or "catalog"

    def table(self, name: str) -> "TableRef":
        """A table by `namespace.table`; it need not exist yet."""
        return TableRef(self, TableName.parse(name))

    def open(self) -> Catalog:
        """A new client."""
        return open_catalog(self.properties) if self.properties else connect_embedded(self.home)

    def state(self, location: str | None, sink_id: str) -> StateStore:
        """Where a sink keeps its records; a store is reached as the files of the tables are."""
        opened = open_state(location or str(self.home / "state"), io_properties_of(self.properties))
        return Folder(opened, sink_id)

    def spark(self, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
        """The active Spark session, or a quiet local one."""
        return SparkSession.getActiveSession() or embedded_session(self.home, master=master, conf=conf or {})


@dataclass(frozen=True)
class TableRef:
    """A table of a lake."""

    lake: Lake
    name: TableName

    def __str__(self) -> str:
        return str(self.name)


def connect(*, home: str | Path | None = None, **properties: str) -> Lake:
    """The embedded lake of a home folder, or any catalog by pyiceberg's properties (`type="rest"`, `uri=...`)."""
    settings = {key.replace("_", "-"): value for key, value in properties.items()}
    return Lake(Path(home).absolute() if home else default_home(), settings)


def table_id(ref: TableRef) -> TableId:
    """How the metastore calls a table."""
    return TableId(ref.lake.label, ".".join(ref.name.namespace), ref.name.name)


Changes = DataFrame | SourceDefinition


def sink(
    changes: Changes,
    *,
    name: str,
    into: TableRef,
    key: Sequence[str] = (),
    envelope: Envelope | None = None,
    mode: str = "upsert",
) -> "Sink":
    """A sink that keeps the table `into` equal to `changes`, by `key`. Nothing happens before `start`.

    `changes` is a streaming or bounded DataFrame, or one of calve's own sources (`calve.files`, `calve.orders`),
    which bring their envelope with them. With `mode="append"` the table is a log of all changes, with columns
    `_calve_diff` and `_calve_time`; it has no key then, and `key` is only for envelopes that need one.
    """
    if mode not in {"upsert", "append"}:
        raise InvalidInput(f'unknown mode "{mode}"', hint="Use 'upsert' or 'append'.")
    if mode == "upsert" and not key:
        raise InvalidInput(f'sink "{name}" has no key', hint="Give key=[...], or mode='append' to keep every change.")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a name for a sink', hint="Use letters, digits, and the characters _ . - after the first."
        )
    if isinstance(key, str):
        raise InvalidInput("key is a list of columns", detail=f'Got "{key}".', hint=f'Write key=["{key}"].')
    refuse_connect(changes)
    if envelope is not None and not isinstance(envelope, Envelope):
        raise InvalidInput(
            "unknown envelope",
            detail=f"Got {envelope!r}.",
            hint="Use calve.NoEnvelope(), calve.Upsert(...), calve.Debezium(...) or calve.Diff(...).",
        )
    natural = None if isinstance(changes, DataFrame) else changes.envelope
    chosen = envelope or natural or NoEnvelope()
    append = mode == "append"
    times = RowTimes(_late(append), by_progress=chosen.progress is not None) if isinstance(chosen, Diff) else None
    write = WriteOptions(extensions=extensions_of(changes.schema) if isinstance(changes, DataFrame) else ())
    identity = (name, sink_id_of(name, str(into)), into.name, () if append else tuple(key))
    spec = SinkSpec(*identity, chosen, append=append, times=times, write=write)
    return Sink(changes, into.lake, spec, record_key=tuple(key))


@dataclass(frozen=True)
class Sink:
    """A sink that is defined and not started."""

    changes: Changes
    lake: Lake
    spec: SinkSpec
    view: ViewOver | None = None
    """What the sink keeps instead of the changes themselves; then `spec.key` may be empty: that of the view."""
    record_key: tuple[str, ...] = ()
    """Of the records, where the table has none."""

    def options(  # noqa: PLR0913 - all of them are options by name
        self,
        *,
        version: int | None = None,
        on_foreign_commit: str | None = None,
        on_schema_change: str | None = None,
        on_key_violation: str | None = None,
        branch: str | None = None,
        target_file_size: int | str | None = None,
        row_group_size: int | str | None = None,
        compression: str | None = None,
        bloom_filter: bool | None = None,
        deletes: str | None = None,
        on_bad_row: str | None = None,
        key_index: str | None = None,
    ) -> "Sink":
        """The same sink with other options. Dead letters go to the table `<table>_dead_letters`."""
        before = self.spec.write
        write = replace(
            before,
            target_file_size=_bytes(target_file_size) or before.target_file_size,
            row_group_size=_bytes(row_group_size) or before.row_group_size,
            compression=compression or before.compression,
            bloom_filter=before.bloom_filter if bloom_filter is None else bloom_filter,
        )
        spec = replace(self.spec, write=write, version=version or self.spec.version, branch=branch or self.spec.branch)
        if on_foreign_commit is not None:
            policy = _chosen(OnForeignCommit, on_foreign_commit, "on_foreign_commit")
            spec = replace(spec, on_foreign_commit=policy)
        if deletes is not None:
            spec = replace(spec, deletes=_encoding(deletes))
        if on_bad_row is not None:
            spec = replace(spec, dead_letters=_dead_letters(spec.table, on_bad_row))
        if key_index is not None:
            spec = replace(spec, key_index=_chosen(KeyIndexUse, key_index, "key_index"))
        if on_key_violation is not None:
            spec = replace(spec, on_key_violation=_chosen(OnKeyViolation, on_key_violation, "on_key_violation"))
        if on_schema_change is not None:
            spec = replace(spec, on_schema_change=_chosen(OnSchemaChange, on_schema_change, "on_schema_change"))
        return replace(self, spec=spec)

    def commits(
        self,
        *,
        size: int | str | None = None,
        coalesce: bool = True,
        heartbeat: str | timedelta | float | None = None,
    ) -> "Sink":
        """The same sink with other rules of when to commit.

        `size`: as soon as so much is staged. `coalesce=False`: one snapshot for every window, or every time, even when
        several are complete. `heartbeat`: an empty snapshot so long after the last one (by default an hour).
        """
        beat = HEARTBEAT_MS if heartbeat is None else round(_seconds(heartbeat) * 1000)
        spec = replace(self.spec, commit_bytes=_bytes(size), coalesce=coalesce, heartbeat_ms=beat)
        return replace(self, spec=spec)

    def times(
        self,
        column: str | None = None,
        *,
        watermark_delay: str | timedelta | float | None = None,
        idle_timeout: str | timedelta | float | None = None,
        late_rows: str | None = None,
    ) -> "Sink":
        """The same sink, whose rows have times of their own: those in `column`, or those of the envelope DIFF."""
        if isinstance(self.spec.envelope, Diff) == bool(column):
            raise InvalidInput("a time is either a column's or that of the envelope DIFF")
        times = RowTimes(
            late=_chosen(LateRows, late_rows, "late_rows") if late_rows else _late(self.spec.append),
            field=column,
            by_progress=isinstance(self.spec.envelope, Diff) and self.spec.envelope.progress is not None,
            delay_ms=round(_seconds(watermark_delay) * 1000),
            idle_ms=round(_seconds(idle_timeout) * 1000) if idle_timeout is not None else None,
        )
        return replace(self, spec=replace(self.spec, times=times))

    def partition_by(self, *fields: str) -> "Sink":
        """The same sink into a table with these partitions, written as in SQL: `"bucket(16, id)"`, `"day(at)"`."""
        return replace(self, spec=replace(self.spec, partition_by=tuple(map(_partition_field, fields))))

    def start(
        self,
        *,
        state: str | None = None,
        commit_interval: str | timedelta | float | None = None,
        checkpoint_interval: str | timedelta | float | None = None,
    ) -> Query:
        """Create the table when it is missing, and run until stopped. Returns once the sink knows where to go on.

        `state` is a folder or URI for calve's records (default: below the home folder). `checkpoint_interval` is the
        least time between two checkpoints; by default they follow the data, or come with each commit. A longer
        `commit_interval` (a multiple of it) stages checkpoints and commits them together.
        """
        commits = _seconds(commit_interval)
        every = _seconds(checkpoint_interval) or commits
        if commits and (commits != every or self.spec.stages):
            return _Start(self._with_windows(commits, every), state, every).query()
        if self.spec.commit_bytes is not None and self.spec.window_ms is None:
            raise InvalidInput("a commit size needs a commit interval", hint="It says how long less may wait.")
        return _Start(self, state, every).query()

    def _with_windows(self, commits: float, every: float) -> "Sink":
        if round(commits * 1000) % round(every * 1000):
            raise InvalidInput(
                f"the commit interval {commits:g} s is no multiple of the checkpoint interval {every:g} s",
                hint="Choose a commit interval that is a whole number of checkpoint intervals.",
            )
        return replace(self, spec=replace(self.spec, window_ms=round(commits * 1000)))


@dataclass(frozen=True)
class Reading:
    """How a sink understands its frames: the specification with its key, the table's columns, records to changes."""

    spec: SinkSpec
    columns: StructType
    intake: Intake


def reading_of(sink: Sink, spark: SparkSession, frame_schema: StructType, state: StateStore) -> Reading:
    """What the table is made of, and how changes of it come out of frames of this schema."""
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
    """Where a source remembers what it read; a new generation begins to read anew."""
    return Folder(state, f"source-{spec.generation}" if spec.generation else "source")


class _Start:
    """Puts the parts of one run together."""

    def __init__(self, sink: Sink, state: str | None, every: float) -> None:
        self._sink, self._spec, self._home = sink, sink.spec, sink.lake.home
        self._every = every
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
        self._state: StateStore = sink.lake.state(state, self._spec.sink_id)

    def query(self) -> Query:
        check_executors(self._spark)
        source = self._source()
        frame_schema = source.schema(self._spark) if source else cast("DataFrame", self._sink.changes).schema
        reading = reading_of(self._sink, self._spark, frame_schema, self._state)
        columns, spec = reading.columns, reading.spec
        if reading.intake.view is not None and spec.times is None:  # times of rows that are left out count, too
            narrow(source, self._sink.changes, reading.intake.view.plan, self._home, self._spark)
        catalog = self._sink.lake.open()
        schema = iceberg_schema(columns, spec.key, spec.uuids)
        partitions = partition_spec(schema, spec.partition_by)
        evolves = spec.on_schema_change is OnSchemaChange.EVOLVE
        iceberg = load_or_create_table(
            catalog,
            spec.table,
            schema,
            spec.key,
            creation_properties(spec.sink_id, spec.partition_by),
            spec=partitions,
            known_to=spec.sink_id,
            evolves=evolves,
        )
        warn_of_local_place(self._spark, f'the location of table "{spec.table}"', iceberg.location())
        asked = spec.partition_by if spec.partition_by or spec.unpartitioned else None
        shape = Shape(schema, asked, evolves, spec.branch)
        table = IcebergTable(iceberg, spec.sink_id, spec.key, self._clock, self._ids, shape=shape)
        monitor = RunMonitor(spec, self._clock, status_file(self._home, spec.name), self._signals.wake)
        feed = self._feed(source)
        outside = Outside(self._clock, self._ids, monitor, self._signals, self._resolver(table))
        run = SinkRun(spec, table, Journal(self._state), outside, feed.can_reread)
        letters = self._letters(monitor)
        around = Around(self._spark, self._state, table, monitor, self._clock, self._ids, letters)
        pipeline = Pipeline(spec, reading.intake, run, around)
        committer = Committer(run, self._signals, pipeline.close_due, idle_check_seconds=IDLE_CHECK_SECONDS)
        query = Query(run, feed, committer, self._signals, monitor, self._clock)
        known = table_id(TableRef(self._sink.lake, spec.table))
        query.begin(pipeline, Registry(Written(self._home, known, spec, table.standing), self._clock))
        return query

    def _resolver(self, table: IcebergTable) -> Resolver:
        if self._spec.ordered:
            return OrderedResolver(table, self._ids)
        index = IndexedSearch(KeyIndex(Folder(self._state, "index"), self._ids), self._spec.key_index)
        return PositionResolver(table, Jobs(lambda: self._spark, self._spec.sink_id), self._ids, index)

    def _letters(self, monitor: RunMonitor) -> DeadLetters | None:
        """A client of its own: letters are written by the feed's thread, commits by another."""
        name = self._spec.dead_letters
        if name is None:
            return None
        table = LetterTable(self._sink.lake.open(), name, self._spec.name, self._clock, self._ids)
        return DeadLetters(table, monitor)

    def _source(self) -> Source | None:
        changes = self._sink.changes
        if isinstance(changes, Files):
            warn_of_local_place(self._spark, f'the input of sink "{self._spec.name}"', changes.path)
        if not isinstance(changes, DataFrame):
            return changes.open(source_store(self._state, self._spec), self._clock)
        return None if changes.isStreaming else BoundedFrame(changes)

    def _feed(self, source: Source | None) -> Feed:
        if source is not None:
            return SourceFeed(self._spark, source, self._signals, self._clock, every=self._every)
        folder = self._home / "spark" / self._spec.sink_id
        frame = cast("DataFrame", self._sink.changes)  # what is no source is a streaming frame
        return SparkFeed(frame, folder, self._signals, self._clock, self._ids, self._every)


def _bytes(size: int | str | None) -> int | None:
    return parse_size(size) if isinstance(size, str) else size


def _partition_field(text: str) -> PartitionBy:
    field = parse_partition_field(text)
    return PartitionBy(field.transform.value, tuple(part.name for part in field.column.parts), field.width)


C = TypeVar("C", bound=StrEnum)


def _chosen(choices: type[C], text: str, name: str) -> C:
    try:
        return choices(text)
    except ValueError:
        allowed = ", ".join(repr(choice.value) for choice in choices)
        raise InvalidInput(f'unknown policy {name}="{text}"', hint=f"Use one of {allowed}.") from None


def _dead_letters(table: TableName, policy: str) -> TableName | None:
    if policy not in {"halt", "dead letter"}:
        raise InvalidInput(f'unknown policy on_bad_row="{policy}"', hint="Use 'halt' or 'dead letter'.")
    return None if policy == "halt" else TableName(table.namespace, f"{table.name}_dead_letters")


def _late(append: bool) -> LateRows:  # noqa: FBT001 - which of two defaults
    """A log takes late rows; by key, an old row must not overwrite a newer one."""
    return LateRows.ADVANCE if append else LateRows.ERROR


def _encoding(text: str) -> Deletes:
    try:
        return Deletes(text)
    except ValueError:
        problem = 'deletes="vector" is not supported yet' if text == "vector" else f'unknown encoding deletes="{text}"'
        raise InvalidInput(problem, hint=f"Use one of {', '.join(repr(d.value) for d in Deletes)}.") from None


def _seconds(value: str | timedelta | float | None) -> float:
    if value is None:
        return 0.0
    duration = parse_duration(value) if isinstance(value, str) else value
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
