"""Replaces data files of a table, from any writer, with fewer files with the same rows and without deletes.

    plan ──► groups of files with their deletes ──► new files (elsewhere) ──► head ──► one `replace` snapshot

New files get the sequence number of the snapshot that the plan is based on: earlier equality deletes are applied, later
ones still apply to the new files. Later position deletes refer to files that are being replaced; `CompactionBase.later`
lists them, so that the writer of the new files can translate them to the new positions. So the stream never has to
pause, and neither its changes nor the compaction's work is lost. Deletes that no longer apply to any file are removed
together with the files that they applied to.

The snapshot is a `replace` even if it adds such translated deletes, in which other engines do not look for new deletes
of the files they rewrite: the deletes refer to files of this very snapshot, so whoever read these files has applied
them (unlike in `conversion.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import IdentityTransform

from calve.catalog.failures import trying
from calve.catalog.outcome import TableChange, send
from calve.clock import Clock, IdSource
from calve.errors import FencedError, InvalidInput, TransientError
from calve.iceberg.files.content import content_id, first_row_id
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import added_entries, manifest_file, write_manifests
from calve.iceberg.files.options import file_options
from calve.iceberg.files.position_deletes import DeletePlace
from calve.iceberg.files.store import io_properties_of
from calve.iceberg.loading import reserved_columns
from calve.iceberg.planning.compaction_groups import CompactionPolicy, Groups, ages_by, due_groups
from calve.iceberg.planning.delete_index import DeleteIndex
from calve.iceberg.planning.key_scan import place_of
from calve.iceberg.planning.pruning import Pruning
from calve.iceberg.planning.rewriting import rewriting_target
from calve.iceberg.planning.table_details import snapshot_times
from calve.iceberg.planning.table_scan import scan_file
from calve.iceberg.schema.readable import ReadTarget, every_field, projected, rewrite_target, rewritten_schema
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change, unsent_files
from calve.iceberg.snapshot.history import added_counts, head_of, new_summary, stated_progress
from calve.iceberg.snapshot.holds import Hold, descends_from
from calve.iceberg.snapshot.removal import remove_named
from calve.model.files import FileTotals, WriteResult, WriteTarget, WrittenFile
from calve.model.progress import Fence
from calve.model.scan import EVERYTHING, Condition, ContentId, DeleteFile, DeleteKind, ScanFile, SortFields
from calve.model.spec import LATEST_FORMAT, RowOrder, WriteOptions


@dataclass(frozen=True)
class CompactionPlan:
    """What to rewrite of one snapshot."""

    table: Table
    snapshot_id: int
    sequence_number: int
    groups: Groups
    """Empty if the plan only removes delete files that apply to nothing."""
    reading: ReadTarget
    """All columns in their written types, and the fields that deletes and the sort order need."""
    order: SortFields
    """The fields that rows are sorted by."""
    key_ids: tuple[int, ...]
    """The fields that rows are sorted by unless another order is asked for: Bloom filters are for them."""
    place: DeletePlace
    options: WriteOptions

    def target(self, spec_id: int) -> WriteTarget:
        """Where and how to write files of one partition spec."""
        table, schema = self.table, rewritten_schema(self.table)
        io = io_properties_of(table.io.properties)
        target = rewriting_target(table, schema, spec_id, self.options, io, self.key_ids)
        return replace(target, options=replace(target.options, target_file_size=self.groups.file_size))


@dataclass(frozen=True)
class CompactionOwner:
    """The sink whose run compacts its own table. A run that lost its fence must not plan or commit."""

    sink_id: str
    fence: Callable[[], Fence]

    def check(self, table: Table) -> None:
        """Raise FencedError if a later run owns the table. A commit pins the state that was checked.

        Raises TransientError if the table does not state its owner, which the next commit of the sink restores, or
        states an earlier run, which the claim of this one ends.
        """
        stated = stated_progress(table.properties, self.sink_id)
        if stated is None:
            raise TransientError(f'table "{".".join(table.name())}" does not state the progress of its sink')
        own = self.fence()
        if stated.fence < own:
            raise TransientError(f'table "{".".join(table.name())}" is not claimed by this run yet')
        if stated.fence.run_id != own.run_id:
            raise FencedError(
                f'a compaction of "{".".join(table.name())}" belongs to a run that lost its fence',
                detail=f"{stated.fence} committed snapshot {stated.snapshot_id}.",
                hint="Another run of this sink is active. Stop this process.",
            )


@dataclass(frozen=True)
class CompactionBase:
    """The state of a table on which new files are about to be committed."""

    table: Table
    lines: tuple[ManifestLine, ...]
    data: Mapping[str, ManifestEntry]
    """Live data files by path."""
    deletes: tuple[ManifestEntry, ...]
    index: DeleteIndex

    def has(self, files: Sequence[ScanFile]) -> bool:
        """Whether all these files are live, and their rows have the same ids."""
        return all(
            file.path in self.data and first_row_id(self.data[file.path].data_file) == file.first_row_id
            for file in files
        )

    def later(self, file: ScanFile) -> tuple[DeleteFile, ...]:
        """Position deletes of a file that were added since it was planned."""
        known = {delete.id for delete in file.deletes}
        return tuple(
            delete
            for delete in self.index.of(self.data[file.path])
            if delete.kind is not DeleteKind.EQUALITY and delete.id not in known
        )


@dataclass(frozen=True)
class Exchange:
    """The files that leave the table, and those that replace them."""

    inputs: tuple[ScanFile, ...]
    files: tuple[WrittenFile, ...]
    """New data files, with the rows of the inputs."""
    deletes: tuple[WrittenFile, ...]
    """Position deletes for rows of `files` that were deleted since the plan."""
    named: Mapping[ContentId, frozenset[str]]
    """Position delete files -> the data files that they refer to, as far as known."""


NOTHING = Exchange((), (), (), {})

_MANY = 200_000
"""The most pairs of a data file and a delete file that a commit examines."""


class Compactions:
    """Plans and commits compactions of one branch of one table; keeps manifests in memory between them."""

    def __init__(
        self,
        clock: Clock,
        ids: IdSource,
        branch: str = MAIN_BRANCH,
        options: WriteOptions | None = None,
        owner: CompactionOwner | None = None,
        order: RowOrder | None = None,
    ) -> None:
        self._clock, self._ids, self._branch, self._owner = clock, ids, branch, owner
        self._order = order or RowOrder()
        self._options = options or WriteOptions()
        self._manifests = ManifestCache()

    def plan(
        self,
        table: Table,
        policy: CompactionPolicy,
        where: Condition = EVERYTHING,
        written: AbstractSet[str] = frozenset(),
    ) -> CompactionPlan | None:
        """Plan a compaction of the files that may have rows for which `where` is true; None if there is nothing to do.

        A policy that rewrites everything leaves the files that were `written` before. Raises TransientError,
        FencedError; InvalidInput if the table cannot be compacted, or not in this order.
        """
        _check_version(table)
        if self._owner is not None:
            self._owner.check(table)
        snapshot = head_of(table.metadata, self._branch)
        if snapshot is None:
            return None
        head = base_of(table, snapshot, self._manifests)
        specs = table.specs()
        pruning = Pruning(where, table.schema(), specs)
        left = written if policy.everything else frozenset[str]()
        chosen = [e for p, e in head.data.items() if p not in left and pruning.may_match(e.data_file)]
        files = [scan_file(entry, head.index.of(entry), specs[entry.data_file.spec_id]) for entry in chosen]
        ages = ages_by(snapshot_times(table.metadata), snapshot.timestamp_ms)
        groups = due_groups(files, file_options(self._options, table.properties).target_file_size, policy, ages)
        if not groups.groups and (policy.tiers or not _dangling(head, NOTHING, 0)):
            return None
        if place_of(table).vectors and any(file.first_row_id is None for group in groups.groups for file in group):
            return None  # the table was upgraded, and rows get their ids with its next snapshot
        compared = {number for entry in head.deletes for number in entry.data_file.equality_ids or ()}
        key_ids = _sort_ids(table)
        order = _sort_fields(table, self._order) if self._order.columns else SortFields(key_ids)
        return CompactionPlan(
            table=table,
            snapshot_id=snapshot.snapshot_id,
            sequence_number=snapshot.sequence_number or 0,
            groups=groups,
            reading=rewrite_target(table, {*compared, *order.ids}),
            order=order,
            key_ids=key_ids,
            place=place_of(table),
            options=self._options,
        )

    def head(self, plan: CompactionPlan, table: Table, known: int) -> CompactionBase | None:
        """The current state of the branch; None if it does not descend from `known`.

        `known` is the snapshot of the plan, or a known descendant of it. Raises TransientError, FencedError.
        """
        if self._owner is not None:
            self._owner.check(table)
        snapshot = head_of(table.metadata, self._branch)
        before, now = plan.table.metadata, table.metadata
        same = (before.table_uuid, before.format_version) == (now.table_uuid, now.format_version)
        after = same and descends_from(table.metadata, self._branch, known)
        return base_of(table, snapshot, self._manifests) if snapshot and after else None

    def prepare(self, plan: CompactionPlan, head: CompactionBase, exchange: Exchange, hold: Hold | None) -> TableChange:
        """Write a snapshot with the new files instead of the inputs, on exactly `head`, which also releases the hold.

        `hold` is None while other work needs it. If that fails, or the snapshot is not applied, the deletes of the
        exchange are removed, its data files are not.
        Raises TransientError.
        """
        table, name = head.table, ".".join(head.table.name())
        draft = new_draft(table, self._clock, self._ids, self._branch)
        gone = {ContentId(file.path) for file in exchange.inputs} | _dangling(head, exchange, plan.sequence_number)
        paths = tuple(file.path for file in exchange.deletes)
        with unsent_files(table) as made, trying(f'writing manifests of "{name}"'):
            made.extend(paths)
            stem = f"{draft.snapshot_id}-compacted"
            rows = write_manifests(table, exchange.files, stem, plan.sequence_number) if exchange.files else ()
            made.extend(manifest.path for manifest in rows)
            deletes = write_manifests(table, exchange.deletes, f"{stem}-deletes") if exchange.deletes else ()
            made.extend(manifest.path for manifest in deletes)
            own = (draft.snapshot_id, draft.sequence_number)
            new = [ManifestLine(manifest_file(manifest, *own, plan.sequence_number)) for manifest in rows]
            new += [ManifestLine(manifest_file(manifest, *own)) for manifest in deletes]
            removal = remove_named(draft, head.lines, gone, self._manifests)
        counts = added_counts(FileTotals.of(WriteResult((*exchange.files, *exchange.deletes), 0)))
        contents = SnapshotContents(
            lines=(*new, *removal.lines),
            shared=head.lines,
            summary=new_summary(Operation.REPLACE, counts, draft.parent, {}, removed=removal.counts),
            files=paths,
        )
        return snapshot_change(draft, contents, self._manifests, *(hold.release_updates() if hold else ()))

    def commit(self, change: TableChange) -> int:
        """Commit a prepared snapshot, in one attempt; returns its id.

        Raises CommitConflict if it was not applied, CommitUnknown, TransientError.
        """
        send(change, f'the compaction of "{change.label}"', "maintain")
        return change.snapshot.snapshot_id if change.snapshot else 0


def base_of(table: Table, snapshot: Snapshot, manifests: ManifestCache) -> CompactionBase:
    """Read the files and deletes of a snapshot. Raises TransientError."""
    with trying(f'reading the manifests of "{".".join(table.name())}"'):
        lines = manifests.lines_of(table.io, snapshot)
        data = [line.manifest for line in lines if line.manifest.content is ManifestContent.DATA]
        others = [line.manifest for line in lines if line.manifest.content is ManifestContent.DELETES]
        entries = manifests.entries_of(table.io, *data)
        deletes = manifests.entries_of(table.io, *others)
    return CompactionBase(
        table=table,
        lines=lines,
        data={entry.data_file.file_path: entry for entry in entries},
        deletes=tuple(deletes),
        index=DeleteIndex(deletes, table.specs(), every_field(table).fields),
    )


def _dangling(head: CompactionBase, exchange: Exchange, sequence_number: int) -> set[ContentId]:
    """Deletes that no longer apply to any remaining file; other writers may have left some behind.

    If there are very many, only those that apply to inputs are examined.
    """
    inputs = {file.path for file in exchange.inputs}
    entries = {content_id(entry.data_file): entry for entry in head.deletes}
    if len(entries) * len(head.data) > _MANY:
        about = {delete.id for path in inputs for delete in head.index.of(head.data[path])}
        entries = {known: entry for known, entry in entries.items() if known in about}
    left = [entry for path, entry in head.data.items() if path not in inputs]
    live = {entry.data_file.file_path for entry in left}
    gone = {known for known in entries if known in exchange.named and not exchange.named[known] & live}
    open_ones = [entry for known, entry in entries.items() if known not in gone]
    index = DeleteIndex(open_ones, head.table.specs(), every_field(head.table).fields)
    waiting = {content_id(entry.data_file) for entry in open_ones}
    for entry in (*added_entries(exchange.files, sequence_number), *left):
        if not waiting:
            break
        waiting -= {
            delete.id
            for delete in index.of(entry)
            if delete.kind is DeleteKind.EQUALITY or entry.data_file.file_path in live
        }
    return gone | waiting


def _sort_ids(table: Table) -> tuple[int, ...]:
    """The table's sort order if it consists of plain columns, else the key; empty if rows keep their order."""
    columns = {field.field_id for field in table.schema().fields if field.field_type.is_primitive}
    order = table.sort_order().fields
    plain = all(
        f.source_id in columns and isinstance(f.transform, IdentityTransform) and f.direction is SortDirection.ASC
        for f in order
    )
    if order and plain:
        return tuple(f.source_id for f in order)
    key = tuple(table.schema().identifier_field_ids)
    return key if columns.issuperset(key) else ()


def _sort_fields(table: Table, order: RowOrder) -> SortFields:
    """The columns that a user wants rows to be sorted by. Raises InvalidInput if there is none of this name."""
    name = ".".join(table.name())
    fields = projected(table.schema(), order.columns, name).fields
    for field in fields:
        if not field.field_type.is_primitive:
            raise InvalidInput(
                f'rows of "{name}" cannot be sorted by "{field.name}"',
                detail=f"It is a {field.field_type}.",
                hint="Sort by columns that have no fields or elements.",
            )
    return SortFields(tuple(field.field_id for field in fields), order.interleaved)


def _check_version(table: Table) -> None:
    version = table.metadata.format_version
    if version not in {2, 3}:
        raise InvalidInput(
            f'table "{".".join(table.name())}" cannot be compacted',
            detail=f"It has format version {version}; calve compacts tables of versions 2 and 3.",
        )
    taken = reserved_columns(table.metadata) if version >= LATEST_FORMAT else []
    if taken:
        raise InvalidInput(
            f'table "{".".join(table.name())}" cannot be compacted',
            detail=f'Its column "{taken[0]}" has a name that format version 3 uses for the ids of rows.',
            hint="Rename the column.",
        )
