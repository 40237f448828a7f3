"""Tables whose partitions are single files, replaced and removed whole; several such tables are changed at once.

    load ──► TableVersion (version, properties, files; its handle is pyiceberg's table)
                │
    prepare: manifests, manifest list, updates ──► Prepared
                │
    commit_all([Prepared, ...], unchanged=[TableVersion, ...]) ──► one catalog transaction ──► remove expired files

`prepare` and `commit_all` are one attempt on exactly the version that was loaded. The files of an attempt that was not
applied are removed (`catalog/outcome.py`). Files are deleted only after the commit that removed the last reference to
them. The files of rows are small Parquet files, written in one piece under an unused name.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import RemoveSnapshotsUpdate

from calve.catalog.discard import discard
from calve.catalog.failures import FAILURES, trying
from calve.catalog.outcome import TableChange, send_all
from calve.clock import Clock, IdSource
from calve.errors import TransientError
from calve.faults import reached
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine, references
from calve.iceberg.files.manifests import (
    manifest_file,
    manifest_place,
    write_deleted,
    write_existing,
    write_manifests,
)
from calve.iceberg.files.store import file_sizes, io_properties_of, open_input, open_output, remove_new
from calve.iceberg.schema.arrow import arrow_schema, metrics_of
from calve.iceberg.snapshot.draft import Draft, SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.expiry import same_refs
from calve.iceberg.snapshot.history import head_of
from calve.model.files import Content, WrittenFile

SeenTable = Table
"""A loaded table, for callers that only pass it on."""

MANIFESTS = 16
"""If there are more manifests than this, the next commit merges them, except for those with many files."""
MANY_FILES = 500

_NOT_REMOVED: tuple[type[Exception], ...] = (*FAILURES, NoSuchTableError)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartitionFile:
    """The file of a partition."""

    path: str
    partition: tuple[Any, ...]
    rows: int
    entry: ManifestEntry


@dataclass(frozen=True)
class HistoryLimits:
    """Which snapshots are kept besides the newest: at most `snapshots` in total, none older than `age_ms`."""

    snapshots: int | None = None
    age_ms: int | None = None

    def expired(self, metadata: TableMetadata, now_ms: int) -> list[Snapshot]:
        """Snapshots that expire when one more is added. Those that branches and tags refer to stay."""
        named = {ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH}
        newest_first = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0, reverse=True)
        return [
            snapshot
            for rank, snapshot in enumerate(newest_first, start=1)
            if snapshot.snapshot_id not in named
            and (
                (self.snapshots is not None and rank >= max(self.snapshots, 1))
                or (self.age_ms is not None and now_ms - snapshot.timestamp_ms > self.age_ms)
            )
        ]


@dataclass(frozen=True)
class TableVersion:
    """A table at one moment."""

    table: Table
    manifests: ManifestCache

    @property
    def version(self) -> int:
        """0 for a table that was never written to; grows with every change of its rows."""
        head = head_of(self.table.metadata)
        return (head.sequence_number or 0) if head else 0

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.table.metadata.properties

    @property
    def moment(self) -> str:
        """Identifies this state of the table uniquely."""
        return self.table.metadata_location

    @cached_property
    def lines(self) -> tuple[ManifestLine, ...]:
        """The live manifests. Raises OSError."""
        head = head_of(self.table.metadata)
        return self.manifests.lines_of(self.table.io, head)

    @cached_property
    def files(self) -> tuple[PartitionFile, ...]:
        """The files of the partitions. Raises OSError."""
        data = (line.manifest for line in self.lines if line.manifest.content is ManifestContent.DATA)
        entries = self.manifests.entries_of(self.table.io, *data)
        return tuple(PartitionFile(e.data_file.file_path, _values(e), e.data_file.record_count, e) for e in entries)


@dataclass(frozen=True)
class Prepared:
    """A snapshot that is written but not committed."""

    seen: TableVersion
    draft: Draft
    change: TableChange
    expired: tuple[Snapshot, ...]

    @property
    def label(self) -> str:
        """The name of the table in messages."""
        return self.draft.name

    def is_in(self, now: TableVersion) -> bool:
        """Whether the table shows that the snapshot was applied."""
        return self.change.is_in(now.table)


def prepare(
    seen: TableVersion,
    removed: Collection[str],
    added: Sequence[WrittenFile],
    keep: HistoryLimits,
    tools: tuple[Clock, IdSource],
    *,
    files: tuple[str, ...] = (),
) -> Prepared:
    """Write a snapshot on top of `seen`, without the files `removed` and with those `added`. Raises TransientError.

    `files` belong to this attempt only, and are removed with its manifests if it is not applied.
    """
    draft = new_draft(seen.table, *tools)
    with trying(f'writing manifests of "{draft.name}"'):
        change = _Change.of(seen, frozenset(removed))
        lines = [*_new_lines(draft, change, added), *change.kept]
    expired = keep.expired(draft.metadata, draft.timestamp_ms)
    contents = SnapshotContents(tuple(lines), seen.lines, _summary(seen, change, added), files)
    if not expired:
        return Prepared(seen, draft, snapshot_change(draft, contents, seen.manifests), ())
    ids = [snapshot.snapshot_id for snapshot in expired]
    removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})
    sent = snapshot_change(draft, contents, seen.manifests, removal)
    pinned = replace(sent, requirements=sent.requirements + same_refs(draft.table))
    return Prepared(seen, draft, pinned, tuple(expired))


def commit_all(prepared: Sequence[Prepared], unchanged: Sequence[TableVersion] = ()) -> None:
    """Commit all of these or none, provided that neither their tables nor `unchanged` changed since they were loaded.

    Raises CommitConflict if it was not applied: prepared files are then removed. Raises CommitUnknown, TransientError;
    InvalidInput if the catalog cannot commit several tables at once.
    """
    what = f"the change of {', '.join(one.label for one in prepared)}"
    after = send_all([one.change for one in prepared], what, "metastore", [seen.table for seen in unchanged])
    reached("metastore.expiry")
    for one, metadata in zip(prepared, after, strict=True):
        _clean_up(one, metadata)


def forget(prepared: Iterable[Prepared]) -> None:
    """Remove the files of snapshots that were never sent."""
    for one in prepared:
        discard(one.draft.table.io, one.change.files, "the snapshot that they were written for was never sent")


# ---- manifests


@dataclass(frozen=True)
class _Change:
    """How a snapshot changes the manifests."""

    kept: tuple[ManifestLine, ...]
    surviving: tuple[ManifestEntry, ...]
    """Files whose manifest is rewritten."""
    gone: tuple[ManifestEntry, ...]

    @classmethod
    def of(cls, seen: TableVersion, removed: frozenset[str]) -> "_Change":
        kept: list[ManifestLine] = []
        surviving: list[ManifestEntry] = []
        gone: list[ManifestEntry] = []
        for line in seen.lines:
            if line.manifest.content is not ManifestContent.DATA:  # of an engine that deleted rows
                kept.append(line)
                continue
            entries = seen.manifests.entries_of(seen.table.io, line.manifest)
            leaving = [entry for entry in entries if entry.data_file.file_path in removed]
            if leaving or (len(seen.lines) > MANIFESTS and len(entries) < MANY_FILES):
                gone += leaving
                surviving += [entry for entry in entries if entry.data_file.file_path not in removed]
            else:
                kept.append(line)
        return cls(tuple(kept), tuple(surviving), tuple(gone))


def _new_lines(draft: Draft, change: _Change, added: Sequence[WrittenFile]) -> list[ManifestLine]:
    table, snapshot_id, sequence = draft.table, draft.snapshot_id, draft.sequence_number
    manifests = write_manifests(table, added, f"{snapshot_id}-{sequence}")
    lines = [ManifestLine(manifest_file(manifest, snapshot_id, sequence)) for manifest in manifests]
    for word, entries, write in (
        ("existing", change.surviving, write_existing),
        ("removed", change.gone, write_deleted),
    ):
        if entries:
            name = f"{snapshot_id}-{sequence}-{word}.avro"
            place = manifest_place(table, table.metadata.default_spec_id, ManifestContent.DATA, name)
            lines.append(ManifestLine(write(place, entries, snapshot_id, sequence)))
    return lines


def _summary(seen: TableVersion, change: _Change, added: Sequence[WrittenFile]) -> Summary:
    gone = {entry.data_file.file_path for entry in change.gone}
    staying = [file.entry.data_file for file in seen.files if file.path not in gone]
    counts = {
        "added-data-files": len(added),
        "added-records": sum(file.record_count for file in added),
        "added-files-size": sum(file.size for file in added),
        "deleted-data-files": len(change.gone),
        "deleted-records": sum(entry.data_file.record_count for entry in change.gone),
        "removed-files-size": sum(entry.data_file.file_size_in_bytes for entry in change.gone),
    }
    totals = {
        "total-data-files": len(staying) + len(added),
        "total-records": sum(f.record_count for f in staying) + counts["added-records"],
        "total-files-size": sum(f.file_size_in_bytes for f in staying) + counts["added-files-size"],
        **dict.fromkeys(_DELETE_TOTALS, 0),
    }
    operation = Operation.OVERWRITE if gone and added else Operation.DELETE if gone else Operation.APPEND
    shown = {name: str(count) for name, count in counts.items() if count} | {k: str(v) for k, v in totals.items()}
    head = head_of(seen.table.metadata)
    known = dict(head.summary.additional_properties) if head and head.summary else {}
    return Summary(operation, **shown | {name: known[name] for name in _DELETE_TOTALS if name in known})


def _values(entry: ManifestEntry) -> tuple[Any, ...]:
    record = entry.data_file.partition
    return tuple(record[position] for position in range(len(record)))


# ---- expired files


def _clean_up(prepared: Prepared, after: TableMetadata) -> None:
    """Remove files that lost their last reference. A leftover file does no harm, so a failure is only a warning."""
    try:
        if prepared.expired:
            discard(prepared.draft.table.io, _unreferenced(prepared, after), "they expired")
    except _NOT_REMOVED as error:
        log.warning("expired files were not removed", extra={"table": prepared.label, "error": str(error)})


def _unreferenced(prepared: Prepared, after: TableMetadata) -> list[str]:
    """Files of the expired snapshots that no remaining snapshot refers to."""
    io, manifests = prepared.draft.table.io, prepared.seen.manifests
    gone = references(io, manifests, prepared.expired, missing_ok=True)
    while True:
        try:
            return sorted(gone - references(io, manifests, after.snapshots))
        except FileNotFoundError:
            # Another process expired more meanwhile: its metadata is the one that counts.
            newer = prepared.draft.table.catalog.load_table(prepared.draft.table.name()).metadata
            if newer.last_updated_ms == after.last_updated_ms and newer.snapshots == after.snapshots:
                raise
            after = newer


_DELETE_TOTALS = ("total-delete-files", "total-position-deletes", "total-equality-deletes")
"""Only other engines add deletes to these tables, and every snapshot keeps them."""

_SMALL = 256
_KNOWN = 512


def write_rows(
    table: Table, location: str, partition: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]
) -> WrittenFile:
    """Write the rows of one partition to a new file. Raises OSError; TransientError if the name is taken."""
    properties = io_properties_of(table.io.properties)
    if file_sizes([location], properties)[location] is not None:
        raise TransientError(
            "the name of a new file was already taken",
            detail=f"The file is {location}.",
            hint="Nothing was changed; try again.",
        )
    schema = table.schema()
    content = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(schema))
    footers: list[pq.FileMetaData] = []
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, content.schema, compression="zstd", metadata_collector=footers) as writer:
        writer.write_table(content)
    whole = buffer.getvalue()
    try:
        with open_output(location, properties) as sink:
            sink.write(whole)
    except BaseException:
        remove_new([location], properties)
        raise
    metrics, split_offsets = metrics_of(footers[0], schema, table.properties)
    return WrittenFile(
        content=Content.DATA,
        path=location,
        record_count=len(rows),
        size=whole.size,
        spec_id=table.metadata.default_spec_id,
        partition=partition,
        metrics=metrics,
        split_offsets=split_offsets,
    )


class RowReader:
    """Reads files of rows. Files never change, so small ones stay in memory."""

    def __init__(self) -> None:
        self._known: LRUCache[str, pa.Table] = LRUCache(_KNOWN)
        self._lock = Lock()

    def read(self, table: Table, location: str, columns: Sequence[str], rows: int) -> pa.Table:
        """Read columns of a file; a column that the file lacks is null. Raises OSError."""
        with self._lock:
            content = self._known.get(location)
        if content is None:
            with open_input(location, io_properties_of(table.io.properties)) as source:
                file = pq.ParquetFile(source)
                there = [name for name in columns if name in file.schema_arrow.names]
                content = file.read(columns=None if rows <= _SMALL else there or file.schema_arrow.names[:1])
            if rows <= _SMALL:
                with self._lock:
                    self._known[location] = content
        for name in set(columns) - set(content.column_names):
            kind = arrow_schema(table.schema()).field(name).type
            content = content.append_column(name, pa.nulls(content.num_rows, kind))
        return content.select(list(columns))
