"""How often a source is read: a backlog without a rest, else at the sink's pace."""

import threading
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from calve.commit.checkpoints import Decision
from calve.commit.committer import Signals
from calve.model.checkpoint import UNKNOWN, Offsets
from calve.model.health import SourcePart, SourcePosition
from calve.model.spec import NoEnvelope, Pace, SinkSpec, TableName
from calve.pipeline.feed import Checkpoint, SourceFeed
from calve.source.port import LEAST_POLL, Source
from tests.support.manual import ManualSink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope(), window_ms=10**9)


class Waiting:
    """Files that wait, one to a checkpoint; more may come."""

    name, counts, unread, took_all = "waiting", "files", 0, False
    least_poll = LEAST_POLL

    def __init__(self, files: int) -> None:
        self.files = files

    def next_end(self, start: Offsets, **_: Any) -> Offsets:
        taken = int(start or 0)
        self.unread = max(0, self.files - taken - 1)
        self.took_all = not self.unread
        return str(taken + 1) if taken < self.files else None

    def frame(self, *_: Any) -> None: ...
    def committed(self, _: Offsets) -> None: ...
    def size(self, *_: Any) -> Any:
        return UNKNOWN

    def ended(self, _: Offsets) -> bool:
        return False

    def position(self, at: Offsets) -> SourcePosition:
        return SourcePosition((SourcePart("files", int(at or 0), self.files),))


class Rests(Signals):
    """Notes what is waited for, in a time that goes on by it."""

    def __init__(self, sink: ManualSink, *, most: int) -> None:
        super().__init__()
        self.sink, self.most = sink, most
        self.waited: list[float] = []

    def await_call(self, after: int, seconds: float) -> None:
        del after
        self.waited.append(seconds)
        self.sink.world.now += max(1, round(seconds))
        if len(self.waited) >= self.most:
            self.stop()


def fed(spec: SinkSpec, source: Waiting, rests: int) -> tuple[list[int], list[float]]:
    """How many files were unread after each checkpoint, and the rests, until there were so many of them."""
    sink = ManualSink(spec)
    signals = Rests(sink, most=rests)
    feed = SourceFeed(cast("SparkSession", None), cast("Source", source), signals, sink.outer, spec.pace)
    taken: list[int] = []

    def take(checkpoint: Checkpoint) -> Decision:
        sink.reads(checkpoint.identity.batch_id)
        taken.append(checkpoint.unread)
        return Decision.ACCEPT

    feed._loop(sink.run, take)  # without its thread
    return taken, signals.waited


@pytest.mark.parametrize("pace", [Pace.of(1200.0, 0), Pace.of(1200.0, 60.0), Pace.of(1200.0, 0, replay=True)])
def test_a_backlog_is_read_without_a_rest(pace: Pace) -> None:
    taken, rests = fed(replace(SPEC, pace=pace), Waiting(20), rests=1)
    assert taken == list(range(19, -1, -1))
    assert len(rests) == 1


def test_a_source_that_is_read_to_its_end_rests_for_its_pace() -> None:
    _, rests = fed(replace(SPEC, pace=Pace.of(1200.0, 60.0)), Waiting(3), rests=2)
    assert rests == [60.0, 60.0], "after the last checkpoint, and after the question that found nothing"


def test_without_intervals_a_source_is_asked_again_and_again() -> None:
    _, rests = fed(SPEC, Waiting(3), rests=3)
    assert max(rests) < 1


def test_a_question_is_answered_although_a_look_at_the_source_takes_longer_than_anybody_waits() -> None:
    sink = ManualSink(SPEC)
    signals = Rests(sink, most=1)
    answers: list[bool] = []

    class Slow(Waiting):
        def next_end(self, start: Offsets, **_: Any) -> Offsets:
            answers.append(feed.await_idle(asked, 0))  # who waits had enough, and waits once more
            return super().next_end(start)

    feed = SourceFeed(cast("SparkSession", None), cast("Source", Slow(2)), signals, sink.outer, SPEC.pace)
    feed._thread = threading.current_thread()
    asked = feed.ask()

    def take(checkpoint: Checkpoint) -> Decision:
        sink.reads(checkpoint.identity.batch_id)
        return Decision.ACCEPT

    feed._loop(sink.run, take)
    assert answers == [False, False, True]
    assert feed.await_idle(asked, 0)


def test_who_asks_a_feed_that_was_not_started_or_has_just_ended_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calve.pipeline.feed.use_pool", lambda *_: None)
    sink = ManualSink(SPEC)
    feed = SourceFeed(
        cast("SparkSession", None), cast("Source", Waiting(0)), Rests(sink, most=1), sink.outer, SPEC.pace
    )
    assert feed.await_idle(feed.ask(), 30), "nothing is to be read: it is not started"
    feed._thread = threading.current_thread()  # a thread is alive for a moment longer than it delivers
    feed._main(sink.run, cast("Any", None))
    assert feed.failure is None
    assert feed.alive
    assert feed.await_idle(feed.ask(), 30)
