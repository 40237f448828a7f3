"""Checks arriving rows that have their own times: which are late, and how far time is complete.

Works on Arrow data, in tasks and on the driver. Progress rows end here; the checkpoint records what they promise.
"""

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidInput, LateRow
from calve.model.change import PROGRESS, TIME
from calve.model.checkpoint import Staged
from calve.model.frontier import BatchDescription
from calve.model.spec import LateRows, RowTimes

_FEW = 256
"""The most distinct times that the record of a checkpoint lists."""

_ALL = 10_000
"""The same, if every time becomes its own snapshot."""


@dataclass(frozen=True)
class Timed:
    """Rows to stage, and what they say about times."""

    rows: pa.Table
    late: int
    promised: int
    final: bool

    def describe(self, staged: Staged) -> Staged:
        """Add times to the report of a file with these rows."""
        found = replace(staged, frontier=self.promised, late=self.late, final=self.final)
        if not self.rows.num_rows:
            return found
        ends = pc.min_max(self.rows[TIME]).as_py()
        distinct = pc.unique(self.rows[TIME])
        times = tuple(sorted(distinct.to_pylist())) if len(distinct) <= _ALL else ()
        return replace(found, low=ends["min"], high=ends["max"], times=times)


@dataclass(frozen=True)
class TimeRule:
    """How late rows are treated and how far time is complete."""

    rule: RowTimes
    closed: int
    """Rows with a time below it are late."""
    coalesce: bool = True

    def apply(self, table: pa.Table) -> Timed:
        """Apply the rule: drop, advance or refuse late rows, and take out progress rows."""
        promised, final = 0, False
        if PROGRESS in table.column_names:
            marks = table.filter(table[PROGRESS])[TIME]
            promised, final = pc.max(marks).as_py() or 0, marks.null_count > 0
            table = table.filter(pc.invert(table[PROGRESS])).drop_columns([PROGRESS])
        late = self._late(table)
        return Timed(self._without_late(table) if late else table, late, promised, final)

    def _late(self, table: pa.Table) -> int:
        late = pc.sum(pc.less(table[TIME], self.closed)).as_py() or 0
        if late and self.rule.late is LateRows.ERROR:
            raise LateRow(
                f"{late:,} rows are late",
                detail=f"The smallest time is {pc.min(table[TIME]).as_py()}; everything below {self.closed} is closed.",
                hint="Set a longer WATERMARK DELAY to wait for such rows, or LATE ROWS = 'drop' or 'advance'.",
            )
        return int(late)

    def _without_late(self, table: pa.Table) -> pa.Table:
        if self.rule.late is LateRows.DROP:
            return table.filter(pc.greater_equal(table[TIME], self.closed))
        advanced = pc.max_element_wise(table[TIME], pa.scalar(self.closed, pa.int64()))
        return table.set_column(table.column_names.index(TIME), TIME, advanced)

    def combine(self, staged: Staged, parts: list[Staged]) -> Staged:
        """Combine the reports of a checkpoint's files."""
        frontier = max((part.frontier or 0 for part in parts), default=0)
        late, final = sum(part.late for part in parts), any(part.final for part in parts)
        found = replace(staged, frontier=frontier, late=late, final=final)
        filled = [part for part in parts if part.rows]
        if not filled:
            return found
        low, high = min(part.low for part in filled), max(part.high for part in filled)
        if not self.rule.by_progress:
            found = replace(found, frontier=max(frontier, high - self.rule.delay_ms))
        times = {time for part in filled for time in part.times}
        known = all(part.times for part in filled) and len(times) <= (_FEW if self.coalesce else _ALL)
        if not known and not self.coalesce:
            raise InvalidInput(
                f"a checkpoint has more than {_ALL:,} different times",
                hint="Use smaller checkpoints, or remove COALESCE = false.",
            )
        return replace(found, low=low, high=high, times=tuple(sorted(times)) if known else ())


def times_in_batch(batch: BatchDescription, times: pa.Array) -> pa.Array:
    """A mask of the times that belong to a batch."""
    mask = pc.greater_equal(times, batch.lower.time or 0)
    return mask if batch.upper.time is None else pc.and_(mask, pc.less(times, batch.upper.time))
