"""Changes of small tables, one rule at a time."""

import datetime as dt
import logging
import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DoubleType, ListType, LongType, MapType, NestedField, StringType, StructType

import calve.changelog.events
import calve.reader.deletes
import calve.reader.pages
from calve.changelog.changes import changes_here
from calve.errors import InvalidInput, TerminalError
from calve.iceberg.files.store import open_input
from calve.iceberg.planning.change_range import ChangeRange
from calve.model.files import WrittenFile
from calve.model.frontier import SEALED, Frontier
from calve.reader.rows import first_rows
from tests.support.change_feed import check_keyed, read_changes, states
from tests.support.compaction import compact
from tests.support.foreign import ForeignTable
from tests.unit.iceberg.sample import Sample
from tests.unit.reader.test_travel import OTHER

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "v", StringType(), required=False),
    identifier_field_ids=[1],
)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ForeignTable]:
    made = ForeignTable(tmp_path, SCHEMA)
    yield made
    made.close()


def rows(**values: str) -> list[dict[str, Any]]:
    """Rows by key: a1="x" is the row (1, x)."""
    return [{"id": int(name[1:]), "v": value} for name, value in values.items()]


def shown(table: ForeignTable, **how: Any) -> list[tuple[Any, ...]]:
    """Type, key and value of each change."""
    return [(c["_change_type"], c["id"], c["v"]) for c in read_changes(table.ref, **how)]


# -------------------------------------------------------------------------------------------------------------- rows


def test_net_changes_have_one_row_for_each_key_that_differs(table: ForeignTable) -> None:
    first = table.data(rows(a1="one", a2="two", a3="three"))
    since = table.commit(first)
    second = table.data(rows(a1="uno", a4="four", a5="five"))
    table.commit(second, table.positions([(first, 0)]))
    table.commit(table.data(rows(a1="eins")), table.positions([(second, 0), (second, 2), (first, 1)]))
    assert sorted(shown(table, since=since), key=repr) == [
        ("delete", 2, None),
        ("insert", 4, "four"),
        ("update_postimage", 1, "eins"),
    ]
    with_images = shown(table, since=since, before=True)
    assert ("update_preimage", 1, "one") in with_images
    assert ("delete", 2, "two") in with_images
    assert len(with_images) == 4


def test_every_step_shows_each_snapshot_and_its_origin(table: ForeignTable) -> None:
    first = table.data(rows(a1="one"))
    table.commit(first)
    second = table.data(rows(a1="uno"))
    table.commit(second, table.positions([(first, 0)]))
    table.commit(table.positions([(second, 0)]))
    found = read_changes(table.ref, net=False, before=True)
    snapshots = table.table.metadata.snapshots
    assert [(c["_change_type"], c["v"], c["_commit_version"], c["_calve_frontier"]) for c in found] == [
        ("insert", "one", 1, "[10]"),
        ("update_preimage", "one", 2, "[20]"),
        ("update_postimage", "uno", 2, "[20]"),
        ("delete", "uno", 3, "[30]"),
    ]
    times = [dt.datetime.fromtimestamp(s.timestamp_ms / 1000, dt.UTC) for s in snapshots]
    assert [c["_commit_timestamp"] for c in found] == [times[0], times[1], times[1], times[2]]
    assert not shown(table), "inserted and deleted is nothing"


def test_equal_rows_cancel_whatever_wrote_them_again(table: ForeignTable) -> None:
    first = table.data(rows(a1="one", a2="two", a3="three"))
    since = table.commit(first)
    table.exchange([first], table.data(rows(a3="three", a1="uno", a2="two")))
    for net in (True, False):
        assert shown(table, since=since, net=net) == [("update_postimage", 1, "uno")]
    compact(table.ref, ["id"])
    assert shown(table, since=since, before=True) == [("update_preimage", 1, "one"), ("update_postimage", 1, "uno")]


def test_an_update_to_the_same_values_is_nothing_with_before_images(table: ForeignTable) -> None:
    first = table.data(rows(a1="one"))
    since = table.commit(first)
    table.commit(table.data(rows(a1="one")), table.equality(["id"], [{"id": 1}]))
    assert not shown(table, since=since, before=True)
    assert not shown(table, since=since, before=True, net=False)
    assert shown(table, since=since) == [("update_postimage", 1, "one")]


def test_changed_and_changed_back_is_nothing(table: ForeignTable) -> None:
    since = table.commit(table.data(rows(a1="one")))
    for value in ("uno", "one"):
        table.commit(table.data(rows(a1=value)), table.equality(["id"], [{"id": 1}]))
    assert not shown(table, since=since, before=True)
    assert len(shown(table, since=since, net=False)) == 2


def test_several_rows_of_a_key_are_deletes_and_inserts(table: ForeignTable) -> None:
    first = table.data([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}])
    since = table.commit(first)
    table.commit(table.data([{"id": 1, "v": "b"}, {"id": 1, "v": "c"}]), table.equality(["id"], [{"id": 1}]))
    wanted = [("delete", 1, "a"), ("insert", 1, "c")]
    for net in (True, False):
        found = shown(table, since=since, before=True, net=net)
        assert sorted(found) in (wanted, [("update_postimage", 1, "c"), ("update_preimage", 1, "a")])
    with pytest.raises(TerminalError, match="several rows of the table have the same key") as error:
        shown(table, since=since)
    assert "before images" in error.value.hint
    table.commit(table.data([{"id": 1, "v": "d"}, {"id": 1, "v": "e"}]))
    assert sorted(shown(table, since=since, before=True)) == [
        ("delete", 1, "a"),
        ("insert", 1, "c"),
        ("insert", 1, "d"),
        ("insert", 1, "e"),
    ]


def test_rows_of_a_key_that_are_replaced_one_after_another_are_told_apart(table: ForeignTable) -> None:
    first = table.data([{"id": 1, "v": "a"}, {"id": 1, "v": "b"}])
    since = table.commit(first)
    table.commit(table.data([{"id": 1, "v": "c"}]), table.positions([(first, 0)]))
    table.commit(table.positions([(first, 1)]))
    found = shown(table, since=since, before=True)
    assert sorted(found) == [("delete", 1, "a"), ("delete", 1, "b"), ("insert", 1, "c")]
    with pytest.raises(TerminalError, match="several rows of the table have the same key"):
        shown(table, since=since)


def test_a_row_that_is_added_beside_another_is_not_the_one_that_is_deleted_next(table: ForeignTable) -> None:
    first = table.data([{"id": 1, "v": "a"}])
    since = table.commit(first)
    table.commit(table.data([{"id": 1, "v": "b"}]))
    table.commit(table.positions([(first, 0)]))
    assert shown(table, since=since, before=True) == [("update_preimage", 1, "a"), ("update_postimage", 1, "b")]
    with pytest.raises(TerminalError, match="several rows of the table have the same key"):
        shown(table, since=since)


@pytest.mark.long
def test_net_changes_of_keys_with_several_rows_are_right_or_refused(table: ForeignTable) -> None:
    """Without before images. One step adds or deletes one row of either key, wherever the others are."""
    rng = random.Random(8)
    live: list[tuple[Any, int]] = []
    ids = []
    for number in range(24):
        files = []
        if live and rng.random() < 0.6:
            files.append(table.positions([live.pop(rng.randrange(len(live)))]))
        if not files or rng.random() < 0.3:
            files.append(table.data([{"id": rng.randrange(2), "v": str(number)}]))
            live.append((files[-1], 0))
        ids.append(table.commit(*files))
    read, refused = 0, 0
    for at, since in enumerate(ids):
        for until in ids[at + 1 : at + 5]:
            first, last = states(table.ref, since, until)
            try:
                found = shown(table, since=since, until=until)
            except TerminalError:
                refused += 1
                continue
            read += 1
            for key in range(2):
                before, after = (Counter(row["v"] for row in side if row["id"] == key) for side in (first, last))
                come = Counter(v for kind, k, v in found if k == key and kind != "delete")
                gone = sum(k == key and kind != "insert" for kind, k, _ in found)
                assert before.total() - gone + come.total() == after.total(), (since, until)
                assert not come - after
                assert not after - before - come
    assert read
    assert refused


def test_rows_without_a_key_are_inserted_and_deleted(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, Schema(*SCHEMA.fields))
    first = table.data([{"id": 1, "v": "a"}, {"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    since = table.commit(first)
    table.commit(table.data([{"id": 1, "v": "c"}, {"id": 2, "v": "b"}]), table.positions([(first, 0), (first, 2)]))
    for net in (True, False):
        assert sorted(shown(table, since=since, net=net)) == [("delete", 1, "a"), ("insert", 1, "c")]
    table.close()


def test_nan_equals_nan_and_zeros_with_different_signs_differ(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "v", DoubleType(), required=False),
        identifier_field_ids=[1],
    )
    table = ForeignTable(tmp_path, schema)
    first = table.data([{"id": 1, "v": math.nan}, {"id": 2, "v": 0.0}, {"id": 3, "v": None}])
    since = table.commit(first)
    table.exchange([first], table.data([{"id": 3, "v": None}, {"id": 2, "v": -0.0}, {"id": 1, "v": -math.nan}]))
    found = read_changes(table.ref, since=since, before=True)
    assert [(c["_change_type"], c["id"], math.copysign(1, c["v"])) for c in found] == [
        ("update_preimage", 2, 1.0),
        ("update_postimage", 2, -1.0),
    ]
    table.close()


def test_nested_columns_are_compared_by_their_contents(tmp_path: Path) -> None:
    inner = StructType(NestedField(7, "a", LongType()), NestedField(8, "b", StringType()))
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "tags", ListType(5, StringType(), element_required=False), required=False),
        NestedField(3, "m", MapType(9, StringType(), 10, DoubleType(), value_required=False), required=False),
        NestedField(4, "s", inner, required=False),
        identifier_field_ids=[1],
    )
    table = ForeignTable(tmp_path, schema)
    same: list[dict[str, Any]] = [
        {"id": 1, "tags": ["x", None], "m": [("k", math.nan)], "s": {"a": 1, "b": None}},
        {"id": 2, "tags": [], "m": [], "s": None},
        {"id": 3, "tags": None, "m": None, "s": {"a": None, "b": None}},
    ]
    changed = [{**same[0], "id": n} for n in (4, 5, 6, 7)]
    first = table.data([*same, *changed])
    since = table.commit(first)
    changed[0]["tags"] = ["x", None, None]
    changed[1]["m"] = [("k", 1.0)]
    changed[2]["s"] = {"a": 1, "b": ""}
    changed[3]["s"] = None
    table.exchange([first], table.data([*reversed(same), *changed]))
    found = read_changes(table.ref, since=since)
    assert [(c["_change_type"], c["id"]) for c in found] == [("update_postimage", n) for n in (4, 5, 6, 7)]
    table.close()


def test_only_the_asked_columns_and_the_key_are_there(table: ForeignTable) -> None:
    table.commit(table.data(rows(a1="one")))
    assert list(read_changes(table.ref, columns=["v"])[0]) == [
        "id",
        "v",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_calve_frontier",
    ]
    assert next(iter(read_changes(table.ref, columns=["V"], key=["V"])[0])) == "v"
    with pytest.raises(InvalidInput, match='no column "x"'):
        read_changes(table.ref, columns=["x"])


def test_a_column_that_is_named_twice_is_refused_however_it_is_spelled(table: ForeignTable) -> None:
    table.commit(table.data(rows(a1="one")))
    for how in ({"columns": ["v", "V"]}, {"key": ["id", "ID"]}):
        with pytest.raises(InvalidInput, match="each column once"):
            read_changes(table.ref, **how)


def test_a_column_with_a_name_of_changes_is_refused(table: ForeignTable) -> None:
    with table.table.update_schema() as update:
        update.add_column("_change_type", StringType())
    table.commit(table.data([{"id": 1, "v": "a", "_change_type": "x"}]))
    with pytest.raises(InvalidInput, match="a name that changes use themselves"):
        read_changes(table.ref)
    assert len(read_changes(table.ref, columns=["v"])) == 1


# ------------------------------------------------------------------------------------------- what other writers may do


def test_rows_that_a_batch_adds_and_deletes_itself_do_not_show(table: ForeignTable) -> None:
    since = table.commit(table.data(rows(a1="one")))
    file = table.data(rows(a2="lost", a3="three"))
    table.commit(file, table.positions([(file, 0)]))
    assert shown(table, since=since, net=False) == [("insert", 3, "three")]


def test_deletes_of_rows_that_are_gone_already_do_not_show(table: ForeignTable) -> None:
    file = table.data(rows(a1="one", a2="two"))
    table.commit(file)
    since = table.commit(table.positions([(file, 0)]))
    table.commit(table.equality(["id"], [{"id": 1}]))
    table.commit(table.positions([(file, 0)]))
    again = table.equality(["id"], [{"id": 1}, {"id": 2}])
    table.commit(again)
    assert shown(table, since=since, net=False, before=True) == [("delete", 2, "two")]


def test_a_delete_that_is_added_again_deletes_nothing_more(table: ForeignTable) -> None:
    file = table.data(rows(a1="one", a2="two"))
    table.commit(file)
    delete = table.positions([(file, 0)])
    since = table.commit(delete)
    back = table.exchange([delete])
    assert shown(table, since=since) == [("insert", 1, "one")], "a delete that leaves brings its rows back"
    table.commit(delete)
    assert shown(table, since=back) == [("delete", 1, None)]
    assert not shown(table, since=since, before=True)
    table.commit(delete)
    assert not shown(table, since=since, before=True)


def test_a_file_that_leaves_and_comes_back_changes_nothing(table: ForeignTable) -> None:
    file = table.data(rows(a1="one", a2="two"))
    table.commit(file)
    since = table.commit(table.equality(["id"], [{"id": 1}]))
    gone = table.exchange([file])
    assert shown(table, since=since) == [("delete", 2, None)]
    table.commit(file)
    assert sorted(shown(table, since=gone)) == [("insert", 1, "one"), ("insert", 2, "two")], "newer than the delete"
    assert shown(table, since=since, before=True) == [("insert", 1, "one")]
    check_keyed(table.ref, since, None, ["id"])


def test_a_file_that_is_listed_twice_has_its_rows_twice(table: ForeignTable) -> None:
    file = table.data(rows(a1="one"))
    since = table.commit(file)
    twice = table.exchange([], file)
    assert shown(table, since=since, before=True) == [("insert", 1, "one")]
    assert len(shown(table, before=True)) == 2
    table.exchange([file])
    assert [kind for kind, *_ in shown(table, since=twice, before=True)] == ["delete", "delete"]


def test_position_deletes_of_files_that_left_change_nothing(table: ForeignTable) -> None:
    file = table.data(rows(a1="one"))
    table.commit(file)
    table.commit(table.positions([(file, 0)]))
    since = table.exchange([file])
    table.commit(table.positions([(file, 0), (file, 7)]))
    assert not shown(table, since=since, net=False)


def test_merged_position_deletes_change_nothing_and_open_no_data(
    table: ForeignTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table.data(rows(a1="one", a2="two", a3="three"))
    table.commit(file)
    deletes = [table.positions([(file, at)]) for at in (0, 1)]
    table.commit(deletes[0])
    since = table.commit(deletes[1])
    table.exchange(deletes, table.positions([(file, 0), (file, 1)]))
    opened = opens(monkeypatch)
    assert not shown(table, since=since, net=False)
    assert file.path not in opened
    assert len(opened) == 3


def test_equality_deletes_that_are_older_than_the_rows_do_not_reach_them(table: ForeignTable) -> None:
    table.commit(table.equality(["id"], [{"id": 1}]))
    since = table.commit(table.data(rows(a1="one")))
    table.commit(table.data(rows(a2="two")))
    assert shown(table) == [("insert", 1, "one"), ("insert", 2, "two")]
    assert shown(table, since=since) == [("insert", 2, "two")]


def test_a_replace_with_deletes_that_were_carried_over_changes_nothing(table: ForeignTable) -> None:
    old = table.data(rows(a1="one", a2="two"))
    since = table.commit(old)
    table.commit(table.positions([(old, 0)]))
    new = table.data(rows(a1="one", a2="two"))
    replaced = table.exchange([old], new, table.positions([(new, 0)]), operation=Operation.REPLACE)
    table.commit(table.positions([(new, 1)]))
    assert shown(table, since=since, before=True) == [("delete", 1, "one"), ("delete", 2, "two")]
    assert shown(table, since=replaced) == [("delete", 2, None)]


def test_a_dropped_column_that_is_added_again_is_another_column(table: ForeignTable) -> None:
    first = table.data(rows(a1="one", a2="two"))
    since = table.commit(first)
    with table.table.update_schema() as update:
        update.delete_column("v")
    with table.table.update_schema() as update:
        update.add_column("v", StringType())
    assert not shown(table, since=since), "a change of columns changes no rows"
    table.commit(table.data([{"id": 1, "v": "new"}]), table.positions([(first, 0)]))
    assert shown(table, since=since, before=True) == [("update_preimage", 1, None), ("update_postimage", 1, "new")]


# ------------------------------------------------------------------------------------------------------ what is read


def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of files that are opened from now on."""
    found: list[str] = []
    really = open_input

    def counted(path: str, properties: Any) -> Any:
        found.append(path)
        return really(path, properties)

    monkeypatch.setattr(calve.changelog.events, "open_input", counted)
    monkeypatch.setattr(calve.reader.deletes, "open_input", counted)
    return found


def test_only_files_of_the_range_are_opened_each_once(table: ForeignTable, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[WrittenFile] = []
    for start in range(0, 40, 10):
        files.append(table.data([{"id": n, "v": "x"} for n in range(start, start + 10)], row_group_size=2))
        table.commit(files[-1])
    table.commit(table.positions([(files[0], 0)]))
    since = table.table.current_snapshot()
    assert since is not None
    deletes = [table.positions([(files[0], at)]) for at in (1, 2, 3)]
    added = table.data([{"id": 100, "v": "new"}])
    for delete in deletes:
        table.commit(delete)
    table.commit(added)
    opened = opens(monkeypatch)
    found = shown(table, since=since.snapshot_id)
    assert sorted(found, key=repr) == [
        ("delete", 1, None),
        ("delete", 2, None),
        ("delete", 3, None),
        ("insert", 100, "new"),
    ]
    data = {file.path for file in files}
    assert sorted(path for path in opened if path in data) == [files[0].path], "once for three steps"
    assert opened.count(added.path) == 1
    assert set(opened) - data - {added.path} >= {delete.path for delete in deletes}
    assert len(opened) == len(set(opened)) == 6, "with the older deletes of the file"


def test_equality_deletes_open_only_files_that_they_reach(table: ForeignTable, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [table.data([{"id": n, "v": "x"} for n in range(start, start + 10)]) for start in range(0, 50, 10)]
    since = table.commit(*files)
    table.commit(table.equality(["id"], [{"id": 23}]))
    opened = opens(monkeypatch)
    assert shown(table, since=since) == [("delete", 23, None)]
    assert {file.path for file in files} & set(opened) == {files[2].path}


def test_many_steps_of_equality_deletes_do_not_each_take_memory_for_all_rows(table: ForeignTable) -> None:
    count, steps = 300_000, 40
    file = table.data([{"id": n, "v": "x"} for n in range(count)])
    since = table.commit(file, table.positions([(file, n) for n in range(100)]))
    for step in range(steps):
        table.commit(table.equality(["id"], [{"id": 1000 + step}]))
    tracemalloc.start()
    assert len(read_changes(table.ref, since=since, net=False)) == steps
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < count * steps, "a byte for each row and step is too much"


def test_values_of_deleted_rows_are_not_read_unless_asked_for(
    table: ForeignTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table.data(rows(a1="one", a2="two"))
    since = table.commit(file)
    table.commit(table.positions([(file, 0)]))
    read: list[list[str]] = []
    really = first_rows

    def noted(parquet: Any, group: int, columns: list[str], rows: int) -> Any:
        read.append(columns)
        return really(parquet, group, columns, rows)

    monkeypatch.setattr(calve.changelog.events, "first_rows", noted)
    assert shown(table, since=since) == [("delete", 1, None)]
    assert read == [["id"]]
    assert shown(table, since=since, before=True) == [("delete", 1, "one")]
    assert read[1:] == [["id", "v"]]


@pytest.mark.parametrize("page_rows", [1, 1_000])
def test_former_values_are_the_same_whether_or_not_pages_are_skipped(
    page_rows: int, table: ForeignTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calve.reader.pages, "_PAGE_ROWS", page_rows)
    batches: list[int] = []
    really = first_rows

    def noted(parquet: Any, group: int, columns: list[str], rows: int) -> Any:
        batches.append(group)
        return really(parquet, group, columns, rows)

    monkeypatch.setattr(calve.changelog.events, "first_rows", noted)
    file = table.data([{"id": number, "v": f"v{number}"} for number in range(100)], row_group_size=50)
    since = table.commit(file)
    table.commit(table.positions([(file, 45), (file, 47)]))
    table.commit(table.positions([(file, 46), (file, 98)]), table.data(rows(a46="new")))
    deleted = [("delete", number, f"v{number}") for number in (45, 47, 98)]
    updated = [("update_preimage", 46, "v46"), ("update_postimage", 46, "new")]
    assert sorted(shown(table, since=since, before=True)) == sorted([*deleted, *updated])
    assert len(batches) == (1 if page_rows == 1 else 3), "the new file is read from its start"


# ------------------------------------------------------------------------------------------------------------- ranges


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    """Frontiers 10, 20 and 30; an hour between snapshots."""
    made = Sample(tmp_path)
    for batch in ({1: "a"}, {2: "b"}, {3: "c"}):
        made.commit(batch)
        made.clock.now += 3_600_000
    yield made
    made.close()


def keys(sample: Sample, **how: Any) -> list[int]:
    ref = calve.connect(home=sample.home).table("shop.orders")
    return [row["id"] for batch in changes_here(ref, **how).rows() for row in batch.to_pylist()]


def test_ranges_are_given_by_snapshot_time_frontier_or_tag(sample: Sample) -> None:
    ids = [s.snapshot_id for s in sample.table.metadata.snapshots]
    second = sample.table.metadata.snapshots[1].timestamp_ms
    at = dt.datetime.fromtimestamp(second / 1000, dt.UTC)
    sample.table.manage_snapshots().create_tag(ids[1], "audit").commit()
    assert keys(sample) == [1, 2, 3]
    earlier = at - dt.timedelta(seconds=1)
    for since in (
        ids[1],
        str(ids[1]),
        at,
        at.isoformat(),
        at.replace(tzinfo=None),
        "[20]",
        "[29]",
        Frontier(20),
        "audit",
    ):
        assert keys(sample, since=since) == [3], since
        assert keys(sample, until=since) == [1, 2], since
    assert keys(sample, since=earlier, until=at) == [2]
    assert keys(sample, since=ids[2]) == []
    assert keys(sample, since=dt.datetime(2000, 1, 1)) == [1, 2, 3], "before the first snapshot"  # noqa: DTZ001


def test_a_sealed_frontier_is_the_last_one(sample: Sample) -> None:
    proposal = sample.proposal({9: "last"})
    sealed = replace(proposal.progress, frontier=SEALED)
    sample.iceberg.commit(sample.iceberg.load(), replace(proposal, progress=sealed))
    assert keys(sample, since="[30]", until="[]") == [9]
    assert keys(sample, since="[]") == []


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"since": 77}, "no snapshot 77"),
        ({"since": "nonsense"}, '"nonsense" is neither a snapshot, nor a time, nor a frontier'),
        ({"since": "[x]"}, "invalid frontier"),
        ({"since": "[5]"}, "no snapshot at or before frontier 5"),
        ({"since": 1.5}, "take a snapshot id, a time or a frontier"),
        ({"until": "1999-01-01"}, "no snapshot at or before 1999-01-01"),
        ({"columns": "v"}, "columns is a list"),
        ({"key": "v"}, "key is a list"),
    ],
)
def test_wrong_ranges_are_refused(sample: Sample, how: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("[", r"\[")):
        keys(sample, **how)


def test_a_table_without_snapshots_has_no_changes(table: ForeignTable) -> None:
    assert read_changes(table.ref) == []


def test_a_rolled_back_table_is_refused(sample: Sample) -> None:
    ids = [s.snapshot_id for s in sample.table.metadata.snapshots]
    sample.table.manage_snapshots().rollback_to_snapshot(ids[0]).commit()
    for net in (True, False):
        with pytest.raises(InvalidInput, match=r"the history of table .* was changed") as error:
            keys(sample, since=ids[2], net=net)
        assert str(ids[0]) in error.value.detail
    sample.iceberg.commit(sample.iceberg.load(), sample.proposal({5: "other"}))
    with pytest.raises(InvalidInput, match="was changed"):
        keys(sample, since=ids[1])
    assert keys(sample, since=ids[0]) == [5]


def test_the_other_order_of_two_snapshots_is_refused(sample: Sample) -> None:
    ids = [s.snapshot_id for s in sample.table.metadata.snapshots]
    with pytest.raises(InvalidInput, match="was changed"):
        keys(sample, since=ids[2], until=ids[1])


def test_of_thinned_history_the_two_ends_are_compared_and_steps_are_refused(
    sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    sample.commit({4: "d"}, [1])
    ids = [s.snapshot_id for s in sample.table.metadata.snapshots]
    sample.table.manage_snapshots().create_tag(ids[0], "kept").commit()
    with sample.table.maintenance.expire_snapshots() as expiry:
        expiry.by_ids([ids[1]])
    with pytest.raises(InvalidInput, match=r"some steps of table .* are gone") as error:
        keys(sample, since=ids[0], net=False)
    assert f"the oldest one that leads to {ids[3]} is {ids[2]}" in error.value.detail
    with caplog.at_level(logging.WARNING, "calve"):
        assert sorted(keys(sample, since=ids[0])) == [1, 2, 3, 4]
    assert "those between two snapshots" in caplog.text
    with pytest.raises(InvalidInput, match="are gone"):
        keys(sample, net=False)
    assert sorted(keys(sample)) == [2, 3, 4], "the table began empty"
    assert keys(sample, since=ids[2], net=False) == [1, 4]


def test_a_start_that_an_expiry_cut_off_is_not_taken_for_the_first_snapshot(sample: Sample) -> None:
    ids = [s.snapshot_id for s in sample.table.metadata.snapshots]
    with sample.table.maintenance.expire_snapshots() as expiry:
        expiry.by_ids(ids[:2])
    assert sample.table.metadata.snapshots[0].parent_snapshot_id is None
    with pytest.raises(InvalidInput, match="are gone"):
        keys(sample, net=False)


def test_a_time_whose_snapshot_has_expired_is_not_the_start_of_the_table(sample: Sample) -> None:
    there = sample.table.metadata.snapshots
    first, second, third = (dt.datetime.fromtimestamp(s.timestamp_ms / 1000, dt.UTC) for s in there)
    with sample.table.maintenance.expire_snapshots() as expiry:
        expiry.by_ids([there[0].snapshot_id])
    assert keys(sample, since=second) == [3]
    for since in (first, "2000-01-01"):
        with pytest.raises(InvalidInput, match="has no snapshot at or before") as error:
            keys(sample, since=since)
        assert "have expired" in error.value.detail
    assert sorted(keys(sample, until=third)) == [1, 2, 3], "without a start, the table begins empty"


def test_a_time_that_the_log_of_heads_no_longer_covers_is_refused(sample: Sample) -> None:
    table = sample.table  # other catalogs cut the log off where an expired snapshot was the head
    table.metadata = table.metadata.model_copy(update={"snapshot_log": table.metadata.snapshot_log[1:]})
    first = dt.datetime.fromtimestamp(table.metadata.snapshots[0].timestamp_ms / 1000, dt.UTC)
    with pytest.raises(InvalidInput, match="had no snapshot at"):
        ChangeRange.of(table, first, None)
    assert len(ChangeRange.of(table, first - dt.timedelta(seconds=1), None).pairs) == 3, "before the first snapshot"


def test_a_frontier_of_one_of_several_sinks_is_chosen_by_its_sink(sample: Sample) -> None:
    other = replace(sample, sink_id=OTHER, batches=sample.batches)
    other.commit({7: "other"})
    with pytest.raises(InvalidInput, match="several sinks"):
        keys(sample, since="[30]")
    assert keys(sample, since="[30]", sink=sample.sink_id) == [7]
    other.close()
