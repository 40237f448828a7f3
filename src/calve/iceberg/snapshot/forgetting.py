"""Excludes a sink from a table for good: its state is lost, and it will never run again.

The table gets a fence that no run of the sink passes, in an empty `replace` snapshot: a run that is about to commit
finds another head than the one that it built on, loads the table, and stops.
"""

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemovePropertiesUpdate, RemoveSnapshotRefUpdate, TableUpdate

from calve.catalog.connect import Catalog
from calve.catalog.failures import trying
from calve.catalog.outcome import send
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict, InvalidInput, ProgressUnprovable
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, retirement_update, snapshot_change
from calve.iceberg.snapshot.history import ancestors_of, head_of, new_summary, stated_progress
from calve.model.progress import Fence, Progress, sinks_named, state_key, tag_name
from calve.model.spec import TableName
from calve.retry import retry_on

ATTEMPTS = 20


def forget_sink(catalog: Catalog, name: TableName, sink_id: str, clock: Clock, ids: IdSource) -> None:
    """Retire a sink of a table. Raises InvalidInput if the table does not name it, CommitConflict, TransientError."""

    def attempt() -> None:
        table = load_table(catalog, name)
        known = sinks_named(table.properties)
        if sink_id not in known:
            raise InvalidInput(
                f'table "{name}" names no sink {sink_id}',
                hint=f"Its sinks are {', '.join(sorted(known))}." if known else "It names no sink at all.",
            )
        for branch in _branches_of(table, sink_id):
            _fence(table, branch, sink_id, clock, ids)
            table = load_table(catalog, name)

    retry_on(CommitConflict, ATTEMPTS, attempt)


def _branches_of(table: Table, sink_id: str) -> list[str]:
    """The branches that the sink may write to: main if its newest snapshot is there, else where it is, else all."""
    metadata = table.metadata
    branches = [n for n, ref in metadata.refs.items() if ref.snapshot_ref_type == SnapshotRefType.BRANCH]
    try:
        stated = stated_progress(metadata.properties, sink_id)
    except ProgressUnprovable:
        stated = None
    there = [
        name
        for name in branches
        if stated and any(s.snapshot_id == stated.snapshot_id for s in ancestors_of(metadata, head_of(metadata, name)))
    ]
    return [MAIN_BRANCH] if MAIN_BRANCH in there else there or branches or [MAIN_BRANCH]


def _fence(table: Table, branch: str, sink_id: str, clock: Clock, ids: IdSource) -> None:
    name, manifests = ".".join(table.name()), ManifestCache()
    draft = new_draft(table, clock, ids, branch)
    with trying(f'reading the manifest list of "{name}"'):
        lines = manifests.lines_of(table.io, draft.parent)
    try:
        stated = stated_progress(table.properties, sink_id)
    except ProgressUnprovable:
        stated = None
    retired = (stated or Progress.fresh(sink_id, Fence(0, 0, ""))).retire()
    updates: list[TableUpdate] = [retirement_update([retired])]
    if state_key(sink_id) in table.properties:
        updates.append(RemovePropertiesUpdate(removals=[state_key(sink_id)]))
    if tag_name(sink_id) in table.metadata.refs:
        updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": tag_name(sink_id)}))
    summary = new_summary(Operation.REPLACE, {}, draft.parent, {"calve.forgotten-sink": sink_id})
    contents = SnapshotContents(lines, shared=lines, summary=summary)
    send(snapshot_change(draft, contents, manifests, *updates), f'the fence of sink {sink_id} in "{name}"', "maintain")
