"""The columns of a table: as declared, as found in a frame, and checks of them."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pyspark.errors import ParseException
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.model.change import RESERVED_PREFIX
from calve.model.files import ColumnNeeds
from calve.model.types import UUID_MARK
from calve.spark.version import schema_of_ddl
from calve.suggest import suggestion

_UUID = "calve.uuid"
"""Metadata of a STRING column whose values must be UUIDs."""
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s,`()<>:]+))\s*")


def declared_names(text: str) -> tuple[str, ...] | None:
    """The names in `a, b, c`; None when the text contains more than names."""
    names = []
    for part in text.split(","):
        match = _NAME.fullmatch(part)
        if match is None:
            return None
        quoted, bare = match.groups()
        names.append(bare if quoted is None else quoted.replace("``", "`"))
    return tuple(names)


@lru_cache(maxsize=256)
def declared_schema(text: str) -> T.StructType:
    """Parse a schema in Spark DDL. Lengths of VARCHAR and CHAR are dropped: tables have only STRING.

    Cached, because the parser is Spark's; nobody changes the result.

    Values of a column with the comment `UUID_MARK` must be UUIDs, see `is_uuid`.
    """
    try:
        schema = schema_of_ddl(text)
    except ParseException as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(
            "the declared columns cannot be parsed",
            detail=f'"{text}": {reason}',
            hint="Write them as in CREATE TABLE: id BIGINT NOT NULL, amount DECIMAL(12,2).",
        ) from error
    return T.StructType([_without_lengths(f) for f in schema.fields])


def is_uuid(field: T.StructField) -> bool:
    """Whether the values of a column must be UUIDs."""
    return isinstance(field.dataType, T.StringType) and _UUID in field.metadata


def _without_lengths(field: T.StructField) -> T.StructField:
    metadata = {_UUID: True} if field.metadata.get("comment") == UUID_MARK else field.metadata
    return T.StructField(field.name, _type_without_lengths(field.dataType), field.nullable, metadata)


def _type_without_lengths(data_type: T.DataType) -> T.DataType:
    if isinstance(data_type, T.VarcharType | T.CharType):
        return T.StringType()
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_type_without_lengths(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, T.MapType):
        key, value = _type_without_lengths(data_type.keyType), _type_without_lengths(data_type.valueType)
        return T.MapType(key, value, data_type.valueContainsNull)
    if isinstance(data_type, T.StructType):
        return T.StructType([_without_lengths(f) for f in data_type.fields])
    return data_type


def table_fields(columns: str | None, found: Sequence[T.StructField]) -> list[T.StructField]:
    """The table's columns among those found: all of them, the named ones, or the declared ones with their types."""
    if columns is None:
        return list(found)
    by_name = {f.name: f for f in found}
    names = declared_names(columns)
    if names is not None:
        return [by_name[require(name, by_name, "column")] for name in names]
    fields = declared_schema(columns).fields
    for field in fields:
        require(field.name, by_name, "column")
    return fields


def table_of(fields: Sequence[T.StructField], key: Sequence[str]) -> T.StructType:
    """The table's schema, with checked names and key columns that are NOT NULL. Raises InvalidInput."""
    names = [f.name for f in fields]
    _check_names(names)
    if len(set(key)) < len(key):
        raise InvalidInput("the key contains a column twice", detail=f"The key is ({', '.join(key)}).")
    for name in key:
        require(name, names, "key column")
    return T.StructType(
        [T.StructField(f.name, f.dataType, f.nullable and f.name not in key, f.metadata) for f in fields]
    )


def with_needs(table: T.StructType, needs: ColumnNeeds) -> T.StructType:
    """The same columns, with the constraints of the target table as well."""
    return T.StructType(
        [
            T.StructField(
                f.name,
                f.dataType,
                f.nullable and f.name not in needs.required,
                {**f.metadata, _UUID: True} if f.name in needs.uuids else f.metadata,
            )
            for f in table.fields
        ]
    )


def _check_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(RESERVED_PREFIX):
            raise InvalidInput(
                f'column "{name}" has a reserved name',
                detail=f'Names that start with "{RESERVED_PREFIX}" belong to calve.',
                hint="Rename the column.",
            )
        twin = seen.setdefault(name.lower(), name)
        if twin != name or list(names).count(name) > 1:
            raise InvalidInput(f'columns "{twin}" and "{name}" have the same name', hint="Rename one of them.")


def require(name: str, known: Iterable[str], what: str) -> str:
    """Return `name` if it is known; otherwise raise an error with a suggestion."""
    names = list(known)
    if name in names:
        return name
    raise InvalidInput(
        f'there is no {what} "{name}"',
        detail=f"There are {', '.join(names)}." if names else "",
        hint=suggestion(name, names),
    )


def field_at(schema: T.StructType, path: str, what: str) -> T.DataType:
    """The type of a field, dots for nested ones."""
    here: T.DataType = schema
    walked: list[str] = []
    for part in path.split("."):
        if not isinstance(here, T.StructType):
            raise InvalidInput(f'there is no {what} "{path}"', detail=f'"{".".join(walked)}" has no fields.')
        if part not in here.names:
            names = [".".join([*walked, n]) for n in here.names]
            require(path, names, what)
        here = here[part].dataType
        walked.append(part)
    return here
