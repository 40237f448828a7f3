"""How often tables are loaded for the page, whatever their catalogs do."""

import threading
from pathlib import Path

import pytest

from calve.errors import TransientError
from calve.lake import Lake
from calve.web import tables
from calve.web.tables import TableAddress, TableWatch, rest_after
from tests.support.clocks import ManualClock
from tests.support.pipelines import eventually
from tests.support.runs import NAME, Run, spec_of

NOW_MS = 1_790_000_000_000


class Catalogs:
    """Counts how often a table is asked for; fails or blocks on demand."""

    def __init__(self, home: Path) -> None:
        self.asked: list[str] = []
        self.fails = False
        self.bug: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self._address = TableAddress(Lake(home, {}).table(str(NAME)), "orders", "main")

    def locate(self, sink: str) -> TableAddress:
        self.asked.append(sink)
        self.gate.wait(30)
        if self.bug is not None:
            raise self.bug
        if self.fails:
            raise TransientError("the catalog is away", hint="Wait.")
        return self._address


@pytest.fixture
def catalogs(tmp_path: Path) -> Catalogs:
    assert Run(tmp_path, spec_of("orders")).commit({1: "a", 2: "b"})
    return Catalogs(tmp_path)


def idle(watch: TableWatch) -> bool:
    return not any(watched.loading for watched in watch._watched.values())


def look(watch: TableWatch, clock: ManualClock, seconds: int, commit: int | None = None) -> None:
    """Ask every second, as a client that listens does."""
    for _ in range(seconds):
        watch.want({"orders": commit})
        eventually(lambda: idle(watch))
        clock.ms += 1000


def test_a_table_is_loaded_once_and_again_after_a_minute(catalogs: Catalogs) -> None:
    clock = ManualClock(NOW_MS)
    watch = TableWatch(catalogs.locate, clock)
    look(watch, clock, 50)
    assert len(catalogs.asked) == 1
    details = watch.of("orders").details
    assert details is not None
    assert (details.rows, details.data_files, list(details.progress)) == (2, 1, ["orders"])
    look(watch, clock, 50)
    assert len(catalogs.asked) == 2


def test_a_commit_is_shown_soon_and_many_commits_do_not_hammer_the_catalog(catalogs: Catalogs) -> None:
    clock = ManualClock(NOW_MS)
    watch = TableWatch(catalogs.locate, clock)
    for commit in range(60):
        look(watch, clock, 1, commit)
    assert len(catalogs.asked) == 12  # every five seconds


def test_a_catalog_that_is_away_is_asked_less_and_less_often_and_what_was_known_stays(catalogs: Catalogs) -> None:
    clock = ManualClock(NOW_MS)
    watch = TableWatch(catalogs.locate, clock)
    look(watch, clock, 1)
    catalogs.fails = True
    for second in range(600):
        look(watch, clock, 1, second)  # commits all the time
    assert len(catalogs.asked) <= 10
    known = watch.of("orders")
    assert "the catalog is away" in known.error
    assert known.details is not None
    catalogs.fails = False
    look(watch, clock, 130)
    assert watch.of("orders").error == ""


def test_a_catalog_that_does_not_respond_blocks_neither_the_caller_nor_other_tables(catalogs: Catalogs) -> None:
    clock = ManualClock(NOW_MS)
    catalogs.gate.clear()
    watch = TableWatch(catalogs.locate, clock)
    for _ in range(20):
        watch.want({"orders": 1, "b": 1})
        clock.ms += 1000
    eventually(lambda: len(catalogs.asked) == 2)
    assert watch.of("orders") == tables.LoadedTable()
    watch.want(dict.fromkeys("abcdefgh", 1))
    eventually(lambda: len(catalogs.asked) >= 4)
    assert len(catalogs.asked) <= tables.THREADS + 1
    catalogs.gate.set()


def test_nothing_is_loaded_after_the_end(catalogs: Catalogs) -> None:
    watch = TableWatch(catalogs.locate, ManualClock(NOW_MS))
    watch.close()
    watch.want({"orders": 1})
    assert catalogs.asked == []


def test_an_error_that_nobody_expected_is_named_without_what_it_says(
    catalogs: Catalogs, caplog: pytest.LogCaptureFixture
) -> None:
    catalogs.bug = RuntimeError("http://user:secret@store/")
    clock = ManualClock(NOW_MS)
    watch = TableWatch(catalogs.locate, clock)
    look(watch, clock, 1)
    assert watch.of("orders").error == "RuntimeError; see the log of this page"
    assert "could not be described" in caplog.text


def test_the_pause_after_a_load_grows_with_its_work_and_has_an_end() -> None:
    assert rest_after(0.001) == tables.LEAST_SECONDS
    assert rest_after(0.1) == 0.1 * tables.REST_PER_SECOND
    assert rest_after(60.0) == tables.LONGEST_REST
