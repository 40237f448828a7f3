"""How far a table is behind its source."""

from calve.commit.backpressure import Lag


def test_a_table_is_as_current_as_the_last_committed_checkpoint_that_left_nothing_behind() -> None:
    lag = Lag()
    assert (lag.current_ms, lag.polled_ms, lag.unread) == (None, None, None)
    lag.read("a", 100, 7)
    lag.read("b", 200, 0)
    lag.read("c", 300, 4)
    assert (lag.polled_ms, lag.unread) == (300, 4)
    lag.committed("a")
    assert lag.current_ms is None, "the source had more than that"
    lag.committed("c")
    assert lag.current_ms == 200


def test_a_source_that_has_nothing_makes_a_table_current_only_when_all_is_committed() -> None:
    lag = Lag()
    lag.read("a", 100, 0)
    lag.found_nothing("a", 150, pending=True)
    assert (lag.current_ms, lag.polled_ms, lag.unread) == (None, 150, 0)
    lag.committed("a")
    assert lag.current_ms == 150, "nothing came in between"
    lag.found_nothing("a", 180, pending=False)
    assert lag.current_ms == 180


def test_what_an_earlier_run_read_makes_a_table_current_once_it_is_committed() -> None:
    lag = Lag()
    lag.found_nothing("a", 100, pending=True)
    lag.read("b", 200, 3)
    lag.committed("a")
    assert lag.current_ms == 100


def test_offsets_that_another_run_read_tell_nothing() -> None:
    lag = Lag()
    lag.read("b", 100, 0)
    lag.committed("a")
    assert lag.current_ms is None
