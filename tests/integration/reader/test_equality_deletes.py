"""Equality deletes as a Flink job leaves them, and tables of calve, beside Spark with the Iceberg runtime."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from tests.integration.reader.tables import check, in_order, rows_of
from tests.integration.write.frames import frame_of
from tests.integration.write.test_read_back import NAME, Everything
from tests.integration.write.test_writers import EVERY_TYPE, FAST, rows_of_every_type
from tests.support.combinations import seeds
from tests.support.foreign import ForeignTable
from tests.support.readers import spark_iceberg_rows
from tests.support.regions import SCHEMA, random_commit, random_row, table_of_regions


@seeds(3)
def test_equality_deletes_read_as_the_runtime_does(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = table_of_regions(tmp_path)
    for _ in range(6):
        random_commit(table, rng)
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
