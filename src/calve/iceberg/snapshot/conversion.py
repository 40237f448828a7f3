"""Replaces equality deletes of a table, from any writer, with position deletes of the same rows, in portions.

    plan ──► the oldest data files with equality deletes ──► positions (elsewhere) ──► head ──► one snapshot
     └──────────────────────────────────── the next portion ◄────────────────────────────────────────┘

Each snapshot has the same rows as its parent: it adds position deletes for rows of some data files that equality
deletes hide, and removes the equality deletes that no longer apply to any other file. Data files never change, so the
positions stay right whatever others commit meanwhile, as long as the data files and the equality deletes are still in
the table. So a busy writer delays a commit and never invalidates the work.

A conversion replaces the equality deletes that exist when it begins; those that come later are left to the next one.

The operation of a snapshot that adds position deletes is `delete` and not `replace`. Compactions of Iceberg's own
library look for new deletes of the files they replace in `delete` and `overwrite` snapshots only. One that was planned
before an equality delete, and is committed after its conversion, would otherwise notice neither: the equality delete
is gone, the positions refer to old files, and deleted rows come back. The mark `SAME_ROWS` tells calve that no row
changed.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

from calve.catalog.discard import discard
from calve.catalog.failures import trying
from calve.catalog.outcome import send
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict, InvalidInput
from calve.iceberg.files.content import content_id
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_file, write_manifests
from calve.iceberg.files.position_deletes import DeletePlace
from calve.iceberg.planning.key_scan import key_target, place_of
from calve.iceberg.planning.table_scan import scan_file
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.snapshot.compaction import CompactionBase, base_of
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import added_counts, head_of, new_summary
from calve.iceberg.snapshot.removal import remove_deletes
from calve.model.files import FileTotals, Manifest, WriteResult, WrittenFile
from calve.model.scan import ContentId, DeleteKind, ScanFile
from calve.model.table import SAME_ROWS


@dataclass(frozen=True)
class ConversionPlan:
    """One portion of a conversion."""

    table: Table
    files: tuple[ScanFile, ...]
    """Data files whose rows are searched, with the equality deletes to convert and all other deletes."""
    known: frozenset[str]
    """All data files of the planned snapshot."""
    blocked: frozenset[ContentId]
    """Equality deletes that still apply to files of later portions."""
    equality: int
    """Equality delete files that the conversion has yet to remove."""
    target: ReadTarget
    place: DeletePlace
    left: int
    """Rows of later portions."""

    @property
    def rows(self) -> int:
        """The number of rows to search."""
        return sum(file.rows for file in self.files)


@dataclass
class FoundDeletes:
    """Position deletes of one portion that are not committed yet."""

    plan: ConversionPlan
    files: tuple[WrittenFile, ...]
    manifests: tuple[Manifest, ...] = ()
    unknown: bool = False
    """Whether a commit of them failed without a conflict: then they may be in the table."""

    def discard(self, why: str) -> None:
        """Remove them, unless they may be in the table."""
        if not self.unknown:
            paths = [*(file.path for file in self.files), *(manifest.path for manifest in self.manifests)]
            discard(self.plan.table.io, paths, why)


@dataclass(frozen=True)
class CommittedPortion:
    """A snapshot of a conversion."""

    snapshot_id: int
    equality_delete_files: int
    """Equality delete files that it removed."""
    snapshots: int = 1


class Conversions:
    """Plans and commits the portions of one conversion of one branch; keeps manifests in memory between them."""

    def __init__(self, clock: Clock, ids: IdSource, branch: str = MAIN_BRANCH) -> None:
        self._clock, self._ids, self._branch = clock, ids, branch
        self._manifests = ManifestCache()
        self._targets: frozenset[ContentId] | None = None
        """The equality delete files to convert."""
        self._converted: set[str] = set()
        """Data files whose rows have been searched for all of them."""

    def plan(self, table: Table, most_rows: int) -> ConversionPlan | None:
        """Plan the next portion, of about `most_rows` rows; None if nothing is left.

        Raises TransientError; InvalidInput if the table cannot be converted.
        """
        _check_version(table)
        head = head_of(table.metadata, self._branch)
        if head is None:
            return None
        base = base_of(table, head, self._manifests)
        there = _equality_deletes(base)
        if self._targets is None:
            self._targets = frozenset(there)
        equality = {known: entry for known, entry in there.items() if known in self._targets}
        if not equality:
            return None
        chosen: list[ScanFile] = []
        blocked: set[ContentId] = set()
        rows = left = 0
        for entry in sorted(base.data.values(), key=lambda e: (e.sequence_number or 0, e.data_file.file_path)):
            file = self._to_convert(base, entry)
            if file is None:
                continue
            if rows and rows + file.rows > most_rows:
                left += file.rows
                blocked |= {delete.id for delete in file.deletes if delete.kind is DeleteKind.EQUALITY}
            else:
                rows += file.rows
                chosen.append(file)
        ids = {number for entry in equality.values() for number in entry.data_file.equality_ids or ()}
        return ConversionPlan(
            table=table,
            files=tuple(chosen),
            known=frozenset(base.data),
            blocked=frozenset(blocked),
            equality=len(equality),
            target=key_target(table, ids),
            place=place_of(table),
            left=left,
        )

    def _to_convert(self, base: CompactionBase, entry: ManifestEntry) -> ScanFile | None:
        """A data file with its deletes, of the equality deletes only those to convert; None if there are none."""
        if entry.data_file.file_path in self._converted:
            return None
        targets = self._targets or frozenset()
        found = base.index.of(entry)
        if not any(delete.id in targets for delete in found):
            return None
        deletes = tuple(d for d in found if d.kind is not DeleteKind.EQUALITY or d.id in targets)
        return scan_file(entry, deletes, base.table.specs()[entry.data_file.spec_id])

    def commit(self, found: FoundDeletes, table: Table) -> CommittedPortion | None:
        """Commit one portion on top of `table`, in one attempt; None if files that it is about left the table.

        Raises CommitConflict if it was not applied, CommitUnknown, TransientError.
        """
        plan, name = found.plan, ".".join(table.name())
        head = head_of(table.metadata, self._branch)
        now, then = table.metadata, plan.table.metadata
        if head is None or (now.table_uuid, now.format_version) != (then.table_uuid, then.format_version):
            return None
        base = base_of(table, head, self._manifests)
        there = _equality_deletes(base)
        used = {delete.id for file in plan.files for delete in file.deletes if delete.kind is DeleteKind.EQUALITY}
        if not (used <= there.keys() and base.has(plan.files)):
            return None
        gone = self._spent(plan, base, there.keys())
        if not (found.files or gone):  # bounds met the keys, rows did not: there is nothing to commit
            self._converted |= {file.path for file in plan.files}
            return CommittedPortion(head.snapshot_id, 0, snapshots=0)
        draft = new_draft(table, self._clock, self._ids, self._branch)
        with trying(f'writing manifests of "{name}"'):
            if found.files and not found.manifests:
                found.manifests = write_manifests(table, found.files, f"{draft.snapshot_id}-positions")
            own = (draft.snapshot_id, draft.sequence_number)
            new = [ManifestLine(manifest_file(manifest, *own)) for manifest in found.manifests]
            removal = remove_deletes(draft, base.lines, gone, self._manifests)
        operation = Operation.DELETE if found.files else Operation.REPLACE  # see above
        counts = added_counts(FileTotals.of(WriteResult(found.files, 0)))
        contents = SnapshotContents(
            lines=(*new, *removal.lines),
            shared=(*new, *base.lines),
            summary=new_summary(operation, counts, draft.parent, {SAME_ROWS: "true"}, removed=removal.counts),
        )
        change = snapshot_change(draft, contents, self._manifests)
        before, found.unknown = found.unknown, True
        try:
            send(change, f'the conversion of deletes of "{name}"', "maintain")
        except CommitConflict:
            found.unknown = before
            raise
        self._converted |= {file.path for file in plan.files}
        return CommittedPortion(draft.snapshot_id, len(gone))

    def _spent(self, plan: ConversionPlan, base: CompactionBase, there: Collection[ContentId]) -> frozenset[ContentId]:
        """The equality deletes that apply to nothing any more once this portion is committed.

        A compaction may have added files to which they apply since the plan.
        """
        added = [entry for path, entry in base.data.items() if path not in plan.known]
        needed = {delete.id for entry in added for delete in base.index.of(entry)}
        return frozenset((self._targets or frozenset()) & frozenset(there)) - plan.blocked - needed


def equality_deletes(table: Table, branch: str = MAIN_BRANCH) -> int:
    """How many equality delete files a branch has. Raises TransientError, InvalidInput."""
    _check_version(table)
    head = head_of(table.metadata, branch)
    return 0 if head is None else len(_equality_deletes(base_of(table, head, ManifestCache())))


def _equality_deletes(base: CompactionBase) -> dict[ContentId, ManifestEntry]:
    equality = DataFileContent.EQUALITY_DELETES
    return {content_id(e.data_file): e for e in base.deletes if e.data_file.content is equality}


def _check_version(table: Table) -> None:
    if table.metadata.format_version != 2:
        raise InvalidInput(
            f'deletes of table "{".".join(table.name())}" cannot be converted to positions',
            detail=f"It has format version {table.metadata.format_version}; calve converts tables of version 2.",
        )
