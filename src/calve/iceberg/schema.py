"""Spark columns -> an Iceberg schema, with field ids on every level.

Key columns are required and become the identifier fields; every other field is optional, whatever Spark says of its
nullability: a streaming frame's `nullable` is a guess, and a table that refuses nulls would stop the stream.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from pyiceberg.schema import Schema, assign_fresh_schema_ids
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
    """What is needed of `pyspark.sql.types.StructType`."""

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The type as a JSON object."""
        ...


def reserved(column: str) -> InvalidInput:
    """The error of a column of the user with a name of calve's."""
    return InvalidInput(f'column name "{column}" is reserved', detail=f"Names with {RESERVED_PREFIX} belong to calve.")


def iceberg_schema(columns: SparkStruct | str, key: Sequence[str] = (), uuids: Sequence[str] = ()) -> Schema:
    """The schema of a table for a frame's columns (a Spark StructType or its JSON), identified by `key`.

    Columns named in `uuids` are texts in Spark and uuids in the table. Raises InvalidInput that names the column for
    whatever a table cannot hold or a key cannot be.
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
    # The ids only have to differ here: fresh ones are assigned in the order in which a catalog assigns them, too.
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
        raise InvalidInput("a key column is named twice", detail=f"The key is ({', '.join(key)}).")
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
                detail=f"It is of type {_type_name(kind)}, whose values have no exact equality in a table.",
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
                detail=f'"{path}{other}" and "{path}{name}" differ at most in case, which engines do not tell apart.',
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
        hint="Cast it to a type of Iceberg's format version 2, or leave it out.",
    )
