from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import InvalidInput
from calve.metastore.statistics import (
    Bound,
    ColumnStatistics,
    Statistic,
    StatisticKind,
    StatisticsType,
    merge_columns,
    merge_statistics,
)

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (StatisticsType.BOOLEAN, False, True),
        (StatisticsType.WHOLE, -(2**63), 2**63 - 1),
        (StatisticsType.FRACTION, float("-inf"), 0.1),
        (StatisticsType.DECIMAL, Decimal("-1.10"), Decimal("12345678901234567890.5")),
        (StatisticsType.TEXT, "", "ß'\"\n"),
        (StatisticsType.BINARY, b"", b"\xff\x00"),
        (StatisticsType.DATE, date(1, 1, 1), date(9999, 12, 31)),
        (StatisticsType.TIMESTAMP, NOON, NOON + timedelta(microseconds=1)),
        (StatisticsType.LOCAL_TIMESTAMP, datetime(2024, 5, 1), datetime(2024, 5, 2)),  # noqa: DTZ001 - without a zone
    ],
)
def test_bounds_of_every_type_survive_as_text(kind: StatisticsType, low: Bound, high: Bound) -> None:
    written = ColumnStatistics(kind, nulls=0, values=2, least=low, greatest=high)
    read = ColumnStatistics.from_text(written.to_text())
    assert read == written
    assert type(read.least) is type(low)


def test_bounds_of_another_type_are_refused() -> None:
    for kind, bound in (
        (StatisticsType.WHOLE, "1"),
        (StatisticsType.WHOLE, True),
        (StatisticsType.FRACTION, float("nan")),
        (StatisticsType.TIMESTAMP, datetime(2024, 5, 1)),  # noqa: DTZ001 - without a zone
        (StatisticsType.LOCAL_TIMESTAMP, NOON),
        (StatisticsType.DATE, NOON),
        (StatisticsType.OTHER, 1),
    ):
        with pytest.raises(InvalidInput, match="is not a valid bound for a column of type"):
            ColumnStatistics(kind, least=bound)


def whole(values: list[int | None]) -> ColumnStatistics:
    there = [value for value in values if value is not None]
    return ColumnStatistics(
        StatisticsType.WHOLE,
        nulls=len(values) - len(there),
        values=len(there),
        least=min(there, default=None),
        greatest=max(there, default=None),
    )


@given(st.lists(st.lists(st.none() | st.integers(-9, 9), max_size=4), min_size=1, max_size=5))
def test_merged_statistics_are_those_of_all_values(parts: list[list[int | None]]) -> None:
    merged = merge_columns([{"n": whole(part)} for part in parts])
    assert merged == {"n": whole([value for part in parts for value in part])}


def test_what_one_part_does_not_know_the_whole_does_not_know() -> None:
    known, unknown = whole([1, 2]), ColumnStatistics(StatisticsType.WHOLE)
    merged = known.merged(unknown)
    assert merged == ColumnStatistics(StatisticsType.WHOLE)
    assert merge_columns([{"a": known, "b": known}, {"a": known}]) == {"a": whole([1, 2, 1, 2])}
    assert merge_columns([]) == {}


def test_numbers_merge_into_the_wider_type_and_others_into_none() -> None:
    fraction = ColumnStatistics(StatisticsType.FRACTION, nulls=0, values=1, least=0.5, greatest=0.5)
    merged = whole([1, 2]).merged(fraction)
    assert (merged.type, merged.least, merged.greatest) == (StatisticsType.FRACTION, 0.5, 2.0)
    decimal = ColumnStatistics(StatisticsType.DECIMAL, nulls=0, values=1, least=Decimal(3), greatest=Decimal(3))
    assert whole([1]).merged(decimal).greatest == Decimal(3)
    assert whole([]).merged(decimal).least == Decimal(3)
    text = ColumnStatistics(StatisticsType.TEXT, nulls=1, values=1, least="a", greatest="a")
    assert whole([1]).merged(text) == ColumnStatistics(StatisticsType.OTHER, nulls=1, values=2)


def test_statistics_of_units_add_up_or_agree() -> None:
    def of(rows: int, level: str, *, exact: bool = True) -> list[Statistic]:
        return [Statistic(StatisticKind.ROWS, rows, exact), Statistic(StatisticKind.LEVEL, level)]

    assert merge_statistics([of(1, "file"), of(2, "file")]) == tuple(of(3, "file"))
    mixed: Any = merge_statistics([of(1, "file"), of(2, "row_group", exact=False)])
    assert mixed == (Statistic(StatisticKind.ROWS, 3, exact=False),)
    assert merge_statistics([of(1, "file"), []]) == ()
    assert Statistic.from_text(mixed[0].to_text()) == mixed[0]
    assert NOON.astimezone(UTC) == NOON
