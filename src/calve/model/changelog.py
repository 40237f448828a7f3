"""What has to be read to find the changes between two snapshots. Plain values that go to executors by pickle.

steps         snapshots of the range, oldest first, each compared with its parent
transitions   how one step changes which rows of a file are live
files         data files with all their transitions; each is read once, whatever the number of steps
"""

from enum import StrEnum

from calve.model.scan import EVERYTHING, Condition, DeleteFile, DeleteKind, ScanFile
from calve.values import value

CHANGE_TYPE, VERSION, TIMESTAMP, FRONTIER = "_change_type", "_commit_version", "_commit_timestamp", "_calve_frontier"
"""Columns that changes have besides those of the table."""
SNAPSHOT, EARLIEST, LATEST = "snapshot", "earliest", "latest"
START_WORDS = frozenset({SNAPSHOT, EARLIEST, LATEST})
"""Where changes of a table may start, besides a snapshot, a time, a frontier, a branch or a tag of it."""

MAX_HOLD_MS = 7 * 24 * 3_600_000
"""How long a consumer without progress keeps snapshots, unless it says otherwise."""
CHANGE_COLUMNS = (CHANGE_TYPE, VERSION, TIMESTAMP, FRONTIER)


@value
class TablePlace:
    """How far the history of a table was read: up to and including a snapshot, or nothing (None) of an empty table."""

    uuid: str
    snapshot_id: int | None
    sequence_number: int


class ChangeType(StrEnum):
    """What a row of a change feed is."""

    INSERT = "insert"
    DELETE = "delete"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"


@value
class ChangeStep:
    """A snapshot whose rows may differ from those of the snapshot before it."""

    snapshot_id: int
    version: int
    """Its sequence number."""
    timestamp_ms: int
    frontier: str | None
    """As in its summary, if a calve sink committed it."""
    rewrites: int = 0
    """How many snapshots of the range before it only rewrote files."""


Deletes = tuple[DeleteFile, ...]


@value
class Transition:
    """The deletes of a file before and after a step; None where the file is not in the table."""

    step: int
    """Its number in the range."""
    before: Deletes | None
    after: Deletes | None
    images: bool = False
    """The step may add the same rows again, in other files: all columns of deleted rows are compared."""

    @property
    def differing(self) -> frozenset[DeleteFile]:
        """Deletes of one side only, if the file is on both."""
        if self.before is None or self.after is None:
            return frozenset()
        return frozenset(self.before) ^ frozenset(self.after)


@value
class ChangedFile:
    """A data file of which some rows may appear or disappear within the range."""

    file: ScanFile
    """Its deletes are those of all transitions."""
    transitions: tuple[Transition, ...]
    """In the order of their steps. A file that a snapshot lists twice has two of one step."""
    number: int = 0
    """Its number in the range: with a position, it names a row."""

    @property
    def is_read_whole(self) -> bool:
        """Whether the file enters or leaves the table within the range."""
        return any(t.before is None or t.after is None for t in self.transitions)


@value
class ChangeScanPlan:
    """The plan to read the changes of a range."""

    since_id: int | None
    """None for the start of the table."""
    until_id: int | None
    """None for a table without snapshots."""
    steps: tuple[ChangeStep, ...]
    files: tuple[ChangedFile, ...]
    snapshots: int
    """Number in the range, including those that change no rows."""
    gap: str = ""
    """Why only the two ends were compared; empty if every step is known."""
    where: Condition = EVERYTHING

    def deletes(self, kind: DeleteKind) -> Deletes:
        """The deletes of a kind that apply to any of the files, each once."""
        return tuple({d: None for changed in self.files for d in changed.file.deletes if d.kind is kind})

    @property
    def rows(self) -> int:
        """About the most rows that may have changed."""
        transitions = [(changed, t) for changed in self.files for t in changed.transitions]
        whole = sum(c.file.rows for c, t in transitions if t.before is None or t.after is None)
        differing = {d: None for _, t in transitions for d in t.differing if d.kind is not DeleteKind.VECTOR}
        vectors = sum(abs(_in_vectors(t.after) - _in_vectors(t.before)) for _, t in transitions if t.differing)
        return whole + vectors + sum(delete.rows for delete in differing)


def _in_vectors(deletes: Deletes | None) -> int:
    """Rows that vectors delete: each contains those of the one before it."""
    return sum(delete.rows for delete in deletes or () if delete.kind is DeleteKind.VECTOR)
