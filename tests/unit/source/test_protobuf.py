"""Values in Protobuf, with schemas of a registry over HTTP."""

import datetime as dt
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    duration_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.infer.schemas import protobuf_fields, protobuf_image
from calve.infer.topics import schema_of_values
from calve.infer.value_types import InferenceNotes, declared
from calve.records.documents import Malformed, parsed
from calve.records.scalars import Settings
from calve.records.strict import Columns
from calve.source.kafka.protobuf import _BUILT_IN, Protobuf, ProtobufReader, _built_in
from calve.source.kafka.registry import RegistryClient
from tests.support.messages import file_of, message_class
from tests.support.servers.registry import PASSWORD, USER, SchemaRegistry, encoded_message

GOOGLE = [module.DESCRIPTOR.name for module in (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2, descriptor_pb2)]
ORDER = file_of(
    {
        "enum Status": {"NEW": "0", "SHIPPED": "1"},
        "Order": {
            "id": "int64",
            "small": "sint32",
            "unsigned": "uint32",
            "large": "uint64",
            "ratio": "double",
            "part": "float",
            "paid": "bool",
            "note": "string",
            "data": "bytes",
            "status": "enum:.shop.Status",
            "lines": "repeated .shop.Order.Line",
            "tags": "map string int32",
            "codes": "map int32 string",
            "either": "oneof string",
            "maybe": "optional int32",
            "at": ".google.protobuf.Timestamp",
            "took": ".google.protobuf.Duration",
            "wrapped": ".google.protobuf.Int64Value",
            "any": ".google.protobuf.Struct",
            "day": ".google.type.Date",
            "hour": ".google.type.TimeOfDay",
            "price": ".confluent.type.Decimal",
            "parent": ".shop.Order",
        },
        "Order.Line": {"sku": "string", "count": "fixed64"},
        "Other": {"name": "string"},
    },
    imports=(*GOOGLE, *_BUILT_IN),
)
TYPES = {
    "id": "BIGINT",
    "small": "INT",
    "unsigned": "BIGINT",
    "large": "DECIMAL(20,0)",
    "ratio": "DOUBLE",
    "part": "FLOAT",
    "paid": "BOOLEAN",
    "note": "STRING",
    "data": "BINARY",
    "status": "STRING",
    "lines": "ARRAY<STRUCT<sku: STRING, count: DECIMAL(20,0)>>",
    "tags": "MAP<STRING, INT>",
    "codes": "STRING",
    "maybe": "INT",
    "either": "STRING",
    "at": "TIMESTAMP",
    "took": "STRING",
    "wrapped": "BIGINT",
    "any": "STRING",
    "day": "DATE",
    "hour": "STRING",
    "price": "DECIMAL(38,10)",
    "parent": "STRING",
}


def well_known() -> list[FileDescriptorProto]:
    files = []
    for module in (descriptor_pb2, timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return [*files, *(_built_in(name) for name in _BUILT_IN)]


Order = message_class([*well_known(), ORDER], "shop.Order")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    running = SchemaRegistry()
    yield running
    running.stop()


def client(registry: SchemaRegistry) -> RegistryClient:
    return RegistryClient(registry.uri, (USER, PASSWORD))


def reader(registry: SchemaRegistry) -> ProtobufReader:
    return Protobuf(client(registry)).reader()


def decoded(registry: SchemaRegistry, message: Any, file: FileDescriptorProto = ORDER) -> Any:
    number = registry.register_file("orders-value", file)
    found = reader(registry).value(encoded_message(number, [0], message))
    assert found is not None
    return parsed(found)


FULL = Order(
    id=-(2**63),
    small=-7,
    unsigned=2**32 - 1,
    large=2**64 - 1,
    ratio=float("inf"),
    part=0.5,
    paid=True,
    note="é",
    data=b"\x00\xff",
    status=1,
    lines=[{"sku": "a", "count": 2}],
    tags={"x": 1},
    codes={-1: "y"},
    maybe=0,
    either="",
    parent=Order(id=1),
)
FULL.at.seconds, FULL.at.nanos = 1_700_000_000, 123_456_789
FULL.took.seconds, FULL.took.nanos = -1, -500_000_000
FULL.wrapped.value = 0
FULL.wrapped.SetInParent()
FULL.any.update({"a": [1, None, {"b": "c"}]})
FULL.day.year, FULL.day.month, FULL.day.day = 2024, 2, 29
FULL.hour.hours, FULL.hour.nanos = 23, 5000
FULL.price.value, FULL.price.scale = b"\xff\x38", 2

EXPECTED = {
    "id": -(2**63),
    "small": -7,
    "unsigned": 2**32 - 1,
    "large": 2**64 - 1,
    "ratio": "Infinity",
    "part": 0.5,
    "paid": True,
    "note": "é",
    "data": b64encode(b"\x00\xff").decode(),
    "status": "SHIPPED",
    "lines": [{"sku": "a", "count": 2}],
    "tags": {"x": 1},
    "codes": {"-1": "y"},
    "maybe": 0,
    "either": "",
    "at": "2023-11-14T22:13:20.123456+00:00",
    "took": "-1.5s",
    "wrapped": 0,
    "any": {"a": [1.0, None, {"b": "c"}]},
    "day": "2024-02-29",
    "hour": "23:00:00.000005",
    "price": "-2.00",
}


def test_every_kind_of_field_becomes_json(registry: SchemaRegistry) -> None:
    found = decoded(registry, FULL)
    assert found.pop("parent")["id"] == 1
    assert found == EXPECTED


def test_what_was_not_set_is_null_where_that_can_be_told_and_the_default_elsewhere(registry: SchemaRegistry) -> None:
    found = decoded(registry, Order())
    absent = {"maybe", "either", "at", "took", "wrapped", "any", "day", "hour", "price", "parent"}
    assert {name for name, value in found.items() if value is None} == absent
    assert (found["id"], found["note"], found["status"], found["lines"], found["tags"]) == (0, "", "NEW", [], {})


def test_columns_have_the_types_that_values_convert_to(registry: SchemaRegistry) -> None:
    registry.register_file("orders-value", ORDER)
    registered = schema_of_values(client(registry), "orders")
    assert registered is not None
    notes = InferenceNotes()
    fields = protobuf_fields(registered.schema, notes)
    assert {name: declared(kind) for name, kind in fields.items()} == TYPES
    typed = Columns.of([T.StructField(name, kind) for name, kind in fields.items()], Settings())
    values = dict(zip(fields, typed.values(decoded(registry, FULL), None), strict=True))
    assert values["large"] == 2**64 - 1
    assert values["day"] == dt.date(2024, 2, 29).toordinal() - dt.date(1970, 1, 1).toordinal()
    assert json.loads(values["parent"])["id"] == 1


def test_an_enumeration_may_have_values_that_the_schema_does_not_know(registry: SchemaRegistry) -> None:
    assert decoded(registry, Order(status=7))["status"] == "7"


def test_the_path_of_a_message_is_that_of_confluent(registry: SchemaRegistry) -> None:
    number = registry.register_file("orders-value", ORDER)
    line = message_class([*well_known(), ORDER], "shop.Order.Line")(sku="a")
    other = message_class([*well_known(), ORDER], "shop.Other")(name="b")
    head = b"\x00" + number.to_bytes(4, "big")
    messages = [
        (b"\x00", Order(id=1), ("id", 1)),
        (b"\x02\x00", Order(id=1), ("id", 1)),
        (b"\x02\x02", other, ("name", "b")),
        (b"\x04\x00\x04", line, ("sku", "a")),  # the entries of the two maps come first
    ]
    for path, message, (field, value) in messages:
        found = reader(registry).value(head + path + message.SerializeToString())
        assert json.loads(found or b"")[field] == value
    assert encoded_message(number, [1], other) == head + b"\x02\x02" + other.SerializeToString()


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (b"", "the place of its message"),
        (b"\x80", "the place of its message"),
        (b"\xff" * 20, "the place of its message"),
        (b"\x01", "the place of its message"),
        (b"\x02\x08", "has no message 4"),
        (b"\x02\x01", "has no message -1"),
        (b"\x00\x08", "does not match its Protobuf schema"),
        (b"\x00\x42\x01\xff", "does not match its Protobuf schema"),
    ],
)
def test_bytes_that_are_no_message_are_malformed(registry: SchemaRegistry, rest: bytes, why: str) -> None:
    number = registry.register_file("orders-value", ORDER)
    with pytest.raises(Malformed, match=why):
        reader(registry).value(b"\x00" + number.to_bytes(4, "big") + rest)


@pytest.mark.parametrize(
    ("field", "values", "why"),
    [
        ("at", {"seconds": 2**60}, "a timestamp that is out of range"),
        ("day", {"year": 2023, "month": 2, "day": 29}, "an invalid date"),
        ("hour", {"hours": 24}, "an invalid time of day"),
        ("price", {"value": b"\x01" * 5000}, "a decimal that is too long"),
    ],
)
def test_values_that_no_column_can_have_are_malformed(
    registry: SchemaRegistry, field: str, values: dict[str, Any], why: str
) -> None:
    message = Order()
    for name, value in values.items():
        setattr(getattr(message, field), name, value)
    with pytest.raises(Malformed, match=why):
        decoded(registry, message)


def test_values_without_a_known_schema_are_malformed_and_keys_stay(registry: SchemaRegistry) -> None:
    avro = registry.add("string")
    decoding = reader(registry)
    for data, why in (
        (b"plain", "not Protobuf preceded by"),
        (b"\x00\x00\x00\x00\x63\x00", "has no schema 99"),
        (b"\x00" + avro.to_bytes(4, "big") + b"\x00", "is of type AVRO, not PROTOBUF"),
    ):
        for _ in range(2):
            with pytest.raises(Malformed, match=why):
                decoding.value(data)
        assert decoding.key(data) == data
    assert sum("/99" in path for path in registry.asked) == 1, "a task asks for a number once"
    assert (decoding.value(None), decoding.key(None)) == (None, None)
    number = registry.register_file("orders-key", file_of({"Key": {"id": "int64"}}))
    key = message_class([file_of({"Key": {"id": "int64"}})], "shop.Key")(id=5)
    assert decoding.key(encoded_message(number, [0], key)) == b'{"id": 5}'


def test_files_that_a_schema_imports_come_from_the_registry(registry: SchemaRegistry) -> None:
    place = file_of({"Place": {"city": "string"}}, name="place.proto", package="geo")
    customer = file_of(
        {"Customer": {"home": ".geo.Place"}}, name="customer.proto", package="crm", imports=("place.proto",)
    )
    order = file_of({"Order": {"by": ".crm.Customer", "to": ".geo.Place"}}, imports=("customer.proto", "place.proto"))
    registry.register_file("place", place)
    registry.register_file("customer", customer, [("place.proto", "place")])
    references = [("customer.proto", "customer"), ("place.proto", "place")]
    number = registry.register_file("orders-value", order, references)
    made = message_class([place, customer, order], "shop.Order")(by={"home": {"city": "Ulm"}})
    found = reader(registry).value(encoded_message(number, [0], made))
    assert json.loads(found or b"") == {"by": {"home": {"city": "Ulm"}}, "to": None}


@pytest.mark.parametrize(
    ("imports", "why"),
    [(("lost.proto",), 'imports "lost.proto"'), (("google/protobuf/nothing.proto",), "which does not exist")],
)
def test_a_file_that_is_missing_is_named(registry: SchemaRegistry, imports: tuple[str, ...], why: str) -> None:
    registry.register_file("orders-value", file_of({"Order": {"id": "int64"}}, imports=imports))
    with pytest.raises(InvalidInput, match=why):
        schema_of_values(client(registry), "orders")


def test_a_registry_that_gives_text_alone_is_refused_with_the_reason(registry: SchemaRegistry) -> None:
    registry.serializes = False
    number = registry.register_file("orders-value", ORDER)
    for ask in (
        lambda: schema_of_values(client(registry), "orders"),
        lambda: reader(registry).value(encoded_message(number, [0], Order())),
    ):
        with pytest.raises(InvalidInput, match="does not return serialized Protobuf schemas"):
            ask()


def test_a_file_without_messages_and_one_that_is_wrong_are_refused(registry: SchemaRegistry) -> None:
    registry.register_file("orders-value", file_of({}))
    with pytest.raises(InvalidInput, match="has no message"):
        schema_of_values(client(registry), "orders")
    registry.register_file("orders-value", file_of({"Order": {"x": ".shop.Nothing"}}))
    with pytest.raises(InvalidInput, match="invalid Protobuf schema"):
        schema_of_values(client(registry), "orders")


def test_proto2_defaults_are_values_and_other_absent_fields_null(registry: SchemaRegistry) -> None:
    file = FileDescriptorProto(name="two.proto", package="two", syntax="proto2")
    message = file.message_type.add(name="M")
    for number, (name, default) in enumerate((("with_default", "5"), ("without", "")), start=1):
        field = message.field.add(name=name, number=number, type=FieldDescriptorProto.TYPE_INT32, label=1)
        if default:
            field.default_value = default
    found = decoded(registry, message_class([file], "two.M")(), file)
    assert found == {"with_default": 5, "without": None}


def test_descriptors_need_not_say_whether_a_named_type_is_a_message(registry: SchemaRegistry) -> None:
    bare = FileDescriptorProto()
    bare.CopyFrom(ORDER)
    for field in bare.message_type[0].field:
        if field.type_name:
            field.ClearField("type")  # as Redpanda returns them
    found = decoded(registry, FULL, bare)
    assert (found["status"], found["lines"], found["at"]) == tuple(EXPECTED[name] for name in ("status", "lines", "at"))


def test_change_records_have_an_image() -> None:
    changes = file_of({"Row": {"id": "int64"}, "Change": {"before": ".shop.Row", "after": ".shop.Row", "op": "string"}})
    image = protobuf_image(message_class([changes], "shop.Change").DESCRIPTOR)
    assert protobuf_fields(image, InferenceNotes()) == {"id": T.LongType()}
    assert protobuf_image(message_class([changes], "shop.Row").DESCRIPTOR) is None
