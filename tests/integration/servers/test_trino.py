"""Trino reads what sinks write: types, both kinds of deletes, partitions, through the REST catalog."""

import random
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession

import calve
from calve.api.engines import readable_table, recipe
from calve.definitions.workplace import workplace
from calve.model.engine import ReadingEngine
from calve.model.spec import NoEnvelope
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.integration.write.every_type import COLUMNS, random_rows
from tests.support.changes import Batches
from tests.support.readers import Rows, duckdb_rows
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.trino import Trino
from tests.unit.iceberg.sample import Sample

pytestmark = pytest.mark.slow
ORDERS = orders(rows=400, changes=1_200, per_checkpoint=400)
PARTITIONS = [(), ("bucket(4, id)",), ("customer", "truncate(2, status)"), ("day(updated_at)",)]


@pytest.mark.parametrize("deletes", ["position", "equality"])
@pytest.mark.parametrize("fields", PARTITIONS, ids=lambda fields: " ".join(fields) or "none")
def test_trino_sees_the_rows_that_are_left_after_deletes(
    deletes: str, fields: tuple[str, ...], lakehouse: Lakehouse, trino: Trino, spark: SparkSession, tmp_path: Path
) -> None:
    del spark  # the active session
    namespace = new_namespace()
    into = calve.connect(home=tmp_path, **lakehouse.properties).table(f"{namespace}.orders")
    sink = calve.sink(ORDERS, name="s", into=into, key=["id"]).options(deletes=deletes).partition_by(*fields)
    assert sink.start(state=f"s3://{BUCKET}/state/{namespace}").await_termination(120)
    assert rows_of(trino.table_rows(f"{namespace}.orders")) == expected_orders(ORDERS, 1_600)
    kinds = {row["content"] for row in trino.rows(f'SELECT DISTINCT content FROM iceberg.{namespace}."orders$files"')}
    assert kinds == {0, 1 if deletes == "position" else 2}, "there are deletes of that kind to be applied"


def test_trino_reads_every_flat_type(lakehouse: Lakehouse, trino: Trino, spark: SparkSession, tmp_path: Path) -> None:
    del spark  # the active session
    namespace, rows = new_namespace(), random_rows(random.Random(20261116), 300)
    source = Batches([rows[:200], rows[100:]], COLUMNS, NoEnvelope())
    lake = calve.connect(home=tmp_path, **lakehouse.properties)
    sink = calve.sink(source, name="s", into=lake.table(f"{namespace}.t"), key=["id"])
    assert sink.start(state=f"s3://{BUCKET}/state/{namespace}").await_termination(120)
    metadata = lake.open().load_table(f"{namespace}.t").metadata_location
    expected = in_order(duckdb_rows(metadata, s3=lakehouse.duckdb))
    assert [row["id"] for row in expected] == list(range(300))
    for seen, row in zip(in_order(trino.table_rows(f"{namespace}.t")), expected, strict=True):
        assert comparable(seen) == comparable(row)


def run_recipe(trino: Trino, text: str, secrets: Mapping[str, str]) -> Rows:
    """The answer to the last statement of a recipe, pasted with its secrets."""
    for name, secret in secrets.items():
        text = text.replace(f"<secret {name}>", secret)
    lines = text.splitlines()
    label = Path(lines[0].removeprefix("# ")).stem
    pairs = [line.split("=", 1) for line in lines if re.match(r"[a-z0-9.-]+=", line)]
    trino.create_catalog(label, dict(pairs))
    statements = [line.removesuffix(";") for line in lines if line.startswith(("CALL ", "CREATE ", "SELECT "))]
    return [trino.rows(statement) for statement in statements][-1]


def test_the_recipe_of_connect_info_reads_a_table_of_the_embedded_catalog(trino: Trino, tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.commit({1: "a", 2: "b"})
    sample.commit({1: "A"}, deletes=[1])
    text = recipe(readable_table(workplace(tmp_path, no_session, {}), "shop.orders", None), ReadingEngine.TRINO).text
    found = run_recipe(trino, text, {})
    assert sorted((row["id"], row["v"]) for row in found) == [(1, "A"), (2, "b")]
    sample.close()


def no_session() -> NoReturn:
    raise AssertionError("Spark is not needed here")


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: int(row["id"]))


def comparable(row: dict[str, Any]) -> list[tuple[str, str]]:
    """NaN is equal to NaN here, and 0.0 not to -0.0; zones have several names."""
    zoned = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
    return sorted((name, repr(value)) for name, value in zoned.items())
