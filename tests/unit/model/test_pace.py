"""A commit interval says when snapshots are made, and never how much is read."""

import pytest

from calve.model.spec import Pace


def test_without_intervals_there_is_no_rest() -> None:
    assert Pace.of(0, 0).rest(10.0, 10.0, 0) == 0


@pytest.mark.parametrize("minutes", [1, 20, 24 * 60])
def test_a_commit_interval_alone_leaves_room_for_hundreds_of_checkpoints(minutes: int) -> None:
    pace = Pace.of(60.0 * minutes, 0)
    assert 100 <= 60 * minutes / pace.every < 1000
    assert not pace.required, "a source that does not say what it has is not held back by a rest that nobody asked for"


def test_a_rest_lasts_until_the_next_checkpoint_may_start() -> None:
    pace = Pace.of(60.0, 10.0)
    assert pace.rest(started=100.0, now=104.0, now_ms=0) == 6.0
    assert pace.rest(started=100.0, now=117.0, now_ms=0) < 0


def test_replay_takes_its_checkpoints_at_multiples_of_the_commit_interval() -> None:
    pace = Pace.of(20.0, 1.0, replay=True)
    assert pace.rest(started=0.0, now=1.0, now_ms=1_700_000_005_000) == 15.0
    assert pace.rest(started=0.0, now=1.0, now_ms=1_700_000_000_000) == 20.0
