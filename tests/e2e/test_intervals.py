"""When snapshots are made, and what may wait for them: intervals and limits of whole pipelines."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.clock import SystemClock
from calve.errors import TransientError
from calve.model.health import Health, Status
from calve.pipeline.supervisor import Ending
from calve.watch.status_files import read_statuses
from tests.support.combinations import diagonal
from tests.support.pipelines import Pipelines, eventually
from tests.support.readers import ROOT

SINK = "CREATE SINK s FROM items TO ICEBERG CATALOG lake NAMESPACE shop TABLE t"
UPSERT = "ENVELOPE UPSERT (ORDER BY ts)"
DIFF = "ENVELOPE DIFF (TIME t, DIFF d, PROGRESS p)"


class Items:
    """A folder of files, each a checkpoint of its own, and the pipeline that reads it."""

    def __init__(self, folder: Path, pipelines: Pipelines) -> None:
        self.folder, self.pipelines = folder, pipelines
        self.count = 0
        folder.mkdir()

    def by(self, envelope: str, sink: str) -> None:
        self.pipelines.apply(
            "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
            "CREATE SOURCE items (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED) FROM FILES "
            f"(PATH = '{self.folder}', FORMAT = 'json', MAX FILES PER CHECKPOINT = 1) {envelope}; {sink}"
        )

    def put(self, *records: dict[str, Any]) -> None:
        self.count += 1
        part = self.folder / ".part"
        part.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        part.rename(self.folder / f"{self.count:06d}.json")

    def rows(self) -> list[tuple[Any, ...]] | None:
        return self.pipelines.rows_or_none("shop.t")

    def frontiers(self) -> list[int]:
        """Of the snapshots that brought rows, the oldest first."""
        summaries = [s.summary.additional_properties for s in self.pipelines.table("shop.t").snapshots() if s.summary]
        return [json.loads(s["calve.frontier"])[0] for s in summaries if "added-data-files" in s]

    def status(self) -> Status | None:
        return next(iter(read_statuses(self.pipelines.home)), None)

    def staged(self) -> int:
        status = self.status()
        return status.staged if status else 0


@pytest.fixture
def items(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Items:
    monkeypatch.chdir(ROOT)
    return Items(tmp_path / "in", Pipelines(tmp_path / "home", spark))


def noise(size: int) -> str:
    """A text that does not get smaller."""
    return random.Random(size).randbytes(size // 2).hex()


# ---- a commit interval alone


def test_a_commit_interval_does_not_hold_back_reading_and_makes_one_snapshot_of_all_of_it(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (COMMIT INTERVAL = '24h')")
    for number in range(12):
        items.put({"id": number, "v": "a", "ts": number})
    with items.pipelines.started() as running:
        eventually(lambda: items.staged() == 12)
        status = items.status()
        assert status
        assert (status.commits, status.unread, status.counts) == (0, 0, "files")
        assert not items.rows()
    assert [result.exit_code for result in running.results] == [0], "a stop within a window leaves nothing undone"
    items.put({"id": 3, "v": "b", "ts": 100})
    (result,) = items.pipelines.run()
    assert result.ending is Ending.DONE
    assert items.rows() == [(n, "b" if n == 3 else "a") for n in range(12)]
    assert len(items.frontiers()) == 1
    status = items.status()
    assert status
    assert status.lag_ms is not None


def test_windows_of_a_commit_interval_alone_end_at_its_multiples(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (COMMIT INTERVAL = '3s')")
    for number in range(3):
        items.put({"id": number, "v": "a", "ts": number})
    with items.pipelines.started():
        eventually(lambda: len(items.rows() or []) == 3)
        items.put({"id": 1, "v": "b", "ts": 100})
        eventually(lambda: items.rows() == [(0, "a"), (1, "b"), (2, "a")])
    assert [frontier % 3000 for frontier in items.frontiers()] == [0] * len(items.frontiers())


def test_a_sink_that_replays_stages_nothing_and_commits_what_it_reads(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (COMMIT INTERVAL = '24h', RECOVERY = 'replay')")
    for number in range(3):
        items.put({"id": number, "v": "a", "ts": number})
    with items.pipelines.started():
        eventually(lambda: len(items.rows() or []) == 3)
        assert items.staged() == 0
        items.put({"id": 7, "v": "later", "ts": 7})
    assert len(items.frontiers()) == 3, "the fourth file waits for the next multiple of the interval"
    items.pipelines.run()
    assert len(items.rows() or []) == 4


@pytest.fixture
def no_idle_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer that nobody wakes sleeps until its window ends."""
    monkeypatch.setattr("calve.pipeline.start.IDLE_CHECK_SECONDS", 86_400.0)


@pytest.mark.usefixtures("no_idle_checks")
def test_a_failure_ends_the_sink_at_once_and_what_was_read_before_it_is_committed(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (COMMIT INTERVAL = '24h')")
    items.put({"id": 1, "v": "a", "ts": 1})
    items.put({"id": None, "v": "a key that is null", "ts": 2})
    with items.pipelines.started() as running:
        (result,) = running.join()
    assert result.ending is Ending.FAILED
    assert items.rows() == [(1, "a")]


@pytest.mark.usefixtures("no_idle_checks", "spark")
def test_a_source_that_ends_within_a_window_is_committed_at_once(tmp_path: Path) -> None:
    orders, table = (
        calve.orders(rows=20, changes=20, per_checkpoint=10),
        calve.connect(home=tmp_path / "home").table("x.o"),
    )
    query = calve.sink(orders, name="o", into=table, key=["id"]).start(commit_interval="24h")
    assert query.await_termination(120)
    assert query.sealed


# ---- limits


def test_a_clock_sink_at_its_limit_commits_before_its_window_is_over_and_reads_on(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (COMMIT INTERVAL = '24h', MAX STAGED SIZE = '1MB')")
    for number in range(4):
        items.put(*({"id": 1000 * number + n, "v": noise(2000 + n), "ts": n} for n in range(1000)))
    with items.pipelines.started() as running:
        eventually(lambda: len(items.rows() or []) == 4000)
    (result,) = running.results
    assert result.ending is Ending.STOPPED
    assert len(items.frontiers()) >= 2


@diagonal(rows=["TIME COLUMN", "DIFF"], way_out=["--until-caught-up", "a raised limit"])
def test_a_stage_that_is_full_of_rows_that_wait_for_their_time_halts_the_sink_and_has_a(
    items: Items, rows: str, way_out: str
) -> None:
    limit, time = "MAX STAGED SIZE = '1MB'", {"t": 50, "d": 1, "p": False, "ts": 50}
    by_column = f"{SINK} WITH (TIME COLUMN = ts, WATERMARK DELAY = '1h', {limit})"
    items.by(*((DIFF, f"{SINK} WITH ({limit})") if rows == "DIFF" else (UPSERT, by_column)))
    items.put(*({"id": n, "v": noise(2000 + n), **time} for n in range(1000)))
    items.put({"id": 5000, "v": "read later", **time})
    with items.pipelines.started() as running:
        (result,) = running.join()
    assert result.ending is Ending.FAILED
    assert "the stage is full" in str(result.cause)
    assert not items.rows()
    if way_out == "a raised limit":
        items.pipelines.apply("ALTER SINK s SET (MAX STAGED SIZE = '1GB')")
        items.put({"t": 51, "p": True} if rows == "DIFF" else {"id": 6000, "v": "x", "ts": 4_000_000})
        with items.pipelines.started():
            eventually(lambda: len(items.rows() or []) >= 1001)
        return
    (result,) = items.pipelines.run()
    assert result.ending is Ending.DONE
    assert len(items.rows() or []) == 1001


# ---- idle


class Outage:
    """A catalog that cannot be reached, by a fault right before each request."""

    def __init__(self) -> None:
        self.on, self.failed = False, 0

    def __call__(self, point: str) -> None:
        if self.on and point == "commit.before":
            self.failed += 1
            raise TransientError("the catalog could not be reached")


def test_rows_that_could_not_be_read_while_the_catalog_was_away_are_not_late(items: Items) -> None:
    outage = Outage()
    limit = "IDLE TIMEOUT = '1s', MAX PENDING BATCHES = 1"
    items.by(UPSERT, f"{SINK} WITH (TIME COLUMN = ts, MAINTENANCE = 'off', {limit})")
    items.put({"id": 0, "v": "a", "ts": 1000})
    faults.install(outage)
    try:
        with items.pipelines.started() as running:
            eventually(lambda: items.rows() == [(0, "a")])
            outage.on = True
            items.put({"id": 1, "v": "a", "ts": _ahead()}, {"id": 2, "v": "a", "ts": _ahead() + 5})
            eventually(lambda: (status := items.status()) is not None and status.health is Health.STALLED)
            items.put({"id": 3, "v": "a", "ts": _ahead() + 10})
            seen = outage.failed
            eventually(lambda: outage.failed >= seen + 12)
            outage.on = False
            eventually(lambda: len(items.rows() or []) == 4)
    finally:
        faults.install(None)
    (result,) = running.results
    assert result.ending is Ending.STOPPED
    status = items.status()
    assert status
    assert status.late == 0


def _ahead() -> int:
    """A time that is not closed yet, and soon will be by the clock."""
    return SystemClock().now_ms() + 1000
