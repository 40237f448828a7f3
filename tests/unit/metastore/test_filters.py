from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import InvalidInput
from calve.metastore import filters as f
from calve.metastore.filters import Filter, matching

ROWS: list[dict[str, Any]] = [{"n": 1}, {"n": 2}, {"n": 3}, {"n": None}]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f.eq("n", 2), [2]),
        (f.ne("n", 2), [1, 3, None]),
        (f.lt("n", 2), [1]),
        (f.le("n", 2), [1, 2]),
        (f.gt("n", 2), [3]),
        (f.ge("n", 2), [2, 3]),
        (f.one_of("n", [1, 3]), [1, 3]),
        (f.one_of("n", []), []),
        (f.none_of("n", [1, 3]), [2, None]),
        (f.none_of("n", [1]), [2, 3, None]),
        (f.none_of("n", []), [1, 2, 3, None]),
        (f.is_null("n"), [None]),
        (f.not_null("n"), [1, 2, 3]),
        (f.negation(f.eq("n", 2)), [1, 3, None]),
        (f.negation(f.ne("n", 2)), [2]),
        (~f.lt("n", 2), [2, 3, None]),
        (f.all_of(f.gt("n", 1), f.lt("n", 3)), [2]),
        (f.all_of(), [1, 2, 3, None]),
        (f.any_of(f.eq("n", 1), f.is_null("n")), [1, None]),
        (f.any_of(), []),
        (f.gt("n", 1) & f.ne("n", 3) | f.eq("n", 1), [1, 2]),
    ],
)
def test_every_operator_answers_yes_or_no_for_nulls_too(condition: Filter, expected: list[int | None]) -> None:
    assert [row["n"] for row in ROWS if condition.outcome(row)] == expected
    assert all(condition.outcome(row) is not None for row in ROWS)


def test_a_null_is_asked_for_by_name_and_not_compared() -> None:
    for make in (f.eq, f.ne, f.lt, f.le, f.gt, f.ge):
        with pytest.raises(InvalidInput, match='column "n" cannot be compared with a null') as caught:
            make("n", None)  # type: ignore[arg-type]
        assert "is_null" in caught.value.hint
    with pytest.raises(InvalidInput):
        f.one_of("n", [1, None])  # type: ignore[list-item]


def test_an_outcome_is_open_only_while_a_missing_column_decides() -> None:
    known = {"a": 1}
    assert (f.eq("a", 1) & f.eq("b", 1)).outcome(known) is None
    assert (f.eq("a", 2) & f.eq("b", 1)).outcome(known) is False
    assert (f.eq("a", 1) | f.eq("b", 1)).outcome(known) is True
    assert (~f.eq("b", 1)).outcome(known) is None
    assert (f.eq("a", 1) & f.eq("b", 1)).columns() == {"a", "b"}


def conditions() -> st.SearchStrategy[Filter]:
    column, value = st.sampled_from(["a", "b"]), st.integers(0, 2)
    leaves = st.one_of(
        st.builds(f.eq, column, value),
        st.builds(f.ne, column, value),
        st.builds(f.lt, column, value),
        st.builds(f.ge, column, value),
        st.builds(f.one_of, column, st.lists(value, max_size=2)),
        st.builds(f.none_of, column, st.lists(value, max_size=2)),
        st.builds(f.is_null, column),
        st.builds(f.not_null, column),
    )
    return st.recursive(
        leaves, lambda c: st.one_of(st.builds(f.negation, c), st.builds(f.all_of, c, c), st.builds(f.any_of, c, c))
    )


@given(conditions(), st.none() | st.integers(0, 2), st.none() | st.integers(0, 2))
def test_what_a_part_of_a_row_decides_the_whole_row_does_not_undo(
    condition: Filter, a: int | None, b: int | None
) -> None:
    whole = condition.outcome({"a": a, "b": b})
    assert whole is not None
    assert condition.outcome({"a": a}) in {None, whole}
    assert condition.outcome({}) in {None, whole}
    assert (~condition).outcome({"a": a, "b": b}) is not whole
    if condition.outcome({"a": a}) is None:
        rest = condition.open_parts({"a": a})
        assert rest.columns() == {"b"}
        assert rest.outcome({"b": b}) is whole


@given(conditions(), st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.integers(0, 2)), max_size=6))
def test_a_table_at_once_gives_the_same_rows_as_row_by_row(
    condition: Filter, rows: list[tuple[int | None, ...]]
) -> None:
    table = pa.table({name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate("ab")})
    expected = [row for row in table.to_pylist() if condition.outcome(row)]
    assert matching(table, condition).to_pylist() == expected


def test_texts_and_fractions_are_compared_alike_in_both_ways() -> None:
    texts, fractions = ["", "a", "ä", "z", "\U0001f600", "\uffff", None], [0.5, -1.0, float("inf"), 0.0, 2.0, 3.0, None]
    table = pa.table({"t": pa.array(texts, pa.large_string()), "x": pa.array(fractions, pa.float64())})
    for make in (f.eq, f.ne, f.lt, f.le, f.gt, f.ge):
        for condition in (*(make("t", text) for text in texts if text is not None), make("x", 0), make("x", 0.5)):
            expected = [row for row in table.to_pylist() if condition.outcome(row)]
            assert matching(table, condition).to_pylist() == expected
    assert matching(table, f.none_of("x", [0, 2])).num_rows == 5
    assert matching(table, f.one_of("t", [])).num_rows == 0
