"""The last change per key, against a dictionary."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.model.change import DELETE, OP, ORDER_PREFIX, UPSERT
from calve.write.consolidate import last_of_runs, last_places, upserts

ORDER = [f"{ORDER_PREFIX}0", f"{ORDER_PREFIX}1"]

KEYS = {
    "long": (pa.int64(), st.integers(-3, 3)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "string": (pa.string(), st.text("aé😀\x00", max_size=2)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "boolean": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(38, 2), st.sampled_from([Decimal("-9.99"), Decimal("0.01"), Decimal(10**30)])),
    "date": (pa.date32(), st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3))),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        st.datetimes(dt.datetime(1969, 12, 31), dt.datetime(1970, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    ),
}


@st.composite
def changes(draw: st.DrawFn, kinds: Sequence[str], *, order_columns: int) -> pa.Table:
    """Changes in any order; no two of one key have the same order, so that one of them is the last."""
    fields = [(f"k{i}", *KEYS[kind]) for i, kind in enumerate(kinds)]
    row = st.tuples(*[values for _, _, values in fields], st.sampled_from([UPSERT, DELETE]))
    rows = draw(st.lists(row, max_size=40))
    ranks = draw(st.just(range(len(rows))) | st.permutations(range(len(rows))))  # in order, or in any
    columns: dict[str, pa.Array] = {
        name: pa.array([r[i] for r in rows], kind) for i, (name, kind, _) in enumerate(fields)
    }
    columns["v"] = pa.array(range(len(rows)), pa.int64())
    columns[OP] = pa.array([r[-1] for r in rows], pa.int8())
    if order_columns == 1:
        columns[ORDER[0]] = pa.array(ranks, pa.int64())
    else:  # the first column alone does not decide
        columns[ORDER[0]] = pa.array([rank // 5 for rank in ranks], pa.int64())
        columns[ORDER[1]] = pa.array([f"{rank % 5}" for rank in ranks], pa.string())
    table = pa.table(columns)
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    pieces = [table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    return pa.concat_tables(pieces)


def key_names(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith("k")]


def order_names(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith(ORDER_PREFIX)]


def expected(table: pa.Table) -> dict[tuple[Any, ...], int]:
    """Key -> v of its last change."""
    rows = sorted(table.to_pylist(), key=lambda row: tuple(row[name] for name in order_names(table)))
    return {tuple(row[name] for name in key_names(table)): row["v"] for row in rows}


def found(table: pa.Table) -> dict[tuple[Any, ...], int]:
    rows = table.to_pylist()
    result = {tuple(row[name] for name in key_names(table)): row["v"] for row in rows}
    assert len(result) == len(rows), "a key came twice"
    return result


def sort_key(table: pa.Table) -> list[tuple[Any, ...]]:
    return [
        tuple(v.encode() if isinstance(v, str) else v for v in (row[name] for name in key_names(table)))
        for row in table.to_pylist()
    ]


def last_per_key(table: pa.Table, key: Sequence[str], order: Sequence[str]) -> pa.Table:
    return table.take(last_places(table, key, order))


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_the_greatest_order_wins_for_every_type_of_key(kind: str, data: st.DataObject) -> None:
    table = data.draw(changes([kind], order_columns=1))
    last = last_per_key(table, key_names(table), order_names(table))
    assert found(last) == expected(table)
    assert sort_key(last) == sorted(sort_key(last))


@given(changes(["long", "string"], order_columns=2))
def test_a_composite_key_and_a_composite_order_decide_together(table: pa.Table) -> None:
    last = last_per_key(table, key_names(table), order_names(table))
    assert found(last) == expected(table)
    assert sort_key(last) == sorted(sort_key(last))


@given(changes(["date", "decimal"], order_columns=2), st.lists(st.integers(0, 7), min_size=1))
def test_runs_that_span_batches_leave_one_row(table: pa.Table, sizes: list[int]) -> None:
    by = [(name, "ascending") for name in (*key_names(table), *order_names(table))]
    batches: list[pa.RecordBatch] = []
    rest = table.sort_by(by).combine_chunks()
    for size in [*sizes, rest.num_rows]:
        piece, rest = rest.slice(0, size), rest.slice(size)
        batches += piece.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    last = list(last_of_runs(batches, key_names(table)))
    assert all(batch.num_rows for batch in last)
    assert found(pa.Table.from_batches(last, table.schema)) == expected(table)


def test_of_equal_orders_the_later_row_stays() -> None:
    table = pa.table({"k": [1, 1, 1], "v": [1, 2, 3], ORDER[0]: [7, 7, 7]})
    assert last_per_key(table, ["k"], ORDER[:1])["v"].to_pylist() == [3]


def test_upserts_are_the_rows_that_are_not_deletes() -> None:
    table = pa.table({"k": [1, 2, 3], OP: pa.array([UPSERT, DELETE, UPSERT], pa.int8())})
    assert upserts(table)["k"].to_pylist() == [1, 3]
    assert upserts(table.slice(1, 1)).num_rows == 0


def test_a_batch_that_keeps_all_rows_is_not_copied() -> None:
    batch = pa.record_batch({"k": [1, 2, 3], OP: pa.array([UPSERT] * 3, pa.int8())})
    assert upserts(batch) is batch
