"""Files of expired snapshots that Spark tasks compare: the same ones go as if one process had compared them."""

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.errors import TransientError
from calve.keylookup.search import MAINTENANCE_POOL, SparkJobs
from calve.maintain.expire import ExpiryReport, expire_snapshots
from calve.maintain.removal_tasks import SparkComparison
from calve.model.spec import HOUR_MS, Deletes
from tests.support.changes import Died
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.unit.iceberg.sample import SetClock

HOUR = timedelta(hours=1)
States = dict[int, dict[int, str]]


class Expiring:
    """A table with two expiries in its journal: the grace of the first is over, that of the second is not."""

    def __init__(self, home: Path, **settings: object) -> None:
        self.home, self.clock, self.states = home, SetClock(), States()
        run = Run(home, spec_of("s", **settings), clock=self.clock)
        rows: dict[int, str] = {}
        for number in range(12):
            changes = {number % 3: f"v{number}", 100 + number: "once", 96 + number: "again"}
            rows |= changes
            receipt = run.commit(changes)
            assert receipt is not None
            self.states[receipt.snapshot_id] = dict(rows)
            if number == 6:
                assert calve.compact(self.ref) is not None
            self.clock.now += HOUR_MS
        with run.now.manage_snapshots() as refs:
            refs.create_tag(list(self.states)[1], "audit")
            refs.create_branch(list(self.states)[3], "review")
        assert len(self.expire(older_than=5 * HOUR).snapshots) >= 4
        self.clock.now += HOUR_MS // 2
        self.waiting = self.expire(older_than=3 * HOUR).snapshots
        assert self.waiting
        self.clock.now += HOUR_MS // 2
        run.catalog.close()

    @property
    def ref(self) -> calve.TableRef:
        return calve.connect(home=self.home).table(str(NAME))

    def expire(self, **options: Any) -> ExpiryReport:
        return expire_snapshots(self.ref, clock=self.clock, **{"older_than": 1000 * HOUR, "grace": HOUR, **options})

    def left(self) -> set[str]:
        return {str(path) for path in (self.home / "warehouse").rglob("*") if path.is_file()}

    def check_readable(self) -> None:
        """Time travel to every snapshot that the table has, and to those whose grace is not over."""
        catalog = self.ref.lake.open()
        table = catalog.load_table(NAME.identifier)
        kept = {one.snapshot_id for one in table.snapshots()} & self.states.keys()
        assert len(kept) >= 5
        for number in kept:
            found = duckdb_rows(table.metadata_location, snapshot_id=number)
            assert {row["id"]: row["v"] for row in found} == self.states[number]


TABLES: dict[str, dict[str, object]] = {
    "equality deletes": {"deletes": Deletes.EQUALITY},
    "deletion vectors": {"format_version": 3},
}


@pytest.mark.parametrize("kind", TABLES)
def test_tasks_leave_the_same_files_as_one_process(
    tmp_path: Path, spark: SparkSession, kind: str, dying: Callable[[str], None]
) -> None:
    table = Expiring(tmp_path / "home", **TABLES[kind])
    before = table.left()
    shutil.copytree(table.home, tmp_path / "kept")
    here = table.expire(task_bytes=1 << 40)
    left = table.left()
    assert {"data", "deletes", "manifests", "manifest lists"} <= here.removed.keys()
    assert before > left
    table.check_readable()
    shutil.rmtree(table.home)
    shutil.copytree(tmp_path / "kept", table.home)
    by_tasks = {"task_bytes": 0, "spark": lambda: spark}
    assert table.expire(**by_tasks, dry_run=True).removed == here.removed
    assert table.left() == before
    dying("removal.files")
    with pytest.raises(Died):
        table.expire(**by_tasks)
    faults.install(None)
    assert left < table.left() < before
    table.check_readable()
    done = table.expire(**by_tasks)
    assert table.left() == left
    assert [one.snapshots for one in done.waiting] == [one.snapshots for one in here.waiting] == [len(table.waiting)]
    table.check_readable()


def test_nothing_goes_while_a_task_cannot_read_a_manifest_of_the_table(tmp_path: Path, spark: SparkSession) -> None:
    table = Expiring(tmp_path)
    catalog = table.ref.lake.open()
    loaded = catalog.load_table(NAME.identifier)
    head = loaded.current_snapshot()
    assert head is not None
    path = Path(head.manifests(loaded.io)[0].manifest_path.removeprefix("file://"))
    kept, before = path.read_bytes(), table.left()
    path.write_bytes(b"Obj\x01 damaged")
    with pytest.raises(TransientError, match="files of expired snapshots were not removed") as damaged:
        table.expire(task_bytes=0, spark=lambda: spark)
    assert path.name in str(damaged.value.detail)
    path.unlink()
    with pytest.raises(TransientError, match="files of expired snapshots were not removed"):
        table.expire(task_bytes=0, spark=lambda: spark)
    path.write_bytes(kept)
    assert table.left() == before
    assert table.expire(task_bytes=0, spark=lambda: spark).removed


class Stopped(Exception):
    """The sink ends."""


class NoProperties:
    """Files that need no credentials."""

    def task_properties(self) -> dict[str, str]:
        return {}


def test_a_comparison_ends_when_its_sink_does(spark: SparkSession, tmp_path: Path) -> None:
    endless = tmp_path / "manifest.avro"
    os.mkfifo(endless)  # whoever opens it waits for a writer

    def stop() -> None:
        if spark.sparkContext.statusTracker().getActiveJobsIds():
            raise Stopped

    comparison = SparkComparison(NoProperties(), SparkJobs(lambda: spark, MAINTENANCE_POOL))
    with pytest.raises(Stopped), comparison.compare([f"file://{endless}"], [], stop):
        pass
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
