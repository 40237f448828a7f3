"""Which rows of a batch keep an id, and the files that are written for it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, PrimitiveType, StringType

import calve
from calve import faults
from calve.catalog.row_lineage import next_row_id
from calve.errors import TransientError
from calve.iceberg.files.content import content_id
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.position_deletes import RowPositions
from calve.keylookup import search
from calve.keylookup.ordered import OrderedResolver
from calve.keylookup.row_ids import IdReading, kept_ids
from calve.keylookup.search import search_here
from calve.model.change import ORDER
from calve.model.files import Content, WrittenFile
from calve.model.spec import KeyIndexUse, OnForeignCommit, WriteOptions
from calve.reader.key_positions import KeyMemory, PositionFinder, ids_at
from calve.write.row_ids import RowIdWriter
from tests.support.foreign import Row, live_entries_of
from tests.support.id_schedules import Schedule, change_keys
from tests.support.keyed import KeyedTable
from tests.support.lineage import check_batch, lineage_of
from tests.support.readers import duckdb_rows
from tests.support.runs import Run, spec_of

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType(), required=True))
BY_VALUE = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))


def row(number: int, value: str = "a") -> dict[str, Any]:
    return {"id": number, "v": value}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[KeyedTable]:
    made = KeyedTable(tmp_path, SCHEMA, ["id"], version=3)
    yield made
    made.close()


def apply(table: KeyedTable, files: Sequence[Sequence[Row]], deletes: Sequence[int] = ()) -> list[WrittenFile]:
    """Commit a batch with these files, and check it."""
    before, new_from = lineage_of(table.table), next_row_id(table.table.metadata) or 0
    partitioned = not table.table.spec().is_unpartitioned()
    written = [table.data(rows, [rows[0]["v"]] if partitioned else []) for rows in files]
    upserts = {one["id"]: one for rows in files for one in rows}
    table.apply(written, list(upserts.values()), [row(number) for number in deletes])
    check_batch(before, lineage_of(table.table), upserts, deletes, new_from)
    return written


def data_files(table: Table) -> dict[str, list[str]]:
    """The data files of a table, and their columns."""
    cache = ManifestCache()
    lines = cache.lines_of(table.io, table.current_snapshot())
    entries = cache.entries_of(table.io, *(line.manifest for line in lines))
    files = [e.data_file.file_path for e in entries if not e.data_file.content]
    return {file: pq.read_schema(file.removeprefix("file://")).names for file in files}


@pytest.mark.parametrize("index", [KeyIndexUse.OFF, KeyIndexUse.ON])
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_VALUE])
def test_an_updated_row_keeps_its_id_until_it_is_deleted(
    tmp_path: Path, index: KeyIndexUse, spec: PartitionSpec
) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], spec, version=3, index=index)
    apply(table, [[row(1), row(2), row(3)]])
    apply(table, [[row(2, "b"), row(4, "b")], [row(3)]])
    apply(table, [[row(2, "c")]], deletes=[4])
    apply(table, [[row(4)], [row(2, "b")]])
    assert calve.compact(table.ref) is not None
    apply(table, [[row(1), row(2), row(3), row(4)]])
    table.close()


def test_only_files_with_updated_rows_are_written_again(table: KeyedTable) -> None:
    (first,) = apply(table, [[row(1), row(2)]])
    kept, replaced = apply(table, [[row(8), row(9)], [row(2, "b"), row(7)]])
    found = data_files(table.table)
    assert found[first.path] == found[kept.path] == ["id", "v"]
    assert replaced.path not in found
    (new,) = found.keys() - {first.path, kept.path}
    assert found[new] == ["id", "v", "_row_id"]
    ids = pq.read_table(new.removeprefix("file://"))["_row_id"]
    assert ids.to_pylist() == [1, None]
    assert pq.read_schema(new.removeprefix("file://")).field("_row_id").metadata[b"PARQUET:field_id"] == b"2147483540"
    entry = next(e.data_file for e in live_entries_of(table) if e.data_file.file_path == new)
    assert set(entry.value_counts) == set(entry.lower_bounds) == {1, 2}, "metrics are for columns of the table"
    assert int(table.summary["added-files-size"]) == kept.size + entry.file_size_in_bytes + vector_bytes(table)
    assert {one["id"]: one["v"] for one in duckdb_rows(table.table.metadata_location)} == {
        1: "a", 2: "b", 7: "a", 8: "a", 9: "a"
    }  # fmt: skip


def vector_bytes(table: KeyedTable) -> int:
    return sum(content_id(e.data_file).length for e in live_entries_of(table) if e.data_file.content)


def test_version_2_writes_nothing_again(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], version=2)
    files = [table.data([row(1), row(2)]), table.data([row(1, "b")])]
    for file, rows in zip(files, ([row(1), row(2)], [row(1, "b")]), strict=True):
        table.apply([file], rows)
    assert data_files(table.table) == {file.path: ["id", "v"] for file in files}
    table.close()


@pytest.mark.parametrize("index", [KeyIndexUse.OFF, KeyIndexUse.ON])
@pytest.mark.parametrize("files", [[[5, 1], [1]], [[5, 1, 1, 1]], [[5, 1, 1], [1, 1]]])
def test_of_several_rows_of_a_key_the_smallest_id_is_kept(
    tmp_path: Path, files: list[list[int]], index: KeyIndexUse
) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], version=3, index=index)
    table.commit(*(table.data([row(number, str(at)) for at, number in enumerate(numbers)]) for numbers in files))
    assert sum(not e.data_file.content for e in live_entries_of(table)) == len(files)
    table.apply([table.data([row(1, "c")])], [row(1, "c")])
    assert lineage_of(table.table)[1].row_id == 1
    table.close()


def test_ids_that_were_just_written_are_those_that_the_files_state(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], version=3, index=KeyIndexUse.ON)
    apply(table, [[row(number) for number in range(9)]])
    for first in range(4):
        apply(table, [[row(number, "b") for number in range(first, 12, 2)], [row(20 + first)]])
    scan, stated = table.resolver._last, 0
    assert scan is not None
    for file in (candidate.file for candidate in scan.candidates):
        everywhere, known = RowPositions(file, np.arange(file.rows)), table.resolver._remembered
        stated += known.of(file.path).ids is not None
        assert ids_at(scan.target, everywhere, (1,), known).tolist() == (
            ids_at(scan.target, everywhere, (1,), KeyMemory()).tolist()
        )
    assert stated == 3, "they are not read back"
    table.close()


def test_a_row_that_an_equality_delete_deleted_has_no_id_to_keep(table: KeyedTable) -> None:
    rows = [row(1), row(2)]
    table.apply([table.data(rows)], rows)
    table.commit(table.equality(["v"], [{"v": "b"}]), table.equality(["id"], [{"id": 1}]))
    new = table.data([row(1, "c"), row(2, "c")])
    table.apply([new], [row(1, "c"), row(2, "c")])
    (path,) = (path for path, columns in data_files(table.table).items() if "_row_id" in columns)
    assert pq.read_table(path.removeprefix("file://"))["_row_id"].to_pylist() == [None, 1]


def test_rounds_find_the_same_ids(table: KeyedTable) -> None:
    rows = [row(number) for number in range(20)]
    table.apply([table.data(rows[:9]), table.data(rows[9:])], rows)
    table.commit(table.data([row(3, "twice"), row(12, "twice")]))
    batch = [row(number, "b") for number in range(0, 30, 3)]
    added = table.iceberg.write_manifests([table.data(batch[:5]), table.data(batch[5:])], "batch")
    scan = table.iceberg.plan_keys(table.iceberg.load(), table.keys(batch), added)
    files = [candidate.file for candidate in scan.candidates]
    found = search_here(files, PositionFinder(scan.target, files, KeyMemory()))
    assert sum(len(one.positions) for one in found) == 9
    expected = [[0, 3, 6, 9, 12], [15, 18, None, None, None]]
    for most in (1, 2, 5, 100):
        assert [one.ids.to_pylist() for one in kept_ids(scan, found, IdReading(KeyMemory()), most)] == expected


class OrderedTable(KeyedTable):
    """A table whose rows are ordered across batches, by a column of this type."""

    def __init__(self, path: Path, kind: PrimitiveType, monkeypatch: pytest.MonkeyPatch) -> None:
        schema = Schema(*SCHEMA.fields, NestedField(3, ORDER, kind))
        super().__init__(path, schema, ["id"], version=3)
        self._of_keys = Schema(*[f.model_copy(update={"required": False}) for f in schema.fields if f.name != "v"])
        writer = RowIdWriter(self.iceberg, WriteOptions(), self._jobs)
        self._ordered = OrderedResolver(self.iceberg, self._ids, writer)
        monkeypatch.setattr(self.resolver, "resolve", self._resolve)
        self._batch: list[Row] = []

    def put(self, *batch: Row) -> None:
        """Commit a batch."""
        self._batch = list(batch)
        self.apply([self.data(batch)], batch)

    def _resolve(self, state: Any, _keys: Any, commit_id: str, added: Any) -> Any:
        keys = self._file(Content.EQUALITY_DELETES, self._of_keys, self._batch, (), equality_ids=(1,))
        manifests = self.iceberg.write_manifests([keys], f"{commit_id}-keys")
        return self._ordered.resolve(state, manifests, commit_id, added)


def test_a_row_that_lost_by_order_leaves_the_id_to_the_newer_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = OrderedTable(tmp_path, LongType(), monkeypatch)
    table.put({**row(1), ORDER: 5}, {**row(2), ORDER: 5})
    before, new_from = lineage_of(table.table), next_row_id(table.table.metadata) or 0
    batch = [{**row(1, "late"), ORDER: 4}, {**row(2, "newer"), ORDER: 6}, {**row(3, "new"), ORDER: 1}]
    table.put(*batch)
    upserts = {one["id"]: one for one in batch if one["v"] != "late"}
    check_batch(before, lineage_of(table.table), upserts, (), new_from)
    table.close()


def test_floating_point_orders_compare_as_spark_compares_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan, infinite = float("nan"), float("inf")
    wins = [
        (nan, nan),
        (0.0, -0.0),
        (-0.0, 0.0),
        (infinite, nan),
        (infinite, infinite),
        (None, -infinite),
        (None, None),
    ]
    loses = [(nan, infinite), (1.0, -0.0), (-infinite, None)]
    table = OrderedTable(tmp_path, DoubleType(), monkeypatch)
    pairs = list(enumerate([*wins, *loses]))
    table.put(*({**row(number, "old"), ORDER: old} for number, (old, _) in pairs))
    table.put(*({**row(number, "new"), ORDER: new} for number, (_, new) in pairs))
    found = {one["id"]: one["v"] for one in table.rows()}
    assert found == {number: "new" if number < len(wins) else "old" for number, _ in pairs}
    table.close()


@pytest.mark.parametrize(("owner", "failing"), [(search, "write_vectors"), (RowIdWriter, "write")])
def test_a_lookup_of_which_one_half_fails_leaves_nothing_of_the_other(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch, owner: object, failing: str
) -> None:
    apply(table, [[row(1), row(2)]])
    added = table.iceberg.write_manifests([table.data([row(2, "b")])], "batch")
    keys = table.keys([row(2)])
    before = {path for path in table.home.rglob("*") if path.is_file()}

    def fail(*_: Any) -> Any:
        raise TransientError("the store is full")

    monkeypatch.setattr(owner, failing, fail)
    with pytest.raises(TransientError, match="the store is full"):
        table.resolver.resolve(table.iceberg.load(), keys, "batch", added)
    monkeypatch.undo()
    assert {path for path in table.home.rglob("*") if path.is_file()} == before
    assert table.resolver.resolve(table.iceberg.load(), keys, "batch", added).rows is not None


# ---- runs: batches that wait, restarts, other writers


def files_below(run: Run) -> set[str]:
    return {path.name for path in Path(run.now.location().removeprefix("file://")).rglob("*") if path.is_file()}


def test_a_committed_batch_leaves_no_file_behind_that_its_table_does_not_have(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    for number in range(3):
        run.commit({1: f"v{number}", 10 + number: "once"})
    named = {Path(str(path)).name for path in run.now.inspect.files()["file_path"].to_pylist()}
    named |= {Path(str(path)).name for path in run.now.inspect.all_data_files()["file_path"].to_pylist()}
    assert {name for name in files_below(run) if name.endswith(".parquet")} <= named
    named |= {Path(str(path)).name for path in run.now.inspect.all_manifests()["path"].to_pylist()}
    lists = {Path(snapshot.manifest_list).name for snapshot in run.now.snapshots()}
    assert {name for name in files_below(run) if name.endswith(".avro")} == named - {
        name for name in named if not name.endswith(".avro")
    } | lists


def test_an_attempt_that_was_not_applied_leaves_no_rows_behind(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3, on_foreign_commit=OnForeignCommit.ACCEPT))
    run.commit({1: "a", 2: "a"})
    run.record({1: "b", 3: "b"})
    before = files_below(run)
    meanwhile = [lambda: change_keys(run.now, {2: 20})]

    def other_writer(point: str) -> None:
        if point == "resolve.after" and meanwhile:
            meanwhile.pop()()

    faults.install(other_writer)
    try:
        assert run.run.commits.commit_next() is not None
    finally:
        faults.install(None)
    assert not meanwhile
    found = lineage_of(run.now)
    assert {key: one.values["v"] for key, one in found.items()} == {1: "b", 20: "a", 3: "b"}
    assert (found[1].row_id, found[20].row_id) == (0, 1)
    live = {Path(path).name for path in data_files(run.now)}
    assert {name for name in files_below(run) - before if name.endswith(".parquet")} <= live


def check_schedule(home: Path, seed: int, steps: int) -> int:
    schedule = Schedule(home, seed)
    kept = schedule.check(steps)
    expected = {key: one.values["v"] for key, one in schedule.lineage().items()}
    assert {one["id"]: one["v"] for one in duckdb_rows(schedule.run.now.metadata_location)} == expected
    return kept


@pytest.mark.long
def test_ids_are_kept_in_any_order_of_batches_crashes_and_other_writers(tmp_path: Path) -> None:
    assert sum(check_schedule(tmp_path / str(seed), seed, 20) for seed in range(2)) > 10


@pytest.mark.slow
def test_ids_are_kept_in_many_orders_of_batches_crashes_and_other_writers(tmp_path: Path) -> None:
    assert sum(check_schedule(tmp_path / str(seed), seed, 60) for seed in range(100, 140)) > 1000
