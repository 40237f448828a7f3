"""Equal rows, and only those, have equal numbers."""

import datetime as dt
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calve.changelog import row_numbers as numbering
from calve.changelog.row_numbers import equal_rows, order_by, row_numbers

VALUES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int64(): lambda n: n - 1,
    pa.int32(): lambda n: n - 1,
    pa.bool_(): lambda n: n % 2 == 0,
    pa.float64(): lambda n: [0.0, -0.0, math.nan, math.inf][n % 4],
    pa.float32(): lambda n: [0.0, -0.0, math.nan, 1.5][n % 4],
    pa.string(): lambda n: "x" * n,
    pa.date32(): lambda n: dt.date(1969, 12, 30) + dt.timedelta(days=n),
    pa.timestamp("us", "UTC"): lambda n: dt.datetime(1969, 12, 31, tzinfo=dt.UTC) + dt.timedelta(hours=20 * n),
    pa.time64("us"): lambda n: dt.time(n, 1),
    pa.decimal128(20, 2): lambda n: n - 1,
    pa.list_(pa.int64()): lambda n: [n] * n,
    pa.struct([("a", pa.int64()), ("b", pa.float64())]): lambda n: {"a": n % 2 or None, "b": -0.0 if n else 0.0},
}


def values_of(rng: random.Random, kind: pa.DataType, count: int) -> pa.Array:
    numbers = [rng.randrange(4) for _ in range(count)]
    return pa.array([None if n == 3 else VALUES[kind](n) for n in numbers], kind)


def rows_of(rng: random.Random, kinds: list[pa.DataType], count: int) -> list[pa.ChunkedArray]:
    sizes = (count // 2, count - count // 2)
    return [pa.chunked_array([values_of(rng, kind, size) for size in sizes]) for kind in kinds]


def first_occurrences(columns: list[pa.ChunkedArray]) -> list[int]:
    """The numbers of rows, one by one; texts tell NaN, -0.0 and null apart from everything else."""
    known: dict[str, int] = {}
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [known.setdefault(repr(row), len(known)) for row in rows]


@pytest.mark.parametrize("collide", [False, True])
def test_rows_are_numbered_by_their_first_occurrence_even_if_all_hashes_are_equal(
    monkeypatch: pytest.MonkeyPatch, *, collide: bool
) -> None:
    if collide:
        monkeypatch.setattr(numbering, "_mixed", np.zeros_like)
    for seed in range(60):
        rng = random.Random(seed)
        kinds = rng.sample(list(VALUES), rng.randint(1, 4))
        columns = rows_of(rng, kinds, rng.choice([0, 1, 40]))
        count = len(columns[0])
        assert row_numbers(columns, count).tolist() == first_occurrences(columns), (seed, kinds)


def test_two_rows_are_equal_if_they_would_have_the_same_number() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        kinds = rng.sample(list(VALUES), rng.randint(0, 4))
        columns = rows_of(rng, kinds, 40)
        left, right = (np.array([rng.randrange(40) for _ in range(rng.choice([0, 200]))], np.int64) for _ in range(2))
        left, right = left[: len(right)], right[: len(left)]
        numbers = row_numbers(columns, 40)
        assert equal_rows(columns, left, right).tolist() == (numbers[left] == numbers[right]).tolist(), (seed, kinds)


def test_rows_are_ordered_by_several_columns_whether_or_not_one_number_can_hold_them() -> None:
    rng = np.random.default_rng(5)
    for largest in (3, 1 << 40):
        columns = [rng.integers(0, 3, 500) * (largest // 3) for _ in range(3)]
        assert order_by(*columns).tolist() == np.lexsort(columns[::-1]).tolist()
    assert order_by(np.empty(0, np.int64)).tolist() == []
