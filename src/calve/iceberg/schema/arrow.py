"""Arrow schemas with field ids, and column metrics from Parquet footers. Writers use it, also on executors.

Every file carries field ids at every level: readers resolve columns by id, and DuckDB fails without them.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from calve.model.change import ORDER
from calve.model.files import ColumnMetrics

_MODES = ("write.metadata.metrics.default", "write.metadata.metrics.column.")
_COUNTS = MetricsMode(MetricModeTypes.COUNTS)
_BOUNDED = frozenset({MetricModeTypes.TRUNCATE, MetricModeTypes.FULL})
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000


def parse_schema(schema_json: str) -> Schema:
    """Parse the schema of a `WriteTarget`."""
    return Schema.model_validate_json(schema_json)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema: columns in table order, field ids on every field, required fields non-null.

    A `ParquetWriter` that uses it writes the ids.
    """
    return schema_to_pyarrow(schema, include_field_ids=True)


def key_schema(schema: Schema, key_ids: Sequence[int]) -> Schema:
    """The schema of a key file: the key columns in key order, with the table's ids, all required.

    If changes are ordered across checkpoints, the column that orders them follows.
    """
    fields = [schema.find_field(field_id) for field_id in key_ids]
    required = [field.model_copy(update={"required": True}) for field in fields]
    return Schema(*required, *(f for f in schema.fields if f.name == ORDER), schema_id=schema.schema_id)


def order_ids(schema: Schema) -> tuple[int, ...]:
    """The fields that order rows across checkpoints, most significant first."""
    kept = next((f for f in schema.fields if f.name == ORDER), None)
    if kept is None:
        return ()
    fields = kept.field_type.fields if isinstance(kept.field_type, StructType) else (kept,)
    return tuple(f.field_id for f in fields)


@dataclass(frozen=True)
class MetricsPlan:
    """Which metrics files of one schema have. Made once for many files: that takes longer than to read a footer."""

    _ids: dict[str, int]
    """Of the columns, by their paths in the files."""
    _collected: dict[int, StatisticsCollector]

    @classmethod
    def of(cls, schema: Schema, table_properties: Mapping[str, str]) -> Self:
        """The plan for files that are written with a schema (`key_schema` for files of equality deletes).

        The table properties `write.metadata.metrics.*` decide which metrics are kept and where bounds are truncated.
        """
        modes = {name: value for name, value in table_properties.items() if not _is_invalid_mode(name, value)}
        return cls(parquet_path_to_id_mapping(schema), compute_statistics_plan(schema, modes))

    def metrics_of(self, footer: pq.FileMetaData) -> tuple[ColumnMetrics, tuple[int, ...]]:
        """The column metrics of a file and the offsets of its row groups.

        A column has bounds only if they cover every value, because readers skip files by them.
        """
        unbounded = _without_bounds(footer, self._ids, self._collected)
        counted = {field_id: replace(self._collected[field_id], mode=_COUNTS) for field_id in unbounded}
        statistics = data_file_statistics_from_parquet_metadata(footer, {**self._collected, **counted}, self._ids)
        bounds = statistics.column_aggregates
        metrics = ColumnMetrics(
            column_sizes=statistics.column_sizes,
            value_counts=statistics.value_counts,
            null_value_counts=statistics.null_value_counts,
            nan_value_counts=statistics.nan_value_counts,
            lower_bounds={i: bound for i, b in bounds.items() if (bound := b.min_as_bytes()) is not None},
            upper_bounds={i: bound for i, b in bounds.items() if (bound := _upper_bound(b)) is not None},
        )
        return metrics, tuple(statistics.split_offsets)


def metrics_of(
    footer: pq.FileMetaData, schema: Schema, table_properties: Mapping[str, str]
) -> tuple[ColumnMetrics, tuple[int, ...]]:
    """The metrics of a single file (see `MetricsPlan`)."""
    return MetricsPlan.of(schema, table_properties).metrics_of(footer)


def _is_invalid_mode(name: str, value: str) -> bool:
    """Whether a property sets an unknown metrics mode. It is ignored, as Iceberg's own writers do."""
    if not name.startswith(_MODES):
        return False
    try:
        match_metrics_mode(value)
    except ValueError:
        return True
    return False


def _without_bounds(
    footer: pq.FileMetaData, paths: Mapping[str, int], plan: Mapping[int, StatisticsCollector]
) -> set[int]:
    """Columns whose bounds the footer lacks for at least one row group.

    Writers omit the bounds of values longer than 4 kB, and some writers those of NaN. Python's dates end with the year
    9999, Spark's do not.
    """
    found = set()
    for number in range(footer.num_columns):
        field_id = paths[footer.schema.column(number).path]
        if plan[field_id].mode.type in _BOUNDED and not all(
            _has_bounds(footer.row_group(group).column(number).statistics) for group in range(footer.num_row_groups)
        ):
            found.add(field_id)
    return found


def _has_bounds(statistics: pq.Statistics | None) -> bool:
    if statistics is None:
        return False
    if not statistics.has_min_max:
        return bool(statistics.num_values == 0)
    try:
        return (statistics.min, statistics.max) != (None, None)
    except (OverflowError, ValueError):
        return False


def _upper_bound(found: StatsAggregator) -> bytes | None:
    if isinstance(found.current_max, str) and found.trunc_length is not None:
        text = text_above(found.current_max, found.trunc_length)
        return None if text is None else text.encode()
    return found.max_as_bytes()


def text_above(text: str, length: int) -> str | None:
    """An upper bound of a text with at most `length` characters; None if there is none.

    The text is truncated, and its last code point that has a successor is replaced by that successor.
    """
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        code_point = ord(text[end - 1])
        if code_point < sys.maxunicode:
            following = _AFTER_SURROGATES if code_point + 1 == _FIRST_SURROGATE else code_point + 1
            return text[: end - 1] + chr(following)
    return None
