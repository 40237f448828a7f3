"""Records that cannot be removed: what comes after them is found all the same."""

from dataclasses import replace

import pytest

from calve.commit.journal import Journal
from calve.commit.run import Outside, SinkRun, Written
from calve.errors import TransientError
from calve.model.checkpoint import CheckpointIdentity
from calve.model.files import Totals
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from tests.support.manual import ManualSink as Sink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())


def take(run: SinkRun, number: int) -> None:
    identity = CheckpointIdentity("q", number, run.end, str(number + 1))
    assert run.record(identity, Written(f"c{number}", (), Totals()), run.next_time(0))


def test_a_record_that_was_not_removed_hides_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(SPEC)
    real, refused = sink.outer.delete, {"now": False}

    def delete(name: str) -> None:
        if refused["now"] and name.startswith("rec/"):
            raise TransientError("the store does not answer")
        real(name)

    monkeypatch.setattr(sink.outer, "delete", delete)
    for number in range(10):
        refused["now"] = number == 5
        take(sink.run, number)
        assert sink.run.commit_next()
    take(sink.run, 10)
    records = Journal(sink.outer).newest()
    assert records
    assert records.entries[-1].committable
    assert records.entries[-1].committable.commit_id == "c10"


def test_what_older_runs_left_is_removed_once_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(SPEC)
    take(sink.run, 0)
    assert sink.run.commit_next()
    outer = sink.outer
    successor = SinkRun(replace(SPEC), outer, Journal(outer), Outside(*[outer] * 5), lambda _: True)
    successor.boot()
    take_over = {name for name in outer.list("rec") if name.startswith("rec/00000001")}
    successor.claim()
    real = outer.delete

    def delete(name: str) -> None:
        if name in take_over:
            raise TransientError("the store does not answer")
        real(name)

    monkeypatch.setattr(outer, "delete", delete)
    take(successor, 1)
    assert successor.commit_next()
    assert take_over <= set(outer.list("rec"))
    monkeypatch.setattr(outer, "delete", real)
    take(successor, 2)
    assert successor.commit_next()
    assert not take_over & set(outer.list("rec"))
