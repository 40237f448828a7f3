"""Registers the table of a sink with the metastore: columns, location, key, frontier, rows.

The thread that watches the sink does this periodically and at the end, never as part of a commit. If the metastore
fails, the sink continues, and the next time comes after the usual interval.
"""

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from calve.analyze.table_subject import KIND
from calve.analyze.unit_rows import kept_in
from calve.clock import Clock
from calve.errors import CommitConflict
from calve.iceberg.planning.facts import TableSummary
from calve.metastore.component import Component
from calve.metastore.config import MetastoreConfig
from calve.metastore.filters import eq
from calve.metastore.information_units import copy_lines
from calve.metastore.metastore import Metastore
from calve.metastore.statistics import Statistic, StatisticKind
from calve.metastore.tables import GENERAL_INFO, MetadataType, TableId, TableUnit, open_tables
from calve.model.health import Status
from calve.model.spec import SinkSpec
from calve.retry import retry_on

FIRST: Final = 5.0
EVERY: Final = 60.0
"""Seconds before the first registration, and between two; the end of a run is registered at once."""
ATTEMPTS: Final = 10

_log = logging.getLogger("calve")
_turn = threading.Lock()
"""Sinks of a process register one after the other: they would only win races against each other."""


@dataclass(frozen=True)
class RegisteredTable:
    """The table of a sink."""

    home: Path
    table: TableId
    spec: SinkSpec
    standing: Callable[[], TableSummary]
    """Summarizes the table as last loaded."""


class TableRegistration:
    """Registers the table of one run. Called by one thread."""

    def __init__(self, written: RegisteredTable, clock: Clock) -> None:
        self._written, self._clock = written, clock
        self._due = clock.monotonic() + FIRST
        self._registered: int | None = None

    def register_if_due(self, status: Status) -> None:
        """Register the table if there are new commits and the interval has passed."""
        if self._clock.monotonic() >= self._due and status.commits != self._registered:
            self._register_now(status)
            self._due = self._clock.monotonic() + EVERY

    def finish(self, status: Status) -> None:
        """Register the table if there are new commits."""
        if status.commits != self._registered:
            self._register_now(status)

    def _register_now(self, status: Status) -> None:
        try:
            with _turn, Metastore(MetastoreConfig.load(self._written.home, os.environ), clock=self._clock) as metastore:
                tables = open_tables(metastore)
                _register(tables, self._written, status.frontier)
                copy_lines(tables, self._written.home)
        except Exception as error:  # noqa: BLE001 - the table is correct without its metadata, and the sink continues
            _log.warning("could not register table %s with the metastore: %s", self._written.spec.table, error)
        else:
            self._registered = status.commits


def _register(tables: Component[TableUnit], written: RegisteredTable, frontier: str) -> None:
    where = written.table.condition() & eq("metadata_key", GENERAL_INFO)

    def attempt() -> None:
        seen = tables.see()
        known = tables.read_at(seen, MetadataType.TABLE, where=where)
        unit = _unit(written, known[0] if known else None, frontier)
        if known != [unit]:
            tables.modify().overwrite(unit).expecting(seen).execute()

    retry_on((CommitConflict, FileNotFoundError), ATTEMPTS, attempt)


def _unit(written: RegisteredTable, known: TableUnit | None, frontier: str) -> TableUnit:
    """Build the table's metadata: what is known, updated with what the sink knows."""
    standing, spec, names = written.standing(), written.spec, written.table
    before = known or TableUnit(
        storage_plugin=names.storage_plugin,
        workspace=names.workspace,
        table_name=names.name,
        metadata_type=MetadataType.TABLE,
        metadata_key=GENERAL_INFO,
    )
    sink = {
        "name": spec.name,
        "id": spec.sink_id,
        "key": spec.key,
        "frontier": frontier,
        "snapshot": standing.snapshot_id,
    }
    level = tuple(one for one in before.metadata_statistics or () if one.kind is StatisticKind.LEVEL)
    return replace(
        before,
        table_type=KIND,
        location=standing.location,
        schema=json.dumps(standing.schema),
        last_modified_time=standing.timestamp_ms,
        metadata_statistics=(
            Statistic(StatisticKind.ROWS, standing.rows, standing.exact),
            Statistic(StatisticKind.BYTES, standing.bytes),
            Statistic(StatisticKind.FILES, standing.files),
            *level,
        ),
        additional_metadata=json.dumps({**kept_in(known), "sink": sink}),
    )
