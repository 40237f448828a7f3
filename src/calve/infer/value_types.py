"""Types of columns from sampled values: of JSON, and of texts in CSV files.

    whole numbers         BIGINT, up to 38 digits DECIMAL(38,0), else STRING
    fractions             DOUBLE; DECIMAL(p,s) if all have s digits after the point and one ends in 0, which a
                          serializer of doubles never writes
    strings               DATE, TIMESTAMP_NTZ or TIMESTAMP if all of them are in ISO form; DECIMAL(p,s) if all are
                          numbers with s > 1 digits after the point; else STRING
    objects               STRUCT; MAP<STRING, .> if their fields vary like data or cannot be names of fields
    arrays                ARRAY of the type of all their entries
    several kinds, null   STRING, which takes every value, with a note

Texts of CSV files are numbers and booleans as well, unless a leading zero or sign shows that they are not.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.model.types import MAX_PRECISION
from calve.records.scalars import PLAIN, Convert, Settings, scalar
from calve.sql.names import RESERVED

MAX_DEPTH = 10
"""Levels of nesting; what is below is JSON in a STRING."""

_LONG = 1 << 63
_EXACT_IN_DOUBLE = 1 << 53
_USUAL_PRECISION = 18
_MANY_KEYS = 20
_RARE = 0.25
"""Objects with more than `_MANY_KEYS` different fields, of which each has less than this part, are maps."""
_ZONED = re.compile(r".*[T ].*(Z|[+-][0-9]{2}:[0-9]{2})")
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]{1,4})?")
_PLAIN_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_EPOCH_MS = range(946_684_800_000, 4_102_444_800_000)
"""Milliseconds of the years 2000 to 2099."""
_UNITS = {"ms": 1, "us": 1000, "ns": 1_000_000}
_SETTINGS = Settings()
_DATE, _LOCAL, _MOMENT = (scalar(kind(), _SETTINGS) for kind in (T.DateType, T.TimestampNTZType, T.TimestampType))


@dataclass
class InferenceNotes:
    """What somebody should look at, by column."""

    by_column: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, text: str) -> None:
        """Add a note; the first one of a column stays."""
        self.by_column.setdefault(path, text)

    def forget(self, columns: Iterable[str]) -> None:
        """Drop the notes of columns and of their parts."""
        for column in columns:
            self.by_column = {path: text for path, text in self.by_column.items() if not _is_part(path, column)}

    def of(self, column: str) -> list[str]:
        """The notes of a column and of its parts."""
        return [
            text if path == column else f"{path}: {text}"
            for path, text in self.by_column.items()
            if _is_part(path, column)
        ]


def _is_part(path: str, column: str) -> bool:
    return path == column or path.startswith((f"{column}.", f"{column}["))


def type_of_json(values: Sequence[Any], path: str, notes: InferenceNotes, depth: int = 0) -> T.DataType:
    """The type of a column with these values, which were parsed by `records.documents`."""
    present = [value for value in values if value is not None]
    kinds = {_kind(value) for value in present}
    if not kinds:
        notes.add(path, "only null in the sample" if values else "no value in the sample")
        return T.StringType()
    if len(kinds) > 1:
        notes.add(path, f"mixed: {', '.join(sorted(kinds))}")
        return T.StringType()
    match kinds.pop():
        case "boolean":
            return T.BooleanType()
        case "number":
            return _number_type(present, path, notes)
        case "string":
            return _decimals_in_strings(present, path, notes) or _text_type(present, path, notes)
        case "array":
            entries = [entry for value in present for entry in value]
            return _nested(depth) or T.ArrayType(type_of_json(entries, f"{path}[]", notes, depth + 1))
        case _:
            return _nested(depth) or _object_type(present, path, notes, depth + 1)


def type_of_texts(values: Sequence[str | None], path: str, notes: InferenceNotes) -> T.DataType:
    """The type of a column of a CSV file with these values."""
    present = [value for value in values if value is not None]
    if not present:
        notes.add(path, "only null in the sample" if values else "no value in the sample")
        return T.StringType()
    if all(text in {"true", "false"} for text in present):
        return T.BooleanType()
    if all(_PLAIN_NUMBER.fullmatch(text) for text in present):
        return _number_type([_number(text) for text in present], path, notes)
    return _text_type(present, path, notes)


def declared(data_type: T.DataType) -> str:
    """A type as CREATE SOURCE declares it, in canonical form."""
    match data_type:
        case T.ArrayType():
            return f"ARRAY<{declared(data_type.elementType)}>"
        case T.MapType():
            return f"MAP<{declared(data_type.keyType)}, {declared(data_type.valueType)}>"
        case T.StructType():
            return f"STRUCT<{', '.join(f'{_field_name(f.name)}: {declared(f.dataType)}' for f in data_type.fields)}>"
    return data_type.simpleString().upper()


def _field_name(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
    return name if plain and name.upper() not in RESERVED else "`" + name.replace("`", "``") + "`"


def _nested(depth: int) -> T.DataType | None:
    return T.StringType() if depth >= MAX_DEPTH else None


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | Decimal():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _number(text: str) -> int | Decimal:
    return int(text) if _PLAIN_WHOLE.fullmatch(text) and len(text) <= 2 * MAX_PRECISION else Decimal(text)


# ---- numbers


def _number_type(values: Sequence[int | Decimal], path: str, notes: InferenceNotes) -> T.DataType:
    fractions = [value for value in values if isinstance(value, Decimal)]
    if not fractions:
        return _whole_type([int(value) for value in values], path, notes)
    scale = _fixed_scale(fractions)
    precision = _precision(values, scale or 0)
    if scale is not None and precision <= MAX_PRECISION:
        notes.add(path, "the precision is a guess")
        return T.DecimalType(max(precision, _USUAL_PRECISION), scale)
    if all(_fits_double(value) for value in values):
        most = max(_digits_after_point(value) for value in fractions)
        if most <= 4:
            notes.add(path, f"declare DECIMAL({_USUAL_PRECISION},{max(most, 2)}) if fractions must stay exact")
        return T.DoubleType()
    scale = max(_digits_after_point(value) for value in fractions)
    if _precision(values, scale) <= MAX_PRECISION:
        return T.DecimalType(MAX_PRECISION, scale)
    notes.add(path, "numbers with too many digits")
    return T.StringType()


def _whole_type(values: Sequence[int], path: str, notes: InferenceNotes) -> T.DataType:
    if all(-_LONG <= value < _LONG for value in values):
        unit = next((unit for unit, factor in _UNITS.items() if _are_times(values, factor)), None)
        if unit is not None:
            notes.add(path, f"looks like {unit} since 1970: declare TIMESTAMP and EPOCH UNIT = '{unit}'")
        return T.LongType()
    if _precision(values, 0) <= MAX_PRECISION:
        notes.add(path, "numbers that exceed 64 bits")
        return T.DecimalType(MAX_PRECISION, 0)
    notes.add(path, "numbers with too many digits")
    return T.StringType()


def _are_times(values: Sequence[int], factor: int) -> bool:
    return all(value // factor in _EPOCH_MS for value in values)


def _digits_after_point(value: Decimal) -> int:
    return max(0, -int(value.as_tuple().exponent))


def _fixed_scale(fractions: Sequence[Decimal]) -> int | None:
    """The number of digits after the point, if the values were written with a fixed one."""
    scales = {int(value.as_tuple().exponent) for value in fractions}
    scale = -scales.pop()
    padded = any(value.as_tuple().digits[-1] == 0 for value in fractions)
    return scale if not scales and scale >= 2 and padded else None


def _precision(values: Sequence[int | Decimal], scale: int) -> int:
    before_point = max(max(Decimal(value).adjusted() + 1, 1) if value else 1 for value in values)
    return before_point + scale


def _fits_double(value: int | Decimal) -> bool:
    if isinstance(value, int):
        return abs(value) <= _EXACT_IN_DOUBLE
    return abs(float(value)) != float("inf")


# ---- strings


def _decimals_in_strings(values: Sequence[str], path: str, notes: InferenceNotes) -> T.DataType | None:
    """The type of numbers that are in strings so that their fractions stay exact; None if they are something else."""
    if not all(_PLAIN_NUMBER.fullmatch(value) for value in values):
        return None
    numbers = [Decimal(value) for value in values]
    scales = {-int(number.as_tuple().exponent) for number in numbers}
    scale = scales.pop()
    precision = _precision(numbers, scale)
    if scales or scale < 2 or precision > MAX_PRECISION:
        return None
    notes.add(path, "decimals in strings; the precision is a guess")
    return T.DecimalType(max(precision, _USUAL_PRECISION), scale)


def _text_type(values: Sequence[str], path: str, notes: InferenceNotes) -> T.DataType:
    if _all_fit(_DATE, values):
        return T.DateType()
    zoned = sum(_ZONED.fullmatch(value) is not None for value in values)
    if not zoned and _all_fit(_LOCAL, values):
        return T.TimestampNTZType()
    if zoned and _all_fit(_MOMENT, values):
        if zoned < len(values):
            notes.add(path, "some have no zone: these are in the session's zone, UTC unless set")
        return T.TimestampType()
    return T.StringType()


def _all_fit(convert: Convert, values: Sequence[str]) -> bool:
    return all(_fits(convert, value) for value in values)


def _fits(convert: Callable[..., Any], value: str) -> bool:
    try:
        return convert(value, PLAIN) is not None
    except (ValueError, ArithmeticError):
        return False


# ---- objects


def _object_type(values: Sequence[dict[str, Any]], path: str, notes: InferenceNotes, depth: int) -> T.DataType:
    fields = Counter(name for value in values for name in value)
    found = sum(fields.values())
    varied = len(fields) > _MANY_KEYS and found < _RARE * len(fields) * len(values)
    if varied or not fields or not are_field_names(fields):
        entries = [entry for value in values for entry in value.values()]
        return T.MapType(T.StringType(), type_of_json(entries, f"{path}[]", notes, depth))
    return T.StructType(
        [
            T.StructField(
                name, type_of_json([value[name] for value in values if name in value], f"{path}.{name}", notes, depth)
            )
            for name in fields
        ]
    )


def are_field_names(names: Sequence[str] | Counter[str]) -> bool:
    """Whether the fields of a STRUCT may have these names: none is empty, and they differ in more than case."""
    return all(names) and len({name.lower() for name in names}) == len(names)
