import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.reader.key_sets import KeyRows, KeySet

KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, 1, -1, 1 << 62, None]),
    (pa.int32(), [0, 1, 2, None]),
    (pa.string(), ["", "a", "é", "aa", None]),
    (pa.binary(), [b"", b"\x00", b"\x00\x00", None]),
    (pa.bool_(), [True, False, None]),
    (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("1.10"), Decimal("-1.10"), None]),
    (pa.date32(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29), None]),
    (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, tzinfo=dt.UTC), None],
    ),
    (pa.float64(), [0.5, float("inf"), None]),
]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    row = st.tuples(*[st.sampled_from(values) for _, values in kinds])
    return [kind for kind, _ in kinds], draw(st.lists(row, max_size=12)), draw(st.lists(row, max_size=12))


def columns(kinds: list[pa.DataType], rows: list[tuple[Any, ...]]) -> list[pa.ChunkedArray]:
    half = len(rows) // 2
    return [
        pa.chunked_array([pa.array([row[i] for row in part], kind) for part in (rows[:half], rows[half:])], kind)
        for i, kind in enumerate(kinds)
    ]


@given(cases(), st.data())
def test_a_row_is_deleted_when_a_newer_delete_has_its_key(
    case: tuple[list[pa.DataType], list[tuple[Any, ...]], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    kinds, deletes, rows = case
    numbers = data.draw(st.lists(st.integers(1, 9), min_size=len(deletes), max_size=len(deletes)))
    written = data.draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    keys = KeySet(columns(kinds, deletes), np.array(numbers, np.int64))

    def is_deleted(row: tuple[Any, ...], age: int) -> bool:
        return any(row == key and number > age for key, number in zip(deletes, numbers, strict=True))

    wanted = [is_deleted(row, age) for row, age in zip(rows, written, strict=True)]
    assert keys.deleted(columns(kinds, rows), np.array(written, np.int64)).tolist() == wanted
    assert keys.deleted(columns(kinds, rows), 5).tolist() == [is_deleted(row, 5) for row in rows]


def test_keys_are_kept_once_with_their_newest_delete() -> None:
    keys = KeySet(columns([pa.int64()], [(1,), (2,), (1,)]), np.array([3, 4, 8]))
    assert len(keys) == 2
    assert keys.deleted(columns([pa.int64()], [(1,), (2,)]), 5).tolist() == [True, False]


def test_a_nan_equals_a_nan() -> None:
    nan = float("nan")
    keys = KeySet(columns([pa.float64()], [(nan,)]), np.array([2]))
    assert keys.deleted(columns([pa.float64()], [(nan,), (1.0,)]), 1).tolist() == [True, False]


def test_a_key_has_a_column() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        KeySet([], np.array([], np.int64))


@given(
    st.lists(st.binary(max_size=20), max_size=40),
    st.lists(st.binary(max_size=20), max_size=40),
    st.sampled_from([pa.string(), pa.binary()]),
)
def test_texts_of_any_length_are_found_wherever_they_stand(
    deletes: list[bytes], rows: list[bytes], kind: pa.DataType
) -> None:
    plain = [value if pa.types.is_binary(kind) else value.hex() for value in (*deletes, *rows, *deletes)]
    sliced = pa.chunked_array([pa.array([None, *plain], kind).slice(1), pa.array([], kind)])
    keys = KeySet([pa.chunked_array([pa.array(plain[: len(deletes)], kind)])], np.ones(len(deletes), np.int64))
    wanted = set(plain[: len(deletes)])
    assert keys.deleted([sliced], 0).tolist() == [value in wanted for value in plain]


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=8), st.integers(-60, 60), st.integers(0, 30))
def test_a_set_reaches_what_lies_between_bounds(values: list[int], low: int, width: int) -> None:
    between = [value for value in values if low <= value <= low + width]
    numbers = np.ones(len(values), np.int64)
    whole = KeySet([pa.chunked_array([pa.array(values, pa.int64())])], numbers)
    assert whole.reaches(0, (low, low + width)) == bool(between)
    exact = [Decimal(value) for value in values]
    other = KeySet([pa.chunked_array([pa.array(exact, pa.decimal128(9, 0))])], numbers)
    assert other.reaches(0, (Decimal(low), Decimal(low + width))) or not between
    assert whole.reaches(0, ("a", "b")), "bounds of another type say nothing"


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=str)
def test_a_null_key_reaches_everything(kind: pa.DataType) -> None:
    values: list[Any] = next(values for known, values in KINDS if known == kind)
    keys = KeySet([pa.chunked_array([pa.array(values, kind)])], np.ones(len(values), np.int64))
    assert keys.reaches(0, (values[0], values[0]))
    assert set(keys.values(0).to_pylist()) == set(values)


@pytest.mark.parametrize("seed", range(30))
def test_places_of_integer_keys_equal_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    kind, low, high = rng.choice(
        [(pa.int32(), -(2**31), 2**31), (pa.int64(), 0, 300), (pa.int64(), -(2**63), 2**63), (pa.date32(), 0, 20_000)]
    )
    keys = list({rng.randrange(low, high) for _ in range(rng.choice([1, 2, 60, 5000]))})
    rng.shuffle(keys)
    wanted = [rng.choice([None, rng.choice(keys), rng.randrange(low, high)]) for _ in range(500)]
    places = KeyRows.of([pa.chunked_array([keys[: len(keys) // 2], keys[len(keys) // 2 :]], kind)])
    assert places is not None
    rows = {key: row for row, key in enumerate(keys)}
    expected = [-1 if key is None else rows.get(key, -1) for key in wanted]
    assert places.rows_of(pa.chunked_array([wanted[:100], wanted[100:]], kind)).tolist() == expected


def test_only_distinct_integer_keys_have_places() -> None:
    def places(*columns: pa.Array) -> KeyRows | None:
        return KeyRows.of([pa.chunked_array([column]) for column in columns])

    some = list(range(0, 40_000, 4))
    assert places(pa.array(some)) is not None
    assert places(pa.array([*some, some[77]])) is None
    assert places(pa.array([5, 5, 5, 5])) is None
    assert places(pa.array([1, None])) is None
    assert places(pa.array([1.5, 2.5])) is None
    assert places(pa.array(["a"])) is None
    assert places(pa.array([1]), pa.array([2])) is None
    assert places(pa.array([], pa.int64())) is None


def test_the_newest_sequence_number_of_a_key_is_known_by_its_number() -> None:
    keys = KeySet([pa.chunked_array([[3, 1, 3, 2]])], np.array([5, 7, 9, 0]))
    numbers = keys.numbers([pa.chunked_array([[1, 2, 3, 4]])])
    assert keys.newest(numbers).tolist() == [7, 0, 9, -1]
