"""Parquet files with one more column, whose other columns were copied without being decoded."""

import datetime as dt
import random
import struct
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.iceberg.files import parquet_column
from calve.iceberg.files.parquet_column import Compression, copy_with_column
from calve.iceberg.schema.readable import ROW_ID_COLUMN

FIELD = ROW_ID_COLUMN
ZSTD = Compression("zstd", 3)

COLUMNS: dict[str, pa.Array] = {
    "id": pa.array(range(2000), pa.int64()),
    "text": pa.array([None if n % 7 == 0 else f"value {n % 50}" for n in range(2000)]),
    "list": pa.array([[n, n + 1] if n % 3 else None for n in range(2000)], pa.list_(pa.int32())),
    "struct": pa.array([{"a": n, "b": {"c": str(n)}} for n in range(2000)]),
    "map": pa.array([[("k", n)] for n in range(2000)], pa.map_(pa.string(), pa.int64())),
    "flag": pa.array([n % 2 == 0 for n in range(2000)]),
    "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 2000),
    "uuid": pa.array([uuid.UUID(int=n).bytes for n in range(2000)], pa.uuid()),
}
WRITTEN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "many row groups": {"row_group_size": 70},
    "indexes": {"row_group_size": 500, "write_page_index": True},
    "without Arrow's schema": {"store_schema": False, "row_group_size": 999},
    "uncompressed, without dictionaries": {"compression": "none", "use_dictionary": False},
    "statistics of none": {"write_statistics": False},
    "small pages": {"data_page_size": 64, "write_batch_size": 16, "data_page_version": "2.0"},
    "filters": {"bloom_filter_options": {"id": {"ndv": 2000, "fpp": 0.01}}},
}


def copy(source: Path, values: pa.Array, compression: Compression = ZSTD) -> Path:
    target = source.with_name(f"with-{source.name}")
    with pa.OSFile(str(source)) as old, pa.OSFile(str(target), "wb") as new:
        size = copy_with_column(old, new, FIELD, values, compression)
    assert target.stat().st_size == size
    return target


def ids_of(count: int) -> pa.Array:
    return pa.array([None if n % 5 == 0 else 3 * n for n in range(count)], pa.int64())


def check(source: Path, target: Path, values: pa.Array) -> None:
    before, after = pq.ParquetFile(source), pq.ParquetFile(target)
    expected, found = before.read(), after.read()
    assert found.drop(["_row_id"]).equals(expected, check_metadata=True)
    assert found["_row_id"].combine_chunks().equals(values)
    assert found.schema.field("_row_id").equals(FIELD, check_metadata=True)
    (length,) = struct.unpack("<I", source.read_bytes()[-8:-4])
    rows = source.read_bytes()[: -8 - length]
    assert target.read_bytes().startswith(rows), "all other bytes are where they were"
    for number in range(before.metadata.num_row_groups):
        old, new = before.metadata.row_group(number), after.metadata.row_group(number)
        chunks = [new.column(at) for at in range(new.num_columns)]
        assert [chunk.to_dict() for chunk in chunks[:-1]] == [old.column(at).to_dict() for at in range(old.num_columns)]
        assert new.total_byte_size - old.total_byte_size == chunks[-1].total_uncompressed_size
        assert chunks[-1].statistics.null_count == values.slice(sum_before(after, number), new.num_rows).null_count


def sum_before(file: pq.ParquetFile, number: int) -> int:
    return sum(file.metadata.row_group(at).num_rows for at in range(number))


@pytest.mark.parametrize("settings", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_copy_has_the_rows_of_its_source_and_the_column(tmp_path: Path, settings: dict[str, Any]) -> None:
    source, values = tmp_path / "file.parquet", ids_of(2000)
    pq.write_table(pa.table(COLUMNS), source, **settings)
    target = copy(source, values)
    check(source, target, values)
    with duckdb.connect(":memory:") as connection:
        query = f"SELECT id, text, struct.b.c, _row_id FROM '{target}' ORDER BY id"
        rows = connection.execute(query).fetchall()
    texts, ids = COLUMNS["text"].to_pylist(), values.to_pylist()
    assert rows == [(n, texts[n], str(n), ids[n]) for n in range(2000)]


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "lz4", "brotli", "none"])
def test_the_column_is_compressed_as_asked(tmp_path: Path, codec: str) -> None:
    source, values = tmp_path / "file.parquet", ids_of(2000)
    pq.write_table(pa.table({"id": COLUMNS["id"]}), source)
    target = copy(source, values, Compression(codec))
    check(source, target, values)
    written = pq.read_metadata(target).row_group(0).column(1).compression
    assert written == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


@pytest.mark.parametrize("piece", [16, 1000, 40_000])
def test_large_files_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    source, values = tmp_path / "file.parquet", ids_of(2000)
    pq.write_table(pa.table(COLUMNS), source, row_group_size=100, compression="none")
    assert source.stat().st_size > 2 * 40_000
    monkeypatch.setattr(parquet_column, "_PIECE_BYTES", piece)
    check(source, copy(source, values), values)


@pytest.mark.parametrize("seed", range(20))
def test_random_files_keep_their_rows(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([1, 2, 15, 16, 400])
    columns = {
        f"{'x' * rng.choice([1, 5, 200])}{n}": rng.choice(list(COLUMNS.values())).slice(rng.randrange(1000), count)
        for n in range(rng.choice([1, 13, 14, 15, 40]))
    }
    source = tmp_path / "file.parquet"
    settings = rng.choice([{}, {"write_page_index": True}, {"store_schema": False}, {"use_dictionary": False}])
    pq.write_table(pa.table(columns), source, row_group_size=rng.choice([1, 7, 100, 1000]), **settings)
    values = pa.array([rng.choice([None, rng.randrange(1 << 62)]) for _ in range(count)], pa.int64())
    check(source, copy(source, values), values)


def test_row_groups_without_rows_stay(tmp_path: Path) -> None:
    source, rows = tmp_path / "file.parquet", pa.table({"id": [1, 2, 3]})
    with pq.ParquetWriter(source, rows.schema) as out:
        for start, end in ((0, 0), (0, 2), (2, 2), (2, 3)):
            out.write_table(rows.slice(start, end - start))
    target = copy(source, pa.array([7, None, 9], pa.int64()))
    found = pq.ParquetFile(target)
    assert [found.metadata.row_group(at).num_rows for at in range(4)] == [0, 2, 0, 1]
    assert found.read()["_row_id"].to_pylist() == [7, None, 9]
    assert duckdb.sql(f"from '{target}'").fetchall() == [(1, 7), (2, None), (3, 9)]


def test_a_copy_can_be_copied_with_another_column(tmp_path: Path) -> None:
    source, values = tmp_path / "file.parquet", ids_of(2000)
    pq.write_table(pa.table(COLUMNS), source, row_group_size=300)
    first = copy(source, values)
    other = pa.field("_other", pa.int64())
    with pa.OSFile(str(first)) as old, pa.OSFile(str(tmp_path / "twice.parquet"), "wb") as new:
        copy_with_column(old, new, other, values, ZSTD)
    assert pq.read_table(tmp_path / "twice.parquet")["_other"].combine_chunks().equals(values)


@pytest.mark.parametrize("change", ["rows", "magic", "length", "cut", "bits"])
def test_a_file_that_is_not_what_it_should_be_is_refused(tmp_path: Path, change: str) -> None:
    source = tmp_path / "file.parquet"
    pq.write_table(pa.table(COLUMNS), source, store_schema=False)
    data = source.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    damaged = {
        "rows": data,
        "magic": data[:-4] + b"PARE",
        "length": data[:-8] + struct.pack("<I", len(data)) + b"PAR1",
        "cut": data[: -8 - length // 2] + struct.pack("<I", length // 2) + b"PAR1",
        "bits": data[: -8 - length] + bytes([0x1B] * length) + data[-8:],
    }
    source.write_bytes(damaged[change])
    with pytest.raises(pa.ArrowInvalid, match="Invalid Parquet file"):
        copy(source, ids_of(1999 if change == "rows" else 2000))
