"""The changes of a table as a source: where it starts, whole snapshots, changed history, consumers. Without Spark."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType, StructType
from pyspark.sql import types as T  # noqa: N812 - the usual name

import calve
from calve.catalog.connect import connect_embedded
from calve.errors import InvalidInput, SourceChanged, SourceLost, TransientError
from calve.iceberg.planning.change_range import ChangeRange
from calve.iceberg.planning.change_steps import newest_place, place_at, steps_after
from calve.iceberg.snapshot.consumers import consumers_of
from calve.iceberg.snapshot.expiry import expire
from calve.iceberg.snapshot.retention import ExpiryPolicy
from calve.lake import TableRef
from calve.model.change import DIFF, TIME
from calve.model.checkpoint import Offsets
from calve.model.spec import RetentionOptions
from calve.source.following import MOVE_SECONDS
from calve.source.table import TableChanges, TableSource, place_from, record_fields, with_reader
from calve.storage.state import LocalState
from tests.support.change_feed import apply_as_multiset, read_changes, states
from tests.support.foreign import ForeignTable
from tests.support.runs import Run, spec_of
from tests.unit.changelog.test_random_changes import EvolvingTable, snapshots
from tests.unit.iceberg.sample import SetClock
from tests.unit.keylookup.test_random import SCHEMA

SINK = "5e9a2d0c-0000-4000-8000-00000000000a"
DAY_MS = 24 * 3_600_000


def opened(definition: TableChanges, home: Path, clock: SetClock | None = None) -> TableSource:
    return with_reader(definition, SINK).open(LocalState(home / "source"), clock or SetClock())


def snapshot_in(offsets: Offsets) -> int | None:
    place = place_from(offsets)
    assert place is not None
    return place.snapshot_id


def reading(source: TableSource, start: Offsets = None) -> list[int | None]:
    """The snapshots at the ends of all checkpoints."""
    found = []
    while (end := source.next_end(start)) is not None:
        found.append(snapshot_in(end))
        start = end
    return found


@pytest.fixture
def made(tmp_path: Path) -> EvolvingTable:
    table = EvolvingTable(tmp_path / "lake", random.Random(5))
    for _ in range(4):
        table.batch()
    return table


def test_a_source_starts_where_it_is_told(made: EvolvingTable, tmp_path: Path) -> None:
    ids, ref = snapshots(made.table.table), made.table.ref
    one = {"max_rows_per_checkpoint": 1}
    started: dict[Any, list[Any]] = {
        "snapshot": [ids[3]],
        "earliest": [None, *ids],
        ids[1]: ids[2:],
        str(ids[2]): ids[3:],
        "[20]": ids[2:],
        "2001-01-01T00:00:00Z": list(ids),
        "2101-01-01T00:00:00Z": [],
        "latest": [],
    }
    for number, (start, expected) in enumerate(started.items()):
        source = opened(calve.table_changes(ref, start=start, **one), tmp_path / str(number))  # type: ignore[arg-type]
        assert reading(source) == expected, start
        if expected == []:
            made.batch()
            newest = snapshots(made.table.table)[-1]
            assert snapshot_in(source.next_end(None)) == newest, "what comes next, and nothing before"
            again = opened(calve.table_changes(ref, start=start), tmp_path / str(number))
            assert snapshot_in(again.next_end(None)) == newest, "decided once"
    whole = opened(calve.table_changes(ref, start="earliest"), tmp_path / "whole")
    assert snapshot_in(whole.next_end(None, whole=True)) == snapshots(made.table.table)[-1]
    with pytest.raises(InvalidInput, match="neither a snapshot, nor a time, nor a frontier"):
        opened(calve.table_changes(ref, start="soon"), tmp_path / "soon").next_end(None)
    with pytest.raises(InvalidInput, match="has no snapshot 17"):
        opened(calve.table_changes(ref, start=17), tmp_path / "17").next_end(None)


@pytest.mark.parametrize("start", ["latest", "first snapshot"])
def test_a_sink_that_starts_over_reads_the_rows_of_the_table_whatever_its_start(
    start: str, made: EvolvingTable, tmp_path: Path
) -> None:
    ids = snapshots(made.table.table)
    definition = calve.table_changes(made.table.ref, start=ids[0] if start == "first snapshot" else start)
    source = opened(definition, tmp_path)
    end = source.next_end(None, whole=True)
    assert snapshot_in(end) == ids[-1], "rows to fill the target with, which is emptied"
    rows = opened(calve.table_changes(made.table.ref), tmp_path / "other").size(None, end)
    for again in (source, opened(definition, tmp_path)):
        assert again.size(None, end) == rows, "the rows, not changes; after a restart as well"
        assert (again.begin(), again.next_end(end)) == (None, None)
    made.batch()
    assert snapshot_in(source.next_end(end)) == snapshots(made.table.table)[-1], "then changes"


def test_snapshots_are_taken_together_and_never_split(made: EvolvingTable, tmp_path: Path) -> None:
    ids, ref = snapshots(made.table.table), made.table.ref
    source = opened(calve.table_changes(ref, start=ids[0]), tmp_path)
    end = source.next_end(None)
    assert snapshot_in(end) == ids[-1]
    assert (source.took_all, source.unread, source.next_end(end)) == (True, 0, None)
    small = opened(calve.table_changes(ref, start=ids[0], max_rows_per_checkpoint=1), tmp_path)
    assert snapshot_in(small.next_end(None)) == ids[1]
    assert (small.took_all, small.unread, small.counts) == (False, len(ids) - 2, "snapshots")
    assert snapshot_in(small.next_end(None, whole=True)) == ids[-1]
    # A snapshot that changes no rows advances the offsets: its predecessor may expire.
    made.table.exchange([], operation=Operation.REPLACE)
    assert snapshot_in(source.next_end(end)) == snapshots(made.table.table)[-1]


def test_a_change_of_columns_ends_a_checkpoint_and_the_run(made: EvolvingTable, tmp_path: Path) -> None:
    ref = made.table.ref
    source = opened(calve.table_changes(ref, start="earliest"), tmp_path)
    start = source.next_end(None)
    with made.table.table.update_schema() as update:
        update.add_column("more", StringType())
    end = source.next_end(start)
    assert snapshot_in(end) == snapshots(made.table.table)[-1], "a change of columns alone is nothing"
    made.batch()
    with pytest.raises(SourceChanged, match="the columns of table") as told:
        source.next_end(end)
    assert "ON SCHEMA CHANGE" in told.value.hint
    assert snapshot_in(opened(calve.table_changes(ref), tmp_path).next_end(end)) == snapshots(made.table.table)[-1]


@pytest.mark.parametrize("path", [("v",), ("s", "v")], ids=".".join)
def test_a_column_that_is_dropped_and_added_again_is_another_one(path: tuple[str, ...], tmp_path: Path) -> None:
    inner = NestedField(3, "v", StringType(), required=False)
    column = NestedField(2, "s", StructType(inner), required=False) if len(path) > 1 else inner
    table = ForeignTable(tmp_path / "lake", Schema(NestedField(1, "id", LongType(), required=True), column))
    table.commit(table.data([{"id": 1}]))
    source = opened(calve.table_changes(table.ref), tmp_path)
    start = source.next_end(None)
    with table.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column(path)
    with table.table.update_schema() as update:
        update.add_column(path, StringType())
    table.commit(table.data([{"id": 2}]))
    with pytest.raises(SourceChanged, match="the columns of table"):
        source.next_end(start)
    again = opened(calve.table_changes(table.ref), tmp_path)
    assert snapshot_in(again.next_end(start)) == snapshots(table.table)[-1], "read by the ids of the new column"


def old_format(home: Path) -> tuple[Table, TableRef]:
    """A table of format version 1: the second snapshot inserts a row, and the third deletes it."""
    catalog = connect_embedded(home)
    catalog.create_namespace("shop")
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    table = catalog.create_table("shop.old", schema, properties={"format-version": "1"})
    for number in (1, 2):
        table.append(pa.table({"id": [number]}))
    table.delete("id = 2")
    return table, calve.connect(home=home).table("shop.old")


def test_snapshots_without_sequence_numbers_are_not_read_together(tmp_path: Path) -> None:
    table, ref = old_format(tmp_path / "lake")
    source = opened(calve.table_changes(ref), tmp_path)
    for ask in (lambda: source.next_end(None), lambda: source.schema(None)):  # type: ignore[arg-type]  # not asked
        with pytest.raises(InvalidInput, match="has format version 1"):
            ask()
    with table.transaction() as change:
        change.upgrade_table_version(2)
    table.append(pa.table({"id": [3]}))
    table.append(pa.table({"id": [4]}))
    ids = snapshots(table)
    source = opened(calve.table_changes(ref, start=ids[0]), tmp_path)
    assert reading(source) == [ids[1], ids[4]], "the row that is inserted and deleted again, one after the other"
    rows = opened(calve.table_changes(ref), tmp_path / "rows")
    assert snapshot_in(rows.next_end(None)) == ids[4]
    place = place_at(table, ids[0])
    with pytest.raises(InvalidInput, match="the order of some changes"):
        source._changes(None, table, place, newest_place(table))  # type: ignore[arg-type]  # not asked


def roll_back(table: Table, snapshot_id: int) -> None:
    table.manage_snapshots().set_current_snapshot(snapshot_id).commit()


def test_a_changed_history_stops_the_source(made: EvolvingTable, tmp_path: Path) -> None:
    ids, ref = snapshots(made.table.table), made.table.ref
    source = opened(calve.table_changes(ref), tmp_path)
    end = source.next_end(None)
    roll_back(made.table.table, ids[1])
    with pytest.raises(SourceLost, match="the history of table") as told:
        source.next_end(end)
    assert str(ids[0]) in told.value.detail
    assert "rolled back" in told.value.detail
    assert f"forward to snapshot {ids[3]}" in told.value.hint
    assert "SNAPSHOT = true" in told.value.hint
    with pytest.raises(SourceLost, match="was changed"):
        source.check_unchanged(end, end)
    roll_back(made.table.table, ids[3])
    assert source.next_end(end) is None, "undone: it continues"
    roll_back(made.table.table, ids[1])
    with pytest.raises(InvalidInput, match="changes cannot be read from"):
        opened(calve.table_changes(ref, start=ids[3]), tmp_path / "other").next_end(None)
    made.table.catalog.drop_table("shop.others")
    with pytest.raises(SourceLost, match="was dropped"):
        source.next_end(end)
    missing = opened(calve.table_changes(ref), tmp_path)
    with pytest.raises(TransientError, match="did not exist"):
        missing.schema(None)  # type: ignore[arg-type]  # it is not asked
    made.table.catalog.create_table("shop.others", SCHEMA)
    with pytest.raises(SourceLost, match="the table was recreated"):
        source.next_end(end)


def expire_all_but_the_newest(table: Table, now_ms: int) -> set[int]:
    """Expire everything that nothing keeps; returns the snapshots that are left."""
    options = RetentionOptions(max_age_ms=1, min_snapshots=1)
    expire(table, ExpiryPolicy(options, "main", now_ms, batch=1, force=True))
    return {s.snapshot_id for s in table.catalog.load_table(table.name()).metadata.snapshots}


def test_a_consumer_keeps_what_it_has_not_committed(made: EvolvingTable, tmp_path: Path) -> None:
    ids, ref = snapshots(made.table.table), made.table.ref
    clock = SetClock()
    definition = calve.table_changes(ref, start=ids[0], consumer="copy", max_rows_per_checkpoint=1)
    source = opened(definition, tmp_path, clock)
    first = source.next_end(None)
    (held,) = consumers_of(made.table.table)
    assert (held.name, held.sink_id, held.snapshot_id, held.behind) == ("copy", SINK, ids[0], 3)
    second = source.next_end(first)
    assert snapshot_in(second) == ids[2], "it reads on,"
    (held,) = consumers_of(made.table.table)
    assert held.snapshot_id == ids[0], "and the tag stays until the sink has committed"
    assert expire_all_but_the_newest(made.table.table, clock.now) == set(ids)
    source.committed(first)
    source.next_end(second)
    (held,) = consumers_of(made.table.table)
    assert held.snapshot_id == ids[0], "at most once a minute"
    clock.now += int(1000 * MOVE_SECONDS)
    source.next_end(second)
    (held,) = consumers_of(made.table.table)
    assert (held.snapshot_id, held.behind) == (ids[1], 2)
    assert expire_all_but_the_newest(made.table.table, clock.now) == set(ids[1:])
    # A new process with older offsets does not move it back.
    stale = opened(definition, tmp_path, clock)
    stale.committed(second)
    clock.now += int(1000 * MOVE_SECONDS)
    assert stale.next_end(second) is not None
    (held,) = consumers_of(made.table.table)
    assert held.snapshot_id == ids[2]
    behind = opened(definition, tmp_path, clock)
    assert behind.next_end(first) is not None
    (held,) = consumers_of(made.table.table)
    assert held.snapshot_id == ids[2]
    made.table.close()


def test_a_consumer_that_starts_over_after_a_rollback_keeps_what_it_has_not_committed(
    made: EvolvingTable, tmp_path: Path
) -> None:
    ids, clock = snapshots(made.table.table), SetClock()
    definition = calve.table_changes(made.table.ref, consumer="copy")
    opened(definition, tmp_path / "before", clock).next_end(None)
    roll_back(made.table.table, ids[1])
    source = opened(definition, tmp_path / "after", clock)
    start = source.next_end(None, whole=True)
    assert snapshot_in(start) == ids[1]
    (held,) = consumers_of(made.table.table)
    assert held.snapshot_id == ids[1], "the tag was on a snapshot that nobody follows any longer"
    made.batch()
    left = expire_all_but_the_newest(made.table.table, clock.now)
    assert ids[1] in left
    assert snapshot_in(source.next_end(start)) == snapshots(made.table.table)[-1]
    made.table.close()


def test_the_columns_of_the_log_of_a_log_have_different_names() -> None:
    columns, named = ["page", DIFF, TIME], list[list[str]]()
    for _ in range(3):
        found = record_fields(T.StructType([T.StructField(name, T.StringType()) for name in columns]))
        named.append(found.names[: len(columns)])
        columns = [*named[-1], DIFF, TIME]
    assert named[0] == ["page", "calve_diff", "calve_time"]
    assert named[1] == ["page", "calve_diff", "calve_time", "calve_diff_2", "calve_time_2"]
    assert named[2] == [*named[1], "calve_diff_3", "calve_time_3"]


def test_a_consumer_that_has_read_nothing_keeps_the_first_snapshot(made: EvolvingTable, tmp_path: Path) -> None:
    ids, clock = snapshots(made.table.table), SetClock()
    definition = calve.table_changes(made.table.ref, start="earliest", consumer="copy")
    source = opened(definition, tmp_path, clock)
    start = source.next_end(None)
    assert snapshot_in(start) is None, "the table began empty"
    assert expire_all_but_the_newest(made.table.table, clock.now) == set(ids)
    assert snapshot_in(source.next_end(start)) == ids[-1]
    made.table.close()


def test_a_consumer_of_an_empty_table_keeps_its_first_snapshot(tmp_path: Path) -> None:
    table, clock = ForeignTable(tmp_path / "lake", SCHEMA), SetClock()
    source = opened(calve.table_changes(table.ref, start="latest", consumer="copy"), tmp_path, clock)
    assert source.next_end(None) is None
    assert not list(consumers_of(table.table)), "there is nothing to keep"
    first = table.commit()
    source.next_end(None)
    (held,) = consumers_of(table.table)
    assert held.snapshot_id == first
    table.commit()
    assert first in expire_all_but_the_newest(table.table, clock.now)
    table.close()


def test_a_consumer_without_progress_loses_its_tag_after_its_hold(made: EvolvingTable, tmp_path: Path) -> None:
    ids, ref, clock = snapshots(made.table.table), made.table.ref, SetClock()
    definition = calve.table_changes(ref, start=ids[1], consumer="copy")
    source = opened(definition, tmp_path, clock)
    end = source.next_end(None)
    source.committed(end)
    clock.now += 4 * DAY_MS
    assert source.next_end(end) is None, "nothing is new: the tag moves to the head, and is renewed"
    clock.now += 4 * DAY_MS
    assert expire_all_but_the_newest(made.table.table, clock.now) == {ids[3]}
    (held,) = consumers_of(made.table.table)
    assert held.released_ms is not None
    assert held.released_ms > clock.now
    made.batch()
    made.batch()
    clock.now += 4 * DAY_MS
    left = expire_all_but_the_newest(made.table.table, clock.now)
    assert left == {snapshots(made.table.table)[-1]}
    assert not list(consumers_of(made.table.table)), "the expiring commit removes the tag"
    with pytest.raises(SourceLost, match="the history of table") as told:
        source.next_end(end)
    assert str(next(iter(left))) in told.value.detail
    made.table.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_checkpoints_with_restarts_lead_to_the_rows_of_the_table(seed: int, tmp_path: Path) -> None:
    """Columns, partitions, rewrites; a restart may repeat a checkpoint with another end, which was not recorded."""
    rng = random.Random(seed)
    made, ref = EvolvingTable(tmp_path / "lake", rng), None
    made.batch()
    ref = made.table.ref
    definition = calve.table_changes(ref, start=rng.choice(["snapshot", "earliest"]), max_rows_per_checkpoint=20)
    source, recorded = opened(definition, tmp_path), None
    rows: list[Any] = []
    restarts = 0
    for _ in range(14):
        made.batch()
        if rng.random() < 0.4:
            made.rewrite()
        if rng.random() < 0.4:
            made.evolve()
        while True:
            try:
                end = source.next_end(recorded)
            except SourceChanged:
                source, restarts = opened(definition, tmp_path), restarts + 1
                continue
            if end is None:
                break
            if rng.random() < 0.3:
                source, restarts = opened(definition, tmp_path), restarts + 1
                continue
            since, until = place_from(recorded), place_from(end)
            assert until is not None
            if since is None:
                rows = [] if until.snapshot_id is None else states(ref, None, until.snapshot_id)[1]
            else:
                before = [] if since.snapshot_id is None else states(ref, since.snapshot_id, until.snapshot_id)[0]
                assert len(before) == len(rows)
                changes = read_changes(ref, since=since.snapshot_id, until=until.snapshot_id, net=False, before=True)
                rows = apply_as_multiset(before, changes)
            recorded = end
    assert restarts
    assert sorted(map(repr, rows)) == sorted(map(repr, made.table.rows()))
    made.table.close()


def test_wrong_definitions_are_refused() -> None:
    ref = calve.connect(home="/nowhere").table("shop.orders")
    with pytest.raises(InvalidInput, match="not a valid name for a consumer"):
        calve.table_changes(ref, consumer="a b")
    with pytest.raises(InvalidInput, match="key is a list"):
        calve.table_changes(ref, key="id")
    with pytest.raises(InvalidInput, match="takes a table of a lake"):
        calve.table_changes("shop.orders")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at least 1"):
        calve.table_changes(ref, max_rows_per_checkpoint=0)


def test_a_snapshot_counts_what_it_changes_not_all_that_its_vectors_contain(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit(dict.fromkeys(range(100), "a"))
    first = newest_place(run.now)
    for number in range(40):
        run.commit({number: "b"})
    assert [step.rows for step in steps_after(run.now, first)] == [2] * 40


def test_a_plan_counts_what_changed_not_all_that_vectors_contain(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit(dict.fromkeys(range(100), "a"))
    first = newest_place(run.now)
    for number in range(40):
        run.commit({number: "b"})
    plan = ChangeRange.of(run.now, first.snapshot_id, None).plan()
    assert plan.rows == 80, "40 new rows and 40 deleted ones, whatever each of the 40 vectors contains"


def test_a_table_with_names_that_changes_use_is_refused_as_a_source(made: EvolvingTable, tmp_path: Path) -> None:
    with made.table.table.update_schema() as update:
        update.add_column("_Commit_Version", LongType())
    changes = calve.table_changes(made.table.ref)
    for ask in (changes.shape, lambda: opened(changes, tmp_path / "s").next_end(None)):
        with pytest.raises(InvalidInput, match='column "_Commit_Version" has a name that changes use') as caught:
            ask()
        assert "Rename the column" in (caught.value.hint or "")
