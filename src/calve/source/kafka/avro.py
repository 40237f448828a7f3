"""Decodes Avro into the form that JSON sources have, so that one set of rules converts both.

    bytes, fixed                base64             decimal           its digits
    date, time, timestamp       ISO 8601           uuid, enum        string
    NaN, infinities             string             records, maps     objects

Connectors mark longs as times by `connect.name`: then the value is put into Kafka Connect's wrapper, whose schema part
says the same (see `documents`).

Values have the writer's schema: the given one, or that of a schema registry whose id precedes each value (a zero byte
and four bytes). Keys without such a header, or with an unknown id, are left unchanged. Schemas of a registry never
change, so a process fetches each once.
"""

import io
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from calve.errors import InvalidInput
from calve.records.documents import Malformed
from calve.records.scalars import decimal_of
from calve.source.kafka.registry import AVRO, RegistryClient, RegistryEntry, has_header, split_header

_known: dict[tuple[str, int], Any] = {}


@dataclass(frozen=True)
class Avro:
    """The schema of values: a given one, or those of a registry. Goes to tasks."""

    schema: str | None = None
    registry: RegistryClient | None = None

    def reader(self) -> "AvroReader":
        """Prepare reading, in a task. Raises InvalidInput if a package is missing."""
        return AvroReader(self)


class AvroReader:
    """Decodes keys and values. Raises Malformed."""

    def __init__(self, avro: Avro) -> None:
        _library()
        self._registry = avro.registry
        self._schema = parsed_schema(avro.schema) if avro.schema else None
        self._wrappers: dict[int, str | None] = {}
        self._readers: dict[int, Callable[[io.BytesIO, Any], Any]] = {}
        self._unknown: dict[int, Malformed] = {}

    def value(self, data: bytes | None) -> bytes | None:
        """Decode a value to JSON; null stays null."""
        if data is None:
            return None
        if self._schema is not None:
            return self._decoded(io.BytesIO(data), self._schema)
        return self._registered(data)

    def key(self, data: bytes | None) -> bytes | None:
        """Decode a key to JSON if it is Avro of the registry; other keys, which may start with a zero byte, stay."""
        if data is None or self._registry is None or not has_header(data):
            return data
        try:
            return self._registered(data)
        except Malformed:
            return data

    def _registered(self, data: bytes) -> bytes:
        if not has_header(data) or self._registry is None:
            raise Malformed(
                "it is not Avro preceded by the id of a schema",
                "USING SCHEMA '{...}' reads Avro without one.",
            )
        number, rest = split_header(data)
        if number in self._unknown:
            raise self._unknown[number]
        try:
            schema = _schema_of(self._registry, number)
        except Malformed as error:
            self._unknown[number] = error  # this task does not request it again
            raise
        return self._decoded(io.BytesIO(rest), schema)

    def _decoded(self, data: io.BytesIO, schema: Any) -> bytes:
        try:
            found = self._reader(schema)(data, schema)
            left = data.read(1)
            text = json.dumps(_plain(found))
        except Malformed:
            raise
        except RecursionError as error:
            raise Malformed("it is nested too deeply") from error
        except Exception as error:
            raise Malformed(f"it does not match its Avro schema: {type(error).__name__}: {error}") from error
        if left:
            raise Malformed("it does not match its Avro schema: it has trailing bytes")
        wrapper = self._wrapper(schema)
        return (text if wrapper is None else f'{{"schema": {wrapper}, "payload": {text}}}').encode()

    def _reader(self, schema: Any) -> Callable[[io.BytesIO, Any], Any]:
        """The decoder for a schema. The compiled one crashes the process if a value is nested deeply."""
        number = id(schema)
        if number not in self._readers:
            compiled, plain = _readers()
            self._readers[number] = (plain if _nests_itself(schema) else compiled).schemaless_reader
        return self._readers[number]

    def _wrapper(self, schema: Any) -> str | None:
        """The schema part of Connect's wrapper, if times are marked by name."""
        number = id(schema)
        if number not in self._wrappers:
            described = _described(schema, {})
            self._wrappers[number] = json.dumps(described) if _named(described) else None
        return self._wrappers[number]


def _schema_of(registry: RegistryClient, number: int) -> Any:
    """The parsed schema with this id. Raises Malformed if there is none."""
    place = (registry.url, number)
    if place not in _known:
        _known[place] = parsed_entry(registry.entry(number, AVRO))
    return _known[place]


def parsed_entry(entry: RegistryEntry) -> Any:
    """The parsed schema of a registry, with those that it refers to."""
    return _parsed_with(entry, {})


def _parsed_with(entry: RegistryEntry, named: dict[str, Any]) -> Any:
    """Parse a schema after those that it refers to, the innermost first."""
    from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra

    for _, referred in entry.references:
        _parsed_with(referred, named)
    return parse_schema(json.loads(entry.text), named_schemas=named)


def parsed_schema(text: str) -> Any:
    """A schema in Avro's JSON. Raises InvalidInput."""
    from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra

    _library()
    try:
        return parse_schema(json.loads(text))
    except Exception as error:
        raise InvalidInput(
            "invalid Avro schema", detail=f"{type(error).__name__}: {error}.", hint="Give it as JSON."
        ) from error


def _library() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidInput(
            "FORMAT AVRO needs the package fastavro",
            detail=f"{error}.",
            hint='Install it on the driver and the executors: pip install "calve[kafka]".',
        ) from error
    return fastavro


def _readers() -> tuple[Any, Any]:
    """The readers of fastavro, compiled and in Python, with decimals that are exact and of bounded size."""
    from fastavro import _read_py, read  # noqa: PLC0415 - an extra

    for reader in (read, _read_py):
        reader.LOGICAL_READERS |= {"bytes-decimal": _decimal, "fixed-decimal": _decimal}
    return read, _read_py


def _decimal(data: bytes, writer_schema: Any = None, _reader_schema: Any = None) -> Decimal:
    """Decode a decimal; fastavro's own function rounds to the precision of the schema."""
    found = decimal_of(data, int(writer_schema.get("scale", 0)))
    if found is None:
        raise Malformed("it contains a decimal that is too long")
    return found


def _nests_itself(schema: Any, around: frozenset[str] = frozenset()) -> bool:
    """Whether values of a schema can be nested to any depth."""
    if isinstance(schema, list):
        return any(_nests_itself(branch, around) for branch in schema)
    if isinstance(schema, str):
        return schema in around
    inner = [schema[name] for name in ("type", "items", "values") if name in schema]
    if "fields" in schema:
        around |= {schema["name"]}
        inner = [field["type"] for field in schema["fields"]]
    return any(_nests_itself(part, around) for part in inner)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float_json(value)
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case bytes():
            return b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case UUID():
            return str(value)
    raise Malformed(f"it contains a value of type {type(value).__name__}")


def float_json(value: float) -> float | str:
    """A number, or the text of one that JSON does not have."""
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - what NaN is


def _described(schema: Any, known: dict[str, Any]) -> Any:
    """An Avro schema in the form of Connect's, as far as `documents` needs it."""
    if isinstance(schema, list):
        choices = [branch for branch in schema if branch != "null"]
        return _described(choices[0], known) if len(choices) == 1 else {"type": "union"}
    if isinstance(schema, str):
        return known.get(schema, {"type": schema})
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _described(kind, known)
    found: dict[str, Any] = {"type": kind}
    if "connect.name" in schema and "logicalType" not in schema and kind in {"int", "long"}:
        found["name"] = schema["connect.name"]
    if kind in {"record", "error"}:
        known[schema["name"]] = {"type": "struct"}  # recursive records end here
        fields = [{**_described(field["type"], known), "field": field["name"]} for field in schema["fields"]]
        found = {"type": "struct", "fields": fields}
        known[schema["name"]] = found
    elif kind == "array":
        found["items"] = _described(schema["items"], known)
    elif kind == "map":
        found["values"] = _described(schema["values"], known)
    return found


def _named(described: Any) -> bool:
    """Whether any field has a semantic type."""
    if isinstance(described, dict):
        return "name" in described or any(_named(inner) for inner in described.values())
    return isinstance(described, list) and any(_named(inner) for inner in described)
