"""What the protocol sees of an Iceberg table, and what it asks to be committed.

`iceberg/sink_table.py` fills these from a real catalog; the simulation fills them from memory. The protocol itself
(`commit/`) knows nothing else of Iceberg.
"""

from dataclasses import dataclass, field
from typing import Any

from calve.model.files import FileTotals, Manifest
from calve.model.progress import Progress

REPLACE = "replace"
"""Operation of a snapshot that changes files and no rows."""


@dataclass(frozen=True)
class SnapshotInfo:
    """One snapshot. `own` is this sink's progress as its summary states it, None for everybody else's."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    operation: str
    own: Progress | None


@dataclass(frozen=True)
class TableState:
    """The table at one moment: what an attempt builds on and pins."""

    uuid: str
    ancestors: tuple[SnapshotInfo, ...]
    """The branch's head first, as far back as snapshots remain; empty without any snapshot."""
    stated: Progress | None
    """Progress in the table property."""
    has_data: bool
    """False only when no live data file can exist: a batch then needs no deletes."""
    handle: Any = field(default=None, compare=False, repr=False)
    """The store's own reference to this state."""
    others: tuple[Progress, ...] = ()
    """Progress of the other sinks of the branch."""

    @property
    def head(self) -> int | None:
        """Snapshot id of the branch's head."""
        return self.ancestors[0].snapshot_id if self.ancestors else None


@dataclass(frozen=True)
class Proposal:
    """A snapshot to be added on top of a `TableState`.

    Without manifests it moves progress only (a claim, an empty batch).
    """

    progress: Progress
    manifests: tuple[Manifest, ...] = ()
    totals: FileTotals = FileTotals()
    replaces: bool = False
    """Everything that the table holds goes out with this snapshot."""
    replaced_deletes: tuple[str, ...] = ()
    """Files of deletes that go out: what they delete is among those that come in."""
    retired: tuple[Progress, ...] = ()
    """Other sinks that lose the table with this snapshot, and what their properties say from then on."""
