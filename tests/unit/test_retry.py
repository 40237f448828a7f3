import pytest

from calve.errors import CommitConflict, CommitUnknown
from calve.retry import Backoff, retry_on


class Race:
    """Loses the first attempts, then wins."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.calls = 0

    def attempt(self) -> str:
        self.calls += 1
        if self.calls <= self.losses:
            raise CommitConflict(f"lost attempt {self.calls}")
        return "won"


def test_delays_double_up_to_the_longest_and_start_over_after_a_reset() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_delays_without_a_longest_keep_doubling() -> None:
    backoff = Backoff(1.0)
    assert [backoff.next() for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]


def test_a_lost_race_is_run_again_and_each_loss_is_reported() -> None:
    race, lost = Race(2), list[str]()
    assert retry_on(CommitConflict, 3, race.attempt, lambda error: lost.append(error.primary)) == "won"
    assert lost == ["lost attempt 1", "lost attempt 2"]


def test_the_last_loss_is_raised_and_not_reported() -> None:
    race, lost = Race(9), list[str]()
    with pytest.raises(CommitConflict, match="lost attempt 3"):
        retry_on(CommitConflict, 3, race.attempt, lambda error: lost.append(error.primary))
    assert (race.calls, len(lost)) == (3, 2)


def test_other_errors_end_the_attempts() -> None:
    race = Race(9)
    with pytest.raises(CommitConflict, match="lost attempt 1"):
        retry_on((CommitUnknown, FileNotFoundError), 3, race.attempt)
    assert race.calls == 1
