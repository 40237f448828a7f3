"""A running sink: the handle that `start` returns."""

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its exit hook, so that ours, registered later, runs before it
import logging
import threading
from collections.abc import Callable
from typing import Self
from weakref import WeakSet

from calve.calls import for_users
from calve.clock import Clock
from calve.commit.committer import Committer, Signals
from calve.commit.run import SinkRun
from calve.errors import CalveError, TransientError
from calve.model.health import CommitReport, Health, Status
from calve.pipeline.feed import Feed
from calve.pipeline.monitor import RunMonitor
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.registration import TableRegistration
from calve.pipeline.survey import Survey

EXIT_SECONDS = 30.0
"""How long an exiting program waits for its sinks to stop."""

_log = logging.getLogger("calve")

_running: "WeakSet[Query]" = WeakSet()


def _stop_running() -> None:
    """Stop the sinks of a program that exits.

    Python aborts the program, and loses its exit code, if a thread returns from native code during shutdown. This has
    to run before thread pools are shut down, which a sink needs for its last commit; `atexit` hooks run after that.
    """
    queries = tuple(_running)
    for query in queries:
        query.ask_to_stop("the program exited")
    for query in queries:
        query.await_end(EXIT_SECONDS)


getattr(threading, "_register_atexit", atexit.register)(_stop_running)


class Query:
    """A running sink.

    As a context manager it stops the sink at the end, and raises the sink's failure if it failed:

        with calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start() as query:
            query.await_caught_up()
            print(query.status().last_commit)

    Two threads, the feed and the committer, and a third that watches them. If the feed fails, recorded work is still
    committed; if the committer fails, the feed ends. However it ends, what it took of the memory that sinks share is
    free then, although others may keep the handle, or the failure with its traceback.
    """

    def __init__(  # noqa: PLR0913 - the one after the star is an option by name
        self,
        run: SinkRun,
        feed: Feed,
        committer: Committer,
        signals: Signals,
        monitor: RunMonitor,
        clock: Clock,
        *,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`release` gives the memory of caches back. Threads that could not be ended may still use them."""
        self._run = run
        self._feed = feed
        self._committer = committer
        self._signals = signals
        self._monitor = monitor
        self._clock = clock
        self._release = release
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._registry: TableRegistration | None = None
        self._survey: Survey | None = None
        self._watcher = threading.Thread(target=self._watch, name="calve-query", daemon=True)

    def begin(
        self, pipeline: Pipeline, registry: TableRegistration | None = None, survey: Survey | None = None
    ) -> bool:
        """Load the table, then start the threads; False for a sink that is already sealed: there is nothing to do."""
        self._registry, self._survey = registry, survey
        try:
            self._run.claims.boot()
        except BaseException as error:
            self._monitor.not_started(error)
            raise
        state = self._run.state
        self._monitor.started(
            state.fence.epoch, state.frontier.to_json(), state.pending_changes, state.position.committed
        )
        if self._run.state.sealed and not self._run.state.pending:
            self._finish(None)
            return False
        self._monitor.running()
        _running.add(self)
        self._committer.start()
        self._feed.start(self._run, pipeline.take)
        self._watcher.start()
        return True

    # ---- what users call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        self.stop()
        if kind is None and self._failure is not None:
            raise self._failure

    def __repr__(self) -> str:
        return f"<Query {self.status()}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.status()._repr_html_()

    def status(self) -> Status:
        """Return health, frontier and pending work."""
        return self._monitor.status

    def recent_commits(self) -> list[CommitReport]:
        """Return the last commits of this run, oldest first."""
        return self._monitor.recent_commits

    @property
    def failure(self) -> BaseException | None:
        """Why the sink failed, None while it runs and after a stop or a seal."""
        return self._failure

    @property
    def active(self) -> bool:
        """True until the sink has ended."""
        return not self._ended.is_set()

    def ask(self) -> int:
        """Request everything that the source has now; pass the result to `await_caught_up`, repeatedly if needed."""
        return self._feed.ask()

    @for_users
    def await_caught_up(self, timeout: float = 3600.0, *, asked: int | None = None) -> None:
        """Wait until everything that the source has now, or had at request `asked`, is committed.

        Raises TransientError if time runs out, and the sink's failure if it fails.
        """
        deadline = self._clock.monotonic() + timeout
        asked = self._feed.ask() if asked is None else asked
        with self._run.checkpoints.catching_up():
            if self._feed.await_idle(asked, timeout):
                self._run.batches.flush()
        while self.active and self._run.state.pending and self._clock.monotonic() < deadline:
            self._await_call()
        if not self.active and self._failure:
            raise self._failure
        if self._feed.failure or self._committer.failure:
            self._ended.wait(max(0.0, deadline - self._clock.monotonic()))
            raise self._failure or TransientError("the sink ended before it caught up")
        pending = self._run.state.pending
        if pending or self._clock.monotonic() >= deadline:
            raise TransientError(
                "the sink did not catch up in time",
                detail=f"{pending} batches are pending after {timeout:g} s. {self.status().cause}".strip(),
            )

    @for_users
    def await_maintained(self, timeout: float) -> None:
        """Wait until no maintenance is in progress, or time ran out; unfinished maintenance is left for later."""
        deadline = self._clock.monotonic() + timeout
        while self.active and self._committer.maintaining and self._clock.monotonic() < deadline:
            self._await_call()

    def _await_call(self) -> None:
        """Wait a moment; after a stop was requested, wait for the end only."""
        if self._signals.stopping:
            self._ended.wait(0.1)
        else:
            self._signals.await_call(self._signals.calls, 0.1)

    @for_users
    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end; False if time ran out. Raises the failure of the sink if it failed."""
        if not self._ended.wait(timeout):
            return False
        if self._failure:
            raise self._failure
        return True

    @property
    def sealed(self) -> bool:
        """True when the input is complete and committed."""
        return self._run.state.frontier.sealed

    @for_users
    def ask_to_stop(self, why: str = "stop() was called") -> None:
        """Like `stop`, without waiting for the end."""
        self._monitor.stopping(why)
        self._signals.stop()

    @for_users
    def stop(self, why: str = "stop() was called") -> None:
        """Finish the current checkpoint and commit, then end. Pending work stays recorded for the next start.

        `why` is shown as the cause of the state `stopped`.
        """
        self.ask_to_stop(why)
        if self._watcher.is_alive():
            self._watcher.join()

    @for_users
    def await_end(self, timeout: float) -> bool:
        """Wait for the end without raising its cause; False if time ran out."""
        return self._ended.wait(timeout)

    # ---- the watcher

    def _watch(self) -> None:
        """Wait until the run is to end, and end it. Whatever fails on the way: somebody waits for the end."""
        steps = (self._follow, self._signals.stop, self._feed.stop, self._committer.finish)
        unexpected = next(filter(None, [self._tried(step) for step in steps]), None)
        self._finish(self._committer.failure or self._feed.failure or unexpected)

    def _tried(self, step: Callable[[], None]) -> Exception | None:
        """Take a step, and return why it failed."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the thread's last resort: the query reports it
            _log.exception("the thread that watches sink %s failed unexpectedly", self._monitor.sink)
            return error
        return None

    def _follow(self) -> None:
        """Return when the run is to end; meanwhile do what is due."""
        while not self._signals.stopping:
            calls = self._signals.calls
            if not self._committer.alive:
                break
            if not self._feed.alive and self._has_finished_without_feed():
                break
            if self._registry is not None:
                self._registry.register_if_due(self._monitor.status)
            if self._survey is not None:
                self._survey.look_if_due()
            self._signals.await_call(calls, 1.0)

    def _has_finished_without_feed(self) -> bool:
        """Whether everything is committed; after a failure, everything complete: the rest stays staged."""
        if self._feed.failure is None:
            return not self._run.state.pending
        self._run.batches.reading_failed()
        return not self._run.batches.committable or self._status_is_stuck()

    def _status_is_stuck(self) -> bool:
        """Whether the feed failed and the rest cannot be committed now: it stays recorded, and the run fails."""
        return self._feed.failure is not None and self._monitor.status.health is Health.STALLED

    def _finish(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._tried(self._release)
        if failure is None:
            self._tried(self._report_end)
        try:
            self._monitor.ended(failure, sealed=self._run.state.frontier.sealed, pending=self._run.state.ready)
        finally:
            _running.discard(self)
            self._ended.set()

    def _report_end(self) -> None:
        """Register and measure what the run leaves behind."""
        if self._registry is not None:
            self._registry.finish(self._monitor.status)
        if self._survey is not None:
            self._survey.finish()


def exit_code(query: Query) -> int:
    """0 done, 1 failed or work left pending, 2 invalid input, 3 fenced."""
    failure = query.failure
    if isinstance(failure, CalveError):
        return failure.exit_code
    return 1 if failure or query.status().pending else 0
