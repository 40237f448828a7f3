import io
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as spark

from calve.iceberg.metrics import arrow_schema, key_schema, metrics_of, parse_schema
from calve.iceberg.schema import iceberg_schema
from calve.model.files import ColumnMetrics

COLUMNS = spark.StructType(
    [
        spark.StructField("k", spark.LongType()),
        spark.StructField("text", spark.StringType()),
        spark.StructField("list", spark.ArrayType(spark.IntegerType())),
        spark.StructField("day", spark.DateType()),
        spark.StructField("price", spark.DecimalType(9, 2)),
    ]
)
SCHEMA = iceberg_schema(COLUMNS, ["k"])


def metrics(table: pa.Table, properties: dict[str, str] | None = None) -> tuple[ColumnMetrics, tuple[int, ...]]:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=2)
    return metrics_of(pq.read_metadata(buffer), SCHEMA, properties or {})


def rows(*values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema=arrow_schema(SCHEMA))


def test_counts_nulls_and_bounds_are_by_field_id() -> None:
    found, offsets = metrics(rows({"k": 3, "text": "b" * 20}, {"k": -1, "text": None}, {"k": 2, "text": "a"}))
    assert found.value_counts[1] == found.value_counts[2] == 3
    assert (found.null_value_counts[1], found.null_value_counts[2]) == (0, 1)
    assert found.lower_bounds[1] == (-1).to_bytes(8, "little", signed=True)
    assert found.upper_bounds[1] == (3).to_bytes(8, "little")
    assert (found.lower_bounds[2], found.upper_bounds[2]) == (b"a", b"b" * 15 + b"c")
    assert len(offsets) == 2
    assert offsets[0] == 4


def test_the_table_decides_which_metrics_are_kept() -> None:
    found, _ = metrics(rows({"k": 1, "text": "a"}), {"write.metadata.metrics.default": "none"})
    assert (found.value_counts, found.lower_bounds) == ({}, {})


def test_days_beyond_pythons_calendar_have_counts_and_no_bounds() -> None:
    table = rows({"k": 1, "day": date(2020, 1, 1)}, {"k": 2})
    far = pa.array([4_000_000, None], pa.int32()).cast(pa.date32())
    found, _ = metrics(table.set_column(3, table.schema.field(3), far))
    day = SCHEMA.find_field("day").field_id
    assert (found.value_counts[day], found.null_value_counts[day]) == (2, 1)
    assert day not in found.lower_bounds
    assert 1 in found.lower_bounds


def test_a_file_of_keys_has_the_key_columns_with_their_ids_in_key_order() -> None:
    schema = iceberg_schema(COLUMNS, ["text", "k"])
    keys = key_schema(parse_schema(schema.model_dump_json()), schema.identifier_field_ids)
    assert [(f.name, f.field_id, f.required) for f in keys.fields] == [("text", 2, True), ("k", 1, True)]
