"""What `calve run` shows while it works, and says at the end."""

import io
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from calve.cli.live import StatusLines, end_line, line_of, live_table, progress
from calve.cli.logs import LogFormat, LogLevel, log_to_stderr
from calve.cli.show import PlainConsole, counted, format_bytes
from calve.model.health import Health, Status
from calve.spark.session_log import LOG_BYTES, log_file, open_log, rotate_log
from tests.support.clocks import ManualClock

RUNNING = replace(
    Status.unknown("orders", 10_000),
    health=Health.RUNNING,
    run_rows=1_234,
    rows_per_second=56.4,
    run_commits=1,
    lag_ms=61_000,
    last_commit_ms=7_000,
    pending=2,
    staged=3,
)


def test_the_live_table_shows_rate_lag_last_commit_and_pending_work_and_why_a_sink_waits() -> None:
    screen = PlainConsole(width=120)
    stalled = replace(RUNNING, sink="big", health=Health.STALLED, cause="the catalog is down\n  more", since_ms=4_000)
    with screen.capture() as captured:
        screen.print(live_table([RUNNING, stalled], 10_000))
    head, first, second, cause = captured.get().splitlines()
    assert head.split() == ["sink", "health", "rows/s", "changes", "commits", "last", "commit", "lag", "pending"]
    assert first.split() == ["orders", "running", "56", "1,234", "1", "3s", "1m", "1s", "2", "+", "3", "staged"]
    assert second.split()[:3] == ["big", "stalled", "6s"]
    assert cause == "big: the catalog is down"


def test_a_terminal_gets_the_table_and_log_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, width=100)
    monkeypatch.setattr(sys, "stderr", out)
    logger = logging.getLogger("calve")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    try:
        log_to_stderr(LogFormat.TEXT, quiet=False)
        with progress(screen, lambda: [RUNNING]) as say:
            say("starting Spark")
            logger.warning("something odd")
    finally:
        logger.handlers, logger.level, logger.propagate = handlers, level, propagate
    assert "orders" in out.getvalue()
    assert "WARNING: something odd" in out.getvalue()


def test_lines_come_at_changes_of_state_and_at_an_interval() -> None:
    clock = ManualClock(10_000)
    lines = StatusLines(clock, 30.0)
    assert lines.due([replace(RUNNING, health=Health.STARTING)]) == []
    (line,) = lines.due([RUNNING])
    assert line == "orders running, 1,234 changes (56/s), 1 commit, lag 1m 1s, 2 + 3 staged pending"
    assert lines.due([RUNNING]) == []
    clock.ms += 29_000
    assert lines.due([RUNNING]) == []
    stalled = replace(RUNNING, health=Health.STALLED, cause="the catalog is down\n  hint: x")
    (line,) = lines.due([stalled])
    assert line.endswith(", the catalog is down")
    clock.ms += 30_000
    assert len(lines.due([stalled])) == 1
    assert lines.due([replace(RUNNING, health=Health.STOPPED)]) == []


def test_a_quiet_run_shows_nothing() -> None:
    out = io.StringIO()
    with progress(Console(file=out, quiet=True), lambda: [RUNNING]) as say:
        say("starting Spark")
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("rows", "commits", "seconds", "line"),
    [
        (1, 1, 1.0, "s: done, 1 change in 1 commit, 1 second"),
        (0, 0, 0.04, "s: done, 0 changes in 0 commits, 0.0 seconds"),
        (1_234, 2, 61.25, "s: done, 1,234 changes in 2 commits, 61.2 seconds"),
    ],
)
def test_the_end_has_right_plurals(rows: int, commits: int, seconds: float, line: str) -> None:
    assert end_line("s", "done", rows=rows, commits=commits, seconds=seconds) == line


def test_words_for_numbers() -> None:
    assert [counted(n, "batch") for n in (0, 1, 2_000)] == ["0 batches", "1 batch", "2,000 batches"]
    assert [format_bytes(n) for n in (0, 999, 1_000, 1_234_567, 5 * 10**15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 PB",
    ]
    assert "lag" not in line_of(replace(RUNNING, lag_ms=None), 10_000)


@pytest.mark.parametrize(
    ("form", "quiet", "level", "logged"),
    [
        (LogFormat.TEXT, False, None, ["warning", "error"]),
        (LogFormat.TEXT, True, None, ["error"]),
        (LogFormat.JSON, True, None, ["info", "warning", "error"]),
        (LogFormat.TEXT, True, LogLevel.DEBUG, ["debug", "info", "warning", "error"]),
        (LogFormat.JSON, False, LogLevel.ERROR, ["error"]),
    ],
)
def test_the_log_level(
    form: LogFormat, *, quiet: bool, level: LogLevel | None, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logger = logging.getLogger("calve")
    handlers, before, propagate = logger.handlers, logger.level, logger.propagate
    try:
        log_to_stderr(form, quiet=quiet, level=level)
        for name in ("debug", "info", "warning", "error"):
            logger.log(logging.getLevelName(name.upper()), "told as %s", name)
    finally:
        logger.handlers, logger.level, logger.propagate = handlers, before, propagate
    assert [name for name in ("debug", "info", "warning", "error") if f"told as {name}" in out.getvalue()] == logged


def test_json_lines_have_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logger = logging.getLogger("calve")
    handlers, before, propagate = logger.handlers, logger.level, logger.propagate
    try:
        log_to_stderr(LogFormat.JSON, quiet=False)
        try:
            raise ValueError("odd \ud800")  # noqa: TRY301 - it needs a traceback
        except ValueError:
            logger.exception("it failed")
    finally:
        logger.handlers, logger.level, logger.propagate = handlers, before, propagate
    body = json.loads(out.getvalue())
    assert (body["level"], body["message"], body["error"]) == ("error", "it failed", "ValueError")
    assert "test_live.py" in body["traceback"]
    assert "ValueError: odd" in body["traceback"]


def test_the_log_of_spark_rotates_while_its_writer_keeps_it_open(tmp_path: Path) -> None:
    assert not rotate_log(tmp_path)
    log = open_log(tmp_path)
    with log.open("ab", buffering=0) as jvm:
        jvm.write(b"x" * LOG_BYTES)
        assert rotate_log(tmp_path)
        jvm.write(b"after\n")
        assert not rotate_log(tmp_path)
        assert log.read_bytes() == b"after\n"
        assert log.with_suffix(".log.1").stat().st_size == LOG_BYTES
        assert rotate_log(tmp_path, at_least=1)
        jvm.write(b"again\n")
    assert log_file(tmp_path).read_bytes() == b"again\n"
    assert log.with_suffix(".log.1").read_bytes() == b"after\n"


@pytest.mark.parametrize("level", ["warning", "error"])
def test_records_that_log_lines_quote_do_not_control_the_terminal(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logger = logging.getLogger("calve")
    handlers, before, propagate = logger.handlers, logger.level, logger.propagate
    try:
        log_to_stderr(LogFormat.TEXT, quiet=False)
        getattr(logger, level)("the first: %s", "\x1b]0;owned\x07\x9b2J\u202eabc\n  ü")
    finally:
        logger.handlers, logger.level, logger.propagate = handlers, before, propagate
    assert out.getvalue() == f"{level.upper()}: the first: \\x1b]0;owned\\x07\\x9b2J\\u202eabc\n  ü\n"
