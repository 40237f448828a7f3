"""Whether there is room for more of the source, or reading has to wait for commits.

Reading waits only for what goes away without it. Batches that are ready wait for the catalog alone. Stages of a sink by
the clock can always be closed. Rows with times of their own may be complete only after more was read: there staged
bytes never make reading wait, and a limit that the user set ends the sink once nothing more can be closed or committed.

How far a table is behind its source, for reports. Nothing is decided by it.
"""

from collections.abc import Callable
from enum import Enum, auto

from calve.commit.takeover import RunPosition
from calve.errors import TerminalError
from calve.model.checkpoint import Offsets
from calve.model.spec import SinkSpec


class Room(Enum):
    """What to do before the next checkpoint is read."""

    FREE = auto()
    WAIT = auto()
    """For closing and committing, which need nothing of the source."""
    NONE = auto()
    """Waiting does not help: what is staged is complete only after more was read."""


def room_for_more(
    spec: SinkSpec, position: RunPosition, is_due: Callable[[RunPosition], object], *, catching_up: bool
) -> Room:
    """`is_due` tells of a batch that can be closed. `catching_up`: all that the source has is read, then closed."""
    if position.ready >= spec.max_pending_batches:
        return Room.WAIT
    limit = spec.staged_limit
    if limit is None or position.held_bytes < limit:
        return Room.FREE
    if spec.times is None or position.ready or is_due(position):
        return Room.WAIT
    return Room.FREE if catching_up else Room.NONE


def stage_is_full(spec: SinkSpec, position: RunPosition) -> TerminalError:
    """Why a sink whose rows have times of their own cannot go on."""
    return TerminalError(
        "the stage is full, and none of its rows can be committed before more is read",
        detail=f"{position.held_bytes:,} bytes wait for their times to be complete; MAX STAGED SIZE is "
        f"{spec.staged_limit or 0:,} bytes.",
        hint="Raise MAX STAGED SIZE, or commit what is there, complete or not: calve run --until-caught-up.",
    )


class Lag:
    """Remembers when checkpoints left nothing of the source behind, until they are in the table."""

    def __init__(self) -> None:
        self._read: list[tuple[Offsets, int | None]] = []
        self.unread: int | None = None
        """Of what the source had when it was asked last; None before that."""
        self.current_ms: int | None = None
        """The table shows all that the source had at this time; None when that is not known."""

    def read(self, end: Offsets, asked_ms: int, unread: int) -> None:
        """A checkpoint up to `end` is being read, and leaves so much behind."""
        self.unread = unread
        self._read.append((end, None if unread else asked_ms))

    def found_nothing(self, asked_ms: int, *, pending: bool) -> None:
        """The source had nothing more; `pending`: not all that was read is in the table."""
        self.unread = 0
        if not pending:
            self.current_ms = asked_ms

    def committed(self, offsets: Offsets) -> None:
        """All up to `offsets` is in the table."""
        ends = [end for end, _ in self._read]
        if offsets not in ends:
            return
        done = ends.index(offsets) + 1
        whole = [asked_ms for _, asked_ms in self._read[:done] if asked_ms is not None]
        self.current_ms = whole[-1] if whole else self.current_ms
        self._read = self._read[done:]
