"""Interfaces to everything a run depends on: table, monitor, waiting. The simulation implements them too."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from calve.clock import Clock
from calve.model.checkpoint import Offsets
from calve.model.files import Committable, Manifest, ResolvedDeletes
from calve.model.frontier import Frontier
from calve.model.health import SourcePosition
from calve.model.progress import Progress, Receipt
from calve.model.table import Proposal, TableState


class TableStore(Protocol):
    """One Iceberg table, one attempt at a time."""

    def load(self) -> TableState:
        """Load the table from the catalog. Raises TransientError when that fails."""
        ...

    def commit(self, state: TableState, proposal: Proposal) -> Progress:
        """Add one snapshot on top of exactly `state`.

        Raises CommitConflict when it was certainly not applied, CommitUnknown when its outcome is unknown, and
        TransientError when nothing was sent. Returns the progress with snapshot id, sequence number and table UUID.
        """
        ...

    def missing_files(self, manifests: Sequence[Manifest]) -> tuple[str, ...]:
        """Return the manifests, and the files listed in them, that no longer exist."""
        ...

    def remove_keys(self, keys: Sequence[Manifest]) -> None:
        """Remove key files and their manifests; files that are already gone are ignored."""
        ...

    def discard_deletes(self, deletes: Sequence[Manifest], why: str) -> None:
        """Remove delete files that no snapshot refers to, and their manifests. Does not raise."""
        ...

    def discard_files(self, locations: Sequence[str], why: str) -> None:
        """Remove data files that no snapshot refers to, or manifests. Does not raise."""
        ...

    def merge_manifests(self, state: TableState) -> bool:
        """Merge small manifests with a `replace` snapshot on `state`; returns False if there is no need."""
        ...


class Resolver(Protocol):
    """Turns the keys of deleted rows into position deletes. May take long, and may run Spark jobs."""

    def resolve(
        self, state: TableState, keys: Sequence[Manifest], commit_id: str, added: Sequence[Manifest]
    ) -> ResolvedDeletes:
        """Write deletes of the live rows that have these keys in exactly `state`, ready to be committed.

        `added` are the rows that are committed with them. If rows have ids, those of updated rows are written again,
        with the ids that they keep. Raises TransientError, also if a file of `state` is missing, since the table may
        have changed.
        """
        ...


class ExistingRows(Protocol):
    """Rows that a table contains before its sink's first commit, and where the changes after them start."""

    def begin(self) -> Offsets:
        """Return where the sink starts reading; always the same offsets. Raises TransientError."""
        ...

    def check(self, state: TableState, snapshot_id: int) -> None:
        """Check that a sink can build on the rows of a snapshot: no key is null or duplicated.

        May take long. Raises TransientError, and KeyViolation or InvalidInput if the rows cannot be adopted.
        """
        ...


class NoExistingRows:
    """For sinks that adopt no rows."""

    def begin(self) -> Offsets:
        """Start at the beginning of the source."""
        return None

    def check(self, state: TableState, snapshot_id: int) -> None:
        """Fail: such a sink has no rows to check."""
        raise RuntimeError(f"rows of snapshot {snapshot_id} of table {state.uuid} cannot be checked")


@dataclass(frozen=True)
class Waiting:
    """Recorded work that is not committed yet, and the frontiers."""

    ready: int
    """Committables that wait to be committed."""
    staged: int
    """Checkpoints that wait for their window."""
    input: Frontier
    """The source is not expected to deliver smaller times."""
    minted: Frontier
    """Upper end of the last recorded batch."""
    ready_bytes: int = 0
    ready_changes: int = 0
    staged_bytes: int = 0
    staged_rows: int = 0


class Monitor(Protocol):
    """Observes a run. Its methods must not raise."""

    def recorded(self, committable: Committable) -> None:
        """A batch was recorded: its committable is durable."""
        ...

    def waiting(self, work: Waiting) -> None:
        """The amount of uncommitted work, or a frontier, may have changed."""
        ...

    def lag(self, current_ms: int | None, polled_ms: int | None, unread: int | None) -> None:
        """The table shows everything the source had at `current_ms`; at `polled_ms` this much was unread.

        None: unknown.
        """
        ...

    def source_read(self, position: SourcePosition) -> None:
        """The source was polled, or a checkpoint of it was recorded."""
        ...

    def phase(self, name: str, seconds: float) -> None:
        """The calling thread spent this time in a phase (`model.health.PHASES`) of the batch that it works on."""
        ...

    def late(self, rows: int) -> None:
        """Rows arrived with times below the closed frontier, and were dropped or moved up to it."""
        ...

    def committed(self, receipt: Receipt, committable: Committable, seconds: float) -> None:
        """A committable was committed."""
        ...

    def failed_attempt(self, error: BaseException) -> None:
        """An attempt to commit or claim failed and will be retried."""
        ...

    def stalled(self, cause: str) -> None:
        """The run waits for an external system."""
        ...

    def running(self) -> None:
        """The run is no longer stalled."""
        ...

    def warned(self, what: str, error: BaseException) -> None:
        """Something failed that is not urgent, such as a clean-up."""
        ...


@dataclass
class _Inside:
    """Seconds of phases within a phase."""

    seconds: float = 0.0


_AROUND: ContextVar[_Inside | None] = ContextVar("_AROUND", default=None)
"""The phase that this thread is in."""


@dataclass(frozen=True)
class Stopwatch:
    """Measures phases for a monitor. Implements `clock.Timer`."""

    clock: Clock
    monitor: Monitor

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Report the time spent in the block, without that of phases within it, also if it fails."""
        started, inside, around = self.clock.monotonic(), _Inside(), _AROUND.get()
        before = _AROUND.set(inside)
        try:
            yield
        finally:
            _AROUND.reset(before)
            seconds = self.clock.monotonic() - started
            if around is not None:
                around.seconds += seconds
            self.monitor.phase(phase, seconds - inside.seconds)


class TableMaintenance(Protocol):
    """Maintenance in the background, whose results are committed between two batches."""

    @property
    def busy(self) -> bool:
        """Whether maintenance is in progress, or ready to be committed."""
        ...

    def maintain(self) -> None:
        """Start due maintenance, or commit its result. Called between batches and while idle; takes a moment.

        Raises FencedError when another run owns the table, nothing else.
        """
        ...

    def close(self, *, failed: bool) -> None:
        """End maintenance after the last batch. It commits nothing if the run failed."""
        ...


class NoMaintenance:
    """For sinks that do not maintain their tables."""

    busy = False

    def maintain(self) -> None:
        """Do nothing."""

    def close(self, *, failed: bool) -> None:
        """Do nothing."""


class Waiter(Protocol):
    """Interruptible sleep, how to end that of other threads, and the locks that go with it."""

    def wake(self) -> None:
        """Announce new work."""
        ...

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped when a stop is requested meanwhile."""
        ...

    def lock(self) -> AbstractContextManager[Any]:
        """Create a reentrant lock."""
        ...


class RunSignals(Protocol):
    """How the threads of a run wake each other, and learn that they should stop."""

    @property
    def stopping(self) -> bool:
        """True once a stop was requested."""
        ...

    @property
    def calls(self) -> int:
        """Number of calls of `wake` so far: read it before looking for work."""
        ...

    def wake(self) -> None:
        """Announce new work."""
        ...

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped when a stop is requested meanwhile."""
        ...

    def await_call(self, after: int, seconds: float) -> None:
        """Wait until `calls` exceeds `after`, a stop is requested, or time runs out."""
        ...

    def await_last_call(self, after: int, seconds: float) -> None:
        """As `await_call`, after a stop was requested."""
        ...


class Stopped(Exception):
    """A stop was requested while the run waited."""
