"""What a home folder says about its sinks: statuses, definitions and tables, brought together.

It only reads. Definitions are read now and then, tables as `tables.py` allows; statuses are small files and read every
time.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from calve.clock import Clock, SystemClock
from calve.definitions.in_metastore import MetastoreDefinitions
from calve.definitions.store import Definitions
from calve.definitions.vault import Vault
from calve.errors import CalveError
from calve.lake import Lake, TableRef
from calve.model.health import Status
from calve.model.spec import SinkSpec
from calve.pipeline.lakes import lake_of
from calve.sql.statements import ObjectKind
from calve.watch.status_files import commits_file, read_commits, read_statuses
from calve.web.shapes import RECENT, DefinedSink, Json, Known, planned, shape_home, shape_sink, summarize_sink
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
        self._store, self._vault = MetastoreDefinitions(home), Vault(home, os.environ)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._defined: dict[str, DefinedSink] = {}
        self._problem = ""
        self._look_at = 0.0
        self._known: dict[str, Status] = {}
        self._recent: dict[str, tuple[object, tuple[int, ...]]] = {}
        """Rows of the last commits by sink, with what identifies the log that they are from."""
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
        recent = {name: self._rows_of_commits(name) for name in statuses}
        with self._lock:
            self._known, self._recent = statuses, recent
            names = sorted({*statuses, *self._defined}, key=str.lower)
        self._tables.want({name: _version(statuses.get(name)) for name in names})
        return shape_home(str(self._home), self._problem, [summarize_sink(self._all_of(name)) for name in names])

    def sink(self, name: str) -> Json | None:
        """One sink, in full; None if there is none of this name."""
        found = self._all_of(name)
        if found.status is None and found.defined is None:
            return None
        return shape_sink(found, read_commits(self._home, name, COMMITS))

    def _all_of(self, name: str) -> Known:
        with self._lock:
            recent = self._recent.get(name, (None, ()))[1]
            return Known(name, self._known.get(name), self._defined.get(name), self._tables.of(name), recent)

    def _rows_of_commits(self, name: str) -> tuple[object, tuple[int, ...]]:
        """Read the log of a sink's commits, if it has changed."""
        try:
            found = commits_file(self._home, name).stat()
        except OSError:
            return None, ()
        mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._recent.get(name)
        if known is not None and known[0] == mark:
            return known
        return mark, tuple(commit.rows for commit in read_commits(self._home, name, RECENT))

    def _read_definitions(self) -> None:
        """Read the defined sinks, if it is time. What cannot be read is reported, and what was known stays."""
        with self._reading:
            if self._clock.monotonic() < self._look_at or not (self._home / "metastore").is_dir():
                return
            try:
                definitions = Definitions(self._store.all())
                found = {d.name: planned(d, definitions) for d in definitions.of(ObjectKind.SINK)}
                problem = ""
            except CalveError as error:
                found, problem = self._defined, str(error)
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
