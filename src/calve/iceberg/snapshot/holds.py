"""Holds: tags that keep history during long work, so that expiry cannot invalidate the work.

    calve-hold-<id>             ──►  a snapshot     kept, with everything that follows it on its branch
    calve-hold-<sink id>-<id>                       the same, for work of a sink: its next hold removes it

Work that is based on a snapshot, and must prove later that the head descends from it, takes a hold before it begins,
moves the hold forward along the branch from time to time, and releases it at the end. A process that dies leaves its
tag behind; its max-ref-age ends the hold a day later, for calve's expiry and for every other engine's.

Iceberg counts the age of a tag from the time of its snapshot, so the age limit of a hold includes the age that its
snapshot had when the hold was taken or moved.
"""

import logging
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.update import (
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from calve.catalog.connect import Catalog
from calve.catalog.outcome import TableChange, send
from calve.clock import Clock
from calve.errors import CommitConflict, InvalidInput, TransientError
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.history import ancestors_of, head_of
from calve.iceberg.snapshot.retention import HOLD_PREFIX
from calve.model.spec import TableName

PREFIX = HOLD_PREFIX
HOLD_MS = 24 * 3_600_000
"""A hold that is not renewed ends after this time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HoldPlace:
    """Where holds are taken: one branch of one table."""

    catalog: Catalog
    name: TableName
    clock: Clock
    branch: str = MAIN_BRANCH
    sink_id: str = ""
    """The sink that does the work, with one hold at a time; empty for work by hand."""


class Hold:
    """One hold. It keeps `snapshot_id`: the snapshot it was taken on, or a descendant that it was moved to."""

    def __init__(self, place: HoldPlace, hold_id: str, table: Table, snapshot_id: int) -> None:
        """Take a hold on a snapshot of `table`. Raises CommitConflict if that snapshot is gone, TransientError."""
        family = f"{PREFIX}{place.sink_id}-" if place.sink_id else PREFIX
        self._place, self.tag, self.snapshot_id = place, f"{family}{hold_id}", snapshot_id
        left = [name for name in table.metadata.refs if place.sink_id and name.startswith(family)]
        self._put(table, snapshot_id, tuple(_removal(name) for name in left))

    def renew(self) -> None:
        """Move the hold to the head of the branch, if the head descends from it. Raises TransientError."""
        table = self._load()
        head, ref = head_of(table.metadata, self._place.branch), table.metadata.refs.get(self.tag)
        if head is None or not descends_from(table.metadata, self._place.branch, self.snapshot_id):
            return  # rolled back: the work is useless, unless the rollback is undone
        soon = self._place.clock.now_ms() + HOLD_MS // 2
        if ref is None or ref.snapshot_id != head.snapshot_id or is_past_its_age(table.metadata, ref, soon):
            self._put(table, head.snapshot_id)

    def release(self) -> None:
        """Remove the tag; if that fails, the tag expires by its age."""
        try:
            table = self._load()
            if self.tag in table.metadata.refs:
                gone = TableChange(
                    table, _same(table), self.release_updates(), done=lambda now: self.tag not in now.refs()
                )
                send(gone, f'the removal of tag "{self.tag}"')
        except (TransientError, InvalidInput) as error:
            _log.info("tag %s of %s was not removed, expires by age: %s", self.tag, self._place.name, error.primary)

    def release_updates(self) -> tuple[TableUpdate, ...]:
        """The updates with which the commit that completes the work releases the hold."""
        return (_removal(self.tag),)

    def _names(self, table: Table, snapshot_id: int) -> bool:
        ref = table.metadata.refs.get(self.tag)
        return ref is not None and ref.snapshot_id == snapshot_id

    def _load(self) -> Table:
        return load_table(self._place.catalog, self._place.name)

    def _put(self, table: Table, snapshot_id: int, removals: tuple[TableUpdate, ...] = ()) -> None:
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise CommitConflict(f"snapshot {snapshot_id} is no longer in the table")
        age = max(0, self._place.clock.now_ms() - snapshot.timestamp_ms)
        tag = {
            "ref-name": self.tag,
            "type": SnapshotRefType.TAG,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": age + HOLD_MS,
        }
        updates = (*removals, SetSnapshotRefUpdate.model_validate(tag))
        send(
            TableChange(table, _same(table), updates, done=lambda now: self._names(now, snapshot_id)),
            f'tag "{self.tag}"',
        )
        self.snapshot_id = snapshot_id


def descends_from(metadata: TableMetadata, branch: str, snapshot_id: int) -> bool:
    """Whether the head of a branch is this snapshot or provably descends from it."""
    return any(s.snapshot_id == snapshot_id for s in ancestors_of(metadata, head_of(metadata, branch)))


def is_past_its_age(metadata: TableMetadata, ref: SnapshotRef, now_ms: int) -> bool:
    """Whether a tag or branch is older than its max-ref-age; False without one."""
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    if ref.max_ref_age_ms is None or snapshot is None:
        return False
    return now_ms - snapshot.timestamp_ms > ref.max_ref_age_ms


def _same(table: Table) -> tuple[TableRequirement, ...]:
    return (AssertTableUUID(uuid=table.metadata.table_uuid),)


def _removal(tag: str) -> TableUpdate:
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": tag})
