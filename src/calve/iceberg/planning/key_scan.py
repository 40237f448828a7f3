"""Which data files of a snapshot may hold rows with given keys, and which of their rows are already deleted.

    manifest list ──► data manifests ───► files whose bounds the keys may meet ──► candidates
                 └──► delete manifests ─► position deletes and vectors of these
    manifests of keys ─► key files, treated as equality deletes that are newer than everything

Equality deletes of the table itself are ignored: a row that one of them deletes is found and deleted once more, which
changes nothing. Only its id must not be kept (`KeyScan.erasing`). Manifests never change, so those that were read stay
in memory.

A partition field whose source is a key column has the same value for all rows of a key. So a file whose partition value
no key has holds none of the rows, whatever its bounds are. Partition fields of other columns exclude nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, UUIDType

from calve.catalog.guarded import locations_of
from calve.iceberg.files.manifest_cache import ManifestCache, live_entries
from calve.iceberg.files.manifests import manifest_file, written_file
from calve.iceberg.files.names import table_mark
from calve.iceberg.files.position_deletes import DeletePlace
from calve.iceberg.files.transforms import transformed
from calve.iceberg.planning.delete_index import DeleteGroup, DeleteIndex, bounds_of, due_groups
from calve.iceberg.planning.table_scan import scan_file
from calve.iceberg.schema.arrow import order_ids
from calve.iceberg.schema.readable import ROW_ID, ROW_ID_KEY, EveryField, ReadTarget, every_field, read_target
from calve.model.files import Manifest, WrittenFile
from calve.model.scan import EVERYTHING, DeleteFile, DeleteKind, ScanFile
from calve.model.spec import LATEST_FORMAT
from calve.storage.filesystems import task_properties_of

_Test = tuple[int, int, PartitionField, IcebergType]
"""Index of a field in its spec, index of its source in the key, the field, the type of the source."""


class KeyPartitions:
    """The partition fields, of all specs of a table, whose values the key determines. Used on the driver only."""

    def __init__(self, table: Table, key_ids: Sequence[int]) -> None:
        schema = table.schema()
        known = {f.field_id: f.field_type for f in schema.fields}
        self._tests: dict[int, list[_Test]] = {
            spec_id: [
                (place, key_ids.index(field.source_id), field, known[field.source_id])
                for place, field in enumerate(spec.fields)
                if field.source_id in key_ids and field.source_id in known and _is_exact(field, known[field.source_id])
            ]
            for spec_id, spec in table.specs().items()
        }

    def files_with_keys(
        self, files: Sequence[ScanFile], values: Callable[[int], pa.Array], keys: int
    ) -> tuple[ScanFile, ...]:
        """The files that may hold a key. `values` gives the distinct values of a key column by its index."""
        wanted: dict[tuple[int, int], set[Any]] = {}
        for spec_id in {file.spec_id for file in files}:
            for place, at, field, kind in self._tests[spec_id]:
                if not _fills_all(field, keys):
                    found = transformed(values(at), kind, field.transform)
                    wanted[spec_id, place] = set(found.to_pylist())
        return tuple(
            file
            for file in files
            if all(
                file.partition[place] in wanted[file.spec_id, place]
                for place, *_ in self._tests[file.spec_id]
                if (file.spec_id, place) in wanted
            )
        )


def _fills_all(field: PartitionField, keys: int) -> bool:
    """Whether this many keys almost certainly fill every bucket; then hashing them is not worth its cost."""
    return isinstance(field.transform, BucketTransform) and keys > 3 * field.transform.num_buckets


def _is_exact(field: PartitionField, kind: IcebergType) -> bool:
    """Whether partition values of files and of keys compare exactly."""
    return not isinstance(field.transform, VoidTransform) and not isinstance(kind, FloatType | DoubleType | UUIDType)


_BEYOND = 1 << 62
"""A sequence number above all others: the keys apply to every existing row."""

Bounds = tuple[Any, Any] | None


@dataclass(frozen=True)
class Candidate:
    """A data file that may hold rows with the keys."""

    file: ScanFile
    bounds: tuple[Bounds, ...]
    """The bounds of each key column."""
    key_bytes: int
    """The size of its key columns, or of the whole file if that is unknown."""


@dataclass(frozen=True)
class AddedFile:
    """A data file that is about to be added."""

    file: ScanFile
    bounds: tuple[Bounds, ...]
    """The bounds of each key column."""
    written: WrittenFile


@dataclass(frozen=True)
class KeyScan:
    """The plan of a key lookup in one snapshot."""

    keys: tuple[DeleteFile, ...]
    """The key files."""
    key_ids: tuple[int, ...]
    """Fields of a key, in the order of its columns."""
    candidates: tuple[Candidate, ...]
    live: Mapping[str, tuple[int, int]]
    """All data files of the snapshot by path: size and rows."""
    target: ReadTarget
    partitions: KeyPartitions
    place: DeletePlace
    many_deletes: tuple[DeleteGroup, ...]
    """Position delete files that should be merged; none if vectors replace them."""
    erasing: Mapping[str, tuple[DeleteFile, ...]]
    """Equality deletes of the snapshot by data file; only if rows have ids."""
    order_ids: tuple[int, ...] = ()
    """Fields that order rows across checkpoints; empty if rows are not ordered."""
    added: tuple[AddedFile, ...] = ()
    """Files that are about to be added; only if rows are ordered or have ids."""
    added_manifests: tuple[str, ...] = ()
    """The locations of their manifests."""


class KeyScans:
    """Plans key lookups of one table; keeps manifests in memory between plans."""

    def __init__(self, manifests: ManifestCache) -> None:
        self._manifests = manifests

    def plan(
        self,
        table: Table,
        manifests: Sequence[ManifestFile],
        keys: Sequence[Manifest],
        added: Sequence[Manifest] = (),
        *,
        ordered: bool = False,
    ) -> KeyScan:
        """Plan a lookup. `manifests` are those of the snapshot; `added` those of rows that are about to be added.

        Raises OSError; InvalidInput for files that cannot be read.
        """
        key_entries = [entry for m in keys for entry in live_entries(table.io, manifest_file(m, 0, _BEYOND))]
        key_ids = tuple(key_entries[0].data_file.equality_ids or ())
        scan = self._scan(table, manifests, key_ids, key_entries)
        if not scan.candidates or not (ordered or scan.place.vectors):
            return scan
        compared = order_ids(table.schema()) if ordered else ()
        erasing = {i for deletes in scan.erasing.values() for delete in deletes for i in delete.equality_ids}
        target = key_target(table, (*key_ids, *compared, *erasing))
        new = [entry for m in added for entry in live_entries(table.io, manifest_file(m, 0, _BEYOND))]
        every = every_field(table)
        return replace(
            scan,
            target=replace(target, keys={**target.keys, ROW_ID.field_id: ROW_ID_KEY}),
            order_ids=compared,
            added=tuple(_added(e, key_ids, table.specs()[e.data_file.spec_id], every) for e in new),
            added_manifests=tuple(manifest.path for manifest in added),
        )

    def plan_all(self, table: Table, manifests: Sequence[ManifestFile], key_ids: tuple[int, ...]) -> KeyScan:
        """As `plan`, before the keys are known: every data file is a candidate."""
        return self._scan(table, manifests, key_ids, ())

    def _scan(
        self,
        table: Table,
        manifests: Sequence[ManifestFile],
        key_ids: tuple[int, ...],
        key_entries: Sequence[ManifestEntry],
    ) -> KeyScan:
        data = self._manifests.entries_of(table.io, *(m for m in manifests if m.content is ManifestContent.DATA))
        deletes = self._manifests.entries_of(table.io, *(m for m in manifests if m.content is ManifestContent.DELETES))
        by_position = [e for e in deletes if e.data_file.content is not DataFileContent.EQUALITY_DELETES]
        every = every_field(table)
        index = DeleteIndex([*key_entries, *by_position], table.specs(), every.fields)
        candidates = []
        for entry in data:
            found = index.of(entry)
            if not key_entries or any(delete.kind is DeleteKind.EQUALITY for delete in found):
                file = scan_file(entry, found, table.specs()[entry.data_file.spec_id])
                candidates.append(_candidate(file, entry.data_file, key_ids, every))
        place = place_of(table)
        by_value = [e for e in deletes if e.data_file.content is DataFileContent.EQUALITY_DELETES]
        return KeyScan(
            keys=tuple({d: None for c in candidates for d in c.file.deletes if d.kind is DeleteKind.EQUALITY}),
            key_ids=key_ids,
            candidates=tuple(candidates),
            live={f.file_path: (f.file_size_in_bytes, f.record_count) for f in (entry.data_file for entry in data)},
            target=key_target(table, key_ids),
            partitions=KeyPartitions(table, key_ids),
            place=place,
            many_deletes=() if place.vectors else due_groups(by_position),
            erasing=_erasing(table, data, by_value, every) if place.vectors and by_value else {},
        )


def _erasing(
    table: Table, data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry], every: EveryField
) -> dict[str, tuple[DeleteFile, ...]]:
    index = DeleteIndex(deletes, table.specs(), every.fields)
    return {entry.data_file.file_path: found for entry in data if (found := index.of(entry))}


def _added(entry: ManifestEntry, key_ids: Sequence[int], spec: PartitionSpec, every: EveryField) -> AddedFile:
    bounds = tuple(bounds_of(every.fields[i], entry.data_file) for i in key_ids)
    return AddedFile(scan_file(entry, (), spec), bounds, written_file(entry.data_file))


def key_target(table: Table, ids: Iterable[int]) -> ReadTarget:
    """How to read keys of these fields from any file."""
    wanted = tuple(ids)
    target = read_target(table, Schema(), set(wanted), EVERYTHING)
    return replace(target, io_properties=task_properties_of(table.io.properties))


def place_of(table: Table) -> DeletePlace:
    """Where the delete files of a table go."""
    return DeletePlace(
        locations_of(table).data_path,
        {k: v for k, v in table.properties.items() if k.startswith("write.")},
        task_properties_of(table.io.properties),
        table_mark(table.metadata.table_uuid),
        vectors=table.metadata.format_version >= LATEST_FORMAT,
    )


def _candidate(file: ScanFile, data_file: DataFile, key_ids: Sequence[int], every: EveryField) -> Candidate:
    sizes = data_file.column_sizes or {}
    return Candidate(
        file=file,
        bounds=tuple(bounds_of(every.fields[i], data_file) for i in key_ids),
        key_bytes=sum(sizes[i] for i in key_ids) if all(i in sizes for i in key_ids) else file.size,
    )
