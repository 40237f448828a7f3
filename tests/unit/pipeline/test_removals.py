"""When a running sink looks at the journal of expired snapshots, and what becomes of failures."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from calve.errors import TransientError
from calve.iceberg.snapshot.removal_journal import RemovalEntry
from calve.maintain.removal import RemovalReport
from calve.model.spec import HOUR_MS
from calve.pipeline.removals import FIRST_LOOK_SECONDS, LOOK_SECONDS, RETRY_SECONDS, AllMaintenance, RemovalUpkeep


@dataclass
class Place:
    """Clock, monitor and work of one sink; threads run at once."""

    now: float = 1000.0
    expiries: int = 0
    looks: int = 0
    answers: list[RemovalReport | Exception] = field(default_factory=list)
    told: list[object] = field(default_factory=list)
    sink = "s"

    def now_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def warned(self, what: str, error: BaseException) -> None:
        self.told.append((what, str(error)))

    def removed(self, report: RemovalReport) -> None:
        self.told.append(report)

    def run(self) -> RemovalReport:
        self.looks += 1
        answer = self.answers.pop(0) if self.answers else RemovalReport()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def upkeep(self) -> RemovalUpkeep:
        def spawn(main: Callable[[], None]) -> Callable[[], None]:
            main()
            return lambda: None

        return RemovalUpkeep(
            lambda _: self,
            lambda: self.expiries,
            self,
            self,
            lambda: None,
            grace_ms=HOUR_MS,
            spawn=spawn,
        )


def test_it_looks_after_every_expiry_and_from_time_to_time() -> None:
    place = Place()
    upkeep = AllMaintenance([place.upkeep()])
    upkeep.maintain()
    assert place.looks == 0, "a run that has just begun"
    place.expiries = 1
    upkeep.maintain()
    upkeep.maintain()
    assert place.looks == 1
    place.now += LOOK_SECONDS
    upkeep.maintain()
    assert place.looks == 2
    upkeep.close(failed=False)


def test_a_run_that_commits_nothing_looks_once_it_has_run_for_a_minute() -> None:
    place = Place()
    upkeep = place.upkeep()
    place.now += FIRST_LOOK_SECONDS
    upkeep.maintain()
    assert place.looks == 1


def test_it_looks_when_the_next_grace_ends() -> None:
    place = Place()
    seen_ms = place.now_ms() - HOUR_MS + 100_000
    place.answers = [RemovalReport(waiting=[RemovalEntry("1", "t", (), (), 0, seen_ms)])]
    upkeep = place.upkeep()
    place.expiries = 1
    upkeep.maintain()
    place.now += 99
    upkeep.maintain()
    assert place.looks == 1
    place.now += 1
    upkeep.maintain()
    assert place.looks == 2


def test_a_table_that_refuses_removal_is_looked_at_from_time_to_time_although_a_grace_is_over() -> None:
    place = Place()
    waiting = [RemovalEntry("1", "t", (), (), 0, place.now_ms() - 2 * HOUR_MS)]
    place.answers = [RemovalReport(waiting=waiting, refusal='the table property gc.enabled is "false"')]
    upkeep = place.upkeep()
    place.expiries = 1
    upkeep.maintain()
    place.now += LOOK_SECONDS - 1
    upkeep.maintain()
    assert place.looks == 1
    place.now += 1
    upkeep.maintain()
    assert place.looks == 2


def test_a_failure_is_a_warning_and_tried_again() -> None:
    place = Place(answers=[TransientError("no catalog"), RemovalReport(files=Counter(data=2))])
    upkeep = place.upkeep()
    place.expiries = 1
    upkeep.maintain()
    assert place.told == [("removal of expired files", "no catalog")]
    place.now += RETRY_SECONDS
    upkeep.maintain()
    assert place.looks == 2
    assert not upkeep.busy


def test_an_unexpected_failure_ends_the_removals_and_not_the_sink() -> None:
    place = Place(answers=[ValueError("never seen")])
    upkeep = place.upkeep()
    place.expiries = 1
    upkeep.maintain()
    place.now += 10 * LOOK_SECONDS
    upkeep.maintain()
    assert place.looks == 1
