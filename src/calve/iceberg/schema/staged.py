"""Columns of staged rows by field id, so that rows are read correctly after the table's schema changed.

The rows of a batch may have been staged with different columns. They are read with those of the table's columns that
any of them has, under their current names and types; a row that was staged without a column has null there. A column
that was dropped from the table is dropped from the rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IcebergType, ListType, MapType, NestedField, StructType, UUIDType

from calve.iceberg.schema.arrow import parse_schema
from calve.iceberg.schema.readable import MappedName, Names, arrow_columns, spark_schema


def columns_of_any(theirs: Schema, staged: Iterable[Schema]) -> Schema:
    """The columns of a table, and their nested fields, that any of the staged schemas has."""
    ids = {number for schema in staged for number in schema.field_ids}
    fields = [field for field in theirs.fields if field.field_id in ids]
    return Schema(*(_with_known(field, ids) for field in fields), schema_id=theirs.schema_id)


def _with_known(field: NestedField, ids: set[int]) -> NestedField:
    return field.model_copy(update={"field_type": _known(field.field_type, ids)})


def _known(kind: IcebergType, ids: set[int]) -> IcebergType:
    match kind:
        case StructType():
            known = [_with_known(field, ids) for field in kind.fields if field.field_id in ids]
            return StructType(*known) if known else kind  # the table dropped every field that the rows had in it
        case ListType():
            element = _known(kind.element_type, ids)
            return ListType(kind.element_id, element, element_required=kind.element_required)
        case MapType():
            key, value = _known(kind.key_type, ids), _known(kind.value_type, ids)
            return MapType(kind.key_id, key, kind.value_id, value, value_required=kind.value_required)
    return kind


@dataclass(frozen=True)
class StagedColumns:
    """Columns in the types in which rows are staged. The Arrow schema has field ids at every level."""

    arrow: pa.Schema
    spark: dict[str, Any]
    """For `StructType.fromJson`."""


def staged_columns(schema_json: str) -> StagedColumns:
    """The columns that a batch's rows are read into. All are optional: deletes have only keys."""
    schema = parse_schema(schema_json)
    fields = [f.model_copy(update={"field_type": _bytes_of_uuid(f.field_type)}) for f in schema.fields]
    kept = Schema(*(_optional(field) for field in fields))
    return StagedColumns(arrow_columns(kept), spark_schema(kept))


def _bytes_of_uuid(kind: IcebergType) -> IcebergType:
    """UUID columns are staged as bytes."""
    return BinaryType() if isinstance(kind, UUIDType) else kind


def _optional(field: NestedField) -> NestedField:
    return field.model_copy(update={"field_type": _with_optional(field.field_type), "required": False})


def _with_optional(kind: IcebergType) -> IcebergType:
    match kind:
        case StructType():
            return StructType(*map(_optional, kind.fields))
        case ListType():
            return ListType(kind.element_id, _with_optional(kind.element_type), element_required=False)
        case MapType():
            key, value = _with_optional(kind.key_type), _with_optional(kind.value_type)
            return MapType(kind.key_id, key, kind.value_id, value, value_required=False)
    return kind


def staged_names(schema_json: str) -> Names:
    """The name mapping of a staged file, which has no field ids."""
    return _names(parse_schema(schema_json).fields)


def _names(fields: Sequence[NestedField]) -> Names:
    return {field.name: MappedName(field.field_id, _inside(field.field_type)) for field in fields}


def _inside(kind: IcebergType) -> Names:
    match kind:
        case StructType():
            return _names(kind.fields)
        case ListType():
            return {"element": MappedName(kind.element_id, _inside(kind.element_type))}
        case MapType():
            key = MappedName(kind.key_id, _inside(kind.key_type))
            return {"key": key, "value": MappedName(kind.value_id, _inside(kind.value_type))}
    return {}
