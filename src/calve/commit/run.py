"""One run of one sink: its fence, its records, its pending work.

Two threads call it. The stream's thread asks `decide`, claims, and records checkpoints; the committer's thread
attempts the pending committables in order. Taking a time and putting its record is one critical section, so the order
of entries is the order of times and of batches. Nothing computed before the claim is used after it.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cache, partial
from itertools import takewhile
from typing import Final, TypeVar

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.attempt import Attempts
from calve.commit.backpressure import Lag, Room, room_for_more, stage_is_full
from calve.commit.journal import Journal, RunRecords
from calve.commit.ports import ExistingRows, Monitor, NoExistingRows, Resolver, TableStore, Waiter, Waiting
from calve.commit.takeover import KNOWN_KEPT, CanReread, RunPosition, adopt, anywhere, extend, is_staged
from calve.commit.waiting import check_waiting
from calve.commit.windows import Closing
from calve.errors import CheckpointGap, TransientError
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, Entry, FrontierEntry, Offsets, RowKind, Staged
from calve.model.files import Committable, FileTotals, Manifest
from calve.model.frontier import SEALED, BatchDescription, Frontier
from calve.model.progress import Fence, Progress, Receipt
from calve.model.spec import OnForeignCommit, SinkSpec
from calve.model.table import TableState

T = TypeVar("T")

ATTEMPTS: Final = 5
"""Attempts of one committable before its failure is absorbed."""

MERGE_EVERY: Final = 100
"""Commits between two looks at the number of manifests."""

SETTLE_SECONDS: Final = 0.05
"""Seconds between two looks at whether all that was recorded is committed."""

LONGEST_WAIT: Final = 10.0
"""Seconds between two tries of something that has to work before anything else can."""

FULL_SECONDS: Final = 10.0
"""Seconds that a stage stays full before the sink ends: somebody may ask for all that is there, or raise the limit."""


class Decision(Enum):
    """What to do with a checkpoint that Spark hands over."""

    ACCEPT = auto()
    """It starts where the records end."""
    REPLAY = auto()
    """It is recorded already: return, nothing to do."""
    REPOSITION = auto()
    """It starts elsewhere: the source has to go to `end` first."""
    SEALED = auto()
    """The sink is complete: nothing is taken any more."""


@dataclass(frozen=True)
class RunPorts:
    """What a run needs beside its table and its records."""

    clock: Clock
    ids: IdSource
    monitor: Monitor
    waiter: Waiter
    resolver: Resolver
    existing: ExistingRows = field(default_factory=NoExistingRows)


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint, complete in the store, under the commit id they were written for."""

    commit_id: str
    manifests: tuple[Manifest, ...]
    totals: FileTotals
    keys: tuple[Manifest, ...] = ()


class SinkRun:
    """State machine of one run. `can_reread` says whether the source can start at given offsets."""

    def __init__(
        self, spec: SinkSpec, table: TableStore, journal: Journal, outside: RunPorts, can_reread: CanReread
    ) -> None:
        self._spec = spec
        self._journal = journal
        self._attempts = Attempts(spec, table, journal, outside.resolver)
        self._clock, self._ids = outside.clock, outside.ids
        self._monitor, self._waiter = outside.monitor, outside.waiter
        self._existing = outside.existing
        self._can_reread = can_reread
        self._memory = self._waiter.lock()  # guards what follows
        self._claiming = self._waiter.lock()  # one claim at a time
        self._recording = self._waiter.lock()  # taking a time and putting its record
        self._committing = self._waiter.lock()  # one change of the table at a time
        self._claimed = False
        self._position = RunPosition()
        self._records: list[tuple[int, Entry]] = []  # own entries that exist in the state location
        self._next_number = 1
        self._has_predecessors = True
        """As far as this run knows, records and stages of older runs exist."""
        self._merge_turn = 0
        self._has_data = True
        self._table_seen = False
        self._closing = Closing(spec, self._clock)
        self._catching_up = 0
        self._lag = Lag()
        self._committed_at = self._clock.monotonic()
        self._overlap: list[Entry] | None = None
        """What was recorded and not committed when the source had nothing more, of a sink that took over rows."""

    # ---- what others look at

    @property
    def fence(self) -> Fence:
        """Version, epoch and run id of this run."""
        return self._attempts.fence

    @property
    def sink_id(self) -> str:
        """The sink's uuid."""
        return self._spec.sink_id

    @property
    def claimed(self) -> bool:
        """True once the table carries this run's fence and the predecessor's records are taken over."""
        return self._claimed

    @property
    def end(self) -> Offsets:
        """Where reading goes on."""
        with self._memory:
            return self._position.end

    @property
    def next_checkpoint(self) -> int:
        """Batch id after the last recorded one."""
        with self._memory:
            return self._position.checkpoint + 1

    @property
    def frontier(self) -> Frontier:
        """Committed frontier as this run knows it."""
        with self._memory:
            return self._position.frontier

    @property
    def pending(self) -> int:
        """What is recorded and not in the table: committables, and checkpoints that none of them holds yet."""
        with self._memory:
            return self.ready + len(self._position.staged)

    @property
    def ready(self) -> int:
        """Committables that wait to be committed."""
        with self._memory:
            return self._position.ready

    @property
    def staged(self) -> list[CheckpointEntry]:
        """Checkpoints that wait for their window to close, in order."""
        with self._memory:
            return list(self._position.staged)

    @property
    def sealed(self) -> bool:
        """True when the seal is recorded or committed: nothing more is accepted."""
        with self._memory:
            return self._position.minted.sealed

    @property
    def needs_deletes(self) -> bool:
        """False only while no live row can exist: nothing in the table, nothing pending, no foreign rows allowed."""
        with self._memory:
            if self._spec.append:
                return False
            pending_rows = any(e.committable and e.committable.totals.data_rows for e in self._position.entries)
            if self._replacing:
                return pending_rows
            return self._has_data or pending_rows or self._open_to_others

    @property
    def _open_to_others(self) -> bool:
        return self._spec.on_foreign_commit is OnForeignCommit.ACCEPT

    @property
    def _occupied(self) -> bool:
        """Whether batches that were written for an empty table come too late. Not known before the claim."""
        return self._table_seen and not self._spec.append and (self._has_data or self._open_to_others)

    @property
    def starts_over(self) -> bool:
        """True while nothing of a new generation is recorded: the next checkpoint is to hold all of the source."""
        with self._memory:
            return self._position.generation < self._spec.generation

    @property
    def _replacing(self) -> bool:
        """True until the batch that replaces the table's contents is in the table."""
        committed = self._position.committed
        return self._spec.generation > (committed.generation if committed else 0)

    @property
    def committed_offsets(self) -> Offsets:
        """Offsets of the last commit: what lies before them is not read again."""
        with self._memory:
            return self._position.committed.offsets if self._position.committed else None

    @property
    def last_query_id(self) -> str:
        """Query id of the last recorded checkpoint, empty when there is none."""
        with self._memory:
            known, committed = self._position.known, self._position.committed
            return next(reversed(known)).query_id if known else committed.query_id if committed else ""

    def knows(self, identity: CheckpointIdentity) -> bool:
        """True when a checkpoint is recorded already."""
        with self._memory:
            return self._position.knows(identity)

    # ---- start

    def boot(self) -> None:
        """Look at the table and the records, and take an epoch. Nothing that counts is written before the claim."""
        state, progress = self._attempts.observe()
        if progress and progress.fence.version > self._spec.version:
            raise self._attempts.fenced_by(progress)
        epoch = 1 + max(progress.fence.epoch if progress else 0, self._journal.newest_epoch())
        self._attempts.fence = Fence(self._spec.version, epoch, self._ids.new_id())
        if progress and progress.is_sealed(self._spec.generation):
            self._stand_on(progress)
            return
        self._journal.take_epoch(self.fence)
        self._journal.remember_uuid(state.uuid)
        self._view(progress)

    def look_again(self) -> None:
        """Before the claim the predecessor may have gone on; later this notices a rollback or a lost fence."""
        with self._committing:
            _, progress = self._attempts.observe()
        if not self._claimed:
            self._view(progress)
        elif progress and progress.fence.run_id != self.fence.run_id:
            raise self._attempts.fenced_by(progress)

    def _view(self, progress: Progress | None) -> None:
        records = self._journal.predecessor(self.fence.epoch)
        position = self._adopted(progress, records, anywhere)
        with self._memory:
            if not self._claimed:
                self._stand_at(position)

    def _stand_at(self, position: RunPosition) -> None:
        if position.end != self._position.end:
            self._closing.disturbed()  # what the source said to another question does not count
        self._position = position

    def _adopted(self, progress: Progress | None, records: RunRecords | None, can_reread: CanReread) -> RunPosition:
        spec = self._spec
        own_times = spec.times is not None
        missing = partial(self._missing, cache(self._journal.staged))
        found = adopt(
            progress,
            records,
            missing,
            can_reread,
            generation=spec.generation,
            own_times=own_times,
            occupied=self._occupied,
        )
        check_waiting(found.staged, RowKind.of(spec), spec.name)
        return found

    def _missing(self, there: Callable[[], AbstractSet[str]], entry: Entry) -> tuple[str, ...]:
        """Files of an entry that no longer exist; `there` lists the staged ones, once for all entries."""
        if entry.committable:
            return self._attempts.missing(entry.committable)
        staged = entry.staged if isinstance(entry, CheckpointEntry) else None
        return tuple(name for name in staged.files if name not in there()) if staged else ()

    def _stand_on(self, progress: Progress) -> None:
        with self._memory:
            self._position = self._adopted(progress, None, anywhere)

    # ---- the claim

    def claim(self) -> None:
        """Make this run the only one that may commit, and take over the records. Waits for the catalog."""
        with self._claiming:
            if self._claimed:
                return
            progress = self.retry_until_stopped(self._claim_table)
            if progress.is_sealed(self._spec.generation):
                self._stand_on(progress)
                return
            position = self.retry_checking_fence(lambda: self._take_over(progress))
            if progress.adopting is not None and progress.generation >= self._spec.generation:
                position.committed = self._check_existing(progress)
            with self._memory:
                self._stand_at(position)
                self._claimed = True
            self._monitor.running()

    def _claim_table(self) -> Progress:
        fresh = self._spec.adopts and self._position.committed is None
        begin = self._existing.begin() if fresh else None  # before the table is loaded: what comes later is read
        faults.reached("claim.before")
        state, progress = self._attempts.claim(begin)
        self._table_seen = True
        self._has_data = state.has_data or progress.adopting is not None or progress.adopted is not None
        self._merge_turn = progress.sequence_number // MERGE_EVERY
        return progress

    def _check_existing(self, claim: Progress) -> Progress:
        """Look at the rows that the claim took over; batches wait for that. A failure leaves it to the next start."""
        faults.reached("rows.before")
        self.retry_until_stopped(lambda: self._existing.check(self._attempts.held(), claim.snapshot_id))
        faults.reached("rows.after")
        return self.retry_until_stopped(self._attempts.record_adopted)

    def adopt_rows(self) -> None:
        """A sink that takes over the rows of its table does so before it reads anything."""
        committed = self._position.committed
        if self._spec.adopts if committed is None else committed.adopting is not None:
            self.claim()

    def _take_over(self, progress: Progress) -> RunPosition:
        records = self._journal.predecessor(self.fence.epoch)
        position = self._adopted(progress, records, self._can_reread)
        if progress.ahead and not position.reaches(progress.ahead):
            raise CheckpointGap(
                "checkpoints that are partly committed are no longer in the state location",
                detail=f"Their rows below {progress.frontier} are in the table, the others were staged there.",
                hint="Restore the state location, or fill the table anew: WITH (SNAPSHOT = true).",
            )
        faults.reached("adopt.before")
        self._journal.adopt(self.fence, position.to_adoption())
        faults.reached("adopt.after")
        return position

    def retry_until_stopped(self, action: Callable[[], T]) -> T:
        """Repeat what must work before anything else can, until it does or the run is stopped."""
        delay, failed = 0.1, False
        while True:
            try:
                found = action()
                if failed and not self.ready:
                    self._monitor.running()
                return found
            except TransientError as error:
                failed = True
                self.disturbed()
                self._monitor.failed_attempt(error)
                self._monitor.stalled(str(error))
            self._waiter.pause(delay * self._ids.jitter())
            delay = min(delay * 2, LONGEST_WAIT)

    def retry_checking_fence(self, action: Callable[[], T]) -> T:
        """As `patiently`; where something is missing, a successor may have removed it: then this run is fenced."""

        def checked() -> T:
            try:
                return action()
            except CheckpointGap:
                self._attempts.check_fence()
                raise

        return self.retry_until_stopped(checked)

    def between_batches(self, change: Callable[[TableState], None]) -> None:
        """Change the table itself: between two commits, once no batch is ready, and under this run's fence."""
        while not self._changed(change):
            self._waiter.pause(SETTLE_SECONDS)

    def _changed(self, change: Callable[[TableState], None]) -> bool:
        with self._committing:
            if not self.ready:
                self.retry_until_stopped(lambda: change(self._attempts.held()))
                return True
        return False

    # ---- checkpoints

    def decide(self, identity: CheckpointIdentity) -> Decision:
        """Whether a checkpoint is new, a replay, or not where the records end."""
        with self._memory:
            if self._position.knows(identity):
                return Decision.REPLAY
            if self._position.minted.sealed or self._position.final:
                return Decision.SEALED
            return Decision.ACCEPT if identity.start == self._position.end else Decision.REPOSITION

    def next_time(self, now_ms: int) -> int:
        """No time is given twice, nor one below a batch that was closed."""
        with self._memory:
            return max(now_ms, self._position.last_time + 1)

    def record(self, identity: CheckpointIdentity, written: CheckpointFiles, time: int, *, final: bool = False) -> bool:
        """Make a checkpoint durable: close its batch, put the record. `final` seals the sink.

        What is staged has to be closed before. False when its time is behind what was closed meanwhile.
        """
        with self._recording:
            self._check_nothing_staged()
            if time < self.next_time(time):
                return False
            committable = Committable(
                commit_id=written.commit_id,
                batch=BatchDescription(self._position.minted, SEALED if final else Frontier(time + 1)),
                query_id=identity.query_id,
                checkpoint=identity.batch_id,
                offsets=identity.end,
                manifests=written.manifests,
                totals=written.totals,
                generation=self._spec.generation,
                keys=written.keys,
            )
            self._append(CheckpointEntry(identity, time, committable))
        self._monitor.recorded(committable)
        return True

    @property
    def stage_folder(self) -> str:
        """Where this run stages, in the state location."""
        return self._journal.staging(self.fence)

    @property
    def closed(self) -> int:
        """Rows with a smaller time of their own are late."""
        with self._memory:
            return self._position.closed

    def stage(self, identity: CheckpointIdentity, staged: Staged, batch_ms: int) -> bool:
        """Make a checkpoint durable whose changes wait in the state location for their window.

        False when rows of it became late meanwhile: it has to be staged again.
        """
        with self._recording:
            if staged.frontier is None:
                entry = CheckpointEntry(identity, self.next_time(batch_ms), None, staged, self._spec.generation)
            elif staged.rows and staged.low < self.closed:
                self._journal.unstage([staged])
                return False
            else:
                told = replace(staged, frontier=max(staged.frontier, self._position.input))
                entry = CheckpointEntry(identity, staged.high, None, told, self._spec.generation)
            self._append(entry)
            self.disturbed()
        if staged.late:
            self._monitor.late(staged.late)
        return True

    def flush(self, *, seal: bool = False) -> None:
        """Close what is staged without waiting for its window: the source has nothing more for now, or (seal) ever."""
        self._closing.flush(seal=seal)

    def reading_failed(self) -> None:
        """Nothing more is read: what a sink by the clock has staged is closed without waiting for its window."""
        if self._spec.times is None:
            self.flush()

    @property
    def committable(self) -> bool:
        """Whether something can be committed, or closed, without reading more."""
        with self._memory:
            return self.ready > 0 or self._closing.next_batch(self._position) is not None

    @property
    def final(self) -> bool:
        """True when the input said that nothing follows."""
        with self._memory:
            return self._position.final

    def due(self) -> BatchDescription | None:
        """The batch that is to be closed now, if one is. From now on no checkpoint gets a time below its end."""
        with self._recording, self._memory:
            batch = self._closing.next_batch(self._position)
            if batch and batch.upper.time is not None:
                self._position.last_time = max(self._position.last_time, batch.upper.time - 1)
            self._closing.flushed(self._position)
            return batch

    def until_due(self) -> float | None:
        """Seconds until a batch may be due; None when that is not a matter of time."""
        with self._memory:
            return self._closing.until_due(self._position)

    def await_room(self) -> None:
        """Wait until more of the source may be read. Raises TerminalError where waiting does not help."""
        full_since: float | None = None
        while (room := self._room()) is not Room.FREE:
            self.disturbed()
            now = self._clock.monotonic()
            full_since = None if room is Room.WAIT else now if full_since is None else full_since
            if full_since is not None and now - full_since >= FULL_SECONDS:
                with self._memory:
                    raise stage_is_full(self._spec, self._position)
            self._waiter.pause(SETTLE_SECONDS)

    def _room(self) -> Room:
        with self._memory:
            due, catching_up = self._closing.next_batch, self._catching_up > 0
            return room_for_more(self._spec, self._position, due, catching_up=catching_up)

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """Somebody waits for all that the source has now: limits of what is staged wait until that is closed."""
        with self._memory:
            self._catching_up += 1
        try:
            yield
        finally:
            with self._memory:
                self._catching_up -= 1

    def reads(self, identity: CheckpointIdentity, asked_ms: int, unread: int) -> None:
        """A checkpoint is about to be read; `unread` of what the source had then is left behind."""
        with self._memory:
            self._closing.disturbed()
            self._lag.read(identity.end, asked_ms, unread)
        self._monitor.lag(self._lag.current_ms, self._lag.unread)

    def found_nothing(self, end: Offsets, asked_ms: int) -> None:
        """The source was asked at that time for what follows `end`, and had nothing.

        That counts only where the records end: a claim may have moved that, since others read other checkpoints.
        """
        with self._memory:
            if end != self._position.end:
                return
            self._closing.found_nothing(asked_ms)
            self._lag.found_nothing(asked_ms, pending=bool(self.pending))
        self._monitor.lag(self._lag.current_ms, self._lag.unread)

    def disturbed(self) -> None:
        """The source has something, or cannot be asked now: it is not idle."""
        with self._memory:
            self._closing.disturbed()

    def close(self, batch: BatchDescription, written: CheckpointFiles) -> None:
        """Record the files that were made of everything staged for a batch.

        The offsets are those of the last checkpoint before which none has rows that are not in the table then.
        """
        with self._recording:
            position = self._position
            whole, committed = position.whole_below(batch.upper), position.committed
            last = whole[-1].identity if whole else None
            committable = Committable(
                commit_id=written.commit_id,
                batch=batch,
                query_id=last.query_id if last else committed.query_id if committed else "",
                checkpoint=last.batch_id if last else committed.checkpoint if committed else -1,
                offsets=last.end if last else committed.offsets if committed else None,
                manifests=written.manifests,
                totals=written.totals,
                generation=self._spec.generation,
                keys=written.keys,
                ahead=position.ahead_of(batch.upper),
            )
            time = position.last_time if batch.upper.time is None else batch.upper.time - 1
            self._append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)

    def beat(self) -> bool:
        """Show that time went on: an empty snapshot, when nothing was committed for long; False when none is due."""
        if self.until_beat > 0 or not self._may_beat(self._beat_time):
            return False
        return self._record_beat()

    def _record_beat(self) -> bool:
        self.claim()
        with self._recording:
            time = self._beat_time
            if not self._may_beat(time):
                return False
            committable = self._without_rows(Frontier(time + 1))
            self._append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)
        return True

    def read_through(self) -> None:
        """The source had nothing more: a sink that took over rows has read what they may contain already."""
        with self._memory:
            committed = self._position.committed
            if committed is None or not committed.catching_up:
                return
            if self._overlap is None:
                self._overlap = list(self._position.entries)
        if self._may_beat(self._beat_time):
            self._record_beat()

    def _overlaps(self, committable: Committable) -> bool:
        """Whether changes that the table may contain already are still to come after this batch."""
        with self._memory:
            if self._overlap is None or committable.batch.upper.sealed:
                return not committable.batch.upper.sealed
            done = {id(e) for e in self._position.whole_below(committable.batch.upper)}
            left = [e for e in self._position.entries if id(e) not in done and e.committable is not committable]
            return any(entry in self._overlap for entry in left)

    @property
    def until_beat(self) -> float:
        """Seconds until an idle sink shows that time went on."""
        return self._spec.heartbeat_ms / 1000 - (self._clock.monotonic() - self._committed_at)

    @property
    def _beat_time(self) -> int:
        return (
            self.next_time(self._clock.now_ms())
            if self._spec.times is None
            else self._closing.input(self._position) - 1
        )

    def _may_beat(self, time: int) -> bool:
        return not self.pending and self._position.minted < Frontier(time + 1)

    def seal(self) -> None:
        """The input is complete and everything of it is recorded: the next frontier is []."""
        self.claim()
        with self._recording:
            if self._position.minted.sealed:
                return
            committable = self._without_rows(SEALED)
            self._append(FrontierEntry(self._position.last_time, committable))
        self._monitor.recorded(committable)

    def empty_table(self, now_ms: int) -> None:
        """A new generation begins with a source that holds nothing: so shall the table."""
        self.claim()
        with self._recording:
            if not self.starts_over or self._position.minted.sealed:
                return
            time = self.next_time(now_ms)
            committable = self._without_rows(Frontier(time + 1))
            self._append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)

    def _without_rows(self, upper: Frontier) -> Committable:
        self._check_nothing_staged()
        position = self._position
        return Committable(
            commit_id=self._ids.new_id(),
            batch=BatchDescription(position.minted, upper),
            query_id=self.last_query_id,
            checkpoint=position.checkpoint,
            offsets=position.end,
            generation=self._spec.generation,
        )

    def _check_nothing_staged(self) -> None:
        if self.staged:
            raise RuntimeError("what is staged has to be closed first")

    def _append(self, entry: Entry) -> None:
        number = self._next_number

        def put() -> None:
            faults.reached("record.before")
            self._journal.append(self.fence, number, entry)
            faults.reached("record.after")

        self.retry_until_stopped(put)
        with self._memory:
            self._next_number = number + 1
            self._records.append((number, entry))
            extend(self._position, entry)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        with self._memory:
            position = self._position
            frontier = Frontier(self._closing.input(position))
            work = Waiting(self.ready, len(position.staged), frontier, position.minted)
        self._monitor.waiting(work)

    # ---- commits

    def commit_next(self) -> Receipt | None:
        """Bring the oldest pending committable into the table; None when five attempts failed: still pending."""
        if not self.pending:
            return None
        self.claim()
        committable = self._oldest()  # after the claim: what was seen before it does not count
        if committable is None:
            return None
        with self._committing:
            return self._commit(committable)

    def _commit(self, committable: Committable) -> Receipt | None:
        delay = 0.05
        for attempt in range(1, ATTEMPTS + 1):
            started = self._clock.monotonic()
            try:
                landed = self._attempts.commit(committable, catching_up=self._overlaps(committable))
            except TransientError as error:
                self._monitor.failed_attempt(error)
                if attempt == ATTEMPTS:
                    self.disturbed()
                    self._monitor.stalled(str(error))
                    return None
                self._waiter.pause(delay * self._ids.jitter())
                delay = min(delay * 2, 2.0)
            else:
                return self._acknowledge(landed, committable, self._clock.monotonic() - started)
        return None

    def _oldest(self) -> Committable | None:
        with self._memory:
            return next((e.committable for e in self._position.entries if e.committable), None)

    def _acknowledge(self, landed: Progress, committable: Committable, seconds: float) -> Receipt:
        """The only place where progress moves: the table has the committable."""
        receipt = Receipt(
            committable.commit_id,
            committable.batch.upper,
            committable.offsets,
            landed.snapshot_id,
            landed.sequence_number,
        )
        faults.reached("receipt.before")
        with self._memory:
            self._position.committed = landed.with_offsets(committable.offsets)
            self._position.frontier = receipt.frontier
            consumed = self._position.drop_committed(committable)
            self._lag.committed(committable.offsets)
            self._has_data = self._has_data or committable.totals.data_rows > 0
            self._committed_at = self._clock.monotonic()
        self._monitor.running()
        self._monitor.lag(self._lag.current_ms, self._lag.unread)
        self._monitor.committed(receipt, self._attempts.counted(committable), seconds)
        self._tell_waiting()
        try:
            self._journal.unstage(entry.staged for entry in consumed if entry.staged)
            self._tidy(receipt)
        except TransientError as error:
            self._monitor.warned("clean-up after a commit", error)
        self._remove_keys(committable)
        faults.reached("receipt.after")
        return receipt

    def _remove_keys(self, committable: Committable) -> None:
        with self._memory:
            spent, self._position.spent = [*self._position.spent, committable], []
        try:
            for one in spent:
                self._attempts.remove_keys(one)
        except TransientError as error:
            self._monitor.warned("removal of keys after a commit", error)

    def _tidy(self, receipt: Receipt) -> None:
        """Drop records nothing needs any more, and keep the manifest list short. All of it can fail and wait."""
        with self._memory:
            waiting = {id(e) for e in self._position.entries}
            waiting_entries = [e for e in self._position.entries if is_staged(e)]
            done = [n for n, _ in takewhile(lambda record: id(record[1]) not in waiting, self._records)]
            old = done[:-KNOWN_KEPT]
            keep = KNOWN_KEPT + len(self._position.entries)
            self._position.known = dict.fromkeys(list(self._position.known)[-keep:])
        self._journal.forget(self.fence, old)
        with self._memory:  # not before: one that stays has to go before later ones, or there would be a hole
            del self._records[: len(old)]
        if self._has_predecessors:
            self._journal.forget_predecessors(self.fence)
            self._journal.forget_stages(self.fence, [e.staged for e in waiting_entries if e.staged])
            self._has_predecessors = False
        turn = receipt.sequence_number // MERGE_EVERY
        if turn > self._merge_turn:
            self._merge_turn = turn
            self._attempts.merge_manifests()
