"""Expires snapshots in a separate commit, which never drops a tag or branch that somebody created meanwhile.

    what expires (retention.py) ──► journal entry ──► commit ──► files are removed later (maintain/removal.py)

Metadata is read and written whole, so every commit costs time proportional to the length of the history.

Catalogs silently remove tags and branches when their snapshot is removed. So expiry is never part of a batch's commit:
the table is loaded immediately before, and the commit fails unless all tags and branches are still as loaded. Catalogs
that pyiceberg itself updates (embedded, SQL, Glue, Hive) check this on the metadata that they swap. The REST protocol
can pin known refs but cannot exclude new ones: there, a window of milliseconds between load and commit remains. A tag
that is lost in it is found in the metadata before the commit, and the files of its snapshot are not removed.
"""

import logging
from dataclasses import dataclass
from typing import Literal, cast

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from calve.catalog.outcome import TableChange, send, shows_no_history
from calve.catalog.rest import checks_requirements_itself
from calve.clock import IdSource
from calve.iceberg.snapshot import retention
from calve.iceberg.snapshot.history import is_retired
from calve.iceberg.snapshot.removal_journal import RemovalEntry, RemovalJournal, RemovedSnapshot, journalled
from calve.iceberg.snapshot.retention import Expired, ExpiryPolicy, History, PastRef, PastSnapshot
from calve.model.progress import SINK_ID, sinks_named
from calve.model.spec import RetentionOptions
from calve.storage.filesystems import keeps_everything

_WAP_ID = "wap.id"

_log = logging.getLogger(__name__)


def history_of(metadata: TableMetadata) -> History:
    """The history of a table, as retention sees it."""
    return History(
        {one.snapshot_id: _past(one) for one in metadata.snapshots},
        {name: _ref(ref) for name, ref in metadata.refs.items()},
        tuple((entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log),
        metadata.properties,
        frozenset(sinks_of(metadata)),
    )


def _past(snapshot: Snapshot) -> PastSnapshot:
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return PastSnapshot(
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number or 0,
        snapshot.timestamp_ms,
        summary.get(SINK_ID),
        _WAP_ID in summary,
    )


def _ref(ref: SnapshotRef) -> PastRef:
    return PastRef(
        ref.snapshot_id,
        ref.snapshot_ref_type == SnapshotRefType.BRANCH,
        ref.max_ref_age_ms,
        ref.max_snapshot_age_ms,
        ref.min_snapshots_to_keep,
    )


def sinks_of(metadata: TableMetadata) -> set[str]:
    """Ids of the sinks with progress in the table, except for retired ones."""
    return {sink_id for sink_id in sinks_named(metadata.properties) if not is_retired(metadata.properties, sink_id)}


def refusal_of(table: Table) -> str:
    """Why neither snapshots nor files of a table may be removed; empty if they may."""
    enabled = table.metadata.properties.get("gc.enabled", "true").strip().lower()
    if enabled != "true":
        return f'the table property gc.enabled is "{enabled}"'
    # Metadata that this process writes is complete, even if only one snapshot is left.
    if checks_requirements_itself(table.catalog) and shows_no_history(table.metadata):
        return "the catalog shows only the newest snapshot of the table"
    if keeps_everything(table.location()):
        return "the catalog expires snapshots by itself (S3 Tables)"
    return ""


def may_be_due(metadata: TableMetadata, policy: ExpiryPolicy) -> bool:
    """A cheap test: False if certainly nothing expires, which is usual."""
    ref = metadata.refs.get(policy.branch)
    found = retention.Retention.of(metadata.properties, _ref(ref) if ref else None, policy.options)
    oldest_ms = min((s.timestamp_ms for s in metadata.snapshots), default=policy.now_ms)
    return retention.may_be_due(len(metadata.snapshots), oldest_ms, policy, found)


def retention_warning(table: Table, branch: str, options: RetentionOptions) -> str:
    """What to tell the user about a retention that is too short; empty if it is not."""
    ref = table.metadata.refs.get(branch)
    return retention.warning_of(table.metadata.properties, _ref(ref) if ref else None, options)


@dataclass(frozen=True)
class Expiry:
    """A commit that removes snapshots and refs of a table."""

    table: Table
    expired: Expired

    @property
    def updates(self) -> tuple[TableUpdate, ...]:
        """Remove refs first, so that none refers to a removed snapshot. Statistics go with their snapshots."""
        gone = set(self.expired.snapshots)
        metadata = self.table.metadata
        refs = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in self.expired.refs]
        statistics = [
            RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": number})
            for number in dict.fromkeys(one.snapshot_id for one in metadata.partition_statistics)
            if number in gone
        ]
        ids = list(self.expired.snapshots)
        snapshots = [RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})] if ids else []
        return (*refs, *statistics, *snapshots)

    def is_in(self, table: Table) -> bool:
        """Whether the table has none of these snapshots and refs any longer."""
        metadata = table.metadata
        there = any(metadata.snapshot_by_id(gone) for gone in self.expired.snapshots)
        return not there and (bool(self.expired.snapshots) or not set(self.expired.refs) & metadata.refs.keys())

    def entry(self, entry_id: str, now_ms: int) -> RemovalEntry:
        """The journal entry with which the files of these snapshots are found later."""
        metadata, gone = self.table.metadata, set(self.expired.snapshots)
        near = history_of(metadata).without(self.expired.refs).in_ancestry
        files = (*metadata.statistics, *metadata.partition_statistics)
        return RemovalEntry(
            entry_id,
            str(metadata.table_uuid),
            tuple(
                RemovedSnapshot(s.snapshot_id, s.manifest_list, _past(s).sink_id, s.snapshot_id not in near)
                for s in metadata.snapshots
                if s.snapshot_id in gone
            ),
            tuple(dict.fromkeys(one.statistics_path for one in files if one.snapshot_id in gone)),
            now_ms,
        )


def expiry_of(table: Table, policy: ExpiryPolicy) -> Expiry | None:
    """What expires of a table; None if nothing does."""
    expired = retention.expired(history_of(table.metadata), policy)
    return Expiry(table, expired) if expired.snapshots or expired.refs else None


def expire(
    table: Table, policy: ExpiryPolicy, journal: RemovalJournal | None = None, ids: IdSource | None = None
) -> tuple[TableMetadata, Expired] | None:
    """Commit the expiry of `table`, which was just loaded; returns the new metadata, None if nothing expired.

    With a journal, the files of the expired snapshots can be removed later. The caller checks `refusal_of` before.
    Raises CommitConflict if a tag or branch was created, moved or removed meanwhile; CommitUnknown, TransientError.
    """
    expiry = expiry_of(table, policy)
    if expiry is None:
        return None
    name = ".".join(table.name())
    pinned = (AssertTableUUID(uuid=table.metadata.table_uuid), *same_refs(table))
    change = TableChange(table, pinned, expiry.updates, done=expiry.is_in)
    what = f'the expiry of snapshots of "{name}"'
    if journal is not None and ids is not None and expiry.expired.snapshots:
        entry = expiry.entry(ids.new_id(), policy.now_ms)
        after = journalled(journal, entry, lambda: send(change, what))
    else:
        after = send(change, what)
    _log.info("%d snapshots of %s expired, %d are left", len(expiry.expired.snapshots), name, len(after.snapshots))
    return after, expiry.expired


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
