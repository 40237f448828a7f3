"""Debezium's own encodings: semantic types of the schema part, decimals as bytes, and placeholders of unavailable values.

The schema part of a record lists the fields of its images with a semantic type each (`name`):

    io.debezium.time.Date, org.apache.kafka.connect.data.Date              days
    io.debezium.time.Timestamp, org.apache.kafka.connect.data.Timestamp    milliseconds
    io.debezium.time.MicroTimestamp                                        microseconds
    io.debezium.time.NanoTimestamp                                         nanoseconds, cut to microseconds
    org.apache.kafka.connect.data.Decimal                                  base64 of the unscaled value, `parameters.scale`

All others are what JSON says they are. Types inside nested columns are not looked up.
"""

import base64
import hashlib
import json
import uuid

from pyspark.sql import types as T  # noqa: N812

from calve.source.scalars import Coding
from calve.source.sqltext import let, literal, literals

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_UNITS = {
    "d": ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date"),
    "ms": ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp"),
    "us": ("io.debezium.time.MicroTimestamp",),
    "ns": ("io.debezium.time.NanoTimestamp",),
}
_FIELD = "field: string, name: string, parameters: map<string,string>"
_TWO_TO_64 = "18446744073709551616BD"


def schema_fields(schema: str, image: str | None) -> str:
    """SQL of the fields that a schema part (VARIANT) lists for an image, or for a whole record without images."""
    if image is None:
        return f"try_variant_get({schema}, '$.fields', 'array<struct<{_FIELD}>>')"
    images = f"array<struct<field: string, fields: array<struct<{_FIELD}>>>>"
    listed = f"filter(try_variant_get({schema}, '$.fields', '{images}'), f -> f.field = {literal(image)})"
    return f"get({listed}, 0).fields"


def is_coded(data_type: T.DataType) -> bool:
    """True for the types whose values depend on the schema part."""
    return isinstance(data_type, T.DateType | T.TimestampType | T.TimestampNTZType | T.DecimalType)


def coding_of(fields: str, column: str, data_type: T.DataType, default: str | None) -> Coding:
    """The coding of a column, as the schema part says it. `fields` and `column` are SQL."""
    if not is_coded(data_type):
        return Coding(default)
    found = f"get(filter({fields}, f -> f.field = {column}), 0)"
    if isinstance(data_type, T.DecimalType):
        scale = "coalesce(try_cast(f.parameters['scale'] as int), 0)"
        return Coding(default, scale=let("f", found, f"if(f.name = '{_DECIMAL}', {scale}, null)"))
    cases = " ".join(f"when f.name in {literals(names)} then {literal(unit)}" for unit, names in _UNITS.items())
    return Coding(default, unit=let("f", found, f"case {cases} end"))


def decimal_text(encoded: str, scale: str) -> str:
    """SQL of the text of the decimal number in base64 of a big-endian two's complement; null beyond 38 digits."""
    flipped = "translate(h, '0123456789ABCDEF', 'FEDCBA9876543210')"
    high = "cast(conv(left(m, 16), 16, 10) as decimal(20,0))"
    low = "cast(conv(right(m, 16), 16, 10) as decimal(20,0))"
    below = "left(h, 1) >= '8'"
    whole = f"try_add(try_add(try_multiply({high}, {_TWO_TO_64}), {low}), if({below}, 1BD, 0BD))"
    pointed = "concat(left(z, length(z) - s), '.', right(z, s))"
    written = f"concat(if({below}, '-', ''), if(s > 0, {pointed}, concat(d, repeat('0', -s))))"
    padded = let("z", "lpad(d, greatest(length(d), s + 1), '0')", written)
    digits = let("d", f"cast({whole} as string)", padded)
    magnitude = let("m", f"lpad(if({below}, {flipped}, h), 32, '0')", digits)
    guarded = f"if(length(h) between 1 and 32 and s between -38 and 38, {magnitude}, null)"
    return let("s", scale, let("h", f"hex(try_to_binary({encoded}, 'base64'))", guarded))


def variable_scale_text(text: str) -> str:
    """SQL of the text of an `io.debezium.data.VariableScaleDecimal`, which carries its own scale; other texts stay."""
    parsed = f"from_json({text}, 'scale int, value string')"
    return f"if(left({text}, 1) = '{{', {let('w', parsed, decimal_text('w.value', 'w.scale'))}, {text})"


def _words(placeholder: str) -> tuple[str, str, str]:
    """The placeholder as it is, in base64 (binary columns), and as the UUID that UUID arrays carry."""
    data = placeholder.encode()
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return placeholder, base64.b64encode(data).decode(), str(uuid.UUID(bytes=digest, version=3))


def placeholder_texts(placeholder: str) -> list[str]:
    """Every form in which JSON carries the placeholder: alone, or as the only content of an array or a map."""
    plain, encoded, unique = _words(placeholder)
    nested = [[plain], [encoded], [unique], list(placeholder.encode()), {plain: plain}]
    return [plain, encoded, *(json.dumps(value, separators=(",", ":")) for value in nested)]


def may_be_unavailable(data_type: T.DataType) -> bool:
    """True for the types that databases store out of line."""
    stored = (T.StringType, T.BinaryType, T.DecimalType, T.ArrayType, T.MapType, T.StructType)
    return isinstance(data_type, stored)


def is_placeholder(value: str, data_type: T.DataType, placeholder: str) -> str:
    """SQL that is true where a typed value stands for an unavailable one."""
    data = placeholder.encode()
    if isinstance(data_type, T.StringType):
        return f"coalesce({value} in {literals(placeholder_texts(placeholder))}, false)"
    if isinstance(data_type, T.BinaryType):
        return f"coalesce({value} = X'{data.hex()}', false)"
    if isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.StringType):
        return f"coalesce(exists({value}, e -> e in {literals(_words(placeholder))}), false)"
    if isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.IntegralType):
        return f"coalesce(cast({value} as array<bigint>) = array({', '.join(f'{b}L' for b in data)}), false)"
    if isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        return f"coalesce(map_contains_key({value}, {literal(placeholder)}), false)"
    return "false"
