"""What a home folder says about its sinks: statuses, definitions and tables, brought together.

It only reads. Definitions are read now and then, tables as `tables.py` allows; statuses are small files, and read when
they have changed.
"""

import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from calve.clock import Clock, SystemClock
from calve.definitions.store import Definitions, HomeDefinitions
from calve.definitions.vault import Vault
from calve.errors import CalveError
from calve.lake import Lake, TableRef
from calve.model.health import Status
from calve.model.spec import SinkSpec
from calve.pipeline.lakes import lake_of
from calve.sql.statements import ObjectKind
from calve.watch.status_files import CommitLog, commits_file, read_statuses
from calve.web.details import SinkDetails
from calve.web.shapes import DefinedSink, Json, Known, planned, shape_home, summarize_sink
from calve.web.tables import TableAddress, TableWatch

DEFINITIONS_SECONDS = 5.0
"""Between two reads of the definitions."""
COMMITS = 200
"""Commits of one sink that are shown."""

Statuses = Callable[[], list[Status]]


class HomeView:
    """The sinks of a home folder. Any thread may use it."""

    def __init__(self, home: Path, statuses: Statuses | None = None, clock: Clock | None = None) -> None:
        self._home = home
        self._clock = clock or SystemClock()
        self._statuses = statuses or (lambda: read_statuses(home))
        self._store, self._vault = HomeDefinitions(home), Vault(home, os.environ)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._defined: dict[str, DefinedSink] = {}
        self._problem = ""
        self._revision: str | None = None
        """Of the definitions that were read; None before, and after a failure."""
        self._look_at = 0.0
        self._known: dict[str, Status] = {}
        self._logs: dict[str, CommitLog] = {}
        self._details: dict[str, SinkDetails] = {}
        """Of the sinks that somebody looked at."""
        self._tables = TableWatch(self._locate, self._clock)

    def close(self) -> None:
        """Load nothing more."""
        self._tables.close()

    def statuses(self) -> list[Status]:
        """The current statuses; sinks that never ran have none."""
        return self._statuses()

    def state(self) -> Json:
        """All sinks, in short. Starts to load what is due of their tables."""
        statuses = {status.sink: status for status in self._statuses()}
        self._read_definitions()
        with self._lock:
            self._known = statuses
            names = sorted({*statuses, *self._defined}, key=str.lower)
            self._logs = {name: self._logs.get(name) or self._log_of(name) for name in names}
            self._details = {name: found for name, found in self._details.items() if name in self._logs}
        self._tables.want({name: _version(statuses.get(name)) for name in names})
        return shape_home(str(self._home), self._problem, [summarize_sink(self._all_of(name)) for name in names])

    def sink(self, name: str, cursor: str | None = None) -> Json | None:
        """One sink, or what changed since a cursor of an earlier answer; None if there is none of this name."""
        found = self._all_of(name)
        if found.status is None and found.defined is None:
            return None
        with self._lock:
            details = self._details.setdefault(name, SinkDetails(uuid.uuid4().hex))
        return details.since(cursor, found)

    def _all_of(self, name: str) -> Known:
        with self._lock:
            log, status, defined = self._logs.get(name), self._known.get(name), self._defined.get(name)
        return Known(name, status, defined, self._tables.of(name), log.newest() if log else ())

    def _log_of(self, name: str) -> CommitLog:
        return CommitLog(commits_file(self._home, name), COMMITS)

    def _read_definitions(self) -> None:
        """Read the defined sinks, if it is time. What cannot be read is reported, and what was known stays."""
        with self._reading:
            if self._clock.monotonic() < self._look_at:
                return
            found, problem, revision = self._defined, "", None
            try:
                revision = self._store.revision  # before they are read: an edit in between is read the next time
                if revision != self._revision:
                    definitions = Definitions(self._store.all())
                    found = {d.name: planned(d, definitions) for d in definitions.of(ObjectKind.SINK)}
            except CalveError as error:
                problem, revision = str(error), None
            self._revision = revision
            with self._lock:
                self._defined, self._problem = found, problem
            self._look_at = self._clock.monotonic() + DEFINITIONS_SECONDS

    def _locate(self, name: str) -> TableAddress | None:
        with self._lock:
            defined, status = self._defined.get(name), self._known.get(name)
        if defined is not None and defined.plan is not None:
            plan = defined.plan
            lake = lake_of(self._home, plan.catalog, plan.store, defined.definitions, self._vault)
            spec = plan.spec
            letters = None if spec.dead_letters is None else TableRef(lake, spec.dead_letters)
            return TableAddress(lake.table(str(spec.table)), spec.sink_id, spec.branch, letters, spec.name)
        if status is None or not status.table or not (self._home / "catalog.db").is_file():
            return None
        # a sink of the Python interface: its table may be in the embedded catalog
        table = Lake(self._home, {}).table(status.table)
        letters = TableRef(table.lake, table.name.dead_letters) if status.dead_letters else None
        return TableAddress(table, None, SinkSpec.branch, letters, name)


def _version(status: Status | None) -> tuple[int | None, int]:
    """Changes when a sink commits, or has dead letters."""
    return (None, 0) if status is None else (status.last_snapshot_id, status.dead_letters)
