"""Types of columns from schemas of records or a registry: Kafka Connect's schema part, Avro, Protobuf, JSON Schema.

They are the types that values convert to after `source.kafka.avro`, `protobuf` and `records.documents` read them.
Times of day stay what the record has (a number or a text), because few engines read tables with a column of type TIME.
What has no type of its own (unions, recursive records, maps whose keys are not strings) is a STRING with its JSON.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.infer.value_types import InferenceNotes, are_field_names
from calve.model.types import MAX_PRECISION
from calve.source.kafka import protobuf

_VARIABLE_SCALE = 10

# ---- Kafka Connect, with Debezium's semantic types

_CONNECT = {
    "boolean": T.BooleanType(),
    "int8": T.ByteType(),
    "int16": T.ShortType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "float32": T.FloatType(),
    "float": T.FloatType(),
    "float64": T.DoubleType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
}
_SEMANTIC: dict[str, T.DataType] = {
    "io.debezium.time.Date": T.DateType(),
    "org.apache.kafka.connect.data.Date": T.DateType(),
    "io.debezium.time.Timestamp": T.TimestampNTZType(),
    "io.debezium.time.MicroTimestamp": T.TimestampNTZType(),
    "io.debezium.time.NanoTimestamp": T.TimestampNTZType(),
    "io.debezium.time.ZonedTimestamp": T.TimestampType(),
    "org.apache.kafka.connect.data.Timestamp": T.TimestampType(),
}
"""Debezium's timestamps that count have no zone; those in ISO form have one."""
_OF_DAY = {
    "io.debezium.time.Time": "milliseconds",
    "org.apache.kafka.connect.data.Time": "milliseconds",
    "io.debezium.time.MicroTime": "microseconds",
    "io.debezium.time.NanoTime": "nanoseconds",
}
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"


def connect_fields(fields: Any, notes: InferenceNotes, prefix: str = "") -> dict[str, T.DataType]:
    """The columns in the list of fields of a schema part."""
    listed = [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    return {str(field.get("field")): _connect_type(field, f"{prefix}{field.get('field')}", notes) for field in listed}


def image_fields(schema: Any, notes: InferenceNotes) -> dict[str, T.DataType]:
    """The columns of the table in the schema part of a change record: those of `after`, else of `before`."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    found = {field.get("field"): field for field in fields or () if isinstance(field, dict)}
    image = found.get("after") or found.get("before") or {}
    return connect_fields(image.get("fields"), notes)


def _connect_type(field: Mapping[str, Any], path: str, notes: InferenceNotes) -> T.DataType:
    name = str(field.get("name") or "")
    if name == _CONNECT_DECIMAL:
        return _connect_decimal(field, path, notes)
    if name == _VARIABLE_DECIMAL:
        return _variable_decimal(path, notes)
    if name in _SEMANTIC:
        return _SEMANTIC[name]
    if name in _OF_DAY:
        notes.add(path, f"{_OF_DAY[name]} since midnight: declare TIME to convert them")
    kind = field.get("type")
    match kind:
        case "struct":
            inside = connect_fields(field.get("fields"), notes, f"{path}.")
            return _struct(inside)
        case "array":
            items = field.get("items")
            return T.ArrayType(_connect_type(items if isinstance(items, dict) else {}, f"{path}[]", notes))
        case "map":
            keys, values = field.get("keys"), field.get("values")
            if not isinstance(keys, dict) or keys.get("type") != "string":
                return T.StringType()
            return T.MapType(
                T.StringType(), _connect_type(values if isinstance(values, dict) else {}, f"{path}[]", notes)
            )
    return _CONNECT.get(str(kind), T.StringType())


def _connect_decimal(field: Mapping[str, Any], path: str, notes: InferenceNotes) -> T.DataType:
    parameters = field.get("parameters")
    given = parameters if isinstance(parameters, dict) else {}
    precision = str(given.get("connect.decimal.precision", ""))
    scale = str(given.get("scale", "0"))
    if not scale.isdecimal() or int(scale) > MAX_PRECISION:
        notes.add(path, f"a decimal with scale {scale}, which DECIMAL does not have")
        return T.StringType()
    if not precision.isdecimal():
        return T.DecimalType(MAX_PRECISION, int(scale))
    return _decimal(int(precision), int(scale), path, notes)


def _variable_decimal(path: str, notes: InferenceNotes) -> T.DataType:
    notes.add(path, "a decimal whose scale varies: set the scale")
    return T.DecimalType(MAX_PRECISION, _VARIABLE_SCALE)


def _decimal(precision: int, scale: int, path: str, notes: InferenceNotes) -> T.DataType:
    if not 0 < precision <= MAX_PRECISION or not 0 <= scale <= precision:
        notes.add(path, f"DECIMAL({precision},{scale}) exceeds {MAX_PRECISION} digits")
        return T.StringType()
    return T.DecimalType(precision, scale)


def _struct(fields: Mapping[str, T.DataType]) -> T.DataType:
    if not fields or not are_field_names(list(fields)):
        return T.StringType()
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


# ---- Avro

_AVRO = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "fixed": T.BinaryType(),
    "string": T.StringType(),
    "enum": T.StringType(),
}
_LOGICAL: dict[tuple[str, str], T.DataType] = {
    ("int", "date"): T.DateType(),
    ("int", "time-millis"): T.StringType(),
    ("long", "time-micros"): T.StringType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
}
"""Those that the decoder knows; values of others have their base type."""


def avro_fields(schema: Any, notes: InferenceNotes) -> dict[str, T.DataType]:
    """The columns of a parsed schema of a record. Raises InvalidInput for any other schema."""
    return _AvroTypes(schema, notes).columns()


def avro_image(schema: Any) -> Any:
    """The schema of `after` in a schema of change records; None if it is none."""
    types = _AvroTypes(schema, InferenceNotes())
    fields = {field["name"]: field["type"] for field in types.record(schema).get("fields", ())}
    if not {"before", "after", "op"} <= set(fields):
        return None
    inner = types.record(fields["after"])
    return {**inner, _NAMED: types.named} if inner.get("fields") else None


_NAMED = "__named_schemas"


class _AvroTypes:
    """Walks through a schema."""

    def __init__(self, schema: Any, notes: InferenceNotes) -> None:
        self._schema = schema
        self._notes = notes
        self.named: dict[str, Any] = dict(schema.get(_NAMED, {})) if isinstance(schema, dict) else {}

    def columns(self) -> dict[str, T.DataType]:
        record = self.record(self._schema)
        if "fields" not in record:
            raise InvalidInput(
                "the Avro schema is not that of a record",
                detail=f"It is {_named_kind(self._schema)}.",
                hint="Columns come from the fields of a record.",
            )
        around = frozenset({str(record.get("name"))})
        return {field["name"]: self._type(field["type"], field["name"], around) for field in record["fields"]}

    def record(self, schema: Any) -> dict[str, Any]:
        """A record, also as the only choice beside null, and by its name; empty for anything else."""
        if isinstance(schema, list):
            choices = [branch for branch in schema if branch != "null"]
            return self.record(choices[0]) if len(choices) == 1 else {}
        if isinstance(schema, str):
            return dict(self.named.get(schema, {}))
        if isinstance(schema.get("type"), dict | list):
            return self.record(schema["type"])
        return dict(schema) if "fields" in schema else {}

    def _type(self, schema: Any, path: str, around: frozenset[str]) -> T.DataType:
        if isinstance(schema, list):
            choices = [branch for branch in schema if branch != "null"]
            if len(choices) == 1:
                return self._type(choices[0], path, around)
            self._notes.add(path, "a union of several types" if choices else "always null")
            return T.StringType()
        if isinstance(schema, str):
            if schema in around:
                self._notes.add(path, "a record that contains itself, as JSON")
                return T.StringType()
            return self._type(self.named[schema], path, around) if schema in self.named else _AVRO[schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, path, around)
        return self._by_kind(kind, schema, path, around)

    def _by_kind(self, kind: str, schema: dict[str, Any], path: str, around: frozenset[str]) -> T.DataType:
        marked = self._marked(kind, schema, path)
        if marked is not None:
            return marked
        match kind:
            case "record" | "error":
                inside = around | {str(schema.get("name"))}
                fields = {f["name"]: self._type(f["type"], f"{path}.{f['name']}", inside) for f in schema["fields"]}
                return _struct(fields)
            case "array":
                return T.ArrayType(self._type(schema["items"], f"{path}[]", around))
            case "map":
                return T.MapType(T.StringType(), self._type(schema["values"], f"{path}[]", around))
        return self._type(kind, path, around) if kind in self.named else _AVRO.get(kind, T.StringType())

    def _marked(self, kind: str, schema: dict[str, Any], path: str) -> T.DataType | None:
        """The type by Avro's logical type or a connector's name; None if that does not change it."""
        logical, semantic = schema.get("logicalType"), schema.get("connect.name")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            return _decimal(int(schema.get("precision", 0)), int(schema.get("scale", 0)), path, self._notes)
        if (kind, logical) in _LOGICAL:
            if str(logical).startswith("time-"):
                self._notes.add(path, "a time of day: declare TIME to convert it")
            return _LOGICAL[kind, str(logical)]
        if semantic == _VARIABLE_DECIMAL:
            return _variable_decimal(path, self._notes)
        if logical is not None:
            return None
        if semantic in _OF_DAY:
            self._notes.add(path, f"{_OF_DAY[semantic]} since midnight: declare TIME to convert them")
        counted = kind in {"int", "long"}
        zoned = kind == "string" and semantic == "io.debezium.time.ZonedTimestamp"
        return _SEMANTIC.get(str(semantic)) if counted or zoned else None


def _named_kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "a union"
    return f"of type {schema if isinstance(schema, str) else schema.get('type')}"


# ---- Protobuf

_PROTOBUF: dict[int, T.DataType] = {
    1: T.DoubleType(),
    2: T.FloatType(),
    3: T.LongType(),  # int64
    4: T.DecimalType(20, 0),  # uint64
    5: T.IntegerType(),  # int32
    6: T.DecimalType(20, 0),  # fixed64
    7: T.LongType(),  # fixed32
    8: T.BooleanType(),
    9: T.StringType(),
    12: T.BinaryType(),
    13: T.LongType(),  # uint32
    14: T.StringType(),  # enum
    15: T.IntegerType(),  # sfixed32
    16: T.LongType(),  # sfixed64
    17: T.IntegerType(),  # sint32
    18: T.LongType(),  # sint64
}
"""By the numbers of types in descriptors; unsigned ones need a type with one more bit."""


def protobuf_fields(message: Any, notes: InferenceNotes) -> dict[str, T.DataType]:
    """The columns of a message, by its descriptor."""
    return _ProtobufTypes(notes).fields(message, "", frozenset())


def protobuf_image(message: Any) -> Any:
    """The message of `after` in a message of change records; None if it is none."""
    fields = message.fields_by_name
    if not {"before", "after", "op"} <= set(fields):
        return None
    return fields["after"].message_type


class _ProtobufTypes:
    """Walks through messages."""

    def __init__(self, notes: InferenceNotes) -> None:
        self._notes = notes

    def fields(self, message: Any, prefix: str, around: frozenset[str]) -> dict[str, T.DataType]:
        inside = around | {message.full_name}
        return {field.name: self._type(field, f"{prefix}{field.name}", inside) for field in message.fields}

    def _type(self, field: Any, path: str, around: frozenset[str]) -> T.DataType:
        if protobuf.is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            if key.type != key.TYPE_STRING:
                self._notes.add(path, "a map whose keys are not strings, as JSON")
                return T.StringType()
            return T.MapType(T.StringType(), self._single(value, f"{path}[]", around))
        if protobuf.is_repeated(field):
            return T.ArrayType(self._single(field, f"{path}[]", around))
        return self._single(field, path, around)

    def _single(self, field: Any, path: str, around: frozenset[str]) -> T.DataType:
        message = field.message_type
        if message is None:
            return _PROTOBUF[field.type]
        if message.full_name in protobuf.WRAPPERS:
            return self._single(message.fields_by_name["value"], path, around)
        known = self._known(message.full_name, path)
        if known is not None:
            return known
        if message.full_name in around:
            self._notes.add(path, "a message that contains itself, as JSON")
            return T.StringType()
        return _struct(self.fields(message, f"{path}.", around))

    def _known(self, name: str, path: str) -> T.DataType | None:
        """The type of a message that stands for a value."""
        match name:
            case protobuf.TIMESTAMP:
                return T.TimestampType()
            case protobuf.DATE:
                return T.DateType()
            case protobuf.DECIMAL:
                return _variable_decimal(path, self._notes)
            case protobuf.TIME_OF_DAY:
                self._notes.add(path, "a time of day: declare TIME to convert it")
                return T.StringType()
        return T.StringType() if name == protobuf.DURATION or name in protobuf.ANY_JSON else None


# ---- JSON Schema

_JSON = {"boolean": T.BooleanType(), "integer": T.LongType(), "number": T.DoubleType(), "string": T.StringType()}
_FORMATS = {"date-time": T.TimestampType(), "date": T.DateType()}


def json_schema_fields(text: str, notes: InferenceNotes, *, changes: bool) -> dict[str, T.DataType]:
    """The columns of a JSON Schema of objects, or of `after` in one of change records. Raises InvalidInput."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidInput("the JSON Schema cannot be parsed", detail=f"{error}.") from error
    types = _JsonTypes(schema, notes)
    found = types.resolved(schema, frozenset())
    properties = found.get("properties")
    if changes and isinstance(properties, dict):
        properties = types.resolved(properties.get("after"), frozenset()).get("properties")
    if not isinstance(properties, dict):
        raise InvalidInput(
            "the JSON Schema does not list properties", hint="Columns come from the properties of an object."
        )
    return {str(name): types.type_of(inner, str(name), frozenset()) for name, inner in properties.items()}


class _JsonTypes:
    """Walks through a schema, and follows references within it."""

    def __init__(self, root: Any, notes: InferenceNotes) -> None:
        self._root = root
        self._notes = notes

    def resolved(self, schema: Any, around: frozenset[str]) -> dict[str, Any]:
        """A schema without references, and without choices beside null; empty if there is none."""
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return {} if reference in around else self.resolved(self._at(reference), around | {reference})
        for word in ("oneOf", "anyOf"):
            if isinstance(schema.get(word), list):
                choices = [one for one in schema[word] if not (isinstance(one, dict) and one.get("type") == "null")]
                return self.resolved(choices[0], around) if len(choices) == 1 else {}
        return schema

    def _at(self, reference: str) -> Any:
        here = self._root
        if not reference.startswith("#/"):
            return None
        for part in reference[2:].split("/"):
            here = here.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(here, dict) else None
        return here

    def type_of(self, schema: Any, path: str, around: frozenset[str]) -> T.DataType:
        found = self.resolved(schema, around)
        inside = around | {str(schema.get("$ref"))} if isinstance(schema, dict) and "$ref" in schema else around
        kinds = found.get("type")
        named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind not in {None, "null"}]
        if len(named) != 1:
            self._notes.add(path, "no single type in the schema")
            return T.StringType()
        match named[0]:
            case "string":
                return _FORMATS.get(str(found.get("format")), T.StringType())
            case "array":
                return T.ArrayType(self.type_of(found.get("items"), f"{path}[]", inside))
            case "object":
                return self._object(found, path, inside)
        return _JSON.get(str(named[0]), T.StringType())

    def _object(self, found: Mapping[str, Any], path: str, around: frozenset[str]) -> T.DataType:
        properties, more = found.get("properties"), found.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            return _struct({str(n): self.type_of(s, f"{path}.{n}", around) for n, s in properties.items()})
        return T.MapType(T.StringType(), self.type_of(more if isinstance(more, dict) else {}, f"{path}[]", around))
