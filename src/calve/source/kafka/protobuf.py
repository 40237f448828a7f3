"""Decodes Protobuf into the form that JSON sources have, so that one set of rules converts both.

    bytes                       base64             enum              the name of the value, or its number
    Timestamp, Date, TimeOfDay  ISO 8601           wrappers          the value, or null
    Duration                    seconds: `1.5s`    Struct, Value     the JSON that they stand for
    NaN, infinities             string             messages, maps    objects
    confluent.type.Decimal      its digits

Fields have the names of the schema. One that was not set is null if that can be told: messages, members of a `oneof`,
`optional` fields, and fields of proto2 without a default. Others have their default, as for every reader of Protobuf.

A value is preceded by the id of its schema, a file of messages, and by the path to its message in that file
(Confluent's wire format). Keys without such a header, or with an unknown id, are left unchanged. Schemas of a registry
never change, so a process fetches each once. The registry gives them as descriptors; text would need a compiler.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final

from calve.errors import InvalidInput
from calve.records.documents import Malformed
from calve.records.scalars import decimal_of
from calve.source.kafka.avro import float_json
from calve.source.kafka.registry import PROTOBUF, RegistryClient, RegistryEntry, has_header, split_header

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WELL_KNOWN: Final = "google/protobuf/"
_MOST_VARINT_BITS: Final = 64
_MAIN: Final = "calve/registered.proto"

WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
ANY_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
DATE: Final = "google.type.Date"
TIME_OF_DAY: Final = "google.type.TimeOfDay"
DECIMAL: Final = "confluent.type.Decimal"

_INT32, _UINT32, _BYTES = 5, 13, 12
_BUILT_IN: Final[dict[str, tuple[str, str, tuple[tuple[str, int], ...]]]] = {
    "confluent/meta.proto": ("confluent", "", ()),
    "confluent/type/decimal.proto": (
        "confluent.type",
        "Decimal",
        (("value", _BYTES), ("precision", _UINT32), ("scale", _INT32)),
    ),
    "google/type/date.proto": ("google.type", "Date", (("year", _INT32), ("month", _INT32), ("day", _INT32))),
    "google/type/timeofday.proto": (
        "google.type",
        "TimeOfDay",
        (("hours", _INT32), ("minutes", _INT32), ("seconds", _INT32), ("nanos", _INT32)),
    ),
}
"""Files that serializers take for granted, so that a registry need not have them: package, message, fields."""

_known: dict[tuple[str, int], "MessageFile"] = {}


@dataclass(frozen=True)
class Protobuf:
    """The registry with the schemas of values. Goes to tasks."""

    registry: RegistryClient

    def reader(self) -> "ProtobufReader":
        """Prepare reading, in a task. Raises InvalidInput if a package is missing."""
        return ProtobufReader(self)


class MessageFile:
    """A file of messages, with the files that it refers to."""

    def __init__(self, entry: RegistryEntry) -> None:
        pool = _library().descriptor_pool.DescriptorPool()
        self._file = _added(pool, _MAIN, entry)

    def message(self, path: tuple[int, ...]) -> Any:
        """The descriptor of the message at a path: its place in the file, then in the message around it."""
        within = list(self._file.message_types_by_name.values())
        found = None
        for place in path:
            if not 0 <= place < len(within):
                break
            found = within[place]
            within = list(found.nested_types)
        else:
            if found is not None:
                return found
        raise Malformed(f"its schema has no message {'.'.join(map(str, path))}")


class ProtobufReader:
    """Decodes keys and values. Raises Malformed."""

    def __init__(self, protobuf: Protobuf) -> None:
        self._registry = protobuf.registry
        self._unknown: dict[int, Malformed] = {}
        self._parsers: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Any]] = {}
        _library()

    def value(self, data: bytes | None) -> bytes | None:
        """Decode a value to JSON; null stays null."""
        return None if data is None else self._decoded(data)

    def key(self, data: bytes | None) -> bytes | None:
        """Decode a key to JSON if it is Protobuf of the registry; other keys stay."""
        if data is None or not has_header(data):
            return data
        try:
            return self._decoded(data)
        except Malformed:
            return data

    def _decoded(self, data: bytes) -> bytes:
        if not has_header(data):
            raise Malformed("it is not Protobuf preceded by the id of a schema")
        number, rest = split_header(data)
        path, start = _message_path(rest)
        parse = self._parser(number, path)
        try:
            message = parse(rest[start:])
        except _library().message.DecodeError as error:
            raise Malformed(f"it does not match its Protobuf schema: {error}") from error
        return json.dumps(plain(message)).encode()

    def _parser(self, number: int, path: tuple[int, ...]) -> Callable[[bytes], Any]:
        if number in self._unknown:
            raise self._unknown[number]
        if (number, path) not in self._parsers:
            try:
                file = _file_of(self._registry, number)
            except Malformed as error:
                self._unknown[number] = error  # this task does not request it again
                raise
            made = _library().message_factory.GetMessageClass(file.message(path))
            self._parsers[number, path] = made.FromString
        return self._parsers[number, path]


def _file_of(registry: RegistryClient, number: int) -> MessageFile:
    place = (registry.url, number)
    if place not in _known:
        _known[place] = MessageFile(registry.entry(number, PROTOBUF))
    return _known[place]


# ---- descriptors


def _added(pool: Any, name: str, entry: RegistryEntry) -> Any:
    """Add a file to a pool, after the files that it refers to. Raises InvalidInput."""
    library = _library()
    try:
        proto = library.descriptor_pb2.FileDescriptorProto.FromString(b64decode(entry.text, validate=True))
    except (ValueError, library.message.DecodeError) as error:
        raise InvalidInput(
            "the schema registry does not return serialized Protobuf schemas",
            detail="It ignores format=serialized, which Confluent's registry knows, and Redpanda since version 25.2.",
            hint="Upgrade the registry, or let a connector convert the records to Avro or JSON.",
        ) from error
    proto.name = name
    referred = dict(entry.references)
    for needed in proto.dependency:
        _add_needed(pool, needed, referred)
    try:
        pool.Add(proto)
        return pool.FindFileByName(name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidInput("invalid Protobuf schema", detail=f"{error}.") from error


def _add_needed(pool: Any, name: str, referred: dict[str, RegistryEntry]) -> None:
    try:
        pool.FindFileByName(name)
    except KeyError:
        if name in referred:
            _added(pool, name, referred[name])
        elif name in _BUILT_IN:
            pool.Add(_built_in(name))
        elif name.startswith(_WELL_KNOWN):
            _add_well_known(pool, name)
        else:
            raise InvalidInput(
                f'a Protobuf schema imports "{name}", which the schema registry does not have',
                hint="Register it, and refer to it from the schema.",
            ) from None


def _add_well_known(pool: Any, name: str) -> None:
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError as error:
        raise InvalidInput(f'a Protobuf schema imports "{name}", which does not exist', detail=f"{error}.") from error
    proto = _library().descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(proto)
    for needed in proto.dependency:
        _add_needed(pool, needed, {})
    pool.Add(proto)


def _built_in(name: str) -> Any:
    package, message, fields = _BUILT_IN[name]
    proto = _library().descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    if message:
        made = proto.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields, start=1):
            made.field.add(name=field, number=number, type=kind, label=1)
    return proto


@dataclass(frozen=True)
class _Library:
    """The modules of the package that are used."""

    descriptor_pb2: Any
    descriptor_pool: Any
    message: Any
    message_factory: Any


@cache
def _library() -> _Library:
    names = ("descriptor_pb2", "descriptor_pool", "message", "message_factory")
    try:
        return _Library(*(import_module(f"google.protobuf.{name}") for name in names))
    except ImportError as error:
        raise InvalidInput(
            "FORMAT PROTOBUF needs the package protobuf",
            detail=f"{error}.",
            hint='Install it on the driver and the executors: pip install "calve[kafka]".',
        ) from error


def first_message(entry: RegistryEntry) -> Any:
    """The descriptor of the first message of a registered file. Raises InvalidInput."""
    try:
        return MessageFile(entry).message((0,))
    except Malformed as error:
        raise InvalidInput("the Protobuf schema has no message", detail=f"{error.text}.") from error


def messages_beside(message: Any) -> list[Any]:
    """The descriptors of all messages of the file of a message, nested ones after those around them."""
    found: list[Any] = []
    waiting = list(message.file.message_types_by_name.values())
    while waiting:
        one = waiting.pop(0)
        if not one.GetOptions().map_entry:
            found.append(one)
            waiting += one.nested_types
    return found


# ---- the wire format


def _message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """The path of the message, and where it starts. A path that is empty is that of the first message."""
    numbers = _zigzags(data)
    count, end = next(numbers)
    if not 0 <= count <= len(data):
        raise Malformed("the place of its message in its schema cannot be read")
    path: list[int] = []
    for _ in range(count):
        place, end = next(numbers)
        path.append(place)
    return tuple(path) or (0,), end


def _zigzags(data: bytes) -> Iterator[tuple[int, int]]:
    """Signed numbers of variable length, each with the offset after it."""
    number = shift = 0
    for offset, byte in enumerate(data, start=1):
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > _MOST_VARINT_BITS:
            break
        if not byte & 0x80:
            yield (number >> 1) ^ -(number & 1), offset
            number = shift = 0
    raise Malformed("the place of its message in its schema cannot be read")


# ---- values


def plain(message: Any) -> Any:
    """A message as JSON."""
    name = message.DESCRIPTOR.full_name
    if name in _SPECIAL:
        return _SPECIAL[name](message)
    if name in WRAPPERS:
        return _scalar(message.DESCRIPTOR.fields_by_name["value"], message.value)
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_repeated(field: Any) -> bool:
    """Whether a field is repeated: versions before 6.31 and since 7 have different attributes for it."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return {_key_text(key): _scalar(inner, value[key]) for key in value}
    if is_repeated(field):
        return [_scalar(field, one) for one in value]
    if field.has_presence and not field.has_default_value and not message.HasField(field.name):
        return None
    return _scalar(field, value)


def _key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _scalar(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    match value:
        case float():
            return float_json(value)
        case bytes():
            return b64encode(value).decode()
    return value


def _timestamp(message: Any) -> str:
    try:
        moment = _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError as error:
        raise Malformed(f"it contains a timestamp that is out of range: {message.seconds} s") from error
    return moment.isoformat()


def _duration(message: Any) -> str:
    nanos = message.seconds * 1_000_000_000 + message.nanos
    whole, part = divmod(abs(nanos), 1_000_000_000)
    digits = f".{part:09d}".rstrip("0") if part else ""
    return f"{'-' if nanos < 0 else ''}{whole}{digits}s"


def _date(message: Any) -> str:
    try:
        return date(message.year, message.month, message.day).isoformat()
    except ValueError as error:
        raise Malformed(f"it contains an invalid date: {error}") from error


def _time_of_day(message: Any) -> str:
    try:
        return time(message.hours, message.minutes, message.seconds, message.nanos // 1000).isoformat()
    except ValueError as error:
        raise Malformed(f"it contains an invalid time of day: {error}") from error


def _decimal(message: Any) -> str:
    try:
        found = decimal_of(message.value, message.scale)
    except ArithmeticError:
        found = None
    if found is None:
        raise Malformed("it contains a decimal that is too long")
    return format(found, "f")


def _any_json(message: Any) -> Any:
    name = message.DESCRIPTOR.name
    if name == "Struct":
        return {key: _any_json(message.fields[key]) for key in message.fields}
    if name == "ListValue":
        return [_any_json(one) for one in message.values]
    kind = message.WhichOneof("kind")
    if kind in {None, "null_value"}:
        return None
    value = getattr(message, kind)
    if kind in {"struct_value", "list_value"}:
        return _any_json(value)
    return float_json(value) if kind == "number_value" else value


_SPECIAL: Final[dict[str, Callable[[Any], Any]]] = {
    TIMESTAMP: _timestamp,
    DURATION: _duration,
    DATE: _date,
    TIME_OF_DAY: _time_of_day,
    DECIMAL: _decimal,
    **dict.fromkeys(ANY_JSON, _any_json),
}
