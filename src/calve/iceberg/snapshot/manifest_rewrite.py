"""Rewrites manifests so that each has the files of few partitions: planners then skip most of them.

    plan ──► entries of all manifests, by spec and partition ──► new manifests ──► head ──► one `replace` snapshot

Entries keep their snapshot ids and sequence numbers, so that deletes apply as before, and state the first row ids that
they inherited, so that rows keep theirs. New manifests are written once;
every attempt to commit adds its own snapshot id to them. Commits of others in between do not matter as long as the
replaced manifests are still in the table: what they added stays in their own manifests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

from calve.catalog.discard import discard
from calve.catalog.failures import trying
from calve.catalog.outcome import send
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict, InvalidInput
from calve.iceberg.files.content import content_id, first_row_id_of
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import TARGET_BYTES, manifest_place, write_existing
from calve.iceberg.loading import FORMAT_VERSIONS
from calve.iceberg.planning.delete_index import partition_of
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import head_of, new_summary
from calve.model.scan import ContentId
from calve.model.spec import LATEST_FORMAT

ENOUGH = 500
"""Entries from which on a manifest ends with its last partition: opening many small ones costs more than it saves."""
_LATER_FIELDS = range(16, 20)
"""Places in a data file record of fields that manifests of version 2 cannot have, or that are optional there."""


@dataclass(frozen=True)
class ManifestGroup:
    """The entries of one new manifest."""

    content: ManifestContent
    spec_id: int
    entries: tuple[ManifestEntry, ...]


@dataclass(frozen=True)
class ManifestPlan:
    """Which manifests of a snapshot are replaced, and by what."""

    table: Table
    branch: str
    replaced: tuple[ManifestFile, ...]
    groups: tuple[ManifestGroup, ...]
    kept: int
    """Manifests that stay as they are."""

    @property
    def entries(self) -> int:
        """The number of entries to rewrite."""
        return sum(len(group.entries) for group in self.groups)


@dataclass
class WrittenManifests:
    """New manifests that are not committed yet."""

    plan: ManifestPlan
    manifests: tuple[ManifestFile, ...]
    unknown: bool = False
    """Whether a commit of them failed without a conflict: then they may be in the table."""

    def discard(self, why: str) -> None:
        """Remove them, unless they may be in the table."""
        if not self.unknown:
            discard(self.plan.table.io, [one.manifest_path for one in self.manifests], why)


def plan_manifests(table: Table, branch: str = MAIN_BRANCH, enough: int = ENOUGH) -> ManifestPlan | None:
    """Plan a rewrite; None if the manifests are as they should be. Raises TransientError, InvalidInput."""
    name = ".".join(table.name())
    version = table.metadata.format_version
    if version not in FORMAT_VERSIONS:
        raise InvalidInput(
            f'manifests of table "{name}" cannot be rewritten',
            detail=f"It has format version {version}; calve rewrites those of versions 2 and 3.",
        )
    cache = ManifestCache()
    with trying(f'reading the manifests of "{name}"'):
        lines = cache.lines_of(table.io, head_of(table.metadata, branch))
        read = [(line.manifest, cache.entries_of(table.io, line.manifest)) for line in lines]
    groups: list[ManifestGroup] = []
    replaced: list[ManifestFile] = []
    kept = 0
    for content, spec_id in dict.fromkeys((_content(m), m.partition_spec_id) for m, _ in read):
        members = [(m, es) for m, es in read if (_content(m), m.partition_spec_id) == (content, spec_id)]
        fixed = [m for m, entries in members if version < LATEST_FORMAT and any(map(_is_special, entries))]
        open_ones = [(m, entries) for m, entries in members if m not in fixed]
        total = sum(m.manifest_length for m, _ in open_ones)
        count = sum(len(entries) for _, entries in open_ones)
        most = max(1, count * TARGET_BYTES // max(1, total))
        wanted = list(_split((e for _, entries in open_ones for e in entries), enough, most))
        there = {_identity(entries): m for m, entries in open_ones}
        new = [entries for entries in wanted if _identity(entries) not in there]
        same = {_identity(entries) for entries in wanted} & there.keys()
        gone = [m for m, entries in open_ones if _identity(entries) not in same]
        kept += len(members) - len(gone)
        replaced += gone
        groups += [ManifestGroup(content, spec_id, entries) for entries in new]
    return ManifestPlan(table, branch, tuple(replaced), tuple(groups), kept) if replaced else None


def write_planned(plan: ManifestPlan, ids: IdSource) -> WrittenManifests:
    """Write the new manifests, all or none. Raises TransientError."""
    unique, written = ids.new_id(), list[ManifestFile]()
    name = ".".join(plan.table.name())
    try:
        with trying(f'writing manifests of "{name}"'):
            for number, group in enumerate(plan.groups):
                place = manifest_place(plan.table, group.spec_id, group.content, f"{unique}-sorted{number}.avro")
                written.append(write_existing(place, group.entries, 0, 0))
    except BaseException:
        WrittenManifests(plan, tuple(written)).discard("other manifests of their rewrite could not be written")
        raise
    return WrittenManifests(plan, tuple(written))


def commit_manifests(written: WrittenManifests, table: Table, clock: Clock, ids: IdSource) -> int | None:
    """Commit the new manifests on top of `table`, in one attempt; None if others replaced the old ones.

    Returns the id of the snapshot. Raises CommitConflict if it was not applied, CommitUnknown, TransientError.
    """
    plan, name = written.plan, ".".join(table.name())
    cache = ManifestCache()
    draft = new_draft(table, clock, ids, plan.branch)
    with trying(f'reading the manifest list of "{name}"'):
        lines = cache.lines_of(table.io, draft.parent)
    replaced = {_with_row_ids(one) for one in plan.replaced}
    same_version = table.metadata.format_version == plan.table.metadata.format_version  # else rows would lose their ids
    if not same_version or not replaced <= {_with_row_ids(line.manifest) for line in lines}:
        return None
    kept = tuple(line for line in lines if _with_row_ids(line.manifest) not in replaced)
    new = [ManifestLine(_of_snapshot(one, draft.snapshot_id, draft.sequence_number)) for one in written.manifests]
    counts = {
        "manifests-created": str(len(new)),
        "manifests-replaced": str(len(plan.replaced)),
        "manifests-kept": str(len(kept)),
        "entries-processed": str(plan.entries),
    }
    contents = SnapshotContents(
        (*new, *kept), shared=(*new, *kept), summary=new_summary(Operation.REPLACE, {}, draft.parent, counts)
    )
    change = snapshot_change(draft, contents, cache)
    before, written.unknown = written.unknown, True
    try:
        send(change, f'the rewrite of manifests of "{name}"', "maintain")
    except CommitConflict:
        written.unknown = before
        raise
    return draft.snapshot_id


def _split(entries: Iterable[ManifestEntry], enough: int, most: int) -> Iterable[tuple[ManifestEntry, ...]]:
    """Entries by partition, in manifests of at least `enough` entries, if there are that many, and at most `most`."""
    piece: list[ManifestEntry] = []
    ordered = sorted(entries, key=lambda entry: (_order(entry), entry.sequence_number or 0, entry.data_file.file_path))
    for _, members in groupby(ordered, key=_order):
        for entry in members:
            if len(piece) >= most:
                yield tuple(piece)
                piece = []
            piece.append(entry)
        if len(piece) >= enough:
            yield tuple(piece)
            piece = []
    if piece:
        yield tuple(piece)


def _order(entry: ManifestEntry) -> tuple[tuple[bool, str, Any], ...]:
    """The partition of an entry, comparable: nulls first, then by value."""
    values = partition_of(entry.data_file)[1:]
    return tuple((value is not None, type(value).__name__, value if value is not None else 0) for value in values)


def _identity(entries: Sequence[ManifestEntry]) -> frozenset[ContentId]:
    return frozenset(content_id(entry.data_file) for entry in entries)


def _with_row_ids(manifest: ManifestFile) -> tuple[str, int | None]:
    """A manifest, and the first row id that its entries inherit: after an upgrade the next snapshot assigns it."""
    return manifest.manifest_path, first_row_id_of(manifest)


def _is_special(entry: ManifestEntry) -> bool:
    """Whether an entry has a field that a rewritten manifest of version 2 would lose."""
    file = entry.data_file
    return any(file[place] is not None for place in _LATER_FIELDS if place < len(file))


def _content(manifest: ManifestFile) -> ManifestContent:
    return manifest.content or ManifestContent.DATA


def _of_snapshot(manifest: ManifestFile, snapshot_id: int, sequence_number: int) -> ManifestFile:
    """A manifest as a line of the list of this snapshot."""
    return ManifestFile.from_args(
        _table_format_version=3,
        manifest_path=manifest.manifest_path,
        manifest_length=manifest.manifest_length,
        partition_spec_id=manifest.partition_spec_id,
        content=manifest.content,
        sequence_number=sequence_number,
        min_sequence_number=manifest.min_sequence_number,
        added_snapshot_id=snapshot_id,
        added_files_count=manifest.added_files_count,
        existing_files_count=manifest.existing_files_count,
        deleted_files_count=manifest.deleted_files_count,
        added_rows_count=manifest.added_rows_count,
        existing_rows_count=manifest.existing_rows_count,
        deleted_rows_count=manifest.deleted_rows_count,
        partitions=manifest.partitions,
        key_metadata=manifest.key_metadata,
    )
