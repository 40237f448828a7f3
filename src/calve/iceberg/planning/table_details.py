"""Describes a table by its metadata and manifests, for people.

`table_health` is the short form, for the status of a sink; `details_of` has the history, the cost of a scan, and what
maintenance would do.

The cost of a scan is the weight that Iceberg's own planning gives to it: a file counts as its size, and at least as
`read.split.open-file-cost`, since opening it takes as long as reading so many bytes. A file's deletes are read with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from calve.catalog.failures import trying
from calve.errors import ProgressUnprovable
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.options import file_options
from calve.iceberg.planning.compaction_cost import dead_rows
from calve.iceberg.planning.compaction_groups import AUTOMATIC, AgeOf, ages_by, due_groups, small_below
from calve.iceberg.planning.delete_index import DeleteIndex
from calve.iceberg.planning.table_scan import scan_file
from calve.iceberg.schema.readable import every_field
from calve.iceberg.snapshot.history import ancestors_of, head_of, stated_progress
from calve.model.health import SIZE_BOUNDS, TableHealth
from calve.model.numbers import number_property, whole_number
from calve.model.progress import FRONTIER, SINK_ID, Progress
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.model.spec import WriteOptions

HISTORY = 200
"""Snapshots that are described, the newest ones."""
MOST_FILES = 50_000
"""A table with more data files is described by the totals of its newest snapshot, without reading its manifests."""
_OPEN_FILE_COST = "read.split.open-file-cost"
_DEFAULT_OPEN_FILE_COST = 4 << 20


@dataclass(frozen=True)
class SnapshotNote:
    """One snapshot, as its summary describes it."""

    snapshot_id: int
    timestamp_ms: int
    operation: str
    sink_id: str
    """The sink that committed it; empty for maintenance and other writers."""
    epoch: int | None
    claim: bool
    """Whether it adds nothing but the claim of a run."""
    frontier: str
    added_rows: int
    added_deletes: int
    added_files: int
    removed_files: int
    added_bytes: int


@dataclass(frozen=True)
class SchemaChange:
    """The columns that a schema has and the one before it lacks, and the other way round."""

    schema_id: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    altered: tuple[str, ...]
    """Columns with another type, name or nullability."""


@dataclass(frozen=True)
class ScanCost:
    """The cost of reading all rows."""

    data_files: int
    delete_files: int
    bytes: int
    rows: int
    """Rows that are read, deleted ones included."""
    weight: int
    """Bytes, where a small file counts as `open_file_cost`."""
    compacted_weight: int
    """The weight of the same rows in files of the target size, without deletes."""
    open_file_cost: int


@dataclass(frozen=True)
class DueWork:
    """What automatic maintenance would rewrite now."""

    files: int
    rows: int
    small_files: int
    worn_files: int
    """Files of which enough rows are deleted."""


@dataclass(frozen=True)
class FileCounts:
    """What only the manifests know."""

    deleted_rows: int
    exact: bool
    """Whether `deleted_rows` is a count; equality deletes are an estimate."""
    small_files: int
    desired_size: int
    """The size of a data file after a compaction."""
    sizes: tuple[tuple[int, int], ...]
    """Data files by size, as in `TableHealth`."""
    smallest: int
    median: int
    largest: int
    scan: ScanCost
    due: DueWork


@dataclass(frozen=True)
class TableDetails:
    """One moment of a table."""

    location: str
    format_version: int
    snapshot_id: int | None
    timestamp_ms: int | None
    rows: int
    """Rows in data files, deleted ones included."""
    data_files: int
    delete_files: int
    bytes: int
    snapshots: int
    oldest_ms: int | None
    """Time of the oldest snapshot that is kept."""
    columns: int
    history: tuple[SnapshotNote, ...]
    """The newest snapshots of the branch, oldest first."""
    schema_changes: tuple[SchemaChange, ...]
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Progress of sinks by their ids."""
    files: FileCounts | None = None
    """None if the table has too many files to look at all of them."""


def details_of(table: Table, manifests: ManifestCache, sink_ids: Iterable[str], branch: str) -> TableDetails:
    """Describe the head of a branch. Raises TransientError; InvalidInput if a file is in an unsupported format."""
    metadata = table.metadata
    head = head_of(metadata, branch)
    total = _Summary(head).count
    snapshots = metadata.snapshots
    history = [_note(snapshot) for snapshot in islice(ancestors_of(metadata, head), HISTORY)]
    files = None
    if head is not None and total("total-data-files") <= MOST_FILES:
        files = _read_files(table, head, manifests)
    return TableDetails(
        location=metadata.location,
        format_version=metadata.format_version,
        snapshot_id=head.snapshot_id if head else None,
        timestamp_ms=head.timestamp_ms if head else None,
        rows=total("total-records"),
        data_files=total("total-data-files"),
        delete_files=total("total-delete-files"),
        bytes=total("total-files-size"),
        snapshots=len(snapshots),
        oldest_ms=min((snapshot.timestamp_ms for snapshot in snapshots), default=None),
        columns=len(metadata.schema().fields),
        history=tuple(reversed(history)),
        schema_changes=_schema_changes(metadata),
        progress=_progress(metadata, sink_ids),
        files=files,
    )


def _progress(metadata: TableMetadata, sink_ids: Iterable[str]) -> dict[str, Progress]:
    found = {}
    for sink_id in sink_ids:
        try:
            stated = stated_progress(metadata.properties, sink_id)
        except ProgressUnprovable:  # the sink itself reports it
            continue
        if stated is not None:
            found[sink_id] = stated
    return found


class _Summary:
    """The summary of a snapshot, if it has one."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        summary = snapshot.summary if snapshot is not None else None
        self.properties = {} if summary is None else summary.additional_properties

    def count(self, name: str) -> int:
        """A number; 0 where it is missing."""
        return whole_number(self.properties.get(name, "")) or 0


def _note(snapshot: Snapshot) -> SnapshotNote:
    summary = _Summary(snapshot)
    count = summary.count
    added = count("added-data-files") + count("added-delete-files")
    removed = count("deleted-data-files") + count("removed-delete-files")
    sink_id = summary.properties.get(SINK_ID, "")
    return SnapshotNote(
        snapshot_id=snapshot.snapshot_id,
        timestamp_ms=snapshot.timestamp_ms,
        operation=snapshot.summary.operation.value if snapshot.summary is not None else "",
        sink_id=sink_id,
        epoch=count("calve.epoch") if sink_id else None,
        claim=bool(sink_id) and not added and not removed,
        frontier=summary.properties.get(FRONTIER, ""),
        added_rows=count("added-records"),
        added_deletes=count("added-position-deletes") + count("added-equality-deletes"),
        added_files=added,
        removed_files=removed,
        added_bytes=count("added-files-size"),
    )


def _schema_changes(metadata: TableMetadata) -> tuple[SchemaChange, ...]:
    schemas = sorted(metadata.schemas, key=lambda schema: schema.schema_id)
    return tuple(_difference(before, after) for before, after in pairwise(schemas))


def _difference(before: Schema, after: Schema) -> SchemaChange:
    old, new = ({f.field_id: f for f in schema.fields} for schema in (before, after))
    return SchemaChange(
        schema_id=after.schema_id,
        added=tuple(f"{f.name} {f.field_type}" for i, f in new.items() if i not in old),
        removed=tuple(f.name for i, f in old.items() if i not in new),
        altered=tuple(_alteration(str(old[i]), str(f)) for i, f in new.items() if i in old and old[i] != f),
    )


def _alteration(before: str, after: str) -> str:
    return f"{before.partition(': ')[2]} → {after.partition(': ')[2]}"


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
    total = _Summary(snapshot).count
    data = _entries(io, snapshot, cache, ManifestContent.DATA)
    sizes = [entry.data_file.file_size_in_bytes for entry in data]
    return TableHealth(
        snapshot.snapshot_id,
        now_ms,
        snapshots=len(metadata.snapshots),
        rows=sum(entry.data_file.record_count for entry in data),
        data_files=len(sizes),
        data_bytes=sum(sizes),
        small_files=small_files(sizes, target_size),
        delete_files=total("total-delete-files"),
        delete_bytes=max(0, total("total-files-size") - sum(sizes)),
        position_deletes=total("total-position-deletes"),
        equality_deletes=total("total-equality-deletes"),
        sizes=size_classes(sizes),
    )


def small_files(sizes: Sequence[int], target_size: int) -> int:
    """The number of files that compaction would merge because of their size."""
    bound = small_below(sum(sizes), target_size)
    return sum(size < bound for size in sizes)


def size_classes(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The number of files in each class of sizes; the last class has no bound, written as 0."""
    found = [0] * (len(SIZE_BOUNDS) + 1)
    for size in sizes:
        found[next((i for i, bound in enumerate(SIZE_BOUNDS) if size <= bound), len(SIZE_BOUNDS))] += 1
    return tuple(zip((*SIZE_BOUNDS, 0), found, strict=True))


def _entries(io: FileIO, snapshot: Snapshot, cache: ManifestCache, content: ManifestContent) -> Sequence[ManifestEntry]:
    manifests = [line.manifest for line in cache.lines_of(io, snapshot)]
    return cache.entries_of(io, *(m for m in manifests if m.content is content))


def _read_files(table: Table, head: Snapshot, manifests: ManifestCache) -> FileCounts:
    with trying(f'reading the manifests of "{".".join(table.name())}"'):
        data = _entries(table.io, head, manifests, ManifestContent.DATA)
        deletes = _entries(table.io, head, manifests, ManifestContent.DELETES)
    specs = table.specs()
    index = DeleteIndex(deletes, specs, every_field(table).fields)
    files = [scan_file(entry, index.of(entry), specs[entry.data_file.spec_id]) for entry in data]
    target = file_options(WriteOptions(), table.properties).target_file_size
    open_cost = number_property(table.properties, _OPEN_FILE_COST, _DEFAULT_OPEN_FILE_COST)
    ages = ages_by(snapshot_times(table.metadata), head.timestamp_ms)
    return file_counts(files, target, open_cost, ages)


def snapshot_times(metadata: TableMetadata) -> list[tuple[int, int]]:
    """Sequence numbers and times of the snapshots of a table."""
    return [(snapshot.sequence_number or 0, snapshot.timestamp_ms) for snapshot in metadata.snapshots]


def file_counts(
    files: Sequence[ScanFile], target_size: int, open_file_cost: int, age_of: AgeOf = lambda _: 0.0
) -> FileCounts:
    """Count the files of a snapshot, and predict the cost of a scan."""
    deleted = dead_rows(files)
    applied = list({delete: None for file in files for delete in file.deletes})
    sizes = sorted(file.size for file in files)
    due = due_groups(files, target_size, AUTOMATIC, age_of)
    return FileCounts(
        deleted_rows=round(sum(deleted.values())),
        exact=all(delete.kind is not DeleteKind.EQUALITY for delete in applied),
        small_files=small_files(sizes, target_size),
        desired_size=due.file_size,
        sizes=size_classes(sizes),
        smallest=sizes[0] if sizes else 0,
        median=sizes[len(sizes) // 2] if sizes else 0,
        largest=sizes[-1] if sizes else 0,
        scan=_scan_cost(files, applied, deleted, due.file_size, open_file_cost),
        due=DueWork(due.files, due.rows, due.files - due.worn, due.worn),
    )


def _scan_cost(
    files: Sequence[ScanFile],
    deletes: Sequence[DeleteFile],
    deleted: Mapping[str, float],
    desired_size: int,
    open_file_cost: int,
) -> ScanCost:
    live = sum(f.size * (1 - deleted.get(f.path, 0) / f.rows) if f.rows else 0 for f in files)
    fewest = max(1, -(-round(live) // desired_size)) if files else 0
    read = [*(file.size for file in files), *(delete.length or delete.size for delete in deletes)]
    return ScanCost(
        data_files=len(files),
        delete_files=len({delete.id for delete in deletes}),
        bytes=sum(read),
        rows=sum(file.rows for file in files),
        weight=sum(max(size, open_file_cost) for size in read),
        compacted_weight=max(round(live), fewest * open_file_cost),
        open_file_cost=open_file_cost,
    )
