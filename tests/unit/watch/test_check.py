"""`calve status --check`: exit codes that a monitor can rely on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calve.cli.main import app, main
from calve.clock import SystemClock
from calve.model.health import Health, Status
from calve.pipeline.monitor import report_paused, report_resumed
from calve.watch.process import this_process
from calve.watch.status_files import status_file, write_status


def put(home: Path, sink: str, health: Health, **values: object) -> None:
    now = SystemClock().now_ms()
    status = replace(
        Status.unknown(sink, now),
        table="shop.t",
        health=health,
        heartbeat_ms=now,
        heartbeat_every_ms=5_000,
        process=this_process(),
        **values,  # type: ignore[arg-type]
    )
    write_status(status_file(home, sink), status)


def check(home: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", "--check", "--home", str(home), *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (Health.STARTING, 0),
        (Health.RUNNING, 0),
        (Health.SEALED, 0),
        (Health.PAUSED, 0),
        (Health.STOPPED, 0),
        (Health.STALLED, 1),
        (Health.HALTED, 1),
        (Health.FENCED, 1),
        (Health.GONE, 1),
        (Health.UNKNOWN, 1),
    ],
)
def test_a_state_has_its_exit_code_and_one_bad_sink_is_enough(tmp_path: Path, health: Health, code: int) -> None:
    put(tmp_path, "a", Health.RUNNING)
    put(tmp_path, "b", health, cause="the reason", hint="what to do")
    found, out = check(tmp_path)
    assert found == code
    assert out == (f"b: {health}: the reason\n  hint: what to do\n" if code else "2 sinks are healthy\n")
    assert check(tmp_path, "a") == (0, "1 sink is healthy\n")


def test_a_killed_process_fails_the_check(tmp_path: Path) -> None:
    put(tmp_path, "s", Health.RUNNING)
    file = status_file(tmp_path, "s")
    body = json.loads(file.read_text())
    body["process"]["started"] = "1"
    file.write_text(json.dumps(body))
    code, out = check(tmp_path)
    assert code == 1
    assert out.startswith("s: gone: its process ")


def test_stopped_and_paused_sinks_fail_where_they_should_run(tmp_path: Path) -> None:
    put(tmp_path, "s", Health.STOPPED, cause="caught up")
    assert check(tmp_path, "--running") == (1, "s: stopped: caught up\n")
    put(tmp_path, "s", Health.PAUSED)
    assert check(tmp_path, "--running")[0] == 1
    put(tmp_path, "s", Health.RUNNING)
    assert check(tmp_path, "--running")[0] == 0


def test_limits_of_lag_and_commit_age(tmp_path: Path) -> None:
    now = SystemClock().now_ms()
    put(tmp_path, "s", Health.RUNNING, lag_ms=65_000, last_commit_ms=now - 120_000)
    assert check(tmp_path, "--max-lag", "2m", "--max-commit-age", "1h")[0] == 0
    code, out = check(tmp_path, "--max-lag", "1m")
    assert (code, out) == (1, "s: the table is 65 s behind its source\n")
    code, out = check(tmp_path, "--max-commit-age", "1m 30s")
    assert code == 1
    assert out.startswith("s: the last commit was 12")
    put(tmp_path, "s", Health.RUNNING)
    assert check(tmp_path, "--max-lag", "1ms")[0] == 0  # not known: not exceeded
    assert check(tmp_path, "--max-commit-age", "1h")[1].startswith("s: it has never committed\n")
    put(tmp_path, "s", Health.SEALED, lag_ms=65_000, last_commit_ms=0)
    assert check(tmp_path, "--max-lag", "1m", "--max-commit-age", "1m")[0] == 0


@pytest.mark.parametrize("health", [Health.STOPPED, Health.PAUSED, Health.HALTED, Health.GONE])
def test_a_sink_that_had_caught_up_when_it_ended_is_not_behind_and_its_source_is_not_polled(
    tmp_path: Path, health: Health
) -> None:
    hour_ago = SystemClock().now_ms() - 3_600_000
    put(tmp_path, "s", health, lag_ms=0, current_ms=hour_ago, polled_ms=hour_ago, updated_ms=hour_ago)
    code, out = check(tmp_path, "--max-lag", "30m")
    assert code == health.wrong
    assert "behind" not in out
    code, out = check(tmp_path, "--max-poll-age", "30m")
    if health is Health.PAUSED:  # it is meant to wait
        assert code == 0
    else:
        assert code == 1
        assert "s: its source was last polled 3600 s ago\n  hint: calve run reads what is new since.\n" in out
    assert check(tmp_path, "--max-poll-age", "2h")[0] == health.wrong


@pytest.mark.parametrize("values", [{}, {"current_ms": 1_000, "polled_ms": 2_000}])
def test_the_lag_of_a_sink_that_ended_before_it_had_caught_up_grows(tmp_path: Path, values: dict[str, int]) -> None:
    now = SystemClock().now_ms()
    values = {name: now - 3_600_000 + moment for name, moment in values.items()}
    put(tmp_path, "s", Health.STOPPED, lag_ms=0, updated_ms=now - 3_600_000, **values)
    code, out = check(tmp_path, "--max-lag", "30m")
    assert code == 1
    assert out.startswith("s: the table is 3")


def test_a_sink_that_was_reported_again_is_as_far_behind_as_before(tmp_path: Path) -> None:
    now = SystemClock().now_ms()
    put(tmp_path, "s", Health.STOPPED, lag_ms=0, current_ms=now - 3_600_000, polled_ms=now - 1, cause="a signal")
    report_paused(tmp_path, "s")
    report_resumed(tmp_path, "s")
    assert check(tmp_path, "--max-lag", "30m")[1].startswith("s: the table is 3600 s behind its source\n")


def test_a_source_that_was_never_polled_exceeds_any_age(tmp_path: Path) -> None:
    put(tmp_path, "s", Health.STARTING)
    assert check(tmp_path, "--max-poll-age", "1h") == (1, "s: its source was never polled\n")


def test_a_home_without_sinks_is_not_healthy(tmp_path: Path) -> None:
    code, out = check(tmp_path)
    assert code == 1
    assert "No sink has run" in out


def test_json_says_the_same(tmp_path: Path) -> None:
    put(tmp_path, "a", Health.RUNNING)
    put(tmp_path, "b", Health.HALTED, cause="why", hint="do")
    code, out = check(tmp_path, "--json")
    assert code == 1
    assert json.loads(out) == {
        "healthy": False,
        "sinks": {"a": "running", "b": "halted"},
        "problems": [{"sink": "b", "text": "halted: why", "hint": "do"}],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["--check", "--max-lag", "soon"],
        ["--max-lag", "1m"],
        ["--max-poll-age", "1m"],
        ["nobody", "--check"],
        ["--running"],
    ],
)
def test_a_wrong_call_is_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["calve", "status", "--home", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
