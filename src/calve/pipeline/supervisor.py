"""Runs all sinks of a home folder side by side, each in its own thread, until they end or are stopped.

    definitions ──► one `SinkRunner` per sink ──► start ──► Query ──► end
                          ▲        transient failure: restart, with backoff
        ALTER, DROP, PAUSE: detected by the definitions' revision; stop and restart

A sink that fails or stalls does not block the others. After a terminal failure a sink stays halted with the reason;
this process never restarts a fenced sink.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from calve import metrics
from calve.clock import Clock, SystemClock
from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import CalveError, FencedError, InvalidInput, TerminalError, TransientError
from calve.model.connection import CatalogConnection
from calve.model.health import Health, Status
from calve.model.relation import TableInput
from calve.model.spec import TableName
from calve.pipeline.build import sink_of
from calve.pipeline.monitor import cause_of, describe, report_paused, report_start
from calve.pipeline.query import Query
from calve.plan.sinks import plan_sink
from calve.retry import Backoff
from calve.sql.statements import ObjectKind
from calve.watch.reporter import StatusReporter
from calve.watch.status_files import forget_status, status_file

_log = logging.getLogger("calve")

LOOK_EVERY = 0.5
"""Seconds between two checks of the definitions."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a sink is restarted after a transient failure: doubled each time."""
PATIENCE = 120.0
"""Seconds that a sink may be stalled before `until_caught_up` gives up on it; its work stays pending."""
MAINTENANCE_SECONDS = 10.0
"""Seconds that `until_caught_up` waits for maintenance that a commit triggered."""


MadeOf = tuple[tuple[str, int], ...]
"""Versions of a sink and of everything that it refers to."""


class Ending(Enum):
    """How a runner ended."""

    DONE = auto()
    STOPPED = auto()
    FAILED = auto()
    FENCED = auto()


@dataclass(frozen=True)
class SinkResult:
    """How a sink ended."""

    name: str
    ending: Ending
    cause: BaseException | None = None
    pending: int = 0
    logged: bool = False
    """Whether the cause was logged completely."""
    rows: int = 0
    """Changes recorded by this process."""
    commits: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 done, 1 failed or work left pending, 2 invalid input, 3 fenced."""
        if self.ending is Ending.FENCED:
            return FencedError.exit_code
        if self.cause is not None:
            return self.cause.exit_code if isinstance(self.cause, CalveError) else 1
        return 1 if self.pending else 0


class SinkRunner:
    """One sink of one version of its definition."""

    def __init__(
        self,
        place: Workplace,
        definition: Definition,
        made_of: MadeOf,
        *,
        until_caught_up: bool,
        after: Sequence["SinkRunner"] = (),
    ) -> None:
        """`after` write tables that this sink reads: to catch up, it waits until they have."""
        self._place = place
        self.definition = definition
        self.made_of = made_of
        self._until_caught_up = until_caught_up
        self._after = tuple(after)
        self._clock: Clock = SystemClock()
        self._stop = threading.Event()
        self._query: Query | None = None
        self._why = ""
        self._rows = self._commits = 0
        self._report: StatusReporter | None = None
        """Reports the state while no run does."""
        self.result: SinkResult | None = None
        self._thread = threading.Thread(target=self._main, name=f"calve-sink-{definition.name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True until the sink has ended."""
        return self._thread.is_alive()

    @property
    def query(self) -> Query | None:
        """The current run."""
        return self._query

    @property
    def status(self) -> Status | None:
        """The current status of the sink; None before it started."""
        query, report = self._query, self._report
        return query.status() if query is not None else report.status if report is not None else None

    @property
    def fenced(self) -> bool:
        """True once another process took over the sink: this process never restarts it."""
        return self.result is not None and self.result.ending is Ending.FENCED

    def ask_to_stop(self, why: str) -> None:
        """Finish the current commit, then end."""
        self._why = self._why or why
        self._stop.set()
        query = self._query
        if query is not None:
            query.ask_to_stop(self._why)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, or until time ran out."""
        self._thread.join(timeout)

    def _main(self) -> None:
        """Run the sink; always sets a result."""
        started = self._clock.monotonic()
        try:
            while any(runner.alive for runner in self._after) and not self._stop.wait(LOOK_EVERY):
                pass
            self._run()
        except BaseException as error:  # noqa: BLE001 - nothing else would report it
            self.result = SinkResult(self.definition.name, Ending.FAILED, error)
            _log.exception("sink %s ended unexpectedly", self.definition.name)
            if self._report is not None:
                self._report.enter(Health.HALTED, *cause_of(error))
        finally:
            if self._report is not None:
                self._report.end()
            if self.result is not None:
                seconds = self._clock.monotonic() - started
                self.result = replace(self.result, rows=self._rows, commits=self._commits, seconds=seconds)

    def _tell(self, health: Health, cause: str = "", hint: str = "") -> None:
        """Report the state of the sink while it has no run."""
        self._report = report_start(self._place.home, self.definition.name, health, cause, hint)
        if health.active:
            self._report.begin_beating()

    def _run(self) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while True:
            started = self._clock.monotonic()
            try:
                self.result = self._run_once()
                return
            except FencedError as error:
                self.result = SinkResult(self.definition.name, Ending.FENCED, error)
                return
            except (TerminalError, InvalidInput) as error:
                self._halt(error)
                return
            except Exception as error:  # noqa: BLE001 - the supervisor's last resort: unknown failures are retried
                if self._clock.monotonic() - started > LONGEST_WAIT:
                    backoff.reset()
                wait = backoff.next()
                if self._stop.is_set() or (self._until_caught_up and wait > FIRST_WAIT * 4):
                    self._halt(error)
                    return
                _log.warning("sink %s restarts in %g s: %s", self.definition.name, wait, describe(error))
                cause, hint = cause_of(error)
                self._query = None  # it has ended, unlike the sink
                self._tell(Health.STALLED, f"{cause}\n  it restarts in {wait:g} s", hint)
            if self._stop.wait(wait):
                self._tell(Health.STOPPED, self._why)
                self.result = SinkResult(self.definition.name, Ending.STOPPED)
                return

    def _halt(self, error: BaseException) -> None:
        name = self.definition.name
        pending = self._query.status().pending if self._query else 0
        self.result = SinkResult(name, Ending.FAILED, error, pending, logged=True)
        if self._query is None:
            self._tell(Health.HALTED, *cause_of(error))
        _log.error("sink %s halted: %s", name, describe(error))

    def _run_once(self) -> SinkResult:
        """Run the sink once, from start to end. Raises its failure."""
        self._query = None
        if self._report is None or self._report.known.health is not Health.STALLED:
            self._tell(Health.STARTING)
        definitions = self._place.definitions()
        plan = plan_sink(self.definition, definitions)
        sink = sink_of(self._place.home, plan, definitions, self._place.vault)
        query = sink.start_once(plan.state)
        self._query = query
        try:
            behind = self._follow(query)
        finally:
            ended = query.status()
            self._rows, self._commits = self._rows + ended.run_rows, self._commits + ended.run_commits
        if behind is not None:
            return SinkResult(plan.spec.name, Ending.FAILED, behind, query.status().pending)
        pending = query.status().pending
        stopped = self._stop.is_set() and not query.sealed
        return SinkResult(plan.spec.name, Ending.STOPPED if stopped else Ending.DONE, pending=pending)

    def _follow(self, query: Query) -> TransientError | None:
        """Wait for the end of a run; returns why it did not catch up, if that was wanted. Raises its failure."""
        if self._stop.is_set():
            query.ask_to_stop(self._why)
        behind = None
        if self._until_caught_up and query.active:
            behind = self._catch_up(query)
            if not self._stop.is_set():
                query.await_maintained(MAINTENANCE_SECONDS)
            query.stop("caught up" if behind is None else f"{behind.primary}: {behind.detail}")
        query.await_termination()
        return behind

    def _catch_up(self, query: Query) -> TransientError | None:
        """Wait until everything the source has now is committed, as long as there is progress; returns why not."""
        stalled_since: float | None = None
        asked = query.ask()
        while query.active and not self._stop.is_set():
            try:
                query.await_caught_up(timeout=1.0, asked=asked)
            except TransientError:
                if query.status().health is not Health.STALLED:
                    stalled_since = None
                    continue
                now = self._clock.monotonic()
                stalled_since = now if stalled_since is None else stalled_since
                if now - stalled_since > PATIENCE:
                    return TransientError("the sink did not catch up", detail=query.status().cause)
            else:
                break
        return None


class Supervisor:
    """All sinks of one process."""

    def __init__(self, place: Workplace, *, until_caught_up: bool) -> None:
        self._place = place
        self._until_caught_up = until_caught_up
        self._stop = threading.Event()
        self._why = ""
        self._runners: dict[str, SinkRunner] = {}

    @property
    def runners(self) -> list[SinkRunner]:
        """The runners of all sinks, running or ended."""
        return list(self._runners.values())

    def statuses(self) -> list[Status]:
        """The current status of every sink of this process."""
        found = (runner.status for runner in self.runners)
        return [status for status in found if status is not None]

    def ask_to_stop(self, why: str = "the process was stopped") -> None:
        """Stop all sinks; may be called by a signal handler."""
        self._why = self._why or why
        self._stop.set()

    def run(self) -> list[SinkResult]:
        """Run until every sink has ended or a stop is requested; returns how they ended.

        Raises CalveError if the definitions cannot be read at the start. Later on sinks keep running as they are.
        """
        try:
            self._supervise()
        finally:
            self._end_runners()
        return [runner.result or _without_result(runner) for runner in self._runners.values()]

    def _supervise(self) -> None:
        revision: str | None = None
        complaint = ""
        waiting = 0
        while not self._stop.is_set():
            try:
                now = self._place.store.revision
                if now != revision:
                    waiting = self._reconcile(self._place.definitions())
                    revision = now
                    self._place.store.settle()
                complaint = ""
            except CalveError as error:
                if revision is None:
                    raise
                if describe(error) != complaint:
                    complaint = describe(error)
                    _log.warning("sinks keep running as they are: the definitions could not be read: %s", complaint)
            if not any(runner.alive for runner in self._runners.values()) and (not waiting or self._failed):
                break
            self._stop.wait(LOOK_EVERY)

    def _end_runners(self) -> None:
        for runner in self._runners.values():
            runner.ask_to_stop(self._why or "the other sinks of this process have ended")
        if self._stop.is_set():
            _log.info("stopping after the current commits: %s", self._why)
        for runner in self._runners.values():
            runner.join()

    @property
    def _failed(self) -> bool:
        """Whether a sink ended with a failure: then the supervisor does not stay for paused sinks."""
        return any(runner.result and runner.result.exit_code for runner in self._runners.values())

    def _reconcile(self, definitions: Definitions) -> int:
        """Start and stop runners to match the definitions; returns the number of paused sinks."""
        wanted = {d.uid: d for d in definitions.of(ObjectKind.SINK)}
        runnable = {uid: d for uid, d in wanted.items() if not d.standing.paused}
        made_of = {uid: definitions.fingerprint(d) for uid, d in runnable.items()}
        fenced = {uid for uid, runner in self._runners.items() if uid in wanted and runner.fenced}
        changed = [
            uid for uid, runner in self._runners.items() if uid not in fenced and made_of.get(uid) != runner.made_of
        ]
        for uid in changed:
            why = "it was dropped" if uid not in wanted else "its definition changed" if uid in runnable else "paused"
            self._runners[uid].ask_to_stop(why)
        for uid in changed:
            runner = self._runners[uid]
            while runner.alive:
                if self._stop.is_set():
                    return 0  # the others must not wait until this one has ended
                runner.join(LOOK_EVERY)
            del self._runners[uid]
            if uid not in wanted:
                forget_status(self._place.home, runner.definition.name)
                metrics.LIVE.remove(str(status_file(self._place.home, runner.definition.name)))
        for uid in wanted.keys() - runnable.keys() - fenced:
            report_paused(self._place.home, wanted[uid].name)
        upstream = upstream_of(definitions, list(runnable.values())) if self._until_caught_up else {}
        for uid, definition in in_order(runnable, upstream).items():
            if uid not in self._runners:
                self._runners[uid] = SinkRunner(
                    self._place,
                    definition,
                    made_of[uid],
                    until_caught_up=self._until_caught_up,
                    after=[self._runners[writer] for writer in upstream.get(uid, ()) if writer in self._runners],
                )
        return 0 if self._until_caught_up else len(wanted.keys() - runnable.keys() - fenced)


def upstream_of(definitions: Definitions, sinks: Sequence[Definition]) -> dict[str, set[str]]:
    """For each sink, by uid, the sinks that write the table that it reads."""
    writers: dict[tuple[CatalogConnection, TableName], set[str]] = {}
    reads: dict[str, tuple[CatalogConnection, TableName]] = {}
    for sink in sinks:
        try:
            plan = plan_sink(sink, definitions)
        except InvalidInput:
            continue  # its runner reports it
        writers.setdefault((plan.catalog, plan.spec.table), set()).add(sink.uid)
        if isinstance(plan.source.input, TableInput):
            reads[sink.uid] = (plan.source.input.catalog, plan.source.input.table)
    return {uid: writers.get(table, set()) - {uid} for uid, table in reads.items()}


def in_order(sinks: dict[str, Definition], upstream: dict[str, set[str]]) -> dict[str, Definition]:
    """Sinks after those that write what they read; a circle is cut anywhere."""
    placed: dict[str, Definition] = {}

    def place(uid: str, seen: frozenset[str]) -> None:
        for before in sorted(upstream.get(uid, ())):
            if before not in placed and before not in seen and before in sinks:
                place(before, seen | {uid})
        placed.setdefault(uid, sinks[uid])

    for uid in sinks:
        place(uid, frozenset())
    return placed


def _without_result(runner: SinkRunner) -> SinkResult:
    name = runner.definition.name
    return SinkResult(name, Ending.FAILED, TerminalError(f'sink "{name}" ended without a result', hint="See the log."))
