"""One simulated process: calve's real `SinkRun`, called by a stream and a committer that are greenlets.

Every failpoint of the real code returns control to the scheduler, so at each of them another process may run or this
one may die.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, cast

from greenlet import getcurrent, greenlet
from pyiceberg.table import Table

from calve import faults
from calve.commit.checkpoints import CheckpointFiles, Decision
from calve.commit.journal import Journal
from calve.commit.ports import Waiting
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
)
from calve.iceberg.snapshot.compaction import CompactionOwner
from calve.model.checkpoint import CheckpointIdentity, RowKind, Staged
from calve.model.files import Committable, Content, FileTotals, Manifest, ResolvedDeletes
from calve.model.frontier import BatchDescription
from calve.model.progress import Progress, Receipt, property_key
from calve.model.spec import Adopt, LateRows, NoEnvelope, OnForeignCommit, RowTimes, SinkSpec, TableName
from calve.model.table import Proposal, TableState

from .world import File, SparkCheckpoint, Violation, World


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
        while self._owner not in {None, getcurrent()}:
            self._schedule.reached("blocked")
        self._owner = getcurrent()
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

    # monitor
    def recorded(self, committable: Committable) -> None: ...
    def committed(self, receipt: Receipt, committable: Committable, seconds: float) -> None: ...
    def failed_attempt(self, error: BaseException) -> None: ...
    def stalled(self, cause: str) -> None: ...
    def running(self) -> None: ...
    def waiting(self, work: Waiting) -> None: ...
    def lag(self, current_ms: int | None, unread: int | None) -> None: ...
    def late(self, rows: int) -> None: ...
    def warned(self, what: str, error: BaseException) -> None: ...

    # state location
    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        self._world.state[name] = data

    def put_new(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        if self._world.state.setdefault(name, data) != data:
            raise Violation(f"{name} was written over")

    def read(self, name: str) -> bytes | None:
        return self._world.state.get(name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        data = self._world.state.get(name)
        return None if data is None else [data[at : at + length] for at, length in ranges]

    def list(self, prefix: str) -> list[str]:
        return sorted(n for n in self._world.state if n.startswith(f"{prefix}/"))

    def delete(self, name: str) -> None:
        if not self._world.settling and self._world.refusals.random() < self._world.setup.error / 3:
            raise TransientError(f"{name} could not be removed")
        self._world.state.pop(name, None)

    # table
    def load(self) -> TableState:
        faults.reached("load")
        return self._world.load()

    def commit(self, state: TableState, proposal: Proposal) -> Progress:
        faults.reached("commit.before")
        progress = self._world.commit(state, proposal)
        faults.reached("commit.after")
        return progress

    def missing_files(self, manifests: Sequence[Manifest]) -> tuple[str, ...]:
        return tuple(m.path for m in manifests if m.path not in self._world.files)

    def merge_manifests(self, state: TableState) -> bool:
        del state
        return False

    def remove_keys(self, keys: Sequence[Manifest]) -> None:
        for manifest in keys:
            self._world.files.pop(manifest.path, None)

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
        del commit_id, added
        return ResolvedDeletes((_manifest(self._world.resolve(state, [m.path for m in keys]), 0),))


def _manifest(name: str, rows: int) -> Manifest:
    return Manifest(name, 1, 0, Content.DATA, 1, rows, ())


class Driver:
    """One incarnation of the sink's process: boots, then runs a stream and a committer."""

    early_commit_log = False
    """Mutation: Spark's commit log is written before the record."""
    unfenced_upkeep = False
    """Mutation: a compaction does not check the fence."""

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
        self.stages = spec.stages
        self.positions = world.encodings.choice(world.setup.positions)
        self.kind = RowKind.of(spec)
        self.new_kind()
        self.closing = CooperativeLock(self.schedule)
        self.outside = outside
        self.run = SinkRun(
            spec,
            outside,
            Journal(outside),
            RunPorts(outside, outside, outside, outside, outside, outside),
            lambda _: world.setup.seekable,
        )
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
            self.threads = {"stream": greenlet(self.stream), "committer": greenlet(self.committer)}
            if self.world.upkeep:
                self.threads["upkeep"] = greenlet(self.upkeep)
        if self.run.state.frontier.sealed:
            self.alive, self.exit = False, "sealed"

    def leave(self, how: str, error: BaseException) -> None:
        self.alive, self.exit = False, how
        self.world.say(f"run {self.number} leaves ({how or 'crash'}): {error}".replace("\n", " "))

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
        for claim in (False, True):
            if claim:
                self.run.claims.claim()
            decision = self.run.checkpoints.decide(identity)
            if decision is not Decision.ACCEPT:
                return decision is Decision.REPLAY
        if self.early_commit_log:
            checkpoint.commits.add(batch)
        self.run.checkpoints.reads(identity, stamp, 0)
        self.run.checkpoints.await_room()
        if self.stages:
            if not self.run.checkpoints.stage(identity, self.staged(start, end), stamp):
                raise Violation("a row is late although the source kept its promise")
            return True
        while self.run.state.staged:
            self.close_due()
        rows = {key: value for key, value, _ in self.world.source[start:end] if key is not None}
        while not self.run.checkpoints.record(identity, self.written(rows), self.run.state.next_time(stamp)):
            continue
        return True

    def new_kind(self) -> None:
        """Change source, sink or table: rows staged from now on may have other columns."""
        self.kind = replace(self.kind, columns=str(self.world.kinds.randrange(self.world.setup.kinds)))

    def staged(self, start: int, end: int) -> Staged:
        if self.world.kinds.random() < 0.2:
            self.new_kind()
        return replace(self.put(start, end), kind=self.kind)

    def put(self, start: int, end: int) -> Staged:
        faults.reached("stage.before")
        records = self.world.source[start:end]
        rows = [record for record in records if record[0] is not None]
        names = (f"{self.run.checkpoints.stage_folder}/{self.world.new_id('part-')}",) if rows else ()
        for name in names:
            self.outside.put(name, json.dumps(rows).encode())
        faults.reached("stage.after")
        if not self.world.setup.own_times:
            return Staged(names, len(rows), 1)
        times = sorted({time for _, _, time in rows})
        promised = max((time for key, _, time in records if key is None), default=0)
        told = tuple(times) if self.world.setup.coalesce is False or len(times) % 2 else ()
        return Staged(names, len(rows), 1, promised, *((times[0], times[-1]) if times else (-1, -2)), told)

    def written(self, rows: dict[int, int | None]) -> CheckpointFiles:
        faults.reached("files.before")
        deletes = frozenset(rows) if self.run.state.needs_deletes else frozenset()
        name = self.world.new_id("file-")
        live = {k: v for k, v in rows.items() if v is not None}
        self.world.files[name] = File(live, frozenset() if self.positions else deletes)
        keys: tuple[Manifest, ...] = ()
        if self.positions and deletes:
            keys = (_manifest(self.world.new_id("keys-"), 0),)
            self.world.files[keys[0].path] = File({}, deletes)
        faults.reached("files.after")
        equality = 0 if self.positions else len(deletes)
        totals = FileTotals(changes=len(rows), data_files=1, data_rows=len(live), equality_deletes=equality)
        return CheckpointFiles(self.outside.new_id(), (_manifest(name, len(live)),), totals, keys)

    def close_due(self) -> bool:
        with self.closing:
            if self.run.batches.due() is None:
                return False
            self.run.claims.claim()
            batch = self.run.batches.due()
            if batch is None:
                return False
            entries = [e for e in self.run.state.staged if e.staged and e.staged.rows and e.reaches_into(batch)]
            if len({e.staged.kind for e in entries if e.staged and not e.timed}) > 1:
                raise Violation("rows of different kinds share a batch by the clock")
            names = [f for e in entries if e.staged for f in e.staged.files]
            rows = self.run.state.retry_checking_fence(lambda: self.merged(names, batch))
            self.run.batches.close(batch, self.written(rows))
            return True

    def merged(self, names: Sequence[str], batch: BatchDescription) -> dict[int, int | None]:
        records: list[tuple[int, int | None, int]] = []
        for name in names:
            data = self.outside.read(name)
            if data is None:
                raise CheckpointGap("a staged file is gone")
            records += json.loads(data)
        if self.world.setup.own_times:
            records = sorted((r for r in records if batch.holds(r[2])), key=lambda record: record[2])
        return {key: value for key, value, _ in records}

    def committer(self) -> None:
        while True:
            faults.reached("idle")
            if self.run.state.ready:
                if self.run.commits.commit_next() is None:
                    self.outside.pause(1.0)
                if self.run.state.frontier.sealed:
                    return
            elif not self.close_due():
                self.run.batches.record_heartbeat()

    def upkeep(self) -> None:
        """Compact the table: plan on one state, commit on a later one."""
        owner, rng = CompactionOwner(self.run.state.sink_id, lambda: self.run.state.fence.run_id), self.world.upkeeps
        while not self.run.state.frontier.sealed:
            faults.reached("idle")
            if not self.run.state.claimed or rng.random() < 0.7:
                continue
            try:
                plan = self.looked_at(owner)
                for _ in range(rng.choice([0, 2, 8])):
                    faults.reached("idle")  # files are rewritten
                now = self.looked_at(owner)
                if plan.uuid == now.uuid and plan.head in {s.snapshot_id for s in now.ancestors}:
                    faults.reached("maintain.before")
                    self.world.compact(now, self.run.state.fence)
                    faults.reached("maintain.after")
            except TransientError as error:
                self.world.say(f"run {self.number} upkeep: {error.primary}")

    def looked_at(self, owner: CompactionOwner) -> TableState:
        state = self.outside.load()
        if not self.unfenced_upkeep:
            owner.check(cast("Table", Shown(state)))
        return state


class Shown:
    """The part of a pyiceberg table that identifies its owner."""

    def __init__(self, state: TableState) -> None:
        stated = state.stated
        self.properties = {property_key(stated.sink_id): stated.to_property()} if stated else {}

    def name(self) -> tuple[str, ...]:
        return ("n", "t")


def world_current(world: Any) -> Driver | None:
    return getattr(world, "current", None)
