"""Arrow schemas with field ids, and column metrics from Parquet footers. Used by writers, on executors as well.

Every file carries field ids on every level: readers resolve columns by id, and DuckDB fails without them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, StructType, TimestampType, TimestamptzType

from calve.model.change import ORDER
from calve.model.files import ColumnMetrics

_MODE_OF = "write.metadata.metrics.column."


def parse_schema(schema_json: str) -> Schema:
    """The schema of a `WriteTarget`."""
    return Schema.model_validate_json(schema_json)


def arrow_schema(schema: Schema) -> pa.Schema:
    """Arrow's form of a schema: columns in table order, field ids on every field, required fields non-null.

    A `ParquetWriter` made with it writes the ids.
    """
    return schema_to_pyarrow(schema, include_field_ids=True)


def key_schema(schema: Schema, key_ids: Sequence[int]) -> Schema:
    """The schema of a file of keys: the key columns in key order, with the table's ids, all required.

    Where changes are ordered across checkpoints, what orders them follows.
    """
    fields = [schema.find_field(field_id) for field_id in key_ids]
    required = [field.model_copy(update={"required": True}) for field in fields]
    return Schema(*required, *(f for f in schema.fields if f.name == ORDER), schema_id=schema.schema_id)


def order_ids(schema: Schema) -> tuple[int, ...]:
    """Fields that rows are ordered by across checkpoints, most significant first."""
    kept = next((f for f in schema.fields if f.name == ORDER), None)
    if kept is None:
        return ()
    fields = kept.field_type.fields if isinstance(kept.field_type, StructType) else (kept,)
    return tuple(f.field_id for f in fields)


def metrics_of(
    footer: pq.FileMetaData, schema: Schema, table_properties: Mapping[str, str]
) -> tuple[ColumnMetrics, tuple[int, ...]]:
    """Metrics of the columns of a file and the offsets of its row groups.

    `schema` is the one the file was written with (`key_schema` for a file of equality deletes); the table's properties
    `write.metadata.metrics.*` say which metrics are kept and where bounds are cut.
    """
    try:
        statistics = _statistics(footer, schema, dict(table_properties))
    except (OverflowError, ValueError):
        # Python's dates end with the year 9999, Spark's do not: such columns get counts and no bounds.
        without_bounds = {f"{_MODE_OF}{name}": "counts" for name in _columns_of_time(schema)}
        statistics = _statistics(footer, schema, {**table_properties, **without_bounds})
    metrics = ColumnMetrics(
        column_sizes=statistics["column_sizes"],
        value_counts=statistics["value_counts"],
        null_value_counts=statistics["null_value_counts"],
        nan_value_counts=statistics["nan_value_counts"],
        lower_bounds=statistics["lower_bounds"],
        upper_bounds=statistics["upper_bounds"],
    )
    return metrics, tuple(statistics["split_offsets"])


def _statistics(footer: pq.FileMetaData, schema: Schema, table_properties: dict[str, str]) -> dict[str, Any]:
    return data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, table_properties), parquet_path_to_id_mapping(schema)
    ).to_serialized_dict()


def _columns_of_time(schema: Schema) -> list[str]:
    times = (DateType, TimestampType, TimestamptzType)
    return [
        name
        for field_id in schema.field_ids
        if isinstance(schema.find_type(field_id), times) and (name := schema.find_column_name(field_id))
    ]
