"""A catalog in Hive's metastore."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.errors import TransientError
from calve.pipeline.lakes import connected_lake
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows
from tests.support.servers.hive import HiveMetastore
from tests.support.servers.java import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    server = HiveMetastore.prepared(tmp_path_factory.mktemp("hive"))
    yield server
    server.stop()


def connection(uri: str, warehouse: str) -> str:
    return f"CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'hive', URI = '{uri}', WAREHOUSE = '{warehouse}');"


def test_a_sink_into_a_catalog_in_a_metastore_goes_on_after_a_restart(
    hive: HiveMetastore, tmp_path: Path, spark: SparkSession
) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    (first,) = pipelines.run(f"""
        {connection(hive.uri, hive.warehouse)}
        CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100, UPDATES = 300, MAX ROWS PER CHECKPOINT = 100);
        CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders
    """)
    assert first.exit_code == 0, first.cause
    (again,) = pipelines.run()
    assert again.exit_code == 0, again.cause
    table = connected_lake(pipelines.home, "lake").open().load_table("shop.orders")
    assert rows_of(duckdb_rows(table.metadata_location)) == expected_orders(orders(rows=100, changes=300), 400)
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary]
    digests = [s["calve.offsets-digest"] for s in summaries if s.get("calve.commit-id")]
    assert len(set(digests)) == len(digests), "no batch is committed twice"


def test_a_metastore_that_is_not_there_says_so(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(TransientError) as raised:
        Pipelines(tmp_path / "home", spark).apply(connection(f"thrift://127.0.0.1:{free_port()}", f"file://{tmp_path}"))
    assert raised.value.hint.startswith("Nothing answers at that address")
