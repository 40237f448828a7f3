"""What one run of a sink remembers, shared by the parts of its life cycle, and how it repeats what failed.

Two threads use it: the feed's thread records checkpoints, the committer's thread commits batches. `memory` guards the
fields. `recording` makes assigning a time and writing its record one step, so entries are in the order of times and of
batches. `committing` allows one change of the table at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.attempt import Attempts
from calve.commit.backpressure import Lag
from calve.commit.journal import Journal
from calve.commit.ports import ExistingRows, Monitor, NoExistingRows, Resolver, Stopwatch, TableStore, Waiter, Waiting
from calve.commit.takeover import RunPosition, extend
from calve.commit.windows import Closing
from calve.errors import CheckpointGap, TransientError
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, Entry, Offsets
from calve.model.frontier import Frontier
from calve.model.progress import Fence
from calve.model.spec import OnForeignCommit, SinkSpec
from calve.retry import Backoff

T = TypeVar("T")

LONGEST_WAIT: Final = 10.0
"""Longest delay in seconds between two retries of something that blocks everything else."""

MERGE_EVERY: Final = 100
"""Commits between two checks of the number of manifests."""

SETTLE_SECONDS: Final = 0.05
"""Seconds between two checks whether recorded work is committed."""


@dataclass(frozen=True)
class RunPorts:
    """What a run depends on, besides its table and its records."""

    clock: Clock
    ids: IdSource
    monitor: Monitor
    waiter: Waiter
    resolver: Resolver
    existing: ExistingRows = field(default_factory=NoExistingRows)


class RunState:
    """The memory of one run."""

    def __init__(self, spec: SinkSpec, table: TableStore, journal: Journal, ports: RunPorts) -> None:
        self.spec = spec
        self.journal = journal
        self.timed = Stopwatch(ports.clock, ports.monitor)
        self.attempts = Attempts(spec, table, journal, ports.resolver, self.timed)
        self.clock, self.ids = ports.clock, ports.ids
        self.monitor, self.waiter = ports.monitor, ports.waiter
        self.windows = Closing(spec, self.clock)
        self.lag = Lag()
        self.recording = self.waiter.lock()
        self.committing = self.waiter.lock()
        self.memory = self.waiter.lock()  # guards the fields below
        self.claimed = False
        """True once the table carries this run's fence and the predecessor's records are taken over."""
        self.position = RunPosition()
        self.records: list[tuple[int, Entry]] = []
        """Entries of this run in the state location."""
        self.next_number = 1
        self.merge_turn = 0
        self.has_data = True
        self.table_seen = False
        self.committed_at = self.clock.monotonic()
        self.overlap: list[Entry] | None = None
        """For a sink that adopted rows: what was recorded and not committed when it first reached the source's end."""

    @property
    def fence(self) -> Fence:
        """Version, epoch and run id of this run."""
        return self.attempts.fence

    @property
    def sink_id(self) -> str:
        """The sink's UUID."""
        return self.spec.sink_id

    @property
    def end(self) -> Offsets:
        """Where reading continues."""
        with self.memory:
            return self.position.end

    @property
    def next_checkpoint(self) -> int:
        """Batch id after the last recorded one."""
        with self.memory:
            return self.position.checkpoint + 1

    @property
    def frontier(self) -> Frontier:
        """Committed frontier, as far as this run knows."""
        with self.memory:
            return self.position.frontier

    @property
    def pending(self) -> int:
        """Number of recorded items that are not committed: committables, and checkpoints without a batch yet."""
        with self.memory:
            return self.position.ready + len(self.position.staged)

    @property
    def ready(self) -> int:
        """Number of committables that wait to be committed."""
        with self.memory:
            return self.position.ready

    @property
    def pending_changes(self) -> list[int]:
        """The number of changes in each committable that waits to be committed."""
        with self.memory:
            return [e.committable.totals.changes for e in self.position.entries if e.committable]

    @property
    def staged(self) -> list[CheckpointEntry]:
        """Checkpoints that wait for their window to close, in order."""
        with self.memory:
            return list(self.position.staged)

    @property
    def sealed(self) -> bool:
        """True once the seal is recorded or committed: nothing more is accepted."""
        with self.memory:
            return self.position.minted.sealed

    @property
    def final(self) -> bool:
        """True once the input stated that it is complete."""
        with self.memory:
            return self.position.final

    @property
    def needs_deletes(self) -> bool:
        """False only while no live row can exist: table and pending work are empty, foreign rows not allowed."""
        with self.memory:
            if self.spec.append:
                return False
            if self._replacing:
                return self._has_pending_rows
            return self.has_data or self._has_pending_rows or self._open_to_others

    @property
    def _has_pending_rows(self) -> bool:
        return any(e.committable and e.committable.totals.data_rows for e in self.position.entries)

    @property
    def _open_to_others(self) -> bool:
        return self.spec.on_foreign_commit is OnForeignCommit.ACCEPT

    @property
    def occupied(self) -> bool:
        """Whether batches that were written for an empty table are unusable. Unknown before the claim."""
        return self.table_seen and not self.spec.append and (self.has_data or self._open_to_others)

    @property
    def starts_over(self) -> bool:
        """True until a new generation has its first record: the next checkpoint has to contain the whole source."""
        with self.memory:
            return self.position.generation < self.spec.generation

    @property
    def _replacing(self) -> bool:
        """True until the batch that replaces the table's contents is committed."""
        committed = self.position.committed
        return self.spec.generation > (committed.generation if committed else 0)

    @property
    def committed_offsets(self) -> Offsets:
        """Offsets of the last commit: nothing before them is read again.

        None until a new generation has its first commit: those of the one before may belong to another source.
        """
        with self.memory:
            committed = self.position.committed
            return committed.offsets if committed and not self._replacing else None

    @property
    def replayed_letters(self) -> str:
        """The last replay of dead letters that the table contains; empty if there is none."""
        with self.memory:
            return self.position.committed.letters if self.position.committed else ""

    @property
    def last_query_id(self) -> str:
        """Query id of the last recorded checkpoint, empty if there is none."""
        with self.memory:
            known, committed = self.position.known, self.position.committed
            return next(reversed(known)).query_id if known else committed.query_id if committed else ""

    @property
    def closed(self) -> int:
        """Rows with a smaller event time are late."""
        with self.memory:
            return self.position.closed

    def knows(self, identity: CheckpointIdentity) -> bool:
        """True if a checkpoint is already recorded."""
        with self.memory:
            return self.position.knows(identity)

    def next_time(self, now_ms: int) -> int:
        """Return the next time to assign: no time is assigned twice, or below a batch that was closed."""
        with self.memory:
            return max(now_ms, self.position.last_time + 1)

    def reset_idle(self) -> None:
        """Restart the idle timeout: the source has data, or cannot be polled now."""
        with self.memory:
            self.windows.reset_idle()

    def check_nothing_staged(self) -> None:
        if self.staged:
            raise RuntimeError("staged checkpoints have to be closed first")

    def append(self, entry: Entry) -> None:
        number = self.next_number

        def put() -> None:
            faults.reached("record.before")
            self.journal.append(self.fence, number, entry)
            faults.reached("record.after")

        with self.timed("record"):
            self.retry_until_stopped(put)
        with self.memory:
            self.next_number = number + 1
            self.records.append((number, entry))
            extend(self.position, entry)
        self.report_waiting()

    def report_waiting(self) -> None:
        with self.memory:
            position = self.position
            frontier = Frontier(self.windows.input(position))
            work = Waiting(
                self.ready,
                len(position.staged),
                frontier,
                position.minted,
                ready_bytes=position.ready_bytes,
                ready_changes=position.ready_changes,
                staged_bytes=position.held_bytes,
                staged_rows=position.staged_rows,
            )
        self.monitor.waiting(work)

    def retry_until_stopped(self, action: Callable[[], T]) -> T:
        """Retry on TransientError until the action succeeds or the run is stopped."""
        backoff, failed = Backoff(0.1, LONGEST_WAIT), False
        while True:
            try:
                found = action()
                if failed and not self.ready:
                    self.monitor.running()
                return found
            except TransientError as error:
                failed = True
                self.reset_idle()
                self.monitor.failed_attempt(error)
                self.monitor.stalled(str(error))
            self.waiter.pause(backoff.next() * self.ids.jitter())

    def retry_checking_fence(self, action: Callable[[], T]) -> T:
        """Like `retry_until_stopped`. Raises FencedError if a successor removed what is missing."""

        def checked() -> T:
            try:
                return action()
            except CheckpointGap:
                self.attempts.check_fence()
                raise

        return self.retry_until_stopped(checked)
