"""Tables of format version 3 beside the jobs of maintenance."""

from datetime import timedelta
from pathlib import Path

import pytest

import calve
from calve.errors import InvalidInput
from calve.iceberg.snapshot.conversion import Conversions
from calve.iceberg.snapshot.manifest_rewrite import plan_manifests
from calve.maintain.expire import expire_snapshots
from calve.model.spec import HOUR_MS
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


def test_a_sink_commits_without_compactions_and_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    upkeep = run.upkeep()
    for number in range(12):
        run.commit({number % 5: f"v{number}"})
    upkeep.maintain()
    assert upkeep._join is not None
    upkeep._join()
    assert not upkeep.busy
    assert "format version 3" in run.monitor.status.next_maintenance
    assert not run.monitor.status.maintenance, "it is no failure"
    upkeep.close(failed=False)
    found = duckdb_rows(run.now.metadata_location)
    assert {row["id"]: row["v"] for row in found} == {number % 5: f"v{number}" for number in range(12)}


def test_jobs_that_would_lose_row_ids_refuse_the_table(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a"})
    with pytest.raises(InvalidInput, match="cannot be rewritten"):
        plan_manifests(run.now)
    with pytest.raises(InvalidInput, match="cannot be converted"):
        Conversions(run.clock, run.ids).plan(run.now, 10)
    with pytest.raises(InvalidInput, match="cannot be compacted"):
        calve.compact(calve.connect(home=tmp_path).table(str(NAME)))
