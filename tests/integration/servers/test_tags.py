"""Tags that others make in a REST catalog while a sink's snapshots expire."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.update import RemoveSnapshotsUpdate

import calve
from calve import faults
from calve.iceberg.snapshot import retention
from calve.iceberg.snapshot.expired_files import IcebergFiles
from calve.iceberg.snapshot.holds import PREFIX, Hold, HoldPlace
from calve.iceberg.snapshot.retention import Retention
from calve.lake import TableRef
from calve.maintain.removal import InFlight, Removal
from tests.faults.where import Where
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.support.servers.lakehouse import Lakehouse

KEPT = 5
BATCH = 4
"""Snapshots that expire at once; fewer than usual, since every commit is several requests."""
MANY = KEPT + 2 * BATCH


@pytest.fixture
def where(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Where:
    monkeypatch.setattr(retention, "BATCH", BATCH)
    monkeypatch.setattr(Retention, "of", staticmethod(lambda *_, **__: Retention(keep_all=KEPT)))
    return Where.of(lakehouse)


def other_client(where: Where) -> Catalog:
    return where.lake(Path()).open()


def test_a_tag_made_while_a_batch_is_committed_survives(where: Where, tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"), other_client(where))
    for number in range(KEPT + BATCH):
        run.commit({number: "a"})
    old = sorted(run.now.snapshots(), key=lambda s: s.sequence_number or 0)[3].snapshot_id
    other = other_client(where)

    def make_tag(point: str) -> None:
        table = other.load_table(NAME.identifier)
        if point == "commit.before" and "audit" not in table.metadata.refs:
            table.manage_snapshots().create_tag(old, "audit").commit()

    faults.install(make_tag)
    try:
        run.commit({1: "b"})
    finally:
        faults.install(None)
    for number in range(BATCH):
        run.commit({number: "c"})
    assert len(run.now.snapshots()) < KEPT + 2 * BATCH
    assert run.now.metadata.refs["audit"].snapshot_id == old
    rows = duckdb_rows(run.now.metadata_location, snapshot_id=old, s3=where.duckdb)
    assert {row["v"] for row in rows} == {"a"}


def test_a_tag_moved_to_a_snapshot_that_is_being_removed_keeps_it(
    where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = other_client(where), other_client(where)
    moved: list[int] = []
    run = Run(tmp_path, spec_of("s"), catalog)
    run.commit({1: "a"})
    run.now.manage_snapshots().create_tag(run.now.metadata.current_snapshot_id or 0, "audit").commit()
    send = catalog.commit_table

    def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
        gone = [i for update in updates if isinstance(update, RemoveSnapshotsUpdate) for i in update.snapshot_ids]
        if gone and not moved:
            moved.append(gone[-1])
            now = other.load_table(NAME.identifier)
            now.manage_snapshots().remove_tag("audit").create_tag(gone[-1], "audit").commit()
        return send(table, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    for number in range(MANY):
        run.commit({number: "a"})
    assert moved, "snapshots were about to expire"
    assert run.now.metadata.refs["audit"].snapshot_id == moved[0]
    assert run.now.snapshot_by_id(moved[0]) is not None
    assert len(run.now.snapshots()) < MANY, "others expired later"


def test_a_tag_that_the_server_drops_in_silence_keeps_the_files_of_its_snapshot(
    where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new tag, which no requirement of the expiry can name."""
    catalog, other = other_client(where), other_client(where)
    tagged: list[tuple[int, str]] = []
    run = Run(tmp_path, spec_of("s"), catalog)
    send = catalog.commit_table

    def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
        gone = [i for update in updates if isinstance(update, RemoveSnapshotsUpdate) for i in update.snapshot_ids]
        if gone and not tagged:
            other.load_table(NAME.identifier).manage_snapshots().create_tag(gone[-1], "audit").commit()
            tagged.append((gone[-1], other.load_table(NAME.identifier).metadata_location))
        return send(table, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    for number in range(MANY):
        run.commit({number % 3: f"v{number}"})
    assert "audit" not in run.now.metadata.refs, "the server has dropped it"
    calve.compact(TableRef(where.lake(tmp_path), NAME))
    (number, metadata), *_ = tagged
    removal = Removal(IcebergFiles(other, NAME), run.removals, lambda _: InFlight(), run.clock, grace_ms=0)
    report = removal.run()
    assert report.files["manifest lists"]
    assert [entry.spared for entry in run.removals.entries(str(run.now.metadata.table_uuid))] == [(number,)]
    rows = duckdb_rows(metadata, snapshot_id=number, s3=where.duckdb)
    assert len(rows) == 3
    assert not removal.run().files, "nor are they removed later"
    assert len(duckdb_rows(metadata, snapshot_id=number, s3=where.duckdb)) == 3


def test_holds_are_taken_moved_and_released(where: Where, tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"), other_client(where))
    run.commit({1: "a"})
    first = run.now.metadata.current_snapshot_id
    assert first is not None
    hold = Hold(HoldPlace(other_client(where), NAME, run.clock, sink_id="s"), "1", run.now, first)
    for number in range(MANY):
        run.commit({number: "a"})
    assert len(run.table.load().ancestors) == MANY + 2, "a claim, and everything since"
    hold.renew()
    assert run.now.metadata.refs[f"{PREFIX}s-1"].snapshot_id == run.now.metadata.current_snapshot_id
    for number in range(2 * BATCH):
        run.commit({number: "a"})
    assert len(run.now.snapshots()) < MANY + BATCH, "not everything since the hold was taken"
    hold.release()
    assert f"{PREFIX}s-1" not in run.now.metadata.refs
