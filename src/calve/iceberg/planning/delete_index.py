"""Which deletes apply to which data files, by the rules of the specification.

    equality   data with a lower sequence number, in the same partition of the same spec; in every partition when the
               spec of the deletes is unpartitioned
    position   data with the same or a lower sequence number, in the same partition of the same spec, or the one file
               that they name; not where a vector applies
    vector     the one file that it names, with the same or a lower sequence number

A file of deletes whose bounds show that it holds nothing for a data file is left out. What is not known of a file
counts as possible.

Which files of position deletes are merged by the next commit that deletes rows.

A data file that is changed again and again collects a file of deletes with each batch, and every reader opens them all.
As soon as several of about one size are about the same rows (one data file, or a partition), they become one: each
delete is written again a few times at most, whatever the number of batches.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, PrimitiveType

from calve.errors import InvalidInput, TerminalError
from calve.iceberg.files.manifests import OWN_PREFIX
from calve.iceberg.files.position_deletes import PATH_ID
from calve.model.scan import DeleteFile, DeleteKind

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
class _Span:
    """What is known of the values of one field in a file."""

    may_have_null: bool
    only_null: bool
    bounds: tuple[Any, Any] | None

    def may_meet(self, other: "_Span") -> bool:
        """False when no value can be in both files."""
        if self.may_have_null and other.may_have_null:
            return True
        if self.only_null or other.only_null:
            return False
        mine, theirs = self.bounds, other.bounds
        return mine is None or theirs is None or bool(mine[0] <= theirs[1] and theirs[0] <= mine[1])


@dataclass(frozen=True)
class _Equality:
    delete: DeleteFile
    spans: tuple[tuple[int, _Span], ...]


@dataclass(frozen=True)
class _Position:
    delete: DeleteFile
    file: DataFile


@dataclass
class _Group:
    """Deletes of one partition or of all, by kind."""

    equality: list[_Equality] = field(default_factory=list)
    position: list[_Position] = field(default_factory=list)


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
        self._by_path: dict[str, list[_Position]] = {}
        self._vectors: dict[str, DeleteFile] = {}
        unpartitioned = {spec_id for spec_id, spec in specs.items() if is_unpartitioned(spec)}
        for entry in entries:
            self._add(entry, unpartitioned)

    def of(self, entry: ManifestEntry) -> tuple[DeleteFile, ...]:
        """The deletes that apply to a data file, oldest first."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        own = self._by_partition.get(partition_of(file), _Group())
        spans = cache(lambda field_id: self._span(field_id, file))
        found = [
            indexed.delete
            for group in (self._everywhere, own)
            for indexed in group.equality
            if indexed.delete.sequence_number > sequence
            and all(span.may_meet(spans(field_id)) for field_id, span in indexed.spans)
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
            delete = delete_file(DeleteKind.EQUALITY, file, sequence, scope)
            group = self._everywhere if scope is None else self._by_partition.setdefault(partition, _Group())
            spans = tuple((field_id, self._span(field_id, file)) for field_id in delete.equality_ids)
            group.equality.append(_Equality(delete, spans))
            return
        path = only_path(file)
        if file.file_format is FileFormat.PUFFIN:
            if path is None or path in self._vectors:
                raise TerminalError(
                    "the deletes of a table contradict each other",
                    detail=f'The deletion vector in "{file.file_path}" names {f"{path} again" if path else "no file"}.',
                )
            self._vectors[path] = delete_file(DeleteKind.VECTOR, file, sequence)
            return
        indexed = _Position(delete_file(DeleteKind.POSITION, file, sequence), file)
        if path is not None:
            self._by_path.setdefault(path, []).append(indexed)
        else:
            self._by_partition.setdefault(partition, _Group()).position.append(indexed)

    def _span(self, field_id: int, file: DataFile) -> _Span:
        nulls, values = (file.null_value_counts or {}).get(field_id), (file.value_counts or {}).get(field_id)
        known = self._fields.get(field_id)
        return _Span(
            may_have_null=nulls != 0,
            only_null=nulls is not None and nulls == values,
            bounds=None if known is None else bounds_of(known, file),
        )


def delete_file(kind: DeleteKind, file: DataFile, sequence: int, scope: Partition | None = None) -> DeleteFile:
    """A file of deletes as scans have it. Raises InvalidInput if it cannot be read."""
    check_readable(file)
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


def check_readable(file: DataFile) -> None:
    """Raise InvalidInput for a file of a table that calve cannot read."""
    if file.file_format not in {FileFormat.PARQUET, FileFormat.PUFFIN}:
        raise InvalidInput(
            "the table has files in a format that calve does not read",
            detail=f'"{file.file_path}" is {file.file_format.value}.',
            hint="Rewrite the table's files as Parquet.",
        )
    if file.key_metadata:
        raise InvalidInput("the table's files are encrypted", detail=f'"{file.file_path}" needs a key.')


def only_path(file: DataFile) -> str | None:
    """The one data file that position deletes are about, if there is one."""
    referenced: str | None = file[_REFERENCED]
    if referenced is not None:
        return referenced
    lower, upper = (file.lower_bounds or {}).get(PATH_ID), (file.upper_bounds or {}).get(PATH_ID)
    return bytes(lower).decode() if lower is not None and lower == upper else None


def _may_name(deletes: DataFile, path: str) -> bool:
    lower, upper = (deletes.lower_bounds or {}).get(PATH_ID), (deletes.upper_bounds or {}).get(PATH_ID)
    if lower is None or upper is None:
        return True
    # An upper bound may be cut without being rounded up by some writer: compare as much as there is.
    raw = path.encode()
    return raw[: len(lower)] >= bytes(lower) and raw[: len(upper)] <= bytes(upper)


def bounds_of(known: NestedField, file: DataFile) -> tuple[Any, Any] | None:
    """What the values of a field in a file lie between; None where that is not known, or says nothing of keys."""
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


_FAN = 6
"""Files of one size that are merged."""
_SMALLEST = 4096
"""Deletes below which sizes do not matter."""
_MOST = 4_000_000
"""Deletes that one commit writes again: it takes about a second for so many."""


@dataclass(frozen=True)
class DeleteGroup:
    """Files of deletes that become one, or one for each data file that has many."""

    files: tuple[DeleteFile, ...]
    spec_id: int
    partition: tuple[Any, ...]


def due_groups(entries: Iterable[ManifestEntry]) -> tuple[DeleteGroup, ...]:
    """Groups of the position deletes of a snapshot; none most of the time. Files of other writers are left alone."""
    tiers: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in entries:
        file = entry.data_file
        own = file.file_path.rpartition("/")[2].startswith(OWN_PREFIX)
        if own and file.content is DataFileContent.POSITION_DELETES and file.file_format is FileFormat.PARQUET:
            tiers.setdefault((partition_of(file), only_path(file), _tier(file.record_count)), []).append(entry)
    due: list[DeleteGroup] = []
    room = _MOST
    for members in tiers.values():
        rows = sum(entry.data_file.record_count for entry in members)
        if len(members) >= _FAN and rows <= room:
            room -= rows
            due.append(_group(members))
    return tuple(due)


def _tier(rows: int) -> int:
    tier = 0
    while rows > _SMALLEST:
        rows //= _FAN
        tier += 1
    return tier


def _group(entries: list[ManifestEntry]) -> DeleteGroup:
    first = entries[0].data_file
    return DeleteGroup(
        files=tuple(delete_file(DeleteKind.POSITION, e.data_file, e.sequence_number or 0) for e in entries),
        spec_id=first.spec_id,
        partition=tuple(first.partition[i] for i in range(len(first.partition))),
    )
