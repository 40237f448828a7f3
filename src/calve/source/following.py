"""Following the history of a table: how far the next read goes, and the tag that keeps what was not read yet.

Shared by the source of a sink (`table.py`) and the streaming DataFrame (`table_stream.py`). Both read whole snapshots,
stop before one with other columns, and move a consumer's tag only after what was read is committed.
"""

import logging
from collections.abc import Sequence

from calve.clock import Clock
from calve.errors import TransientError
from calve.iceberg.loading import LoadedTable
from calve.iceberg.planning.change_steps import TableShape, TableStep, oldest_on_main, shape_of
from calve.iceberg.snapshot.consumers import ConsumerTag
from calve.model.changelog import TablePlace

MOVE_SECONDS = 60.0
"""A consumer's tag is moved at most this often: each move is a commit."""
POLL_SECONDS = 1.0
"""Between two polls of a table that find nothing: each loads its metadata."""

_log = logging.getLogger("calve")


def differs(table: LoadedTable, step: TableStep, shape: TableShape) -> bool:
    """Whether a snapshot has other columns than its reader, and is newer: older ones are read with its columns."""
    if step.place.snapshot_id in shape.snapshots:
        return False
    now = shape_of(table, step.schema_id)
    return (now.columns, now.ids) != (shape.columns, shape.ids)


def steps_taken(table: LoadedTable, steps: Sequence[TableStep], shape: TableShape, max_rows: int | None) -> int:
    """How many of the next steps are read together: at least one, unless it has other columns; up to about `max_rows`.

    Steps from before format version 2 have no sequence numbers, so that changes of two could not be ordered.
    """
    taken, rows = 0, 0
    for step in steps:
        if differs(table, step, shape):
            break
        if taken and max_rows is not None and rows + step.rows > max_rows:
            break
        if taken and step.place.sequence_number <= steps[taken - 1].place.sequence_number:
            break
        taken, rows = taken + 1, rows + step.rows
    return taken


class ConsumerHold:
    """The tag of a consumer, if it has one. Called by one thread."""

    def __init__(self, tag: ConsumerTag | None, clock: Clock) -> None:
        self._tag, self._clock = tag, clock
        self._moved_at: float | None = None

    def hold(self, table: LoadedTable, place: TablePlace) -> None:
        """Put the tag on a place, or on the oldest snapshot if nothing of the table was read.

        The first time it has to succeed; later it is tried again with another poll. Raises TransientError.
        """
        if self._tag is None:
            return
        kept = oldest_on_main(table) if place.snapshot_id is None else place.snapshot_id
        if kept is None:
            return
        now = self._clock.monotonic()
        if self._moved_at is not None and now - self._moved_at < MOVE_SECONDS:
            return
        moved = True
        try:
            moved = self._tag.hold(table, kept)
        except TransientError as error:
            if self._moved_at is None:
                raise
            _log.warning("tag %s was not moved: %s", self._tag.tag, error)
        if moved:
            self._moved_at = now

    def hold_first(self, table: LoadedTable, place: TablePlace) -> None:
        """Put the tag on a place unless it exists: it may be that of an earlier run, which has read less."""
        if self._tag is not None and self._tag.tag not in table.metadata.refs:
            self.hold(table, place)
