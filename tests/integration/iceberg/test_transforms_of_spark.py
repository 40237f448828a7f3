"""Partition values are those of Spark with the Iceberg runtime, on random values of every type."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IcebergType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.iceberg.files.transforms import transformed
from calve.iceberg.schema.creation import iceberg_schema
from tests.integration.write.every_type import COLUMNS, random_rows
from tests.support.readers import spark_iceberg_sql

CALLS = {
    "bucket[7]": "bucket(7, {})",
    "bucket[2147483647]": "bucket(2147483647, {})",
    "truncate[3]": "truncate(3, {})",
    "truncate[1000]": "truncate(1000, {})",
    "year": "years({})",
    "month": "months({})",
    "day": "days({})",
    "hour": "hours({})",
}
EPOCH = dt.date(1970, 1, 1)


@pytest.fixture
def values(spark: SparkSession, tmp_path: Path) -> tuple[str, pa.Table, dict[str, IcebergType]]:
    frame = spark.createDataFrame(random_rows(random.Random(11), 400), COLUMNS)
    schema = iceberg_schema(frame.schema, ["id"])
    table = frame.withColumns({name: F.col(name).cast("int") for name in ("tiny", "small")}).toArrow()  # as in a table
    path = str(tmp_path / "values.parquet")
    pq.write_table(table, path)
    return path, table, {field.name: field.field_type for field in schema.fields}


def test_every_transform_gives_what_spark_gives(values: tuple[str, pa.Table, dict[str, IcebergType]]) -> None:
    path, table, kinds = values
    wanted, calls = {}, []
    for text, call in CALLS.items():
        transform = parse_transform(text)
        for name, kind in kinds.items():
            if transform.can_transform(kind):
                label = f"{text} of {name}"
                wanted[label] = transformed(table[name].combine_chunks(), kind, transform).to_pylist()
                calls.append(f"scratch.system.{call.format(f'`{name}`')} AS `{label}`")
    rows = spark_iceberg_sql(f"SELECT id, {', '.join(calls)} FROM parquet.`{path}` ORDER BY id")
    assert len(wanted) > 50
    for label, expected in wanted.items():
        assert [_plain(row[label]) for row in rows] == expected, label


def _plain(value: Any) -> Any:
    """Spark shows days as dates."""
    return (value - EPOCH).days if isinstance(value, dt.date) else value


def test_days_are_shown_as_dates_and_kept_as_numbers() -> None:
    assert _plain(EPOCH - dt.timedelta(1)) == -1
    assert parse_transform("day").result_type(DateType()) == DateType()
