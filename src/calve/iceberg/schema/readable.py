"""A table's schema for readers, on the driver and on executors: Arrow types with field ids, and Spark types.

Columns have types that both Arrow and Spark have: a uuid is a string, a fixed value is binary. No Arrow field is
declared non-null: a file of another writer may break that promise, and Arrow would not notice.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeographyType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from calve.errors import InvalidInput
from calve.iceberg.files.store import io_properties_of
from calve.iceberg.schema.arrow import arrow_schema
from calve.model.scan import EVERYTHING, Condition
from calve.model.spec import LATEST_FORMAT
from calve.suggest import suggestion

FIELD_ID = b"PARQUET:field_id"
"""The metadata key under which Arrow stores the field ids of Parquet files."""

_NAME_MAPPING = "schema.name-mapping.default"

_PLAIN: Mapping[type[IcebergType], tuple[pa.DataType, str | None]] = {
    BooleanType: (pa.bool_(), "boolean"),
    IntegerType: (pa.int32(), "integer"),
    LongType: (pa.int64(), "long"),
    FloatType: (pa.float32(), "float"),
    DoubleType: (pa.float64(), "double"),
    DateType: (pa.date32(), "date"),
    TimeType: (pa.time64("ns"), "time(6)"),  # Spark accepts no other unit
    TimestampType: (pa.timestamp("us"), "timestamp_ntz"),
    TimestamptzType: (pa.timestamp("us", "UTC"), "timestamp"),
    TimestampNanoType: (pa.timestamp("ns"), None),
    TimestamptzNanoType: (pa.timestamp("ns", "UTC"), None),
    StringType: (pa.string(), "string"),
    UUIDType: (pa.string(), "string"),
    FixedType: (pa.binary(), "binary"),
    BinaryType: (pa.binary(), "binary"),
    GeometryType: (pa.binary(), None),
    GeographyType: (pa.binary(), None),
    UnknownType: (pa.null(), "void"),
}
"""The Arrow type and Spark's name for it; None if Spark has no such type."""


@dataclass(frozen=True)
class MappedName:
    """A field that is found by name, in files without ids."""

    field_id: int | None
    children: "Names"


Names = dict[str, MappedName]


@dataclass(frozen=True)
class KeyField:
    """A field of equality deletes: the ids from its column down to itself, and its type."""

    path: tuple[int, ...]
    kind: pa.DataType


@dataclass(frozen=True)
class ReadTarget:
    """What files are read into. Pickled to executors."""

    schema: pa.Schema
    """The requested columns, with field ids at every level."""
    keys: dict[int, KeyField] = field(default_factory=dict)
    """Fields that deletes compare, by id; they need not be requested, nor still be in the table."""
    defaults: dict[int, Any] = field(default_factory=dict)
    """Values of fields that a file lacks, by id."""
    names: Names | None = None
    """The name mapping, for files without ids."""
    where: Condition = EVERYTHING
    """Row groups without a matching row may be skipped."""
    io_properties: dict[str, str] = field(default_factory=dict, repr=False)
    """What the store needs (endpoint, credentials)."""


def projected(schema: Schema, columns: Sequence[str] | None, table_name: str) -> Schema:
    """The requested columns, in that order; all if None. Raises InvalidInput for unknown columns."""
    if columns is None:
        return schema
    by_name = {f.name: f for f in schema.fields}
    folded = {name.lower(): name for name in by_name}
    chosen: list[NestedField] = []
    for column in columns:
        name = column if column in by_name else folded.get(column.lower())
        if name is None:
            raise InvalidInput(
                f'table "{table_name}" has no column "{column}"',
                detail=f"Its columns are {', '.join(by_name)}.",
                hint=suggestion(column, by_name),
            )
        chosen.append(by_name[name])
    if not chosen or len({f.field_id for f in chosen}) < len(chosen):
        raise InvalidInput(
            "name at least one column, and each column once", detail=f"Got {', '.join(columns) or 'no column'}."
        )
    return Schema(*chosen, schema_id=schema.schema_id)


def read_target(table: Table, schema: Schema, equality_ids: Iterable[int], where: Condition = EVERYTHING) -> ReadTarget:
    """How to read `schema` of a table whose deletes compare the fields `equality_ids`."""
    every = every_field(table)
    keys = {i: KeyField(every.paths[i], _key_type(every.fields[i].field_type)) for i in set(equality_ids)}
    return ReadTarget(
        schema=arrow_columns(schema),
        keys=keys,
        defaults=dict(_defaults([*schema.fields, *(every.fields[i] for i in keys)])),
        names=_names(table.properties.get(_NAME_MAPPING)),
        where=where,
        io_properties=io_properties_of(table.io.properties),
    )


ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
ROW_ID_KEY = KeyField((ROW_ID.field_id,), pa.int64())
"""How to read the ids that files state."""
ROW_ID_COLUMN = arrow_schema(Schema(ROW_ID)).field(0)
"""How files state them."""


def schema_with(schema: Schema, *lineage: NestedField) -> Schema:
    """The columns that files of a table have, with the ids or sequence numbers of rows, which the table does not list.

    Files have no columns and fields of type unknown: all values are null. Raises InvalidInput for columns that cannot
    do without them.
    """
    stored = [field for known in schema.fields for field in _stored(known, known.name)]
    return Schema(*stored, *lineage, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def _stored(known: NestedField, column: str) -> list[NestedField]:
    """A field as files have it; none if its type is unknown."""
    if isinstance(known.field_type, UnknownType):
        return []
    return [known.model_copy(update={"field_type": _stored_type(known.field_type, column)})]


def _stored_type(kind: IcebergType, column: str) -> IcebergType:
    match kind:
        case StructType():
            inner = list(kind.fields)
        case ListType():
            inner = [kind.element_field]
        case MapType():
            inner = [kind.key_field, kind.value_field]
        case _:
            return kind
    stored = [field for one in inner for field in _stored(one, column)]
    match kind, [field.field_type for field in stored]:
        case StructType(), [_, *_]:
            return StructType(*stored)
        case ListType(), [element]:
            return ListType(kind.element_id, element, element_required=kind.element_required)
        case MapType(), [key, value]:
            return MapType(kind.key_id, key, kind.value_id, value, value_required=kind.value_required)
    raise InvalidInput(
        f'column "{column}" has a type that no data file can contain',
        detail=f"It has a {kind}. Files omit what is unknown, which only a field of a struct with other fields can be.",
        hint="Change the type of the column, or drop it.",
    )


def rewritten_schema(table: Table) -> Schema:
    """The columns of files with rows that were in the table before.

    In format version 3 these files also have the ids and sequence numbers of their rows, which the table does not list.
    """
    lineage = (ROW_ID, LAST_UPDATED) if table.metadata.format_version >= LATEST_FORMAT else ()
    return schema_with(table.schema(), *lineage)


def rewrite_target(table: Table, equality_ids: Iterable[int]) -> ReadTarget:
    """How to read all columns of a table in the types in which they are written."""
    schema = rewritten_schema(table)
    return replace(read_target(table, schema, equality_ids), schema=arrow_schema(schema))


@dataclass(frozen=True)
class EveryField:
    """The fields of all schemas that a table ever had, by id, each as in the newest schema that has it."""

    fields: dict[int, NestedField]
    paths: dict[int, tuple[int, ...]]
    """Ids from the column down to the field; fields of structs only."""


def every_field(table: Table) -> EveryField:
    """All fields of a table, including dropped ones: deletes still compare them."""
    found = EveryField({}, {})
    current = table.schema()
    older = sorted((s for s in table.metadata.schemas if s.schema_id != current.schema_id), key=lambda s: s.schema_id)
    for schema in (*older, current):
        for path, known in _walk(schema.fields, ()):
            found.fields[known.field_id] = known
            found.paths[known.field_id] = path
    return found


def _walk(fields: Iterable[NestedField], above: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], NestedField]]:
    for known in fields:
        path = (*above, known.field_id)
        yield path, known
        if isinstance(known.field_type, StructType):
            yield from _walk(known.field_type.fields, path)


def _key_type(kind: IcebergType) -> pa.DataType:
    """The type in the table's own unit: partition values of keys are computed from it."""
    return pa.time64("us") if isinstance(kind, TimeType) else arrow_type(kind)


def arrow_columns(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's columns, with field ids at every level."""
    return pa.schema([_arrow_field(f) for f in schema.fields])


def arrow_type(kind: IcebergType) -> pa.DataType:
    """The Arrow type of an Iceberg type, with field ids inside."""
    match kind:
        case StructType():
            return pa.struct([_arrow_field(f) for f in kind.fields])
        case ListType():
            return pa.list_(_arrow_field(kind.element_field))
        case MapType():
            value = _arrow_field(kind.value_field)
            return pa.map_(_arrow_field(kind.key_field).with_nullable(False), value)  # noqa: FBT003 - pyarrow's
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case _:
            return _PLAIN[type(kind)][0]


def _arrow_field(known: NestedField) -> pa.Field:
    return pa.field(known.name, arrow_type(known.field_type), metadata={FIELD_ID: str(known.field_id).encode()})


def spark_schema(schema: Schema) -> dict[str, Any]:
    """The Spark schema, for `StructType.fromJson`. Raises InvalidInput for types that Spark does not have."""
    return _spark_struct(schema.fields, "")


def _spark_struct(fields: Iterable[NestedField], path: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [_spark_field(f, f"{path}{f.name}") for f in fields]}


def _spark_field(known: NestedField, path: str) -> dict[str, Any]:
    return {
        "name": known.name,
        "type": _spark_type(known.field_type, path),
        "nullable": not known.required,
        "metadata": {"comment": known.doc} if known.doc else {},
    }


def _spark_type(kind: IcebergType, path: str) -> Any:
    match kind:
        case StructType():
            return _spark_struct(kind.fields, f"{path}.")
        case ListType():
            element = _spark_type(kind.element_type, f"{path}.element")
            return {"type": "array", "elementType": element, "containsNull": not kind.element_required}
        case MapType():
            return {
                "type": "map",
                "keyType": _spark_type(kind.key_type, f"{path}.key"),
                "valueType": _spark_type(kind.value_type, f"{path}.value"),
                "valueContainsNull": not kind.value_required,
            }
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
    name = _PLAIN[type(kind)][1]
    if name is None:
        raise InvalidInput(
            f'column "{path}" has a type that Spark does not support',
            detail=f"It is {kind}.",
            hint="Select the other columns by name, or use `calve read`.",
        )
    return name


def _defaults(fields: Iterable[NestedField]) -> Iterator[tuple[int, Any]]:
    for known in fields:
        kind = known.field_type
        match kind:
            case StructType():
                yield from _defaults(kind.fields)
            case ListType():
                yield from _defaults([kind.element_field])
            case MapType():
                yield from _defaults([kind.key_field, kind.value_field])
            case _:
                if known.initial_default is not None:
                    yield known.field_id, known.initial_default


def _names(text: str | None) -> Names | None:
    return None if text is None else _mapped(json.loads(text))


def _mapped(entries: Iterable[Mapping[str, Any]]) -> Names:
    return {
        name: MappedName(entry.get("field-id"), _mapped(entry.get("fields") or ()))
        for entry in entries
        for name in entry["names"]
    }
