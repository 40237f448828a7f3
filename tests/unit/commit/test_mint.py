"""Batches tile time: no gap, no overlap, whatever comes when."""

from hypothesis import given
from hypothesis import strategies as st

from calve.commit.windows import mint, wait_ms, window_end
from calve.model.frontier import SEALED, START, BatchDescription, Frontier


def test_a_window_is_closed_when_it_is_over_and_not_before() -> None:
    assert mint(START, [1005], 1999, window_ms=1000) is None
    assert wait_ms([1005], 1999, window_ms=1000) == 1
    assert mint(START, [1005], 2000, window_ms=1000) == BatchDescription(START, Frontier(2000))


def test_windows_that_nobody_closed_become_one_batch() -> None:
    assert mint(Frontier(1000), [1005, 2500, 7001], 7400, window_ms=1000) == BatchDescription(
        Frontier(1000), Frontier(7000)
    )


def test_without_anything_staged_or_after_the_seal_nothing_is_due() -> None:
    assert mint(Frontier(5), [], 10**9, window_ms=1) is None
    assert mint(SEALED, [5], 10**9, window_ms=None) is None
    assert wait_ms([], 5, window_ms=10) is None


def test_a_flush_closes_what_is_there_and_no_more() -> None:
    assert mint(Frontier(5), [7, 9], 10, window_ms=None) == BatchDescription(Frontier(5), Frontier(10))


def test_a_flush_ends_the_last_window_early_and_no_other() -> None:
    assert mint(START, [1005, 2500], 2501, window_ms=1000, short=True) == BatchDescription(START, Frontier(2501))
    first = mint(START, [1005, 2500], 2501, window_ms=1000, short=True, coalesce=False)
    assert first == BatchDescription(START, Frontier(2000))
    last = mint(Frontier(2000), [2500], 2501, window_ms=1000, short=True, coalesce=False)
    assert last == BatchDescription(Frontier(2000), Frontier(2501))


def test_without_coalescing_every_window_and_every_time_is_a_batch() -> None:
    assert mint(START, [5, 7], 100, window_ms=None, coalesce=False) == BatchDescription(START, Frontier(6))
    assert mint(Frontier(6), [7], 100, window_ms=None, coalesce=False) == BatchDescription(Frontier(6), Frontier(8))
    assert mint(START, [5, 25], 100, window_ms=10, coalesce=False) == BatchDescription(START, Frontier(10))


def test_times_that_are_not_complete_wait() -> None:
    assert mint(START, [50, 60], 50, window_ms=None) is None
    assert mint(START, [50, 60], 55, window_ms=None) == BatchDescription(START, Frontier(55))
    assert mint(START, [50, 60], 59, window_ms=10) is None
    assert mint(START, [50, 60], 69, window_ms=10) == BatchDescription(START, Frontier(60))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 90), max_size=5), st.integers(0, 40), st.booleans()), max_size=40),
    st.sampled_from([None, 7, 50]),
    st.booleans(),
)
def test_times_that_come_in_any_order_are_held_once_and_only_when_complete(
    steps: list[tuple[list[int], int, bool]],
    window: int | None,
    coalesce: bool,  # noqa: FBT001 - drawn
) -> None:
    """Rows with times of their own come ahead of the frontier; the frontier moves; crashes forget nothing recorded."""
    reach, minted = 0, START
    waiting: set[int] = set()
    held: set[int] = set()
    for ahead, moves, flush in steps:
        closed = minted.time or 0
        waiting |= {max(reach, closed) + time for time in ahead}
        reach += moves
        upto = max(waiting, default=0) + 1 if flush else reach
        batch = mint(minted, sorted(waiting), upto, window_ms=window, coalesce=coalesce, short=flush)
        if batch is None:
            continue
        assert batch.lower == minted
        inside = {time for time in waiting if batch.holds(time)}
        assert inside
        assert max(inside) < upto
        assert not inside & held
        held |= inside
        waiting -= inside
        minted = batch.upper
        assert all(not Frontier(time) < minted for time in waiting)


STEPS = st.lists(st.tuples(st.integers(0, 4000), st.booleans(), st.booleans()), max_size=60)


@given(STEPS, st.integers(1, 2500))
def test_batches_tile_time_and_hold_every_checkpoint_once(steps: list[tuple[int, bool, bool]], window: int) -> None:
    """Time passes, checkpoints come, somebody looks (or not), flushes happen; a crash forgets nothing recorded."""
    now, last, minted = 1_000_000, -1, START
    staged: list[int] = []
    held: list[int] = []
    for passed, arrives, flush in steps:
        now += passed
        if arrives:
            last = max(now, last + 1)
            staged.append(last)
        batch = mint(minted, staged, now, window_ms=None if flush else window)
        if batch is None:
            continue
        assert batch.lower == minted
        assert flush or batch.upper.time is None or batch.upper.time % window == 0
        inside = [time for time in staged if batch.holds(time)]
        assert inside == staged[: len(inside)]
        assert inside, "no batch without a checkpoint"
        held += inside
        staged = staged[len(inside) :]
        minted = batch.upper
        last = max(last, (batch.upper.time or 0) - 1)
    final = mint(minted, staged, now + 10 * window, window_ms=window)
    held += staged if final else []
    assert held == sorted(set(held))
    assert final is None or all(final.holds(time) for time in staged)


@given(st.integers(0, 10**13), st.integers(1, 10**8))
def test_windows_end_at_multiples_of_their_length(time: int, window: int) -> None:
    end = window_end(time, window)
    assert end % window == 0
    assert end - window <= time < end
