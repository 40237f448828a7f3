from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from calve.errors import CalveError, TransientError
from calve.iceberg.files.avro import read_entries
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.position_deletes import OWN_FILE, PATH_ID
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.resolver import rounds
from calve.model.files import WrittenFile
from calve.model.scan import DeleteFile, DeleteKind
from tests.support.foreign import in_order
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=True),
)
GONE = 2
"""Status of an entry whose file left the table."""
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[KeyedTable]:
    made = KeyedTable(tmp_path, SCHEMA, ["id"])
    yield made
    made.close()


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[KeyedTable]:
    made = KeyedTable(tmp_path, SCHEMA, ["region", "id"], BY_REGION)
    yield made
    made.close()


def row(number: int, region: str = "eu") -> dict[str, Any]:
    return {"id": number, "region": region}


def lose(file: WrittenFile) -> None:
    Path(file.path.removeprefix("file://")).unlink()


def delete_files(table: KeyedTable) -> list[dict[str, Any]]:
    found = [row["data_file"] for row in table.table.inspect.entries().to_pylist() if row["status"] != GONE]
    return [file for file in found if file["content"] == 1]


def test_keys_of_an_empty_table_need_no_file(table: KeyedTable) -> None:
    assert table.resolved([row(1)]).manifests == ()
    table.apply([], [])
    assert table.resolved([row(1)]).manifests == ()


def test_keys_that_no_row_has_leave_no_file(table: KeyedTable) -> None:
    table.apply([table.data([row(1), row(3)])], [row(1), row(3)])
    assert table.resolved([row(2)]).manifests == ()


def test_a_lookup_whose_manifests_cannot_be_written_leaves_no_file(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.apply([table.data([row(1), row(3)])], [row(1), row(3)])

    def fail(_table: IcebergTable, _files: Sequence[WrittenFile], _commit_id: str) -> None:
        raise TransientError("the store is full")

    folder = Path(table.table.location().removeprefix("file://")) / "data"
    keys = table.keys([row(1)])
    before = sorted(folder.rglob("*.parquet"))
    monkeypatch.setattr(IcebergTable, "write_manifests", fail)
    with pytest.raises(TransientError, match="the store is full"):
        table.resolver.resolve(table.iceberg.load(), keys, "commit")
    assert sorted(folder.rglob("*.parquet")) == before


def test_a_file_is_not_opened_when_no_key_lies_between_its_bounds(table: KeyedTable) -> None:
    low, high = table.data([row(1), row(2)]), table.data([row(8), row(9)])
    table.apply([low, high], [row(1), row(2), row(8), row(9)])
    lose(high)
    assert table.resolved([row(2), row(10)]).totals.position_deletes == 1
    with pytest.raises(TransientError, match="could not be searched for keys"):
        table.resolved([row(2), row(9)])


def test_a_file_is_not_opened_when_no_key_is_in_its_partition(parted: KeyedTable) -> None:
    regions = ["asia", "eu", "us"]
    files = {region: parted.data([row(1, region)], [region], spec_id=0) for region in regions}
    for file in files.values():  # without bounds the partition alone tells
        file.metrics.lower_bounds.clear()
        file.metrics.upper_bounds.clear()
    parted.apply(list(files.values()), [row(1, region) for region in regions])
    lose(files["eu"])
    assert parted.resolved([row(1, "asia"), row(1, "us")]).totals.position_deletes == 2
    with pytest.raises(TransientError, match="could not be searched for keys"):
        parted.resolved([row(1, "eu")])


def test_a_row_group_is_not_read_when_no_key_lies_between_its_statistics(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(number) for number in range(40)]
    table.apply([table.data(rows, row_group_size=10)], rows)
    read: list[int] = []
    really = pq.ParquetFile.read_row_group

    def watched(parquet: pq.ParquetFile, group: int, **how: Any) -> Any:
        read.append(group)
        return really(parquet, group, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    assert table.resolved([row(3), row(35)]).totals.position_deletes == 2
    assert sorted(read) == [0, 3]


def test_positions_are_those_of_the_newest_files_after_a_compaction(table: KeyedTable) -> None:
    table.apply([table.data([row(1), row(2)])], [row(1), row(2)])
    before = table.iceberg.load()
    keys = table.keys([row(2)])
    table.table.overwrite(table.table.scan().to_arrow())
    old, new = (table.resolver.resolve(state, keys, "c") for state in (before, table.iceberg.load()))
    paths = [_paths(table, found.manifests[0].path) for found in (old, new)]
    assert paths[0] != paths[1]
    live = {file["file_path"] for file in table.table.inspect.data_files().to_pylist()}
    assert paths[1] <= live


def _paths(table: KeyedTable, manifest: str) -> set[str]:
    with table.table.io.new_input(manifest).open() as stream:
        (entry,) = read_entries(stream.read())
    return set(pq.read_table(entry.data_file.file_path.removeprefix("file://"))["file_path"].to_pylist())


def test_deletes_of_one_partition_share_a_file_and_many_of_one_data_file_have_their_own(parted: KeyedTable) -> None:
    many = [row(number) for number in range(OWN_FILE)]
    few = [row(-number) for number in range(1, 4)]
    abroad = [row(number, "us") for number in range(5)]
    files = [
        parted.data(many, ["eu"], spec_id=0),
        parted.data(few[:2], ["eu"], spec_id=0),
        parted.data(few[2:], ["eu"], spec_id=0),
        parted.data(abroad, ["us"], spec_id=0),
    ]
    parted.apply(files, [*many, *few, *abroad])
    parted.apply([], [], [*many, *few, *abroad[1:]])
    assert parted.summary["operation"] == "delete"
    assert parted.summary["total-position-deletes"] == str(OWN_FILE + 3 + 4)
    assert parted.summary["added-position-delete-files"] == "3"
    found = {}
    for file in delete_files(parted):
        content = pq.read_table(file["file_path"].removeprefix("file://"))
        assert content.equals(content.sort_by([("file_path", "ascending"), ("pos", "ascending")]))
        paths = sorted(set(content["file_path"].to_pylist()))
        bounds = [dict(file[name])[PATH_ID].decode() for name in ("lower_bounds", "upper_bounds")]
        assert bounds == [paths[0], paths[-1]], "bounds of paths are whole"
        assert file["partition"]["region"] == ("us" if files[3].path in paths else "eu")
        found[tuple(paths)] = content.num_rows
    assert found == {
        (files[0].path,): OWN_FILE,
        tuple(sorted(file.path for file in files[1:3])): 3,
        (files[3].path,): 4,
    }
    assert duckdb_rows(parted.table.metadata_location) == parted.rows() == [row(0, "us")]


def test_a_table_with_equality_deletes_goes_on_with_positions(table: KeyedTable) -> None:
    table.apply([table.data([row(1), row(2), row(3)])], [row(1), row(2), row(3)])
    table.commit(table.data([row(1, "us")]), table.equality(["id"], [row(1), row(2)]))
    table.apply([table.data([row(2, "us")])], [row(2, "us")], [row(3)])
    wanted = [row(1, "us"), row(2, "us")]
    assert in_order(table.rows()) == in_order(duckdb_rows(table.table.metadata_location)) == in_order(wanted)


def test_rows_of_a_branch_are_looked_up_in_the_branch(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], branch="audit")
    table.apply([table.data([row(1), row(2)])], [row(1), row(2)])
    table.apply([table.data([row(2, "us"), row(3)])], [row(2, "us"), row(3)], [row(1)])
    assert "main" not in table.table.refs()
    assert in_order(table.rows(ref="audit")) == in_order(table.contents.values())
    assert table.resolved([row(3)]).totals.position_deletes == 1
    table.close()


def test_keys_are_removed_with_their_manifest_and_may_be_gone_already(table: KeyedTable) -> None:
    keys = table.keys([row(1)])
    files = [keys[0].path, *ManifestCache().files_of(table.table.io, keys[0])]
    assert table.iceberg.missing_files(keys) == ()
    lose_one = Path(files[1].removeprefix("file://"))
    lose_one.unlink()
    table.iceberg.remove_keys(keys)
    assert not any(Path(path.removeprefix("file://")).exists() for path in files)
    table.iceberg.remove_keys(keys)


def test_files_of_keys_are_taken_in_rounds_that_fit_into_memory() -> None:
    keys = [DeleteFile(DeleteKind.EQUALITY, f"k{n}", 1, rows, 1) for n, rows in enumerate([4, 5, 2, 30, 1, 9])]
    found = [sorted(key.rows for key in group) for group in rounds(keys, most=10)]
    assert found == [[4, 5], [2], [30], [1, 9]]


@pytest.mark.long
def test_many_small_files_of_deletes_become_few_in_a_commit_that_deletes_rows(table: KeyedTable) -> None:
    table.apply([table.data([row(n) for n in range(100)])], [row(n) for n in range(100)])
    first = table.data([row(n) for n in range(100, 110)])
    table.apply([first], [row(n) for n in range(100, 110)])
    seen = []
    for number in range(40):
        table.apply([], [], [row(number), row(number + 50)])
        live = int(table.summary["total-records"]) - int(table.summary["total-position-deletes"])
        assert live == len(table.contents), "every delete is in the table once"
        assert table.summary["operation"] == "delete"
        assert int(table.summary["total-delete-files"]) == len(delete_files(table))
        seen.append(len(delete_files(table)))
    assert max(seen) <= 7
    assert in_order(table.rows()) == in_order(table.contents.values())
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    assert in_order(table.table.scan().to_arrow().to_pylist()) == in_order(table.contents.values())


def test_files_of_deletes_that_this_process_wrote_are_not_read_back(table: KeyedTable) -> None:
    rows = [row(number) for number in range(10)]
    table.apply([table.data(rows)], rows)
    for number in range(7):  # the sixth merges the files before it
        table.apply([table.data([row(number)])], [row(number)])
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    for file in delete_files(table):
        Path(file["file_path"].removeprefix("file://")).unlink()
    assert table.resolved(rows).totals.position_deletes == len(rows), "a row that is deleted is not deleted again"
    table.resolver = table.new_resolver()
    with pytest.raises(CalveError, match="could not be searched for keys"):
        table.resolved(rows)


def test_deletes_of_data_files_that_left_the_table_leave_it_when_files_of_deletes_are_merged(table: KeyedTable) -> None:
    many = [table.data([row(n), row(n + 100)]) for n in range(20)]
    table.apply(many, [row(n) for n in range(20)] + [row(n + 100) for n in range(20)])
    for number in range(0, 12, 2):
        table.apply([], [], [row(number), row(number + 1)])
    table.table.delete("id >= 100")
    for number in range(20):
        table.contents.pop((number + 100,))
    table.apply([], [], [row(12), row(13)])
    live = {file["file_path"] for file in table.table.inspect.data_files().to_pylist()}
    named = {path for file in delete_files(table) for path in pq.read_table(file["file_path"])["file_path"].to_pylist()}
    assert named <= live
    assert in_order(table.rows()) == in_order(table.contents.values())


def test_files_of_deletes_of_other_writers_are_left_alone(table: KeyedTable) -> None:
    file = table.data([row(n) for n in range(100)])
    table.apply([file], [row(n) for n in range(100)])
    theirs = [table.positions([(file, number)]) for number in range(10)]
    table.commit(*theirs)
    for number in range(10):
        table.contents.pop((number,))
    table.apply([], [], [row(50)])
    assert {f.path for f in theirs} <= {f["file_path"] for f in delete_files(table)}
    assert in_order(table.rows()) == in_order(table.contents.values())
