"""Projects the columns of a file to the table's current columns: by field id, renamed, widened, filled in.

A field that a file lacks has the value of its identity partition, else its initial default, else null. A file without
field ids is resolved by the table's name mapping or, without one, by the order of its columns.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from calve.iceberg.schema.readable import FIELD_ID, Names, ReadTarget

Constants = Mapping[int, Any]


def field_id(field: pa.Field) -> int | None:
    """The id of a field of a file or of a `ReadTarget`."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def with_ids(schema: pa.Schema, names: Names | None) -> pa.Schema:
    """The schema of a file, with an id on every field that the table has."""
    if any(_has_id(field) for field in schema):
        return schema
    if names is not None:
        return pa.schema([_named(field, names) for field in schema])
    return pa.schema([_identified(field, place) for place, field in enumerate(schema, start=1)])


def _has_id(field: pa.Field) -> bool:
    return field_id(field) is not None or any(_has_id(child) for child in children(field.type))


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields inside a nested type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _identified(field: pa.Field, number: int | None) -> pa.Field:
    return field if number is None else field.with_metadata({FIELD_ID: str(number).encode()})


def _named(field: pa.Field, names: Names) -> pa.Field:
    mapped = names.get(field.name)
    if mapped is None:
        return field.remove_metadata()
    return _identified(pa.field(field.name, _named_type(field.type, mapped.children)), mapped.field_id)


def _named_type(kind: pa.DataType, names: Names) -> pa.DataType:
    """A mapping calls the fields of lists and maps `element`, `key` and `value`, whatever the file calls them."""
    if pa.types.is_struct(kind):
        return pa.struct([_named(child, names) for child in kind])
    if pa.types.is_map(kind):
        key, value = kind.key_field.with_name("key"), kind.item_field.with_name("value")
        return pa.map_(_named(key, names).with_nullable(False), _named(value, names))  # noqa: FBT003 - pyarrow's
    if _is_list(kind):
        return pa.list_(_named(kind.value_field.with_name("element"), names))
    return kind


class Projection:
    """Converts the columns of one file to those of a target."""

    def __init__(self, file_schema: pa.Schema, target: ReadTarget, constants: Constants) -> None:
        self._source = with_ids(file_schema, target.names)
        self._target = target
        self._constants = constants
        self._places = {number: place for place, f in enumerate(self._source) if (number := field_id(f)) is not None}

    def needed(self, ids: Iterable[int]) -> list[str]:
        """The file's names of those columns that it has."""
        return [self._source.field(self._places[number]).name for number in ids if number in self._places]

    def source(self, number: int) -> str:
        """The file's name of a column; empty if the file lacks it."""
        return self._source.field(self._places[number]).name if number in self._places else ""

    @property
    def sources(self) -> dict[str, str]:
        """The file's names of the target's columns, for those that the file has."""
        named = ((field.name, field_id(field)) for field in self._target.schema)
        return {name: self._source.field(self._places[n]).name for name, n in named if n in self._places}

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch to the columns of the target."""
        schema = self._target.schema
        return pa.RecordBatch.from_arrays([self._column(batch, field) for field in schema], schema=schema)

    def key(self, table: pa.Table, number: int) -> pa.ChunkedArray:
        """The values of a key field, in the type that deletes compare."""
        key = self._target.keys[number]
        column, *inner = key.path
        place = self._places.get(column)
        if place is None:
            return pa.chunked_array([self._filled(number, key.kind, table.num_rows)])
        source = self._source.field(place)
        values, kind = table.column(source.name), source.type
        for step in inner:
            at = next((i for i, child in enumerate(kind) if field_id(child) == step), None)
            if at is None:
                return pa.chunked_array([self._filled(number, key.kind, table.num_rows)])
            values, kind = pc.struct_field(values, [at]), kind.field(at).type
        return pa.chunked_array([_cast(chunk, key.kind) for chunk in values.chunks], type=key.kind)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        number = field_id(field)
        place = None if number is None else self._places.get(number)
        if place is None:
            return self._filled(number, field.type, batch.num_rows)
        source = self._source.field(place)
        return self._converted(batch.column(batch.schema.get_field_index(source.name)), source.type, field.type)

    def _filled(self, number: int | None, kind: pa.DataType, length: int) -> pa.Array:
        """The values of a column that the file lacks."""
        for values in (self._constants, self._target.defaults):
            if number is not None and number in values:
                return pa.repeat(_scalar(values[number], kind), length)
        return pa.nulls(length, kind)

    def _converted(self, array: pa.Array, source: pa.DataType, target: pa.DataType) -> pa.Array:
        if pa.types.is_struct(target):
            return self._struct(array, source, target)
        if pa.types.is_map(target):
            offsets, piece = _offsets(array)
            keys = self._converted(array.keys[piece], source.key_type, target.key_type)
            items = self._converted(array.items[piece], source.item_type, target.item_type)
            return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=_nulls(array))
        if pa.types.is_list(target):
            if not pa.types.is_list(array.type):
                array = array.cast(pa.list_(array.type.value_field))
            offsets, piece = _offsets(array)
            values = self._converted(array.values[piece], source.value_type, target.value_type)
            return pa.ListArray.from_arrays(offsets, values, type=target, mask=_nulls(array))
        return _cast(array, target)

    def _struct(self, array: pa.Array, source: pa.StructType, target: pa.StructType) -> pa.Array:
        places = {field_id(child): place for place, child in enumerate(source)}
        columns = []
        for child in target:
            place = places.get(field_id(child))
            if place is None:
                columns.append(self._filled(field_id(child), child.type, len(array)))
            else:
                columns.append(self._converted(array.field(place), source.field(place).type, child.type))
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=_nulls(array))


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, UUID):  # which old versions of Arrow do not convert
        return pa.scalar(value.bytes if isinstance(kind, pa.BaseExtensionType) else str(value), kind)
    return pa.scalar(value, kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _offsets(array: pa.Array) -> tuple[pa.Array, slice]:
    """Offsets that start at zero, and the values that they refer to: a batch may be a slice of larger arrays."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return pa.array(offsets - first, pa.int32()), slice(first, last)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == target:
        return array
    if pa.types.is_fixed_size_binary(array.type) and pa.types.is_string(target):
        return pa.array([None if v is None else str(UUID(bytes=v)) for v in array.to_pylist()], target)
    if pa.types.is_null(target):
        return pa.nulls(len(array))
    # Timestamps of other writers may be finer than the table's: they are truncated, as other readers do.
    return pc.cast(array, target, safe=not pa.types.is_timestamp(target))
