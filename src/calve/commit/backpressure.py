"""Backpressure: whether to read more of the source, or to wait for commits. Also the lag, which is only reported.

Reading waits only for work that can finish without reading more. Ready batches wait for nothing but the catalog. A sink
that assigns times by the clock can always close its stage. Rows with event times may become complete only after more
input is read: there staged bytes never block reading, and a limit set by the user ends the sink once nothing more can
be closed or committed.
"""

from collections.abc import Callable
from enum import Enum, auto

from calve.commit.takeover import RunPosition
from calve.errors import TerminalError
from calve.model.checkpoint import Offsets
from calve.model.spec import SinkSpec


class Room(Enum):
    """Whether the next checkpoint may be read."""

    FREE = auto()
    WAIT = auto()
    """Wait for batches to be closed and committed, which needs no further input."""
    NONE = auto()
    """Waiting does not help: the staged rows become complete only after more input is read."""


def room_for_more(
    spec: SinkSpec, position: RunPosition, is_due: Callable[[RunPosition], object], *, catching_up: bool
) -> Room:
    """Decide whether to read more.

    `is_due` returns a batch that can be closed now, if there is one. `catching_up`: read everything that the source
    has, then close it.
    """
    if position.ready >= spec.max_pending_batches:
        return Room.WAIT
    limit = spec.staged_limit
    if limit is None or position.held_bytes < limit:
        return Room.FREE
    if spec.times is None or position.ready or is_due(position):
        return Room.WAIT
    return Room.FREE if catching_up else Room.NONE


def stage_full_error(spec: SinkSpec, position: RunPosition) -> TerminalError:
    """Build the error of a sink with event times whose stage is full."""
    return TerminalError(
        "the stage is full, and none of its rows can be committed before more input is read",
        detail=f"{position.held_bytes:,} bytes wait for their times to be complete; MAX STAGED SIZE is "
        f"{spec.staged_limit or 0:,} bytes.",
        hint="Raise MAX STAGED SIZE, or commit the staged rows as they are: calve run --until-caught-up.",
    )


class Lag:
    """Tracks until when the table is current: checkpoints that read everything the source had, once committed."""

    def __init__(self) -> None:
        self._read: list[tuple[Offsets, int | None]] = []
        self.unread: int | None = None
        """How much the source still had when it was last polled; None before the first poll."""
        self.polled_ms: int | None = None
        """When that was."""
        self.current_ms: int | None = None
        """The table shows everything that the source had at this time; None if unknown."""

    def read(self, end: Offsets, asked_ms: int, unread: int) -> None:
        """Note that a checkpoint up to `end` is being read, which leaves `unread` behind."""
        self.unread, self.polled_ms = unread, asked_ms
        self._read.append((end, None if unread else asked_ms))

    def found_nothing(self, end: Offsets, asked_ms: int, *, pending: bool) -> None:
        """Note that the source had nothing after `end`; `pending`: some of what was read is not committed yet."""
        self.unread, self.polled_ms = 0, asked_ms
        if not pending:
            self.current_ms = asked_ms
            return
        if self._read and self._read[-1][0] == end:
            self._read.pop()
        self._read.append((end, asked_ms))

    def committed(self, offsets: Offsets) -> None:
        """Note that everything up to `offsets` is committed."""
        ends = [end for end, _ in self._read]
        if offsets not in ends:
            return
        done = ends.index(offsets) + 1
        whole = [asked_ms for _, asked_ms in self._read[:done] if asked_ms is not None]
        self.current_ms = whole[-1] if whole else self.current_ms
        self._read = self._read[done:]
