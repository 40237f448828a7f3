"""Compacts the table of a sink while the sink runs.

    committer: commit, commit, ... maintain ──► is a plan due?                    a moment
    a thread:                            plan ──► rewrite ──► part ──► part ...   takes long, ends with the sink
    committer: commit, maintain ──► commit a part that is ready, commit, ...      a moment

The committer's thread commits compactions between two batches: so a busy sink does not starve them, and they never
conflict with a commit of their own sink. A part is committed while others are still being rewritten; one that fails
does not hold up the others. More than a moment's work is done by processes of low priority or, on a cluster, by Spark
tasks. Planning happens after a number of commits, and takes only a small share of the time.

A sink that is behind its source needs the cores for its batches. Until it has caught up, its table waits for rewrites
until there is twice as much to gain from them; then it is looked at again, at once.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Protocol

from calve.clock import Clock
from calve.errors import CalveError, FencedError, TransientError
from calve.iceberg.planning.compaction_groups import AUTOMATIC, CompactionPolicy
from calve.iceberg.snapshot.compaction import CompactionPlan
from calve.keylookup.index.manifest import Run
from calve.maintain.compact import Compacted, RewrittenFiles
from calve.model.files import WrittenFile
from calve.model.spec import DayHours

ATTEMPTS = 3
"""Attempts of one commit: the next batch waits for them."""
HERE_ROWS = 500_000
"""Rows of a plan up to which the sink's own process rewrites them: a moment's work, and less than starting tasks."""
TRIES = 10
"""Commits that fail before a compaction is abandoned."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpkeepPace:
    """How often maintenance plans and retries."""

    look_every: int = AUTOMATIC.paying_fan
    """Commits between two plans: fewer cannot fill a tier."""
    look_seconds: float = 600.0
    """Time after which a plan is made for fewer commits: meanwhile, rewrites may pay."""
    rest_per_plan: float = 20
    """Seconds until the next plan, for each second that the last one took."""
    rest_seconds: float = 30.0
    """Delay before a retry, times the number of failures."""


class Compacting(Protocol):
    """Plans, rewrites and commits compactions of one table."""

    def plan(self, policy: CompactionPolicy) -> CompactionPlan | None:
        """Return what is to be compacted, None if nothing is. Raises TransientError, FencedError."""
        ...

    def rewrite(self, plan: CompactionPlan, check: Callable[[], None]) -> Generator[RewrittenFiles, None, None]:
        """Write the new files, and yield each part; `check` is called in between and may raise. Raises TransientError.

        Another thread commits parts meanwhile.
        """
        ...

    def commit(self, ready: RewrittenFiles, attempts: int) -> Compacted | None:
        """Commit the new files; None if others changed their inputs, or removed new files.

        Raises TransientError, FencedError.
        """
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

    @property
    def behind(self) -> bool:
        """Whether more of the source waits to be read than a checkpoint takes."""
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


@dataclass(frozen=True)
class _Part:
    """New files that wait for their commit, and the index of their keys."""

    files: RewrittenFiles
    learnt: tuple[Run, ...]


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
        policy: CompactionPolicy = AUTOMATIC,
        hours: DayHours | None = None,
        pace: UpkeepPace | None = None,
        spawn: Spawn = start_thread,
    ) -> None:
        self._policy, self._hours = policy, hours
        self._pace, self._spawn = pace or UpkeepPace(), spawn
        self._make, self._learner = compactor, learner
        self._monitor, self._clock, self._wake = monitor, clock, wake
        self._compactor: Compacting | None = None
        self._join: Callable[[], object] | None = None
        self._working = False
        self._ending = threading.Event()
        self._ready: deque[_Part] = deque()
        """The thread appends, the committer takes."""
        self._began = 0.0
        self._failures = 0
        self._look_at = 1
        """Number of commits of this run at which the next plan is due."""
        self._looked, self._looked_at = clock.monotonic(), 0
        """When the last plan was made, and the number of commits then."""
        self._put_off = False
        """Whether that plan left files for the time after the backlog."""
        self._rest_until = 0.0
        """Plans take only a share of the time."""
        self._plan_not_before = self._commit_not_before = 0.0
        """After failures."""
        self._off = self._fenced = False
        """Nothing more is planned; nothing more is committed, either."""

    @property
    def busy(self) -> bool:
        """Whether a compaction is in progress, or can be committed now."""
        return self._working or self._may_commit

    @property
    def _may_commit(self) -> bool:
        return bool(self._ready) and not self._fenced and self._clock.monotonic() >= self._commit_not_before

    @property
    def _commits(self) -> int:
        """Commits of this run: before the first one it does not own the table."""
        return self._monitor.run_commits

    def ready_files(self) -> frozenset[str]:
        """Return the files of a compaction that may still be committed."""
        groups = [group for part in tuple(self._ready) for group in part.files.groups]
        return frozenset(file.path for group in groups for file in group.files)

    def maintain(self) -> None:
        """Commit what is ready, or start planning. Raises FencedError; other failures are only logged."""
        if self._may_commit:
            self._commit(self._ready[0])
            if self._ready:
                self._wake()  # for the next part
        elif not (self._off or self._working or self._ready) and self._is_plan_due:
            self._working = True
            self._join = self._spawn(self._main)

    @property
    def _is_plan_due(self) -> bool:
        """Files are rewritten because of time, too: a sink that commits seldom is looked at from time to time."""
        now, new = self._clock.monotonic(), self._commits > self._looked_at
        enough = self._commits >= self._look_at or (new and now >= self._looked + self._pace.look_seconds)
        caught_up = self._put_off and not self._monitor.behind
        in_time = self._hours is None or self._hours.contains(self._clock.now_ms())
        return (caught_up or (enough and now >= self._rest_until)) and in_time and now >= self._plan_not_before

    def close(self, *, failed: bool) -> None:
        """End maintenance: commit what is ready, unless the run failed; drop unfinished work."""
        self._ending.set()
        if self._join is not None:
            self._join()
        while self._ready and self._compactor is not None:
            part = self._ready[0]
            if not (failed or self._fenced):
                with suppress(FencedError):
                    self._commit(part)
            if self._ready and self._ready[0] is part:
                self._compactor.abandon(part.files)
                self._ready.popleft()

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
            self._plan_not_before = self._rested()
        except FencedError as error:
            self._off = self._fenced = True
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
        put_off = self._monitor.behind
        plan = self._compactor.plan(self._policy.put_off if put_off else self._policy)
        self._put_off = put_off
        self._rest_until = self._clock.monotonic() + self._pace.rest_per_plan * (self._clock.monotonic() - began)
        self._looked, self._looked_at = began, commits
        self._look_at = commits + (1 if plan is not None and plan.groups.more else self._pace.look_every)
        if plan is None:
            self._tell("nothing", f"next look after {self._pace.look_every} more commits")
            return
        with closing(self._compactor.rewrite(plan, self._check_ending)) as parts:
            for files in parts:
                self._ready.append(_Part(files, self._learn(self._compactor, files)))
                self._wake()

    def _tell(self, outcome: str, summary: str = "") -> None:
        self._monitor.maintained("compact", outcome, self._clock.monotonic() - self._began, summary)

    def _learn(self, compactor: Compacting, ready: RewrittenFiles) -> tuple[Run, ...]:
        """Index the new files before they are committed; otherwise the next batch has to."""
        try:
            return self._learner.prepared([file for group in ready.groups for file in group.files])
        except TransientError as error:
            self._monitor.warned("reading keys of compacted files", error)
            return ()
        except BaseException:
            compactor.abandon(ready)
            raise

    def _check_ending(self) -> None:
        if self._ending.is_set():
            raise _Ended

    # ---- the committer

    def _commit(self, part: _Part) -> None:
        if self._compactor is None:
            return
        try:
            done = self._compactor.commit(part.files, ATTEMPTS)
        except TransientError as error:
            self._monitor.warned("commit of a compaction", error)
            self._plan_not_before = self._commit_not_before = self._rested()
            if self._failures < TRIES:
                return
            self._tell("failed", str(error))
            self._compactor.abandon(part.files)
        except FencedError:
            self._off = self._fenced = True
            raise
        except Exception as error:  # noqa: BLE001 - no failure of maintenance may fail the sink's batches
            self._give_up(error)
            self._compactor.abandon(part.files)
        else:
            if done is None:  # others were faster
                self._tell("conflict", "others replaced the files meanwhile, or removed the new ones")
                self._compactor.abandon(part.files)
                self._plan_not_before = self._rested()
            else:
                self._failures = 0
                self._learner.adopt(part.learnt)
                self._monitor.compacted(done)
                self._tell("done", str(done))
        self._ready.popleft()
        if self._working:
            self._monitor.maintaining("compact")

    def _rested(self) -> float:
        """Count a failure; returns the time of the next try."""
        self._failures += 1
        return self._clock.monotonic() + self._pace.rest_seconds * min(self._failures, TRIES)

    def _give_up(self, error: Exception) -> None:
        """Turn maintenance off and log an error for the user; the sink continues without it."""
        self._off = True
        self._tell("failed", f"maintenance is off until the next start: {error}")
        if isinstance(error, CalveError):
            _log.error("maintenance of sink %s ended: %s", self._monitor.sink, error)
        else:
            _log.error("maintenance of sink %s failed unexpectedly", self._monitor.sink, exc_info=error)
