"""Replaces equality deletes of a table, from any writer, with position deletes of the same rows.

    plan ──► data files with the equality deletes that apply ──► positions (elsewhere) ──► one `replace` snapshot

The snapshot has the same rows as its parent: it adds position deletes for all rows that equality deletes hid, and
removes all equality deletes. It requires the state that was planned on: if others commit rows or deletes meanwhile, it
fails and has to be planned again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from calve.catalog.failures import trying
from calve.catalog.outcome import send
from calve.clock import Clock, IdSource
from calve.errors import InvalidInput
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_file, write_manifests
from calve.iceberg.files.position_deletes import DeletePlace
from calve.iceberg.planning.key_scan import key_target, place_of
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import added_counts, head_of, new_summary
from calve.iceberg.snapshot.removal import remove_deletes
from calve.model.files import FileTotals, WriteResult, WrittenFile
from calve.model.scan import DeleteKind, ScanFile


@dataclass(frozen=True)
class ConversionPlan:
    """The plan of a conversion of one state of a table."""

    table: Table
    lines: tuple[ManifestLine, ...]
    """Manifests of the snapshot."""
    equality: tuple[ManifestEntry, ...]
    """The equality delete files; all of them are removed."""
    files: tuple[ScanFile, ...]
    """Data files that any of them applies to, with all their deletes."""
    target: ReadTarget
    place: DeletePlace

    @property
    def rows(self) -> int:
        """The number of rows to search."""
        return sum(file.rows for file in self.files)


def plan_conversion(table: Table) -> ConversionPlan | None:
    """Plan a conversion; None if the table has no equality deletes.

    Raises TransientError; InvalidInput if the table cannot be converted.
    """
    name = ".".join(table.name())
    if table.metadata.format_version != 2:
        raise InvalidInput(
            f'deletes of table "{name}" cannot be converted to positions',
            detail=f"It has format version {table.metadata.format_version}; calve converts tables of version 2.",
        )
    head = head_of(table.metadata)
    if head is None:
        return None
    manifests = ManifestCache()
    with trying(f'planning a conversion of "{name}"'):
        lines = manifests.lines_of(table.io, head)
        deletes = [line.manifest for line in lines if line.manifest.content is ManifestContent.DELETES]
        entries = manifests.entries_of(table.io, *deletes)
    equality = tuple(e for e in entries if e.data_file.content is DataFileContent.EQUALITY_DELETES)
    if not equality:
        return None
    plan = Scan.of(table, AsOf()).plan()
    ids = {number for entry in equality for number in entry.data_file.equality_ids or ()}
    return ConversionPlan(
        table=table,
        lines=lines,
        equality=equality,
        files=tuple(f for f in plan.files if any(d.kind is DeleteKind.EQUALITY for d in f.deletes)),
        target=key_target(table, ids),
        place=place_of(table),
    )


def commit_conversion(plan: ConversionPlan, files: Sequence[WrittenFile], clock: Clock, ids: IdSource) -> int:
    """Commit a snapshot with `files` and without equality deletes, in one attempt; returns its id.

    Raises CommitConflict if it was not applied: the files are then removed. Raises CommitUnknown, TransientError.
    """
    table, name = plan.table, ".".join(plan.table.name())
    draft = new_draft(table, clock, ids)
    with trying(f'writing manifests of "{name}"'):
        added = write_manifests(table, files, f"{draft.snapshot_id}-positions") if files else ()
        new = [ManifestLine.of(manifest_file(m, draft.snapshot_id, draft.sequence_number)) for m in added]
        manifests, gone = ManifestCache(), {entry.data_file.file_path for entry in plan.equality}
        removal = remove_deletes(draft, plan.lines, gone, manifests)
    counts = added_counts(FileTotals.of(WriteResult(tuple(files), 0)))
    contents = SnapshotContents(
        lines=(*new, *removal.lines),
        shared=plan.lines,
        summary=new_summary(Operation.REPLACE, counts, draft.parent, {}, removed=removal.counts),
        files=tuple(file.path for file in files),
    )
    send(snapshot_change(draft, contents, manifests), f'the conversion of deletes of "{name}"', "maintain")
    return draft.snapshot_id
