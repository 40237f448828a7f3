"""Compacts the table of a sink while the sink runs.

    committer: commit, commit, ... tend ──► is it time to look?         a moment
    a thread:                        plan ──► rewrite ──► ready         takes its time, ends with the sink
    committer: commit, tend ──► commit what is ready, commit, ...       a moment

What is ready is committed by the committer's thread, between two batches: so a sink that never rests does not starve
it, and it never meets a commit of its own sink. It looks after some commits, and not so often that looking would take
more than its share of the time.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from calve.clock import Clock
from calve.errors import CalveError, FencedError, TransientError
from calve.iceberg.planning.compaction_groups import AUTOMATIC
from calve.keylookup.index.manifest import Run
from calve.maintain.compact import Compactor, RewrittenFiles
from calve.model.files import WrittenFile
from calve.pipeline.monitor import RunMonitor

LOOK_EVERY = AUTOMATIC.fan
"""Commits between two looks: fewer cannot fill a tier."""
PLANS_PER_PAUSE = 20
"""Seconds until the next look, for each second that the last one took."""
REST_SECONDS = 30.0
"""Until something that failed is tried again."""
ATTEMPTS = 3
"""To commit, in a row: the next batch waits for it."""
TRIES = 10
"""Times that what is ready is tried again later, before it is given up."""

_log = logging.getLogger(__name__)


class _Ended(Exception):
    """The sink ends: work that is not done is left."""


class Learner(Protocol):
    """Who looks up rows of the table: it should know new files before a batch waits for that."""

    def prepared(self, files: Sequence[WrittenFile]) -> tuple[Run, ...]:
        """Called by the thread. Raises TransientError."""
        ...

    def adopt(self, runs: Sequence[Run]) -> None:
        """Called by the committer, when the files are in the table."""
        ...


class Upkeep:
    """Fits the port `TableMaintenance`. `wake` wakes the committer."""

    def __init__(
        self,
        compactor: Callable[[], Compactor],
        learner: Learner,
        monitor: RunMonitor,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._make, self._learner = compactor, learner
        self._monitor, self._clock, self._wake = monitor, clock, wake
        self._commits_before = monitor.status.commits  # of earlier runs
        self._learnt: tuple[Run, ...] = ()
        self._compactor: Compactor | None = None
        self._thread: threading.Thread | None = None
        self._working = False
        self._ending = threading.Event()
        self._ready: RewrittenFiles | None = None
        self._failures = 0
        self._look_at = 1
        """Commits of this run, from which on it looks."""
        self._not_before = 0.0
        self._off = False

    @property
    def busy(self) -> bool:
        """Whether something is done, or can be committed now."""
        resting = self._off or self._clock.monotonic() < self._not_before
        return self._working or (self._ready is not None and not resting)

    @property
    def _commits(self) -> int:
        """Of this run: before its first one the table is not its own."""
        return self._monitor.status.commits - self._commits_before

    def maintain(self) -> None:
        """Commit what is ready, or begin to look. Raises FencedError, and nothing that concerns maintenance alone."""
        if self._off or self._working or self._clock.monotonic() < self._not_before:
            return
        if self._ready is not None:
            self._commit(self._ready)
        elif self._commits >= self._look_at:
            self._working = True
            self._thread = threading.Thread(target=self._main, name="calve-upkeep", daemon=True)
            self._thread.start()

    def close(self, *, failed: bool) -> None:
        """End: what is ready is committed, unless the run failed; what is not is left."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
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
            self._look()
        except _Ended:
            _log.info("a compaction for sink %s was not finished; `calve maintain` does it", self._monitor.status.sink)
        except TransientError as error:
            self._monitor.warned("maintenance", error)
            self._rest()
        except FencedError as error:
            self._off = True
            _log.info("no more maintenance by this run of sink %s: %s", self._monitor.status.sink, error)
        except Exception as error:  # noqa: BLE001 - the thread's last resort
            self._give_up(error)
        finally:
            self._working = False
            self._wake()

    def _look(self) -> None:
        if self._compactor is None:
            self._compactor = self._make()
        began, commits = self._clock.monotonic(), self._commits
        plan = self._compactor.plan(AUTOMATIC)
        self._not_before = self._clock.monotonic() + PLANS_PER_PAUSE * (self._clock.monotonic() - began)
        self._look_at = commits + (1 if plan is not None and plan.groups.more else LOOK_EVERY)
        if plan is not None:
            self._ready = self._compactor.rewrite(plan, self._check)
            self._learnt = self._learn(self._ready)
            self._not_before = 0.0

    def _learn(self, ready: RewrittenFiles) -> tuple[Run, ...]:
        """What can be known of the new files before they are committed; without it the next batch finds out."""
        try:
            return self._learner.prepared([file for group in ready.groups for file in group.files])
        except TransientError as error:
            self._monitor.warned("reading keys of compacted files", error)
            return ()

    def _check(self) -> None:
        if self._ending.is_set():
            raise _Ended

    # ---- the committer

    def _commit(self, ready: RewrittenFiles) -> None:
        if self._compactor is None:
            return
        try:
            done = self._compactor.commit(ready, ATTEMPTS)
        except TransientError as error:
            self._monitor.warned("a commit of maintenance", error)
            self._rest()
            if self._failures < TRIES:
                return
            self._compactor.abandon(ready)
        except FencedError:
            self._off = True
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the batches of the sink do not fail for it
            self._give_up(error)
            self._compactor.abandon(ready)
        else:
            if done is None:  # others were faster
                self._compactor.abandon(ready)
                self._rest()
            else:
                self._failures = 0
                self._learner.adopt(self._learnt)
                self._monitor.compacted(done)
        self._ready = None

    def _rest(self) -> None:
        self._failures += 1
        self._not_before = self._clock.monotonic() + REST_SECONDS * min(self._failures, TRIES)

    def _give_up(self, error: Exception) -> None:
        """The sink goes on without maintenance: a person has to look, or nothing can be done."""
        self._off = True
        if isinstance(error, CalveError):
            _log.error("maintenance of sink %s ended: %s", self._monitor.status.sink, error)
        else:
            _log.error("maintenance of sink %s broke", self._monitor.status.sink, exc_info=error)
