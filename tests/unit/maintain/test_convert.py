"""Equality deletes become position deletes: no row changes, and readers that refused the table read it."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

import calve
from calve.errors import CommitConflict, InvalidInput
from tests.support.foreign import ForeignTable, in_order
from tests.support.readers import duckdb_rows
from tests.support.regions import SCHEMA, random_commit, row


@pytest.mark.parametrize("seed", range(3))
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


def test_a_conversion_is_a_replace_whose_totals_are_right(table: ForeignTable) -> None:
    table.commit(table.data([row(n) for n in range(10)]))
    table.commit(table.equality(["id"], [row(n) for n in (1, 2, 77)]), table.data([row(1, v=1)]))
    calve.convert_deletes(table.ref)
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
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


def test_whoever_commits_meanwhile_wins_and_the_conversion_is_planned_again(
    table: ForeignTable, at_maintenance: Any
) -> None:
    table.commit(table.data([row(1), row(2), row(3)]))
    table.commit(table.equality(["id"], [row(1)]))
    others = [lambda: table.commit(table.equality(["id"], [row(2)]), table.data([row(1, v=9)]))]
    at_maintenance(lambda: others.pop()() if others else None)
    converted = calve.convert_deletes(table.ref)
    assert converted is not None
    assert converted.equality_delete_files == 2
    assert in_order(table.rows()) == in_order(duckdb_rows(table.table.metadata_location))
    assert in_order(table.rows()) == in_order([row(3), row(1, v=9)])


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
