"""Parquet files that the driver reads itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import types as T  # noqa: N812

from calve.model.checkpoint import SizeLimit
from calve.source.files import in_memory
from calve.source.files.in_memory import read_parquet
from calve.spark.version import arrow_schema_of
from calve.storage.listing import KnownFile

LIMIT = SizeLimit(1000, 1 << 20)
RECORDS = T.StructType(
    [T.StructField("id", T.LongType()), T.StructField("name", T.StringType()), T.StructField("at", T.TimestampType())]
)
ROWS = arrow_schema_of(RECORDS)


def written(folder: Path, name: str, schema: pa.Schema, *rows: tuple[int, str, int]) -> KnownFile:
    path = folder / name
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)
    return KnownFile(path.stat().st_mtime_ns, str(path), path.stat().st_size)


@pytest.mark.parametrize(
    "field",
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.large_string()),
        pa.field("name", pa.dictionary(pa.int32(), pa.string())),
        pa.field("at", pa.timestamp("us", "Europe/Berlin")),
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"}),
    ],
    ids=["required", "large", "dictionary", "zone", "numbered"],
)
def test_files_of_several_writers_are_read_together(tmp_path: Path, field: pa.Field) -> None:
    other = ROWS.set(ROWS.get_field_index(field.name), field)
    files = [
        written(tmp_path, "a.parquet", ROWS, (1, "x", 10), (2, "y", 20)),
        written(tmp_path, "b.parquet", other, (3, "z", 30)),
        written(tmp_path, "c.parquet", ROWS, (4, "x", 40)),
    ]
    found = read_parquet(fs.LocalFileSystem(), files, RECORDS, LIMIT)
    assert found is not None
    assert found.schema.equals(ROWS, check_metadata=True)
    assert found["id"].to_pylist() == [1, 2, 3, 4]
    assert found["name"].to_pylist() == ["x", "y", "z", "x"]
    assert found["at"].cast(pa.int64()).to_pylist() == [10, 20, 30, 40]


def test_values_that_repeat_are_counted_by_the_memory_that_they_take_and_files_behind_the_limit_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(number, "xy"[number % 2] * 200, number) for number in range(20_000)]
    files = [written(tmp_path, f"{number}.parquet", ROWS, *rows) for number in range(6)]
    read: list[list[int]] = []
    read_row_groups = pq.ParquetFile.read_row_groups

    def noted(file: pq.ParquetFile, groups: list[int], **options: Any) -> pa.Table:
        read.append(groups)
        return read_row_groups(file, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    limit = SizeLimit(1_000_000, 10_000_000)
    assert sum(pq.read_metadata(file.path).row_group(0).total_byte_size for file in files) < limit.bytes
    assert read_parquet(fs.LocalFileSystem(), files, RECORDS, limit) is None
    assert read == [[0]] * 3, "two files of 4.4 MB fit, and one at a time"
    found = read_parquet(fs.LocalFileSystem(), files, RECORDS, SizeLimit(limit.rows, 6 * 4_500_000))
    assert found is not None
    assert found.num_rows == 6 * len(rows)


def test_row_groups_are_read_in_parts_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "_ROWS_AT_ONCE", 4)
    files = []
    for number, rows in enumerate([range(10), range(0), range(10, 11)]):
        path = tmp_path / f"{number}.parquet"
        table = pa.table([[*rows], [str(row) for row in rows], [*rows]], schema=ROWS)
        pq.write_table(table, path, row_group_size=3)
        files.append(KnownFile(number, str(path), path.stat().st_size))
    found = read_parquet(fs.LocalFileSystem(), files, RECORDS, LIMIT)
    assert found is not None
    assert found["id"].to_pylist() == list(range(11))
    assert [len(chunk) for chunk in found["id"].chunks] == [3, 3, 4, 1]
    empty = read_parquet(fs.LocalFileSystem(), files[1:2], RECORDS, LIMIT)
    assert empty is not None
    assert empty.equals(ROWS.empty_table())
