"""Measures what a run cannot count by itself: files of the table, bytes of the state location.

The thread that watches the run does it now and then, after commits, and spends only a small share of its time on it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calve.clock import Clock
from calve.errors import TransientError
from calve.model.health import TableHealth
from calve.pipeline.monitor import RunMonitor

_log = logging.getLogger(__name__)

FIRST_SECONDS = 2.0
REST_SECONDS = 30.0
"""Seconds between two measurements, and times their duration: see `REST_PER_SECOND`."""
REST_PER_SECOND = 100.0
SIZES_SECONDS = 300.0
"""Seconds between two measurements of the state location, which may need many requests."""


@dataclass(frozen=True)
class Measures:
    """How to measure. All may raise TransientError or OSError."""

    table: Callable[[], TableHealth]
    state: Callable[[], Mapping[str, int]]
    """Bytes of the state location by kind."""
    home: Callable[[], Mapping[str, int]]
    """Bytes of the other folders of the home."""


class Survey:
    """Measures one sink. Called by one thread."""

    def __init__(self, measures: Measures, monitor: RunMonitor, clock: Clock) -> None:
        self._measures, self._monitor, self._clock = measures, monitor, clock
        self._due = clock.monotonic() + FIRST_SECONDS
        self._sizes_due = 0.0
        self._measured = -1

    def look_if_due(self) -> None:
        """Measure if there are new commits and it is time."""
        if self._clock.monotonic() >= self._due:
            self._look()

    def finish(self) -> None:
        """Measure what the run leaves behind."""
        self._sizes_due = 0.0
        self._look()

    def _look(self) -> None:
        began, commits = self._clock.monotonic(), self._monitor.commits
        if commits != self._measured:
            self._measured = commits
            self._try("table", lambda: self._monitor.table_looked_at(self._measures.table()))
        if began >= self._sizes_due:
            self._sizes_due = began + SIZES_SECONDS
            measures = self._measures
            self._try("state location", lambda: self._monitor.sized(measures.state(), measures.home()))
        ended = self._clock.monotonic()
        self._due = ended + max(REST_SECONDS, REST_PER_SECOND * (ended - began))

    def _try(self, what: str, measure: Callable[[], None]) -> None:
        try:
            measure()
        except (TransientError, OSError) as error:
            _log.info("the %s of sink %s could not be measured: %s", what, self._monitor.sink, error)
        except Exception:  # noqa: BLE001 - numbers for a page: the sink continues without them
            _log.warning("the %s of sink %s cannot be measured", what, self._monitor.sink, exc_info=True)
