"""Which keys of a checkpoint have more than one last row, by envelope; and what a sink does about them."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve.envelope.envelopes import Violations, key_violations
from calve.errors import KeyViolation
from calve.model.spec import Debezium, Envelope, NoEnvelope, Upsert
from tests.support.changes import Batches
from tests.support.readers import duckdb_rows

ORDERED = Upsert(order_by=("seq",), columns="id, v")
KAFKA = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"


def found(spark: SparkSession, envelope: Envelope, ddl: str, *rows: tuple[Any, ...]) -> Violations | None:
    return key_violations(spark.createDataFrame(list(rows), ddl), envelope, ["id"])


def test_two_different_inserts_of_a_key_are_a_violation_and_equal_ones_are_none(spark: SparkSession) -> None:
    rows = [(1, "a"), (1, "a"), (2, "b"), (2, None), (3, "c")]
    assert found(spark, NoEnvelope(), "id INT, v STRING", *rows) == Violations(1, "id = 2")


def test_changes_of_a_key_with_one_order_are_a_violation_and_with_several_none(spark: SparkSession) -> None:
    ddl = "id INT, v STRING, seq INT"
    assert found(spark, ORDERED, ddl, (1, "a", 1), (1, "b", 2), (2, "a", 1), (2, "a", 1)) is None
    assert found(spark, ORDERED, ddl, (1, "a", 7), (1, "b", 7), (1, "c", 8)) == Violations(1, "id = 1")


def test_a_delete_and_an_upsert_with_one_order_are_a_violation(spark: SparkSession) -> None:
    deleting = Upsert(order_by=("seq",), columns="id, v", delete_when="v is null")
    assert found(spark, deleting, "id INT, v STRING, seq INT", (1, None, 7), (1, "b", 7)) == Violations(1, "id = 1")


def test_offsets_tell_which_change_is_the_last(spark: SparkSession) -> None:
    envelope = Debezium(columns="id INT, v STRING")
    records = [f'{{"op": "c", "after": {{"id": 1, "v": "{v}"}}}}' for v in "ab"]
    rows = [('{"id": 1}', record, "t", 0, n) for n, record in enumerate(records)]
    assert found(spark, envelope, KAFKA, *rows) is None


@pytest.mark.parametrize("policy", ["warn", "halt"])
def test_a_sink_counts_violations_and_logs_some_or_halts(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    del spark
    lake = calve.connect(home=tmp_path)
    source = Batches([[(1, "a"), (2, "b")], [(2, "x"), (2, "y")]], "id INT, v STRING", NoEnvelope())
    sink = calve.sink(source, name="s", into=lake.table("x.t"), key=["id"]).options(on_key_violation=policy)
    with caplog.at_level(logging.WARNING, "calve"):
        query = sink.start()
        if policy == "halt":
            with pytest.raises(KeyViolation, match="conflicting rows for one key") as raised:
                query.await_termination(60)
            assert raised.value.detail == "1 in one checkpoint, including id = 2."
        else:
            assert query.await_termination(60)
    assert query.status().key_violations == 1
    assert "1 keys of sink s have different rows in one checkpoint: id = 2" in caplog.text
    rows = sorted(row["id"] for row in duckdb_rows(lake.open().load_table("x.t").metadata_location))
    assert rows == [1, 2]
