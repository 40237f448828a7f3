from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.model.scan import AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition
from calve.reader.row_groups import GroupTest

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), [None, -5, 0, 3, 1 << 40]),
    "s": (pa.string(), [None, "", "a", "ab", "b", "é"]),
    "d": (pa.date32(), [None, -1, 0, 19_000]),
    "t": (pa.timestamp("us"), [None, -1, 0, 1_700_000_000_000_001]),
    "p": (pa.decimal128(9, 2), [None, Decimal("-1.50"), Decimal("0.00"), Decimal("2.25")]),
    "f": (pa.float64(), [None, float("nan"), -1.0, 0.0, 2.5]),
}
ROW_GROUP = 3


def holds(condition: Condition, row: dict[str, Any]) -> bool:
    match condition:
        case AllOf(parts):
            return all(holds(part, row) for part in parts)
        case AnyOf(parts):
            return any(holds(part, row) for part in parts)
        case ColumnComparison(column, operator, value):
            found = row[column]
            if operator is ComparisonOperator.IS_NULL:
                return found is None
            if found is None:
                return False
            tests: dict[ComparisonOperator, Callable[[], Any]] = {
                ComparisonOperator.EQUAL: lambda: found == value,
                ComparisonOperator.LESS: lambda: found < value,
                ComparisonOperator.LESS_OR_EQUAL: lambda: found <= value,
                ComparisonOperator.GREATER: lambda: found > value,
                ComparisonOperator.GREATER_OR_EQUAL: lambda: found >= value,
                ComparisonOperator.IN: lambda: found in value,
                ComparisonOperator.STARTS_WITH: lambda: found.startswith(value),
                ComparisonOperator.NOT_NULL: lambda: True,
            }
            return bool(tests[operator]())


@st.composite
def comparisons(draw: st.DrawFn) -> ColumnComparison:
    column = draw(st.sampled_from(sorted(COLUMNS)))
    values = [value for value in COLUMNS[column][1] if value is not None]
    operator = draw(
        st.sampled_from([o for o in ComparisonOperator if column == "s" or o is not ComparisonOperator.STARTS_WITH])
    )
    if operator is ComparisonOperator.IN:
        return ColumnComparison(
            column, operator, tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
        )
    return ColumnComparison(column, operator, draw(st.sampled_from(values)))


conditions: st.SearchStrategy[Condition] = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AllOf(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AnyOf(tuple(parts))),
    ),
    max_leaves=4,
)
rows = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, (_, values) in COLUMNS.items()}),
    min_size=1,
    max_size=12,
)


@given(rows, conditions)
def test_no_row_that_meets_the_condition_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict[str, Any]], condition: Condition
) -> None:
    path = tmp_path_factory.mktemp("groups") / "file.parquet"
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in COLUMNS.items()])
    pq.write_table(pa.Table.from_pylist(found, schema), path, row_group_size=ROW_GROUP)
    with pq.ParquetFile(path) as parquet:
        test = GroupTest(parquet, {name: name for name in COLUMNS}, condition)
        for group in range(parquet.metadata.num_row_groups):
            part = found[group * ROW_GROUP : (group + 1) * ROW_GROUP]
            assert test.may_match(group) or not any(holds(condition, row) for row in part)


@pytest.mark.parametrize(
    ("comparison", "wanted"),
    [
        (ColumnComparison("n", ComparisonOperator.EQUAL, 4), [False, True, False]),
        (ColumnComparison("n", ComparisonOperator.LESS, 3), [True, False, False]),
        (ColumnComparison("n", ComparisonOperator.IN, (0, 8)), [True, False, True]),
        (ColumnComparison("elsewhere", ComparisonOperator.EQUAL, 4), [True, True, True]),
        (ColumnComparison("n", ComparisonOperator.EQUAL, "text"), [True, True, True]),
        (
            AnyOf(
                (
                    ColumnComparison("n", ComparisonOperator.EQUAL, 0),
                    ColumnComparison("n", ComparisonOperator.GREATER, 7),
                )
            ),
            [True, False, True],
        ),
    ],
)
def test_row_groups_are_left_out(tmp_path: Path, comparison: Condition, wanted: list[bool]) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"n": list(range(9))}), path, row_group_size=3)
    with pq.ParquetFile(path) as parquet:
        test = GroupTest(parquet, {"n": "n"}, comparison)
        assert [test.may_match(group) for group in range(3)] == wanted


def test_years_that_python_does_not_have_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"d": pa.array([10_000_000, 20_000_000], pa.date32())}), path)
    with pq.ParquetFile(path) as parquet:
        assert GroupTest(parquet, {"d": "d"}, ColumnComparison("d", ComparisonOperator.EQUAL, 1)).may_match(0)
