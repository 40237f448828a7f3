"""Records that cannot be removed: what comes after them is found all the same."""

from dataclasses import replace

import pytest

from calve.commit.checkpoints import CheckpointFiles
from calve.commit.journal import Journal
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.errors import TransientError
from calve.model.checkpoint import CheckpointIdentity
from calve.model.files import Content, FileTotals, Manifest
from calve.model.spec import NoEnvelope, OnForeignCommit, SinkSpec, TableName
from tests.simulation.contents import File
from tests.support.manual import ManualSink as Sink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())


def take(run: SinkRun, number: int) -> None:
    identity = CheckpointIdentity("q", number, run.state.end, str(number + 1))
    assert run.checkpoints.record(identity, CheckpointFiles(f"c{number}", (), FileTotals()), run.state.next_time(0))


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
        assert sink.run.commits.commit_next()
    take(sink.run, 10)
    records = Journal(sink.outer).newest()
    assert records
    assert records.entries[-1].committable
    assert records.entries[-1].committable.commit_id == "c10"


def test_what_older_runs_left_is_removed_once_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(SPEC)
    take(sink.run, 0)
    assert sink.run.commits.commit_next()
    outer = sink.outer
    successor = SinkRun(replace(SPEC), outer, Journal(outer), RunPorts(*[outer] * 5), lambda _: True)
    successor.claims.boot()
    take_over = {name for name in outer.list("rec") if name.startswith("rec/00000001")}
    successor.claims.claim()
    real = outer.delete

    def delete(name: str) -> None:
        if name in take_over:
            raise TransientError("the store does not answer")
        real(name)

    monkeypatch.setattr(outer, "delete", delete)
    take(successor, 1)
    assert successor.commits.commit_next()
    assert take_over <= set(outer.list("rec"))
    monkeypatch.setattr(outer, "delete", real)
    take(successor, 2)
    assert successor.commits.commit_next()
    assert not take_over & set(outer.list("rec"))


def test_starts_that_commit_nothing_leave_two_records_and_begin_while_the_store_removes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Sink(SPEC)
    outer = sink.outer

    def start() -> int:
        run = SinkRun(SPEC, outer, Journal(outer), RunPorts(*[outer] * 5), lambda _: True)
        run.claims.boot()
        return run.state.fence.epoch

    def refuse(name: str) -> None:
        raise TransientError(f"{name} could not be removed")

    assert [start() for _ in range(4)] == [2, 3, 4, 5]
    assert len(outer.list("runs")) == 2
    monkeypatch.setattr(outer, "delete", refuse)
    assert [start() for _ in range(3)] == [6, 7, 8]
    assert len(outer.list("runs")) == 5
    monkeypatch.undo()
    assert start() == 9
    assert len(outer.list("runs")) == 2


@pytest.mark.parametrize("windows", [None, 60_000])
@pytest.mark.parametrize("accepted", ["the snapshot", "all"])
def test_a_batch_that_was_written_for_an_empty_table_is_not_committed_beside_rows_of_others(
    windows: int | None, accepted: str
) -> None:
    spec = replace(SPEC, window_ms=windows)
    sink = Sink(spec)
    sink.world.files["m"] = File({1: 1})
    written = CheckpointFiles(
        "c", (Manifest("m", 1, 0, Content.DATA, 1, 1, ()),), FileTotals(1, data_files=1, data_rows=1)
    )
    assert not sink.run.state.needs_deletes
    if windows:
        sink.reads(0)
        sink.run.batches.flush()
        batch = sink.run.batches.due()
        assert batch
        sink.run.batches.close(batch, written)
    else:
        assert sink.run.checkpoints.record(CheckpointIdentity("q", 0, None, "1"), written, sink.run.state.next_time(0))
    sink.world.setup = replace(sink.world.setup, accept=True)
    sink.world.do_foreign()
    vouched = {"accepted_snapshot": sink.world.table.head}
    taken = {"on_foreign_commit": OnForeignCommit.ACCEPT} if accepted == "all" else vouched
    later = replace(spec, version=2, **taken)
    outer = sink.outer
    successor = SinkRun(later, outer, Journal(outer), RunPorts(*[outer] * 5), lambda _: True)
    successor.claims.boot()
    successor.claims.claim()
    assert successor.state.ready == 0
    assert successor.state.needs_deletes
    assert (successor.state.end, len(successor.state.staged)) == (("1", 1) if windows else (None, 0))
