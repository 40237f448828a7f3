"""Statuses of sinks: whatever is in the folder, every sink is told about."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from calve.model.health import Health, Status
from calve.pipeline.monitor import report_start
from calve.watch.status_files import forget_status, read_status, read_statuses, status_file, write_status

GOOD = replace(Status.unknown("good", 5), table="shop.t", health=Health.STOPPED, commits=3, rows=12, last_commit_ms=4)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_status(status_file(tmp_path, "good"), GOOD)
    return tmp_path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"health": "running"',
        b'{"health": 1}',
        b"\xff\xfe",
        b'{"sink": 1}',
        b"[" * 9999,
        json.dumps({**asdict(GOOD), "rows": "many"}).encode(),
        json.dumps({**asdict(GOOD), "frontier": None}).encode(),
    ],
)
def test_a_damaged_status_is_one_of_its_sink_alone(home: Path, content: bytes) -> None:
    (home / "status" / "bad.json").write_bytes(content)
    bad, good = read_statuses(home)
    assert good == GOOD
    assert (bad.sink, bad.health) == ("bad", Health.UNKNOWN)
    assert bad.cause.startswith(f"its status in {home}/status/bad.json cannot be read: ")


def test_a_folder_in_the_place_of_a_status_breaks_nothing(home: Path) -> None:
    (home / "status" / "folder.json").mkdir()
    assert [status.health for status in read_statuses(home)] == [Health.UNKNOWN, Health.STOPPED]
    report_start(home, "folder", Health.STALLED, "why")


def test_fields_of_another_version_are_left_out_and_missing_ones_have_their_defaults(home: Path) -> None:
    body = {**asdict(GOOD), "mood": "fine"}
    del body["late"]
    status_file(home, "good").write_text(json.dumps(body))
    assert read_statuses(home) == [GOOD]


def test_a_report_of_a_failed_start_does_not_look_at_other_sinks(home: Path) -> None:
    (home / "status" / "bad.json").write_text("{")
    report_start(home, "good", Health.STALLED, "the catalog does not answer")
    report_start(home, "bad", Health.HALTED, "why")
    bad, good = read_statuses(home)
    assert (good.health, good.cause) == (Health.STALLED, "the catalog does not answer")
    assert (good.table, good.commits, good.rows, good.last_commit_ms) == ("shop.t", 3, 12, 4)
    assert (bad.sink, bad.health, bad.cause) == ("bad", Health.HALTED, "why")


@pytest.mark.parametrize("name", ["../../../x", "a/b", "[/x]", ".."])
def test_a_status_stays_in_its_folder_whatever_the_sink_is_called(home: Path, name: str) -> None:
    report_start(home, name, Health.STALLED, "why")
    assert status_file(home, name).parent == home / "status"
    assert {status.sink for status in read_statuses(home)} == {"good", name}
    forget_status(home, name)
    assert read_statuses(home) == [GOOD]
    forget_status(home, name)


def test_counts_go_on_where_the_last_run_ended_unless_it_was_another_table() -> None:
    again = Status.begun("good", "shop.t", GOOD, 9)
    assert again == replace(GOOD, health=Health.STARTING, updated_ms=9, since_ms=9, started_ms=9)
    assert Status.begun("good", "shop.other", GOOD, 9).commits == 0
    assert read_status(Path("nowhere")) is None


def test_several_writers_of_one_status_do_not_disturb_each_other(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = status_file(home, "good")
    statuses = [replace(GOOD, cause="x" * 5000 * n, rows=n) for n in range(4)]

    def write(status: Status) -> None:
        for _ in range(100):
            write_status(file, status)
            assert read_status(file) in statuses

    with ThreadPoolExecutor(len(statuses)) as pool:
        list(pool.map(write, statuses))
    assert not caplog.records
    assert [path.name for path in file.parent.iterdir()] == [file.name]
