"""Avro to JSON: what is decoded has the form that JSON sources have, so that one set of rules converts both.

    bytes, fixed                base64             decimal           its digits
    date, time, timestamp       ISO 8601           uuid, enum        text
    NaN, infinities             text               records, maps     objects

Connectors mark longs as times by `connect.name`: then the value is put into Kafka Connect's wrapper, whose schema part
says the same (see `documents`).

Values have the writer's schema: the one that is given, or that of the number which stands before each value (a zero
byte and four bytes), in a schema registry. Keys without such a head, or of no schema there, are left as they are.

A schema registry: schemas by their number, which never change, so that each is asked for once in a process.
"""

import io
import json
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import requests

from calve.catalog.properties import warn_of_open_login
from calve.errors import InvalidInput, TransientError
from calve.records.documents import Malformed
from calve.records.scalars import decimal_of

TIMEOUT = (5.0, 20.0)
"""Seconds to connect, and between two parts of an answer."""
_NOT_FOUND = 404

_known: dict[tuple[str, int], Any] = {}


@dataclass(frozen=True)
class RegistryClient:
    """Where schemas are had. Goes to tasks."""

    url: str
    login: tuple[str, str] | None = field(default=None, repr=False)

    def schema(self, number: int) -> Any:
        """The schema of a number, parsed, with those that it refers to. Raises Malformed where there is none."""
        place = (self.url, number)
        if place not in _known:
            body = self._asked(f"schemas/ids/{number}")
            if body is None:
                raise Malformed(f"the schema registry has no schema {number}")
            if body.get("schemaType", "AVRO") != "AVRO":
                raise Malformed(f"schema {number} is of type {body['schemaType']}, not AVRO")
            _known[place] = self._parsed(body)
        return _known[place]

    def subjects(self) -> list[str]:
        """All subjects: whether the registry answers. Raises TransientError."""
        return list(self._asked("subjects") or ())

    def _parsed(self, body: Any) -> Any:
        from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra, see `avro`

        named: dict[str, Any] = {}
        self._refer(body, named)
        return parse_schema(json.loads(body["schema"]), named_schemas=named)

    def _refer(self, body: Any, named: dict[str, Any]) -> None:
        """Parse the schemas that one refers to, the innermost first."""
        from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra, see `avro`

        for reference in body.get("references") or ():
            found = self._asked(f"subjects/{reference['subject']}/versions/{reference['version']}")
            if found is None:
                raise Malformed(f"the schema registry lacks {reference['subject']} that a schema refers to")
            self._refer(found, named)
            parse_schema(json.loads(found["schema"]), named_schemas=named)

    def _asked(self, path: str) -> Any:
        if self.login:
            warn_of_open_login(self.url, "the schema registry")
        try:
            answer = requests.get(f"{self.url.rstrip('/')}/{path}", auth=self.login, timeout=TIMEOUT)
            if answer.status_code == _NOT_FOUND:
                return None
            answer.raise_for_status()
            return answer.json()
        except (requests.RequestException, ValueError) as error:
            raise TransientError(
                f"asking the schema registry at {self.url} failed",
                detail=f"{error}.",
                hint="Check its URL, USER and PASSWORD.",
            ) from error


_MAGIC = 0
_HEAD = struct.Struct(">bI")


@dataclass(frozen=True)
class Avro:
    """How values are written: with one schema, or with those of a registry. Goes to tasks."""

    schema: str | None = None
    registry: RegistryClient | None = None


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
        """A value as JSON; null stays null."""
        if data is None:
            return None
        if self._schema is not None:
            return self._decoded(io.BytesIO(data), self._schema)
        return self._registered(data)

    def key(self, data: bytes | None) -> bytes | None:
        """A key as JSON where it is Avro of the registry, else as it is: other keys may begin with a zero byte, too."""
        if data is None or self._registry is None or len(data) < _HEAD.size or data[0] != _MAGIC:
            return data
        try:
            return self._registered(data)
        except Malformed:
            return data

    def _registered(self, data: bytes) -> bytes:
        if len(data) < _HEAD.size or data[0] != _MAGIC or self._registry is None:
            raise Malformed(
                "it is not Avro with the number of a schema before it",
                "USING SCHEMA '{...}' reads Avro without one.",
            )
        number = _HEAD.unpack_from(data)[1]
        if number in self._unknown:
            raise self._unknown[number]
        try:
            schema = self._registry.schema(number)
        except Malformed as error:
            self._unknown[number] = error  # it is not asked for again by this task
            raise
        return self._decoded(io.BytesIO(data[_HEAD.size :]), schema)

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
            raise Malformed(f"it is not Avro of its schema: {type(error).__name__}: {error}") from error
        if left:
            raise Malformed("it is not Avro of its schema: bytes are left at its end")
        wrapper = self._wrapper(schema)
        return (text if wrapper is None else f'{{"schema": {wrapper}, "payload": {text}}}').encode()

    def _reader(self, schema: Any) -> Callable[[io.BytesIO, Any], Any]:
        """What decodes values of a schema. The compiled one ends the process if a value is nested deeply."""
        number = id(schema)
        if number not in self._readers:
            compiled, plain = _readers()
            self._readers[number] = (plain if _nests_itself(schema) else compiled).schemaless_reader
        return self._readers[number]

    def _wrapper(self, schema: Any) -> str | None:
        """The schema part of Connect's wrapper, where times are marked by name."""
        number = id(schema)
        if number not in self._wrappers:
            described = _described(schema, {})
            self._wrappers[number] = json.dumps(described) if _named(described) else None
        return self._wrappers[number]


def parsed_schema(text: str) -> Any:
    """A schema in Avro's JSON. Raises InvalidInput."""
    from fastavro.schema import parse_schema  # noqa: PLC0415 - an extra

    _library()
    try:
        return parse_schema(json.loads(text))
    except Exception as error:
        raise InvalidInput(
            "the Avro schema is not understood", detail=f"{type(error).__name__}: {error}.", hint="It is JSON."
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
    """The readers of fastavro, compiled and in Python, with decimals that are exact and of a bounded size."""
    from fastavro import _read_py, read  # noqa: PLC0415 - an extra

    for reader in (read, _read_py):
        reader.LOGICAL_READERS |= {"bytes-decimal": _decimal, "fixed-decimal": _decimal}
    return read, _read_py


def _decimal(data: bytes, writer_schema: Any = None, _reader_schema: Any = None) -> Decimal:
    """A decimal of a field; fastavro's own are rounded to the precision of the schema."""
    found = decimal_of(data, int(writer_schema.get("scale", 0)))
    if found is None:
        raise Malformed("it has a decimal that is too long")
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
            return value if value - value == 0 else _special(value)
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
    raise Malformed(f"it has a value of kind {type(value).__name__}")


def _special(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - what NaN is


def _described(schema: Any, known: dict[str, Any]) -> Any:
    """An Avro schema as Connect describes one, as far as `documents` looks at it."""
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
        known[schema["name"]] = {"type": "struct"}  # a record inside itself ends here
        fields = [{**_described(field["type"], known), "field": field["name"]} for field in schema["fields"]]
        found = {"type": "struct", "fields": fields}
        known[schema["name"]] = found
    elif kind == "array":
        found["items"] = _described(schema["items"], known)
    elif kind == "map":
        found["values"] = _described(schema["values"], known)
    return found


def _named(described: Any) -> bool:
    """Whether anything in it is marked by a name."""
    if isinstance(described, dict):
        return "name" in described or any(_named(inner) for inner in described.values())
    return isinstance(described, list) and any(_named(inner) for inner in described)
