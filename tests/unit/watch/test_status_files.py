"""A status tells the truth about the process that wrote it, whatever became of that process or of the file."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from calve.model.health import (
    COMMITS_KEPT,
    PHASES,
    STATES_KEPT,
    CommitReport,
    Health,
    ProcessIdentity,
    StateChange,
    Status,
)
from calve.storage.part_files import part_of
from calve.watch import process
from calve.watch.process import this_process
from calve.watch.status_files import (
    CommitLog,
    append_commit,
    commits_file,
    forget_status,
    judged,
    read_commits,
    read_status,
    read_statuses,
    shorten_commits,
    status_file,
    write_status,
)

NOW = 1_000_000_000
RUNNING = replace(
    Status.unknown("s", NOW),
    table="shop.t",
    health=Health.RUNNING,
    heartbeat_ms=NOW,
    heartbeat_every_ms=5_000,
    process=this_process(),
)
ELSEWHERE = ProcessIdentity("another-host", "another-boot", 17, "17")
REPORT = CommitReport(7, "[5]", 3, 2, 1, 1, 100, 0.25, at_ms=NOW, phases=(("load", 0.1), ("commit", 0.15)))


def test_a_living_process_is_believed() -> None:
    assert judged(RUNNING, NOW + 6_000) == RUNNING


def test_a_killed_process_is_gone_at_once_and_what_it_did_before_is_told() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    with child.stdin:
        identity = replace(this_process(), pid=child.pid, started=process._started(child.pid) or "")
        status = replace(RUNNING, process=identity, health=Health.STALLED, cause="the catalog is down")
        assert judged(status, NOW).health is Health.STALLED
        child.send_signal(signal.SIGKILL)
        child.wait()
    found = judged(status, NOW)
    assert found.health is Health.GONE
    assert found.cause == (
        f'its process {child.pid} on {identity.host} no longer exists; the sink was "stalled" (the catalog is down)'
    )
    assert found.hint
    assert found.states[-1].health is Health.GONE
    assert found.since_ms == NOW


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert process.exists(replace(this_process(), pid=child.pid, started="")) is False
    finally:
        child.wait()


def test_another_process_with_the_same_number_is_not_taken_for_the_one_that_died() -> None:
    reused = replace(this_process(), started="1")
    assert process.exists(this_process()) is True
    assert process.exists(reused) is False
    assert judged(replace(RUNNING, process=reused), NOW).health is Health.GONE


def test_elsewhere_a_process_is_gone_after_missed_heartbeats() -> None:
    status = replace(RUNNING, process=ELSEWHERE)
    assert judged(status, NOW + 19_000).health is Health.RUNNING
    found = judged(status, NOW + 21_000)
    assert found.health is Health.GONE
    assert found.cause == 'no heartbeat for 21 s of process 17 on another-host; the sink was "running"'


def test_a_process_that_exists_and_writes_no_heartbeat_is_stalled() -> None:
    """It is suspended, or its home is full: the last status that it could write is no longer true."""
    found = judged(RUNNING, NOW + 60_000)
    assert found.health is Health.STALLED
    assert "no heartbeat for 60 s" in found.cause
    assert "cannot write its status" in found.cause


@pytest.mark.parametrize(
    "health", [Health.STOPPED, Health.HALTED, Health.FENCED, Health.SEALED, Health.PAUSED, Health.UNKNOWN]
)
def test_an_end_needs_no_living_process(health: Health) -> None:
    ended = replace(RUNNING, health=health, process=ELSEWHERE, cause="why")
    assert judged(ended, NOW * 2) == ended


def test_a_status_of_a_version_without_heartbeats_is_gone_when_it_is_old() -> None:
    old = replace(RUNNING, process=None, heartbeat_ms=0, heartbeat_every_ms=0)
    assert judged(old, NOW + 30_000).health is Health.RUNNING
    assert judged(old, NOW + 61_000).health is Health.GONE


def test_everything_survives_the_file(tmp_path: Path) -> None:
    status = replace(RUNNING, states=(StateChange(Health.RUNNING, NOW, "why", "hint", "r"),), rows_per_second=1.5)
    assert write_status(status_file(tmp_path, "s"), status) == ""
    assert read_status(status_file(tmp_path, "s"), NOW) == status
    assert [path.name for path in (tmp_path / "status").iterdir()] == ["s.json"]


def test_a_state_of_a_newer_version_is_unknown_and_its_counters_are_kept(tmp_path: Path) -> None:
    body = asdict(replace(RUNNING, commits=3, rows=12)) | {"health": "levitating", "aura": [1], "states": []}
    body["process"] = asdict(this_process()) | {"colour": "green"}
    body["states"] = [{"health": "levitating", "at_ms": 1, "new": True}]
    status_file(tmp_path, "s").parent.mkdir()
    status_file(tmp_path, "s").write_text(json.dumps(body))
    (found,) = read_statuses(tmp_path)
    assert (found.health, found.commits, found.rows) == (Health.UNKNOWN, 3, 12)
    assert "levitating" in found.cause
    assert [change.health for change in found.states] == [Health.UNKNOWN]
    assert Status.begun("s", "shop.t", found, NOW).commits == 3


@pytest.mark.parametrize(
    "damage",
    [
        {"states": 5},
        {"states": [{"at_ms": 1}]},
        {"states": [["running", 1]]},
        {"process": "me"},
        {"process": {"host": "h"}},
        {"table_health": {"snapshot_id": "x", "at_ms": 1}},
        {"table_health": {"snapshot_id": 1, "at_ms": 1, "sizes": [[1, 2, 3]]}},
        {"rows_per_second": "fast"},
        {"commits": True},
    ],
)
def test_a_damaged_part_makes_the_status_unreadable_and_nothing_else(tmp_path: Path, damage: dict[str, object]) -> None:
    write_status(status_file(tmp_path, "good"), replace(RUNNING, sink="good", health=Health.STOPPED))
    status_file(tmp_path, "bad").write_text(json.dumps(asdict(RUNNING) | damage))
    bad, good = read_statuses(tmp_path, NOW)
    assert (bad.sink, bad.health, good.health) == ("bad", Health.UNKNOWN, Health.STOPPED)
    assert "cannot be read" in bad.cause


def test_the_history_is_bounded_and_a_new_cause_is_no_new_state() -> None:
    status = RUNNING
    for number in range(3 * STATES_KEPT):
        status = status.entered(Health.STALLED, number, "why")
        status = status.entered(Health.STALLED, number, "another why")
        status = status.entered(Health.RUNNING, number)
    assert len(status.states) == STATES_KEPT
    assert [change.health for change in status.states[-2:]] == [Health.STALLED, Health.RUNNING]
    assert status.states[-2].cause == "why"


def test_commits_are_kept_for_display_up_to_a_bound_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    file = commits_file(tmp_path, "a/b")
    for number in range(2 * COMMITS_KEPT):
        append_commit(file, replace(REPORT, snapshot_id=number))
    with file.open("a") as log:
        log.write('{"snapshot_id": 1\n\n[]\n')
    assert shorten_commits(file) == COMMITS_KEPT
    found = read_commits(tmp_path, "a/b")
    assert found == [replace(REPORT, snapshot_id=n) for n in range(COMMITS_KEPT, 2 * COMMITS_KEPT)]
    assert read_commits(tmp_path, "a/b", 1) == found[-1:]
    assert read_commits(tmp_path, "nobody") == []
    forget_status(tmp_path, "a/b")
    assert not file.exists()


def test_a_new_run_removes_what_killed_ones_left_beside_the_log_of_commits(tmp_path: Path) -> None:
    abandoned = part_of(tmp_path / "other.json")
    abandoned.write_text("half")
    os.utime(abandoned, (0, 0))
    append_commit(tmp_path / "orders.commits", REPORT)
    assert shorten_commits(tmp_path / "orders.commits") == 1
    assert not abandoned.exists()


def test_the_last_commits_are_those_at_the_end_of_their_log(tmp_path: Path) -> None:
    log = commits_file(tmp_path, "s")
    phases = tuple((name, 123.456789) for name in PHASES)
    usual = CommitReport(0, f"[{10**14}]", 10**9, 10**9, 10**9, 10**6, 10**12, 0.1, phases=phases)
    for number in range(50):
        append_commit(log, replace(usual, snapshot_id=2**62 + number))
    for limit in (1, 7, 49, 50, 500):
        found = [report.snapshot_id - 2**62 for report in read_commits(tmp_path, "s", limit)]
        assert found == list(range(50))[-limit:]


def test_a_followed_log_of_commits_shows_what_was_added_and_what_replaced_it(tmp_path: Path) -> None:
    file = commits_file(tmp_path, "s")
    log = CommitLog(file, 3)
    assert log.newest() == ()
    for number in range(2):
        append_commit(file, replace(REPORT, snapshot_id=number))
    known = log.newest()
    assert [report.snapshot_id for report in known] == [0, 1]
    assert log.newest() is known
    append_commit(file, replace(REPORT, snapshot_id=2))
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])  # a line of which only a part is written yet
    assert [report.snapshot_id for report in CommitLog(file, 3).newest()] == [0, 1]
    file.write_bytes(whole)
    append_commit(file, replace(REPORT, snapshot_id=3))
    assert [report.snapshot_id for report in log.newest()] == [1, 2, 3]
    shorter = file.with_suffix(".part")
    append_commit(shorter, replace(REPORT, snapshot_id=9))
    shorter.replace(file)
    assert [report.snapshot_id for report in log.newest()] == [9]


def test_a_status_that_is_known_is_read_again_when_its_file_is_replaced(tmp_path: Path) -> None:
    file = status_file(tmp_path, "s")
    for rows in (1, 2, 1):
        write_status(file, replace(Status.unknown("s", NOW), rows=rows, health=Health.STOPPED))
        assert [status.rows for status in read_statuses(tmp_path)] == [rows]
    running = replace(Status.unknown("s", NOW), rows=7)
    assert read_statuses(tmp_path, running={"s": running, "elsewhere": running}) == [running]
