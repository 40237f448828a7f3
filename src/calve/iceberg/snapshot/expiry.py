"""Expires snapshots in a separate commit, which never drops a tag or branch that somebody created meanwhile.

Metadata is read and written whole, so every commit costs time proportional to the length of the history.

Catalogs silently remove tags and branches when their snapshot is removed. So expiry is never part of a batch's commit:
the table is loaded immediately before, and the commit fails unless all tags and branches are still as loaded. Catalogs
that pyiceberg itself updates (embedded, SQL, Glue, Hive) check this on the metadata that they swap. The REST protocol
can pin known refs but cannot exclude new ones: there, a window of milliseconds between load and commit remains.

`Retention` keeps the newest `keep_all` snapshots, and of the older ones the first of each hour. Snapshots older than
`max_age_ms` expire, except for the newest `min_keep`. Protected snapshots are always kept:
- all ancestors of other branches;
- what a hold keeps (`holds`), and everything after it on the branches that descend from it;
- for every sink with progress in the table, everything from its newest snapshot to the heads that descend from it, so
  that an idle sink can prove its progress after compactions and commits of others.
At most `MOST_HELD` snapshots of a branch are protected in the last two ways.

pyiceberg clears the parent id of a snapshot whose parent expires. So the chain of ancestors of the head ends at the
last of the newest ones, and the hourly ones are found only by id and by time. A sink reads its progress from its newest
own ancestor, hence the protection of everything between that and the head.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, cast

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from calve.catalog.outcome import TableChange, send
from calve.catalog.rest import checks_requirements_itself
from calve.iceberg.snapshot.history import ancestors_of, head_of, is_retired
from calve.iceberg.snapshot.holds import PREFIX, is_past_its_age
from calve.model.progress import PROPERTY_PREFIX, SINK_ID, tag_name

HOUR_MS = 3_600_000
MAX_AGE_MS = 7 * 24 * HOUR_MS
KEEP_ALL = 50
BATCH = 10
"""Snapshots expire in batches of at least this many, because each expiry is a separate commit."""


@dataclass(frozen=True)
class Retention:
    """How long snapshots are kept."""

    max_age_ms: int = MAX_AGE_MS
    min_keep: int = 1
    keep_all: int = KEEP_ALL

    @classmethod
    def of(cls, table_properties: Mapping[str, str], max_age_ms: int | None, min_keep: int | None) -> "Retention":
        """The retention of the table's properties; the two values of its branch, if set, take precedence."""
        age = table_properties.get("history.expire.max-snapshot-age-ms", str(MAX_AGE_MS))
        least = table_properties.get("history.expire.min-snapshots-to-keep", "1")
        return cls(
            max_age_ms=max_age_ms if max_age_ms is not None else _number(age, MAX_AGE_MS),
            min_keep=min_keep if min_keep is not None else _number(least, 1),
        )


@dataclass(frozen=True)
class Aged:
    """What retention needs to know about a snapshot."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int


def expired(
    snapshots: Iterable[Aged], protected: Collection[int], retention: Retention, now_ms: int
) -> tuple[int, ...]:
    """Ids of the expired snapshots, oldest first; none while there are fewer than a batch."""
    newest_first = sorted(snapshots, key=lambda s: s.sequence_number, reverse=True)
    gone: list[int] = []
    hours: set[int] = set()
    for age_rank in range(len(newest_first) - 1, retention.min_keep - 1, -1):
        snapshot = newest_first[age_rank]
        hour = snapshot.timestamp_ms // HOUR_MS
        if snapshot.snapshot_id in protected:
            hours.add(hour)
        elif now_ms - snapshot.timestamp_ms > retention.max_age_ms:
            gone.append(snapshot.snapshot_id)
        elif age_rank >= retention.keep_all:
            if hour in hours:
                gone.append(snapshot.snapshot_id)
            hours.add(hour)
    return tuple(gone) if len(gone) >= BATCH else ()


def _number(text: str, default: int) -> int:
    return int(text) if text.isdigit() else default


MOST_HELD = 2000
"""The most snapshots, counted from the head of a branch, that holds and idle sinks keep."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expiry:
    """The snapshots and tags to remove."""

    snapshots: tuple[int, ...]
    tags: tuple[str, ...]

    @property
    def updates(self) -> tuple[TableUpdate, ...]:
        """Remove tags first, so that no tag refers to a removed snapshot."""
        tags = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in self.tags]
        return (*tags, RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(self.snapshots)}))

    def is_in(self, table: Table) -> bool:
        """Whether the table has none of these snapshots any longer."""
        return not any(table.metadata.snapshot_by_id(gone) for gone in self.snapshots)


def may_be_due(metadata: TableMetadata, branch: str, now_ms: int) -> bool:
    """A cheap test: False if certainly nothing expires, which is usual."""
    retention = _retention_of(metadata, branch)
    snapshots = metadata.snapshots
    oldest_ms = min((s.timestamp_ms for s in snapshots), default=now_ms)
    return len(snapshots) > retention.keep_all + BATCH or now_ms - oldest_ms > retention.max_age_ms


def expiry_of(metadata: TableMetadata, branch: str, now_ms: int) -> Expiry | None:
    """What expires by the retention of `branch`; None while it is too little for a commit."""
    over = _tags_past_their_age(metadata, now_ms)
    refs = {name: ref for name, ref in metadata.refs.items() if name not in over}
    aged = [Aged(s.snapshot_id, s.sequence_number or 0, s.timestamp_ms) for s in metadata.snapshots]
    gone = expired(aged, _kept(metadata, refs, branch), _retention_of(metadata, branch), now_ms)
    return Expiry(gone, over) if gone else None


def expire(table: Table, branch: str, now_ms: int) -> TableMetadata | None:
    """Commit the expiry of `table`, which was just loaded; returns the new metadata, None if nothing expired.

    Raises CommitConflict if a tag or branch was created, moved or removed meanwhile; CommitUnknown, TransientError.
    """
    expiry = expiry_of(table.metadata, branch, now_ms)
    if expiry is None:
        return None
    name = ".".join(table.name())
    pinned = (AssertTableUUID(uuid=table.metadata.table_uuid), *same_refs(table))
    change = TableChange(table, pinned, expiry.updates, done=expiry.is_in)
    after = send(change, f'the expiry of snapshots of "{name}"')
    _log.info("%d snapshots of %s expired, %d are left", len(expiry.snapshots), name, len(after.snapshots))
    return after


class AssertSameRefs(ValidatableTableRequirement):
    """Requires exactly these branches and tags. The client checks it on the metadata it swaps; not part of REST."""

    type: Literal["calve-assert-same-refs"] = "calve-assert-same-refs"
    refs: dict[str, SnapshotRef]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override] # as pyiceberg's own
        """Raises CommitFailedException."""
        found = base_metadata.refs if base_metadata is not None else {}
        if found != self.refs:
            changed = sorted(n for n in {*found, *self.refs} if found.get(n) != self.refs.get(n))
            raise CommitFailedException(f"Requirement failed: branches or tags changed: {', '.join(changed)}")


def same_refs(table: Table) -> tuple[TableRequirement, ...]:
    """The requirements of a commit that removes snapshots: branches and tags are as they were loaded."""
    refs = table.metadata.refs
    if not checks_requirements_itself(table.catalog):
        return (cast("TableRequirement", AssertSameRefs(refs=dict(refs))),)
    pinned = [{"ref": name, "snapshot-id": ref.snapshot_id} for name, ref in refs.items()]
    return tuple(AssertRefSnapshotId.model_validate(one) for one in pinned)


def _retention_of(metadata: TableMetadata, branch: str) -> Retention:
    ref = metadata.refs.get(branch)
    return Retention.of(
        metadata.properties,
        max_age_ms=ref.max_snapshot_age_ms if ref else None,
        min_keep=ref.min_snapshots_to_keep if ref else None,
    )


def _tags_past_their_age(metadata: TableMetadata, now_ms: int) -> tuple[str, ...]:
    """Tags that are older than their age limit, except for those of sinks, which never expire."""
    own = {tag_name(sink_id) for sink_id in _sinks(metadata)}
    return tuple(
        name
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type == SnapshotRefType.TAG and name not in own and is_past_its_age(metadata, ref, now_ms)
    )


def _kept(metadata: TableMetadata, refs: Mapping[str, SnapshotRef], branch: str) -> set[int]:
    """Snapshots that stay regardless of their age."""
    kept = {ref.snapshot_id for ref in refs.values()}
    held = {ref.snapshot_id for name, ref in refs.items() if name.startswith(PREFIX)}
    sinks = _sinks(metadata)
    for name, ref in refs.items():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            history = ancestors_of(metadata, head_of(metadata, name))
            if name == branch:
                kept.update(_needed(list(islice(history, MOST_HELD)), held, sinks))
            else:
                kept.update(snapshot.snapshot_id for snapshot in history)
    return kept


def _needed(history: list[Snapshot], held: set[int], sinks: set[str]) -> list[int]:
    """All of a branch's snapshots, newest first, down to the oldest that is held or that is a sink's newest."""
    depth, unseen = 0, set(sinks)
    for number, snapshot in enumerate(history, start=1):
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        sink_id = summary.get(SINK_ID)
        if snapshot.snapshot_id in held or sink_id in unseen:
            depth = number
            unseen.discard(sink_id or "")
    return [snapshot.snapshot_id for snapshot in history[:depth]]


def _sinks(metadata: TableMetadata) -> set[str]:
    """Ids of the sinks with progress in the table, except for retired ones."""
    known = {key.removeprefix(PROPERTY_PREFIX) for key in metadata.properties if key.startswith(PROPERTY_PREFIX)}
    return {sink_id for sink_id in known if not is_retired(metadata.properties, sink_id)}
