"""Replaces equality deletes of a table, from any writer, with deletes of the same rows by position, in portions.

    plan ──► the oldest data files with equality deletes ──► positions (elsewhere) ──► head ──► one snapshot
     └──────────────────────────────────── the next portion ◄────────────────────────────────────────┘

Each snapshot has the same rows as its parent: it adds position deletes for rows of some data files that equality
deletes hide, and removes the equality deletes that no longer apply to any other file. Data files never change, so the
positions stay right whatever others commit meanwhile, as long as the data files and the equality deletes are still in
the table. So a busy writer delays a commit and never invalidates the work.

In tables of format version 3 positions become deletion vectors, one for each data file, and older position delete files
are converted, too. A vector has everything that is deleted in its file by position, so every attempt writes the vectors
for the head that it builds on, and removes those that they replace.

A conversion replaces the deletes that exist when it begins; those that come later are left to the next one.

The operation of a snapshot that adds position deletes is `delete` and not `replace`. Compactions of Iceberg's own
library look for new deletes of the files they replace in `delete` and `overwrite` snapshots only. One that was planned
before an equality delete, and is committed after its conversion, would otherwise notice neither: the equality delete
is gone, the positions refer to old files, and deleted rows come back. The mark `SAME_ROWS` tells calve that no row
changed.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry
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
from calve.iceberg.loading import FORMAT_VERSIONS
from calve.iceberg.planning.key_scan import key_target, place_of
from calve.iceberg.planning.table_scan import scan_file
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.snapshot.compaction import CompactionBase, base_of
from calve.iceberg.snapshot.draft import Draft, SnapshotContents, new_draft, snapshot_change, unsent_files
from calve.iceberg.snapshot.history import added_counts, head_of, new_summary
from calve.iceberg.snapshot.removal import remove_deletes
from calve.model.files import FileTotals, Manifest, WriteResult, WrittenFile
from calve.model.scan import ContentId, DeleteKind, ScanFile
from calve.model.spec import LATEST_FORMAT
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
    """Deletes that still apply to files of later portions."""
    target: ReadTarget
    place: DeletePlace
    left: int
    """Rows of later portions."""

    @property
    def rows(self) -> int:
        """The number of rows to search."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class NewVectors:
    """Deletion vectors of one attempt, and the deletes that they replace."""

    files: tuple[WrittenFile, ...]
    replaced: tuple[ContentId, ...]


@dataclass
class FoundDeletes:
    """Deletes by position of one portion that are not committed yet."""

    plan: ConversionPlan
    files: tuple[WrittenFile, ...] = ()
    """Position delete files; none in tables of format version 3."""
    vectors: Callable[[Sequence[ScanFile], str], NewVectors] | None = None
    """Writes vectors of the found rows for data files with the deletes that they have now, under a unique name."""
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
    equality_delete_files: int = 0
    """Equality delete files that it removed."""
    position_delete_files: int = 0
    """Position delete files that it removed."""
    files: tuple[WrittenFile, ...] = ()
    """What it added."""
    snapshots: int = 1


class Conversions:
    """Plans and commits the portions of one conversion of one branch; keeps manifests in memory between them."""

    def __init__(self, clock: Clock, ids: IdSource, branch: str = MAIN_BRANCH) -> None:
        self._clock, self._ids, self._branch = clock, ids, branch
        self._manifests = ManifestCache()
        self._targets: frozenset[ContentId] | None = None
        """The delete files to convert."""
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
        there = _convertible(base)
        if self._targets is None:
            self._targets = frozenset(there)
        left_over = [entry.data_file for known, entry in there.items() if known in self._targets]
        if not left_over:
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
                blocked |= {delete.id for delete in file.deletes if delete.id in self._targets}
            else:
                rows += file.rows
                chosen.append(file)
        ids = {number for file in left_over for number in file.equality_ids or ()}
        return ConversionPlan(
            table=table,
            files=tuple(chosen),
            known=frozenset(base.data),
            blocked=frozenset(blocked),
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
        there = _convertible(base)
        used = {delete.id for file in plan.files for delete in file.deletes if delete.kind is DeleteKind.EQUALITY}
        if not (used <= there.keys() and base.has(plan.files)):
            return None
        draft = new_draft(table, self._clock, self._ids, self._branch)
        vectors = self._new_vectors(found, base, draft)
        files = found.files if vectors is None else vectors.files
        gone = self._spent(plan, base, there.keys()) | frozenset(() if vectors is None else vectors.replaced)
        if not (files or gone):  # bounds met the keys, rows did not: there is nothing to commit
            self._converted |= {file.path for file in plan.files}
            return CommittedPortion(head.snapshot_id, snapshots=0)
        made = [file.path for file in files] if vectors else []
        with unsent_files(table) as unsent, trying(f'writing manifests of "{name}"'):
            unsent.extend(made)
            if files and not found.manifests:
                manifests = write_manifests(table, files, f"{draft.snapshot_id}-positions")
                if vectors is None:
                    found.manifests = manifests  # for later attempts, too
            else:
                manifests = found.manifests
            new = [ManifestLine(manifest_file(one, draft.snapshot_id, draft.sequence_number)) for one in manifests]
            unsent.extend(one.path for one in manifests if vectors)
            removal = remove_deletes(draft, base.lines, gone, self._manifests)
        operation = Operation.DELETE if files else Operation.REPLACE  # see above
        counts = added_counts(FileTotals.of(WriteResult(files, 0)))
        contents = SnapshotContents(
            lines=(*new, *removal.lines),
            shared=base.lines if vectors else (*new, *base.lines),
            summary=new_summary(operation, counts, draft.parent, {SAME_ROWS: "true"}, removed=removal.counts),
            files=tuple(made),
        )
        change = snapshot_change(draft, contents, self._manifests)
        before, found.unknown = found.unknown, True
        try:
            send(change, f'the conversion of deletes of "{name}"', "maintain")
        except CommitConflict:
            found.unknown = before
            raise
        self._converted |= {file.path for file in plan.files}
        removed = removal.counts
        return CommittedPortion(
            draft.snapshot_id,
            removed.get("removed-equality-delete-files", 0),
            removed.get("removed-position-delete-files", 0),
            files,
        )

    def _new_vectors(self, found: FoundDeletes, base: CompactionBase, draft: Draft) -> NewVectors | None:
        """Write the vectors of an attempt; None if the table has position delete files instead."""
        if found.vectors is None:
            return None
        now = []
        for file in found.plan.files:
            entry = base.data[file.path]
            deletes = tuple(d for d in base.index.of(entry) if d.kind is not DeleteKind.EQUALITY)
            now.append(scan_file(entry, deletes, base.table.specs()[entry.data_file.spec_id]))
        return found.vectors(now, f"{draft.snapshot_id}")

    def _spent(self, plan: ConversionPlan, base: CompactionBase, there: Collection[ContentId]) -> frozenset[ContentId]:
        """The deletes that apply to nothing any more once this portion is committed.

        A compaction may have added files to which they apply since the plan.
        """
        added = [entry for path, entry in base.data.items() if path not in plan.known]
        needed = {delete.id for entry in added for delete in base.index.of(entry)}
        return frozenset((self._targets or frozenset()) & frozenset(there)) - plan.blocked - needed


def convertible_deletes(table: Table, branch: str = MAIN_BRANCH) -> int:
    """How many delete files of a branch a conversion would replace. Raises TransientError, InvalidInput."""
    _check_version(table)
    head = head_of(table.metadata, branch)
    return 0 if head is None else len(_convertible(base_of(table, head, ManifestCache())))


def _convertible(base: CompactionBase) -> dict[ContentId, ManifestEntry]:
    """Equality deletes and, in tables of format version 3, position delete files."""
    kinds = {DataFileContent.EQUALITY_DELETES}
    if base.table.metadata.format_version >= LATEST_FORMAT:
        kinds.add(DataFileContent.POSITION_DELETES)
    return {
        content_id(e.data_file): e
        for e in base.deletes
        if e.data_file.content in kinds and e.data_file.file_format is not FileFormat.PUFFIN
    }


def _check_version(table: Table) -> None:
    version = table.metadata.format_version
    if version not in FORMAT_VERSIONS:
        raise InvalidInput(
            f'deletes of table "{".".join(table.name())}" cannot be converted to positions',
            detail=f"It has format version {version}; calve converts tables of versions 2 and 3.",
        )
