import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from calve import faults
from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.support.readers import duckdb_rows
from tests.unit.metastore.sample import (
    DELETE_AFTER_COMMIT,
    GENERAL,
    SEGMENT,
    VERSIONS_MAX,
    SetClock,
    files_below,
    metastore_at,
    segment,
)

Tables = Component[TableUnit]


def keeping(versions: int, *, enabled: bool = True) -> Mapping[str, str]:
    return {DELETE_AFTER_COMMIT: str(enabled).lower(), VERSIONS_MAX: str(versions)}


def referred(tables: Tables) -> set[str]:
    """All files that the table's metadata refers to, in any way."""
    table = tables.see().table
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return {location.removeprefix("file://") for location in found}


def there(tmp_path: Path) -> set[str]:
    return {str(path) for path in files_below(tmp_path / "metastore/tables")}


def versions(tables: Tables, count: int) -> None:
    for number in range(count):
        tables.modify().overwrite(replace(SEGMENT, last_modified_time=number)).execute()


def snapshots(tables: Tables) -> int:
    return len(tables.see().table.metadata.snapshots)


def test_five_snapshots_become_three_and_two_as_the_property_asks(tmp_path: Path) -> None:
    with metastore_at(tmp_path, tables=keeping(5)) as five:
        versions(open_tables(five), 5)
        assert snapshots(open_tables(five)) == 5
        versions(open_tables(five), 2)
        assert snapshots(open_tables(five)) == 5
    with metastore_at(tmp_path, tables=keeping(3)) as three:
        versions(open_tables(three), 1)
        assert snapshots(open_tables(three)) == 3
    with metastore_at(tmp_path, tables=keeping(2)) as two:
        versions(open_tables(two), 1)
        assert snapshots(open_tables(two)) == 2
        assert len(files_below(tmp_path, "*.metadata.json")) == 1 + 2
        assert len(files_below(tmp_path, "*snap-*.avro")) == 2
        assert len(files_below(tmp_path, "*.parquet")) == 2
        assert there(tmp_path) == referred(open_tables(two))


@pytest.mark.parametrize("odd", ["²", "--5", "all"])
def test_an_invalid_number_of_versions_is_the_default(tmp_path: Path, odd: str) -> None:
    with metastore_at(tmp_path, tables={DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: odd}) as store:
        versions(open_tables(store), 3)
        assert snapshots(open_tables(store)) == 3


def test_nothing_expires_unless_it_is_enabled(tmp_path: Path) -> None:
    for number, common in enumerate(({}, keeping(1, enabled=False))):
        with metastore_at(tmp_path / str(number), common=common) as one:
            versions(open_tables(one), 6)
            assert snapshots(open_tables(one)) == 6
            assert len(files_below(tmp_path / str(number), "*.parquet")) == 6


def test_snapshots_expire_when_they_are_older_than_the_period(tmp_path: Path) -> None:
    clock = SetClock()
    with metastore_at(tmp_path, clock, expiration={"hours": "1", "minutes": "30"}) as one:
        tables = open_tables(one)
        start = tables.see().table.metadata.last_updated_ms
        for minutes in (0, 60, 91, 100):
            clock.ms = start + minutes * 60_000
            versions(tables, 1)
        assert [(s.timestamp_ms - start) // 60_000 for s in tables.see().table.metadata.snapshots] == [60, 91, 100]
        assert len(files_below(tmp_path, "*.parquet")) == 3


def test_a_period_of_nothing_or_less_expires_nothing(tmp_path: Path) -> None:
    clock = SetClock()
    with metastore_at(tmp_path, clock, expiration={"days": "-1"}) as one:
        start = open_tables(one).see().table.metadata.last_updated_ms
        for days in (1, 2, 3):
            clock.ms = start + days * 86_400_000
            versions(open_tables(one), 1)
        assert snapshots(open_tables(one)) == 3


@pytest.mark.long
def test_exactly_what_nothing_refers_to_is_gone_from_disk(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common=keeping(3)) as one:
        tables = open_tables(one)
        for number in range(60):  # beyond the number at which manifests are merged
            tables.modify().overwrite(
                segment(f"dir{number % 25}"), replace(GENERAL, last_modified_time=number)
            ).execute()
            if number % 7 == 0:
                tables.modify().delete(f.eq("metadata_key", f"dir{number % 5}")).execute()
            if number % 20 == 19:
                tables.purge()
            assert there(tmp_path) == referred(tables)
        manifests = tables.see().lines
        assert len(manifests) <= 16 + 3


def test_all_remaining_snapshots_stay_readable(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common=keeping(3)) as one:
        tables = open_tables(one)
        for number in range(10):
            tables.modify().overwrite(segment(f"dir{number}")).execute()
        table = tables.see().table
        counts = [
            len(duckdb_rows(table.metadata_location, snapshot_id=s.snapshot_id)) for s in table.metadata.snapshots
        ]
        assert counts == [8, 9, 10]


def test_snapshots_with_a_name_stay_with_all_their_files(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common=keeping(2)) as one:
        tables = open_tables(one)
        tables.modify().overwrite(GENERAL, SEGMENT).execute()
        table = tables.see().table
        head = table.metadata.current_snapshot_id
        assert head is not None
        table.manage_snapshots().create_tag(head, "audit").commit()
        versions(tables, 5)
        assert snapshots(tables) == 3
        assert len(duckdb_rows(tables.see().table.metadata_location, snapshot_id=head)) == 2
        assert there(tmp_path) == referred(tables)


def test_a_tag_made_while_its_snapshot_expires_keeps_it_with_all_its_files(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common=keeping(2)) as one:
        tables = open_tables(one)
        tables.modify().overwrite(GENERAL, SEGMENT).execute()
        versions(tables, 1)
        oldest = tables.see().table.metadata.snapshots[0].snapshot_id

        def make_tag(point: str) -> None:
            table = tables.see().table
            if point == "metastore.before" and "audit" not in table.metadata.refs:
                table.manage_snapshots().create_tag(oldest, "audit").commit()

        faults.install(make_tag)
        try:
            versions(tables, 2)
        finally:
            faults.install(None)
        assert tables.see().table.metadata.refs["audit"].snapshot_id == oldest
        assert len(duckdb_rows(tables.see().table.metadata_location, snapshot_id=oldest)) == 2
        assert there(tmp_path) == referred(tables)


def test_a_file_that_cannot_be_removed_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with metastore_at(tmp_path, common=keeping(1)) as one:
        tables = open_tables(one)
        versions(tables, 1)
        (data,) = files_below(tmp_path, "*.parquet")
        data.unlink()
        data.mkdir()  # a folder cannot be removed like a file
        with caplog.at_level(logging.WARNING):
            versions(tables, 1)
        assert "a file was not removed" in caplog.text
        assert len(tables.read()) == 1


def test_a_failure_to_look_for_expired_files_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with metastore_at(tmp_path, common=keeping(2)) as one:
        versions(open_tables(one), 2)
    older = files_below(tmp_path, "*snap-*.avro")
    with metastore_at(tmp_path, common=keeping(2)) as other:
        tables = open_tables(other)
        head = tables.see().table.current_snapshot()
        assert head is not None
        (oldest,) = [path for path in older if not head.manifest_list.endswith(path.name)]
        oldest.write_bytes(b"no list")
        with caplog.at_level(logging.WARNING):
            versions(tables, 1)
        assert "expired files were not removed" in caplog.text
        assert len(tables.read()) == 1


def test_attempts_that_failed_leave_no_files(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common=keeping(2)) as one, metastore_at(tmp_path, common=keeping(2)) as other:
        mine, theirs = open_tables(one), open_tables(other)
        versions(mine, 2)
        stale = theirs.see()
        assert len(stale.files) == 1
        versions(mine, 1)
        answers = [stale]
        see = theirs.see
        theirs.see = lambda: answers.pop() if answers else see()  # type: ignore[method-assign]
        theirs.modify().overwrite(segment("dir1")).execute()
        assert there(tmp_path) == referred(mine)
