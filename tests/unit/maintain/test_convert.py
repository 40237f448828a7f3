"""Equality deletes become position deletes: no row changes, and readers that refused the table read it."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

import calve
from calve.clock import RandomIds, SystemClock
from calve.commit.belief import Trust, believe
from calve.errors import CommitConflict, InvalidInput
from calve.iceberg.sink_table import IcebergTable
from calve.maintain.convert import ConversionTools, Converted, convert_deletes
from calve.model.files import Content
from calve.model.spec import OnForeignCommit, TableName
from tests.support.combinations import seeds
from tests.support.foreign import NAME, SINK, ForeignTable, in_order
from tests.support.keyed import no_session
from tests.support.readers import duckdb_rows
from tests.support.regions import SCHEMA, random_commit, row


@seeds(3)
def test_a_converted_table_has_the_same_rows_for_every_reader(table: ForeignTable, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        random_commit(table, rng)
    wanted = in_order(table.rows())
    before = table.table.current_snapshot()
    converted = calve.convert_deletes(table.ref)
    assert converted is not None
    assert before is not None
    assert converted.equality_delete_files == 15
    assert in_order(table.rows()) == wanted
    assert in_order(table.rows(snapshot_id=before.snapshot_id)) == wanted, "older snapshots are as they were"
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert in_order(table.table.scan().to_arrow().to_pylist()) == wanted, "pyiceberg reads no equality deletes"
    assert calve.convert_deletes(table.ref) is None, "there are none any more"


def test_a_conversion_is_a_delete_that_changes_no_row_and_whose_totals_are_right(table: ForeignTable) -> None:
    table.commit(table.data([row(n) for n in range(10)]))
    table.commit(table.equality(["id"], [row(n) for n in (1, 2, 77)]), table.data([row(1, v=1)]))
    calve.convert_deletes(table.ref)
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.DELETE
    counts = snapshot.summary.additional_properties
    assert counts["total-equality-deletes"] == "0"
    assert counts["total-position-deletes"] == counts["added-position-deletes"] == "2"
    assert counts["removed-equality-deletes"] == "3"
    assert counts["total-delete-files"] == "1"
    sizes = {f["content"]: f["file_size_in_bytes"] for f in table.table.inspect.files().to_pylist()}
    assert set(sizes) == {0, 1}
    assert int(counts["total-files-size"]) == sum(
        f["file_size_in_bytes"] for f in table.table.inspect.files().to_pylist()
    )


def test_deletes_that_reach_no_row_go_without_a_trace(table: ForeignTable) -> None:
    table.commit(table.data([row(1)]))
    table.commit(table.equality(["id"], [row(2)]))
    converted = calve.convert_deletes(table.ref)
    assert converted is not None
    assert (converted.equality_delete_files, converted.position_delete_files) == (1, 0)
    assert table.rows() == [row(1)]
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE


def test_the_sink_of_a_converted_table_finds_no_foreign_rows(table: ForeignTable) -> None:
    table.commit(table.data([row(1), row(2)]))
    own = table.commit(table.equality(["id"], [row(1)]))
    calve.convert_deletes(table.ref)
    state = IcebergTable(table.table, SINK, [], SystemClock(), RandomIds()).load()
    found = believe(state, state.uuid, Trust(OnForeignCommit.HALT))
    assert found is not None
    assert found.snapshot_id == own != state.head


def test_deletes_that_come_meanwhile_are_left_to_the_next_conversion(table: ForeignTable, at_maintenance: Any) -> None:
    table.commit(table.data([row(1), row(2), row(3)]))
    table.commit(table.equality(["id"], [row(1)]))
    others = [lambda: table.commit(table.equality(["id"], [row(2)]), table.data([row(1, v=9)]))]
    at_maintenance(lambda: others.pop()() if others else None)
    converted = calve.convert_deletes(table.ref)
    assert converted is not None
    assert converted.equality_delete_files == 1
    assert in_order(table.rows()) == in_order(duckdb_rows(table.table.metadata_location))
    assert in_order(table.rows()) == in_order([row(3), row(1, v=9)])
    again = calve.convert_deletes(table.ref)
    assert again is not None
    assert again.equality_delete_files == 1
    assert in_order(table.rows()) == in_order([row(3), row(1, v=9)])


def convert(table: ForeignTable, portion_rows: int) -> Converted | None:
    tools = ConversionTools(no_session, SystemClock(), RandomIds())
    return convert_deletes(table.catalog, TableName.parse(NAME), tools, portion_rows=portion_rows)


def equality_files(table: ForeignTable) -> int:
    return sum(file["content"] == Content.EQUALITY_DELETES for file in table.table.inspect.files().to_pylist())


@seeds(3)
def test_portions_change_no_row_in_any_snapshot(table: ForeignTable, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        random_commit(table, rng)
    wanted, before = in_order(table.rows()), {s.snapshot_id for s in table.table.metadata.snapshots}
    converted = convert(table, 45)
    assert converted is not None
    made = [s for s in table.table.metadata.snapshots if s.snapshot_id not in before]
    assert converted.snapshots == len(made) > 2
    for snapshot in made:
        assert in_order(table.rows(snapshot_id=snapshot.snapshot_id)) == wanted
    assert equality_files(table) == 0
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert converted.equality_delete_files == 12


def test_a_conversion_succeeds_beside_a_writer_that_deletes_faster_than_it_commits(
    table: ForeignTable, at_maintenance: Any
) -> None:
    """Flink's upsert sink adds equality deletes with every checkpoint; here one lands before two of three attempts."""
    for number in range(6):
        table.commit(table.data([row(n) for n in range(10 * number, 10 * number + 10)]))
    table.commit(table.equality(["id"], [row(n) for n in range(0, 60, 3)]))
    attempts = []

    def write() -> None:
        attempts.append(1)
        if len(attempts) % 3:
            number = len(attempts)
            table.commit(table.equality(["id"], [row(number)]), table.data([row(number, v=number)]))

    at_maintenance(write)
    converted = convert(table, 20)
    assert converted is not None
    assert (converted.equality_delete_files, converted.snapshots) == (1, 3)
    assert len(attempts) == 9
    at_maintenance(lambda: None)
    rewritten = {number for number in range(1, 10) if number % 3}
    kept = [row(n) for n in range(60) if n % 3 and n not in rewritten]
    wanted = in_order([*kept, *(row(n, v=n) for n in rewritten)])
    assert in_order(table.rows()) == wanted
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert equality_files(table) == 6, "those of the writer"
    assert convert(table, 20) is not None
    assert (equality_files(table), in_order(table.rows())) == (0, wanted)


def test_a_compaction_between_two_portions_is_converted_or_planned_again(
    table: ForeignTable, at_maintenance: Any
) -> None:
    for number in range(4):
        table.commit(table.data([row(n) for n in range(10 * number, 10 * number + 10)]))
    table.commit(table.equality(["id"], [row(n) for n in range(0, 40, 5)]))
    wanted = in_order(table.rows())
    others = [lambda: calve.compact(table.ref)]
    at_maintenance(lambda: others.pop()() if others else None)
    convert(table, 10)
    assert in_order(table.rows()) == wanted
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert equality_files(table) == 0


def test_a_conversion_that_fails_leaves_no_file_behind(table: ForeignTable, at_maintenance: Any) -> None:
    table.commit(table.data([row(1), row(2)]))
    table.commit(table.equality(["id"], [row(1)]))
    folder = Path(table.table.location().removeprefix("file://"))
    before = {path for path in folder.rglob("*") if path.suffix in {".avro", ".parquet"}}

    def commit() -> None:
        table.table.transaction().set_properties({"touched": "yes"}).commit_transaction()
        table.commit()
        before.update(path for path in folder.rglob("calve-*") if "snap-" in path.name)

    at_maintenance(commit)
    with pytest.raises(CommitConflict):
        convert(table, 10)
    left = {path for path in folder.rglob("*") if path.suffix in {".avro", ".parquet"}} - before
    assert not [path for path in left if path.suffix == ".parquet" or "positions" in path.name]


def test_a_table_that_never_rests_is_left_as_it_is(table: ForeignTable, at_maintenance: Any) -> None:
    table.commit(table.data([row(1), row(2)]))
    table.commit(table.equality(["id"], [row(1)]))
    at_maintenance(lambda: table.commit(table.data([row(5)])))
    with pytest.raises(CommitConflict, match="conflicted with another change of the table"):
        calve.convert_deletes(table.ref)
    assert in_order({r["id"]: r for r in table.rows()}.values()) == in_order([row(2), row(5)])


def test_a_table_without_deletes_or_snapshots_has_nothing_to_convert(table: ForeignTable) -> None:
    assert calve.convert_deletes(table.ref) is None
    table.commit(table.data([row(1)]))
    assert calve.convert_deletes(table.ref) is None


def test_a_table_of_format_version_one_is_refused(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA, properties={"format-version": "1"})
    with pytest.raises(InvalidInput, match="cannot be converted to positions"):
        calve.convert_deletes(table.ref)
    table.close()
