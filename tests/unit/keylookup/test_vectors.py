"""Lookups in tables of format version 3: positions become one deletion vector for each data file."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from calve.errors import CalveError, TerminalError, TransientError
from calve.iceberg.files.content import content_id, first_row_id_of
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.vectors import DeletedRows, encode_vector
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.sink_table import IcebergTable
from calve.model.files import ResolvedDeletes
from calve.model.scan import ContentId, DeleteFile, DeleteKind, ScanFile
from calve.model.spec import KeyIndexUse
from calve.reader.deletes import TaskDeletes
from calve.reader.key_positions import KeyMemory, MemoryLimits
from tests.support.foreign import NAME, in_order, live_entries_of
from tests.support.keyed import KeyedTable
from tests.support.readers import datafusion_rows, duckdb_rows

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "region", StringType(), required=True))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[KeyedTable]:
    made = KeyedTable(tmp_path, SCHEMA, ["id"], version=3)
    yield made
    made.close()


def row(number: int, region: str = "eu") -> dict[str, Any]:
    return {"id": number, "region": region}


def vectors(table: KeyedTable) -> dict[str, int]:
    """The data files that have a vector -> its number of rows."""
    found = [entry.data_file for entry in live_entries_of(table) if entry.data_file.file_format is FileFormat.PUFFIN]
    counts = {content_id(file).data_file: file.record_count for file in found}
    assert len(counts) == len(found), "a data file has one vector"
    return counts


def check(table: KeyedTable) -> None:
    expected = in_order(table.contents.values())
    assert in_order(table.rows()) == expected
    assert in_order(table.table.scan().to_arrow().to_pylist()) == expected
    assert in_order(duckdb_rows(table.table.metadata_location)) == expected


@pytest.mark.parametrize("index", [KeyIndexUse.OFF, KeyIndexUse.ON])
def test_a_vector_has_everything_that_was_deleted_in_its_file(tmp_path: Path, index: KeyIndexUse) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], version=3, index=index)
    first, second = ([row(number) for number in numbers] for numbers in (range(10), range(10, 20)))
    files = [table.data(first), table.data(second)]
    table.apply(files, [*first, *second])
    table.apply([], [], [row(1), row(2)])
    assert vectors(table) == {files[0].path: 2}
    assert table.summary["operation"] == "delete"
    table.apply([], [], [row(2), row(3), row(11), row(99)])
    assert vectors(table) == {files[0].path: 3, files[1].path: 1}
    assert (table.summary["added-dvs"], table.summary["removed-dvs"]) == ("2", "1")
    assert (table.summary["added-position-deletes"], table.summary["total-position-deletes"]) == ("4", "4")
    table.apply([], [], [row(2), row(99)])
    assert "added-dvs" not in table.summary, "rows that are gone need no new vector"
    check(table)
    table.close()


def test_polars_and_datafusion_read_vectors(table: KeyedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the default, which it warns about
    rows = [row(number) for number in range(10)]
    table.apply([table.data(rows)], rows)
    table.apply([table.data([row(3, "us")])], [row(3, "us")], [row(5)])
    check(table)
    expected = in_order(table.contents.values())
    assert in_order(datafusion_rows(table.table.metadata_location)) == expected
    assert in_order(pl.scan_iceberg(table.table).collect().to_dicts()) == expected


def test_files_that_are_not_touched_keep_their_vectors(table: KeyedTable) -> None:
    files = [table.data([row(number), row(number + 1)]) for number in (0, 10)]
    table.apply(files, [row(number) for number in (0, 1, 10, 11)])
    table.apply([], [], [row(0)])
    before = {content_id(e.data_file) for e in live_entries_of(table) if e.data_file.content}
    table.apply([], [], [row(10)])
    after = {content_id(e.data_file) for e in live_entries_of(table) if e.data_file.content}
    assert before < after
    check(table)


def test_vectors_that_this_process_wrote_are_not_read_back(table: KeyedTable) -> None:
    rows = [row(number) for number in range(10)]
    table.apply([table.data(rows)], rows)
    for number in range(3):
        table.apply([table.data([row(number)])], [row(number)])
    check(table)
    for file in (entry.data_file for entry in live_entries_of(table)):
        if file.file_format is FileFormat.PUFFIN:
            Path(file.file_path.removeprefix("file://")).unlink()
    found = table.resolved(rows)
    assert (found.totals.position_deletes, found.merged.position_deletes) == (10, 3)
    table.resolver = table.new_resolver()
    with pytest.raises(CalveError, match="could not be searched for keys"):
        table.resolved(rows)


def test_a_process_that_wrote_a_vector_reads_the_one_that_another_replaced_it_with(table: KeyedTable) -> None:
    rows = [row(number) for number in range(10)]
    table.apply([table.data(rows)], rows)
    table.apply([], [], [row(0)])
    own = table.resolver
    table.resolver = table.new_resolver()
    table.apply([], [], [row(1), row(2)])
    table.resolver = own
    table.apply([], [], [row(3)])
    assert list(vectors(table).values()) == [4]
    check(table)


def test_deleted_rows_are_known_by_what_each_vector_adds_and_by_vectors_of_others(tmp_path: Path) -> None:
    rng, rows, deletes = np.random.default_rng(3), 900, TaskDeletes(ReadTarget(pa.schema([])), [])
    limits = MemoryLimits(deleted_rows=10**6, positions=10**6)
    own, other, deleted, file = KeyMemory(limits), KeyMemory(limits), set[int](), ScanFile("d", 1, rows, 1)
    for number in range(12):
        added = rng.choice(rows, rng.choice([1, 40]), replace=False)
        deleted |= set(added.tolist())
        path = tmp_path / str(number)
        now = DeletedRows(file, BitMap64(sorted(deleted)), frozenset(d.id for d in file.deletes), added)
        blob = encode_vector(now.rows)
        path.write_bytes(blob)
        vector = DeleteFile(DeleteKind.VECTOR, path.as_uri(), len(blob), len(deleted), number, length=len(blob))
        file = replace(file, deletes=(vector,))
        if number % 3:  # else another process wrote it
            own.wrote_vector(vector.path, now, len(blob))
        for memory in (own, other):
            if number % 4 or memory is other:
                assert np.flatnonzero(memory.deleted(file, deletes).at(np.arange(rows))).tolist() == sorted(deleted)


def test_memory_for_vectors_is_bounded_and_freed(tmp_path: Path) -> None:
    memory = KeyMemory(MemoryLimits(positions=4))
    files = [(tmp_path / name).as_uri() for name in "abc"]
    rows = DeletedRows(ScanFile("d", 1, 9, 1), BitMap64([3, 5]), added=np.array([5]))

    def remembered() -> list[bool]:
        """Which of them are not read: there are no such files."""
        found = []
        for file in files:
            vector = DeleteFile(DeleteKind.VECTOR, file, 12, 1, 1, length=12)
            try:
                found.append(memory.rows_in(vector, TaskDeletes(ReadTarget(pa.schema([])), [])) == rows.rows)
            except OSError:
                found.append(False)
        return found

    for file in files:
        memory.wrote_vector(file, rows, 8)
    assert remembered() == [True, True, False]
    memory.retain((), {files[1]})
    memory.wrote_vector(files[2], rows, 8)
    assert remembered() == [False, True, True]


def test_keys_without_rows_need_no_vector(table: KeyedTable) -> None:
    table.apply([table.data([row(1)])], [row(1)])
    assert table.resolved([row(2)]) == ResolvedDeletes()


def test_a_lookup_whose_manifests_cannot_be_written_leaves_no_vector(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.apply([table.data([row(1), row(3)])], [row(1), row(3)])
    keys = table.keys([row(1)])

    def fail(*_: Any) -> None:
        raise TransientError("the store is full")

    monkeypatch.setattr(IcebergTable, "write_manifests", fail)
    with pytest.raises(TransientError, match="the store is full"):
        table.resolver.resolve(table.iceberg.load(), keys, "commit")
    assert not list(Path(table.table.location().removeprefix("file://")).rglob("*.puffin"))


def test_vectors_that_replace_what_is_not_there_are_not_committed(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.apply([table.data([row(1), row(2)])], [row(1), row(2)])
    found = table.resolved([row(1)])
    other = ResolvedDeletes(found.manifests, found.totals, replaced=(ContentId("file:///gone.puffin", 4, 9, "x"),))
    monkeypatch.setattr(table, "resolved", lambda *_: other)
    with pytest.raises(TerminalError, match="looked up in another snapshot"):
        table.apply([], [], [row(1)])


def upgrade(table: KeyedTable) -> None:
    """Raise the format version of a table as other tools do: without a snapshot."""
    location = Path(table.table.metadata_location.removeprefix("file://"))
    raised = json.loads(location.read_text()) | {"format-version": 3, "next-row-id": 0}
    copy = location.with_name(f"99{location.name}")
    copy.write_text(json.dumps(raised))
    table.catalog.drop_table(NAME)
    table.catalog.register_table(NAME, copy.as_uri())


def test_an_upgraded_table_gets_vectors_with_the_positions_of_its_delete_files(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"])
    rows = {number: [row(number + at) for at in range(4)] for number in (0, 10, 20)}
    files = {number: table.data(rows[number]) for number in rows}
    table.apply(list(files.values()), [one for members in rows.values() for one in members])
    table.apply([], [], [row(0), row(10)])
    table.apply([], [], [row(20)])
    upgrade(table)
    table.apply([table.data([row(30)])], [row(30)], [row(1), row(21)])
    assert vectors(table) == {files[0].path: 2, files[20].path: 2}
    by_position = [e.data_file for e in live_entries_of(table) if e.data_file.content == 1]
    parquet = [file for file in by_position if file.file_format is FileFormat.PARQUET]
    assert [file.record_count for file in parquet] == [2], "the file about two data files stays, the other one is gone"
    check(table)
    lines = [line.manifest for line in ManifestCache().lines_of(table.table.io, table.table.current_snapshot())]
    assert sorted(first_row_id_of(line) or 0 for line in lines if not line.content) == [0, 1]
    assert json.loads(Path(table.table.metadata_location.removeprefix("file://")).read_text())["next-row-id"] == 13
    table.apply([], [], [row(11)])
    assert vectors(table) == {files[0].path: 2, files[10].path: 2, files[20].path: 2}
    check(table)
    table.close()
