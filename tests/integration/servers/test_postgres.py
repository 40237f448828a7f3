"""A SQL catalog in PostgreSQL, by user and password."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.catalog.connect import open_catalog
from calve.errors import TransientError
from calve.pipeline.lakes import connected_lake
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows
from tests.support.servers.postgres import PASSWORD, USER, Postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.await_answer()
    yield server
    server.stop()


def test_a_sink_into_a_catalog_in_postgresql(postgres: Postgres, tmp_path: Path, spark: SparkSession) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    (ended,) = pipelines.run(f"""
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'sql', URI = '{postgres.uri}', USER = '{USER}',
          PASSWORD = '{PASSWORD}', WAREHOUSE = 'file://{tmp_path}/warehouse');
        CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100, UPDATES = 300, MAX ROWS PER CHECKPOINT = 100);
        CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders
    """)
    assert ended.exit_code == 0, ended.cause
    table = connected_lake(pipelines.home, "lake").open().load_table("shop.orders")
    assert rows_of(duckdb_rows(table.metadata_location)) == expected_orders(orders(rows=100, changes=300), 400)
    told = [f.read_bytes() for f in pipelines.home.rglob("*") if f.is_file() and "secrets" not in f.parts]
    assert not any(PASSWORD.encode() in text for text in told)


def test_a_wrong_password_of_the_database_says_so_and_does_not_tell_it(postgres: Postgres, tmp_path: Path) -> None:
    uri = postgres.uri.replace("//", f"//{USER}:tantalum@")
    with pytest.raises(TransientError, match=f"connecting to the catalog at .*//{USER}@127.0.0.1") as raised:
        open_catalog({"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"})
    assert "password authentication failed" in str(raised.value)
    assert "tantalum" not in str(raised.value)
