"""Look-ups by the key index find what searching the key columns finds, whatever happened to the table or the index."""

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from calve import faults
from calve.iceberg.files.avro import read_entries
from calve.keylookup.index.manifest import IndexManifest, IndexOwner
from calve.keylookup.indexed import IndexLimits
from calve.model.files import ResolvedDeletes
from calve.model.spec import KeyIndexUse
from calve.reader.resources import MemoryBudget
from tests.support.foreign import Row, in_order
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows
from tests.unit.keylookup.test_random import CASES, SCHEMA, files_of, random_row

NUMBERS = Schema(NestedField(1, "id", LongType(), required=True))


def places(table: KeyedTable, found: ResolvedDeletes) -> set[tuple[str, int]]:
    """What the deletes delete."""
    deleted = set()
    for manifest in found.manifests:
        with table.table.io.new_input(manifest.path).open() as stream:
            for entry in read_entries(stream.read()):
                rows = pq.read_table(entry.data_file.file_path.removeprefix("file://")).to_pylist()
                deleted |= {(row["file_path"], row["pos"]) for row in rows}
    return deleted


def manifest_of(table: KeyedTable) -> IndexManifest:
    """The index that the table names."""
    data = table.state.read(table.key_index)
    assert data is not None
    key_ids = tuple(table.table.schema().find_field(name).field_id for name in table.key)
    return IndexManifest.decoded(table.key_index, data, IndexOwner(str(table.table.metadata.table_uuid), key_ids))


def data_files(table: KeyedTable) -> set[str]:
    return set(table.table.inspect.data_files()["file_path"].to_pylist())


@pytest.mark.long
@pytest.mark.parametrize(("key", "spec"), CASES, ids=lambda case: "-".join(case) if isinstance(case, list) else "")
def test_index_and_search_find_the_same_rows_and_the_table_equals_its_changes(
    key: list[str], spec: PartitionSpec, tmp_path: Path
) -> None:
    rng = random.Random(len(key[0]) + len(key))
    table = KeyedTable(tmp_path, SCHEMA, key, spec, index=KeyIndexUse.ON)
    searching = table.new_resolver(KeyIndexUse.OFF)
    for _ in range(14):
        changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(rng.choice([1, 5, 40])))}
        gone = [row for row in changes.values() if rng.random() < 0.3]
        kept: list[Row] = [row for row in changes.values() if row not in gone]
        state, keys = table.iceberg.load(), table.keys([*kept, *gone])
        assert places(table, table.resolver.resolve(state, keys, "by-index")) == places(
            table, searching.resolve(state, keys, "by-search")
        )
        table.apply(files_of(table, kept, rng), kept, gone, equality=rng.random() < 0.1)
        if rng.random() < 0.2 and table.contents and not table.has_equality_deletes:  # which pyiceberg does not read
            table.table.overwrite(table.table.scan().to_arrow())
        if rng.random() < 0.2:
            table.resolver = table.new_resolver()
        for _ in range(rng.choice([0, 1, 1, 2])):
            table.resolver.look_ahead()
    assert in_order(table.rows()) == in_order(table.contents.values())
    table.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[KeyedTable]:
    made = KeyedTable(tmp_path, NUMBERS, ["id"], index=KeyIndexUse.ON)
    yield made
    made.close()


def numbers(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in ids]


def upsert(table: KeyedTable, *ids: int) -> None:
    table.apply([table.data(numbers(*ids))], numbers(*ids))


def check(table: KeyedTable) -> None:
    assert in_order(table.rows()) == in_order(table.contents.values())
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())


def test_the_snapshot_names_an_index_of_all_files_that_came_before(table: KeyedTable) -> None:
    upsert(table, *range(10))
    before = data_files(table)
    upsert(table, 3, 4, 20)
    assert table.summary["calve.key-index"] == table.key_index != ""
    assert {file.path for file in manifest_of(table).covered} == before
    check(table)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every row group, and every file of deletes, that is read from now on."""
    found: list[object] = []
    for name in ("read_row_group", "read"):
        really = getattr(pq.ParquetFile, name)

        def watched(*given: Any, really: Callable[..., Any] = really, **how: Any) -> Any:
            found.append(given)
            return really(*given, **how)

        monkeypatch.setattr(pq.ParquetFile, name, watched)
    return found


def test_files_of_the_last_batch_are_read_before_the_next_one_asks(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(3):
        upsert(table, *range(first, 20))
    table.resolver.look_ahead()
    read, keys = reads(monkeypatch), table.keys(numbers(5))
    assert len(places(table, table.resolver.resolve(table.iceberg.load(), keys, "next"))) == 1
    assert len(read) == 1  # the keys
    upsert(table, 1, 7)
    check(table)


def test_files_that_the_index_has_are_not_read_again(table: KeyedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert(table, *range(0, 20, 2))
    upsert(table, *range(1, 20, 2))
    upsert(table, 4, 5)
    table.table.append(table.table.scan().to_arrow().slice(0, 1))
    table.resolver = table.new_resolver()
    covered, read = {file.path for file in manifest_of(table).covered}, []
    really = pq.ParquetFile.read_row_group

    def watched(parquet: pq.ParquetFile, group: int, **how: Any) -> Any:
        read.append(group)
        return really(parquet, group, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    table.resolved(numbers(*range(20)))
    assert len(read) == len(data_files(table) - covered) == 2


def test_runs_stay_few_and_files_that_nobody_names_are_removed(table: KeyedTable) -> None:
    for number in range(30):
        upsert(table, *range(number, number + 5))
    manifest = manifest_of(table)
    assert len(manifest.runs) <= 4
    assert len(manifest.covered) == 29
    assert manifest.rows <= 35 + 5 * len(manifest.runs), "deleted rows are left out of what is merged"
    stored = {*table.state.list("parts"), *table.state.list("manifests")}
    assert len(stored) <= 10, "two manifests, with what they name"
    assert manifest.part_names <= stored
    check(table)


def test_a_run_that_has_ended_holds_no_memory_and_one_that_is_started_again_does(table: KeyedTable) -> None:
    memory = MemoryBudget(1 << 30)
    table.resolver = table.new_resolver(memory=memory)
    for number in range(3):
        upsert(table, *range(number, number + 5))
    assert memory.taken > 0
    table.resolver.close()
    assert memory.taken == 0
    upsert(table, 1, 2)
    table.resolver.look_ahead()
    upsert(table, 2, 3)
    assert memory.taken == 0, "a thread that could not be ended finds the same, and keeps nothing"
    check(table)
    table.resolver = table.new_resolver(memory=memory)
    upsert(table, 3, 9)
    assert memory.taken > 0
    check(table)


def test_the_result_of_a_merge_that_outlives_its_run_is_removed(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[list[str]] = []

    def end_run(point: str) -> None:
        if point.startswith("index.merge"):
            stored.append(table.state.list("parts"))
            table.resolver.close()

    monkeypatch.setattr(faults, "_hook", end_run)
    while not stored:
        upsert(table, *range(5))
    assert len(stored) == 2
    assert stored[0] == stored[1]
    upsert(table, *range(3, 9))
    check(table)


def test_what_is_indexed_ahead_stays_little_while_nothing_is_looked_up(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.keylookup.indexed.MOST_AHEAD", 3)
    for _ in range(3):
        upsert(table, *range(10))
    before = set(table.state.list("parts"))
    for number in range(1, 8):  # keys that no file can have
        upsert(table, *range(100 * number, 100 * number + 10))
        table.resolver.look_ahead()
    ahead = set(table.state.list("parts")) - before
    assert len(ahead) == 3
    rows = table.table.scan().to_arrow()
    table.table.overwrite(rows)
    table.resolver.look_ahead()
    assert not ahead & set(table.state.list("parts")), "their files have left the table"
    upsert(table, 5, 105, 705)
    check(table)


def test_a_run_that_lost_its_fence_removes_nothing_that_its_successor_made(table: KeyedTable) -> None:
    """It looked at the table before the successor came, and goes on only now."""
    for number in range(3):
        upsert(table, *range(number, number + 5))
    state, keys = table.iceberg.load(), table.keys(numbers(1, 2))
    fenced = table.new_resolver()
    table.resolver = table.new_resolver()
    for number in range(3):
        upsert(table, *range(number, number + 5))
    fenced.resolve(state, keys, "late")
    stored = {*table.state.list("parts"), *table.state.list("manifests")}
    assert {table.key_index, *manifest_of(table).part_names} <= stored
    check(table)


def test_files_that_left_the_table_leave_the_index(table: KeyedTable) -> None:
    for number in range(4):
        upsert(table, *range(number, number + 5))
    table.table.overwrite(table.table.scan().to_arrow())
    upsert(table, 1)
    assert {file.path for file in manifest_of(table).covered} <= data_files(table)
    check(table)


def _manifest(table: KeyedTable) -> Path:
    return table.home / "state" / table.key_index


def _part(table: KeyedTable) -> Path:
    """Of the newest run."""
    return table.home / "state" / manifest_of(table).runs[-1].parts[0].name


def _remove(path: Path, _: bytes) -> None:
    path.unlink()


def _cut(path: Path, _: bytes) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path, _: bytes) -> None:
    path.write_bytes(b"")


def _swap(path: Path, older: bytes) -> None:
    path.write_bytes(older)


@pytest.mark.parametrize("damaged", [_manifest, _part])
@pytest.mark.parametrize("damage", [_remove, _cut, _empty, _swap])
def test_an_index_that_is_not_whole_is_noticed_and_made_anew(
    damaged: Callable[[KeyedTable], Path],
    damage: Callable[[Path, bytes], None],
    table: KeyedTable,
    caplog: pytest.LogCaptureFixture,
) -> None:
    upsert(table, *range(10))
    upsert(table, 1, 2)
    older = damaged(table).read_bytes()
    upsert(table, 1, 4, 11)
    before = data_files(table)
    damage(damaged(table), older)
    table.resolver = table.new_resolver()
    with caplog.at_level(logging.WARNING):
        upsert(table, *range(0, 12, 2))
    assert "will be rebuilt" in caplog.text
    assert {file.path for file in manifest_of(table).covered} == before
    check(table)


def test_rows_that_a_rollback_brings_back_are_found(table: KeyedTable) -> None:
    upsert(table, *range(10))
    upsert(table, 1, 2)
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    for number in range(12):
        upsert(table, *range(number, number + 5))
    table.table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
    table.contents = {(number,): row for number, row in enumerate(numbers(*range(10)))}
    for resolver in (table.resolver, table.new_resolver()):
        table.resolver = resolver
        found = places(table, table.resolved(numbers(*range(30))))
        assert len(found) == 10
    upsert(table, 3, 4)
    check(table)


def test_small_tables_are_searched_without_an_index_unless_it_is_asked_for(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, NUMBERS, ["id"], index=KeyIndexUse.AUTO)
    upsert(table, *range(10))
    upsert(table, 1, 2)
    assert table.key_index == ""
    assert not table.state.list("parts")
    check(table)
    table.close()


def test_a_table_gets_an_index_as_soon_as_searching_it_costs_more(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, NUMBERS, ["id"], index=KeyIndexUse.AUTO)
    table.resolver = table.new_resolver(index_limits=IndexLimits(rows=11))
    upsert(table, *range(10))
    upsert(table, 1, 2)
    assert table.key_index == ""
    upsert(table, 1, 5)
    assert len(manifest_of(table).covered) == 2
    check(table)
    table.close()


def test_keys_that_are_too_long_for_the_index_are_searched(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", StringType(), required=True))
    table = KeyedTable(tmp_path, schema, ["id"], index=KeyIndexUse.ON)
    short, long = [{"id": f"{n}"} for n in range(5)], [{"id": "x" * 300 + str(n)} for n in range(5)]
    for rows in (short, long, [*short[:2], *long[:2]], short[:1], [*short, *long]):
        table.apply([table.data(rows)], rows)
    assert len(table.contents) == 10
    check(table)
    table.close()
