"""A sink whose thread ends counts, however it ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from calve.cli.run import _RANK
from calve.errors import TransientError
from calve.runtime import supervisor
from calve.runtime.monitor import read_statuses
from calve.runtime.statements import execute
from calve.runtime.supervisor import Ending, SinkResult, SinkRunner, Supervisor
from calve.runtime.workplace import Workplace, workplace
from calve.sql.parser import parse
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
    monkeypatch.setattr(SinkRunner, "_once", once)
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
