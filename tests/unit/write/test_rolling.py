"""Parquet files of a bounded size: ids, metrics, names, and what happens when a write fails."""

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.types import PrimitiveType

from calve.model.files import BloomFilter, Content, WriteTarget
from calve.write.data_files import FileKind, FileNames, RollingFiles
from tests.unit.write.sample import DATA_SPEC, DELETE_SPEC, FLAT, NESTED, ids_of, local, rows_of, target_in

NAME = re.compile(r"calve-(\d{5})-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\.parquet")


def names_of(target: WriteTarget) -> FileNames:
    return FileNames(target, "batch", "writer")


def orders(count: int) -> pa.Table:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "status": [None if i % 7 == 0 else f"status {i % 5}" for i in range(count)],
            "amount": pa.array([Decimal(i) / 4 for i in range(count)], pa.decimal128(12, 2)),
            "updated": pa.array([start + dt.timedelta(seconds=i * 38 % 999) for i in range(count)]),
            "_calve_op": pa.array([1] * count, pa.int8()),
        }
    )


def written(target: WriteTarget, kind: FileKind, *tables: pa.Table) -> RollingFiles:
    with RollingFiles(kind, target, names_of(target)) as out:
        for table in tables:
            out.write(table)
    return out


def _write_in_pieces(out: RollingFiles, table: pa.Table, rows: int) -> None:
    for start in range(0, table.num_rows, rows):
        out.write(table.slice(start, rows))


def test_a_data_file_is_described_completely(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    (file,) = written(target, FileKind.data(target), orders(1000)).files
    assert (file.content, file.spec_id, file.partition, file.equality_ids) == (Content.DATA, DATA_SPEC, (), ())
    assert file.record_count == 1000
    assert file.size == local(file).stat().st_size
    assert file.split_offsets == (4,)
    assert file.path.startswith(f"{target.data_location}/calve-")
    assert NAME.fullmatch(local(file).name)


def test_bounds_and_counts_are_those_of_the_rows(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    table = orders(1000)
    (file,) = written(target, FileKind.data(target), table).files
    for column in FLAT.fields:
        assert isinstance(column.field_type, PrimitiveType)
        low, high = pc.min_max(table[column.name]).as_py().values()
        lower = from_bytes(column.field_type, file.metrics.lower_bounds[column.field_id])
        upper = from_bytes(column.field_type, file.metrics.upper_bounds[column.field_id])
        if column.name == "updated":
            low, high = (int(value.timestamp() * 1_000_000) for value in (low, high))
        assert (lower, upper) == (low, high)
        assert file.metrics.value_counts[column.field_id] == 1000
        assert file.metrics.null_value_counts[column.field_id] == table[column.name].null_count


def test_a_file_of_deletes_has_the_key_columns_alone_in_key_order(tmp_path: Path) -> None:
    target = target_in(tmp_path, key_ids=(4, 1))
    (file,) = written(target, FileKind.deletes(target), orders(10)).files
    assert (file.content, file.spec_id, file.equality_ids) == (Content.EQUALITY_DELETES, DELETE_SPEC, (4, 1))
    assert ids_of(file) == {"updated": [4], "id": [1]}
    assert [str(f) for f in pq.read_schema(local(file)).names] == ["updated", "id"]
    assert not any(field.nullable for field in pq.read_schema(local(file)))


def test_field_ids_are_on_every_level(tmp_path: Path) -> None:
    target = target_in(tmp_path, NESTED)
    place = pa.struct([("city", pa.string()), ("codes", pa.list_(pa.int64()))])
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "tags": pa.array([["a", None], None], pa.list_(pa.string())),
            "counts": pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int32())),
            "place": pa.array([{"city": "Ulm", "codes": [1, 2]}, None], place),
        }
    )
    (file,) = written(target, FileKind.data(target), table).files
    assert ids_of(file) == {
        "id": [1],
        "tags.element": [2, 5],
        "counts.key": [3, 6],
        "counts.value": [3, 7],
        "place.city": [4, 8],
        "place.codes.element": [4, 9, 10],
    }
    assert rows_of([file]) == table.to_pylist()


def test_decimals_are_integers_as_the_specification_requires(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    (file,) = written(target, FileKind.data(target), orders(10)).files
    columns = pq.ParquetFile(local(file)).schema
    assert [columns.column(i).physical_type for i in range(4)] == ["INT64", "BYTE_ARRAY", "INT64", "INT64"]


@pytest.mark.long
def test_files_end_near_their_target_size(tmp_path: Path) -> None:
    target = target_in(tmp_path, target_file_size=100_000)
    pieces = [orders(60_000).slice(start, 7000) for start in range(0, 60_000, 7000)]
    files = written(target, FileKind.data(target), *pieces).files
    assert len(files) > 2
    assert all(file.size <= 100_000 for file in files)
    assert all(file.size >= 50_000 for file in files[:-1])
    assert [row["id"] for row in rows_of(files)] == list(range(60_000))
    assert [NAME.fullmatch(local(file).name)[1] for file in files] == [f"{i:05d}" for i in range(len(files))]  # type: ignore[index]


def test_row_groups_have_at_most_the_rows_they_may_have(tmp_path: Path) -> None:
    target = target_in(tmp_path, row_group_rows=300)
    (file,) = written(target, FileKind.data(target), orders(1000)).files
    footer = pq.read_metadata(local(file))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [300, 300, 300, 100]
    assert len(file.split_offsets) == 4


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    assert written(target, FileKind.data(target), orders(0)).files == ()
    assert not list(tmp_path.rglob("*.parquet"))


def test_columns_without_repeated_values_have_no_dictionary(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    (file,) = written(target, FileKind.data(target), orders(1000)).files
    group = pq.read_metadata(local(file)).row_group(0)
    with_dictionary = {group.column(i).path_in_schema for i in range(4) if group.column(i).has_dictionary_page}
    assert with_dictionary == {"status"}


def test_two_attempts_never_share_a_name(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    drawn = [FileNames(target, batch, writer).fresh() for batch in "ab" for writer in "12"]
    assert len(set(drawn)) == 4


def test_a_write_that_fails_midway_reports_nothing_and_releases_its_file(tmp_path: Path) -> None:
    target = target_in(tmp_path, row_group_rows=100)
    calls: list[int] = []

    def full() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("No space left on device")

    out = RollingFiles(FileKind.data(target), target, names_of(target), midway=full)
    with pytest.raises(OSError, match="No space left"), out:
        _write_in_pieces(out, orders(1000), 100)
    assert out.files == ()
    (loose,) = tmp_path.rglob("*.parquet")
    with pytest.raises(pa.ArrowInvalid):
        pq.read_metadata(loose)


def test_files_are_written_as_the_options_say(tmp_path: Path) -> None:
    target = target_in(
        tmp_path,
        compression="gzip",
        compression_level=99,
        page_size=1024,
        page_rows=50,
        dictionary_size=512,
        bloom_filters=(BloomFilter("id"), BloomFilter("status", 0.1, 5), BloomFilter("elsewhere")),
    )
    with RollingFiles(FileKind.data(target), target, names_of(target)) as out:
        out.write(orders(1000))
    (file,) = out.files
    group = pq.ParquetFile(local(file)).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"GZIP"}
    assert {name for name, column in columns.items() if column.bloom_filter_length} == {"id", "status"}
    (keys,) = written(target, FileKind.deletes(target), orders(1000)).files
    assert pq.ParquetFile(local(keys)).metadata.row_group(0).column(0).bloom_filter_length is None


@pytest.mark.long
def test_row_groups_have_about_the_configured_size(tmp_path: Path) -> None:
    noise = pa.table({name: orders(200_000)[name] for name in orders(1).column_names})
    target = target_in(tmp_path, row_group_size=200_000)
    (file,) = written(target, FileKind.data(target), *[noise.slice(n, 5_000) for n in range(0, 200_000, 5_000)]).files
    footer = pq.ParquetFile(local(file)).metadata
    sizes = [
        sum(footer.row_group(g).column(c).total_compressed_size for c in range(footer.num_columns))
        for g in range(footer.num_row_groups)
    ]
    assert len(sizes) > 3
    assert all(100_000 < size < 300_000 for size in sizes[1:-1]), sizes
