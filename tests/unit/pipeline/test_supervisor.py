"""A sink whose thread ends counts, however it ends."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from calve.cli.run import _RANK
from calve.definitions.store import HomeDefinitions
from calve.definitions.workplace import Workplace, workplace
from calve.errors import CalveError, FencedError, InvalidInput, TerminalError, TransientError
from calve.model.health import Health, Status
from calve.pipeline import supervisor
from calve.pipeline.query import Query
from calve.pipeline.supervisor import Ending, SinkResult, SinkRunner, Supervisor
from calve.sql.parser import parse
from calve.sql.statements import ObjectKind
from calve.statements.execute import execute
from calve.watch.status_files import read_statuses
from tests.integration.servers.test_logins import no_spark


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(supervisor, "LOOK_EVERY", 0.01)
    found = workplace(tmp_path / "home", no_spark, {})
    for statement in parse("""
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE s FROM LOAD GENERATOR orders (ROWS = 1);
        CREATE SINK s FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE t;
    """):
        execute(found, statement)
    return found


def results(place: Workplace, once: Callable[[SinkRunner], SinkResult], monkeypatch: pytest.MonkeyPatch) -> SinkResult:
    monkeypatch.setattr(SinkRunner, "_run_once", once)
    (result,) = Supervisor(place, until_caught_up=True).run()
    return result


def test_a_damaged_status_of_any_sink_hides_no_failure(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.home / "status").mkdir()
    for name in ("s", "another"):
        (place.home / "status" / f"{name}.json").write_text('{"health": "running", "mood": 1')

    def fails(_runner: SinkRunner) -> SinkResult:
        raise TransientError("the catalog does not answer")

    result = results(place, fails, monkeypatch)
    assert (result.ending, result.exit_code, str(result.cause)) == (Ending.FAILED, 1, "the catalog does not answer")
    assert {status.sink: status.health for status in read_statuses(place.home)} == {"another": "unknown", "s": "halted"}


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), MemoryError("no room"), RuntimeError("odd")])
def test_a_thread_that_ends_unexpectedly_is_a_failure_with_its_cause(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(supervisor, "report_start", broken)

    def fails(_runner: SinkRunner) -> SinkResult:
        raise TransientError("the catalog does not answer")

    result = results(place, fails, monkeypatch)
    assert (result.ending, result.exit_code, result.cause) == (Ending.FAILED, 1, error)
    assert "sink s ended unexpectedly" in caplog.text


def test_a_sink_without_a_result_counts_as_failed(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkRunner, "_main", lambda _runner: None)
    (result,) = Supervisor(place, until_caught_up=True).run()
    assert result.exit_code == 1
    assert str(result.cause).startswith('sink "s" ended without a result')
    assert max([0, result.exit_code], key=_RANK.__getitem__) == 1


def test_a_dropped_sink_leaves_the_status(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_runner: SinkRunner) -> SinkResult:
        raise TransientError("the catalog does not answer")

    results(place, fails, monkeypatch)
    assert [status.sink for status in read_statuses(place.home)] == ["s"]
    for statement in parse("DROP SINK s"):
        execute(place, statement)
    assert read_statuses(place.home) == []


LONG = 10.0
PATIENT = 3
"""Looks without a running sink, after which a supervisor is known to wait."""

OUTCOMES: dict[str, Callable[[str], SinkResult]] = {
    "done": lambda name: SinkResult(name, Ending.DONE),
    "pending": lambda name: SinkResult(name, Ending.DONE, pending=2),
    "halted": lambda _: _raised(TerminalError("another writer changed the rows")),
    "invalid": lambda _: _raised(InvalidInput("no such column")),
    "fenced": lambda _: _raised(FencedError("lost its fence")),
}


def _raised(error: CalveError) -> SinkResult:
    raise error


@pytest.mark.parametrize(
    ("sinks", "code"),
    [
        (("fenced", "paused"), 3),
        (("halted", "paused"), 1),
        (("invalid", "paused"), 2),
        (("pending", "paused"), 1),
        (("done", "fenced"), 3),
        (("done", "halted"), 1),
        (("fenced", "halted", "paused"), 3),
        (("done", "fenced", "paused"), 3),
        (("done", "invalid", "halted"), 1),
        (("done", "done"), 0),
        (("done", "paused"), None),
        (("paused", "paused"), None),
    ],
)
def test_paused_sinks_hold_back_no_end_but_a_good_one(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, sinks: tuple[str, ...], code: int | None
) -> None:
    """Without a code the process waits for somebody who resumes the sink, or stops it."""
    define(place, sinks)
    monkeypatch.setattr(
        SinkRunner, "_run_once", lambda self: OUTCOMES[self.definition.name.split("_")[0]](self.definition.name)
    )
    running = Supervisor(place, until_caught_up=False)
    waits = stopped_when_it_waits(running, monkeypatch)
    results = running.run()
    assert (len(waits) > PATIENT) == (code is None)
    assert sorted(r.name.split("_")[0] for r in results) == sorted(kind for kind in sinks if kind != "paused")
    assert max((r.exit_code for r in results), key=_RANK.__getitem__, default=0) == (code or 0)


def test_a_fenced_sink_is_not_started_again_and_counts_whatever_becomes_of_its_definition(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(place, ("fenced", "done"))
    starts: list[str] = []

    def once(self: SinkRunner) -> SinkResult:
        starts.append(self.definition.name)
        if self.definition.name == "fenced_0":
            raise FencedError("lost its fence")
        while "fenced_0" not in changed and not self._stop.wait(0.01):
            if starts.count("fenced_0"):
                apply(place, "ALTER SINK fenced_0 SET (COMMIT INTERVAL = '5m')")
                changed.append("fenced_0")
        self._stop.wait(0.1)
        return SinkResult(self.definition.name, Ending.DONE)

    changed: list[str] = []
    monkeypatch.setattr(SinkRunner, "_run_once", once)
    results = Supervisor(place, until_caught_up=False).run()
    assert sorted(starts) == ["done_1", "fenced_0"]
    assert {r.name: r.exit_code for r in results} == {"done_1": 0, "fenced_0": 3}


def test_a_stop_reaches_all_sinks_although_one_that_was_altered_takes_its_time(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(place, ("altered", "other"))
    runs, ends, stopped = threading.Event(), threading.Event(), threading.Event()
    in_time: list[bool] = []

    def once(self: SinkRunner) -> SinkResult:
        if self.definition.name == "altered_0":
            runs.set()
            self._stop.wait(LONG)
            ends.set()
            in_time.append(stopped.wait(LONG))  # its last commit takes as long as that
        elif self._stop.wait(LONG):
            stopped.set()
        return SinkResult(self.definition.name, Ending.STOPPED)

    monkeypatch.setattr(SinkRunner, "_run_once", once)
    running = Supervisor(place, until_caught_up=False)
    results: list[SinkResult] = []
    thread = threading.Thread(target=lambda: results.extend(running.run()))
    thread.start()
    assert runs.wait(LONG)
    apply(place, "ALTER SINK altered_0 SET (COMMIT INTERVAL = '5m')")
    assert ends.wait(LONG)
    running.ask_to_stop()
    thread.join(LONG)
    assert in_time == [True]
    assert {result.name: result.ending for result in results} == dict.fromkeys(("altered_0", "other_1"), Ending.STOPPED)


@pytest.mark.parametrize("error", [TransientError("no answer"), TerminalError("written by a newer version")])
def test_sinks_keep_running_while_the_definitions_cannot_be_read(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, error: CalveError, caplog: pytest.LogCaptureFixture
) -> None:
    runs, failed = threading.Event(), threading.Event()
    asked = 0

    def revision(_store: HomeDefinitions) -> str:
        nonlocal asked
        if not runs.is_set():
            return "first"
        asked += 1
        if asked > PATIENT:
            failed.set()
        raise error

    def once(self: SinkRunner) -> SinkResult:
        runs.set()
        assert failed.wait(LONG)
        return SinkResult(self.definition.name, Ending.STOPPED if self._stop.is_set() else Ending.DONE)

    monkeypatch.setattr(SinkRunner, "_run_once", once)
    monkeypatch.setattr(HomeDefinitions, "revision", property(revision))
    (result,) = Supervisor(place, until_caught_up=False).run()
    assert result.ending is Ending.DONE
    assert sum(error.primary in line for line in caplog.messages) == 1, "said once"


@pytest.mark.parametrize("error", [TransientError("no answer"), TerminalError("written by a newer version")])
def test_definitions_that_cannot_be_read_at_the_start_are_an_error_and_not_an_empty_success(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, error: CalveError
) -> None:
    def revision(_store: HomeDefinitions) -> str:
        raise error

    monkeypatch.setattr(HomeDefinitions, "revision", property(revision))
    with pytest.raises(type(error), match=error.primary):
        Supervisor(place, until_caught_up=True).run()


def test_a_failure_of_the_supervisor_stops_its_sinks_after_their_commits(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, ended = threading.Event(), threading.Event()

    def revision(_store: HomeDefinitions) -> str:
        if runs.is_set():
            raise MemoryError
        return "first"

    def once(self: SinkRunner) -> SinkResult:
        runs.set()
        if self._stop.wait(LONG):
            ended.set()
        return SinkResult(self.definition.name, Ending.STOPPED)

    monkeypatch.setattr(SinkRunner, "_run_once", once)
    monkeypatch.setattr(HomeDefinitions, "revision", property(revision))
    with pytest.raises(MemoryError):
        Supervisor(place, until_caught_up=False).run()
    assert ended.is_set()


def test_a_sink_that_waits_for_its_restart_says_so_and_not_that_it_has_ended(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Status.unknown("s", 0).entered(Health.HALTED, 0, "the catalog does not answer")

    def fails(self: SinkRunner) -> SinkResult:
        self._query = cast("Query", SimpleNamespace(status=lambda: ended, ask_to_stop=lambda _: None))
        raise TransientError("the catalog does not answer")

    def seen(_timeout: float | None = None) -> bool:
        statuses.extend(running.statuses())
        return True

    statuses: list[Status] = []
    monkeypatch.setattr(SinkRunner, "_run_once", fails)
    running = Supervisor(place, until_caught_up=False)
    (definition,) = place.definitions().of(ObjectKind.SINK)
    monkeypatch.setattr(SinkRunner, "_main", lambda _: None)
    runner = SinkRunner(place, definition, (), until_caught_up=False)
    runner.join()
    running._runners["s"] = runner
    monkeypatch.setattr(runner._stop, "wait", seen)
    runner._run()
    assert [(status.health, "it restarts in" in status.cause) for status in statuses] == [(Health.STALLED, True)]


def define(place: Workplace, sinks: Sequence[str]) -> None:
    apply(place, "DROP SINK s")
    for number, kind in enumerate(sinks):
        name = f"{kind}_{number}"
        apply(place, f"CREATE SINK {name} FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE {name}")
        if kind == "paused":
            apply(place, f"ALTER SINK {name} PAUSE")


def apply(place: Workplace, text: str) -> None:
    for statement in parse(text):
        execute(place, statement)


def stopped_when_it_waits(running: Supervisor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stops a supervisor that looks again although no sink runs; what it did is told in the list."""
    waits: list[str] = []
    wait = running._stop.wait

    def looked(timeout: float | None = None) -> bool:
        if running.runners and any(runner.alive for runner in running.runners):
            return wait(timeout)
        if len(waits) == PATIENT:
            running.ask_to_stop()
        waits.append("waits")
        return wait(timeout)

    monkeypatch.setattr(running._stop, "wait", looked)
    return waits
