"""Tables of format version 3 beside the jobs of maintenance."""

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import FileFormat
from pyroaring import BitMap64

import calve
from calve.catalog.outcome import TableChange, send
from calve.catalog.row_lineage import UPGRADE
from calve.clock import RandomIds, SystemClock
from calve.iceberg.files.content import content_id, first_row_id
from calve.iceberg.files.vectors import DeletedRows, write_vectors
from calve.iceberg.planning.key_scan import place_of
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import IcebergTable
from calve.maintain.compact import CompactionScope
from calve.maintain.convert import ConversionTools, convert_deletes
from calve.maintain.expire import expire_snapshots
from calve.maintain.jobs import USUAL, Job, JobOptions, MaintainedTable, maintain
from calve.maintain.manifests import rewrite_manifests
from calve.model.files import WrittenFile
from calve.model.scan import ScanFile
from calve.model.spec import HOUR_MS, TableName
from tests.support.foreign import NAME as OTHERS
from tests.support.foreign import SINK, ForeignTable, Rows, in_order, live_entries_of
from tests.support.keyed import no_session
from tests.support.lineage import lineage_of
from tests.support.readers import duckdb_rows
from tests.support.regions import random_commit, row
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


def upgraded(table: ForeignTable) -> None:
    """Upgrade the table of another writer, as a sink does."""
    shape = Shape(table.table.schema(), format_version=3)
    iceberg = IcebergTable(table.table, SINK, [], SystemClock(), RandomIds(), shape=shape)
    iceberg.evolve(iceberg.load())


def ids_of_files(table: ForeignTable) -> dict[str, int | None]:
    return {e.data_file.file_path: first_row_id(e.data_file) for e in live_entries_of(table) if not e.data_file.content}


def vectors_of(table: ForeignTable) -> dict[str, int]:
    """The data files that have a vector, and the number of its rows; there are no other deletes."""
    deletes = [e.data_file for e in live_entries_of(table) if e.data_file.content]
    assert {file.file_format for file in deletes} <= {FileFormat.PUFFIN}
    counts = {content_id(file).data_file: file.record_count for file in deletes}
    assert len(counts) == len(deletes), "a data file has one vector"
    return counts


def check_readers(table: ForeignTable, wanted: Rows) -> None:
    assert in_order(table.rows()) == wanted
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert in_order(table.table.scan().to_arrow().to_pylist()) == wanted


@pytest.mark.parametrize("portion_rows", [10_000_000, 50])
def test_deletes_of_other_writers_become_one_vector_for_each_file(table: ForeignTable, portion_rows: int) -> None:
    rng = random.Random(portion_rows)
    for _ in range(3):
        random_commit(table, rng)
    wanted = in_order(table.rows())
    upgraded(table)
    before = ids_of_files(table)
    tools = ConversionTools(no_session, SystemClock(), RandomIds())
    done = convert_deletes(table.catalog, TableName.parse(OTHERS), tools, portion_rows=portion_rows)
    assert done is not None
    assert (done.equality_delete_files, done.old_position_delete_files, done.position_delete_files) == (9, 3, 0)
    assert done.vectors >= len(vectors_of(table)) > 3
    assert sum(vectors_of(table).values()) == 300 - len(wanted)
    assert ids_of_files(table) == before
    check_readers(table, wanted)
    assert convert_deletes(table.catalog, TableName.parse(OTHERS), tools) is None, "there are none any more"


def test_a_conversion_keeps_what_was_deleted_meanwhile(table: ForeignTable, at_maintenance: Any) -> None:
    upgraded(table)
    data = table.data([row(number) for number in range(6)])
    table.commit(data)
    old = vector(table, data, 0)
    table.commit(old)
    table.commit(table.equality(["id"], [row(1)]))
    others = [lambda: table.exchange([old], vector(table, data, 0, 2))]
    at_maintenance(lambda: others.pop()() if others else None)
    assert calve.convert_deletes(table.ref) is not None
    assert vectors_of(table) == {data.path: 3}
    check_readers(table, in_order([row(number) for number in (3, 4, 5)]))
    named = {Path(e.data_file.file_path).name for e in live_entries_of(table)}
    left = {path.name for path in Path(table.table.location().removeprefix("file://")).rglob("*.puffin")}
    assert len(left) == 3, "the first two of others, and the last one: that of the attempt which lost is gone"
    assert len(left & named) == 1


def vector(table: ForeignTable, file: WrittenFile, *positions: int) -> WrittenFile:
    scanned = ScanFile(file.path, file.size, file.record_count, 0, spec_id=file.spec_id, partition=file.partition)
    found = [DeletedRows(scanned, BitMap64(positions))]
    (written,) = write_vectors(place_of(table.table), found, RandomIds().new_id())
    return written


def test_rewritten_manifests_keep_the_ids_of_rows(table: ForeignTable) -> None:
    upgraded(table)
    files = []
    for number in range(6):
        region = ["eu", "us"][number % 2]
        files.append(table.data([{**row(number), "region": region}], [region], spec_id=0))
        table.commit(files[-1])
    table.commit(vector(table, files[0], 0))
    before, wanted = ids_of_files(table), in_order(table.rows())
    done = rewrite_manifests(table.catalog, TableName.parse(OTHERS), SystemClock(), RandomIds(), enough=2)
    assert done is not None
    assert (done.before, done.after) == (7, 3)
    assert ids_of_files(table) == before
    assert vectors_of(table) == {files[0].path: 1}
    check_readers(table, wanted)
    table.commit(table.data([row(9)]))
    ids = list(ids_of_files(table).values())
    assert len(set(ids)) == len(ids) == 7, "a later file gets none of them"


def test_manifests_that_got_row_ids_meanwhile_are_planned_again(table: ForeignTable, at_maintenance: Any) -> None:
    for number in range(4):
        table.commit(table.data([{**row(number), "region": "eu"}], ["eu"], spec_id=0))
    raise_version(table)
    others = [lambda: table.commit(table.data([row(9)]))]
    at_maintenance(lambda: others.pop()() if others else None)
    assert rewrite_manifests(table.catalog, TableName.parse(OTHERS), SystemClock(), RandomIds()) is not None
    given = {snapshot.first_row_id for snapshot in table.table.snapshots()}
    assert given == {None, 0, 5}
    assert sorted(ids_of_files(table).values(), key=str) == [0, 1, 2, 3, 4]


def raise_version(table: ForeignTable) -> None:
    """Raise the format version as other tools do: without a snapshot."""
    change = TableChange(table.table, (), (UPGRADE,), done=lambda now: now.format_version == 3)
    send(change, "an upgrade")


def test_the_usual_maintenance_does_all_its_jobs(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    for number in range(3):
        run.commit({1: f"v{number}", 10 + number: "once"})
    subject = MaintainedTable(calve.connect(home=tmp_path).table(str(NAME)), CompactionScope(NAME))
    results = {report.job: report.result for report in maintain(subject, USUAL, JobOptions())}
    assert "became" in results[Job.COMPACT]
    assert results[Job.CONVERT] == "nothing to do"
    check(run, {1: "v2", 10: "once", 11: "once", 12: "once"})
