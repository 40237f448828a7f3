"""Removes all or some files from a table: rewrites manifests with the files marked as deleted.

So change readers, and engines that clean up after expired snapshots, see which files left the table.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table.snapshots import Operation

from calve.iceberg.files.content import content_id, content_size
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_place, write_deleted, write_reduced
from calve.iceberg.snapshot.draft import Draft, unsent_files
from calve.iceberg.snapshot.history import operation_of
from calve.model.files import Content, Manifest
from calve.model.scan import ContentId


@dataclass(frozen=True)
class ManifestRemoval:
    """The lines that replace those of the previous manifest list, and counts for the summary."""

    lines: tuple[ManifestLine, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def operation(self, added: Sequence[Manifest]) -> Operation:
        """The operation of a snapshot that also adds these manifests."""
        if not self.lines:
            return operation_of(added)
        return Operation.OVERWRITE if any(m.content is Content.DATA for m in added) else Operation.DELETE


NOTHING_REMOVED = ManifestRemoval()


def remove_all(draft: Draft, lines: Sequence[ManifestLine], manifests: ManifestCache) -> ManifestRemoval:
    """Mark every live file of these manifests as deleted. Raises OSError."""
    removed: list[ManifestLine] = []
    counts: Counter[str] = Counter()
    with unsent_files(draft.table) as made:
        for number, line in enumerate(lines):
            entries = manifests.entries_of(draft.table.io, line.manifest)
            if not entries:
                continue
            name = f"{draft.snapshot_id}-{draft.sequence_number}-removed{number}.avro"
            content = line.manifest.content or ManifestContent.DATA
            place = manifest_place(draft.table, line.manifest.partition_spec_id, content, name)
            made.append(place.location)
            removed.append(ManifestLine(write_deleted(place, entries, draft.snapshot_id, draft.sequence_number)))
            for entry in entries:
                counts.update(removed_counts(entry))
    return ManifestRemoval(tuple(removed), dict(counts))


def remove_deletes(
    draft: Draft, lines: Sequence[ManifestLine], gone: Collection[ContentId], manifests: ManifestCache
) -> ManifestRemoval:
    """Mark these deletes as deleted; all other lines stay. Raises OSError."""
    return _reduce(draft, lines, gone, manifests, {ManifestContent.DELETES})


def remove_named(
    draft: Draft, lines: Sequence[ManifestLine], gone: Collection[ContentId], manifests: ManifestCache
) -> ManifestRemoval:
    """Mark these data files and deletes as deleted; all other lines stay. Raises OSError."""
    return _reduce(draft, lines, gone, manifests, {ManifestContent.DATA, ManifestContent.DELETES})


def _reduce(
    draft: Draft,
    lines: Sequence[ManifestLine],
    gone: Collection[ContentId],
    manifests: ManifestCache,
    kinds: Collection[ManifestContent],
) -> ManifestRemoval:
    kept: list[ManifestLine] = []
    counts: Counter[str] = Counter()
    own = (draft.snapshot_id, draft.sequence_number)
    with unsent_files(draft.table) as made:
        for number, line in enumerate(lines):
            manifest = line.manifest
            content = manifest.content or ManifestContent.DATA
            entries = manifests.entries_of(draft.table.io, manifest) if content in kinds else ()
            leaving = [entry for entry in entries if content_id(entry.data_file) in gone]
            if not leaving:
                kept.append(line)
                continue
            name = f"{draft.snapshot_id}-{draft.sequence_number}-reduced{number}.avro"
            place = manifest_place(draft.table, manifest.partition_spec_id, content, name)
            made.append(place.location)
            kept.append(ManifestLine(write_reduced(place, entries, gone, own)))
            for entry in leaving:
                counts.update(removed_counts(entry))
    return ManifestRemoval(tuple(kept), dict(counts))


def removed_counts(entry: ManifestEntry) -> dict[str, int]:
    """The counts of a removed file, under the names of the specification."""
    file = entry.data_file
    sized = {"removed-files-size": content_size(file)}
    if file.content == DataFileContent.DATA:
        return sized | {"deleted-data-files": 1, "deleted-records": file.record_count}
    if file.file_format == FileFormat.PUFFIN:
        return sized | {"removed-delete-files": 1, "removed-dvs": 1, "removed-position-deletes": file.record_count}
    kind = "equality" if file.content == DataFileContent.EQUALITY_DELETES else "position"
    removed = {f"removed-{kind}-delete-files": 1, f"removed-{kind}-deletes": file.record_count}
    return sized | {"removed-delete-files": 1} | removed
