"""Compactions sort rows as the user wants, so that readers skip files by the columns of the user."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import calve
from calve.errors import InvalidInput
from calve.maintain import rewrite
from calve.maintain.rewrite import z_order
from calve.model.files import Content
from calve.model.spec import RowOrder
from tests.support.foreign import ForeignTable, in_order
from tests.support.readers import duckdb_rows

PLACES = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "lat", DoubleType(), required=False),
    NestedField(3, "lon", DoubleType(), required=False),
    NestedField(4, "note", StringType(), required=False),
    identifier_field_ids=[1],
)
ROWS, PARTS = 6_000, 6
LONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.2)
"""They have about the same number of rows between them."""


def places(tmp_path: Path) -> ForeignTable:
    """Random places in files that are sorted by id, some rows of which are deleted, with small files as target."""
    table = ForeignTable(tmp_path, PLACES, properties={"write.target-file-size-bytes": "10000"})
    rng = random.Random(5)
    files = []
    for part in range(PARTS):
        numbers = range(part, ROWS, PARTS)
        rows = [
            {"id": n, "lat": rng.uniform(-90, 90), "lon": rng.expovariate(1) if n % 50 else None, "note": f"{n:032}"}
            for n in numbers
        ]
        files.append(table.data(rows, row_group_size=200))
    table.commit(*files)
    table.commit(table.positions([(file, at) for file in files for at in range(0, ROWS // PARTS, 10)]))
    table.commit(table.equality(["id"], [{"id": n} for n in range(0, ROWS, 17)]))
    return table


def share_read(table: ForeignTable, column: str, lows: Sequence[float]) -> float:
    """The mean share of files that pyiceberg plans to read for small ranges of a column."""
    found, every = [], len(table.table.inspect.data_files())
    for low in lows:
        rows = f"{column} >= {low} and {column} < {low + 0.01}"
        found.append(len({task.file.file_path for task in table.table.scan(row_filter=rows).plan_files()}))
    return sum(found) / len(lows) / every


@pytest.mark.long
@pytest.mark.parametrize("held", [rewrite.HELD_BYTES, 0], ids=["in-memory", "in-a-file"])
def test_files_are_skipped_by_the_columns_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(rewrite, "HELD_BYTES", held)
    table = places(tmp_path)
    wanted = in_order(table.rows())
    shares: dict[str, tuple[float, float]] = {}
    for order in (None, "lat, id", 'zorder(LAT, "lon")'):
        done = calve.compact(table.ref, sort_by=order)
        assert done is not None
        assert done.rows_after == len(wanted)
        assert {f["content"] for f in table.table.inspect.files().to_pylist()} == {Content.DATA}, "deletes are applied"
        assert len(table.table.inspect.files()) >= 16
        assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
        shares[order or ""] = share_read(table, "lat", range(-80, 90, 20)), share_read(table, "lon", LONS)
    by_key, by_column, interleaved = shares.values()
    assert min(by_key) > 0.9
    assert by_column[0] <= 0.25
    assert by_column[1] > 0.9
    assert max(interleaved) <= 0.5, "both columns tell files apart"


def test_a_z_order_is_that_of_interleaved_ranks() -> None:
    numbers = np.random.default_rng(3).permutation(16)
    across, down = pa.chunked_array([numbers % 4]), pa.chunked_array([numbers // 4])
    order = np.argsort(z_order([across, down]), kind="stable")
    found = [(int(numbers[n]) % 4, int(numbers[n]) // 4) for n in order]
    assert [(x & 1, y & 1) for x, y in found] == [(0, 0), (0, 1), (1, 0), (1, 1)] * 4
    assert [(x // 2, y // 2) for x, y in found] == [(x, y) for x in (0, 1) for y in (0, 1) for _ in range(4)]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, None, -1, 7, 7], pa.int32()),
        pa.array(["b", None, "a", "c", "c"]),
        pa.array([b"b", None, b"", b"c", b"c"], pa.binary()),
        pa.array([1.5, None, float("-inf"), 2.5, 2.5]),
        pa.array([2, None, 1, 3, 3], pa.int32()).cast(pa.date32()),
        pa.array([2, None, 1, 3, 3], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([2, None, 1, 3, 3], pa.int64()).cast(pa.time64("us")),
        pa.array([2, None, 1, 3, 3], pa.int64()).cast(pa.decimal128(30, 2)),
        pa.array([b"2" * 16, None, b"1" * 16, b"3" * 16, b"3" * 16], pa.binary(16)),
        pa.array([True, None, False, True, True]),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_every_type_have_their_order_in_a_z_order_and_nulls_come_first(values: Any) -> None:
    ranks = z_order([pa.chunked_array([values[:2], values[2:]])])
    assert ranks[1] < ranks[2] < ranks[0] <= ranks[3] == ranks[4]


def test_orders_are_read_as_they_are_written() -> None:
    for text, order in {
        "region": RowOrder(("region",)),
        ' a ,"b ""c"", d" ': RowOrder(("a", 'b "c", d')),
        "ZOrder( lat, lon )": RowOrder(("lat", "lon"), interleaved=True),
    }.items():
        assert RowOrder.parse(text) == order
        assert RowOrder.parse(str(order)) == order


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an order of rows"),
        ("a,", "is not an order of rows"),
        ("a b", "is not an order of rows"),
        ("hilbert(a, b)", "is not an order of rows"),
        ("zorder(a, b", "is not an order of rows"),
        ("a, b, a", "names a column twice"),
        ("zorder(a)", "a Z-order has 2 to 8 columns"),
        ("zorder(a, b, c, d, e, f, g, h, i)", "a Z-order has 2 to 8 columns"),
    ],
)
def test_what_is_no_order_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RowOrder.parse(text)


def test_a_column_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, PLACES)
    table.commit(table.data([{"id": 1}]))
    with pytest.raises(InvalidInput, match='has no column "alt"'):
        calve.compact(table.ref, sort_by="zorder(lat, alt)")
