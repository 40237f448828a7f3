"""Positions are valid in one snapshot only: what may happen between looking them up and committing them."""

from dataclasses import dataclass

import pytest

import calve
from calve import faults
from calve.errors import TransientError
from calve.lake import Lake, TableRef
from calve.model.spec import Upsert
from calve.pipeline.query import Query
from tests.faults.where import TABLE, Where, files_of
from tests.support.changes import Batches
from tests.support.compaction import compact
from tests.support.readers import datafusion_rows

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


pytestmark = pytest.mark.positions


@dataclass(frozen=True)
class Sink:
    """One sink into a table of its own."""

    ref: TableRef
    where: Where

    def start(self, key_index: str | None = None) -> Query:
        sink = calve.sink(SOURCE, name="s", into=self.ref, key=["id"])
        sink = sink.options(key_index=key_index, format_version=self.where.format_version)
        return sink.start(state=self.where.state)

    def compact(self) -> None:
        compact(self.ref, ["id"])

    def check(self) -> None:
        table = self.ref.lake.open().load_table(TABLE)
        seen = {
            "duckdb": self.where.rows(table.metadata_location),
            "spark": self.where.spark_rows(table.metadata_location),
            "pyiceberg": table.scan().to_arrow().to_pylist(),
        }
        if self.where.state is None:
            seen["datafusion"] = datafusion_rows(table.metadata_location)
        for reader, rows in seen.items():
            assert {row["id"]: row["value"] for row in rows} == WANTED, reader
            assert len(rows) == len(WANTED), reader
        left = [path for path in files_of(table) if "-keys-" in path]
        assert not left, "keys are removed once their batch is in the table"


@pytest.fixture
def sink(lake: Lake, where: Where) -> Sink:
    return Sink(lake.table(TABLE), where)


def test_a_compaction_between_look_up_and_commit_is_met_by_another_look_up(sink: Sink) -> None:
    points: list[str] = []

    def hook(point: str) -> None:
        points.append(point)
        if (point, points.count(point)) in {("resolve.after", 2), ("commit.before", 5)}:
            sink.compact()

    faults.install(hook)
    assert sink.start().await_termination(120)
    assert points.count("resolve.after") == 5, "three batches with deletes, one of them three times"
    sink.check()


@pytest.mark.parametrize("key_index", ["off", "on"])
def test_pending_batches_of_the_same_keys_go_out_in_order_after_a_compaction(sink: Sink, key_index: str) -> None:
    state = {"down": False, "recorded": 0}

    def hook(point: str) -> None:
        state["recorded"] += point == "record.after"
        if point == "commit.after":
            state["down"] = state["recorded"] < 4  # the catalog is gone as soon as the first batch is in
        if point == "load" and state["recorded"] >= 4 and state["down"]:
            state["down"] = False
            sink.compact()
        if point == "commit.before" and state["down"]:
            raise TransientError("the catalog is down")

    faults.install(hook)
    assert sink.start(key_index).await_termination(120)
    sink.check()


def test_a_lost_answer_is_not_looked_up_again_on_the_same_snapshot(sink: Sink) -> None:
    points: list[str] = []

    def hook(point: str) -> None:
        points.append(point)
        if point == "commit.before" and points.count(point) in {3, 4}:
            raise TransientError("the request was never sent")

    faults.install(hook)
    assert sink.start().await_termination(120)
    assert points.count("resolve.after") == 3
    sink.check()
