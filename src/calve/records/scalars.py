"""Converts scalar values of JSON into the types of a table, exactly or not at all; the rules are in `strict`.

Every conversion takes a value that is not None and returns what pyarrow accepts for the type (dates as days, timestamps
as microseconds). For a value that does not fit it returns None, or raises ValueError or ArithmeticError.
"""

import json
import math
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import types as T  # noqa: N812 - the name every Spark user knows

from calve.errors import InvalidInput

GUARDED_MICROS = "us?"
"""Microseconds, unless the number is so small that it probably counts milliseconds."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]++([.][0-9]*+)?|[.][0-9]++)([eE][+-]?[0-9]{1,4})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}Z?")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?Z?")
_OFFSET = re.compile(r"([+-])([0-9]{2}):([0-9]{2})")
_SPECIAL = frozenset({"NaN", "Infinity", "-Infinity"})
_EXACT = Context(prec=80, traps=[Inexact, InvalidOperation])
_MOST_UNSCALED, _MOST_SCALE = 1000, 20_000
"""Limits of a decimal in bytes, and of its digits after the point: PostgreSQL has up to 16383. More would be slow."""
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_MIN_DAYS, _MAX_DAYS = date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
_MICROS_PER_DAY = 86_400_000_000
_MIN_MICROS, _MAX_MICROS = _MIN_DAYS * _MICROS_PER_DAY, (_MAX_DAYS + 1) * _MICROS_PER_DAY - 1
_GUARD = 10_000_000_000_000
"""As microseconds within 116 days of 1970; as milliseconds any day until the year 2286."""
_FLOAT_MAX = 3.4028234663852886e38
_BITS = {T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63}


@dataclass(frozen=True)
class Coding:
    """How a record encodes a column, from its schema part: the unit of a number, the scale of bytes."""

    unit: str | None = None
    """d, ms, us or ns."""
    scale: int | None = None
    inside: "Mapping[str, Coding]" = field(default_factory=dict)
    """The encodings of an object's fields; under `ENTRIES` that of the entries of an array or a map."""

    @property
    def entries(self) -> "Coding":
        """The encoding of the entries of an array, or of the values of a map."""
        return self.inside.get(ENTRIES, PLAIN)


@dataclass(frozen=True)
class Settings:
    """Settings for all columns of a table."""

    unit: str | None = None
    """The unit of numbers in timestamp columns where the record does not say: ms, us, ns, `GUARDED_MICROS`, or None to
    reject them."""
    zone: str = "UTC"
    """The zone of timestamps without one."""


ENTRIES = "[]"
PLAIN = Coding()
"""Plain JSON."""

Convert = Callable[[Any, Coding], Any]


def scalar(data_type: T.DataType, settings: Settings) -> Convert:
    """The conversion to a scalar type."""
    match data_type:
        case T.IntegralType():
            return _integral(1 << _BITS[type(data_type)])
        case T.DecimalType():
            return _decimal(data_type.precision, data_type.scale)
        case T.FloatType():
            return _floating(_FLOAT_MAX)
        case T.TimestampType():
            return _timestamp(settings.unit, zone_of(settings.zone))
        case T.TimestampNTZType():
            return _timestamp(settings.unit, None)
    if is_time(data_type):
        return _time(settings.unit)
    return _SIMPLE[type(data_type)]


def is_scalar(data_type: T.DataType) -> bool:
    """Whether `scalar` supports a type."""
    known = {*_BITS, *_SIMPLE, T.DecimalType, T.FloatType, T.TimestampType, T.TimestampNTZType}
    return type(data_type) in known or is_time(data_type)


def is_time(data_type: T.DataType) -> bool:
    """Whether a type is TIME, which Spark has since version 4.1."""
    return data_type.typeName() == "time"


def zone_of(name: str) -> tzinfo:
    """A time zone as Spark names it."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign = -1 if offset[1] == "-" else 1
        return timezone(sign * timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    try:
        return UTC if name in {"UTC", "Z", "GMT"} else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidInput(f'the session\'s time zone "{name}" is unknown', hint="Set a region or UTC.") from error


def json_text(value: Any) -> str:
    """The JSON of a value whose fractions were read as Decimal."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return "{" + ",".join(f"{json_text(k)}:{json_text(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(json_text, value)) + "]"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
    return str(value)


def text_of(value: Any) -> str:
    """A string unchanged, anything else as its JSON. Raises ValueError for a lone surrogate."""
    text = value if isinstance(value, str) else json_text(value)
    text.encode()
    return text


def number_of(value: Any) -> Decimal | None:
    """A number, also one in a string, as Decimal; None for anything else."""
    match value:
        case bool():
            return None
        case int() | Decimal():
            return Decimal(value)
        case str() if _NUMBER.fullmatch(value):
            return Decimal(value)
    return None


def _integral(bound: int) -> Convert:
    def convert(value: Any, _: Coding) -> int | None:
        if type(value) is not int:
            value = _whole(value)
        return value if value is not None and -bound <= value < bound else None

    return convert


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else None
    if isinstance(value, Decimal) and value.adjusted() < 40 and value == value.to_integral_value():
        return int(value)
    return None


def _decimal(precision: int, scale: int) -> Convert:
    unit, limit = Decimal(1).scaleb(-scale), precision - scale

    def convert(value: Any, coding: Coding) -> Decimal | None:
        number = (
            number_of(value) if coding.scale is None and not isinstance(value, dict) else _from_bytes(value, coding)
        )
        if number is None:
            return None
        exact = number.quantize(unit, context=_EXACT)
        return exact if not exact or exact.adjusted() < limit else None

    return convert


def _from_bytes(value: Any, coding: Coding) -> Decimal | None:
    """Decode a decimal from its unscaled bytes: with the scale of the schema part, or in an object with its scale."""
    scale, encoded = (value.get("scale"), value.get("value")) if isinstance(value, dict) else (coding.scale, value)
    if not isinstance(encoded, str) or type(scale) is not int or len(encoded) > 2 * _MOST_UNSCALED:
        return None
    return decimal_of(b64decode(encoded, validate=True), scale)


def decimal_of(unscaled: bytes, scale: int) -> Decimal | None:
    """The decimal with these bytes as its unscaled value; None if it is too long. Raises ArithmeticError."""
    if len(unscaled) > _MOST_UNSCALED or abs(scale) > _MOST_SCALE:
        return None
    return Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale, _EXACT)


def _floating(limit: float) -> Convert:
    def convert(value: Any, _: Coding) -> float | None:
        if isinstance(value, str) and value in _SPECIAL:
            return float(value)
        number = number_of(value)
        result = None if number is None else float(number)
        return result if result is not None and abs(result) <= limit else None

    return convert


def _timestamp(unit: str | None, zone: tzinfo | None) -> Convert:
    def convert(value: Any, coding: Coding) -> int | None:
        if isinstance(value, str):
            micros = _moment(value, zone)
        elif type(value) is int:
            micros = _micros(value, coding.unit or unit)
        else:
            micros = None
        return micros if micros is not None and _MIN_MICROS <= micros <= _MAX_MICROS else None

    return convert


def _moment(text: str, zone: tzinfo | None) -> int | None:
    if not _MOMENT.fullmatch(text):
        return None
    moment = datetime.fromisoformat(text)
    if zone is None:
        if moment.tzinfo is not None and not text.endswith("Z"):
            return None
        moment = moment.replace(tzinfo=UTC)
    elif moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // _MICROSECOND


def _micros(number: int, unit: str | None) -> int | None:
    match unit:
        case "us":
            return number
        case "ms":
            return number * 1000
        case "ns":
            return number // 1000
        case "d":
            return number * _MICROS_PER_DAY
    guarded = unit == GUARDED_MICROS and (number == 0 or abs(number) > _GUARD)
    return number if guarded else None


def _time(unit: str | None) -> Convert:
    def convert(value: Any, coding: Coding) -> time | None:
        if isinstance(value, str):
            return _from_midnight(value)
        if type(value) is not int or coding.unit == "d":
            return None
        micros = _micros_of_day(value, coding.unit or unit)
        if micros is None or not 0 <= micros < _MICROS_PER_DAY:
            return None
        seconds, rest = divmod(micros, 1_000_000)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)

    return convert


def _from_midnight(text: str) -> time | None:
    """Parse a time without a zone, or in UTC."""
    return time.fromisoformat(text.removesuffix("Z")) if _TIME.fullmatch(text) else None


def _micros_of_day(number: int, unit: str | None) -> int | None:
    if unit != GUARDED_MICROS:
        return _micros(number, unit)
    return number if number == 0 or number > _MICROS_PER_DAY // 1000 else None  # else it may count milliseconds


def _date(value: Any, coding: Coding) -> int | None:
    if type(value) is int:
        return value if coding.unit in {None, "d"} and _MIN_DAYS <= value <= _MAX_DAYS else None
    if isinstance(value, str) and _DAY.fullmatch(value):
        return date.fromisoformat(value[:10]).toordinal() - _EPOCH_DAY
    return None


def _boolean(value: Any, _: Coding) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "false": False, "0": False}.get(value if isinstance(value, str) else str(value))


def _string(value: Any, coding: Coding) -> str | None:
    if coding.scale is not None:
        number = _from_bytes(value, coding)
        return None if number is None else f"{number:f}"
    return text_of(value)


def _binary(value: Any, _: Coding) -> bytes | None:
    return b64decode(value, validate=True) if isinstance(value, str) else None


_SIMPLE: dict[type[T.DataType], Convert] = {
    T.StringType: _string,
    T.BooleanType: _boolean,
    T.DoubleType: _floating(math.nextafter(math.inf, 0)),
    T.BinaryType: _binary,
    T.DateType: _date,
}
