"""Rows -> partitions: the partition of a spec that each row belongs to, and the name of its folder.

Values come from the rows themselves. Folder names are for people; no reader parses a value from a path.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote_plus
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, UUIDType

from calve.iceberg.files.transforms import transformed

_FOLDER_BYTES = 120
"""Longer folder names are truncated: file systems allow 255 bytes."""

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
Values = tuple[Any, ...]


@dataclass(frozen=True)
class _Field:
    """A partition field. Without a source, the rows do not have the column: all values are null."""

    field: PartitionField
    path: tuple[str, ...]
    kind: IcebergType | None
    arrow: pa.DataType | None

    def values(self, rows: pa.Table) -> pa.Array:
        if self.kind is None:
            return pa.nulls(rows.num_rows)
        column = rows[self.path[0]]
        if len(self.path) > 1:
            column = pc.struct_field(column, list(self.path[1:]))
        found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(found, pa.ChunkedArray):  # no chunks
            found = pa.array([], column.type)
        typed = found.cast(self.arrow)
        plain = typed.storage if isinstance(typed, pa.ExtensionArray) else typed  # a uuid
        return transformed(plain, self.kind, self.field.transform)

    def text(self, value: Any) -> str:
        if self.kind is None:
            return "null"
        kind = self.field.transform.result_type(self.kind)
        if isinstance(kind, UUIDType) and value is not None:
            return str(UUID(bytes=value))
        try:
            return self.field.transform.to_human_string(kind, value)
        except (OverflowError, ValueError):  # a time outside of Python's range
            return str(value)


class Partitioner:
    """The partitions of one spec for rows of one schema."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._fields = [_bound(schema, field) for field in spec.fields]

    def clustered(self, rows: pa.Table) -> pa.Table:
        """The same rows, grouped by partition; rows of a partition keep their order."""
        codes = _codes([field.values(rows) for field in self._fields], rows.num_rows)
        if not len(codes) or (codes == codes[0]).all():
            return rows
        return rows.take(pa.array(np.argsort(codes, kind="stable")))

    def runs(self, rows: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        """Runs of adjacent rows of one partition, with its values."""
        if not rows.num_rows:
            return
        values = [field.values(rows) for field in self._fields]
        starts = _starts(values, rows.num_rows)
        for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
            yield tuple(_plain(array[start].as_py()) for array in values), rows.slice(start, end - start)

    def pieces(self, rows: pa.Table, least_runs: int, most: int) -> list[pa.Table]:
        """Cut rows between runs into at most so many pieces, each of at least so many runs or the only one."""
        starts = _starts([field.values(rows) for field in self._fields], rows.num_rows) if rows.num_rows else []
        count = max(1, min(most, len(starts) // least_runs))
        cuts = [*(starts[len(starts) * at // count] for at in range(1, count)), rows.num_rows]
        return [rows.slice(start, end - start) for start, end in zip([0, *cuts], cuts, strict=False)]

    def folder(self, values: Values) -> str:
        """The folder of a partition, relative to the folder of all files."""
        pairs = zip(self._fields, values, strict=True)
        return "/".join(_folder_name(field.field.name, field.text(value)) for field, value in pairs)


@lru_cache(maxsize=32)
def partitioner_of(schema_json: str, spec_json: str) -> Partitioner | None:
    """The partitioner for rows of a schema; None if the spec has no fields."""
    spec = PartitionSpec.model_validate_json(spec_json)
    return None if spec.is_unpartitioned() else Partitioner(Schema.model_validate_json(schema_json), spec)


def same_partition(one: Values, other: Values) -> bool:
    """Whether these are values of the same partition. 0.0 and -0.0 are not: readers return them as they are."""
    return all(
        (a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))) or a is b
        for a, b in zip(one, other, strict=True)
    )


def _bound(schema: Schema, field: PartitionField) -> _Field:
    path = _path(schema.as_struct().fields, field.source_id)
    if not path:
        return _Field(field, (), None, None)
    kind = schema.find_type(field.source_id)
    return _Field(field, path, kind, schema_to_pyarrow(kind))


def _path(fields: tuple[Any, ...], field_id: int) -> tuple[str, ...]:
    """The names on the path to a field, through structs only."""
    for field in fields:
        if field.field_id == field_id:
            return (field.name,)
        if field.field_type.is_struct and (rest := _path(field.field_type.fields, field_id)):
            return (field.name, *rest)
    return ()


def _starts(values: list[pa.Array], rows: int) -> list[int]:
    """Where runs of rows of the same partition begin; there is at least one row."""
    codes = _codes(values, rows)
    return [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist()]


def _codes(values: list[pa.Array], rows: int) -> npt.NDArray[np.int64]:
    """A number for every row, equal for rows of the same partition."""
    codes = np.zeros(rows, np.int64)
    for array in values:
        if pa.types.is_null(array.type):
            continue
        found = _by_bits(array).dictionary_encode(null_encoding="encode")
        if len(found.dictionary) > 1:
            codes = codes * len(found.dictionary) + found.indices.to_numpy(zero_copy_only=False)
            codes = np.unique(codes, return_inverse=True)[1] if array is not values[-1] else codes
    return codes


def _by_bits(array: pa.Array) -> pa.Array:
    """Floats as integers, so that -0.0 differs from 0.0 and all NaN are equal."""
    if not pa.types.is_floating(array.type):
        return array
    one_nan = pc.if_else(pc.is_nan(array), pa.scalar(math.nan, array.type), array)
    return one_nan.view(pa.int32() if array.type == pa.float32() else pa.int64())


def _plain(value: Any) -> Any:
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _folder_name(field: str, value: str) -> str:
    name = f"{quote_plus(field, safe='')}={quote_plus(value, safe='')}"
    if len(name) <= _FOLDER_BYTES:
        return name
    digest = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{name[: _FOLDER_BYTES - 17].rstrip('%')}~{digest}"
