"""Snapshots as the commit protocol sees them, and the summary of a new one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from calve.errors import ProgressUnprovable
from calve.model.files import Content, FileTotals, Manifest
from calve.model.numbers import whole_number
from calve.model.progress import SINK_ID, Progress, property_key, sinks_named, state_key
from calve.model.table import SAME_ROWS, SnapshotInfo

_TOTALS = {
    "total-data-files": "added-data-files",
    "total-delete-files": "added-delete-files",
    "total-records": "added-records",
    "total-files-size": "added-files-size",
    "total-position-deletes": "added-position-deletes",
    "total-equality-deletes": "added-equality-deletes",
}
_REMOVED = {
    "total-data-files": "deleted-data-files",
    "total-delete-files": "removed-delete-files",
    "total-records": "deleted-records",
    "total-files-size": "removed-files-size",
    "total-position-deletes": "removed-position-deletes",
    "total-equality-deletes": "removed-equality-deletes",
}


def head_of(metadata: TableMetadata, branch: str = MAIN_BRANCH) -> Snapshot | None:
    """The head of a branch; a branch that does not exist yet starts at the head of main."""
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)
    return None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)


def ancestors_of(metadata: TableMetadata, head: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first, as far back as they remain."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = head
    while snapshot is not None:
        yield snapshot
        snapshot = None if snapshot.parent_snapshot_id is None else by_id.get(snapshot.parent_snapshot_id)


class SnapshotInfos:
    """Snapshots as the protocol sees them. Each is parsed once, because it never changes.

    (Except for the parent id, which an expiry clears.)
    """

    def __init__(self, sink_id: str) -> None:
        self._sink_id = sink_id
        self._known: dict[tuple[int, int | None], SnapshotInfo] = {}

    def of(self, snapshots: Iterable[Snapshot]) -> tuple[SnapshotInfo, ...]:
        """The infos of these snapshots, in the same order."""
        infos: dict[tuple[int, int | None], SnapshotInfo] = {}
        for snapshot in snapshots:
            key = (snapshot.snapshot_id, snapshot.parent_snapshot_id)
            infos[key] = self._known.get(key) or _info(snapshot, self._sink_id)
        self._known = infos
        return tuple(infos.values())


def _info(snapshot: Snapshot, sink_id: str) -> SnapshotInfo:
    summary = snapshot.summary
    properties = summary.additional_properties if summary is not None else {}
    own = None
    if properties.get(SINK_ID) == sink_id:
        try:
            own = Progress.from_summary(
                properties, snapshot_id=snapshot.snapshot_id, sequence_number=snapshot.sequence_number or 0
            )
        except (KeyError, ValueError) as error:
            raise _unreadable(f"The summary of snapshot {snapshot.snapshot_id}", sink_id, error) from error
    return SnapshotInfo(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        operation=summary.operation.value if summary is not None else Operation.OVERWRITE.value,
        own=own,
        same_rows=properties.get(SAME_ROWS) == "true",
    )


def stated_progress(properties: Mapping[str, str], sink_id: str) -> Progress | None:
    """The progress in the table property of a sink. Raises ProgressUnprovable if it cannot be read."""
    text = properties.get(property_key(sink_id))
    if text is None:
        return None
    try:
        return Progress.from_property(text)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(f"The table property {property_key(sink_id)}", sink_id, error) from error


def is_retired(properties: Mapping[str, str], sink_id: str) -> bool:
    """Whether another sink adopted the table, for good; False if the property cannot be read."""
    with suppress(ProgressUnprovable):
        stated = stated_progress(properties, sink_id)
        return stated is not None and stated.fence.retired
    return False


@dataclass(frozen=True)
class NamedSink:
    """A sink that may still commit to the table."""

    sink_id: str
    state_location: str | None
    """None if the table does not state it: a version of calve that did not write it made the last commit."""
    epoch: int | None
    """The epoch of its newest run in the table; None if its progress cannot be read."""


def named_sinks(properties: Mapping[str, str]) -> tuple[NamedSink, ...]:
    """The sinks that may still commit to a table with these properties, by id."""
    found = []
    for sink_id in sorted(sinks_named(properties)):
        if is_retired(properties, sink_id):
            continue
        epoch = None
        with suppress(ProgressUnprovable):
            stated = stated_progress(properties, sink_id)
            epoch = stated.fence.epoch if stated else None
        found.append(NamedSink(sink_id, properties.get(state_key(sink_id)), epoch))
    return tuple(found)


def other_sinks(metadata: TableMetadata, branch: str, sink_id: str) -> tuple[Progress, ...]:
    """Progress of the other sinks that write to a branch: their newest snapshot is on it, and not on main before it.

    Properties that cannot be read are ignored.
    """
    others = [other for other in sinks_named(metadata.properties) if other != sink_id]
    if not others or branch not in metadata.refs:
        return ()
    there = {s.snapshot_id for s in ancestors_of(metadata, head_of(metadata, branch))}
    if branch != MAIN_BRANCH:
        there -= {s.snapshot_id for s in ancestors_of(metadata, head_of(metadata))}
    found = []
    for other in others:
        with suppress(ProgressUnprovable):
            found.append(stated_progress(metadata.properties, other))
    return tuple(p for p in found if p is not None and p.snapshot_id in there)


@dataclass(frozen=True)
class TableTotals:
    """How much a table contains."""

    files: int
    """Data files and delete files."""
    bytes: int
    rows: int | None
    """Including deleted ones; None if they were not counted."""


def totals_of(table: Table, branch: str = MAIN_BRANCH) -> TableTotals:
    """What the head of a branch contains, according to its summary; zero where that does not say."""
    head = head_of(table.metadata, branch)
    summary = head.summary.additional_properties if head is not None and head.summary is not None else {}
    count = {name: whole_number(summary.get(name, "")) or 0 for name in _TOTALS}
    files = count["total-data-files"] + count["total-delete-files"]
    return TableTotals(files, count["total-files-size"], count["total-records"])


def has_data(head: Snapshot | None) -> bool:
    """False only if certainly no live data file exists."""
    if head is None:
        return False
    return head.summary is None or head.summary.additional_properties.get("total-data-files") != "0"


def operation_of(manifests: Sequence[Manifest]) -> Operation:
    """The operation of a snapshot that adds these manifests: append, delete, or overwrite for both."""
    data = any(manifest.content is Content.DATA for manifest in manifests)
    deletes = any(manifest.content is not Content.DATA for manifest in manifests)
    if data and deletes:
        return Operation.OVERWRITE
    return Operation.DELETE if deletes else Operation.APPEND


def added_counts(totals: FileTotals) -> dict[str, int]:
    """Counts of a batch under the names of the specification, without zeros."""
    counts = {
        "added-data-files": totals.data_files,
        "added-records": totals.data_rows,
        "added-delete-files": totals.equality_delete_files + totals.position_delete_files + totals.vectors,
        "added-equality-delete-files": totals.equality_delete_files,
        "added-equality-deletes": totals.equality_deletes,
        "added-position-delete-files": totals.position_delete_files,
        "added-dvs": totals.vectors,
        "added-position-deletes": totals.position_deletes,
        "added-files-size": totals.data_bytes + totals.delete_bytes,
    }
    return {name: count for name, count in counts.items() if count}


def new_summary(
    operation: Operation,
    added: Mapping[str, int],
    parent: Snapshot | None,
    extra: Mapping[str, str],
    *,
    removed: Mapping[str, int] | None = None,
) -> Summary:
    """The summary of a snapshot on top of `parent`, with updated totals. A total that the parent lacks stays unknown.

    Without a parent, totals start at zero: everything that existed is in `removed`.
    """
    gone = removed or {}
    left_of = gone if parent is not None else {}
    before: Mapping[str, str] = dict.fromkeys(_TOTALS, "0")
    if parent is not None:
        before = parent.summary.additional_properties if parent.summary is not None else {}
    totals = {
        name: str(max(0, total + added.get(addition, 0) - left_of.get(_REMOVED[name], 0)))
        for name, addition in _TOTALS.items()
        if (total := whole_number(before.get(name, ""))) is not None
    }
    counts = {name: str(count) for name, count in {**added, **gone}.items()}
    return Summary(operation, **counts, **totals, **extra)


def _unreadable(where: str, sink_id: str, error: Exception) -> ProgressUnprovable:
    return ProgressUnprovable(
        "the progress of the sink cannot be read",
        detail=f"{where} names sink {sink_id} but is incomplete: {type(error).__name__} {error}.",
        hint="It was changed from outside; restore it, or accept a snapshot by hand.",
    )
