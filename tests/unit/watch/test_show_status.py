"""SHOW SINK STATUS, and what pausing, resuming and dropping a sink do to its status."""

from dataclasses import replace
from pathlib import Path

import pytest

from calve.definitions.workplace import Workplace, workplace
from calve.model.health import Health, Status
from calve.pipeline.supervisor import Ending, SinkResult, SinkRunner, Supervisor
from calve.sql.parser import parse
from calve.statements.answers import RowsAnswer
from calve.statements.execute import execute
from calve.watch.process import this_process
from calve.watch.status_files import read_statuses, status_file, write_status
from tests.integration.servers.test_logins import no_spark


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    found = workplace(tmp_path / "home", no_spark, {})
    apply(found, "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded')")
    apply(found, "CREATE SOURCE s FROM LOAD GENERATOR orders (ROWS = 1)")
    for name in ("a", "b", "c"):
        apply(found, f"CREATE SINK {name} FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE {name}")
    return found


def apply(place: Workplace, text: str) -> object:
    (answer,) = [execute(place, statement) for statement in parse(text)]
    return answer


def shown(place: Workplace, text: str = "SHOW SINK STATUS") -> dict[str, dict[str, str]]:
    answer = apply(place, text)
    assert isinstance(answer, RowsAnswer)
    return {row[0]: dict(zip(answer.headings, row, strict=True)) for row in answer.rows}


def healths(place: Workplace) -> dict[str, str]:
    return {status.sink: status.health.value for status in read_statuses(place.home)}


def test_every_defined_sink_is_shown_with_its_state_and_cause(place: Workplace) -> None:
    halted = replace(Status.unknown("a", 1), health=Health.HALTED, cause="why", hint="do", commits=3, last_commit_ms=1)
    write_status(status_file(place.home, "a"), halted)
    dead = replace(Status.unknown("b", 1), health=Health.RUNNING, process=replace(this_process(), started="1"))
    write_status(status_file(place.home, "b"), dead)
    found = shown(place)
    assert {name: row["state"] for name, row in found.items()} == {"a": "halted", "b": "gone", "c": "never run"}
    assert (found["a"]["cause"], found["a"]["hint"], found["a"]["commits"]) == ("why", "do", "3")
    assert found["a"]["last commit"] == "1970-01-01 00:00:00"
    assert found["c"]["seconds since commit"] == ""
    assert shown(place, "SHOW SINK STATUS LIKE 'b%'").keys() == {"b"}


def test_pausing_and_resuming_are_seen_without_a_run(place: Workplace) -> None:
    ran = replace(Status.unknown("a", 1), health=Health.STOPPED, table="shop.a")
    write_status(status_file(place.home, "a"), ran)
    for name in ("a", "b"):
        apply(place, f"ALTER SINK {name} PAUSE")
    assert healths(place) == {"a": "paused", "b": "paused"}
    assert shown(place)["a"]["state"] == "paused"
    for name in ("a", "b"):
        apply(place, f"ALTER SINK {name} RESUME")
    assert shown(place)["b"]["state"] == "never run"
    (status,) = read_statuses(place.home)
    assert (status.health, status.hint) == (Health.STOPPED, "calve run")
    assert [change.health.value for change in status.states] == ["paused", "stopped"]


def test_a_run_shows_paused_sinks_and_why_the_others_ended(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(place, "DROP SINK c")
    apply(place, "ALTER SINK a PAUSE")
    status_file(place.home, "a").unlink()

    def once(self: SinkRunner) -> SinkResult:
        self._tell(Health.STARTING)
        assert self._stop.wait(60)
        self._tell(Health.STOPPED, self._why)
        return SinkResult(self.definition.name, Ending.STOPPED)

    monkeypatch.setattr(SinkRunner, "_run_once", once)
    running = Supervisor(place, until_caught_up=False)
    monkeypatch.setattr(running, "_reconcile", stopping_after(running, running._reconcile))
    running.run()
    by_name = {status.sink: status for status in read_statuses(place.home)}
    assert {name: status.health.value for name, status in by_name.items()} == {"a": "paused", "b": "stopped"}
    assert by_name["b"].cause == "the process received SIGTERM"


def stopping_after(running: Supervisor, reconcile: object) -> object:
    def reconciled(definitions: object) -> int:
        waiting = reconcile(definitions)  # type: ignore[operator]
        running.ask_to_stop("the process received SIGTERM")
        return int(waiting)

    return reconciled


def test_a_dropped_sink_disappears_with_its_commits(place: Workplace) -> None:
    write_status(status_file(place.home, "a"), replace(Status.unknown("a", 1), health=Health.STOPPED))
    status_file(place.home, "a").with_suffix(".commits").write_text("{}\n")
    apply(place, "DROP SINK a")
    assert list((place.home / "status").iterdir()) == []
