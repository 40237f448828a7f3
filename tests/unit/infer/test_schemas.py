"""Types from schemas, and that values of these schemas are read by the columns of these types."""

import base64
import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.infer.columns import columns_of_sample, fields_of, inferred
from calve.infer.sample import Sample, sampled
from calve.infer.schemas import avro_fields, avro_image, json_schema_fields
from calve.infer.value_types import InferenceNotes, declared
from calve.model.spec import Debezium, Envelope, NoEnvelope
from calve.records.documents import codings_of, is_wrapped, parsed
from calve.records.scalars import Settings
from calve.records.strict import Columns
from calve.source.kafka.avro import Avro, AvroReader, parsed_schema
from calve.source.kafka.registry import RegisteredSchema


def shown(fields: dict[str, T.DataType]) -> dict[str, str]:
    return {name: declared(kind) for name, kind in fields.items()}


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(4, "big", signed=True)).decode()


def change(schema: list[dict[str, Any]], row: dict[str, Any], *, wrapped: bool = True) -> bytes:
    payload = {"before": None, "after": row, "op": "c", "ts_ms": 5, "source": {"lsn": 7}}
    if not wrapped:
        return json.dumps(payload).encode()
    parts = [{"type": "struct", "fields": schema, "optional": True, "field": image} for image in ("before", "after")]
    return json.dumps({"schema": {"type": "struct", "fields": parts}, "payload": payload}).encode()


def of_sample(*records: bytes, envelope: Envelope | None = None) -> tuple[dict[str, str], InferenceNotes]:
    sample, notes = Sample("", tuple(sampled(record) for record in records)), InferenceNotes()
    found = columns_of_sample(sample, envelope or Debezium(), (), notes)
    assert inferred(sample, found, (), envelope or Debezium(), notes).problems == ()
    return shown(found), notes


def test_debeziums_schema_part_gives_types_that_its_values_convert_to() -> None:
    name = "io.debezium.time."
    fields: list[dict[str, Any]] = [
        {"field": "id", "type": "int64"},
        {"field": "small", "type": "int16"},
        {
            "field": "price",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        },
        {
            "field": "rate",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "4"},
        },
        {"field": "free", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
        {"field": "day", "type": "int32", "name": f"{name}Date"},
        {"field": "ms", "type": "int64", "name": f"{name}Timestamp"},
        {"field": "us", "type": "int64", "name": f"{name}MicroTimestamp"},
        {"field": "ns", "type": "int64", "name": f"{name}NanoTimestamp"},
        {"field": "zoned", "type": "string", "name": f"{name}ZonedTimestamp"},
        {"field": "at", "type": "int64", "name": f"{name}MicroTime"},
        {"field": "tags", "type": "array", "items": {"type": "string"}},
        {"field": "more", "type": "map", "keys": {"type": "string"}, "values": {"type": "double"}},
        {"field": "place", "type": "struct", "fields": [{"field": "x", "type": "float64"}]},
        {"field": "doc", "type": "string", "name": "io.debezium.data.Json"},
        {"field": "raw", "type": "bytes"},
        {"field": "nothing", "type": "string"},
    ]
    row = {
        "id": 1,
        "small": 2,
        "price": unscaled(1234),
        "rate": unscaled(5),
        "free": {"scale": 3, "value": unscaled(1500)},
        "day": 20_000,
        "ms": 1_767_225_600_000,
        "us": 1_767_225_600_000_000,
        "ns": 1_767_225_600_000_000_000,
        "zoned": "2026-01-01T00:00:00.5Z",
        "at": 3_600_000_000,
        "tags": ["a", None],
        "more": {"a": 0.5},
        "place": {"x": 1.5},
        "doc": "{}",
        "raw": "AAE=",
        "nothing": None,
    }
    found, notes = of_sample(change(fields, row))
    assert found == {
        "id": "BIGINT",
        "small": "SMALLINT",
        "price": "DECIMAL(12,2)",
        "rate": "DECIMAL(38,4)",
        "free": "DECIMAL(38,10)",
        "day": "DATE",
        "ms": "TIMESTAMP_NTZ",
        "us": "TIMESTAMP_NTZ",
        "ns": "TIMESTAMP_NTZ",
        "zoned": "TIMESTAMP",
        "at": "BIGINT",
        "tags": "ARRAY<STRING>",
        "more": "MAP<STRING, DOUBLE>",
        "place": "STRUCT<x: DOUBLE>",
        "doc": "STRING",
        "raw": "BINARY",
        "nothing": "STRING",
    }
    assert notes.by_column["at"] == "microseconds since midnight: declare TIME to convert them"


def test_a_schema_part_that_changes_gives_the_wider_type_and_all_columns() -> None:
    before = change([{"field": "id", "type": "int32"}], {"id": 1})
    after = change([{"field": "id", "type": "int64"}, {"field": "v", "type": "string"}], {"id": 2, "v": "x"})
    found, _ = of_sample(before, after)
    assert found == {"id": "BIGINT", "v": "STRING"}


def test_debezium_records_without_a_schema_part_have_the_columns_of_their_rows() -> None:
    found, _ = of_sample(change([], {"id": 1, "v": "x"}, wrapped=False))
    assert found == {"id": "BIGINT", "v": "STRING"}
    with pytest.raises(InvalidInput, match="neither before nor after"):
        of_sample(b'{"id": 1}')


AVRO = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "n", "type": ["null", "int"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "nanos", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "marked", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {
            "name": "to",
            "type": {"type": "record", "name": "Place", "fields": [{"name": "city", "type": ["null", "string"]}]},
        },
        {"name": "from", "type": ["null", "Place"]},
        {"name": "parent", "type": ["null", "shop.Order"]},
    ],
}
ORDER = {
    "id": 1,
    "n": None,
    "price": Decimal("12.34"),
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 1, 2, 3, 4, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 1, 2, 3),  # noqa: DTZ001 - a local time
    "nanos": 5,
    "marked": 1_767_225_600_000_000,
    "clock": time(1, 2, 3),
    "kind": "B",
    "raw": b"ab",
    "either": 5,
    "tags": ["x"],
    "more": {"a": 1.5},
    "to": {"city": "Jena"},
    "from": None,
    "parent": None,
}
TYPES = {
    "id": "BIGINT",
    "n": "INT",
    "price": "DECIMAL(12,2)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "nanos": "BIGINT",
    "marked": "TIMESTAMP_NTZ",
    "clock": "STRING",
    "kind": "STRING",
    "raw": "BINARY",
    "either": "STRING",
    "tags": "ARRAY<STRING>",
    "more": "MAP<STRING, DOUBLE>",
    "to": "STRUCT<city: STRING>",
    "from": "STRUCT<city: STRING>",
    "parent": "STRING",
}


def test_an_avro_schema_gives_types_that_its_decoded_values_convert_to() -> None:
    text = json.dumps(AVRO)
    fields = avro_fields(parsed_schema(text), InferenceNotes())
    assert shown(fields) == TYPES
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {**ORDER, "parent": ORDER})
    decoded = parsed(AvroReader(Avro(schema=text)).value(out.getvalue()) or b"")
    assert is_wrapped(decoded)
    columns = Columns.of([T.StructField(name, kind) for name, kind in fields.items()], Settings())
    values = dict(
        zip(columns.names, columns.values(decoded["payload"], codings_of(decoded["schema"]["fields"])), strict=True)
    )
    assert values["price"] == Decimal("12.34")
    assert values["marked"] == 1_767_225_600_000_000
    assert values["parent"].startswith('{"id":1')


def test_avro_change_records_have_the_columns_of_after() -> None:
    row = {"type": "record", "name": "db.t.Value", "fields": [{"name": "id", "type": "int"}]}
    fields: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "db.t.Value"]},
        {"name": "op", "type": "string"},
    ]
    schema = parsed_schema(json.dumps({"type": "record", "name": "db.t.Envelope", "fields": fields}))
    assert shown(avro_fields(avro_image(schema), InferenceNotes())) == {"id": "INT"}
    assert avro_image(parsed_schema(json.dumps(row))) is None
    with pytest.raises(InvalidInput, match="not one of Debezium's change records"):
        fields_of(RegisteredSchema("s", 1, "AVRO", parsed_schema(json.dumps(row))), Debezium(), InferenceNotes())


def test_a_json_schema_gives_columns_and_follows_its_references() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "ratio": {"oneOf": [{"type": "null"}, {"type": "number"}]},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "to": {"$ref": "#/definitions/place"},
            "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "any": {},
        },
        "definitions": {"place": {"type": "object", "properties": {"next": {"$ref": "#/definitions/place"}}}},
    }
    assert shown(json_schema_fields(json.dumps(schema), InferenceNotes(), changes=False)) == {
        "id": "BIGINT",
        "ratio": "DOUBLE",
        "at": "TIMESTAMP",
        "tags": "ARRAY<STRING>",
        "to": "STRUCT<next: STRING>",
        "more": "MAP<STRING, BOOLEAN>",
        "any": "STRING",
    }


def test_a_schema_of_a_format_that_sources_do_not_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="THRIFT") as caught:
        fields_of(RegisteredSchema("orders-value", 1, "THRIFT", "struct Order {}"), NoEnvelope(), InferenceNotes())
    assert caught.value.detail == "Sources read JSON, Avro and Protobuf."


def test_a_json_text_after_the_id_of_a_schema_is_read() -> None:
    assert parsed(b'\x00\x00\x00\x00\x07{"id": 1}') == {"id": 1}
