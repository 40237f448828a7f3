"""The committer thread of a sink: commits pending committables in order, independently of the stream.

It wakes up when something is recorded, and on a timer while work is pending or the sink is idle: pending commits are
retried and rollbacks noticed even if the source delivers nothing.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from calve.commit.ports import RunSignals, Stopped, TableMaintenance
from calve.commit.run import SinkRun
from calve.errors import CalveError, TransientError
from calve.retry import Backoff

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 30.0

_log = logging.getLogger(__name__)


class Signals:
    """Wakes and stops the threads of a run. Implements the port `Waiter`."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._stopping = False
        self._work = 0

    @property
    def stopping(self) -> bool:
        """True once a stop was requested."""
        return self._stopping

    def stop(self) -> None:
        """Request a stop, and wake everything that waits."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def wake(self) -> None:
        """Signal new work."""
        with self._condition:
            self._work += 1
            self._condition.notify_all()

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped when a stop was requested."""
        with self._condition:
            if self._condition.wait_for(lambda: self._stopping, timeout=seconds):
                raise Stopped

    @property
    def calls(self) -> int:
        """The number of calls of `wake`. Read it before looking for work."""
        return self._work

    def await_call(self, after: int, seconds: float) -> None:
        """Wait until `calls` exceeds `after`, a stop is requested, or the time has passed."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopping or self._work > after, timeout=seconds)

    def await_last_call(self, after: int, seconds: float) -> None:
        """Like `await_call`, for use after a stop was requested."""
        with self._condition:
            self._condition.wait_for(lambda: self._work > after, timeout=seconds)

    def lock(self) -> AbstractContextManager[Any]:
        """A reentrant lock."""
        return threading.RLock()


@dataclass(frozen=True)
class CommitHooks:
    """Called between two commits."""

    close_due: Callable[[], bool]
    """Closes a window that has ended; returns whether there was one."""
    look_ahead: Callable[[], None]
    """Called after a commit when nothing else is pending: loads what the next commit will need of the table."""
    upkeep: TableMaintenance


class Committer:
    """One thread. `failure` is the reason why it ended, None after a stop or a seal."""

    def __init__(
        self,
        run: SinkRun,
        signals: RunSignals,
        hooks: CommitHooks,
        *,
        idle_check_seconds: float,
    ) -> None:
        self._run = run
        self._close_due, self._look_ahead, self._upkeep = hooks.close_due, hooks.look_ahead, hooks.upkeep
        self._busy = False
        """True from the start of a commit until its follow-up work is done."""
        self._signals = signals
        self._idle_check = idle_check_seconds
        self._thread = threading.Thread(target=self._main, name="calve-committer", daemon=True)
        self._finishing = False
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Commit what is recorded, then end. Call it after a stop, once nothing more is being recorded."""
        self._finishing = True
        self._signals.wake()
        self._thread.join()
        self._upkeep.close(failed=self.failure is not None)

    @property
    def maintaining(self) -> bool:
        """True while maintenance, or the follow-up work of a commit, is in progress."""
        return self.alive and (self._busy or self._upkeep.busy)

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            self.loop()
        except Stopped:
            pass
        except CalveError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - the thread's last resort: the query reports it
            _log.exception("the committer failed unexpectedly")
            self.failure = error
        finally:
            self._signals.wake()

    def loop(self) -> None:
        """Commit, close batches and let the table be maintained, until the table is sealed or the run is stopped."""
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while not self._run.state.frontier.sealed:
            calls = self._signals.calls
            if not self._signals.stopping:
                self._upkeep.maintain()
            if not self._run.state.ready:
                backoff.reset()
                if not self._signals.stopping and self._close_due():
                    continue
                if self._finishing:
                    return
                if self._signals.stopping:
                    self._signals.await_last_call(calls, FIRST_WAIT)
                elif self._busy:
                    with self._run.state.timed("ahead"):
                        self._warn_if_transient("look-ahead after a commit", self._look_ahead)
                    self._busy = False
                    self._signals.wake()
                else:
                    self._idle(calls)
                continue
            self._busy = True
            if self._run.commits.commit_next() is not None:
                backoff.reset()
                self._signals.wake()
            else:  # the batch stays pending and is retried later, in order
                self._signals.pause(backoff.next())

    def _idle(self, calls: int) -> None:
        due = self._run.batches.until_due()
        longest = min(self._idle_check, max(self._run.batches.until_heartbeat, FIRST_WAIT))
        self._signals.await_call(calls, longest if due is None else min(due, longest))
        if self._run.state.pending or self._signals.stopping or self._signals.calls > calls:
            return
        self._warn_if_transient("idle check of the table", self._check_idle_table)

    def _check_idle_table(self) -> None:
        if not self._run.batches.record_heartbeat() and self._run.state.claimed:
            self._run.claims.recheck_table()

    def _warn_if_transient(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except TransientError as error:
            _log.warning("%s failed: %s", what, error.primary)
