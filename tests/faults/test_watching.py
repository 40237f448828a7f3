"""What others see of a run: stalls, a kill, restarts, a lost status file, a dropped sink."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from calve.cli.main import app
from calve.cli.options import PageOptions
from calve.cli.serve import home_server
from calve.model.health import Health, Status
from calve.watch.reporter import HEARTBEAT_MS
from calve.watch.status_files import read_commits, read_statuses, status_file
from tests.faults.harness import Command
from tests.faults.where import TABLE, Where
from tests.support.pipelines import eventually

ROWS, CHANGES, STEP = 1_000, 2_000, 500
SOURCE = f"""
CREATE SOURCE orders
  FROM LOAD GENERATOR orders (ROWS = {ROWS}, UPDATES = {CHANGES}, MAX ROWS PER CHECKPOINT = {STEP});
"""
WAIT_SECONDS = 300

pytestmark = [pytest.mark.embedded, pytest.mark.positions]


@pytest.fixture
def command(tmp_path: Path, where: Where) -> Iterator[Command]:
    made = Command(tmp_path, where)
    made.write(where.connections, SOURCE, where.sink("orders", TABLE))
    yield made
    made.end()


def status(command: Command) -> Status | None:
    return next(iter(read_statuses(command.home)), None)


def cli(command: Command, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "--home", str(command.home)], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_a_stall_is_kept_in_the_history_a_killed_run_is_gone_and_counters_survive_everything(command: Command) -> None:
    gate = command.folder / "gate"
    gate.touch()
    faults = "record.before:2=error; commit.before:4=pause"
    process = command.start(CALVE_FAULTS=faults, CALVE_FAULTS_GATE=str(gate))
    eventually(lambda: (found := status(command)) is not None and found.commits >= 2)
    eventually(lambda: (found := status(command)) is not None and found.health is Health.RUNNING)
    before = status(command)
    assert before is not None
    assert [change.health.value for change in before.states] == ["starting", "running", "stalled", "running"]
    assert "record.before" in before.states[2].cause
    assert cli(command, "status", "--check")[0] == 0
    server = home_server(command.home, PageOptions("127.0.0.1", 0))
    with server.serving():
        assert page(server.url) == ("running", 200, {"running"})
        process.kill()
        process.communicate()
        killed = time.monotonic()
        assert page(server.url) == ("gone", 503, {"gone"})
        assert time.monotonic() - killed < HEARTBEAT_MS / 1000, "before a heartbeat is missed"
        check_gone(command)

    textfile = command.folder / "calve.prom"
    process = command.start("--until-caught-up", "--metrics-file", str(textfile))
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, out + err
    ended = status(command)
    assert ended is not None
    assert [change.health.value for change in ended.states][4:6] == ["gone", "starting"]
    assert ended.health in {Health.SEALED, Health.STOPPED}
    assert ended.cause
    check_end(command, ended, out)
    check_textfile(ended, textfile)

    status_file(command.home, "s").unlink()
    process = command.start("--until-caught-up")
    process.communicate(timeout=WAIT_SECONDS)
    again = status(command)
    assert again is not None
    assert (again.rows, again.commits) == (ended.rows, ended.commits)
    assert abs((again.last_commit_ms or 0) - (ended.last_commit_ms or 0)) < 5_000

    assert cli(command, "sql", "DROP SINK s")[0] == 0
    assert read_statuses(command.home) == []
    assert cli(command, "status", "--check")[0] == 1


def page(url: str) -> tuple[str, int, set[str]]:
    """What the page shows, how healthy it reports itself, and the states in its metrics."""
    (sink,) = requests.get(url + "api/state", timeout=10).json()["sinks"]
    health = requests.get(url + "healthz", timeout=10).status_code
    families = text_string_to_metric_families(requests.get(url + "metrics", timeout=10).text)
    samples = [sample for family in families for sample in family.samples if sample.name == "calve_health"]
    return sink["health"], health, {sample.labels["state"] for sample in samples if sample.value == 1}


def check_gone(command: Command) -> None:
    gone = status(command)
    assert gone is not None
    assert gone.health is Health.GONE
    assert "no longer exists" in gone.cause
    code, out = cli(command, "status", "--check")
    assert (code, out.startswith("s: gone: its process ")) == (1, True)
    assert json.loads(cli(command, "status", "--json")[1])[0]["health"] == "gone"
    assert "gone" in cli(command, "sql", "SHOW SINK STATUS")[1]


def check_end(command: Command, ended: Status, out: str) -> None:
    assert ended.rows == ROWS + CHANGES
    commits = read_commits(command.home, "s")
    assert len(commits) == ended.commits
    assert sum(commit.changes for commit in commits) == ROWS + CHANGES
    assert dict(commits[-2].phases).keys() >= {"load", "check", "lookup", "commit"}
    last = out.strip().splitlines()[-1]
    assert last.startswith("s: done, ")
    assert f" in {ended.run_commits} commit" in last
    assert ended.table_health is not None
    assert ended.table_health.rows - ended.table_health.position_deletes == len(command.rows())


def check_textfile(ended: Status, file: Path) -> None:
    samples = {
        (sample.name, sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    assert samples["calve_changes_total", ""] == ROWS + CHANGES
    assert samples["calve_commits_total", ""] == ended.commits
    assert samples["calve_health", ended.health.value] == 1
    assert samples["calve_table_data_files", ""] >= 1
    assert samples["calve_state_bytes", ""] > 0
