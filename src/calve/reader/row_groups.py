"""Skips row groups of a file that cannot hold a matching row, by the statistics in its footer.

Missing statistics, and those of types without a plain order (floats have NaN), exclude nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calve.model.scan import AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition, comparable


class GroupTest:
    """Tests the row groups of one file. `columns` maps the table's column names to the file's."""

    def __init__(self, parquet: pq.ParquetFile, columns: Mapping[str, str], condition: Condition) -> None:
        self._metadata = parquet.metadata
        self._condition = condition
        leaves = {parquet.schema.column(i).path: i for i in range(len(parquet.schema))}
        self._leaves = {
            name: leaves[source]
            for name, source in columns.items()
            if source in leaves and _is_ordered(parquet.schema_arrow.field(source).type)
        }

    def may_match(self, group: int) -> bool:
        """False if no row of the group can match the condition."""
        return self._may(self._condition, self._metadata.row_group(group))

    def _may(self, condition: Condition, group: pq.RowGroupMetaData) -> bool:
        match condition:
            case AllOf(parts):
                return all(self._may(part, group) for part in parts)
            case AnyOf(parts):
                return not parts or any(self._may(part, group) for part in parts)
            case ColumnComparison(column, operator, value):
                leaf = self._leaves.get(column)
                statistics = None if leaf is None else group.column(leaf).statistics
                return statistics is None or _may_hold(statistics, operator, value)


class GroupBounds:
    """The bounds of columns in the row groups of one file. `columns` are the file's names."""

    def __init__(self, parquet: pq.ParquetFile, columns: Sequence[str]) -> None:
        self._metadata = parquet.metadata
        leaves = {parquet.schema.column(i).path: i for i in range(len(parquet.schema))}
        self._leaves = [
            leaves[name] if name in leaves and _is_ordered(parquet.schema_arrow.field(name).type) else None
            for name in columns
        ]

    def of(self, group: int) -> list[tuple[Any, Any] | None]:
        """The bounds of each column; None if unknown. Dates and timestamps are integers, as in conditions."""
        return [
            None if leaf is None else _ends(self._metadata.row_group(group).column(leaf).statistics)
            for leaf in self._leaves
        ]


def _ends(statistics: Any) -> tuple[Any, Any] | None:
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        return comparable(statistics.min), comparable(statistics.max)
    except (OverflowError, TypeError, ValueError):
        return None  # a year outside of Python's range


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal(kind)
        or (pa.types.is_timestamp(kind) and kind.unit in {"ms", "us"})
    )


def _may_hold(statistics: Any, operator: ComparisonOperator, value: Any) -> bool:
    if operator is ComparisonOperator.IS_NULL:
        return not statistics.has_null_count or statistics.null_count > 0
    if operator is ComparisonOperator.NOT_NULL or not statistics.has_min_max:
        return True
    try:
        low, high = comparable(statistics.min), comparable(statistics.max)
        return _in_range(low, high, operator, value)
    except (OverflowError, TypeError, ValueError):
        return True  # a year outside of Python's range, or a value of another type


def _in_range(low: Any, high: Any, operator: ComparisonOperator, value: Any) -> bool:
    match operator:
        case ComparisonOperator.EQUAL:
            return bool(low <= value <= high)
        case ComparisonOperator.LESS:
            return bool(low < value)
        case ComparisonOperator.LESS_OR_EQUAL:
            return bool(low <= value)
        case ComparisonOperator.GREATER:
            return bool(high > value)
        case ComparisonOperator.GREATER_OR_EQUAL:
            return bool(high >= value)
        case ComparisonOperator.IN:
            return any(low <= one <= high for one in value)
        case ComparisonOperator.STARTS_WITH:
            return bool(low[: len(value)] <= value <= high[: len(value)])
        case _:
            return True
