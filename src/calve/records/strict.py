"""Converts values of JSON into the types of a table, exactly or not at all.

Spark's `from_json` turns what it cannot convert into null, and its casts are lenient (`2024-01-02Tjunk` is a date,
`12:30` a time of today, 12.345 fits DECIMAL(5,2) after rounding). Here a value converts without loss, or it is a
`Misfit`:

    BOOLEAN             true, false; 1, 0; the same as string
    TINYINT .. BIGINT   a whole number in range, also as string
    FLOAT, DOUBLE       a number in range, also as string; the strings NaN, Infinity, -Infinity
    DECIMAL(p,s)        a number that fits without rounding, also as string; {"scale": n, "value": base64};
                        bytes in base64 where the record's schema says so
    STRING              a string; the digits of a number; true, false; the JSON of an object or an array
    UUID                a string: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12
    BINARY              base64 with padding
    DATE                YYYY-MM-DD; a number counts days since 1970
    TIMESTAMP           YYYY-MM-DD[T| ]hh:mm[:ss[.f]][Z|+hh:mm], without a zone in the session's zone; truncated to
                        microseconds; a number counts units since 1970, if the unit is known (see `Settings`)
    TIMESTAMP_NTZ       the same without a zone, or with Z
    TIME                hh:mm[:ss[.f]][Z]; a number counts units since midnight, if the unit is known
    ARRAY, MAP, STRUCT  arrays and objects, each entry by the same rules; fields that are not declared are ignored,
                        missing ones are null

Years are 0001 to 9999, in UTC for timestamps. Null is null; NOT NULL is checked elsewhere, except for fields inside a
STRUCT. Lone surrogates, which JSON can express, are rejected.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.model.types import UUID_PATTERN
from calve.records.columns import declared_names, declared_schema, is_uuid
from calve.records.notices import note
from calve.records.scalars import PLAIN, Coding, Convert, Settings, is_scalar, scalar, text_of

UUID = "UUID"
_LOOKS = 20
"""Incomplete records, of each task, that are searched for fields whose names differ from columns in case."""
_UUID = re.compile(UUID_PATTERN)


class Misfit(ValueError):
    """A value that does not convert. `path` is the column, with its parts; a `value` of None is missing."""

    def __init__(self, path: str, value: object, type_name: str, hint: str = "") -> None:
        super().__init__(path, value, type_name, hint)
        self.path = path
        self.value = value
        self.type_name = type_name
        self.hint = hint


def type_name(data_type: T.DataType) -> str:
    """A type as users write it."""
    nested = isinstance(data_type, T.ArrayType | T.MapType | T.StructType)
    return data_type.typeName().upper() if nested else data_type.simpleString().upper()


def declared_in_json(columns: str | None) -> list[T.StructField]:
    """The columns that an envelope declares for JSON records, which have no types of their own."""
    if columns is None or declared_names(columns) is not None:
        raise InvalidInput(
            "the columns are not declared",
            detail="The records are JSON.",
            hint="Declare the table's columns: columns='id BIGINT NOT NULL, amount DECIMAL(12,2)'.",
        )
    fields = declared_schema(columns).fields
    for one in fields:
        check_type(one.dataType, one.name)
    return fields


def check_type(data_type: T.DataType, path: str) -> None:
    """Reject a declared type that no JSON value converts to. Raises InvalidInput."""
    if isinstance(data_type, T.ArrayType):
        check_type(data_type.elementType, f"{path}[]")
    elif isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        check_type(data_type.valueType, f"{path}[]")
    elif isinstance(data_type, T.StructType):
        for inner in data_type.fields:
            check_type(inner.dataType, f"{path}.{inner.name}")
    elif not is_scalar(data_type):
        raise InvalidInput(
            f'column "{path}" has type {type_name(data_type)}, which is not supported in text formats',
            hint="Use numbers, BOOLEAN, STRING, BINARY, DATE, TIME, TIMESTAMP[_NTZ], ARRAY, STRUCT, MAP<STRING, .>.",
        )


def converter(data_type: T.DataType, path: str, settings: Settings) -> Convert:
    """The conversion of a column's values. It is never given None, and raises `Misfit`."""
    match data_type:
        case T.ArrayType():
            return _array(data_type, path, settings)
        case T.MapType():
            return _map(data_type, path, settings)
        case T.StructType():
            return _struct(data_type, path, settings)
    convert, name = scalar(data_type, settings), type_name(data_type)

    def checked(value: Any, coding: Coding) -> Any:
        try:
            result = convert(value, coding)
        except (ValueError, ArithmeticError):
            result = None
        if result is None:
            raise Misfit(path, value, name)
        return result

    return checked


def _of_field(field: T.StructField, path: str, settings: Settings) -> Convert:
    convert = converter(field.dataType, path, settings)
    if not is_uuid(field):
        return convert

    def checked(value: Any, coding: Coding) -> Any:
        return uuid_text(convert(value, coding), path)

    return checked


def uuid_text(text: str, path: str) -> str:
    """The string, if it is a valid UUID. Raises Misfit."""
    if _UUID.fullmatch(text) is None:
        raise Misfit(path, text, UUID)
    return text


def _array(data_type: T.ArrayType, path: str, settings: Settings) -> Convert:
    inner = converter(data_type.elementType, f"{path}[]", settings)

    def convert(value: Any, coding: Coding) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(path, value, "ARRAY")
        return [None if entry is None else inner(entry, coding.entries) for entry in value]

    return convert


def _map(data_type: T.MapType, path: str, settings: Settings) -> Convert:
    inner = converter(data_type.valueType, f"{path}[]", settings)

    def convert(value: Any, coding: Coding) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise Misfit(path, value, "MAP")
        return [(key_of(key), None if entry is None else inner(entry, coding.entries)) for key, entry in value.items()]

    def key_of(key: str) -> str:
        try:
            return text_of(key)
        except ValueError as error:
            raise Misfit(f"{path}.key", key, "STRING") from error

    return convert


def _struct(data_type: T.StructType, path: str, settings: Settings) -> Convert:
    columns = Columns.of(data_type.fields, settings, prefix=f"{path}.")

    def convert(value: Any, coding: Coding) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit(path, value, "STRUCT")
        return dict(zip(columns.names, columns.values(value, coding.inside), strict=True))

    return convert


@dataclass(frozen=True)
class Columns:
    """Columns to extract from a JSON object."""

    names: tuple[str, ...]
    converters: tuple[Convert, ...]
    required: tuple[str, ...]
    """Names of those that are NOT NULL."""
    prefix: str = ""
    looks: list[None] = field(default_factory=lambda: [None] * _LOOKS, compare=False, repr=False)
    """One for each record that may still be searched for fields whose names differ from columns in case."""

    @classmethod
    def of(cls, fields: Sequence[T.StructField], settings: Settings, prefix: str = "") -> "Columns":
        """Columns with these names and types."""
        return cls(
            tuple(f.name for f in fields),
            tuple(_of_field(f, f"{prefix}{f.name}", settings) for f in fields),
            tuple(f.name for f in fields if not f.nullable),
            prefix,
        )

    def values(self, record: dict[str, Any], codings: Mapping[str, Coding] | None = None) -> list[Any]:
        """The columns of a record, in order. Raises Misfit for the first one that does not fit."""
        result = []
        complete = True
        for name, convert in zip(self.names, self.converters, strict=True):
            value = record.get(name)
            if value is not None:
                value = convert(value, PLAIN if codings is None else codings.get(name, PLAIN))
            elif name in self.required:
                raise Misfit(f"{self.prefix}{name}", None, "NOT NULL", _hint_at_case(name, record))
            elif name not in record:
                complete = False
            result.append(value)
        if not complete and self.looks:
            self._look_for_other_case(record)
        return result

    def _look_for_other_case(self, record: Mapping[str, Any]) -> None:
        """Notice columns that are null because the field's name differs in case."""
        self.looks.pop()
        fields = {found.lower(): found for found in record}
        for name in self.names:
            other = fields.get(name.lower())
            if other is not None and name not in record:
                note(f"{self.prefix}{name}", f"{self.prefix}{other}")


def _hint_at_case(name: str, record: Mapping[str, Any]) -> str:
    """A hint at a field whose name differs in case only, which matters in JSON."""
    other = next((found for found in record if found != name and found.lower() == name.lower()), None)
    return "" if other is None else f'The record has a field "{other}": declare the column with the same case.'
