"""A sink that writes to a branch of its table."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve.model.spec import Upsert
from tests.support.changes import Batches
from tests.support.readers import duckdb_rows, spark_iceberg_rows

Row = tuple[int, str | None, int]
BATCHES: list[list[Row]] = [[(1, "a", 1), (2, "b", 2)], [(1, "c", 3), (3, "d", 4)], [(2, None, 5), (3, "e", 6)]]


@pytest.mark.parametrize("deletes", ["position", pytest.param("equality", marks=pytest.mark.soak)])
def test_changes_of_a_branch_are_those_of_the_branch_and_main_stays_empty(
    spark: SparkSession, tmp_path: Path, deletes: str
) -> None:
    lake = calve.connect(home=tmp_path)
    envelope = Upsert(order_by=("seq",), delete_when="v is null", columns="id, v")
    source = Batches(BATCHES, "id BIGINT, v STRING, seq BIGINT", envelope)
    sink = calve.sink(source, name="s", into=lake.table("x.t"), key=["id"]).options(branch="audit", deletes=deletes)
    query = sink.start()
    assert query.await_termination(60), query.status().cause
    table = lake.open().load_table("x.t")
    assert "main" not in table.metadata.refs
    head = table.metadata.refs["audit"].snapshot_id
    for read in (duckdb_rows, spark_iceberg_rows):
        found = sorted((row["id"], row["v"]) for row in read(table.metadata_location, snapshot_id=head))
        assert found == [(1, "c"), (3, "e")]
    rows = calve.read(spark, lake.table("x.t"), ref="audit").collect()
    assert sorted(tuple(row) for row in rows) == [(1, "c"), (3, "e")]
