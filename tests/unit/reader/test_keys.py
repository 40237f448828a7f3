import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.reader.key_sets import KeySet

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
    sequence_number = data.draw(st.integers(0, 9))
    keys = KeySet(columns(kinds, deletes), np.array(numbers, np.int64))
    wanted = [
        any(row == key and number > sequence_number for key, number in zip(deletes, numbers, strict=True))
        for row in rows
    ]
    assert keys.deleted(columns(kinds, rows), sequence_number).tolist() == wanted


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
