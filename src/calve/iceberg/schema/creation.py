"""Spark columns -> an Iceberg schema with field ids at every level; PARTITION BY -> a partition spec.

Key columns are required and become the identifier fields. Every other field is optional, whatever Spark says about its
nullability: a streaming frame's `nullable` is a guess, and a table that refuses nulls would stop the stream. Mistakes
are reported before a table is created.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.errors import InvalidInput
from calve.model.change import DIFF, ORDER, RESERVED_PREFIX, TIME
from calve.model.spec import PartitionBy
from calve.model.types import decimal_of, spark_type

_PRIMITIVES: Mapping[str, Callable[[], PrimitiveType]] = {
    str(kind()): kind
    for kind in (
        *(BooleanType, IntegerType, LongType, FloatType, DoubleType, StringType, BinaryType, DateType, TimeType),
        *(TimestampType, TimestamptzType, UUIDType),
    )
}
_COLLATIONS = "__COLLATIONS"


class SparkStruct(Protocol):
    """The part of `pyspark.sql.types.StructType` that is used here."""

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The type as a JSON object."""
        ...


def reserved(column: str) -> InvalidInput:
    """The error for a user's column with a reserved name."""
    return InvalidInput(
        f'column name "{column}" is reserved', detail=f"calve reserves names that begin with {RESERVED_PREFIX}."
    )


def iceberg_schema(columns: SparkStruct | str, key: Sequence[str] = (), uuids: Sequence[str] = ()) -> Schema:
    """The schema of a table for a frame's columns (a Spark StructType or its JSON), identified by `key`.

    Columns named in `uuids` are strings in Spark and uuids in the table. Raises InvalidInput, which names the column,
    for types that a table cannot hold or that cannot be a key.
    """
    struct = json.loads(columns) if isinstance(columns, str) else columns.jsonValue()
    fields = struct["fields"]
    if not fields:
        raise InvalidInput("the input has no columns")
    own = {ORDER} if key else {ORDER, DIFF, TIME}
    for field in fields:
        if field["name"].lower().startswith(RESERVED_PREFIX) and field["name"] not in own:
            raise reserved(field["name"])
    _check_key(fields, key)
    # The ids only need to be unique here: fresh ones are assigned below, in the order in which catalogs assign them.
    root = _struct(fields, path="", ids=count(1))
    by_name = {field.name: field for field in root.fields}
    table_fields = [_column(field, key, uuids) for field in root.fields]
    return assign_fresh_schema_ids(Schema(*table_fields, identifier_field_ids=[by_name[name].field_id for name in key]))


def _column(field: NestedField, key: Sequence[str], uuids: Sequence[str]) -> NestedField:
    uuid = field.name in uuids and isinstance(field.field_type, StringType)
    kind = UUIDType() if uuid else field.field_type
    return field.model_copy(update={"required": field.name in key, "field_type": kind})


def _check_key(fields: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    if len(set(key)) < len(key):
        raise InvalidInput("the key contains a column twice", detail=f"The key is ({', '.join(key)}).")
    by_name = {field["name"]: field for field in fields}
    for name in key:
        field = by_name.get(name)
        if field is None:
            raise InvalidInput(
                f'key column "{name}" does not exist', detail=f"The input's columns are {', '.join(by_name)}."
            )
        kind = field["type"]
        known = spark_type(_type_name(kind))
        if known is not None and not known.key:
            raise InvalidInput(
                f'column "{name}" cannot be a key',
                detail=f"Values of type {_type_name(kind)} cannot be compared for exact equality in a table.",
                hint="Use columns of an integer, decimal, text, date or time type as the key.",
            )
        if field.get("metadata", {}).get(_COLLATIONS):
            raise InvalidInput(
                f'column "{name}" cannot be a key',
                detail="It has a collation; a table compares text byte by byte.",
                hint="Cast it: CAST(... AS STRING COLLATE UTF8_BINARY).",
            )


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _struct(fields: Sequence[Mapping[str, Any]], *, path: str, ids: Iterator[int]) -> StructType:
    if not fields:
        raise _unsupported(path.rstrip("."), "an empty struct")
    seen: dict[str, str] = {}
    for field in fields:
        name = field["name"]
        if other := seen.get(name.lower()):
            raise InvalidInput(
                f'column "{path}{name}" exists twice',
                detail=f'Engines cannot distinguish "{path}{other}" and "{path}{name}": names are case-insensitive.',
            )
        seen[name.lower()] = name
    return StructType(*[_field(field, path, ids) for field in fields])


def _field(field: Mapping[str, Any], path: str, ids: Iterator[int]) -> NestedField:
    name = field["name"]
    kind = _type(field["type"], f"{path}{name}", ids)
    return NestedField(next(ids), name, kind, required=False, doc=field.get("metadata", {}).get("comment"))


def _type(kind: Any, path: str, ids: Iterator[int]) -> IcebergType:
    if isinstance(kind, str):
        return _primitive(kind, path)
    match kind.get("type"):
        case "struct":
            return _struct(kind["fields"], path=f"{path}.", ids=ids)
        case "array":
            return ListType(next(ids), _type(kind["elementType"], f"{path}.element", ids), element_required=False)
        case "map":
            key, value = _type(kind["keyType"], f"{path}.key", ids), _type(kind["valueType"], f"{path}.value", ids)
            return MapType(next(ids), key, next(ids), value, value_required=False)
        case other:
            raise _unsupported(path, str(other))


def _primitive(kind: str, path: str) -> PrimitiveType:
    known = spark_type(kind)
    if known is None or not known.iceberg or (known.sql == "VARIANT" and "." in path):
        raise _unsupported(path, kind)
    decimal = decimal_of(kind)
    return _PRIMITIVES[known.iceberg]() if decimal is None else DecimalType(*decimal)


def _unsupported(path: str, kind: str) -> InvalidInput:
    return InvalidInput(
        f'column "{path}" has a type that a table cannot hold',
        detail=f"Got {kind}.",
        hint="Cast it to a type of Iceberg format version 2, or leave it out.",
    )


_SUFFIXES = {"bucket": "_bucket", "truncate": "_trunc", "void": "_null", "identity": ""}
_TIMES = frozenset({"year", "month", "day", "hour"})


def partition_spec(schema: Schema, fields: Sequence[PartitionBy]) -> PartitionSpec:
    """The spec of a new table. Raises InvalidInput, which names the field and the column's type."""
    found: list[PartitionField] = []
    units: dict[int, PartitionBy] = {}
    for wanted in fields:
        source, name = _source(schema, wanted)
        transform = _transform(wanted, source)
        if any(f.source_id == source.field_id and f.transform == transform for f in found):
            raise InvalidInput(f"partition field {wanted} is listed twice", hint="Remove one of them.")
        if wanted.transform in _TIMES and (other := units.setdefault(source.field_id, wanted)) is not wanted:
            raise InvalidInput(
                f"partition fields {other} and {wanted} are redundant",
                detail="Each hour is in one day, each day in one month, each month in one year.",
                hint="Keep the finer one.",
            )
        field_id = PARTITION_FIELD_ID_START + len(found)
        found.append(PartitionField(source.field_id, field_id, transform, _name(schema, found, wanted, name)))
    return PartitionSpec(*found)


def _source(schema: Schema, wanted: PartitionBy) -> tuple[NestedField, str]:
    """The source field and its full path."""
    fields, path = schema.fields, ""
    for depth, part in enumerate(wanted.column, 1):
        field = next((f for f in fields if f.name == part), None) or _without_case(fields, part)
        if field is None:
            raise InvalidInput(
                f'partition column "{path}{part}" does not exist',
                detail=f"Columns are {', '.join(f'{path}{f.name}' for f in fields)}." if fields else "",
            )
        path += field.name
        if depth == len(wanted.column):
            return field, path
        fields = field.field_type.fields if isinstance(field.field_type, StructType) else ()
        path += "."
    raise InvalidInput("a partition field has no column")


def _without_case(fields: Sequence[NestedField], name: str) -> NestedField | None:
    found = [f for f in fields if f.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def _transform(wanted: PartitionBy, source: NestedField) -> Transform[object, object]:
    width = "" if wanted.width is None else f"[{wanted.width}]"
    transform = parse_transform(f"{wanted.transform}{width}")
    if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
        raise InvalidInput(
            f"the table cannot be partitioned by {wanted}",
            detail=f'Column "{".".join(wanted.column)}" has type {source.field_type}.',
        )
    return transform


def _name(schema: Schema, before: Sequence[PartitionField], wanted: PartitionBy, column: str) -> str:
    """The name that other engines would choose, unless a column or another field already has it."""
    if wanted.transform == "identity":
        return column
    plain = column + _SUFFIXES.get(wanted.transform, f"_{wanted.transform}")
    taken = {name.lower() for name in schema.column_names} | {field.name.lower() for field in before}
    names = [plain, f"{plain}_{wanted.width}" if wanted.width else plain]
    numbered = (f"{plain}_{number}" for number in range(2, len(taken) + 4))
    return next(name for name in (*names, *numbered) if name.lower() not in taken)
