"""Rows of a row group by their pages are those that Arrow reads."""

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.reader import pages
from calve.reader.pages import rows_in_pages

ROWS, PAGE = 3_000, 20


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_PAGE_ROWS", PAGE)


def sample(chance: random.Random) -> pa.Table:
    """Columns of many types, with and without nulls, repeating and not."""

    def some(values: list[Any]) -> list[Any]:
        return [None if chance.random() < 0.2 else value for value in values]

    numbers = [chance.randrange(-(1 << 60), 1 << 60) for _ in range(ROWS)]
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    fixed = [number.to_bytes(16, "big", signed=True) for number in numbers]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "small": pa.array(some([number % 7 for number in numbers]), pa.int32()),
            "text": pa.array(some([f"t{number}" * chance.randrange(9) for number in numbers])),
            "status": pa.array([("NEW", "PAID", "")[number % 3] for number in numbers]),
            "real": pa.array(some([number / 3 for number in numbers])),
            "flag": pa.array(some([number % 2 == 0 for number in numbers])),
            "time": pa.array(some([day + dt.timedelta(seconds=number % 10**8) for number in numbers])),
            "price": pa.array(some([Decimal(number % 10**9) / 100 for number in numbers]), pa.decimal128(12, 2)),
            "uuid": pa.array(some(fixed), pa.binary(16)),
            "none": pa.nulls(ROWS, pa.string()),
            "list": pa.array(some([[number % 3] * (number % 4) for number in numbers])),
            "struct": pa.array([{"a": number} for number in numbers]),
        },
    ).cast(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("small", pa.int32()),
                pa.field("text", pa.string()),
                pa.field("status", pa.string(), nullable=False),
                pa.field("real", pa.float64()),
                pa.field("flag", pa.bool_()),
                pa.field("time", pa.timestamp("us", "UTC")),
                pa.field("price", pa.decimal128(12, 2)),
                pa.field("uuid", pa.binary(16)),
                pa.field("none", pa.large_string()),
                pa.field("list", pa.list_(pa.int64())),
                pa.field("struct", pa.struct([("a", pa.int64())])),
            ]
        )
    )


FLAT = ["id", "small", "text", "status", "real", "flag", "time", "price", "uuid", "none"]


def written(table: pa.Table, path: Path, **how: Any) -> str:
    pq.write_table(table, path, write_batch_size=PAGE, data_page_size=1, **how)
    return str(path)


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "zstd", "use_dictionary": ["status", "small"]},
        {"compression": "snappy", "data_page_version": "2.0", "store_schema": False},
        {"compression": "none", "use_dictionary": False, "write_page_index": True},
        {"compression": "gzip", "write_page_checksum": True, "store_decimal_as_integer": True},
    ],
    ids=["dictionaries", "version-2", "plain", "checksums"],
)
def test_rows_of_few_pages_are_those_of_the_file(how: dict[str, Any], tmp_path: Path) -> None:
    chance = random.Random(3)
    path = written(sample(chance), tmp_path / "a.parquet", row_group_size=1_000, **how)
    with pa.OSFile(path) as source, pq.ParquetFile(source) as parquet:
        table = parquet.read()
        for turn in range(30):
            group, near = turn % 3, chance.randrange(500, 990)
            wanted = np.sort([min(999, near + chance.randrange(50)) for _ in range(chance.randrange(1, 40))])
            columns = chance.sample(FLAT, chance.randrange(1, len(FLAT)))
            found = rows_in_pages(parquet, source, group, columns, wanted)
            assert found is not None
            expected = table.select(columns).take(pa.array(1_000 * group + wanted)).combine_chunks().to_batches()[0]
            assert [found.column(name).equals(expected.column(name)) for name in columns] == [True] * len(columns)


def test_only_the_pages_of_the_rows_are_decoded(tmp_path: Path) -> None:
    path = written(sample(random.Random(1)), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    content = bytearray(Path(path).read_bytes())
    place = content.index((100).to_bytes(8, "little") + (101).to_bytes(8, "little"))
    content[place : place + 8] = (77).to_bytes(8, "little")
    source = pa.BufferReader(bytes(content))
    with pq.ParquetFile(source) as parquet:
        found = rows_in_pages(parquet, source, 0, ["id"], np.array([2_000, 2_000, 2_001]))
        assert found is not None
        assert found.column("id").to_pylist() == [2_000, 2_000, 2_001]
        assert parquet.read(["id"]).column("id")[100].as_py() == 77


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (["id", "list"], [2_000]),
        (["struct"], [2_000]),
        ([], [2_000]),
        (["id"], range(0, 2_000, PAGE)),
        (["id"], [5]),
    ],
    ids=["list", "struct", "no columns", "rows in every page", "rows at the start"],
)
def test_what_is_not_better_by_pages_is_left_to_others(columns: list[str], rows: Any, tmp_path: Path) -> None:
    path = written(sample(random.Random(1)), tmp_path / "a.parquet")
    with pa.OSFile(path) as source, pq.ParquetFile(source) as parquet:
        assert rows_in_pages(parquet, source, 0, columns, np.array(rows)) is None


def test_large_pages_and_footers_and_other_types_are_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sample(random.Random(1)).select(["id", "status"])
    table = table.append_column("coded", table.column("status").dictionary_encode())
    path = written(table, tmp_path / "a.parquet")
    wanted = np.array([2_000])
    with pa.OSFile(path) as source, pq.ParquetFile(source) as parquet:
        assert rows_in_pages(parquet, source, 0, ["coded"], wanted) is None
        assert rows_in_pages(parquet, source, 0, ["id"], wanted) is not None
        monkeypatch.setattr(pages, "_MOST_BYTES", 10)
        assert rows_in_pages(parquet, source, 0, ["id"], wanted) is None
        monkeypatch.setattr(pages, "_MOST_BYTES", 1 << 20)
        monkeypatch.setattr(pages, "_MOST_FOOTER", 10)
        assert rows_in_pages(parquet, source, 0, ["id"], wanted) is None


@pytest.mark.parametrize(
    "header",
    [b"\x15\x00\x15\x00\x15\x00\x00", b"\x15\x00\x15\x00\x15\x0d\x00", b"\x1b", b"\xff"],
    ids=["no rows", "negative size", "a map", "no end"],
)
def test_a_damaged_chunk_is_left_to_arrow(header: bytes, tmp_path: Path) -> None:
    path = written(sample(random.Random(1)).select(["id"]), tmp_path / "a.parquet")
    content = bytearray(Path(path).read_bytes())
    content[4:2_004] = (header * 2_000)[:2_000]
    source = pa.BufferReader(bytes(content))
    with pq.ParquetFile(source) as parquet:
        assert rows_in_pages(parquet, source, 0, ["id"], np.array([2_000])) is None


def test_a_column_is_not_taken_for_the_field_that_has_its_name_as_path(tmp_path: Path) -> None:
    fields = pa.array(
        [{"b": -number} for number in range(ROWS)], pa.struct([pa.field("b", pa.int64(), nullable=False)])
    )
    schema = pa.schema([pa.field("a.b", pa.int64()), pa.field("a", fields.type, nullable=False)])
    pq.write_table(pa.table([pa.array(range(ROWS)), fields], schema=schema), tmp_path / "f", data_page_size=64)
    with pa.OSFile(str(tmp_path / "f")) as source, pq.ParquetFile(tmp_path / "f") as parquet:
        found = rows_in_pages(parquet, source, 0, ["a.b"], np.array([ROWS - 2, ROWS - 1]))
    assert found is not None
    assert found.column(0).to_pylist() == [ROWS - 2, ROWS - 1]
