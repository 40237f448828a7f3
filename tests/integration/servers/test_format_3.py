"""Tables of format version 3 in a REST catalog, whose server writes and checks their metadata."""

from pathlib import Path

import pytest

from calve.iceberg.snapshot import draft
from tests.faults.where import Where
from tests.support.readers import duckdb_rows
from tests.support.runs import Run, spec_of
from tests.support.servers.lakehouse import Lakehouse


def test_a_server_accepts_vectors_and_row_ids(
    lakehouse: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Where.of(lakehouse)
    run = Run(tmp_path, spec_of("s", format_version=3), where.lake(Path()).open())
    expected: dict[int, str] = {}
    for number in range(6):
        changes = {number % 3: f"v{number}", 100 + number: "a", 99 + number: "b"}
        expected |= changes
        run.commit(changes)
    monkeypatch.setattr(draft, "FAN_IN", 3)
    assert run.table.merge_manifests(run.table.load())
    run.commit({7: "last"})
    expected[7] = "last"
    metadata = run.now.metadata
    assert metadata.format_version == 3
    first = 0
    for snapshot in sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0):
        assert snapshot.first_row_id == first
        assert snapshot.added_rows is not None
        first += snapshot.added_rows
    assert metadata.next_row_id == first
    readers = (duckdb_rows(run.now.metadata_location, s3=where.duckdb), run.now.scan().to_arrow().to_pylist())
    for rows in readers:
        assert len(rows) == len(expected)
        assert {row["id"]: row["v"] for row in rows} == expected


def test_a_server_upgrades_a_table_between_two_batches(lakehouse: Lakehouse, tmp_path: Path) -> None:
    where = Where.of(lakehouse)
    catalog = where.lake(Path()).open()
    run = Run(tmp_path, spec_of("s"), catalog)
    run.commit({1: "a", 2: "b", 3: "c"})
    run.commit({1: "A"})
    after = Run(tmp_path, spec_of("s", version=2, format_version=3), catalog)
    after.commit({2: "B", 4: "d"})
    metadata = after.now.metadata
    assert metadata.format_version == 3
    assert [(s.first_row_id, s.added_rows) for s in metadata.snapshots if s.first_row_id is not None] == [
        (0, 4),
        (4, 2),
    ]
    assert metadata.next_row_id == 6
    readers = (duckdb_rows(after.now.metadata_location, s3=where.duckdb), after.now.scan().to_arrow().to_pylist())
    for rows in readers:
        assert len(rows) == 4
        assert {row["id"]: row["v"] for row in rows} == {1: "A", 2: "B", 3: "c", 4: "d"}
