"""Tells the metastore of the table that a sink writes: columns, place, key, frontier, rows.

It is done by the thread that watches the sink, now and then and at the end, never on the way of a commit. Whatever is
wrong with the metastore, the sink goes on.
"""

import json
import logging
import os
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
from calve.metastore.metastore import Metastore
from calve.metastore.statistics import Statistic, StatisticKind
from calve.metastore.tables import GENERAL_INFO, MetadataType, TableId, TableUnit, open_tables
from calve.model.health import Status
from calve.model.spec import SinkSpec

FIRST: Final = 5.0
EVERY: Final = 60.0
"""Seconds before the first time, and between two; the end of a run is told at once."""
ATTEMPTS: Final = 10

_log = logging.getLogger("calve")


@dataclass(frozen=True)
class RegisteredTable:
    """The table of a sink."""

    home: Path
    table: TableId
    spec: SinkSpec
    standing: Callable[[], TableSummary]
    """The table as it was seen last."""


class TableRegistration:
    """What one run tells of its table. Called by one thread."""

    def __init__(self, written: RegisteredTable, clock: Clock) -> None:
        self._written, self._clock = written, clock
        self._due = clock.monotonic() + FIRST
        self._told: int | None = None

    def look(self, status: Status) -> None:
        """Tell what is new, if it is time."""
        if self._clock.monotonic() >= self._due and status.commits != self._told:
            self._tell(status)
            self._due = self._clock.monotonic() + EVERY

    def finish(self, status: Status) -> None:
        """Tell what is new."""
        if status.commits != self._told:
            self._tell(status)

    def _tell(self, status: Status) -> None:
        try:
            with Metastore(MetastoreConfig.load(self._written.home, os.environ), clock=self._clock) as metastore:
                _register(open_tables(metastore), self._written, status.frontier)
        except Exception as error:  # noqa: BLE001 - the table is right without its metadata, and the sink goes on
            _log.warning("the metastore was not told of table %s: %s", self._written.spec.table, error)
        self._told = status.commits


def _register(tables: Component[TableUnit], written: RegisteredTable, frontier: str) -> None:
    for attempt in range(ATTEMPTS):
        seen = tables.see()
        where = written.table.condition() & eq("metadata_key", GENERAL_INFO)
        try:
            known = tables.read_at(seen, MetadataType.TABLE, where=where)
            unit = _unit(written, known[0] if known else None, frontier)
            if known != [unit]:
                tables.modify().overwrite(unit).expecting(seen).execute()
            return
        except (CommitConflict, FileNotFoundError):  # somebody else was faster
            if attempt == ATTEMPTS - 1:
                raise


def _unit(written: RegisteredTable, known: TableUnit | None, frontier: str) -> TableUnit:
    """What is known of the table, with what the sink knows better."""
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
