"""Whole pipelines into a REST catalog with its files, its stage and its records in S3."""

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve.api.verify import verify
from calve.pipeline.lakes import connected_lake
from calve.reader.read import read
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.integration.servers.conftest import PASSWORD, USER
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows, spark_rest_rows
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.proxy import Proxy
from tests.support.servers.store import KEY, REGION, SECRET

ROWS, CHANGES, STEP = 400, 1_200, 400
EXPECTED = expected_orders(orders(rows=ROWS, changes=CHANGES), ROWS + CHANGES)


@pytest.fixture
def namespace() -> str:
    return new_namespace()


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


@pytest.fixture
def connected(pipelines: Pipelines, lakehouse: Lakehouse, door: Proxy) -> Pipelines:
    pipelines.apply(f"""
        CREATE CONNECTION aws TO AWS (
          ACCESS KEY ID = '{KEY}', SECRET ACCESS KEY = '{SECRET}', REGION = '{REGION}',
          ENDPOINT = '{lakehouse.store.uri}');
        CREATE CONNECTION lake TO ICEBERG CATALOG (
          TYPE = 'rest', URI = '{door.uri}', USER = '{USER}', PASSWORD = '{PASSWORD}');
        CREATE SOURCE orders
          FROM LOAD GENERATOR orders (ROWS = {ROWS}, UPDATES = {CHANGES}, MAX ROWS PER CHECKPOINT = {STEP});
    """)
    return pipelines


def sink(namespace: str, *options: str) -> str:
    given = ", ".join([f"STATE LOCATION = 's3://{BUCKET}/state/{namespace}'", *options])
    return f"""CREATE SINK s FROM orders TO ICEBERG CATALOG lake USING AWS CONNECTION aws
      NAMESPACE {namespace} TABLE orders WITH ({given})"""


def test_every_reader_sees_the_rows_of_a_sink_with_windows(
    connected: Pipelines, lakehouse: Lakehouse, spark: SparkSession, namespace: str
) -> None:
    (ended,) = connected.run(sink(namespace, "COMMIT INTERVAL = '2s'", "CHECKPOINT INTERVAL = '1s'"))
    assert ended.exit_code == 0, ended.cause
    lake = connected_lake(connected.home, "lake")
    table = lake.open().load_table(f"{namespace}.orders")
    assert table.metadata_location.startswith(f"s3://{BUCKET}/tables/{namespace}/orders/")
    assert rows_of(duckdb_rows(table.metadata_location, s3=lakehouse.duckdb)) == EXPECTED
    assert rows_of(spark_rest_rows(lakehouse.spark, f"{namespace}.orders")) == EXPECTED
    found = read(spark, lake.table(f"{namespace}.orders"))
    assert rows_of(found.toArrow().to_pylist()) == EXPECTED
    assert verify(connected.place, "s").none
    staged = [r for r in lakehouse.store.proxy.seen if f"/state/{namespace}/" in r.path and "/stage/" in r.path]
    assert {"PUT", "GET", "DELETE"} <= {request.method for request in staged}


def test_tasks_write_to_s3_and_sparks_own_writer_is_not_asked(
    connected: Pipelines, lakehouse: Lakehouse, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.write.batch.DRIVER_ROWS", 10)
    (ended,) = connected.run(sink(namespace))
    assert ended.exit_code == 0, ended.cause
    table = calve.connect(**lakehouse.properties).open().load_table(f"{namespace}.orders")
    assert rows_of(duckdb_rows(table.metadata_location, s3=lakehouse.duckdb)) == EXPECTED


def test_records_are_put_under_names_that_are_new(connected: Pipelines, lakehouse: Lakehouse, namespace: str) -> None:
    connected.run(sink(namespace))
    puts = [r for r in lakehouse.store.proxy.seen if r.method == "PUT"]
    entries = [r for r in puts if re.search(r"/rec/[^/]+/\d+$", r.path)]
    assert len(entries) == (ROWS + CHANGES) // STEP
    assert {r.header("If-None-Match") for r in entries} == {"*"}
    assert all(json.loads(r.body) for r in entries)


def test_secrets_are_nowhere_but_in_the_vault(
    connected: Pipelines,
    namespace: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr("calve.write.batch.DRIVER_ROWS", 10)  # tasks get the keys as well
    connected.run(sink(namespace))
    told = str(spark.sparkContext.getConf().getAll()) + repr(connected_lake(connected.home, "lake").table("a.b"))
    logs = list(tmp_path_factory.getbasetemp().glob("spark-home*/logs/*"))
    assert logs
    for file in [*logs, *connected.home.rglob("*")]:
        if file.is_file() and "secrets" not in file.parts:
            told += file.read_bytes().decode(errors="replace")
    for secret in (SECRET, PASSWORD):
        assert secret not in told
