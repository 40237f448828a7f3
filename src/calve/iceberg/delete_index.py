"""Which deletes apply to which data files, by the rules of the specification.

    equality   data with a lower sequence number, in the same partition of the same spec; in every partition when the
               spec of the deletes is unpartitioned
    position   data with the same or a lower sequence number, in the same partition of the same spec, or the one file
               that they name; not where a vector applies
    vector     the one file that it names, with the same or a lower sequence number

A file of deletes whose bounds show that it holds nothing for a data file is left out. What is not known of a file
counts as possible.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, PrimitiveType

from calve.errors import TerminalError
from calve.model.scan import DeleteFile, DeleteKind

_PATH_ID = 2147483546
"""Field id of the column `file_path` of position deletes."""

_REFERENCED, _OFFSET, _LENGTH = 17, 18, 19
"""Places in a data file record that has all fields of version 3; pyiceberg has no names for them."""

Partition = tuple[Any, ...]


def partition_of(file: DataFile) -> Partition:
    """Spec and values, comparable: a NaN equals a NaN."""
    values = (file.partition[i] for i in range(len(file.partition)))
    return (file.spec_id, *("NaN" if isinstance(v, float) and math.isnan(v) else v for v in values))


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """True for a spec without fields, or with nothing but fields that were dropped."""
    return all(isinstance(f.transform, VoidTransform) for f in spec.fields)


@dataclass(frozen=True)
class _Indexed:
    delete: DeleteFile
    file: DataFile


@dataclass
class _Group:
    """Deletes of one partition or of all, by kind."""

    equality: list[_Indexed] = field(default_factory=list)
    position: list[_Indexed] = field(default_factory=list)


class DeleteIndex:
    """All deletes of a snapshot. `fields` has every field that any schema of the table ever had, by id."""

    def __init__(
        self,
        entries: Iterable[ManifestEntry],
        specs: Mapping[int, PartitionSpec],
        fields: Mapping[int, NestedField],
    ) -> None:
        self._fields = fields
        self._everywhere = _Group()
        self._by_partition: dict[Partition, _Group] = {}
        self._by_path: dict[str, list[_Indexed]] = {}
        self._vectors: dict[str, DeleteFile] = {}
        unpartitioned = {spec_id for spec_id, spec in specs.items() if is_unpartitioned(spec)}
        for entry in entries:
            self._add(entry, unpartitioned)

    def of(self, entry: ManifestEntry) -> tuple[DeleteFile, ...]:
        """The deletes that apply to a data file, oldest first."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        own = self._by_partition.get(partition_of(file), _Group())
        found = [
            indexed.delete
            for group in (self._everywhere, own)
            for indexed in group.equality
            if indexed.delete.sequence_number > sequence and self._may_share_keys(indexed.file, file)
        ]
        vector = self._vectors.get(file.file_path)
        if vector is not None and vector.sequence_number >= sequence:
            found.append(vector)
        else:
            found += [
                indexed.delete
                for indexed in (*own.position, *self._by_path.get(file.file_path, ()))
                if indexed.delete.sequence_number >= sequence and _may_name(indexed.file, file.file_path)
            ]
        return tuple(sorted(found, key=lambda delete: delete.sequence_number))

    def _add(self, entry: ManifestEntry, unpartitioned: set[int]) -> None:
        file, sequence = entry.data_file, entry.sequence_number or 0
        partition = partition_of(file)
        if file.content is DataFileContent.EQUALITY_DELETES:
            scope = None if file.spec_id in unpartitioned else partition
            delete = _delete_file(DeleteKind.EQUALITY, file, sequence, scope)
            group = self._everywhere if scope is None else self._by_partition.setdefault(partition, _Group())
            group.equality.append(_Indexed(delete, file))
            return
        path = _only_path(file)
        if file.file_format is FileFormat.PUFFIN:
            if path is None or path in self._vectors:
                raise TerminalError(
                    "the deletes of a table contradict each other",
                    detail=f'The deletion vector in "{file.file_path}" names {f"{path} again" if path else "no file"}.',
                )
            self._vectors[path] = _delete_file(DeleteKind.VECTOR, file, sequence)
            return
        indexed = _Indexed(_delete_file(DeleteKind.POSITION, file, sequence), file)
        if path is not None:
            self._by_path.setdefault(path, []).append(indexed)
        else:
            self._by_partition.setdefault(partition, _Group()).position.append(indexed)

    def _may_share_keys(self, deletes: DataFile, data: DataFile) -> bool:
        return all(self._may_share(field_id, deletes, data) for field_id in deletes.equality_ids or ())

    def _may_share(self, field_id: int, deletes: DataFile, data: DataFile) -> bool:
        known = self._fields.get(field_id)
        if known is None:
            return True
        if _may_have_null(known, deletes) and _may_have_null(known, data):
            return True
        if _only_null(known, deletes) or _only_null(known, data):
            return False
        theirs, ours = _bounds(known, deletes), _bounds(known, data)
        return theirs is None or ours is None or (theirs[0] <= ours[1] and ours[0] <= theirs[1])


def _delete_file(kind: DeleteKind, file: DataFile, sequence: int, scope: Partition | None = None) -> DeleteFile:
    return DeleteFile(
        kind=kind,
        path=file.file_path,
        size=file.file_size_in_bytes,
        rows=file.record_count,
        sequence_number=sequence,
        equality_ids=tuple(file.equality_ids or ()),
        scope=scope,
        offset=file[_OFFSET] or 0,
        length=file[_LENGTH] or 0,
    )


def _only_path(file: DataFile) -> str | None:
    """The one data file that position deletes are about, if there is one."""
    referenced: str | None = file[_REFERENCED]
    if referenced is not None:
        return referenced
    lower, upper = (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)
    return bytes(lower).decode() if lower is not None and lower == upper else None


def _may_name(deletes: DataFile, path: str) -> bool:
    lower, upper = (deletes.lower_bounds or {}).get(_PATH_ID), (deletes.upper_bounds or {}).get(_PATH_ID)
    if lower is None or upper is None:
        return True
    # An upper bound may be cut without being rounded up by some writer: compare as much as there is.
    raw = path.encode()
    return raw[: len(lower)] >= bytes(lower) and raw[: len(upper)] <= bytes(upper)


def _may_have_null(known: NestedField, file: DataFile) -> bool:
    return (file.null_value_counts or {}).get(known.field_id) != 0


def _only_null(known: NestedField, file: DataFile) -> bool:
    nulls, values = (counts or {} for counts in (file.null_value_counts, file.value_counts))
    return known.field_id in nulls and nulls[known.field_id] == values.get(known.field_id)


def _bounds(known: NestedField, file: DataFile) -> tuple[Any, Any] | None:
    kind: IcebergType = known.field_type
    lower = (file.lower_bounds or {}).get(known.field_id)
    upper = (file.upper_bounds or {}).get(known.field_id)
    if (
        lower is None
        or upper is None
        or not isinstance(kind, PrimitiveType)
        or isinstance(kind, FloatType | DoubleType)
    ):
        return None  # bounds of floats leave out NaN, which is a key like any other
    try:
        return from_bytes(kind, lower), from_bytes(kind, upper)
    except (struct.error, UnicodeDecodeError):
        return None  # the column had another type then
