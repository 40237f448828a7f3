"""A run keeps its status file true: heartbeats, restarts, two runs of one sink, a home that cannot be written."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from calve.model.health import Health, Status
from calve.watch import reporter
from calve.watch.reporter import HEARTBEAT_MS, StatusReporter, report
from calve.watch.status_files import read_status, stored_status, write_status
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "status" / "s.json"


def begin(file: Path, clock: ManualClock, epoch: int) -> StatusReporter:
    before = read_status(file, clock.ms)
    made = StatusReporter(file, Status.begun("s", "shop.t", before, clock.ms), clock)
    made.enter(Health.STARTING)
    made.update(epoch=epoch)
    made.enter(Health.RUNNING)
    return made


def health(file: Path, clock: ManualClock) -> Health:
    found = read_status(file, clock.ms)
    assert found is not None
    return found.health


def test_an_idle_sink_writes_heartbeats_at_their_interval_and_no_more(file: Path, clock: ManualClock) -> None:
    made = begin(file, clock, 1)
    written = []
    for _ in range(40):
        clock.ms += HEARTBEAT_MS // 4
        made.beat()
        found = stored_status(file)
        assert found is not None
        assert clock.ms - found.heartbeat_ms < HEARTBEAT_MS + HEARTBEAT_MS // 4
        written.append(found.heartbeat_ms)
    assert len(set(written)) == 1 + 10
    made.enter(Health.STOPPED, "why")
    stopped_ms = clock.ms
    clock.ms += 10 * HEARTBEAT_MS
    made.beat()
    found = stored_status(file)
    assert found is not None
    assert (found.health, found.cause, found.heartbeat_ms) == (Health.STOPPED, "why", stopped_ms)


def test_a_real_process_beats_by_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_MS", 20)
    monkeypatch.setattr(reporter, "_hearts", [])
    made = report(file, "s", Health.STALLED, "the catalog is down")
    before = stored_status(file)
    assert before is not None
    made.begin_beating()
    try:
        found = before
        for _ in range(1000):
            found = stored_status(file) or before
            if found.heartbeat_ms > before.heartbeat_ms:
                break
            reporter._hearts[0]._stop.wait(0.01)
        assert found.heartbeat_ms > before.heartbeat_ms
    finally:
        made.end()
        reporter._hearts[0]._stop.set()


def test_the_history_goes_on_after_a_restart_and_shows_what_became_of_the_run_before(
    file: Path, clock: ManualClock
) -> None:
    first = begin(file, clock, 1)
    first.update(commits=3, rows=40, last_commit_ms=7)
    first.enter(Health.STALLED, "the catalog is down")
    first.enter(Health.RUNNING)
    dead = stored_status(file)
    assert dead is not None
    assert dead.process is not None
    killed = replace(dead, process=replace(dead.process, started="1"))
    write_status(file, killed)
    second = begin(file, clock, 2)
    assert [change.health.value for change in second.status.states] == (
        ["starting", "running", "stalled", "running", "gone", "starting", "running"]
    )
    assert (second.status.commits, second.status.rows, second.status.last_commit_ms) == (3, 40, 7)
    assert len({change.run for change in second.status.states if change.health is Health.STARTING}) == 2


def test_the_newest_of_two_runs_owns_the_status_and_a_fenced_one_does_not_hide_it(
    file: Path, clock: ManualClock
) -> None:
    old = begin(file, clock, 4)
    clock.ms += 1
    new = begin(file, clock, 5)
    clock.ms += 10_000
    old.update(rows=1)
    old.enter(Health.FENCED, "another run owns the table")
    assert health(file, clock) is Health.RUNNING
    new.enter(Health.STOPPED, "why")
    old.enter(Health.HALTED, "late")
    assert health(file, clock) is Health.STOPPED
    clock.ms += 1
    assert begin(file, clock, 5).status.epoch == 5
    assert health(file, clock) is Health.RUNNING


def test_a_run_that_starts_beside_a_living_one_and_fails_leaves_the_status_to_it(
    file: Path, clock: ManualClock
) -> None:
    living = begin(file, clock, 4)
    clock.ms += 1
    failed = StatusReporter(file, Status.begun("s", "shop.t", stored_status(file), clock.ms), clock)
    failed.enter(Health.STARTING)
    failed.enter(Health.HALTED, "no such column")
    clock.ms += HEARTBEAT_MS
    living.beat()
    assert health(file, clock) is Health.RUNNING


def test_a_status_that_cannot_be_written_is_told_once_a_minute_and_does_not_claim_to_run(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "status" / "s.json"
    made = begin(file, clock, 1)
    with caplog.at_level(logging.WARNING, "calve"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(reporter, "write_status", lambda *_: "[Errno 28] No space left on device")
        for _ in range(13):
            clock.ms += HEARTBEAT_MS
            made.beat()
        made.enter(Health.STALLED, "the disk is full")
    assert sum("No space left" in line for line in caplog.messages) == 2
    assert health(file, clock) is Health.STALLED
    made.enter(Health.RUNNING)
    assert health(file, clock) is Health.RUNNING


@pytest.mark.parametrize("step_ms", [-6 * 3_600_000, -HEARTBEAT_MS // 2, 6 * 3_600_000])
def test_a_clock_that_is_set_does_not_silence_a_sink(file: Path, clock: ManualClock, step_ms: int) -> None:
    made = begin(file, clock, 1)
    clock.ms += 10_000_000
    made.beat()
    clock.ms += step_ms
    for _ in range(10):
        clock.ms += HEARTBEAT_MS // 4
        made.update(rows=clock.ms)
        made.beat()
    found = read_status(file, clock.ms)
    assert found is not None
    assert (found.health, found.rows) == (Health.RUNNING, clock.ms)
    assert abs(clock.ms - found.heartbeat_ms) < 2 * HEARTBEAT_MS
