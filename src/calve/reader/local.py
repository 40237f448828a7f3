"""Reads the rows of a table in this process, without Spark; and chooses the moment to read a table at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict, Unpack

import pyarrow as pa

from calve.errors import CalveError
from calve.iceberg.loading import load_table
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.lake import TableRef
from calve.model.checkpoint import SizeLimit
from calve.model.instants import instant_ms
from calve.model.scan import ScanPlan
from calve.reader.splits import read_tasks, whole
from calve.reader.worker import rows_of_task


class TimeTravel(TypedDict, total=False):
    """The moment to read a table at: at most one of the first four. `sink`, by name or id, requires a frontier."""

    snapshot_id: int | None
    as_of: datetime | str | int | None
    as_of_frontier: datetime | str | int | None
    ref: str | None
    sink: str | None


@dataclass(frozen=True)
class LocalRead:
    """A scan in this process."""

    scan: Scan
    plan: ScanPlan

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.scan.target(self.plan).schema

    def select(self, columns: Sequence[str]) -> "LocalRead":
        """The same rows with fewer columns."""
        return LocalRead(self.scan.select(columns), self.plan)

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, at most `limit` of them; reads no more than that needs."""
        target = self.scan.target(self.plan)
        tasks = read_tasks(self.plan.files, 1)
        if limit is not None:  # the newest files have the fewest deletes
            tasks = tuple(whole(f) for f in sorted(self.plan.files, key=lambda f: -f.sequence_number))
        left = limit
        for task in tasks:
            for batch in rows_of_task(task, target):
                piece = batch if left is None else batch.slice(0, left)
                if piece.num_rows:
                    yield piece
                left = None if left is None else left - piece.num_rows
                if left == 0:
                    return


def rows_within(reading: LocalRead, limit: SizeLimit) -> pa.Table | None:
    """All rows of a scan; None if they are too many, or cannot be read: Spark reads them then."""
    if reading.plan.rows > limit.rows or reading.plan.bytes > limit.bytes:
        return None
    found, size = list[pa.RecordBatch](), 0
    try:
        for batch in reading.rows():
            found.append(batch)
            size += batch.nbytes
            if size > limit.bytes:
                return None
    except CalveError:
        return None
    return pa.Table.from_batches(found, schema=reading.schema)


def read_here(table: TableRef, *, columns: Sequence[str] | None = None, **at: Unpack[TimeTravel]) -> LocalRead:
    """The same rows as `calve.read`, without Spark."""
    scan = scan_of(table, at)
    chosen = scan if columns is None else scan.select(columns)
    return LocalRead(chosen, chosen.plan())


def scan_of(table: TableRef, at: TimeTravel) -> Scan:
    """One moment of a table, ready to be planned. Raises InvalidInput if it does not exist."""
    time, frontier = at.get("as_of"), at.get("as_of_frontier")
    as_of = AsOf(
        snapshot_id=at.get("snapshot_id"),
        frontier=None if frontier is None else instant_ms(frontier),
        ref=at.get("ref"),
        sink=at.get("sink"),
        time_ms=None if time is None else instant_ms(time),
    )
    return Scan.of(load_table(table.lake.open(), table.name), as_of)
