"""When batches are closed: windows, limits, and what counts as an idle source."""

from dataclasses import replace

import pytest

from calve.commit.takeover import RunPosition, extend
from calve.commit.windows import LONGEST_SILENCE, Closing
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, Staged
from calve.model.frontier import START, BatchDescription, Frontier
from calve.model.spec import LateRows, NoEnvelope, Pace, RowTimes, SinkSpec, TableName

SPEC = SinkSpec("s", "id", TableName(("n",), "t"), ("k",), NoEnvelope())
TIMED = replace(SPEC, times=RowTimes(LateRows.ERROR, delay_ms=1000, idle_ms=5000))


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def staged(position: RunPosition, time_ms: int, size: int, *, timed: bool = False) -> None:
    """One more checkpoint, with a row of that time."""
    number = len(position.entries)
    changes = Staged((f"f{number}",), 1, size, *((0, time_ms, time_ms, (time_ms,)) if timed else ()))
    extend(position, CheckpointEntry(CheckpointIdentity("q", number, None, str(number)), time_ms, None, changes))


# ---- windows and limits


def test_windows_end_at_multiples_whatever_is_read_in_between(time: Time) -> None:
    closing, position = Closing(replace(SPEC, window_ms=20_000), time), RunPosition()
    for _ in range(19):
        staged(position, time.now_ms(), 1)
        assert closing.next_batch(position) is None
        time.passes(1.0)
    time.passes(1.0)
    assert closing.next_batch(position) == BatchDescription(START, Frontier(1_020_000))


def test_a_clock_sink_at_the_limit_of_staged_bytes_closes_its_window_early(time: Time) -> None:
    spec = replace(SPEC, window_ms=3_600_000, max_staged_size=100)
    closing, position = Closing(spec, time), RunPosition()
    staged(position, time.now_ms(), 99)
    assert closing.next_batch(position) is None
    staged(position, time.now_ms() + 5, 1)
    assert closing.next_batch(position) == BatchDescription(START, Frontier(time.now_ms() + 6))
    assert closing.until_due(position) == 0.0


@pytest.mark.parametrize("spec", [replace(SPEC, commit_bytes=2), replace(SPEC, max_staged_size=2)])
def test_a_window_that_is_closed_early_is_one_batch_without_coalescing_too(spec: SinkSpec, time: Time) -> None:
    closing = Closing(replace(spec, window_ms=3_600_000, coalesce=False), time)
    position = RunPosition()
    staged(position, time.now_ms(), 1)
    staged(position, time.now_ms() + 5, 1)
    assert closing.next_batch(position) == BatchDescription(START, Frontier(time.now_ms() + 6))


def test_a_sink_with_times_of_rows_closes_at_the_limit_what_is_complete_and_no_more(time: Time) -> None:
    spec = replace(TIMED, window_ms=3_600_000, max_staged_size=2)
    closing, position = Closing(spec, time), RunPosition()
    staged(position, 10, 1, timed=True)
    staged(position, 50, 1, timed=True)
    assert closing.next_batch(position) is None
    position.input = 40
    assert closing.next_batch(position) == BatchDescription(START, Frontier(40))


# ---- idle


def asked(closing: Closing, time: Time, seconds: float) -> None:
    """The source is asked every second, and has nothing."""
    for _ in range(round(seconds) + 1):
        closing.found_nothing(time.now_ms())
        time.passes(1.0)


def test_a_source_is_idle_once_it_was_asked_for_the_whole_time_out_and_had_nothing(time: Time) -> None:
    closing, position = Closing(TIMED, time), RunPosition(input=7)
    asked(closing, time, 4)
    assert closing.input(position) == 7
    asked(closing, time, 0)
    assert closing.input(position) == time.now_ms() - 1000 - 1000, "when it was asked, less the delay"


def test_time_follows_the_last_answer_and_not_the_clock(time: Time) -> None:
    closing, position = Closing(TIMED, time), RunPosition()
    asked(closing, time, 5)
    before = closing.input(position)
    time.passes(3600.0)
    assert closing.input(position) == before, "nobody asked since"


def test_time_alone_makes_no_source_idle(time: Time) -> None:
    closing, position = Closing(TIMED, time), RunPosition(input=7)
    staged(position, 10, 1, timed=True)
    time.passes(3600.0)
    assert closing.input(position) == 7, "a start, a stall and back-pressure are no answers of the source"
    assert closing.next_batch(position) is None


def test_whatever_disturbs_starts_the_time_out_over(time: Time) -> None:
    closing, position = Closing(TIMED, time), RunPosition(input=7)
    asked(closing, time, 4)
    closing.reset_idle()
    asked(closing, time, 4)
    assert closing.input(position) == 7
    asked(closing, time, 0)
    assert closing.input(position) > 7


@pytest.mark.parametrize(("every", "unbroken"), [(0.0, False), (60.0, True)])
def test_a_pause_between_two_questions_is_a_break_unless_the_pace_explains_it(
    every: float, *, unbroken: bool, time: Time
) -> None:
    closing, position = Closing(replace(TIMED, pace=Pace(every)), time), RunPosition(input=7)
    closing.found_nothing(time.now_ms())
    time.passes(LONGEST_SILENCE + 60)
    closing.found_nothing(time.now_ms())
    assert (closing.input(position) > 7) == unbroken
