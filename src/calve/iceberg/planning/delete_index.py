"""Which deletes apply to which data files, by the rules of the specification; which delete files should be merged.

    equality   data with a lower sequence number, in the same partition of the same spec; in every partition if the
               spec of the deletes is unpartitioned
    position   data with the same or a lower sequence number, in the same partition of the same spec, or the one file
               that the deletes name; not where a vector applies
    vector     the one file that it names, with the same or a lower sequence number

A delete file whose bounds exclude a data file does not apply to it. Missing bounds exclude nothing.

A data file that changes often collects a delete file with each batch, and every reader opens all of them. As soon as
several of about the same size cover the same data (one file, or a partition), the next commit that deletes rows merges
them. Each delete is rewritten only a few times, however many batches there are.
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

from calve.errors import InvalidInput, TerminalError
from calve.iceberg.files.content import content_id, referenced_data_file
from calve.iceberg.files.names import is_written_by_calve
from calve.iceberg.files.position_deletes import PATH_ID
from calve.model.files import tier_of
from calve.model.scan import DeleteFile, DeleteKind

Partition = tuple[Any, ...]


def partition_of(file: DataFile) -> Partition:
    """The spec id and partition values of a file, comparable: NaN equals NaN."""
    values = (file.partition[i] for i in range(len(file.partition)))
    return (file.spec_id, *("NaN" if isinstance(v, float) and math.isnan(v) else v for v in values))


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether a spec has no fields, or only dropped ones."""
    return all(isinstance(f.transform, VoidTransform) for f in spec.fields)


@dataclass(frozen=True)
class _Span:
    """What is known about the values of one field in a file."""

    may_have_null: bool
    only_null: bool
    bounds: tuple[Any, Any] | None

    def may_meet(self, other: "_Span") -> bool:
        """False if no value can be in both files."""
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
    lower: bytes | None
    upper: bytes | None
    """Bounds of the paths of data files that it names."""

    def may_name(self, path: bytes) -> bool:
        """Whether it may delete rows of a data file."""
        if self.lower is None or self.upper is None:
            return True
        # Some writers truncate an upper bound without rounding it up: compare only as many bytes as it has.
        return path[: len(self.lower)] >= self.lower and path[: len(self.upper)] <= self.upper


@dataclass
class _Group:
    """The deletes of one partition, or of all, by kind."""

    equality: list[_Equality] = field(default_factory=list)
    position: list[_Position] = field(default_factory=list)


class DeleteIndex:
    """All deletes of a snapshot. `fields` holds every field of all the table's schemas, by id."""

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
        spans: dict[int, _Span] = {}

        def may_meet(deletes: _Equality) -> bool:
            for field_id, span in deletes.spans:
                if field_id not in spans:
                    spans[field_id] = self._span(field_id, file)
                if not span.may_meet(spans[field_id]):
                    return False
            return True

        found = [
            indexed.delete
            for group in (self._everywhere, own)
            for indexed in group.equality
            if indexed.delete.sequence_number > sequence and may_meet(indexed)
        ]
        vector = self._vectors.get(file.file_path)
        if vector is not None and vector.sequence_number >= sequence:
            found.append(vector)
        else:
            path = file.file_path.encode()
            found += [
                indexed.delete
                for indexed in (*own.position, *self._by_path.get(file.file_path, ()))
                if indexed.delete.sequence_number >= sequence and indexed.may_name(path)
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
        indexed = _Position(delete_file(DeleteKind.POSITION, file, sequence), *_path_bounds(file))
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
    """The `DeleteFile` of a manifest's data file. Raises InvalidInput if it cannot be read."""
    check_readable(file)
    content = content_id(file)
    return DeleteFile(
        kind=kind,
        path=file.file_path,
        size=file.file_size_in_bytes,
        rows=file.record_count,
        sequence_number=sequence,
        equality_ids=tuple(file.equality_ids or ()),
        scope=scope,
        offset=content.offset,
        length=content.length,
        data_file=content.data_file,
    )


def check_readable(file: DataFile) -> None:
    """Raise InvalidInput if calve cannot read the file."""
    if file.file_format not in {FileFormat.PARQUET, FileFormat.PUFFIN}:
        raise InvalidInput(
            "the table has files in an unsupported format",
            detail=f'"{file.file_path}" is {file.file_format.value}, expected PARQUET.',
            hint="Rewrite the table's files as Parquet.",
        )
    if file.key_metadata:
        raise InvalidInput("the table's files are encrypted", detail=f'"{file.file_path}" has key metadata.')


def only_path(file: DataFile) -> str | None:
    """The data file that position deletes refer to, if it is only one."""
    referenced = referenced_data_file(file)
    if referenced is not None:
        return referenced
    lower, upper = _path_bounds(file)
    return lower.decode() if lower is not None and lower == upper else None


def _path_bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    """The bounds of the paths that position deletes name."""
    lower, upper = (file.lower_bounds or {}).get(PATH_ID), (file.upper_bounds or {}).get(PATH_ID)
    return None if lower is None else bytes(lower), None if upper is None else bytes(upper)


def bounds_of(known: NestedField, file: DataFile) -> tuple[Any, Any] | None:
    """The bounds of a field's values in a file; None if they are unknown or do not cover every key."""
    kind: IcebergType = known.field_type
    lower = (file.lower_bounds or {}).get(known.field_id)
    upper = (file.upper_bounds or {}).get(known.field_id)
    if (
        lower is None
        or upper is None
        or not isinstance(kind, PrimitiveType)
        or isinstance(kind, FloatType | DoubleType)
    ):
        return None  # bounds of floats exclude NaN, which is a valid key
    try:
        return from_bytes(kind, lower), from_bytes(kind, upper)
    except (struct.error, UnicodeDecodeError):
        return None  # the column had a different type when the file was written


_FAN = 6
"""The number of files in one tier that are merged."""
_SMALLEST = 4096
"""Files with at most this many deletes are all in the lowest tier."""
_MOST = 4_000_000
"""The most deletes that one commit rewrites; these take about a second."""


@dataclass(frozen=True)
class DeleteGroup:
    """Delete files that are merged into one, or into one for each data file with many deletes."""

    files: tuple[DeleteFile, ...]
    spec_id: int
    partition: tuple[Any, ...]


def due_groups(entries: Iterable[ManifestEntry]) -> tuple[DeleteGroup, ...]:
    """The position delete files of a snapshot that should be merged; usually none. Only files that calve wrote."""
    tiers: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in entries:
        file = entry.data_file
        own = is_written_by_calve(file.file_path.rpartition("/")[2])
        if own and file.content is DataFileContent.POSITION_DELETES and file.file_format is FileFormat.PARQUET:
            tier = tier_of(file.record_count, _SMALLEST, _FAN)
            tiers.setdefault((partition_of(file), only_path(file), tier), []).append(entry)
    due: list[DeleteGroup] = []
    room = _MOST
    for members in tiers.values():
        rows = sum(entry.data_file.record_count for entry in members)
        if len(members) >= _FAN and rows <= room:
            room -= rows
            due.append(_group(members))
    return tuple(due)


def _group(entries: list[ManifestEntry]) -> DeleteGroup:
    first = entries[0].data_file
    return DeleteGroup(
        files=tuple(delete_file(DeleteKind.POSITION, e.data_file, e.sequence_number or 0) for e in entries),
        spec_id=first.spec_id,
        partition=tuple(first.partition[i] for i in range(len(first.partition))),
    )
