"""What a run needs of the outside: a table, a monitor, a way to wait. Real ones and simulated ones fit alike."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from calve.model.checkpoint import Offsets
from calve.model.files import Committable, Manifest, ResolvedDeletes
from calve.model.frontier import Frontier
from calve.model.progress import Progress, Receipt
from calve.model.table import Proposal, TableState


class TableStore(Protocol):
    """One Iceberg table, one attempt at a time."""

    def load(self) -> TableState:
        """The table as the catalog has it now. Raises TransientError when it cannot be loaded."""
        ...

    def commit(self, state: TableState, proposal: Proposal) -> Progress:
        """Add one snapshot on top of exactly `state`.

        Raises CommitConflict when it was certainly not applied, CommitUnknown when that is not known, and
        TransientError when nothing was sent. Returns the progress with snapshot id, sequence number and table uuid
        filled in.
        """
        ...

    def missing_files(self, manifests: Sequence[Manifest]) -> tuple[str, ...]:
        """Manifests, and files they name, that no longer exist."""
        ...

    def remove_keys(self, keys: Sequence[Manifest]) -> None:
        """Remove files of keys, and their manifests, that nobody needs any more; those that are gone are fine."""
        ...

    def merge_manifests(self, state: TableState) -> bool:
        """Rewrite many small manifests into few by a `replace` snapshot on `state`; False without need."""
        ...


class Resolver(Protocol):
    """Keys whose rows are to be deleted -> deletes by position. May take long, and may run Spark jobs."""

    def resolve(
        self, state: TableState, keys: Sequence[Manifest], commit_id: str, added: Sequence[Manifest]
    ) -> ResolvedDeletes:
        """Deletes of the live rows that have these keys in exactly `state`, written and ready to be committed.

        `added` are the rows that come with them. Raises TransientError, also where a file of `state` is gone, since the
        table may have moved on.
        """
        ...


class ExistingRows(Protocol):
    """Rows that are in a table before its sink's first commit, and the changes that follow them."""

    def begin(self) -> Offsets:
        """Where the sink begins to read, the same answer every time. Raises TransientError."""
        ...

    def check(self, state: TableState, snapshot_id: int) -> None:
        """Whether the rows of a snapshot can be the collection so far: no key is null, or there twice.

        May take long. Raises TransientError, and KeyViolation or InvalidInput when they cannot.
        """
        ...


class NoExistingRows:
    """For sinks that take over nothing."""

    def begin(self) -> Offsets:
        """At the beginning."""
        return None

    def check(self, state: TableState, snapshot_id: int) -> None:
        """Nobody is here to look at them."""
        raise RuntimeError(f"rows of snapshot {snapshot_id} of table {state.uuid} cannot be checked")


@dataclass(frozen=True)
class Waiting:
    """What is recorded and not in the table, and the frontiers that lead to it."""

    ready: int
    """Committables that wait to be committed."""
    staged: int
    """Checkpoints that wait for their window."""
    input: Frontier
    """No smaller time is expected from the source."""
    minted: Frontier
    """Up to here batches are recorded."""


class Monitor(Protocol):
    """Hears what happens. It must not raise."""

    def recorded(self, committable: Committable) -> None:
        """A checkpoint became durable."""
        ...

    def waiting(self, work: Waiting) -> None:
        """What waits, and how far time is."""
        ...

    def lag(self, current_ms: int | None, unread: int | None) -> None:
        """The table shows all that the source had at `current_ms`, and `unread` of it was not read; None: not known."""
        ...

    def late(self, rows: int) -> None:
        """Rows came behind the closed frontier and were dropped, or advanced to it."""
        ...

    def committed(self, receipt: Receipt, committable: Committable, seconds: float) -> None:
        """A committable is in the table."""
        ...

    def failed_attempt(self, error: BaseException) -> None:
        """An attempt to commit or claim failed and will be repeated."""
        ...

    def stalled(self, cause: str) -> None:
        """Work waits for something outside."""
        ...

    def running(self) -> None:
        """Nothing is in the way."""
        ...

    def warned(self, what: str, error: BaseException) -> None:
        """Something that can wait did not work."""
        ...


class Tending(Protocol):
    """Work on the table beside its batches, which is committed between two of them."""

    @property
    def busy(self) -> bool:
        """Whether there is such work."""
        ...

    def tend(self) -> None:
        """Called between two batches, and now and then while there are none. Takes a moment.

        Raises FencedError when another run owns the table, nothing else.
        """
        ...

    def close(self, *, failed: bool) -> None:
        """End it, once there will be no batch any more. A run that failed commits nothing here either."""
        ...


class NothingToTend:
    """For sinks that leave their tables to others."""

    busy = False

    def tend(self) -> None:
        """Nothing."""

    def close(self, *, failed: bool) -> None:
        """Nothing."""


class Waiter(Protocol):
    """Sleeping that a stop can end, and locks that fit to it."""

    def pause(self, seconds: float) -> None:
        """Wait; raises Stopped when the run is asked to stop meanwhile."""
        ...

    def lock(self) -> AbstractContextManager[Any]:
        """A new reentrant lock."""
        ...


class Stopped(Exception):
    """The run was asked to stop while it waited."""
