"""One simulated process: calve's real run, choreography, committer and upkeep, with greenlets for their threads.

Simulated are Spark, which reads and writes rows (`SimulatedWork`), compactions (`SimulatedCompactor`), the catalog and
the state location. Every failpoint of the real code returns control to the scheduler, so at each of them another
process may run or this one may die.
"""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace, TracebackType
from typing import Any, cast

from greenlet import GreenletExit, getcurrent, greenlet
from pyiceberg.table import Table

from calve import faults
from calve.commit.checkpoints import CheckpointFiles, Decision
from calve.commit.choreography import Choreography
from calve.commit.committer import CommitHooks, Committer
from calve.commit.journal import Journal
from calve.commit.ports import NoMaintenance, TableMaintenance, Waiting
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.errors import (
    CheckpointGap,
    FencedError,
    InvalidInput,
    KeyViolation,
    SourceLost,
    TerminalError,
    TransientError,
    UnreadableFile,
)
from calve.iceberg.snapshot.compaction import CompactionOwner, CompactionPlan
from calve.keylookup.index.manifest import Run
from calve.maintain.compact import Compacted, RewrittenFiles
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, RowKind, Staged
from calve.model.files import Committable, FileTotals, Manifest, ResolvedDeletes
from calve.model.frontier import BatchDescription
from calve.model.health import SourcePosition
from calve.model.progress import Progress, Receipt, property_key
from calve.model.spec import Adopt, LateRows, NoEnvelope, OnForeignCommit, RowTimes, SinkSpec, TableName
from calve.model.table import Proposal, TableState
from calve.pipeline.upkeep import Upkeep, UpkeepPace

from .contents import VECTORS, File, Violation
from .lookup import SimulatedLookup, manifest_of
from .world import SparkCheckpoint, World


class SparkCrash(Exception):
    """Spark detected another driver on its checkpoint."""


class Schedule:
    """Switches between greenlets at failpoints."""

    def __init__(self) -> None:
        self.main = getcurrent()

    def reached(self, point: str) -> None:
        if getcurrent() is not self.main:
            self.main.switch(point)


class CooperativeLock(AbstractContextManager[None]):
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._owner: object = None
        self._depth = 0

    def __enter__(self) -> None:
        me = getcurrent()
        while self._owner is not None and self._owner is not me:
            self._schedule.reached("blocked")
        self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None


class Simulated:
    """Clock, ids, monitor, waiter, table and state location of one driver."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world, self._schedule = world, schedule
        self._skew = world.rng.choice([-world.setup.skew, 0, world.setup.skew])
        self.calls = 0
        self.run_commits = 0
        self.version = VECTORS
        """The format version that the table had when it was last loaded."""

    # clock and ids
    def now_ms(self) -> int:
        return max(0, self._world.now + self._skew)

    def monotonic(self) -> float:
        return float(self._world.now)

    def new_id(self) -> str:
        return self._world.new_id("id-")

    def jitter(self) -> float:
        return 1.0

    # waiter
    def pause(self, seconds: float) -> None:
        until = self._world.now + seconds * 10
        while self._world.now < until:
            self._schedule.reached("waiting")

    def lock(self) -> CooperativeLock:
        return CooperativeLock(self._schedule)

    # signals
    stopping = False

    def wake(self) -> None:
        self.calls += 1

    def await_call(self, after: int, seconds: float) -> None:
        del after, seconds
        self._schedule.reached("idle")

    await_last_call = await_call

    # monitor
    sink = "s"
    behind = False

    def lag(self, current_ms: int | None, polled_ms: int | None, unread: int | None) -> None:
        del current_ms, polled_ms
        self.behind = bool(unread)

    def recorded(self, committable: Committable) -> None: ...

    def committed(self, receipt: Receipt, committable: Committable, seconds: float) -> None:
        del receipt, committable, seconds
        self.run_commits += 1

    def compacted(self, done: object) -> None: ...
    def maintaining(self, kind: str, next_run: str = "") -> None: ...
    def maintained(self, kind: str, outcome: str, seconds: float, summary: str = "") -> None: ...
    def failed_attempt(self, error: BaseException) -> None: ...
    def stalled(self, cause: str) -> None: ...
    def running(self) -> None: ...
    def waiting(self, work: Waiting) -> None: ...
    def late(self, rows: int) -> None: ...
    def source_read(self, position: SourcePosition) -> None: ...
    def phase(self, name: str, seconds: float) -> None: ...
    def warned(self, what: str, error: BaseException) -> None: ...

    # state location
    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        self._world.state[name] = data

    def put_new(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        if self._world.state.setdefault(name, data) != data:
            raise Violation(f"{name} was written over")

    def _take_time(self, what: str) -> None:
        """Let others act before a request to a slow store."""
        if self._world.setup.slow and not self._world.settling:
            self._schedule.reached(what)

    def read(self, name: str) -> bytes | None:
        if name.startswith("rec/"):
            self._take_time("reading a record")
        return self._world.state.get(name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        data = self._world.state.get(name)
        return None if data is None else [data[at : at + length] for at, length in ranges]

    def list(self, prefix: str) -> list[str]:
        return sorted(n for n in self._world.state if n.startswith(f"{prefix}/"))

    def delete(self, name: str) -> None:
        self._take_time("removing a record")
        if not self._world.settling and self._world.refusals.random() < self._world.setup.error / 3:
            raise TransientError(f"{name} could not be removed")
        self._world.state.pop(name, None)

    # table
    def load(self) -> TableState:
        faults.reached("load")
        state = self._world.load()
        self.version = state.format_version
        return state

    def commit(self, state: TableState, proposal: Proposal) -> Progress:
        faults.reached("commit.before")
        progress = self._world.commit(state, proposal)
        faults.reached("commit.after")
        return progress

    def missing_files(self, manifests: Sequence[Manifest]) -> tuple[str, ...]:
        self._take_time("looking for files")
        return tuple(m.path for m in manifests if m.path not in self._world.files)

    def merge_manifests(self, state: TableState) -> bool:
        del state
        return False

    def remove_keys(self, keys: Sequence[Manifest]) -> None:
        for manifest in keys:
            self._world.files.pop(manifest.path, None)

    def discard_deletes(self, deletes: Sequence[Manifest], why: str) -> None:
        del why
        for manifest in deletes:
            if manifest.path in self._world.applied:
                raise Violation("deletes of an attempt that was applied are removed")
            self._world.files.pop(manifest.path, None)

    def discard_files(self, locations: Sequence[str], why: str) -> None:
        del why
        for location in locations:
            if location in self._world.applied:
                raise Violation("a data file of the table is removed")
            self._world.files.pop(location, None)

    # rows that are there before the sink
    def begin(self) -> str | None:
        return str(self._world.begin) if self._world.begin else None

    def check(self, state: TableState, snapshot_id: int) -> None:
        if self._world.rng.random() < self._world.setup.error and not self._world.settling:
            raise TransientError("the rows could not be read")
        self._schedule.reached("reading rows")
        claimed = state.handle.snapshots.get(snapshot_id)
        if claimed is None:
            raise InvalidInput(f"the table has no snapshot {snapshot_id}")
        if len({key for key, *_ in claimed.rows}) != len(claimed.rows):
            raise KeyViolation("a key is there twice")

    # resolver
    def resolve(
        self, state: TableState, keys: Sequence[Manifest], commit_id: str, added: Sequence[Manifest]
    ) -> ResolvedDeletes:
        del commit_id
        return SimulatedLookup(self._world).resolve(state, keys, added)


@dataclass(frozen=True)
class SimulatedCheckpoint:
    """A micro-batch of Spark."""

    identity: CheckpointIdentity
    batch_ms: int
    start: int
    end: int
    spark: SparkCheckpoint
    final: bool = False
    unread: int = 0


@dataclass(frozen=True)
class SimulatedBatch:
    """Files that are not recorded yet."""

    world: World
    written: CheckpointFiles

    def remove(self) -> None:
        for manifest in (*self.written.manifests, *self.written.keys):
            del self.world.files[manifest.path]


class SimulatedWork:
    """Spark's part of a pipeline."""

    early_commit_log = False
    """Mutation: Spark's commit log is written before the record."""

    def __init__(self, world: World, outside: Simulated, run: SinkRun) -> None:
        self._world, self._outside, self._run = world, outside, run
        self._positions = world.encodings.choice(world.setup.positions)
        self._kind = RowKind.of(run.state.spec)
        self._change_kind()
        self._staged: set[CheckpointIdentity] = set()
        self._upgrades = world.setup.upgraded_by == "sink" and world.formats.random() < 0.5

    @property
    def table_behind(self) -> bool:
        return self._upgrades and self._outside.version < VECTORS

    def evolve_table(self, state: TableState) -> None:
        if self.table_behind:  # by the state, which was just loaded
            faults.reached("upgrade.before")
            self._world.upgrade(state, self._run.state.fence)
            faults.reached("upgrade.after")
            self._outside.load()

    def refuse_rows(self, checkpoint: SimulatedCheckpoint) -> None: ...
    def check_keys(self, checkpoint: SimulatedCheckpoint) -> None: ...
    def check_input(self, checkpoint: SimulatedCheckpoint) -> None: ...
    def discard_staged(self, staged: Staged) -> None: ...
    def release(self) -> None: ...

    def leave_out(self, checkpoint: SimulatedCheckpoint, error: UnreadableFile) -> SimulatedCheckpoint:
        del checkpoint
        raise error

    def _change_kind(self) -> None:
        """Source, sink or table changed: rows staged from now on may have other columns."""
        self._kind = replace(self._kind, columns=str(self._world.kinds.randrange(self._world.setup.kinds)))

    def _tell_spark(self, checkpoint: SimulatedCheckpoint) -> None:
        if self.early_commit_log:
            checkpoint.spark.commits.add(checkpoint.identity.batch_id)

    def stage(self, checkpoint: SimulatedCheckpoint) -> Staged:
        self._tell_spark(checkpoint)
        if checkpoint.identity in self._staged:
            raise Violation("a row is late although the source kept its promise")
        self._staged.add(checkpoint.identity)
        if self._world.kinds.random() < 0.2:
            self._change_kind()
        return replace(self._put(checkpoint.start, checkpoint.end), kind=self._kind)

    def _put(self, start: int, end: int) -> Staged:
        faults.reached("stage.before")
        records = self._world.source[start:end]
        rows = [record for record in records if record[0] is not None]
        names = (f"{self._run.checkpoints.stage_folder}/{self._world.new_id('part-')}",) if rows else ()
        for name in names:
            self._outside.put(name, json.dumps(rows).encode())
        faults.reached("stage.after")
        if not self._world.setup.own_times:
            return Staged(names, len(rows), 1)
        times = sorted({time for _, _, time in rows})
        promised = max((time for key, _, time in records if key is None), default=0)
        listed = tuple(times) if self._world.setup.coalesce is False or len(times) % 2 else ()
        return Staged(names, len(rows), 1, promised, *((times[0], times[-1]) if times else (-1, -2)), listed)

    def write(self, checkpoint: SimulatedCheckpoint, time: int) -> SimulatedBatch:
        del time
        self._tell_spark(checkpoint)
        records = self._world.source[checkpoint.start : checkpoint.end]
        rows = {key: value for key, value, _ in records if key is not None}
        return SimulatedBatch(self._world, self._write(rows))

    def _write(self, rows: dict[int, int | None]) -> CheckpointFiles:
        faults.reached("files.before")
        deletes = frozenset(rows) if self._run.state.needs_deletes else frozenset()
        name = self._world.new_id("file-")
        live = {k: v for k, v in rows.items() if v is not None}
        self._world.files[name] = File(live, frozenset() if self._positions else deletes)
        keys: tuple[Manifest, ...] = ()
        if self._positions and deletes:
            keys = (manifest_of(self._world.new_id("keys-"), 0),)
            self._world.files[keys[0].path] = File({}, deletes)
        faults.reached("files.after")
        equality = 0 if self._positions else len(deletes)
        totals = FileTotals(changes=len(rows), data_files=1, data_rows=len(live), equality_deletes=equality)
        return CheckpointFiles(self._outside.new_id(), (manifest_of(name, len(live)),), totals, keys)

    def merge(self, entries: Sequence[CheckpointEntry], batch: BatchDescription) -> CheckpointFiles:
        staged = [e.staged for e in entries if e.staged and e.staged.rows]
        by_clock = {e.staged.kind for e in entries if e.staged and e.staged.rows and not e.timed}
        if len(by_clock) > 1:
            raise Violation("rows of different kinds share a batch by the clock")
        records: list[tuple[int, int | None, int]] = []
        for name in (name for one in staged for name in one.files):
            data = self._outside.read(name)
            if data is None:
                raise CheckpointGap("a staged file is missing")
            records += json.loads(data)
        if self._world.setup.own_times:
            records = sorted((r for r in records if batch.holds(r[2])), key=lambda record: record[2])
        return self._write({key: value for key, value, _ in records})


class SimulatedCompactor:
    """Compactions: planned on one state of the table, committed on a later one."""

    unfenced = False
    """Mutation: a compaction does not check the fence."""

    def __init__(self, world: World, outside: Simulated, run: SinkRun) -> None:
        self._world, self._outside, self._run = world, outside, run
        self._owner = CompactionOwner(run.state.sink_id, lambda: run.state.fence)
        self._rewritten: TableState | None = None

    def plan(self, policy: object) -> CompactionPlan | None:
        del policy
        self._rewritten = self._load()
        return cast("CompactionPlan", SimpleNamespace(groups=SimpleNamespace(more=self._world.upkeeps.random() < 0.5)))

    def rewrite(self, plan: CompactionPlan, check: Callable[[], None]) -> Generator[RewrittenFiles, None, None]:
        del plan
        for _ in range(self._world.upkeeps.choice([1, 1, 3])):  # parts
            for _ in range(self._world.upkeeps.choice([0, 2, 8])):
                faults.reached("rewriting files")
                check()
            yield cast("RewrittenFiles", SimpleNamespace(groups=()))

    def commit(self, ready: RewrittenFiles, attempts: int) -> Compacted | None:
        del ready, attempts
        now, plan = self._load(), self._rewritten
        if plan is None or plan.uuid != now.uuid or plan.head not in {s.snapshot_id for s in now.ancestors}:
            return None
        faults.reached("maintain.before")
        self._world.compact(now, self._run.state.fence)
        faults.reached("maintain.after")
        return cast("Compacted", SimpleNamespace())

    def abandon(self, ready: RewrittenFiles) -> None: ...

    # what learns the keys of new files
    def prepared(self, files: object) -> tuple[Run, ...]:
        del files
        return ()

    def adopt(self, runs: object) -> None: ...

    def _load(self) -> TableState:
        state = self._outside.load()
        if not self.unfenced:
            self._owner.check(cast("Table", Shown(state)))
        return state


class Driver:
    """One incarnation of the sink's process: boots, then runs a stream and a committer."""

    def __init__(self, world: World, number: int, version: int, disk: str) -> None:
        self.world, self.number, self.version, self.disk_kind = world, number, version, disk
        self.schedule = Schedule()
        self.alive, self.exit, self.paused_until = True, "", 0
        self.started = world.now
        self.booted: int | None = None
        outside = Simulated(world, self.schedule)
        policy = OnForeignCommit.ACCEPT if world.setup.accept else OnForeignCommit.HALT
        spec = SinkSpec(
            "s",
            "sink",
            TableName(("n",), "t"),
            ("k",),
            NoEnvelope(),
            version=version,
            on_foreign_commit=policy,
            window_ms=world.rng.choice(world.setup.windows),
            times=self.times(),
            max_pending_batches=world.setup.pending,
            max_staged_size=None if world.limit_raised else world.setup.staged_limit,
            coalesce=world.setup.coalesce,
            adopt=Adopt.CHECK if world.setup.adopt else Adopt.NO,
            heartbeat_ms=(100 if world.setup.heartbeat else 100_000) * 1000,  # a tick is a second
        )
        self.outside = outside
        self.run = SinkRun(
            spec,
            outside,
            Journal(outside),
            RunPorts(outside, outside, outside, outside, outside, outside),
            lambda _: world.setup.seekable,
        )
        self.work = SimulatedWork(world, outside, self.run)
        self.steps = Choreography(spec, self.run, self.work)
        hooks = CommitHooks(self.steps.close_due, lambda: None, self.upkeep())
        self.committer = Committer(self.run, outside, hooks, idle_check_seconds=30)
        self.checkpoint: SparkCheckpoint | None = None
        self.expected: tuple[SparkCheckpoint, int] | None = None
        self.threads = {"boot": greenlet(self.boot)}

    def times(self) -> RowTimes | None:
        setup = self.world.setup
        idle_ms = 5000 if setup.idle else None  # a tick is a second
        return RowTimes(LateRows.ERROR, by_progress=True, idle_ms=idle_ms) if setup.own_times else None

    # ---- scheduling

    def step(self) -> None:
        name = self.world.rng.choice(sorted(self.threads))
        thread = self.threads[name]
        faults.install(self.schedule.reached)
        try:
            point = thread.switch()
        except FencedError as error:
            self.leave("fenced", error)
            return
        except (TerminalError, InvalidInput) as error:
            self.leave(type(error).__name__, error)
            return
        except TransientError as error:  # only at boot: the supervisor starts it again
            self.leave("", error)
            return
        except SparkCrash as error:
            self.leave("", error)
            return
        finally:
            faults.install(None)
        if not thread.dead:
            if point not in {"idle", "blocked", "waiting"}:
                self.world.say(f"run {self.number} {name}: {point}")
            return
        self.threads.pop(name)
        if name == "boot":
            self.booted = self.world.now
            self.threads = {"stream": greenlet(self.stream), "committer": greenlet(self.committer.loop)}
        if self.run.state.frontier.sealed:
            self.alive, self.exit = False, "sealed"

    def leave(self, how: str, error: BaseException) -> None:
        self.alive, self.exit = False, how
        self.world.say(f"run {self.number} leaves ({how or 'crash'}): {error}".replace("\n", " "))

    def end(self) -> None:
        """Let go of what suspended threads hold: they are not collected otherwise."""
        for thread in self.threads.values():
            with suppress(BaseException):
                thread.throw(GreenletExit)

    # ---- the process

    def boot(self) -> None:
        world = self.world
        self.run.claims.boot()
        if self.run.state.sealed and not self.run.state.pending:
            return
        self.run.claims.adopt_rows()
        if self.disk_kind == "lost" or world.disk is None:
            first = world.disk is None and self.run.state.end is None
            self.new_checkpoint(fresh=first)
        elif self.disk_kind == "old":
            self.checkpoint = world.rng.choice(world.disk_copies).copy()
        else:
            self.checkpoint = world.disk
        if self is world_current(world):
            world.disk = self.checkpoint
        assert self.checkpoint is not None
        _, position = self.checkpoint.position()
        if position > int(self.run.state.end or 0):
            self.new_checkpoint()

    def new_checkpoint(self, *, fresh: bool = False) -> None:
        if not self.world.setup.seekable and not fresh:
            raise SourceLost("the source cannot start at the recorded offsets")
        end = int(self.run.state.end or 0)
        faults.reached(f"new Spark checkpoint from {end}")
        self.checkpoint = SparkCheckpoint(self.world.new_id("query-"), end)
        if self is world_current(self.world):
            self.world.disk = self.checkpoint

    def stream(self) -> None:
        """Spark's micro-batch loop around calve's callback."""
        while not self.run.state.sealed:
            faults.reached("idle")
            checkpoint = self.checkpoint
            assert checkpoint is not None
            batch, start = checkpoint.position()
            if self.expected and self.expected[0] is checkpoint and self.expected[1] != batch:
                raise SparkCrash("another driver moved this checkpoint")
            self.expected = (checkpoint, batch)
            if batch not in checkpoint.offsets and not self.plan(checkpoint, batch, start):
                continue
            start, end, stamp = checkpoint.offsets[batch]
            if self.callback(checkpoint, batch, start, end, stamp):
                faults.reached("spark-commit.before")
                checkpoint.commits.add(batch)
                self.expected = (checkpoint, batch + 1)
            elif not self.run.state.sealed:
                self.new_checkpoint()

    def plan(self, checkpoint: SparkCheckpoint, batch: int, start: int) -> bool:
        """Let Spark plan the next batch; False if there is none or the position is wrong."""
        world = self.world
        if start != int(self.run.state.end or 0):
            if not self.run.state.claimed:
                try:
                    self.run.claims.recheck_table()
                except TransientError:
                    return False
            if start != int(self.run.state.end or 0):
                self.new_checkpoint()
            return False
        if len(world.source) <= start:
            self.run.checkpoints.found_nothing(self.run.state.end, self.outside.now_ms())
            if world.source_ended() and self.run.state.staged:
                self.run.batches.flush(seal=True)
            elif world.source_ended():
                self.run.batches.seal()
            else:
                self.run.batches.read_through()
            return False
        end = min(len(world.source), start + world.rng.choice([1, 2, 4]))
        faults.reached(f"offset log {checkpoint.query_id}/{batch} [{start}, {end})")
        if batch in checkpoint.offsets:
            raise SparkCrash("concurrent update of the offset log")
        checkpoint.offsets[batch] = (start, end, self.outside.now_ms())
        return True

    def callback(self, checkpoint: SparkCheckpoint, batch: int, start: int, end: int, stamp: int) -> bool:
        """Do what calve does in foreachBatch; False if Spark has to be repositioned."""
        identity = CheckpointIdentity(checkpoint.query_id, batch, str(start) if start else None, str(end))
        decision = self.steps.take(SimulatedCheckpoint(identity, stamp, start, end, checkpoint))
        return decision in {Decision.ACCEPT, Decision.REPLAY}

    def upkeep(self) -> TableMaintenance:
        if not self.world.upkeep:
            return NoMaintenance()
        compactor = SimulatedCompactor(self.world, self.outside, self.run)
        pace = UpkeepPace(look_every=1, rest_per_plan=0, rest_seconds=5)  # a tick is a second
        outside = self.outside
        return Upkeep(lambda: compactor, compactor, outside, outside, outside.wake, pace=pace, spawn=self.spawn)

    def spawn(self, main: Callable[[], None]) -> Callable[[], None]:
        self.threads["upkeep"] = greenlet(main)
        return lambda: None


class Shown:
    """The part of a pyiceberg table that identifies its owner."""

    def __init__(self, state: TableState) -> None:
        stated = state.stated
        self.properties = {property_key(stated.sink_id): stated.to_property()} if stated else {}

    def name(self) -> tuple[str, ...]:
        return ("n", "t")


def world_current(world: Any) -> Driver | None:
    return getattr(world, "current", None)
