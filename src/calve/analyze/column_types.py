"""Types, schemas and bounds of columns: Arrow and Spark types -> statistics types; merged schemas of files."""

import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.metastore.statistics import Bound, ColumnStatistics, StatisticsType

LONGEST: Final = 256
"""The most characters or bytes of a bound; longer bounds are truncated, upper ones rounded up."""

_KINDS: Final[dict[type[T.DataType], StatisticsType]] = {
    T.BooleanType: StatisticsType.BOOLEAN,
    T.ByteType: StatisticsType.WHOLE,
    T.ShortType: StatisticsType.WHOLE,
    T.IntegerType: StatisticsType.WHOLE,
    T.LongType: StatisticsType.WHOLE,
    T.FloatType: StatisticsType.FRACTION,
    T.DoubleType: StatisticsType.FRACTION,
    T.DecimalType: StatisticsType.DECIMAL,
    T.StringType: StatisticsType.TEXT,
    T.CharType: StatisticsType.TEXT,
    T.VarcharType: StatisticsType.TEXT,
    T.BinaryType: StatisticsType.BINARY,
    T.DateType: StatisticsType.DATE,
    T.TimestampType: StatisticsType.TIMESTAMP,
    T.TimestampNTZType: StatisticsType.LOCAL_TIMESTAMP,
}
_BY_BYTES: Final = "UTF8_BINARY"
_WIDER: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_NUMBERS: Final = frozenset({StatisticsType.WHOLE, StatisticsType.FRACTION})
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def kind_of(data_type: T.DataType) -> StatisticsType:
    """The type of a column's bounds; OTHER for columns without bounds or with a special order."""
    if getattr(data_type, "collation", _BY_BYTES) != _BY_BYTES:
        return StatisticsType.OTHER
    return _KINDS.get(type(data_type), StatisticsType.OTHER)


def columns_of(schema: T.StructType, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], T.DataType]]:
    """Every column and every field of a struct, by its path."""
    for field in schema.fields:
        path = (*prefix, field.name)
        if isinstance(field.dataType, T.StructType):
            yield from columns_of(field.dataType, path)
        else:
            yield path, field.dataType


def schema_of(text: str) -> T.StructType:
    """Inverse of `StructType.json`."""
    return T.StructType.fromJson(json.loads(text))


# ------------------------------------------------------------------------------------------------------------ bounds


def bounded(
    kind: StatisticsType, nulls: int | None, values: int | None, least: Any = None, greatest: Any = None
) -> ColumnStatistics:
    """The statistics of a column, without bounds that cannot be represented."""
    try:
        bounds = _bound(kind, least, upper=False), _bound(kind, greatest, upper=True)
        return ColumnStatistics(kind, nulls, values, *bounds)
    except InvalidInput:
        return ColumnStatistics(kind, nulls, values)


def instant(micros: int, kind: StatisticsType) -> dt.datetime | None:
    """A timestamp by its microseconds; None for years outside of Python's range."""
    try:
        found = _EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None
    return found if kind is StatisticsType.TIMESTAMP else found.replace(tzinfo=None)


def _bound(kind: StatisticsType, value: Any, *, upper: bool) -> Bound | None:
    if value is None or kind is StatisticsType.OTHER or (isinstance(value, float) and math.isnan(value)):
        return None
    match kind:
        case StatisticsType.FRACTION:
            return float(value)
        case StatisticsType.DECIMAL:
            return Decimal(value)
        case StatisticsType.TEXT if isinstance(value, str) and len(value) > LONGEST:
            return _cut_text(value, upper=upper)
        case StatisticsType.BINARY:
            return bytes(value) if len(value) <= LONGEST else _cut_bytes(bytes(value), upper=upper)
        case _:
            found: Bound = value
            return found


def _cut_text(text: str, *, upper: bool) -> str | None:
    start = text[:LONGEST]
    if not upper:
        return start
    for last in range(LONGEST - 1, -1, -1):
        following = ord(start[last]) + 1
        following = 0xE000 if 0xD800 <= following < 0xE000 else following  # surrogates are not characters
        if following <= 0x10FFFF:
            return start[:last] + chr(following)
    return None


def _cut_bytes(value: bytes, *, upper: bool) -> bytes | None:
    start = value[:LONGEST]
    if not upper:
        return start
    for last in range(LONGEST - 1, -1, -1):
        if start[last] < 0xFF:
            return start[:last] + bytes([start[last] + 1])
    return None


# ----------------------------------------------------------------------------------------------------------- schemas


def merged_schema(schemas: Iterable[str], *, text_fits_all: bool) -> str:
    """One schema of all columns. If types conflict, the column is a string; if files have real types, InvalidInput."""
    parts = [schema_of(text) for text in dict.fromkeys(schemas)]
    if not parts:
        return T.StructType([]).json()
    return str(reduce(lambda one, other: _both(one, other, text_fits_all=text_fits_all), parts).json())


def _both(one: T.StructType, other: T.StructType, *, text_fits_all: bool) -> T.StructType:
    theirs = {field.name: field.dataType for field in other.fields}
    fields = []
    for field in one.fields:
        kind = theirs.pop(field.name, field.dataType)
        common = common_type(field.dataType, kind)
        if common is None and text_fits_all:
            common = T.DoubleType() if {kind_of(field.dataType), kind_of(kind)} <= _NUMBERS else T.StringType()
        if common is None:
            raise InvalidInput(
                f'column "{field.name}" has different types in different files',
                detail=f"Got {field.dataType.simpleString()} and {kind.simpleString()}.",
                hint="Keep these files in separate folders.",
            )
        fields.append(T.StructField(field.name, common))
    return T.StructType([*fields, *(T.StructField(name, kind) for name, kind in theirs.items())])


def common_type(one: T.DataType, other: T.DataType) -> T.DataType | None:
    """The type that can hold the values of both, if there is one."""
    if one == other or isinstance(other, T.NullType):
        return one
    if isinstance(one, T.NullType):
        return other
    if isinstance(one, _WIDER) and isinstance(other, _WIDER):
        return max(one, other, key=lambda kind: _WIDER.index(type(kind)))
    if {type(one), type(other)} == {T.FloatType, T.DoubleType}:
        return T.DoubleType()
    if isinstance(one, T.DecimalType) and isinstance(other, T.DecimalType) and one.scale == other.scale:
        return max(one, other, key=lambda kind: kind.precision)
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        return _both(one, other, text_fits_all=False)
    return None


_ARROW: Final[dict[pa.DataType, T.DataType]] = {
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
    pa.float16(): T.FloatType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.large_string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.large_binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.null(): T.NullType(),
}


def spark_type(kind: pa.DataType) -> T.DataType | None:
    """The type that Spark reads a Parquet column as; None if Spark cannot read it."""
    if kind in _ARROW:
        return _ARROW[kind]
    if pa.types.is_timestamp(kind):
        return T.TimestampType() if kind.tz else T.TimestampNTZType()
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return T.BinaryType()
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    return _nested_type(kind)


def _nested_type(kind: pa.DataType) -> T.DataType | None:
    if pa.types.is_struct(kind):
        fields = [(field.name, spark_type(field.type)) for field in kind]
        return (
            None if any(t is None for _, t in fields) else T.StructType([T.StructField(n, t) for n, t in fields if t])
        )
    if pa.types.is_map(kind):
        key, item = spark_type(kind.key_type), spark_type(kind.item_type)
        return T.MapType(key, item) if key and item else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = spark_type(kind.value_type)
        return T.ArrayType(element) if element else None
    return None
