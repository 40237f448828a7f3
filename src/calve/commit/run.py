"""One run of one sink: its fence, its records, its pending work.

Two threads call it. The feed's thread calls `decide`, claims the table, and records checkpoints; the committer's thread
commits the pending committables in order. Assigning a time and writing its record is one critical section, so entries
are in the order of times and of batches. Nothing computed before the claim is used after it.
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
from calve.commit.backpressure import Lag, Room, room_for_more, stage_full_error
from calve.commit.journal import Journal, RunRecords
from calve.commit.ports import ExistingRows, Monitor, NoExistingRows, Resolver, TableStore, Waiter, Waiting
from calve.commit.takeover import KNOWN_KEPT, CanReread, RunPosition, adopt, can_reread_anywhere, extend, is_staged
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
"""Attempts to commit one committable before the committer backs off; it stays pending."""

MERGE_EVERY: Final = 100
"""Commits between two checks of the number of manifests."""

SETTLE_SECONDS: Final = 0.05
"""Seconds between two checks whether recorded work is committed."""

LONGEST_WAIT: Final = 10.0
"""Longest delay in seconds between two retries of something that blocks everything else."""

FULL_SECONDS: Final = 10.0
"""Seconds that a stage stays full before the sink ends: a caller may ask to catch up meanwhile."""


class Decision(Enum):
    """What to do with a checkpoint that Spark hands over."""

    ACCEPT = auto()
    """It starts where the records end."""
    REPLAY = auto()
    """It is already recorded: nothing to do."""
    REPOSITION = auto()
    """It starts elsewhere: the source has to seek to `end` first."""
    SEALED = auto()
    """The sink is complete and accepts nothing more."""


@dataclass(frozen=True)
class RunPorts:
    """What a run depends on, besides its table and its records."""

    clock: Clock
    ids: IdSource
    monitor: Monitor
    waiter: Waiter
    resolver: Resolver
    existing: ExistingRows = field(default_factory=NoExistingRows)


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a batch, completely written, and the commit id they were written for."""

    commit_id: str
    manifests: tuple[Manifest, ...]
    totals: FileTotals
    keys: tuple[Manifest, ...] = ()


class SinkRun:
    """State machine of one run. `can_reread` returns whether the source can start at given offsets."""

    def __init__(
        self, spec: SinkSpec, table: TableStore, journal: Journal, ports: RunPorts, can_reread: CanReread
    ) -> None:
        self._spec = spec
        self._journal = journal
        self._attempts = Attempts(spec, table, journal, ports.resolver)
        self._clock, self._ids = ports.clock, ports.ids
        self._monitor, self._waiter = ports.monitor, ports.waiter
        self._existing = ports.existing
        self._can_reread = can_reread
        self._memory = self._waiter.lock()  # guards the fields below
        self._claiming = self._waiter.lock()  # one claim at a time
        self._recording = self._waiter.lock()  # assigning a time and writing its record
        self._committing = self._waiter.lock()  # one change of the table at a time
        self._claimed = False
        self._position = RunPosition()
        self._records: list[tuple[int, Entry]] = []  # entries of this run in the state location
        self._next_number = 1
        self._has_predecessors = True
        """Whether records or staged files of older runs may exist."""
        self._merge_turn = 0
        self._has_data = True
        self._table_seen = False
        self._closing = Closing(spec, self._clock)
        self._catching_up = 0
        self._lag = Lag()
        self._committed_at = self._clock.monotonic()
        self._overlap: list[Entry] | None = None
        """For a sink that adopted rows: what was recorded and not committed when it first reached the source's end."""

    # ---- state that others read

    @property
    def fence(self) -> Fence:
        """Version, epoch and run id of this run."""
        return self._attempts.fence

    @property
    def sink_id(self) -> str:
        """The sink's UUID."""
        return self._spec.sink_id

    @property
    def claimed(self) -> bool:
        """True once the table carries this run's fence and the predecessor's records are taken over."""
        return self._claimed

    @property
    def end(self) -> Offsets:
        """Where reading continues."""
        with self._memory:
            return self._position.end

    @property
    def next_checkpoint(self) -> int:
        """Batch id after the last recorded one."""
        with self._memory:
            return self._position.checkpoint + 1

    @property
    def frontier(self) -> Frontier:
        """Committed frontier, as far as this run knows."""
        with self._memory:
            return self._position.frontier

    @property
    def pending(self) -> int:
        """Number of recorded items that are not committed: committables, and checkpoints without a batch yet."""
        with self._memory:
            return self.ready + len(self._position.staged)

    @property
    def ready(self) -> int:
        """Number of committables that wait to be committed."""
        with self._memory:
            return self._position.ready

    @property
    def staged(self) -> list[CheckpointEntry]:
        """Checkpoints that wait for their window to close, in order."""
        with self._memory:
            return list(self._position.staged)

    @property
    def sealed(self) -> bool:
        """True once the seal is recorded or committed: nothing more is accepted."""
        with self._memory:
            return self._position.minted.sealed

    @property
    def needs_deletes(self) -> bool:
        """False only while no live row can exist: table and pending work are empty, foreign rows not allowed."""
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
        """Whether batches that were written for an empty table are unusable. Unknown before the claim."""
        return self._table_seen and not self._spec.append and (self._has_data or self._open_to_others)

    @property
    def starts_over(self) -> bool:
        """True until a new generation has its first record: the next checkpoint has to contain the whole source."""
        with self._memory:
            return self._position.generation < self._spec.generation

    @property
    def _replacing(self) -> bool:
        """True until the batch that replaces the table's contents is committed."""
        committed = self._position.committed
        return self._spec.generation > (committed.generation if committed else 0)

    @property
    def committed_offsets(self) -> Offsets:
        """Offsets of the last commit: nothing before them is read again."""
        with self._memory:
            return self._position.committed.offsets if self._position.committed else None

    @property
    def last_query_id(self) -> str:
        """Query id of the last recorded checkpoint, empty if there is none."""
        with self._memory:
            known, committed = self._position.known, self._position.committed
            return next(reversed(known)).query_id if known else committed.query_id if committed else ""

    def knows(self, identity: CheckpointIdentity) -> bool:
        """True if a checkpoint is already recorded."""
        with self._memory:
            return self._position.knows(identity)

    # ---- start

    def boot(self) -> None:
        """Load the table and the records, and take an epoch. Nothing that matters is written before the claim."""
        state, progress = self._attempts.observe()
        if progress and progress.fence.version > self._spec.version:
            raise self._attempts.fenced_by(progress)
        epoch = 1 + max(progress.fence.epoch if progress else 0, self._journal.newest_epoch())
        self._attempts.fence = Fence(self._spec.version, epoch, self._ids.new_id())
        if progress and progress.is_sealed(self._spec.generation):
            self._resume_sealed(progress)
            return
        self._journal.take_epoch(self.fence)
        self._journal.remember_uuid(state.uuid)
        self._preview(progress)

    def recheck_table(self) -> None:
        """Load the table again: before the claim the predecessor may have continued.

        After the claim this detects a rollback or a lost fence.
        """
        with self._committing:
            _, progress = self._attempts.observe()
        if not self._claimed:
            self._preview(progress)
        elif progress and progress.fence.run_id != self.fence.run_id:
            raise self._attempts.fenced_by(progress)

    def _preview(self, progress: Progress | None) -> None:
        records = self._journal.predecessor(self.fence.epoch)
        position = self._adopt(progress, records, can_reread_anywhere)
        with self._memory:
            if not self._claimed:
                self._move_to(position)

    def _move_to(self, position: RunPosition) -> None:
        if position.end != self._position.end:
            self._closing.reset_idle()  # the source was polled for other offsets
        self._position = position

    def _adopt(self, progress: Progress | None, records: RunRecords | None, can_reread: CanReread) -> RunPosition:
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
        """Return the files of an entry that no longer exist; `there` lists all staged files and is cached."""
        if entry.committable:
            return self._attempts.missing(entry.committable)
        staged = entry.staged if isinstance(entry, CheckpointEntry) else None
        return tuple(name for name in staged.files if name not in there()) if staged else ()

    def _resume_sealed(self, progress: Progress) -> None:
        with self._memory:
            self._position = self._adopt(progress, None, can_reread_anywhere)

    # ---- the claim

    def claim(self) -> None:
        """Make this run the only one that may commit, and take over the records. Waits for the catalog if needed."""
        with self._claiming:
            if self._claimed:
                return
            progress = self.retry_until_stopped(self._claim_table)
            if progress.is_sealed(self._spec.generation):
                self._resume_sealed(progress)
                return
            position = self.retry_checking_fence(lambda: self._take_over(progress))
            if progress.adopting is not None and progress.generation >= self._spec.generation:
                position.committed = self._check_existing(progress)
            with self._memory:
                self._move_to(position)
                self._claimed = True
            self._monitor.running()

    def _claim_table(self) -> Progress:
        fresh = self._spec.adopts and self._position.committed is None
        begin = self._existing.begin() if fresh else None  # before the load, so that no later change is missed
        faults.reached("claim.before")
        state, progress = self._attempts.claim(begin)
        self._table_seen = True
        self._has_data = state.has_data or progress.adopting is not None or progress.adopted is not None
        self._merge_turn = progress.sequence_number // MERGE_EVERY
        return progress

    def _check_existing(self, claim: Progress) -> Progress:
        """Check the rows that the claim adopted; batches wait for it. After a failure the next start checks again."""
        faults.reached("rows.before")
        self.retry_until_stopped(lambda: self._existing.check(self._attempts.load_fenced(), claim.snapshot_id))
        faults.reached("rows.after")
        return self.retry_until_stopped(self._attempts.record_adopted)

    def adopt_rows(self) -> None:
        """Claim the table at once if the sink adopts its rows: that has to happen before it reads anything."""
        committed = self._position.committed
        if self._spec.adopts if committed is None else committed.adopting is not None:
            self.claim()

    def _take_over(self, progress: Progress) -> RunPosition:
        records = self._journal.predecessor(self.fence.epoch)
        position = self._adopt(progress, records, self._can_reread)
        if progress.ahead and not position.reaches(progress.ahead):
            raise CheckpointGap(
                "the state location no longer contains checkpoints that are partly committed",
                detail=f"Their rows below {progress.frontier} are in the table; the others were staged there.",
                hint="Restore the state location, or refill the table: WITH (SNAPSHOT = true).",
            )
        faults.reached("adopt.before")
        self._journal.adopt(self.fence, position.to_adoption())
        faults.reached("adopt.after")
        return position

    def retry_until_stopped(self, action: Callable[[], T]) -> T:
        """Retry on TransientError until the action succeeds or the run is stopped."""
        delay, failed = 0.1, False
        while True:
            try:
                found = action()
                if failed and not self.ready:
                    self._monitor.running()
                return found
            except TransientError as error:
                failed = True
                self.reset_idle()
                self._monitor.failed_attempt(error)
                self._monitor.stalled(str(error))
            self._waiter.pause(delay * self._ids.jitter())
            delay = min(delay * 2, LONGEST_WAIT)

    def retry_checking_fence(self, action: Callable[[], T]) -> T:
        """Like `retry_until_stopped`. Raises FencedError if a successor removed what is missing."""

        def checked() -> T:
            try:
                return action()
            except CheckpointGap:
                self._attempts.check_fence()
                raise

        return self.retry_until_stopped(checked)

    def between_batches(self, change: Callable[[TableState], None]) -> None:
        """Change the table's metadata between two commits, once no batch is ready, while this run holds the fence."""
        while not self._try_change(change):
            self._waiter.pause(SETTLE_SECONDS)

    def _try_change(self, change: Callable[[TableState], None]) -> bool:
        with self._committing:
            if not self.ready:
                self.retry_until_stopped(lambda: change(self._attempts.load_fenced()))
                return True
        return False

    # ---- checkpoints

    def decide(self, identity: CheckpointIdentity) -> Decision:
        """Decide whether a checkpoint is new, a replay, or does not start where the records end."""
        with self._memory:
            if self._position.knows(identity):
                return Decision.REPLAY
            if self._position.minted.sealed or self._position.final:
                return Decision.SEALED
            return Decision.ACCEPT if identity.start == self._position.end else Decision.REPOSITION

    def next_time(self, now_ms: int) -> int:
        """Return the next time to assign: no time is assigned twice, or below a batch that was closed."""
        with self._memory:
            return max(now_ms, self._position.last_time + 1)

    def record(self, identity: CheckpointIdentity, written: CheckpointFiles, time: int, *, final: bool = False) -> bool:
        """Make a checkpoint durable: close its batch and write the record. `final` seals the sink.

        Staged checkpoints have to be closed before. Returns False if its time was closed meanwhile.
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
        """Folder in the state location where this run stages changes."""
        return self._journal.stage_folder(self.fence)

    @property
    def closed(self) -> int:
        """Rows with a smaller event time are late."""
        with self._memory:
            return self._position.closed

    def stage(self, identity: CheckpointIdentity, staged: Staged, batch_ms: int) -> bool:
        """Make a checkpoint durable whose changes are staged in the state location until their window closes.

        Returns False if rows of it became late meanwhile: it has to be staged again.
        """
        with self._recording:
            if staged.frontier is None:
                entry = CheckpointEntry(identity, self.next_time(batch_ms), None, staged, self._spec.generation)
            elif staged.rows and staged.low < self.closed:
                self._journal.remove_staged([staged])
                return False
            else:
                advanced = replace(staged, frontier=max(staged.frontier, self._position.input))
                entry = CheckpointEntry(identity, staged.high, None, advanced, self._spec.generation)
            self._append(entry)
            self.reset_idle()
        if staged.late:
            self._monitor.late(staged.late)
        return True

    def flush(self, *, seal: bool = False) -> None:
        """Close what is staged without waiting for its window. `seal`: the source has ended."""
        self._closing.flush(seal=seal)

    def reading_failed(self) -> None:
        """Flush, since nothing more is read. Rows with event times stay staged until their times are complete."""
        if self._spec.times is None:
            self.flush()

    @property
    def committable(self) -> bool:
        """Whether something can be committed or closed without reading more."""
        with self._memory:
            return self.ready > 0 or self._closing.next_batch(self._position) is not None

    @property
    def final(self) -> bool:
        """True once the input stated that it is complete."""
        with self._memory:
            return self._position.final

    def due(self) -> BatchDescription | None:
        """Return the batch that is due, if there is one. From now on no checkpoint gets a time below its end."""
        with self._recording, self._memory:
            batch = self._closing.next_batch(self._position)
            if batch and batch.upper.time is not None:
                self._position.last_time = max(self._position.last_time, batch.upper.time - 1)
            self._closing.end_flush(self._position)
            return batch

    def until_due(self) -> float | None:
        """Return the seconds until a batch may become due; None if waiting alone does not make it due."""
        with self._memory:
            return self._closing.until_due(self._position)

    def await_room(self) -> None:
        """Wait until more input may be read. Raises TerminalError if waiting does not help."""
        full_since: float | None = None
        while (room := self._room()) is not Room.FREE:
            self.reset_idle()
            now = self._clock.monotonic()
            full_since = None if room is Room.WAIT else now if full_since is None else full_since
            if full_since is not None and now - full_since >= FULL_SECONDS:
                with self._memory:
                    raise stage_full_error(self._spec, self._position)
            self._waiter.pause(SETTLE_SECONDS)

    def _room(self) -> Room:
        with self._memory:
            due, catching_up = self._closing.next_batch, self._catching_up > 0
            return room_for_more(self._spec, self._position, due, catching_up=catching_up)

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """Suspend the limits on staged data while a caller waits for everything that the source has now."""
        with self._memory:
            self._catching_up += 1
        try:
            yield
        finally:
            with self._memory:
                self._catching_up -= 1

    def reads(self, identity: CheckpointIdentity, asked_ms: int, unread: int) -> None:
        """Note that a checkpoint is about to be read, which leaves `unread` of the source's data behind."""
        with self._memory:
            self._closing.reset_idle()
            self._lag.read(identity.end, asked_ms, unread)
        self._monitor.lag(self._lag.current_ms, self._lag.unread)

    def found_nothing(self, end: Offsets, asked_ms: int) -> None:
        """Note that the source was polled at that time for what follows `end`, and had nothing.

        Ignored unless the records still end there: a claim may have taken over other checkpoints.
        """
        with self._memory:
            if end != self._position.end:
                return
            self._closing.found_nothing(asked_ms)
            self._lag.found_nothing(asked_ms, pending=bool(self.pending))
        self._monitor.lag(self._lag.current_ms, self._lag.unread)

    def reset_idle(self) -> None:
        """Restart the idle timeout: the source has data, or cannot be polled now."""
        with self._memory:
            self._closing.reset_idle()

    def close(self, batch: BatchDescription, written: CheckpointFiles) -> None:
        """Record the files that were written from everything staged for a batch.

        Its offsets are those of the last checkpoint such that it, and all before it, have no rows above the batch.
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

    def record_heartbeat(self) -> bool:
        """Record an empty batch that advances the frontier, if nothing was committed for long; False if not due."""
        if self.until_heartbeat > 0 or not self._heartbeat_possible(self._heartbeat_time):
            return False
        return self._append_heartbeat()

    def _append_heartbeat(self) -> bool:
        self.claim()
        with self._recording:
            time = self._heartbeat_time
            if not self._heartbeat_possible(time):
                return False
            committable = self._without_rows(Frontier(time + 1))
            self._append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)
        return True

    def read_through(self) -> None:
        """Note that the source had nothing more: a sink that adopted rows has now read past what they may contain."""
        with self._memory:
            committed = self._position.committed
            if committed is None or not committed.catching_up:
                return
            if self._overlap is None:
                self._overlap = list(self._position.entries)
        if self._heartbeat_possible(self._heartbeat_time):
            self._append_heartbeat()

    def _overlaps(self, committable: Committable) -> bool:
        """Whether later batches may contain changes that the adopted rows already reflect."""
        with self._memory:
            if self._overlap is None or committable.batch.upper.sealed:
                return not committable.batch.upper.sealed
            done = {id(e) for e in self._position.whole_below(committable.batch.upper)}
            left = [e for e in self._position.entries if id(e) not in done and e.committable is not committable]
            return any(entry in self._overlap for entry in left)

    @property
    def until_heartbeat(self) -> float:
        """Seconds until an idle sink commits a heartbeat."""
        return self._spec.heartbeat_ms / 1000 - (self._clock.monotonic() - self._committed_at)

    @property
    def _heartbeat_time(self) -> int:
        return (
            self.next_time(self._clock.now_ms())
            if self._spec.times is None
            else self._closing.input(self._position) - 1
        )

    def _heartbeat_possible(self, time: int) -> bool:
        return not self.pending and self._position.minted < Frontier(time + 1)

    def seal(self) -> None:
        """Record the seal, since the input is complete and recorded: the next frontier is []."""
        self.claim()
        with self._recording:
            if self._position.minted.sealed:
                return
            committable = self._without_rows(SEALED)
            self._append(FrontierEntry(self._position.last_time, committable))
        self._monitor.recorded(committable)

    def empty_table(self, now_ms: int) -> None:
        """Record a batch that empties the table, since the source of a new generation is empty."""
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
            raise RuntimeError("staged checkpoints have to be closed first")

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
        self._report_waiting()

    def _report_waiting(self) -> None:
        with self._memory:
            position = self._position
            frontier = Frontier(self._closing.input(position))
            work = Waiting(self.ready, len(position.staged), frontier, position.minted)
        self._monitor.waiting(work)

    # ---- commits

    def commit_next(self) -> Receipt | None:
        """Commit the oldest pending committable; None if all attempts failed and it is still pending."""
        if not self.pending:
            return None
        self.claim()
        committable = self._oldest()  # after the claim: it may have replaced the position
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
                    self.reset_idle()
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
        """Advance progress, since the table contains the committable. Nothing else advances it."""
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
        self._monitor.committed(receipt, self._attempts.with_delete_totals(committable), seconds)
        self._report_waiting()
        try:
            self._journal.remove_staged(entry.staged for entry in consumed if entry.staged)
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
        """Remove records that are no longer needed, and merge manifests. A failure here is harmless."""
        with self._memory:
            waiting = {id(e) for e in self._position.entries}
            waiting_entries = [e for e in self._position.entries if is_staged(e)]
            done = [n for n, _ in takewhile(lambda record: id(record[1]) not in waiting, self._records)]
            old = done[:-KNOWN_KEPT]
            keep = KNOWN_KEPT + len(self._position.entries)
            self._position.known = dict.fromkeys(list(self._position.known)[-keep:])
        self._journal.forget(self.fence, old)
        with self._memory:  # only after removal: one that remains must go before later ones, or there would be a gap
            del self._records[: len(old)]
        if self._has_predecessors:
            self._journal.forget_predecessors(self.fence)
            self._journal.forget_stages(self.fence, [e.staged for e in waiting_entries if e.staged])
            self._has_predecessors = False
        turn = receipt.sequence_number // MERGE_EVERY
        if turn > self._merge_turn:
            self._merge_turn = turn
            self._attempts.merge_manifests()
