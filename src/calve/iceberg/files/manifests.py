"""Writes manifests: of added files, which any commit attempt can use, and manifests that replace others.

Entries of added files have neither snapshot id nor sequence number; they inherit them from the manifest list of the
attempt that is applied. So the manifests of a batch are written once, and its committable lists them.

pyiceberg declares `equality_ids` as list<long>; the specification says list<int>, and Spark's reader fails on the
former. Manifests are therefore written here, with the right Avro schema.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pydantic_core import to_json
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from calve.catalog.guarded import locations_of
from calve.errors import TerminalError
from calve.iceberg.files.avro import RecordFormat
from calve.iceberg.files.content import content_id, needs_version_3
from calve.iceberg.files.names import own_name, table_mark
from calve.iceberg.files.store import io_properties_of, remove_new
from calve.model.files import ColumnMetrics, Content, FieldSummary, Manifest, WrittenFile
from calve.model.scan import ContentId
from calve.storage.filesystems import sync_files

TARGET_BYTES = 8 << 20
"""Manifests of data files are split at about this size, so that readers can plan them in parallel."""

_PARTITION_ID, _EQUALITY_IDS_ID = 102, 135


@dataclass(frozen=True)
class ManifestPlace:
    """Where a manifest goes, and the contents of its header."""

    io: FileIO
    location: str
    schema: Schema
    spec: PartitionSpec
    content: ManifestContent
    version: Literal[2, 3]
    """The format version of the table."""


def write_manifests(
    table: Table, files: Sequence[WrittenFile], stem: str, sequence_number: int | None = None, folder: str = ""
) -> tuple[Manifest, ...]:
    """Write the manifests of one batch: data files by spec, split if there are very many; one per spec for deletes.

    `stem` makes their names unique; they go to `folder`, or to the table's metadata. `sequence_number` is for files
    whose rows were in the table before. New files of a local table are synced here, before anything refers to them.
    Writes all manifests or none. Raises OSError.
    """
    groups: dict[tuple[bool, int], list[WrittenFile]] = {}
    for file in files:
        groups.setdefault((file.content is not Content.DATA, file.spec_id), []).append(file)
    written: list[Manifest] = []
    made: list[str] = []
    try:
        for (deletes, spec_id), members in sorted(groups.items()):
            content = ManifestContent.DELETES if deletes else ManifestContent.DATA
            for piece in [members] if deletes else _pieces(members):
                place = manifest_place(table, spec_id, content, f"{stem}-m{len(written)}.avro", folder)
                made.append(place.location)
                written.append(_write_added(place, piece, sequence_number))
    except BaseException:
        remove_new(made, io_properties_of(table.io.properties), "writing the manifests of a batch failed")
        raise
    return tuple(written)


def write_existing(
    place: ManifestPlace, entries: Sequence[ManifestEntry], snapshot_id: int, sequence_number: int
) -> ManifestFile:
    """Write a manifest of files that are already in the table; each keeps its snapshot id and sequence numbers.

    `snapshot_id` and `sequence_number` are those of the snapshot that the manifest is written for. Raises OSError.
    """
    kept = [_carried(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in entries]
    return _carried_manifest(place, kept, snapshot_id, sequence_number)


def write_deleted(
    place: ManifestPlace, entries: Sequence[ManifestEntry], snapshot_id: int, sequence_number: int
) -> ManifestFile:
    """As `write_existing`, for files that this snapshot removes from the table."""
    gone = [_carried(entry, ManifestEntryStatus.DELETED, snapshot_id) for entry in entries]
    return _carried_manifest(place, gone, snapshot_id, sequence_number)


def write_reduced(
    place: ManifestPlace, entries: Sequence[ManifestEntry], gone: Collection[ContentId], draft: tuple[int, int]
) -> ManifestFile:
    """As `write_existing`, but the contents `gone` are removed. `draft` is snapshot id, sequence number."""
    carried = [
        _carried(entry, ManifestEntryStatus.DELETED, draft[0])
        if content_id(entry.data_file) in gone
        else _carried(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id)
        for entry in entries
    ]
    return _carried_manifest(place, carried, *draft)


def _carried(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _carried_manifest(
    place: ManifestPlace, entries: Sequence[ManifestEntry], snapshot_id: int, sequence_number: int
) -> ManifestFile:
    length = _write_entries(place, entries)
    partitions = construct_partition_summaries(place.spec, place.schema, [e.data_file.partition for e in entries])
    existing = [e for e in entries if e.status == ManifestEntryStatus.EXISTING]
    gone = [e for e in entries if e.status == ManifestEntryStatus.DELETED]
    return ManifestFile.from_args(
        _table_format_version=3,
        manifest_path=place.location,
        manifest_length=length,
        partition_spec_id=place.spec.spec_id,
        content=place.content,
        sequence_number=sequence_number,
        min_sequence_number=min(entry.sequence_number or 0 for entry in entries),
        added_snapshot_id=snapshot_id,
        added_files_count=0,
        existing_files_count=len(existing),
        deleted_files_count=len(gone),
        added_rows_count=0,
        existing_rows_count=sum(entry.data_file.record_count for entry in existing),
        deleted_rows_count=sum(entry.data_file.record_count for entry in gone),
        partitions=partitions,
        key_metadata=None,
    )


def manifest_file(manifest: Manifest, snapshot_id: int, sequence_number: int, least: int | None = None) -> ManifestFile:
    """A manifest of added files as an entry of a snapshot's manifest list.

    `least` is the sequence number of its files if they do not inherit one.
    """
    return ManifestFile.from_args(
        _table_format_version=3,
        manifest_path=manifest.path,
        manifest_length=manifest.length,
        partition_spec_id=manifest.spec_id,
        content=ManifestContent.DATA if manifest.content is Content.DATA else ManifestContent.DELETES,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number if least is None else least,
        added_snapshot_id=snapshot_id,
        added_files_count=manifest.files,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=manifest.rows,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[
            PartitionFieldSummary(p.contains_null, p.contains_nan, p.lower, p.upper) for p in manifest.partitions
        ],
        key_metadata=None,
    )


def manifest_place(table: Table, spec_id: int, content: ManifestContent, rest: str, folder: str = "") -> ManifestPlace:
    """The place of a new manifest: among the table's metadata files, or in `folder`. `rest` makes its name unique."""
    name = own_name(table_mark(table.metadata.table_uuid), rest)
    location = f"{folder}/{name}" if folder else locations_of(table).new_metadata_location(name)
    version: Literal[2, 3] = 3 if table.metadata.format_version >= 3 else 2
    return ManifestPlace(table.io, location, table.schema(), table.specs()[spec_id], content, version)


def added_entries(files: Sequence[WrittenFile], sequence_number: int | None) -> list[ManifestEntry]:
    """Entries of files that are added to a table; without a sequence number they inherit that of their snapshot."""
    return [
        ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=None,
            sequence_number=sequence_number,
            file_sequence_number=None,
            data_file=data_file(file),
        )
        for file in files
    ]


def _write_added(place: ManifestPlace, files: Sequence[WrittenFile], sequence_number: int | None) -> Manifest:
    sync_files((file.path for file in files), place.io.properties)
    entries = added_entries(files, sequence_number)
    length = _write_entries(place, entries)
    summaries = construct_partition_summaries(place.spec, place.schema, [e.data_file.partition for e in entries])
    return Manifest(
        path=place.location,
        length=length,
        spec_id=place.spec.spec_id,
        content=Content.DATA if place.content is ManifestContent.DATA else Content.EQUALITY_DELETES,
        files=len(files),
        rows=sum(file.record_count for file in files),
        partitions=tuple(
            FieldSummary(s.contains_null, s.contains_nan, s.lower_bound, s.upper_bound) for s in summaries
        ),
    )


def data_file(file: WrittenFile) -> DataFile:
    """The manifest's representation of a file."""
    vector = file.vector
    metrics = {name: None if vector else values for name, values in vars(file.metrics).items()}
    made = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent(file.content),
        file_path=file.path,
        file_format=FileFormat.PUFFIN if vector else FileFormat.PARQUET,
        partition=Record(*file.partition),
        record_count=file.record_count,
        file_size_in_bytes=file.size,
        split_offsets=list(file.split_offsets) or None,
        equality_ids=list(file.equality_ids) or None,
        sort_order_id=None,
        key_metadata=None,
        referenced_data_file=vector.data_file if vector else None,
        content_offset=vector.offset if vector else None,
        content_size_in_bytes=vector.length if vector else None,
        **metrics,
    )
    made.spec_id = file.spec_id
    return made


def written_file(file: DataFile) -> WrittenFile:
    """The inverse of `data_file`, for files with rows that calve wrote."""
    metrics = ColumnMetrics(**{name: dict(getattr(file, name) or {}) for name in ColumnMetrics.__dataclass_fields__})
    return WrittenFile(
        content=Content.DATA,
        path=file.file_path,
        record_count=file.record_count,
        size=file.file_size_in_bytes,
        spec_id=file.spec_id,
        partition=tuple(file.partition[place] for place in range(len(file.partition))),
        metrics=metrics,
        split_offsets=tuple(file.split_offsets or ()),
    )


def _write_entries(place: ManifestPlace, entries: Sequence[ManifestEntry]) -> int:
    """Write a manifest; returns its length in bytes."""
    if place.version < 3 and any(needs_version_3(entry.data_file) for entry in entries):
        raise TerminalError(
            "a manifest of format version 2 cannot hold deletion vectors or row ids",
            detail=f'"{place.location}" was not written.',
        )
    schema_json = place.schema.model_dump_json()
    header = {
        "schema": schema_json,
        "schema-id": str(place.schema.schema_id),
        "partition-spec": to_json(place.spec.fields).decode(),
        "partition-spec-id": str(place.spec.spec_id),
        "format-version": str(place.version),
        "content": "data" if place.content is ManifestContent.DATA else "deletes",
    }
    form = _entry_format(schema_json, place.spec.model_dump_json(), place.version)
    return form.write(place.io.new_output(place.location), header, [form.encode(entry) for entry in entries])


@lru_cache(maxsize=32)
def _entry_format(schema_json: str, spec_json: str, version: Literal[2, 3]) -> RecordFormat:
    schema, spec = Schema.model_validate_json(schema_json), PartitionSpec.model_validate_json(spec_json)
    partition = StructType(
        *[
            NestedField(f.field_id, f.name, f.field_type, required=False)  # a void field is null whatever its source is
            for f in spec.partition_type(schema).fields
        ]
    )
    types = {_PARTITION_ID: partition, _EQUALITY_IDS_ID: ListType(136, IntegerType(), element_required=True)}
    fields = [
        NestedField(f.field_id, f.name, types.get(f.field_id, f.field_type), required=f.required)
        for f in DATA_FILE_TYPE[version].fields
    ]
    entry = manifest_entry_schema_with_data_file(version, StructType(*fields))
    return RecordFormat(entry, "manifest_entry")


def _pieces(files: Sequence[WrittenFile]) -> Iterator[Sequence[WrittenFile]]:
    columns = len(files[0].metrics.value_counts)
    per_manifest = max(1, TARGET_BYTES // (150 + 30 * columns))  # a generous estimate of a compressed entry
    for start in range(0, len(files), per_manifest):
        yield files[start : start + per_manifest]
