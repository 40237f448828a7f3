"""Consumers: tags that keep the history of a table for those that read its changes.

    calve-consumer-<name>-<sink id>  ──►  the newest snapshot whose changes the sink has committed

The tag is made before the first read, and moved forward after commits of the sink. Expiry and thinning spare the
snapshot of the tag and everything that follows it on its branch (`retention.py`). A tag that is not moved or renewed
for `max_hold_ms` is past its max-ref-age: the next expiry removes it, and what it kept.

Iceberg counts the age of a tag from the time of its snapshot, so the limit includes the age that the snapshot had when
the tag was moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
)

from calve.catalog.outcome import TableChange, send
from calve.clock import Clock
from calve.iceberg.snapshot.history import ancestors_of, head_of
from calve.iceberg.snapshot.holds import is_past_its_age
from calve.iceberg.snapshot.retention import CONSUMER_PREFIX

OF_STREAM = "00000000-0000-0000-0000-000000000000"
"""Stands for the sink in the tags of streaming DataFrames, whose queries are not calve's."""

_ID_LENGTH = 36


def consumer_tag(name: str, sink_id: str) -> str:
    """The tag of a sink that reads as a consumer."""
    return f"{CONSUMER_PREFIX}{name}-{sink_id}"


@dataclass(frozen=True)
class Consumer:
    """A consumer of a table, as its tag shows."""

    name: str
    sink_id: str
    snapshot_id: int
    behind: int | None
    """Snapshots on main that it has not committed; None if its snapshot does not lead to the head."""
    since_ms: int | None
    """When the first of them was committed; None if there is none."""
    released_ms: int | None
    """When an expiry may remove the tag, if the consumer makes no progress."""


def consumers_of(table: Table) -> Iterator[Consumer]:
    """The consumers of a table, by name."""
    chain = list(ancestors_of(table.metadata, head_of(table.metadata)))
    ids = [snapshot.snapshot_id for snapshot in chain]
    for tag, ref in sorted(table.metadata.refs.items()):
        if not tag.startswith(CONSUMER_PREFIX):
            continue
        known, at = tag.removeprefix(CONSUMER_PREFIX), ref.snapshot_id
        behind = ids.index(at) if at in ids else None
        snapshot = table.metadata.snapshot_by_id(at)
        age = ref.max_ref_age_ms
        yield Consumer(
            name=known[: -_ID_LENGTH - 1],
            sink_id=known[-_ID_LENGTH:],
            snapshot_id=at,
            behind=behind,
            since_ms=chain[behind - 1].timestamp_ms if behind else None,
            released_ms=None if age is None or snapshot is None else snapshot.timestamp_ms + age,
        )


def _follow(metadata: TableMetadata, snapshot_id: int) -> set[int]:
    """The snapshots of main after one of them. After a rollback, newer ones are not among them."""
    chain = [one.snapshot_id for one in ancestors_of(metadata, head_of(metadata))]
    return set(chain[: chain.index(snapshot_id)]) if snapshot_id in chain else set()


@dataclass(frozen=True)
class ConsumerTag:
    """The tag of one sink."""

    tag: str
    max_hold_ms: int
    clock: Clock

    def hold(self, table: Table, snapshot_id: int) -> bool:
        """Put the tag on a snapshot, if it is missing, not on one that follows it, or soon past its age.

        False if nothing was to do, or the snapshot is gone. Raises CommitConflict if the tag was moved meanwhile;
        TransientError.
        """
        metadata, ref = table.metadata, table.metadata.refs.get(self.tag)
        snapshot = metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            return False
        now_ms = self.clock.now_ms()
        if ref is not None:
            same = ref.snapshot_id == snapshot_id
            if same and not is_past_its_age(metadata, ref, now_ms + self.max_hold_ms // 2):
                return False
            if ref.snapshot_id in _follow(metadata, snapshot_id):
                return False
        tag = {
            "ref-name": self.tag,
            "type": SnapshotRefType.TAG,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": max(0, now_ms - snapshot.timestamp_ms) + self.max_hold_ms,
        }
        change = TableChange(
            table,
            self._unmoved(table, ref),
            (SetSnapshotRefUpdate.model_validate(tag),),
            done=lambda now: self._names(now, snapshot_id),
        )
        send(change, f'tag "{self.tag}"')
        return True

    def _names(self, table: Table, snapshot_id: int) -> bool:
        ref = table.metadata.refs.get(self.tag)
        return ref is not None and ref.snapshot_id == snapshot_id

    def _unmoved(self, table: Table, ref: SnapshotRef | None) -> tuple[TableRequirement, ...]:
        pinned = {"ref": self.tag, "snapshot-id": None if ref is None else ref.snapshot_id}
        return (AssertTableUUID(uuid=table.metadata.table_uuid), AssertRefSnapshotId.model_validate(pinned))
