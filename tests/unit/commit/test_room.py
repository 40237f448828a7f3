"""Limits of what waits, reached: reading waits only for what goes away without it."""

from dataclasses import replace

import pytest

from calve.commit.checkpoints import FULL_SECONDS, CheckpointFiles
from calve.errors import TerminalError
from calve.model.files import FileTotals
from calve.model.spec import LateRows, NoEnvelope, RowTimes, SinkSpec, TableName
from tests.support.manual import ManualSink as Sink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())
CLOCK = replace(SPEC, window_ms=3_600_000)
TIMED = replace(SPEC, times=RowTimes(LateRows.ERROR, by_progress=True))


def test_batches_that_wait_for_the_catalog_stop_reading_at_their_limit_until_it_is_back() -> None:
    sink = Sink(replace(TIMED, max_pending_batches=1))
    sink.reads(0, time=5, promised=10)
    batch = sink.run.batches.due()
    assert batch
    sink.run.batches.close(batch, CheckpointFiles("c", (), FileTotals()))
    sink.catalog_is_there = False
    back = 50

    def meanwhile() -> None:
        sink.catalog_is_there = sink.outer.waits >= back
        sink.commits()

    sink.outer.meanwhile = meanwhile
    sink.run.checkpoints.await_room()
    assert sink.outer.waits == back
    assert sink.run.state.ready == 0


def test_a_clock_sink_at_the_limit_commits_early_and_reads_on() -> None:
    sink = Sink(replace(CLOCK, max_staged_size=3))
    for number in range(9):
        sink.run.checkpoints.await_room()
        sink.reads(number)
    assert sink.batches == 2
    assert len(sink.run.state.staged) == 3


def test_a_clock_sink_holds_no_more_than_its_limit_while_the_catalog_is_away() -> None:
    sink = Sink(replace(CLOCK, max_staged_size=3))
    for number in range(3):
        sink.reads(number)
    batch = sink.run.batches.due()
    assert batch
    sink.run.batches.close(batch, CheckpointFiles("c", (), FileTotals()))
    assert not sink.run.state.staged
    sink.catalog_is_there = False

    def meanwhile() -> None:
        sink.catalog_is_there = sink.outer.waits > 20
        sink.commits()

    sink.outer.meanwhile = meanwhile
    sink.run.checkpoints.await_room()
    assert sink.outer.waits > 20, "what is closed and not committed is staged, too"


@pytest.mark.parametrize("limit", [None, 2])
def test_staged_rows_that_are_complete_only_after_more_was_read_do_not_stop_reading(limit: int | None) -> None:
    sink = Sink(replace(TIMED, max_staged_size=limit))
    with sink.run.checkpoints.catching_up():
        for number in range(5):
            sink.run.checkpoints.await_room()
            sink.reads(number, time=10)
        assert sink.outer.waits == 0
        sink.run.checkpoints.await_room()
        sink.reads(5, promised=11)
    assert sink.run.batches.due() is not None


def test_a_sink_with_times_of_rows_commits_what_it_can_before_it_looks_at_its_limit() -> None:
    sink = Sink(replace(TIMED, max_staged_size=3))
    for number in range(12):
        sink.run.checkpoints.await_room()
        sink.reads(number, time=number, promised=number)
    assert sink.batches > 2


def test_a_stage_that_stays_full_ends_a_sink_with_times_of_rows_and_names_the_remedy() -> None:
    sink = Sink(replace(TIMED, max_staged_size=2))
    sink.reads(0, time=10)
    sink.reads(1, time=10)
    with pytest.raises(TerminalError, match="the stage is full") as told:
        sink.run.checkpoints.await_room()
    assert "2 bytes wait for their times to be complete; MAX STAGED SIZE is 2 bytes" in told.value.detail
    assert "Raise MAX STAGED SIZE" in told.value.hint
    assert "--until-caught-up" in told.value.hint
    assert sink.outer.waits >= FULL_SECONDS, "somebody may still ask for all that is there"


def test_who_waits_for_all_that_is_there_gets_a_full_sink_going() -> None:
    sink = Sink(replace(TIMED, max_staged_size=2))
    sink.reads(0, time=10)
    sink.reads(1, time=10)
    asked = sink.run.checkpoints.catching_up()

    def meanwhile() -> None:
        if sink.outer.waits == 5:
            asked.__enter__()

    sink.outer.meanwhile = meanwhile
    sink.run.checkpoints.await_room()
    assert sink.outer.waits == 5


def test_waiting_for_room_is_no_sign_of_an_idle_source() -> None:
    spec = replace(TIMED, times=RowTimes(LateRows.ERROR, idle_ms=5000), max_pending_batches=1)
    sink = Sink(spec)
    sink.reads(0, time=5, promised=10)
    batch = sink.run.batches.due()
    assert batch
    sink.run.batches.close(batch, CheckpointFiles("c", (), FileTotals()))
    for _ in range(3):
        sink.run.checkpoints.found_nothing(sink.run.state.end, sink.world.now)
        sink.world.now += 1
    sink.reads(1, time=20, promised=10)
    sink.catalog_is_there = False

    def meanwhile() -> None:
        sink.catalog_is_there = sink.outer.waits >= 100
        sink.commits()

    sink.outer.meanwhile = meanwhile
    sink.run.checkpoints.await_room()
    assert sink.run.batches.due() is None, "the rows behind the limit were not read: time must not go on without them"
    assert sink.run.state.closed == 10
