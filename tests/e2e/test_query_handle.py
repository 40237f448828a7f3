"""The handle of a running sink: a context manager with a readable repr."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.errors import TerminalError, TransientError
from calve.reader.resources import MemoryBudget


def test_leaving_the_context_stops_the_sink_and_the_handle_says_what_happened(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.version
    lake = calve.connect(home=tmp_path)
    changes = calve.orders(rows=20, changes=0, per_checkpoint=20)
    with calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start() as query:
        query.await_caught_up(60)
        assert "shop.orders" in repr(query)
        assert "1" in repr(query)
        assert query.status().last_commit is not None
    assert not query.active
    assert repr(query).startswith("<Query orders: ")
    assert "<td>shop.orders</td>" in query._repr_html_()
    again = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"])
    with pytest.raises(ZeroDivisionError), again.start() as other:
        _ = 1 // 0
    assert not other.active


def test_a_sink_that_failed_holds_no_memory_of_others_although_its_handle_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.version
    budget, taken = MemoryBudget(1 << 30), list[int]()

    def fail(point: str) -> None:
        if point == "resolve.before":
            taken.append(budget.taken)
            if budget.taken:
                raise TerminalError("the table is broken")

    monkeypatch.setattr("calve.pipeline.start.process_memory", lambda: budget)
    monkeypatch.setattr(faults, "_hook", fail)
    lake = calve.connect(home=tmp_path)
    changes = calve.orders(rows=20, changes=80, per_checkpoint=20)
    sink = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"])
    query = sink.start()
    with pytest.raises(TerminalError, match="the table is broken") as caught:
        query.await_termination(60)
    assert taken[-1] > 0
    assert caught.value is query.failure
    assert budget.taken == 0
    monkeypatch.setattr(faults, "_hook", None)
    with sink.start() as again:
        again.await_caught_up(60)
        assert budget.taken > 0
    assert budget.taken == 0


def test_waiting_for_a_streaming_query_ends_when_time_runs_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself waits without a limit."""
    reached, go_on = threading.Event(), threading.Event()

    def wait_there(point: str) -> None:
        if point == "record.before":
            reached.set()
            go_on.wait(60)

    source = tmp_path / "in"
    source.mkdir()
    (source / "1.json").write_text('{"id": 1}\n{"id": 2}\n')
    monkeypatch.setattr(faults, "_hook", wait_there)
    lake = calve.connect(home=tmp_path / "home")
    changes = spark.readStream.schema("id BIGINT").json(str(source))
    with calve.sink(changes, name="numbers", into=lake.table("shop.numbers"), key=["id"]).start() as query:
        assert reached.wait(60)
        with pytest.raises(TransientError, match="did not catch up in time"):
            query.await_caught_up(0.2)
        assert not go_on.is_set(), "the batch is still being written"
        go_on.set()
        query.await_caught_up(60)
        assert query.status().last_commit is not None
