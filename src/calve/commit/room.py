"""Whether there is room for more of the source, or reading has to wait for commits.

Reading waits only for what goes away without it. Batches that are ready wait for the catalog alone. Stages of a sink by
the clock can always be closed. Rows with times of their own may be complete only after more was read: there staged
bytes never make reading wait, and a limit that the user set ends the sink once nothing more can be closed or committed.
"""

from collections.abc import Callable
from enum import Enum, auto

from calve.commit.adoption import Position
from calve.errors import TerminalError
from calve.model.spec import SinkSpec


class Room(Enum):
    """What to do before the next checkpoint is read."""

    FREE = auto()
    WAIT = auto()
    """For closing and committing, which need nothing of the source."""
    NONE = auto()
    """Waiting does not help: what is staged is complete only after more was read."""


def room_for_more(
    spec: SinkSpec, position: Position, is_due: Callable[[Position], object], *, catching_up: bool
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


def stage_is_full(spec: SinkSpec, position: Position) -> TerminalError:
    """Why a sink whose rows have times of their own cannot go on."""
    return TerminalError(
        "the stage is full, and none of its rows can be committed before more is read",
        detail=f"{position.held_bytes:,} bytes wait for their times to be complete; MAX STAGED SIZE is "
        f"{spec.staged_limit or 0:,} bytes.",
        hint="Raise MAX STAGED SIZE, or commit what is there, complete or not: calve run --until-caught-up.",
    )
