"""Which files a condition needs: never one too few."""

import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.column_types import LONGEST, bounded, merged_schema, schema_of
from calve.analyze.file_pruning import ChosenFiles, Sieve, known_of
from calve.analyze.file_statistics import Footers
from calve.analyze.refresh import AnalyzeRequest
from calve.analyze.subject import ListedFile, WantedFacts
from calve.errors import InvalidInput
from calve.metastore.statistics import ColumnStatistics, StatisticsType
from calve.model.scan import AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition
from calve.sql.statements import MetadataLevel
from tests.unit.analyze.trees import Tables, folder, put, refreshed


def chosen(tables: Tables, root: Path, condition: Condition) -> ChosenFiles:
    known = known_of(tables, folder(root))
    schema = known.general.schema if known.general else None
    return known.choose(condition, schema or T.StructType().add("id", "long").json())


def equal(value: int) -> Condition:
    return ColumnComparison("id", ComparisonOperator.EQUAL, value)


def names(found: ChosenFiles) -> list[str]:
    return [file.name for file in found.files]


def test_segments_files_and_row_groups_are_left_out(tables: Tables, root: Path) -> None:
    put(root / "b" / "3" / "gap.parquet", [*range(1000, 1050), *range(1190, 1240)])
    refreshed(tables, root)
    one = chosen(tables, root, equal(1150))
    assert names(one) == ["b/1/1.parquet"]
    assert (one.listed, one.segments, one.by_segment, one.by_file, one.by_row_groups) == (25, 2, 16, 7, 1)
    assert (one.row_groups, one.outdated, one.level) == (1, 0, MetadataLevel.ROW_GROUP)
    assert names(chosen(tables, root, equal(99_999))) == []


def test_a_folder_that_was_not_analyzed_is_read_whole(tables: Tables, root: Path) -> None:
    found = chosen(tables, root, equal(1))
    assert (len(found.files), found.level) == (24, None)


def test_files_that_are_new_or_changed_are_read_and_told(tables: Tables, root: Path) -> None:
    refreshed(tables, root)
    put(root / "a" / "0" / "0.parquet", [5000])
    put(root / "c" / "9" / "new.parquet", [5000])
    shutil.rmtree(root / "b")
    found = chosen(tables, root, equal(5000))
    assert names(found) == ["a/0/0.parquet", "c/9/new.parquet"]
    assert found.outdated == 2
    refreshed(tables, root)
    again = chosen(tables, root, equal(5000))
    assert (names(again), again.outdated) == (names(found), 0)


@pytest.mark.parametrize(
    ("level", "left"), [(MetadataLevel.TABLE, 24), (MetadataLevel.SEGMENT, 8), (MetadataLevel.FILE, 1)]
)
def test_a_level_tells_what_it_knows(tables: Tables, root: Path, level: MetadataLevel, left: int) -> None:
    refreshed(tables, root, AnalyzeRequest(level=level))
    assert len(chosen(tables, root, equal(1150)).files) == left
    assert chosen(tables, root, equal(99_999)).files == ()
    put(root / "a" / "0" / "0.parquet", [99_999])
    found = chosen(tables, root, equal(99_999))
    assert "a/0/0.parquet" in names(found)
    assert found.outdated == {MetadataLevel.TABLE: 24, MetadataLevel.SEGMENT: 8, MetadataLevel.FILE: 1}[level]


def test_a_column_that_is_read_as_another_type_leaves_nothing_out(tables: Tables, root: Path) -> None:
    refreshed(tables, root)
    known = known_of(tables, folder(root))
    as_text = T.StructType().add("id", "string").json()
    assert len(known.choose(ColumnComparison("id", ComparisonOperator.EQUAL, "x"), as_text).files) == 24


def test_columns_without_statistics_leave_nothing_out(tables: Tables, root: Path) -> None:
    refreshed(tables, root, AnalyzeRequest(()))
    assert len(chosen(tables, root, equal(99_999)).files) == 24


# ---- conditions against statistics

VALUES: dict[StatisticsType, st.SearchStrategy[Any]] = {
    StatisticsType.WHOLE: st.integers(-5, 5),
    StatisticsType.FRACTION: st.sampled_from([-2.5, -0.0, 0.0, 1.5, float("inf"), float("nan")]),
    StatisticsType.DECIMAL: st.sampled_from([Decimal("-1.50"), Decimal(0), Decimal("2.25")]),
    StatisticsType.TEXT: st.text("ab\U0010ffff", max_size=3),
    StatisticsType.BOOLEAN: st.booleans(),
}
COMPARED = [
    o
    for o in ComparisonOperator
    if o not in {ComparisonOperator.IN, ComparisonOperator.IS_NULL, ComparisonOperator.NOT_NULL}
]


def meets(value: Any, comparison: ColumnComparison) -> bool:
    """As Spark compares: NaN is equal to itself and above every number."""
    match comparison.operator:
        case ComparisonOperator.IS_NULL:
            return value is None
        case ComparisonOperator.NOT_NULL:
            return value is not None
        case ComparisonOperator.IN:
            return any(meets(value, ColumnComparison("v", ComparisonOperator.EQUAL, one)) for one in comparison.value)
    if value is None:
        return False
    if comparison.operator is ComparisonOperator.STARTS_WITH:
        return bool(value.startswith(comparison.value))
    one, other = ((x != x, 0 if x != x else x) for x in (value, comparison.value))  # noqa: PLR0124 - NaN
    answers = {
        ComparisonOperator.EQUAL: one == other,
        ComparisonOperator.LESS: one < other,
        ComparisonOperator.LESS_OR_EQUAL: one <= other,
        ComparisonOperator.GREATER: one > other,
        ComparisonOperator.GREATER_OR_EQUAL: one >= other,
    }
    return answers[comparison.operator]


@st.composite
def cases(draw: st.DrawFn) -> tuple[StatisticsType, list[Any], ColumnComparison]:
    kind = draw(st.sampled_from(list(VALUES)))
    values = draw(st.lists(st.none() | VALUES[kind], max_size=4))
    operator = draw(st.sampled_from(list(ComparisonOperator)))
    if operator is ComparisonOperator.STARTS_WITH and kind is not StatisticsType.TEXT:
        operator = ComparisonOperator.EQUAL
    value = draw(VALUES[kind]) if operator in COMPARED else None
    if operator is ComparisonOperator.IN:
        value = tuple(draw(st.lists(VALUES[kind], min_size=1, max_size=3)))
    return kind, values, ColumnComparison("v", operator, value)


def measured(kind: StatisticsType, values: list[Any]) -> ColumnStatistics:
    there = [value for value in values if value is not None]
    ordered = [value for value in there if value == value]  # noqa: PLR0124 - as writers do, without NaN
    bounds = (min(ordered), max(ordered)) if ordered else (None, None)
    return bounded(kind, len(values) - len(there), len(there), *bounds)


@settings(max_examples=400)
@given(case=cases(), other=cases())
def test_no_row_that_matches_is_ever_left_out(
    case: tuple[StatisticsType, list[Any], ColumnComparison], other: tuple[StatisticsType, list[Any], ColumnComparison]
) -> None:
    kind, values, comparison = case
    columns, kinds = {"v": measured(kind, values)}, {"v": kind}
    if any(meets(value, comparison) for value in values):
        assert Sieve(comparison, kinds).may_match(columns)
        assert Sieve(AnyOf((comparison, ColumnComparison("v", ComparisonOperator.IS_NULL))), kinds).may_match(columns)
    if other[0] is kind and any(meets(value, comparison) and meets(value, other[2]) for value in values):
        assert Sieve(AllOf((comparison, other[2])), kinds).may_match(columns)


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        (ComparisonOperator.EQUAL, 11),
        (ComparisonOperator.LESS, 2),
        (ComparisonOperator.LESS_OR_EQUAL, 1),
        (ComparisonOperator.GREATER, 10),
        (ComparisonOperator.GREATER_OR_EQUAL, 11),
        (ComparisonOperator.IN, (0, 11)),
        (ComparisonOperator.IS_NULL, None),
    ],
)
def test_what_bounds_rule_out_is_left_out(operator: ComparisonOperator, value: object) -> None:
    known = {"v": ColumnStatistics(StatisticsType.WHOLE, 0, 5, 2, 10)}
    assert not Sieve(ColumnComparison("v", operator, value), {"v": StatisticsType.WHOLE}).may_match(known)


def test_days_and_instants_are_compared_as_conditions_count_them() -> None:
    day, at = dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    known = {
        "day": ColumnStatistics(StatisticsType.DATE, 0, 1, day, day),
        "at": ColumnStatistics(StatisticsType.TIMESTAMP, 0, 1, at, at),
    }
    kinds = {"day": StatisticsType.DATE, "at": StatisticsType.TIMESTAMP}
    micros = int(at.timestamp()) * 1_000_000
    for column, value in (("day", 19_724), ("at", micros)):
        assert Sieve(ColumnComparison(column, ComparisonOperator.EQUAL, value), kinds).may_match(known)
        assert not Sieve(ColumnComparison(column, ComparisonOperator.GREATER, value), kinds).may_match(known)


# ---- bounds out of files


def test_long_bounds_are_cut_to_what_bounds_them() -> None:
    text = "é" * LONGEST + "z"
    found = bounded(StatisticsType.TEXT, 0, 1, text, text)
    assert isinstance(found.least, str)
    assert isinstance(found.greatest, str)
    assert found.least < text < found.greatest
    assert max(len(found.least), len(found.greatest)) <= LONGEST
    top = "\U0010ffff" * (LONGEST + 1)
    assert bounded(StatisticsType.TEXT, 0, 1, top, top).greatest is None
    raw = b"\x01" + b"\xff" * LONGEST
    cut = bounded(StatisticsType.BINARY, 0, 1, raw, raw)
    assert isinstance(cut.greatest, bytes)
    assert (cut.greatest > raw, cut.greatest) == (True, b"\x02")


def test_footers_tell_of_every_type(tmp_path: Path) -> None:
    columns = {
        "flag": pa.array([True, None]),
        "n": pa.array([1, 2], pa.int16()),
        "u": pa.array([0, 2**63], pa.uint64()),
        "f": pa.array([0.5, float("nan")]),
        "d": pa.array([Decimal("1.20"), None]),
        "s": pa.array(["a", "ü"]),
        "b": pa.array([b"\x00", b"\xff"]),
        "day": pa.array([dt.date(2020, 1, 1), None]),
        "at": pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * 2, pa.timestamp("us", tz="UTC")),
        "local": pa.array([dt.datetime(2020, 1, 1)] * 2, pa.timestamp("us")),  # noqa: DTZ001 - it has no zone
        "list": pa.array([[1], None]),
        "in": pa.array([{"x": 1}, {"x": None}]),
        "odd.name": pa.array([1, 2]),
        "none": pa.array([None, None], pa.int32()),
        "word": pa.array(["x", "y"]).dictionary_encode(),
    }
    path = tmp_path / "all.parquet"
    pq.write_table(pa.table(columns), path)
    file = ListedFile("all", str(path), (), 0, 0)
    (look,) = Footers(pa.OSFile, WantedFacts()).of([file])
    local = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - the same
    assert look.columns == {
        "flag": ColumnStatistics(StatisticsType.BOOLEAN, 1, 1, True, True),  # noqa: FBT003 - bounds
        "n": ColumnStatistics(StatisticsType.WHOLE, 0, 2, 1, 2),
        "u": ColumnStatistics(StatisticsType.DECIMAL, 0, 2, Decimal(0), Decimal(2**63)),
        "f": ColumnStatistics(StatisticsType.FRACTION, 0, 2, 0.5, 0.5),
        "d": ColumnStatistics(StatisticsType.DECIMAL, 1, 1, Decimal("1.20"), Decimal("1.20")),
        "s": ColumnStatistics(StatisticsType.TEXT, 0, 2, "a", "ü"),
        "b": ColumnStatistics(StatisticsType.BINARY, 0, 2, b"\x00", b"\xff"),
        "day": ColumnStatistics(StatisticsType.DATE, 1, 1, dt.date(2020, 1, 1), dt.date(2020, 1, 1)),
        "at": ColumnStatistics(
            StatisticsType.TIMESTAMP, 0, 2, local.replace(tzinfo=dt.UTC), local.replace(tzinfo=dt.UTC)
        ),
        "local": ColumnStatistics(StatisticsType.LOCAL_TIMESTAMP, 0, 2, local, local),
        "in.x": ColumnStatistics(StatisticsType.WHOLE, 1, 1, 1, 1),
        "odd.name": ColumnStatistics(StatisticsType.WHOLE, 0, 2, 1, 2),
        "none": ColumnStatistics(StatisticsType.WHOLE, 2, 0),
        "word": ColumnStatistics(StatisticsType.TEXT, 0, 2, "x", "y"),
    }


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("integer", "long", "bigint"),
        ("long", "double", "double"),
        ("double", "string", "string"),
        ("date", "date", "date"),
    ],
)
def test_types_of_texts_grow_until_they_fit(one: str, other: str, common: str) -> None:
    parts = [T.StructType().add("v", kind).json() for kind in (one, other)]
    merged = schema_of(merged_schema(parts, text_fits_all=True))
    assert merged["v"].dataType.simpleString() == common


def test_types_of_columns_do_not_become_text() -> None:
    parts = [T.StructType().add("v", kind).json() for kind in ("double", "string")]
    with pytest.raises(InvalidInput, match='"v" has different types'):
        merged_schema(parts, text_fits_all=False)
