"""Texts to typed values, strictly: what does not fit exactly becomes null, and the caller makes a problem of it.

Spark's own casts from text are lenient (`2024-01-02Tjunk` is a date, `12:30` a time of today, `12.345` fits DECIMAL(5,2) after
rounding, `1e400` is an infinite double), so most types look at the text first:

    BOOLEAN             true, false, 1, 0
    TINYINT .. BIGINT   an integer in range
    FLOAT, DOUBLE       a decimal number in range; as a text also NaN, Infinity and -Infinity
    DECIMAL(p,s)        a decimal number that fits without rounding
    STRING              any text; objects and arrays of JSON as their JSON
    BINARY              base64 with padding
    DATE                YYYY-MM-DD; a number counts days since 1970
    TIMESTAMP           YYYY-MM-DD[T| ]hh:mm[:ss[.f]][Z|+hh:mm]; without a zone it is in the session's zone; digits after the
                        microseconds are cut; a number counts units since 1970, see `Coding`
    TIMESTAMP_NTZ       the same without a zone, or with Z

Years are 0001 to 9999. Numbers of JSON with an exponent or more than 38 digits come here as doubles: no integers, and in a
DECIMAL as exact as a double is.
"""

from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812 - the name every Spark user knows

from calve.source.sqltext import let, literal

GUARDED_MICROS = "us?"
"""Microseconds, unless the number is too small to be meant so."""

_DAY = "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?"
_DATE = f"^{_DAY}Z?$"
_ZONED = f"^{_DAY}({_TIME}(Z|[-+][0-9]{{2}}:[0-9]{{2}})?)?$"
_UNZONED = f"^{_DAY}({_TIME}Z?)?$"
_NUMBER = "^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$"

_MIN_MICROS, _MAX_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_MIN_DAYS, _MAX_DAYS = -719_162, 2_932_896
_GUARD = 10_000_000_000_000
"""As microseconds within 116 days of 1970; as milliseconds any day until the year 2286."""
_FACTORS = {"d": "n * 86400000000L", "ms": "n * 1000L", "us": "n", "ns": "(n - pmod(n, 1000L)) div 1000L"}
_RANGES = {
    "d": (_MIN_DAYS, _MAX_DAYS),
    "ms": (_MIN_MICROS // 1000, _MAX_MICROS // 1000),
    "us": (_MIN_MICROS, _MAX_MICROS),
    "ns": (-(2**63) + 1000, 2**63 - 1),
}


@dataclass(frozen=True)
class Coding:
    """How numbers and texts stand for times and decimals in one column."""

    default: str | None = None
    """What a number counts where a timestamp is declared: ms, us, ns or `GUARDED_MICROS`; None refuses numbers."""
    unit: str | None = None
    """SQL of a STRING: d, ms, us or ns, where the record's own schema says so, else null. It wins over the default."""
    scale: str | None = None
    """SQL of an INT: the scale of a decimal sent as base64 of its unscaled bytes, else null."""


def needs_kind(data_type: T.DataType) -> bool:
    """True for the types that read texts and numbers of JSON differently."""
    return isinstance(data_type, T.DateType | T.TimestampType | T.TimestampNTZType | T.FloatType | T.DoubleType)


def type_name(data_type: T.DataType) -> str:
    """A type as users write it."""
    return data_type.typeName().upper() if _has_parts(data_type) else data_type.simpleString().upper()


def _has_parts(data_type: T.DataType) -> bool:
    return isinstance(data_type, T.ArrayType | T.MapType | T.StructType)


def typed(text: str, is_text: str, data_type: T.DataType, coding: Coding) -> str:
    """SQL of the value of `text` in `data_type`, or null. `is_text` is false for numbers and booleans of JSON."""
    match data_type:
        case T.StringType():
            return text
        case T.BooleanType():
            return f"case when {text} in ('true', '1') then true when {text} in ('false', '0') then false end"
        case T.IntegralType():
            return f"try_cast({text} as {type_name(data_type)})"
        case T.FloatType() | T.DoubleType():
            return _floating(text, is_text, type_name(data_type))
        case T.DecimalType():
            return _decimal(text, data_type)
        case T.BinaryType():
            return f"if(length({text}) % 4 = 0, try_to_binary({text}, 'base64'), null)"
        case T.DateType():
            return _date(text, is_text, coding)
        case T.TimestampType() | T.TimestampNTZType():
            return _timestamp(text, is_text, data_type, coding)
    raise TypeError(type_name(data_type))


def supported(data_type: T.DataType) -> bool:
    """True for the types that `typed` knows."""
    known = (T.StringType, T.BooleanType, T.IntegralType, T.DecimalType, T.BinaryType)
    return isinstance(data_type, known) or needs_kind(data_type)


def _floating(text: str, is_text: str, name: str) -> str:
    number = f"try_cast({text} as {name})"
    finite = f"if(abs({number}) < {name}('Infinity') and {text} rlike '{_NUMBER}', {number}, null)"
    return f"if({text} in ('NaN', 'Infinity', '-Infinity'), if({is_text}, {number}, null), {finite})"


def _decimal(text: str, data_type: T.DecimalType) -> str:
    value, wide = f"try_cast({text} as {type_name(data_type)})", min(38, 38 - data_type.precision + data_type.scale)
    if wide > data_type.scale:
        return f"if({value} = try_cast({text} as decimal(38,{wide})), {value}, null)"
    fits = f"({text} rlike '[eE]' or {text} rlike '^[^.]*([.][0-9]{{0,{data_type.scale}}}0*)?$')"
    return f"if({fits}, {value}, null)"


def _date(text: str, is_text: str, coding: Coding) -> str:
    days = f"try_cast({text} as int)"
    counted = f"if({days} between {_MIN_DAYS} and {_MAX_DAYS}, date_from_unix_date({days}), null)"
    if coding.unit is not None:
        counted = f"if(coalesce({coding.unit}, 'd') = 'd', {counted}, null)"
    return f"if({is_text}, if({text} rlike '{_DATE}', try_cast(left({text}, 10) as date), null), {counted})"


def _timestamp(text: str, is_text: str, data_type: T.DataType, coding: Coding) -> str:
    zoned = isinstance(data_type, T.TimestampType)
    pattern = _ZONED if zoned else _UNZONED
    micros = _epoch_micros(text, coding)
    epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
    counted = f"timestamp_micros({micros})" if zoned else f"timestampadd(MICROSECOND, {micros}, {epoch})"
    return f"if({is_text}, if({text} rlike '{pattern}', try_cast({text} as {type_name(data_type)}), null), {counted})"


def _epoch_micros(text: str, coding: Coding) -> str:
    """SQL of microseconds since 1970; null when they are out of range or no unit is known."""
    default = "cast(null as string)" if coding.default is None else literal(coding.default)
    unit = default if coding.unit is None else f"coalesce({coding.unit}, {default})"
    units = _FACTORS if coding.unit is not None else {u: f for u, f in _FACTORS.items() if coding.default in {u, f"{u}?"}}
    cases = [f"when n between {_RANGES[u][0]}L and {_RANGES[u][1]}L and u = {literal(u)} then {f}" for u, f in units.items()]
    if coding.default == GUARDED_MICROS:
        meant = f"(n = 0 or n not between -{_GUARD}L and {_GUARD}L) and n between {_MIN_MICROS}L and {_MAX_MICROS}L"
        cases.append(f"when u = '{GUARDED_MICROS}' and {meant} then n")
    if not cases:
        return "cast(null as bigint)"
    return let("n", f"try_cast({text} as bigint)", let("u", unit, f"case {' '.join(cases)} end"))
