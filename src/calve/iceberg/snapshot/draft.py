"""The one place that builds a snapshot: its manifest list, the updates that add it, and what they require.

    new_draft ──► manifests of the draft ──► snapshot_change: manifest list, updates, requirements ──► outcome.send

The requirements pin the state the draft was made on: the table, the head of the branch, the schema and the default
spec. If one of them changed, the catalog applies nothing, and `send` removes the files that only this attempt names.

Every commit adds a manifest or two, and writes the list of all manifests again. Manifests of one kind are therefore
merged in tiers (`merge_groups`): those with fewer files than `FAN_IN` when there are `FAN_IN` of them, the results when
there are that many again. A manifest list stays short, and each entry is rewritten once per tier. Only manifests that
calve wrote are merged: others may have fields that pyiceberg does not read.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from calve.catalog.discard import discard
from calve.catalog.failures import trying
from calve.catalog.guarded import locations_of
from calve.catalog.outcome import TableChange
from calve.catalog.row_lineage import UPGRADE, next_row_id
from calve.clock import Clock, IdSource
from calve.iceberg.files.manifest_cache import ListHeader, ManifestCache, ManifestLine
from calve.iceberg.files.manifests import TARGET_BYTES
from calve.iceberg.files.names import is_written_by_calve, list_name, table_mark
from calve.iceberg.snapshot.history import head_of
from calve.model.files import tier_of
from calve.model.progress import Progress, property_key, state_key, tag_name

_ENDLESS_MS = 2**63 - 1
"""The age limit of a sink's own tag; without one, the table's `history.expire.max-ref-age-ms` would expire it."""


@dataclass(frozen=True)
class Draft:
    """A snapshot to be added on top of the head of a branch of `table`."""

    table: Table
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    list_location: str
    branch: str = MAIN_BRANCH
    upgrades: bool = False
    """Whether the same commit raises the table's format version from 2 to 3: the snapshot gives all its rows ids."""

    @property
    def metadata(self) -> TableMetadata:
        """The metadata it builds on."""
        return self.table.metadata

    @property
    def parent(self) -> Snapshot | None:
        """The head it builds on."""
        return head_of(self.metadata, self.branch)

    @property
    def first_row_id(self) -> int | None:
        """The first row id that its manifest list may assign; None if its rows have no ids."""
        return 0 if self.upgrades else next_row_id(self.metadata)

    @property
    def list_header(self) -> ListHeader:
        """The header of its manifest list."""
        parent = self.parent
        return ListHeader(
            self.snapshot_id, parent.snapshot_id if parent else None, self.sequence_number, self.first_row_id
        )

    @property
    def name(self) -> str:
        """The name of its table."""
        return ".".join(self.table.name())


@dataclass(frozen=True)
class SnapshotContents:
    """What a snapshot consists of."""

    lines: tuple[ManifestLine, ...]
    """All its manifests."""
    shared: Collection[ManifestLine]
    """Manifests that do not belong to this attempt only: they are in the table, or other attempts list them too."""
    summary: Summary
    files: tuple[str, ...] = ()
    """Other files that belong to this attempt only."""

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files, besides its manifest list, that nothing refers to if this attempt is not applied."""
        shared = {line.manifest.manifest_path for line in self.shared}
        paths = (line.manifest.manifest_path for line in self.lines)
        return (*(path for path in paths if path not in shared), *self.files)


def new_draft(table: Table, clock: Clock, ids: IdSource, branch: str = MAIN_BRANCH, *, upgrades: bool = False) -> Draft:
    """A draft with a fresh id. Its time is never before the table's last change: time travel needs ordered times."""
    metadata = table.metadata
    taken = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    logged = [entry.timestamp_ms for entry in metadata.snapshot_log[-1:]]
    unique, snapshot_id = "", 0
    while not snapshot_id or snapshot_id in taken:
        unique = ids.new_id()
        snapshot_id = int.from_bytes(hashlib.sha256(unique.encode()).digest()[:8]) >> 1
    return Draft(
        table=table,
        snapshot_id=snapshot_id,
        sequence_number=metadata.next_sequence_number(),
        timestamp_ms=max(clock.now_ms(), metadata.last_updated_ms, *logged),
        list_location=locations_of(table).new_metadata_location(
            list_name(table_mark(metadata.table_uuid), snapshot_id, unique)
        ),
        branch=branch,
        upgrades=upgrades,
    )


def requirements(metadata: TableMetadata, branch: str = MAIN_BRANCH) -> tuple[TableRequirement, ...]:
    """What must still hold when the catalog applies a draft."""
    ref = metadata.refs.get(branch)
    head_id = ref.snapshot_id if ref else None
    pinned = branch if metadata.snapshots else MAIN_BRANCH  # without snapshots pyiceberg can pin main only
    main = metadata.refs.get(MAIN_BRANCH)
    begun_at = () if ref is not None or main is None else (_at(MAIN_BRANCH, main.snapshot_id),)
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        _at(pinned, head_id),
        *begun_at,  # a new branch starts at the head of main
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
    )


def _at(ref: str, snapshot_id: int | None) -> TableRequirement:
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})


@contextmanager
def unsent_files(table: Table) -> Iterator[list[str]]:
    """Collects the files of a commit until it is sent: if it fails before that, they are removed."""
    made: list[str] = []
    try:
        yield made
    except BaseException:
        discard(table.io, made, "the commit that they were written for was never sent")
        raise


def snapshot_change(
    draft: Draft, contents: SnapshotContents, manifests: ManifestCache, *updates: TableUpdate
) -> TableChange:
    """Write the manifest list of a draft; returns the change that adds the draft and applies the other updates.

    If the change is not applied, its sender removes the list and the files of this attempt. Raises TransientError, and
    removes them then.
    """
    with unsent_files(draft.table) as made, trying(f'writing the manifest list of "{draft.name}"'):
        made.extend((draft.list_location, *contents.own_files))
        added_rows = manifests.write_list(draft.table.io, draft.list_location, draft.list_header, contents.lines)
    return TableChange(
        draft.table,
        requirements(draft.metadata, draft.branch),
        ((UPGRADE,) if draft.upgrades else ()) + _snapshot_updates(draft, contents.summary, added_rows) + updates,
        (draft.list_location, *contents.own_files),
    )


def _snapshot_updates(draft: Draft, summary: Summary, added_rows: int) -> tuple[TableUpdate, ...]:
    """Add the snapshot and make it the head of its branch."""
    parent, first_row_id = draft.parent, draft.first_row_id
    lineage = {} if first_row_id is None else {"first-row-id": first_row_id, "added-rows": added_rows}
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": draft.snapshot_id,
            "parent-snapshot-id": parent.snapshot_id if parent else None,
            "sequence-number": draft.sequence_number,
            "timestamp-ms": draft.timestamp_ms,
            "manifest-list": draft.list_location,
            "summary": summary,
            "schema-id": draft.metadata.current_schema_id,
            **lineage,
        }
    )
    return AddSnapshotUpdate(snapshot=snapshot), _moved_ref(draft, draft.branch, SnapshotRefType.BRANCH)


def progress_updates(draft: Draft, progress: Progress, state_location: str = "") -> tuple[TableUpdate, ...]:
    """Move the sink's tag, which never expires, and write its progress to the table property.

    Also writes the state location of the sink, unless it is empty or the table has it already.
    """
    stated = {property_key(progress.sink_id): progress.to_property()}
    if state_location and draft.metadata.properties.get(state_key(progress.sink_id)) != state_location:
        stated[state_key(progress.sink_id)] = state_location
    return (
        _moved_ref(draft, tag_name(progress.sink_id), SnapshotRefType.TAG),
        SetPropertiesUpdate(updates=stated),
    )


def retirement_update(retired: Sequence[Progress]) -> TableUpdate:
    """Record in the table's properties that these sinks are retired."""
    return SetPropertiesUpdate(updates={property_key(p.sink_id): p.to_property() for p in retired})


def _moved_ref(draft: Draft, name: str, kind: SnapshotRefType) -> TableUpdate:
    """Move a ref to the draft. An update without the retention fields would clear those of the ref."""
    ref = draft.metadata.refs.get(name)
    age = ref.max_ref_age_ms if ref else None
    return SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": kind,
            "snapshot-id": draft.snapshot_id,
            "max-ref-age-ms": _ENDLESS_MS if kind is SnapshotRefType.TAG else age,
            "max-snapshot-age-ms": ref.max_snapshot_age_ms if ref else None,
            "min-snapshots-to-keep": ref.min_snapshots_to_keep if ref else None,
        }
    )


FAN_IN = 50


@dataclass(frozen=True)
class MergeGroup:
    """Manifests that are merged into one."""

    content: ManifestContent
    spec_id: int
    members: tuple[ManifestFile, ...]


def merge_groups(manifests: Iterable[ManifestFile]) -> tuple[MergeGroup, ...]:
    """The manifests to merge now; usually none."""
    tiers: dict[tuple[ManifestContent, int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        if _mergeable(manifest):
            key = (manifest.content, manifest.partition_spec_id, _tier(manifest))
            tiers.setdefault(key, []).append(manifest)
    return tuple(
        MergeGroup(content, spec_id, tuple(members))
        for (content, spec_id, _), tier in tiers.items()
        if len(tier) >= FAN_IN
        for members in _split(tier)
        if len(members) > 1
    )


def _mergeable(manifest: ManifestFile) -> bool:
    return manifest.manifest_length < TARGET_BYTES and is_written_by_calve(manifest.manifest_path.rpartition("/")[2])


def _tier(manifest: ManifestFile) -> int:
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    return tier_of(files, FAN_IN - 1, FAN_IN)


def _split(tier: Sequence[ManifestFile]) -> Iterable[tuple[ManifestFile, ...]]:
    """Split a tier into groups that each give a manifest of about the target size."""
    group: list[ManifestFile] = []
    size = 0
    for manifest in tier:
        if group and size + manifest.manifest_length > TARGET_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(manifest)
        size += manifest.manifest_length
    yield tuple(group)
