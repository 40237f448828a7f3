"""Removes the files of expired snapshots while a sink runs.

    committer: commit, expire, commit, ...  maintain ──► is a look due?      a moment
    a thread:                                       load ──► compare ──► remove

The sink's commits expire snapshots, and write the journal (`iceberg/sink_table.py`). The thread commits nothing, has a
catalog client of its own, and may be interrupted at any point. It looks at the journal after every expiry, when the
grace of the next entry is over, and from time to time: other processes write entries, too.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from calve.clock import Clock
from calve.commit.ports import TableMaintenance
from calve.errors import CalveError, TransientError
from calve.maintain.removal import RemovalReport
from calve.pipeline.upkeep import Spawn, start_thread

LOOK_SECONDS = 900.0
"""The longest time between two looks at the journal."""
FIRST_LOOK_SECONDS = 60.0
"""A run that commits nothing looks after this time."""
RETRY_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Removing(Protocol):
    """Removes what is due."""

    def run(self) -> RemovalReport:
        """Remove files whose grace is over. Raises TransientError."""
        ...


class RemovalMonitor(Protocol):
    """What removals report to."""

    @property
    def sink(self) -> str:
        """The sink's name."""
        ...

    def warned(self, what: str, error: BaseException) -> None:
        """Something failed that is not urgent."""
        ...

    def removed(self, report: RemovalReport) -> None:
        """A look at the journal ended."""
        ...


class Ended(Exception):
    """The sink ends: the rest is removed by a later run."""


class RemovalUpkeep:
    """Implements the port `TableMaintenance`. `wake` wakes the committer."""

    def __init__(  # noqa: PLR0913 - those after the star are options by name
        self,
        removal: Callable[[Callable[[], None]], Removing],
        expiries: Callable[[], int],
        monitor: RemovalMonitor,
        clock: Clock,
        wake: Callable[[], None],
        *,
        grace_ms: int,
        spawn: Spawn = start_thread,
    ) -> None:
        """`removal` makes the work, from a function that raises once the sink ends; `expiries` counts those so far."""
        self._make, self._expiries = removal, expiries
        self._monitor, self._clock, self._wake = monitor, clock, wake
        self._grace_ms, self._spawn = grace_ms, spawn
        self._removal: Removing | None = None
        self._seen_expiries = 0
        self._look_at = clock.monotonic() + FIRST_LOOK_SECONDS
        self._working = self._off = False
        self._ending = threading.Event()
        self._join: Callable[[], object] | None = None

    @property
    def busy(self) -> bool:
        """Whether files are being removed."""
        return self._working

    def maintain(self) -> None:
        """Start a look at the journal, if it is due."""
        if self._off or self._working:
            return
        expiries = self._expiries()
        if expiries > self._seen_expiries or self._clock.monotonic() >= self._look_at:
            self._seen_expiries, self._working = expiries, True
            self._join = self._spawn(self._main)

    def close(self, *, failed: bool) -> None:
        """End the removal in progress."""
        del failed
        self._ending.set()
        if self._join is not None:
            self._join()

    def _main(self) -> None:
        wait = RETRY_SECONDS
        try:
            if self._removal is None:
                self._removal = self._make(self._check_ending)
            report = self._removal.run()
            self._monitor.removed(report)
            wait = self._until_next(report)
        except Ended:
            _log.info("sink %s ended before all files of expired snapshots were removed", self._monitor.sink)
        except TransientError as error:
            self._monitor.warned("removal of expired files", error)
        except Exception as error:  # noqa: BLE001 - the thread's last resort: no failure of it may fail the sink
            self._off = True
            shown = None if isinstance(error, CalveError) else error
            _log.error("removal of expired files of sink %s ended: %s", self._monitor.sink, error, exc_info=shown)
        finally:
            self._look_at = self._clock.monotonic() + wait
            self._working = False
            self._wake()

    def _until_next(self, report: RemovalReport) -> float:
        if report.refusal or report.next_ms is None:  # a refusal does not end with a grace
            return LOOK_SECONDS
        seconds = (report.next_ms + self._grace_ms - self._clock.now_ms()) / 1000
        return min(max(seconds, 1.0), LOOK_SECONDS)

    def _check_ending(self) -> None:
        if self._ending.is_set():
            raise Ended


class AllMaintenance:
    """Several kinds of maintenance as one. Implements the port `TableMaintenance`."""

    def __init__(self, parts: Sequence[TableMaintenance]) -> None:
        self._parts = tuple(parts)

    @property
    def busy(self) -> bool:
        """Whether any of them is busy."""
        return any(part.busy for part in self._parts)

    def maintain(self) -> None:
        """Let each start what is due. Raises FencedError."""
        for part in self._parts:
            part.maintain()

    def close(self, *, failed: bool) -> None:
        """End each."""
        for part in self._parts:
            part.close(failed=failed)
