"""A run ends, and says why, whatever fails while it ends: somebody waits for it."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from calve.clock import SystemClock
from calve.commit.committer import CommitHooks, Committer, Signals
from calve.commit.run import SinkRun
from calve.errors import TerminalError
from calve.model.checkpoint import Offsets
from calve.model.health import Health, TableHealth
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from calve.pipeline.feed import Take
from calve.pipeline.monitor import RunMonitor
from calve.pipeline.pipeline import Pipeline
from calve.pipeline.query import Query
from calve.pipeline.removals import AllMaintenance
from calve.pipeline.survey import Measures, Survey
from calve.watch.status_files import read_status
from tests.support.manual import ManualSink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())
LONG = 30.0


class Silent:
    """A feed that delivers nothing, and ends as it is told."""

    failure: BaseException | None = None

    def __init__(self, ends: Callable[[], None] = lambda: None) -> None:
        self._ends = ends
        self.alive = True

    def can_reread(self, offsets: Offsets) -> bool:
        return offsets is None

    def start(self, run: SinkRun, take: Take) -> None: ...

    def stop(self) -> None:
        self.alive = False
        self._ends()

    def ask(self) -> int:
        return 0

    def await_idle(self, asked: int, timeout: float) -> bool:
        return asked == 0 and timeout >= 0


class Upkeep(AllMaintenance):
    """Maintenance that cannot be ended."""

    def close(self, *, failed: bool) -> None:
        raise OSError(f"no files can be removed, {failed}")


def fails() -> None:
    raise ConnectionRefusedError("nothing listens where the JVM was")


class Running:
    """A run with real threads, without Spark."""

    def __init__(
        self,
        home: Path,
        feed: Silent,
        upkeep: AllMaintenance | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.file, clock, signals = home / "s.json", SystemClock(), Signals()
        run = ManualSink(SPEC).run
        self.monitor = RunMonitor(SPEC, clock, self.file, signals.wake)
        hooks = CommitHooks(lambda: False, lambda: None, upkeep or AllMaintenance([]))
        self.committer = Committer(run, signals, hooks, idle_check_seconds=LONG)
        self.query = Query(run, feed, self.committer, signals, self.monitor, clock, release=release)

    def begin(self, survey: Survey | None = None) -> Query:
        assert self.query.begin(cast("Pipeline", _Nothing), survey=survey)
        return self.query

    @property
    def health(self) -> Health | None:
        found = read_status(self.file)
        return found.health if found else None


class _Nothing:
    take = None


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def run(feed: Silent, *how: Any) -> Running:
        made.append(Running(tmp_path, feed, *how))
        return made[-1]

    yield run
    for one in made:
        one.query.ask_to_stop()
        assert one.query.await_end(LONG)
        assert not one.committer.alive


@pytest.mark.parametrize(
    ("feed", "upkeep", "failure"), [(fails, None, ConnectionRefusedError), (lambda: None, Upkeep([]), OSError)]
)
def test_a_run_ends_although_a_part_of_it_cannot_be_stopped(
    running: Callable[..., Running],
    feed: Callable[[], None],
    upkeep: AllMaintenance | None,
    failure: type[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = running(Silent(feed), upkeep)
    query = made.begin()
    query.stop()
    assert not query.active
    assert not made.committer.alive, "it is ended, too"
    with pytest.raises(failure):
        query.await_termination(LONG)
    assert made.health is Health.HALTED
    assert "the thread that watches sink s failed unexpectedly" in caplog.text


@pytest.mark.parametrize("ends", [lambda: None, fails])
def test_memory_is_free_when_a_run_has_ended_however_it_ends(
    running: Callable[..., Running], ends: Callable[[], None]
) -> None:
    found: list[tuple[bool, bool]] = []

    def release() -> None:
        found.append((made.committer.alive, made.query.active))

    made = running(Silent(ends), None, release)
    made.begin().stop()
    assert found == [(False, True)], "after its last thread, and before anybody knows that it has ended"


def test_the_reason_why_a_sink_failed_counts_and_not_what_failed_after_it(running: Callable[..., Running]) -> None:
    feed = Silent(fails)
    feed.failure = TerminalError("the source was recreated")
    query = running(feed).begin()
    query.stop()
    assert query.failure is feed.failure


def test_numbers_for_a_page_that_cannot_be_measured_end_nothing(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    looked = threading.Event()

    def table() -> TableHealth:
        looked.set()
        raise ValueError("a manifest that cannot be decoded")

    made = running(Silent())
    survey = Survey(Measures(table, dict, dict), made.monitor, SystemClock())
    survey._due = 0.0
    with caplog.at_level(logging.WARNING):
        query = made.begin(survey)
        assert looked.wait(LONG)
        assert query.active
        query.stop()
    assert query.failure is None
    assert made.health is Health.STOPPED
    assert "the table of sink s cannot be measured" in caplog.text
