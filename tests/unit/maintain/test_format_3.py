"""Tables of format version 3 beside the jobs of maintenance."""

from datetime import timedelta
from pathlib import Path

import pytest

import calve
from calve.errors import InvalidInput
from calve.iceberg.snapshot.conversion import Conversions
from calve.iceberg.snapshot.manifest_rewrite import plan_manifests
from calve.maintain.compact import CompactionScope
from calve.maintain.expire import expire_snapshots
from calve.maintain.jobs import USUAL, Job, JobOptions, MaintainedTable, maintain
from calve.model.spec import HOUR_MS
from tests.support.lineage import lineage_of
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.unit.iceberg.sample import SetClock

HOUR = timedelta(hours=1)


def puffin_files(run: Run) -> set[str]:
    return {path.name for path in Path(run.now.location().removeprefix("file://")).rglob("*.puffin")}


def test_vectors_go_with_the_last_snapshot_that_needs_them(tmp_path: Path) -> None:
    clock = SetClock()
    run = Run(tmp_path, spec_of("s", format_version=3), clock=clock)
    states: dict[int, dict[int, str]] = {}
    rows: dict[int, str] = {}
    for number in range(8):
        changes = {number % 3: f"v{number}", 100 + number: "once", 100 + number - 4: "again"}
        rows |= changes
        run.commit(changes)
        snapshot = run.now.current_snapshot()
        assert snapshot is not None
        states[snapshot.snapshot_id] = dict(rows)
        clock.now += HOUR_MS
    before = puffin_files(run)
    table = calve.connect(home=tmp_path).table(str(NAME))
    expired = expire_snapshots(table, clock=clock, older_than=3 * HOUR, grace=HOUR)
    assert expired.snapshots
    assert puffin_files(run) == before
    clock.now += HOUR_MS
    assert expire_snapshots(table, clock=clock, older_than=100 * HOUR, grace=HOUR).removed
    assert puffin_files(run) < before
    left = {snapshot.snapshot_id for snapshot in run.now.snapshots()} & states.keys()
    assert 1 < len(left) < len(states)
    for snapshot_id in left:
        found = duckdb_rows(run.now.metadata_location, snapshot_id=snapshot_id)
        assert {row["id"]: row["v"] for row in found} == states[snapshot_id]


def check(run: Run, expected: dict[int, str]) -> None:
    rows = duckdb_rows(run.now.metadata_location)
    assert len(rows) == len(expected)
    assert {row["id"]: row["v"] for row in rows} == expected
    assert {row["id"]: row["v"] for row in run.now.scan().to_arrow().to_pylist()} == expected


def test_a_compaction_keeps_the_ids_of_rows(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    expected: dict[int, str] = {}
    table = calve.connect(home=tmp_path).table(str(NAME))
    for turn in range(3):
        for number in range(6):
            changes = {number % 4: f"v{turn}{number}", 100 * turn + 10 + number: "once"}
            expected |= changes
            run.commit(changes)
        before = lineage_of(run.now)
        assert calve.compact(table) is not None
        assert lineage_of(run.now) == before
        assert len(run.now.inspect.data_files()) == 1
        assert not len(run.now.inspect.delete_files())
        check(run, expected)


def test_rows_that_are_deleted_during_a_compaction_stay_deleted(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    expected: dict[int, str] = {}
    for number in range(12):
        changes = {number: f"v{number}", 50 + number: "once"}
        expected |= changes
        run.commit(changes)
    upkeep = run.upkeep()
    upkeep.maintain()
    assert upkeep._join is not None
    upkeep._join()
    assert upkeep.busy
    run.commit({3: "later", 51: "later", 60: "later"})
    expected |= {3: "later", 51: "later", 60: "later"}
    before = lineage_of(run.now)
    upkeep.maintain()
    upkeep.close(failed=False)
    assert run.monitor.status.compactions == 1
    assert lineage_of(run.now) == before
    assert len(run.now.inspect.delete_files()) == 1, "one vector of the new file"
    check(run, expected)


def test_jobs_that_would_lose_row_ids_refuse_the_table(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a"})
    with pytest.raises(InvalidInput, match="cannot be rewritten"):
        plan_manifests(run.now)
    with pytest.raises(InvalidInput, match="cannot be converted"):
        Conversions(run.clock, run.ids).plan(run.now, 10)


def test_the_usual_maintenance_leaves_out_what_the_version_does_not_allow(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    for number in range(3):
        run.commit({1: f"v{number}", 10 + number: "once"})
    subject = MaintainedTable(calve.connect(home=tmp_path).table(str(NAME)), CompactionScope(NAME))
    results = {report.job: report.result for report in maintain(subject, USUAL, JobOptions())}
    assert "became" in results[Job.COMPACT]
    assert {results[job] for job in (Job.CONVERT, Job.MANIFESTS)} == {"not done: the table has format version 3"}
    with pytest.raises(InvalidInput, match="cannot be converted"):
        list(maintain(subject, [Job.CONVERT], JobOptions()))
