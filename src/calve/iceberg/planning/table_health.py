"""Counts the files of a table's snapshot by size, for reports."""

from collections.abc import Mapping, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.planning.compaction_groups import small_below
from calve.model.health import SIZE_BOUNDS, TableHealth


def table_health(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    io: FileIO,
    cache: ManifestCache,
    *,
    target_size: int,
    now_ms: int,
) -> TableHealth:
    """Describe a snapshot by its summary and its data manifests. Raises OSError."""
    if snapshot is None:
        return TableHealth(None, now_ms, snapshots=len(metadata.snapshots))
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    manifests = [line.manifest for line in cache.lines_of(io, snapshot)]
    data = cache.entries_of(io, *(m for m in manifests if m.content is ManifestContent.DATA))
    sizes = [entry.data_file.file_size_in_bytes for entry in data]
    total = sum(sizes)
    small = small_below(total, target_size)
    return TableHealth(
        snapshot.snapshot_id,
        now_ms,
        snapshots=len(metadata.snapshots),
        rows=sum(entry.data_file.record_count for entry in data),
        data_files=len(sizes),
        data_bytes=total,
        small_files=sum(size < small for size in sizes),
        delete_files=_count(summary, "total-delete-files"),
        delete_bytes=max(0, _count(summary, "total-files-size") - total),
        position_deletes=_count(summary, "total-position-deletes"),
        equality_deletes=_count(summary, "total-equality-deletes"),
        sizes=size_classes(sizes),
    )


def size_classes(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The number of files in each class of sizes; the last class has no bound, written as 0."""
    found = [0] * (len(SIZE_BOUNDS) + 1)
    for size in sizes:
        found[next((i for i, bound in enumerate(SIZE_BOUNDS) if size <= bound), len(SIZE_BOUNDS))] += 1
    return tuple(zip((*SIZE_BOUNDS, 0), found, strict=True))


def _count(summary: Mapping[str, str], name: str) -> int:
    text = summary.get(name, "0")
    return int(text) if text.isdigit() else 0
