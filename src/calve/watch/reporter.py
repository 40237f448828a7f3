"""Keeps the status file of a sink up to date while its process lives: at changes, and at every heartbeat.

One thread of the process writes the heartbeats of all its sinks, whatever else they do. Two runs of one sink may share
a home: the file belongs to the one with the higher epoch, or to the later one before it has an epoch; the other one
keeps its status to itself until the owner has ended.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

from calve.clock import Clock, SystemClock
from calve.model.health import Health, ProcessIdentity, Status
from calve.watch.process import this_process
from calve.watch.status_files import judged, stored_status, write_status

_log = logging.getLogger("calve")

HEARTBEAT_MS = 5_000
"""Interval at which an active sink writes its status although nothing has changed."""
WRITE_EVERY_MS = 500
"""Shortest interval between two writes, but for changes of state."""
_COMPLAIN_EVERY_MS = 60_000


class StatusReporter:
    """The status of one sink, as this process knows it. Thread-safe.

    `refresh` completes a status before it is used; it is called with `lock` held.
    """

    def __init__(
        self, file: Path, status: Status, clock: Clock, *, refresh: Callable[[Status], Status] | None = None
    ) -> None:
        self._file, self._clock, self._refresh = file, clock, refresh or _unchanged
        self.lock = threading.RLock()
        """Held to change the status; owners use it for what `refresh` reads, since a second lock could deadlock."""
        self._written_ms = 0
        self._complained_ms: int | None = None
        self._status = replace(
            status,
            run=str(uuid.uuid4()),
            process=_process(),
            heartbeat_every_ms=HEARTBEAT_MS,
            heartbeat_ms=clock.now_ms(),
        )

    @property
    def status(self) -> Status:
        """The status as of now."""
        with self.lock:
            now = self._clock.now_ms()
            return self._refresh(replace(self._status, updated_ms=now, heartbeat_ms=now))

    @property
    def known(self) -> Status:
        """The status as it was changed last: counters are right, ages are not."""
        return self._status

    def update(self, **values: object) -> None:
        """Change fields; they are written at the next opportunity."""
        self.change(lambda known: replace(known, **values))  # type: ignore[arg-type]

    def change(self, make: Callable[[Status], Status]) -> None:
        """Replace the status by what `make` makes of it; it is written at the next opportunity."""
        with self.lock:
            self._status = make(self._status)
            if self._has_passed(WRITE_EVERY_MS, self._written_ms):
                self.write()

    def enter(self, health: Health, cause: str = "", hint: str = "", **values: object) -> bool:
        """Change the state, and write it at once; False if it only has another cause."""
        with self.lock:
            before = self._status.health
            changed = replace(self._status, **values)  # type: ignore[arg-type]
            self._status = changed.entered(health, self._clock.now_ms(), cause, hint)
            self.write()
            return health is not before

    def write(self) -> None:
        """Write the status now, unless the file belongs to another run."""
        with self.lock:
            self._status = self.status
            self._written_ms = self._clock.now_ms()
            if not self._owns_file():
                return
            self._complain(write_status(self._file, self._status))

    def beat(self) -> None:
        """Write a sign of life, if nothing else was written for a heartbeat."""
        with self.lock:
            if self._status.health.active and self._has_passed(HEARTBEAT_MS, self._written_ms):
                self.write()

    def _has_passed(self, every_ms: int, since_ms: int) -> bool:
        """Whether an interval is over. It is, too, if the clock was set back: nobody knows how long ago it began."""
        return abs(self._clock.now_ms() - since_ms) >= every_ms

    def begin_beating(self) -> None:
        """Write heartbeats from now on, in place of any former reporter of the same file."""
        _heart().add(self._file, self)

    def end(self) -> None:
        """Write no more heartbeats."""
        _heart().remove(self._file, self)

    def _owns_file(self) -> bool:
        found = stored_status(self._file)
        if found is None or found.run in {"", self._status.run}:
            return True
        if found.health.active and judged(found, self._clock.now_ms()).health is not Health.GONE:
            mine, other = (self._status.epoch, self._status.started_ms), (found.epoch, found.started_ms)
            return mine >= other
        return found.epoch <= self._status.epoch or self._status.started_ms >= found.started_ms

    def _complain(self, failure: str) -> None:
        if not failure:
            self._complained_ms = None
        elif self._complained_ms is None or self._has_passed(_COMPLAIN_EVERY_MS, self._complained_ms):
            self._complained_ms = self._clock.now_ms()
            _log.warning("the status of sink %s could not be written: %s", self._status.sink, failure)


def _unchanged(status: Status) -> Status:
    return status


@cache
def _process_of(_pid: int) -> ProcessIdentity:
    return this_process()


def _process() -> ProcessIdentity:
    return _process_of(os.getpid())  # a forked process is another one


class _Heart:
    """The thread that writes heartbeats. Started by the first sink."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reporters: WeakValueDictionary[Path, StatusReporter] = WeakValueDictionary()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def add(self, file: Path, reporter: StatusReporter) -> None:
        with self._lock:
            self._reporters[file] = reporter
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._main, name="calve-heartbeat", daemon=True)
                self._thread.start()

    def remove(self, file: Path, reporter: StatusReporter) -> None:
        with self._lock:
            if self._reporters.get(file) is reporter:
                del self._reporters[file]

    def _main(self) -> None:
        while not self._stop.wait(HEARTBEAT_MS / 4000):
            with self._lock:
                beating = list(self._reporters.values())
            for reporter in beating:
                try:
                    reporter.beat()
                except Exception:  # noqa: BLE001 - the thread's last resort: the other sinks go on
                    _log.exception("a heartbeat failed")


_hearts: list[_Heart] = []


def _heart() -> _Heart:
    if not _hearts:
        _hearts.append(_Heart())
    return _hearts[0]


def report(home_file: Path, sink: str, health: Health, cause: str = "", hint: str = "") -> StatusReporter:
    """Report the state of a sink that has no run; what its last run reported is kept."""
    clock = SystemClock()
    now = clock.now_ms()
    known = stored_status(home_file)
    before = Status.unknown(sink, now) if known is None else judged(known, now)
    if before.health is Health.UNKNOWN and not before.table:
        before = Status.unknown(sink, now)
    reporter = StatusReporter(home_file, replace(before, started_ms=now), clock)
    reporter.enter(health, cause, hint)
    return reporter
