"""Parses JSON texts strictly, and unwraps those of Kafka Connect.

A text must be one JSON value in UTF-8; NaN, duplicate keys and numbers with thousands of digits are rejected. Fractions
are read as Decimal, so that nothing is lost before the column's type is known.

Kafka Connect may wrap a record: `{"schema": {...}, "payload": {...}}`. The schema part lists the fields, each with a
semantic type (`name`) that says how times and decimals are encoded:

    io.debezium.time.Date, org.apache.kafka.connect.data.Date            days
    io.debezium.time.Timestamp, .Time; ...connect.data.Timestamp, .Time  milliseconds
    io.debezium.time.MicroTimestamp, .MicroTime                          microseconds
    io.debezium.time.NanoTimestamp, .NanoTime                            nanoseconds, truncated to microseconds
    org.apache.kafka.connect.data.Decimal                                base64 of the unscaled value, and a scale

All others are plain JSON. Elements of arrays, maps and structs have types of their own.
"""

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from calve.records.scalars import ENTRIES, Coding, json_text
from calve.records.strict import Misfit

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_UNITS = {
    "io.debezium.time.Date": "d",
    "org.apache.kafka.connect.data.Date": "d",
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
}


_SCALE = re.compile(r"-?[0-9]{1,9}")


class Malformed(ValueError):
    """A record that cannot become a change: the problem and a hint."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text, hint)
        self.text = text
        self.hint = hint

    @classmethod
    def of(cls, misfit: Misfit) -> "Malformed":
        """Describe a value that does not fit its column."""
        if misfit.value is None:
            return cls(f'column "{misfit.path}" is missing or null, but declared {misfit.type_name}', misfit.hint)
        counted = misfit.type_name.startswith("TIME") and isinstance(misfit.value, int)
        hint = "Numbers in a time column need a unit: set epoch_unit." if counted else ""
        shown = misfit.value if isinstance(misfit.value, str) else _json(misfit.value)
        return cls(f'column "{misfit.path}" is "{shortened(shown, 60)}", which is not {misfit.type_name}', hint)


def malformed(error: "Malformed | Misfit | RecursionError") -> Malformed:
    """The problem of a record, from one of `UNREADABLE`."""
    if isinstance(error, RecursionError):
        return Malformed("it is nested too deeply")
    return Malformed.of(error) if isinstance(error, Misfit) else error


UNREADABLE = (Malformed, Misfit, RecursionError)
"""Raised by reading a record that cannot become a change."""


def _json(value: Any) -> str:
    try:
        return json_text(value)
    except RecursionError:
        return "..."


def shortened(text: str, length: int) -> str:
    """A text, truncated to about that length."""
    return text if len(text) <= length else f"{text[:length]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key appears twice")
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_float=Decimal, parse_constant=_no_constant).decode


_REGISTERED = 5
"""Bytes before a JSON text that a serializer with a schema registry wrote: zero, and the id of a JSON Schema."""


def parsed(data: bytes | str) -> Any:
    """Parse a JSON text, which may have the id of a schema before it. Raises Malformed."""
    if isinstance(data, bytes) and len(data) > _REGISTERED and not data[0]:
        data = data[_REGISTERED:]
    try:
        return _decode(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise Malformed(f"it is not JSON: {error}") from error


def is_wrapped(value: Any) -> bool:
    """Whether a record is in Kafka Connect's wrapper."""
    if not isinstance(value, dict) or "payload" not in value or "schema" not in value:
        return False
    schema = value["schema"]
    return (isinstance(schema, dict) and schema.get("type") == "struct") or value == {"schema": None, "payload": None}


def codings_of(fields: Any) -> dict[str, Coding]:
    """The encodings of the columns in a schema part's list of fields."""
    codings = {}
    for field in fields if isinstance(fields, list) else ():
        coding = _coding(field)
        if coding is not None:
            codings[str(field.get("field"))] = coding
    return codings


def _coding(field: Any) -> Coding | None:
    if not isinstance(field, dict):
        return None
    name, parameters = field.get("name"), field.get("parameters")
    if name == _DECIMAL:
        scale = str(parameters.get("scale", "0")) if isinstance(parameters, dict) else "0"
        return Coding(scale=int(scale) if _SCALE.fullmatch(scale) else 0)
    if isinstance(name, str) and name in _UNITS:
        return Coding(unit=_UNITS[name])
    match field.get("type"):
        case "struct":
            inside = codings_of(field.get("fields"))
        case "array" | "map" as kind:
            entry = _coding(field.get("items" if kind == "array" else "values"))
            inside = {} if entry is None else {ENTRIES: entry}
        case _:
            return None
    return Coding(inside=inside) if inside else None


def image_codings(schema: Any, image: str) -> dict[str, Coding] | None:
    """The encodings of the columns of an image, from the schema part of a change record."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict) and field.get("field") == image:
            return codings_of(field.get("fields"))
    return None


Codings = dict[str, Coding] | None
Field = Callable[[Any], Any]


def field_of(path: str) -> Field:
    """A function that looks up a field, with dots for nested ones; None when it is missing."""
    parts = tuple(path.split("."))

    def look_up(record: Any) -> Any:
        for part in parts:
            record = record.get(part) if isinstance(record, dict) else None
        return record

    return look_up
