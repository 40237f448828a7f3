"""The committer thread of a sink: brings pending committables into the table, in order, whatever the stream does.

It wakes when something was recorded, and by itself while work is pending or the sink is idle: a source that stands
still must not keep pending commits from being tried again, nor a rollback from being noticed.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from calve.commit.ports import Stopped, Tending
from calve.commit.run import SinkRun
from calve.errors import CalveError, TransientError

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 30.0

_log = logging.getLogger(__name__)


class Signals:
    """How a run is woken and stopped. Fits the port `Waiter`."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._stopping = False
        self._work = 0

    @property
    def stopping(self) -> bool:
        """True once a stop was asked for."""
        return self._stopping

    def stop(self) -> None:
        """Ask everything that waits to end."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def wake(self) -> None:
        """There is new work."""
        with self._condition:
            self._work += 1
            self._condition.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait; raises Stopped when a stop was asked for."""
        with self._condition:
            if self._condition.wait_for(lambda: self._stopping, timeout=seconds):
                raise Stopped

    @property
    def calls(self) -> int:
        """How often `wake` was called: look at it before looking for work."""
        return self._work

    def await_call(self, after: int, seconds: float) -> None:
        """Wait until `calls` is above `after`, a stop, or the time to pass."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopping or self._work > after, timeout=seconds)

    def await_last_call(self, after: int, seconds: float) -> None:
        """As `await_call`, after a stop was asked for."""
        with self._condition:
            self._condition.wait_for(lambda: self._work > after, timeout=seconds)

    def lock(self) -> AbstractContextManager[Any]:
        """A reentrant lock."""
        return threading.RLock()


@dataclass(frozen=True)
class CommitHooks:
    """What is done between two commits."""

    close_due: Callable[[], bool]
    """Closes a window that is over, and tells whether it did."""
    look_ahead: Callable[[], None]
    """Called when nothing waits after a commit: it learns what the next one will need of the table."""
    upkeep: Tending


class Committer:
    """One thread. `failure` is why it ended, None after a stop or a seal."""

    def __init__(
        self,
        run: SinkRun,
        signals: Signals,
        between: CommitHooks,
        *,
        idle_check_seconds: float,
    ) -> None:
        self._run = run
        self._close_due, self._look_ahead, self._upkeep = between.close_due, between.look_ahead, between.upkeep
        self._busy = False
        """From the begin of a commit until everything that follows it was looked at."""
        self._signals = signals
        self._idle_check = idle_check_seconds
        self._thread = threading.Thread(target=self._main, name="calve-committer", daemon=True)
        self._finishing = False
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def finish(self) -> None:
        """Commit what is recorded, then end. To be called after a stop, once nothing more is recorded."""
        self._finishing = True
        self._signals.wake()
        self._thread.join()
        self._upkeep.close(failed=self.failure is not None)

    @property
    def tending(self) -> bool:
        """True while the table is worked on beside its batches."""
        return self.alive and (self._busy or self._upkeep.busy)

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            self._loop()
        except Stopped:
            pass
        except CalveError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - the thread's last resort: the query reports it
            _log.exception("the committer broke")
            self.failure = error
        finally:
            self._signals.wake()

    def _loop(self) -> None:
        delay = FIRST_WAIT
        while not self._run.frontier.sealed:
            calls = self._signals.calls
            if not self._signals.stopping:
                self._upkeep.tend()
            if not self._run.ready:
                delay = FIRST_WAIT
                if not self._signals.stopping and self._close_due():
                    continue
                if self._finishing:
                    return
                if self._signals.stopping:
                    self._signals.await_last_call(calls, FIRST_WAIT)
                elif self._busy:
                    self._trying("a look ahead", self._look_ahead)
                    self._busy = False
                    self._signals.wake()
                else:
                    self._idle(calls)
                continue
            self._busy = True
            if self._run.commit_next() is not None:
                delay = FIRST_WAIT
                self._signals.wake()
            else:  # absorbed: the work stays pending and goes out later, in order
                self._signals.pause(delay)
                delay = min(delay * 2, LONGEST_WAIT)

    def _idle(self, calls: int) -> None:
        due = self._run.until_due()
        longest = min(self._idle_check, max(self._run.until_beat, FIRST_WAIT))
        self._signals.await_call(calls, longest if due is None else min(due, longest))
        if self._run.pending or self._signals.stopping or self._signals.calls > calls:
            return
        self._trying("an idle look at the table", self._look)

    def _look(self) -> None:
        if not self._run.beat() and self._run.claimed:
            self._run.look_again()

    def _trying(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except TransientError as error:
            _log.warning("%s failed: %s", what, error.primary)
