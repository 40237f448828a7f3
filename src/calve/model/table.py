"""An Iceberg table as the protocol sees it, and the commits that the protocol proposes.

`iceberg/sink_table.py` fills these from a real catalog; the simulation fills them from memory. The protocol itself
(`commit/`) knows nothing else of Iceberg.
"""

from dataclasses import dataclass, field
from typing import Any

from calve.model.files import FileTotals, Manifest
from calve.model.progress import Progress
from calve.model.scan import ContentId

REPLACE = "replace"
"""Operation of a snapshot that changes files but not rows."""
SAME_ROWS = "calve.same-rows"
"""Property, `true`, of a snapshot that changes no row although its operation is not `replace`."""


@dataclass(frozen=True)
class SnapshotInfo:
    """One snapshot. `own` is this sink's progress in its summary; None for snapshots of others."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    operation: str
    own: Progress | None
    same_rows: bool = False
    """Whether it is marked as one that changes no row."""

    @property
    def changes_rows(self) -> bool:
        """Whether it may change rows of the table."""
        return self.operation != REPLACE and not self.same_rows


@dataclass(frozen=True)
class TableState:
    """The table at one moment; a commit attempt builds on it and pins it."""

    uuid: str
    ancestors: tuple[SnapshotInfo, ...]
    """The branch's head first, as far back as snapshots are retained; empty if there is no snapshot."""
    stated: Progress | None
    """Progress in the table property."""
    has_data: bool
    """False only if no live data file can exist: a batch then needs no deletes."""
    handle: Any = field(default=None, compare=False, repr=False)
    """The store's own reference to this state."""
    others: tuple[Progress, ...] = ()
    """Progress of the other sinks of the branch."""
    format_version: int = 2
    """An upgrade changes it without a snapshot; it decides how deletes are written."""

    @property
    def head(self) -> int | None:
        """Snapshot id of the branch's head."""
        return self.ancestors[0].snapshot_id if self.ancestors else None


@dataclass(frozen=True)
class Proposal:
    """A snapshot to commit on top of a `TableState`.

    Without manifests it moves progress only (a claim, an empty batch).
    """

    progress: Progress
    manifests: tuple[Manifest, ...] = ()
    totals: FileTotals = FileTotals()
    replaces: bool = False
    """This snapshot removes all current rows of the table."""
    replaced_deletes: tuple[ContentId, ...] = ()
    """Deletes that this snapshot removes: the added ones contain their deletes."""
    retired: tuple[Progress, ...] = ()
    """Final progress of other sinks, which lose the table with this snapshot."""
