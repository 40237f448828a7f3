"""Equality deletes as a Flink job leaves them, and tables of calve, beside Spark with the Iceberg runtime."""

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, NestedField, StringType
from pyspark.sql import SparkSession

import calve
from tests.integration.read.tables import check, in_order, rows_of
from tests.integration.write.frames import frame_of
from tests.integration.write.test_read_back import NAME, Everything
from tests.integration.write.test_writers import EVERY_TYPE, FAST, rows_of_every_type
from tests.support.foreign import ForeignTable
from tests.support.readers import spark_iceberg_rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    NestedField(4, "day", DateType(), required=False),
    NestedField(5, "v", IntegerType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
REGIONS = ["eu", "us", None]
KEYS = [["id"], ["region", "v"], ["day", "id"], ["price"]]


def random_row(rng: random.Random, region: str | None) -> dict[str, Any]:
    return {
        "id": rng.choice([None, *range(30)]),
        "region": region,
        "price": rng.choice([None, Decimal(rng.randrange(8)) / 4]),
        "day": rng.choice([None, dt.date(2024, 1, 1) + dt.timedelta(rng.randrange(5))]),
        "v": rng.choice([None, *range(4)]),
    }


@pytest.mark.parametrize("seed", range(3))
def test_equality_deletes_read_as_the_runtime_does(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = ForeignTable(tmp_path, SCHEMA, BY_REGION)
    with table.table.update_spec() as update:
        update.remove_field("region")
    for _ in range(6):
        files = []
        for region in rng.sample(REGIONS, 2):
            rows = [random_row(rng, region) for _ in range(40)]
            files.append(table.data(rows, [region], spec_id=0, row_group_size=16))
            fields = rng.choice(KEYS)
            gone = [random_row(rng, region) for _ in range(2)]
            files.append(table.equality(fields, [{n: g[n] for n in fields} for g in gone], [region], spec_id=0))
        files.append(table.data([random_row(rng, rng.choice(REGIONS)) for _ in range(20)]))
        fields = rng.choice(KEYS)
        files.append(table.equality(fields, [{n: random_row(rng, "eu")[n] for n in fields}]))
        files.append(table.positions([(files[-2], rng.randrange(20)) for _ in range(3)]))
        table.commit(*files)
    wanted = spark_iceberg_rows(table.table.metadata_location)
    assert wanted
    check(spark, table.ref, wanted)
    assert calve.convert_deletes(table.ref) is not None
    assert in_order(spark_iceberg_rows(table.table.metadata_location)) == in_order(wanted), "by position as well"
    table.close()


@pytest.mark.parametrize("writer", FAST)
def test_a_table_of_calve_with_every_type_reads_as_the_runtime_does(
    spark: SparkSession, tmp_path: Path, writer: str
) -> None:
    rows = rows_of_every_type(300)
    batches = [frame_of(spark, EVERY_TYPE, rows[:100]), frame_of(spark, EVERY_TYPE, rows[100:])]
    table = Everything(tmp_path, batches[0])
    for number, frame in enumerate(batches):
        table.commit(number, frame, writer)
    ref = calve.connect(home=tmp_path).table(str(NAME))
    location = table.catalog.load_table(NAME.identifier).metadata_location
    found = calve.read(spark, ref)
    assert in_order(rows_of(found)) == in_order(spark_iceberg_rows(location))
    assert found.columns == table.columns
    table.catalog.close()


def test_a_frame_may_be_read_more_than_once_and_joined(spark: SparkSession, tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA)
    rng = random.Random(1)
    table.commit(table.data([{**random_row(rng, "eu"), "id": n} for n in range(100)]))
    table.commit(table.equality(["id"], [{"id": n} for n in range(0, 100, 2)]))
    frame = calve.read(spark, table.ref, columns=["id"])
    assert frame.count() == frame.count() == 50
    table.commit(table.equality(["id"], [{"id": 1}]))
    assert frame.count() == 50, "the snapshot was chosen before"
    assert calve.read(spark, table.ref).join(frame, "id").count() == 49
    assert len(frame.limit(3).collect()) == 3
    table.close()


def test_a_table_without_rows_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA)
    assert rows_of(calve.read(spark, table.ref)) == []
    assert rows_of(calve.read(spark, table.ref, where="id = 1")) == []
    assert calve.read(spark, table.ref).columns == ["id", "region", "price", "day", "v"]
    table.close()
