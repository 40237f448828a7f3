"""Positions hold in one snapshot only: whatever comes between looking them up and committing them."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.errors import TransientError
from calve.model.spec import Upsert
from calve.runtime.lake import Lake, TableRef
from calve.runtime.query import Query
from tests.support.changes import Batches
from tests.support.compaction import compact
from tests.support.readers import datafusion_rows, duckdb_rows, spark_iceberg_rows

UPSERT = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, value")


def batches(*rows: list[tuple[int, str | None]]) -> Batches:
    """Keys with values; without a value the key is deleted."""
    numbered = [
        [(key, value, "u" if value else "d", 100 * at + n) for n, (key, value) in enumerate(batch)]
        for at, batch in enumerate(rows)
    ]
    return Batches(numbered, "id BIGINT, value STRING, op STRING, seq BIGINT", UPSERT)


SOURCE = batches(
    [(n, "first") for n in range(20)],
    [(1, "a"), (2, "a"), (3, None), (30, "a")],
    [(1, "b"), (2, None), (3, "b"), (30, "b")],
    [(1, "c"), (2, "c"), (4, None), (30, None)],
)
WANTED = dict.fromkeys(range(20), "first") | {1: "c", 2: "c", 3: "b"}
del WANTED[4]


@pytest.fixture
def ref(spark: SparkSession, tmp_path: Path) -> TableRef:
    del spark  # the active session
    lake: Lake = calve.connect(home=str(tmp_path / "home"))
    return lake.table("x.t")


def start(ref: TableRef, **options: Any) -> Query:
    return calve.sink(SOURCE, name="s", into=ref, key=["id"]).options(**options).start()


def check(ref: TableRef) -> None:
    table = ref.lake.open().load_table(ref.name.identifier)
    for reader in (duckdb_rows, spark_iceberg_rows, datafusion_rows):
        rows = reader(table.metadata_location)
        assert {row["id"]: row["value"] for row in rows} == WANTED
        assert len(rows) == len(WANTED)
    rows = table.scan().to_arrow().to_pylist()
    assert {row["id"]: row["value"] for row in rows} == WANTED, "pyiceberg reads it as well"
    left = [path.name for path in (ref.lake.home / "warehouse").rglob("*-keys-*")]
    assert not left, "keys are removed once their batch is in the table"


def test_a_compaction_between_look_up_and_commit_is_met_by_another_look_up(ref: TableRef) -> None:
    points: list[str] = []

    def hook(point: str) -> None:
        points.append(point)
        if (point, points.count(point)) in {("resolve.after", 2), ("commit.before", 5)}:
            compact(ref, ["id"])

    faults.install(hook)
    assert start(ref).await_termination(120)
    assert points.count("resolve.after") == 5, "three batches with deletes, one of them three times"
    check(ref)


@pytest.mark.parametrize("key_index", ["off", "on"])
def test_pending_batches_of_the_same_keys_go_out_in_order_after_a_compaction(ref: TableRef, key_index: str) -> None:
    state = {"down": False, "recorded": 0}

    def hook(point: str) -> None:
        state["recorded"] += point == "record.after"
        if point == "commit.after":
            state["down"] = state["recorded"] < 4  # the catalog is gone as soon as the first batch is in
        if point == "load" and state["recorded"] >= 4 and state["down"]:
            state["down"] = False
            compact(ref, ["id"])
        if point == "commit.before" and state["down"]:
            raise TransientError("the catalog is down")

    faults.install(hook)
    assert start(ref, key_index=key_index).await_termination(120)
    check(ref)


def test_a_lost_answer_is_not_looked_up_again_on_the_same_snapshot(ref: TableRef) -> None:
    points: list[str] = []

    def hook(point: str) -> None:
        points.append(point)
        if point == "commit.before" and points.count(point) in {3, 4}:
            raise TransientError("the request was never sent")

    faults.install(hook)
    assert start(ref).await_termination(120)
    assert points.count("resolve.after") == 3
    check(ref)
