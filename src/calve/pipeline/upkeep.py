"""Compacts the table of a sink while the sink runs.

    committer: commit, commit, ... maintain ──► is a plan due?          a moment
    a thread:                            plan ──► rewrite ──► ready     takes long, ends with the sink
    committer: commit, maintain ──► commit what is ready, commit, ...   a moment

The committer's thread commits compactions between two batches: so a busy sink does not starve them, and they never
conflict with a commit of their own sink. Planning happens after a number of commits, and takes only a small share of
the time.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from calve.clock import Clock
from calve.errors import CalveError, FencedError, TransientError
from calve.iceberg.planning.compaction_groups import AUTOMATIC, Policy
from calve.iceberg.snapshot.compaction import CompactionPlan
from calve.keylookup.index.manifest import Run
from calve.maintain.compact import Compacted, RewrittenFiles
from calve.model.files import WrittenFile

ATTEMPTS = 3
"""Attempts of one commit: the next batch waits for them."""
TRIES = 10
"""Commits that fail before a compaction is abandoned."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpkeepPace:
    """How often maintenance plans and retries."""

    look_every: int = AUTOMATIC.fan
    """Commits between two plans: fewer cannot fill a tier."""
    rest_per_plan: float = 20
    """Seconds until the next plan, for each second that the last one took."""
    rest_seconds: float = 30.0
    """Delay before a retry, times the number of failures."""


class Compacting(Protocol):
    """Plans, rewrites and commits compactions of one table."""

    def plan(self, policy: Policy) -> CompactionPlan | None:
        """Return what is to be compacted, None if nothing is. Raises TransientError, FencedError."""
        ...

    def rewrite(self, plan: CompactionPlan, check: Callable[[], None]) -> RewrittenFiles:
        """Write the new files; `check` is called in between and may raise. Raises TransientError."""
        ...

    def commit(self, ready: RewrittenFiles, attempts: int) -> Compacted | None:
        """Commit the new files; None if others changed their inputs. Raises TransientError, FencedError."""
        ...

    def abandon(self, ready: RewrittenFiles) -> None:
        """Remove new files that are not committed."""
        ...


class UpkeepMonitor(Protocol):
    """What maintenance reports to."""

    @property
    def sink(self) -> str:
        """The sink's name."""
        ...

    @property
    def run_commits(self) -> int:
        """Commits of this run. Those that it found in the table, and may count late, are not among them."""
        ...

    def warned(self, what: str, error: BaseException) -> None:
        """Something failed that is not urgent."""
        ...

    def compacted(self, done: Compacted) -> None:
        """A compaction was committed."""
        ...

    def maintaining(self, kind: str, next_run: str = "") -> None:
        """Maintenance of this kind is in progress; empty if none is. `next_run`: what follows, and when."""
        ...

    def maintained(self, kind: str, outcome: str, seconds: float, summary: str = "") -> None:
        """A maintenance run has ended: done, nothing (to do), conflict or failed."""
        ...


Spawn = Callable[[Callable[[], None]], Callable[[], object]]
"""Starts a thread and returns a function that waits for its end."""


def start_thread(main: Callable[[], None]) -> Callable[[], object]:
    """Start a thread; returns a function that waits for its end."""
    thread = threading.Thread(target=main, name="calve-upkeep", daemon=True)
    thread.start()
    return thread.join


class _Ended(Exception):
    """The sink ends: unfinished work is dropped."""


class Learner(Protocol):
    """Looks up rows of the table; indexes compacted files early, so that no batch has to wait for that."""

    def prepared(self, files: Sequence[WrittenFile]) -> tuple[Run, ...]:
        """Index new files. Called by the thread. Raises TransientError."""
        ...

    def adopt(self, runs: Sequence[Run]) -> None:
        """Use the index of files that are committed. Called by the committer."""
        ...


class Upkeep:
    """Implements the port `TableMaintenance`. `wake` wakes the committer."""

    def __init__(  # noqa: PLR0913 - those after the star are options by name
        self,
        compactor: Callable[[], Compacting],
        learner: Learner,
        monitor: UpkeepMonitor,
        clock: Clock,
        wake: Callable[[], None],
        *,
        pace: UpkeepPace | None = None,
        spawn: Spawn = start_thread,
    ) -> None:
        self._pace, self._spawn = pace or UpkeepPace(), spawn
        self._make, self._learner = compactor, learner
        self._monitor, self._clock, self._wake = monitor, clock, wake
        self._learnt: tuple[Run, ...] = ()
        self._compactor: Compacting | None = None
        self._join: Callable[[], object] | None = None
        self._working = False
        self._ending = threading.Event()
        self._ready: RewrittenFiles | None = None
        self._began = 0.0
        self._failures = 0
        self._look_at = 1
        """Number of commits of this run at which the next plan is due."""
        self._not_before = 0.0
        self._off = False

    @property
    def busy(self) -> bool:
        """Whether a compaction is in progress, or can be committed now."""
        resting = self._off or self._clock.monotonic() < self._not_before
        return self._working or (self._ready is not None and not resting)

    @property
    def _commits(self) -> int:
        """Commits of this run: before the first one it does not own the table."""
        return self._monitor.run_commits

    def ready_files(self) -> frozenset[str]:
        """Return the files of a compaction that may still be committed."""
        ready = self._ready
        return frozenset(file.path for group in ready.groups for file in group.files) if ready else frozenset()

    def maintain(self) -> None:
        """Commit what is ready, or start planning. Raises FencedError; other failures are only logged."""
        if self._off or self._working or self._clock.monotonic() < self._not_before:
            return
        if self._ready is not None:
            self._commit(self._ready)
        elif self._commits >= self._look_at:
            self._working = True
            self._join = self._spawn(self._main)

    def close(self, *, failed: bool) -> None:
        """End maintenance: commit what is ready, unless the run failed; drop unfinished work."""
        self._ending.set()
        if self._join is not None:
            self._join()
        ready = self._ready
        if ready is not None and not failed and not self._off:
            with suppress(FencedError):
                self._commit(ready)
        if self._ready is not None and self._compactor is not None:
            self._compactor.abandon(self._ready)
            self._ready = None

    # ---- the thread

    def _main(self) -> None:
        try:
            self._find_work()
        except _Ended:
            self._monitor.maintaining("")
            _log.info("sink %s ended before its compaction; `calve maintain` can do it", self._monitor.sink)
        except TransientError as error:
            self._monitor.warned("maintenance", error)
            self._tell("failed", str(error))
            self._back_off()
        except FencedError as error:
            self._off = True
            self._tell("failed", f"maintenance is off: {error.primary}")
            _log.info("this run of sink %s stops maintenance: %s", self._monitor.sink, error)
        except Exception as error:  # noqa: BLE001 - the thread's last resort
            self._give_up(error)
        finally:
            self._working = False
            self._wake()

    def _find_work(self) -> None:
        if self._compactor is None:
            self._compactor = self._make()
        began, commits = self._clock.monotonic(), self._commits
        self._began = began
        self._monitor.maintaining("compact")
        plan = self._compactor.plan(AUTOMATIC)
        self._not_before = self._clock.monotonic() + self._pace.rest_per_plan * (self._clock.monotonic() - began)
        self._look_at = commits + (1 if plan is not None and plan.groups.more else self._pace.look_every)
        if plan is None:
            self._tell("nothing", f"next look after {self._pace.look_every} more commits")
        else:
            self._ready = self._compactor.rewrite(plan, self._check_ending)
            self._learnt = self._learn(self._ready)
            self._not_before = 0.0

    def _tell(self, outcome: str, summary: str = "") -> None:
        self._monitor.maintained("compact", outcome, self._clock.monotonic() - self._began, summary)

    def _learn(self, ready: RewrittenFiles) -> tuple[Run, ...]:
        """Index the new files before they are committed; otherwise the next batch has to."""
        try:
            return self._learner.prepared([file for group in ready.groups for file in group.files])
        except TransientError as error:
            self._monitor.warned("reading keys of compacted files", error)
            return ()

    def _check_ending(self) -> None:
        if self._ending.is_set():
            raise _Ended

    # ---- the committer

    def _commit(self, ready: RewrittenFiles) -> None:
        if self._compactor is None:
            return
        try:
            done = self._compactor.commit(ready, ATTEMPTS)
        except TransientError as error:
            self._monitor.warned("commit of a compaction", error)
            self._back_off()
            if self._failures < TRIES:
                return
            self._tell("failed", str(error))
            self._compactor.abandon(ready)
        except FencedError:
            self._off = True
            raise
        except Exception as error:  # noqa: BLE001 - no failure of maintenance may fail the sink's batches
            self._give_up(error)
            self._compactor.abandon(ready)
        else:
            if done is None:  # others were faster
                self._tell("conflict", "others replaced the files meanwhile")
                self._compactor.abandon(ready)
                self._back_off()
            else:
                self._failures = 0
                self._learner.adopt(self._learnt)
                self._monitor.compacted(done)
                self._tell("done", str(done))
        self._ready = None

    def _back_off(self) -> None:
        self._failures += 1
        self._not_before = self._clock.monotonic() + self._pace.rest_seconds * min(self._failures, TRIES)

    def _give_up(self, error: Exception) -> None:
        """Turn maintenance off and log an error for the user; the sink continues without it."""
        self._off = True
        self._tell("failed", f"maintenance is off until the next start: {error}")
        if isinstance(error, CalveError):
            _log.error("maintenance of sink %s ended: %s", self._monitor.sink, error)
        else:
            _log.error("maintenance of sink %s failed unexpectedly", self._monitor.sink, exc_info=error)
