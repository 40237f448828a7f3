"""Change streams for tests: a list of batches as a source, and a process that dies in memory."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve import faults
from calve.clock import Clock
from calve.errors import CalveError
from calve.model.checkpoint import Offsets, SizeHint, canonical_offsets
from calve.model.health import SourcePosition
from calve.model.spec import Envelope
from calve.storage.state import StateStore


@dataclass(frozen=True)
class Batches:
    """A bounded source: one checkpoint per batch of rows. Offsets count batches."""

    batches: Sequence[Sequence[tuple[Any, ...]]]
    ddl: str
    envelope: Envelope

    name = "batches"
    counts = "batches"
    unread = 0
    least_poll = 0.2

    def open(self, _store: StateStore, _clock: Clock) -> "Batches":
        return self

    def schema(self, _spark: SparkSession) -> StructType:
        return cast("StructType", StructType.fromDDL(self.ddl))

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        position = _position(start)
        end = len(self.batches) if whole else position + 1
        return canonical_offsets(end) if position < len(self.batches) else None

    def position(self, _at: Offsets) -> SourcePosition:
        return SourcePosition()

    def contents(self, spark: SparkSession, end: Offsets) -> DataFrame:
        return self.frame(spark, None, end)

    def begin(self) -> Offsets:
        return None

    @property
    def took_all(self) -> bool:
        return False

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
        rows = [row for batch in self.batches[_position(start) : _position(end)] for row in batch]
        return spark.createDataFrame(rows, self.ddl)

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        return SizeHint(rows=sum(len(b) for b in self.batches[_position(start) : _position(end)]))

    def ended(self, end: Offsets) -> bool:
        return _position(end) >= len(self.batches)

    def committed(self, offsets: Offsets) -> None:
        pass


def _position(offsets: Offsets) -> int:
    return 0 if offsets is None else int(json.loads(offsets))


def at(point: str, nth: int, action: Callable[[], None]) -> None:
    """Run an action when a failpoint is reached for the n-th time. `faults.install(None)` ends it."""
    visits = 0

    def hook(reached: str) -> None:
        nonlocal visits
        if reached == point:
            visits += 1
            if visits == nth:
                action()

    faults.install(hook)


class Died(BaseException):
    """Ends a thread of a sink like a kill: no clean-up may run on it."""


class Death:
    """Kills the sink of this process at a failpoint: from then on none of its threads passes any failpoint."""

    def __init__(self, point: str, nth: int, before: faults.Hook | None = None) -> None:
        """`before` acts at every failpoint that is passed alive."""
        self._point, self._left, self._before = point, nth, before
        self._lock = threading.Lock()
        self.happened = threading.Event()

    def __call__(self, point: str) -> None:
        with self._lock:
            if point == self._point:
                self._left -= 1
            if self._left == 0 and point == self._point:
                self.happened.set()
        if self.happened.is_set():
            raise Died(point)
        if self._before is not None:
            self._before(point)


def _is_idle(query: Any) -> bool:
    try:
        query.await_caught_up(0.5)
    except (CalveError, Died):
        return False
    return True


@contextmanager
def quiet_deaths() -> Iterator[None]:
    """Ignore threads that die on purpose: they do not fail the test."""
    original = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, Died):
            original(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = original


def until_done(start: Callable[[], Any], deaths: Sequence[tuple[str, int]], *, bounded: bool = True) -> None:
    """Start a sink, kill it at each of the points in turn, then let it finish (or, if unbounded, catch up)."""
    with quiet_deaths():
        for point, nth in deaths:
            die(start, Death(point, nth), bounded=bounded)
    faults.install(None)
    query = start()
    if bounded:
        assert query.await_termination(120)
    else:
        query.await_caught_up(120)
        query.stop()


def die(start: Callable[[], Any], death: Death, *, bounded: bool) -> None:
    """Start a sink that dies at a failpoint, if it comes to it; the caller keeps `quiet_deaths`."""
    faults.install(death)
    try:
        query = start()
    except Died:
        return
    while not death.happened.wait(0.05):
        if not query.active or (not bounded and _is_idle(query)):
            break
    query.stop()  # its threads end at the next failpoint they come to
