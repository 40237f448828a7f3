"""Columns of topics of a real broker, from records and from a schema registry; no Spark."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from calve.cli.main import app
from calve.definitions.workplace import workplace
from calve.errors import InvalidInput
from calve.sql.parser import parse
from calve.sql.statements import CreateSource
from calve.statements.answers import TextAnswer
from calve.statements.execute import execute
from calve.statements.reconcile import apply, plan
from tests.support.messages import file_of, message_class
from tests.support.servers.kafka import Kafka
from tests.support.servers.registry import PASSWORD, USER, SchemaRegistry, encoded_message

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    ],
}
KEY = {"type": "record", "name": "shop.Key", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    running = SchemaRegistry()
    yield running
    running.stop()


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


def columns_of(home: Path, text: str) -> list[str]:
    """Run statements; the columns of source `s` afterwards."""
    place = workplace(home, no_spark, {"P": PASSWORD})
    list(apply(place, plan(place, parse(text))))
    shown = execute(place, parse("SHOW CREATE SOURCE s")[0])
    assert isinstance(shown, TextAnswer)
    (source,) = parse(shown.text)
    assert isinstance(source, CreateSource)
    return [column.to_sql() for column in source.columns]


def proposed(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["init", *arguments, "-o", "-"], env={"CALVE_REGISTRY_PASSWORD": PASSWORD})
    assert found.exit_code == 0, found.exception
    parse(found.output)
    return found.output


def test_records_of_a_topic_give_columns_and_their_keys_the_key(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, [({"nr": 1}, {"v": "a", "at": "2026-01-01T00:00:00Z"}), ({"nr": 2}, None)])
    kafka.send(topic, [({"nr": 3}, {"v": None, "n": 5}), (b"x", b"not json")], partition=1)
    connection = f"CREATE CONNECTION k TO KAFKA (BROKER = '{kafka.brokers}');"
    source = f"FROM KAFKA CONNECTION k (TOPIC = '{topic}') FORMAT JSON INCLUDE OFFSET ENVELOPE UPSERT INFER"
    found = columns_of(tmp_path, f"{connection} CREATE SOURCE s (PRIMARY KEY (nr) NOT ENFORCED) {source}")
    assert found == ["nr BIGINT", "v STRING", "at TIMESTAMP", "n BIGINT"]


def test_a_pipeline_for_debezium_records_has_the_key_of_the_messages(kafka: Kafka) -> None:
    topic = kafka.topic(name="db.shop.customers")
    change = {"before": None, "after": {"id": 7, "sku": "a"}, "op": "c", "ts_ms": 1}
    kafka.send(topic, [({"sku": "a"}, change), ({"sku": "a"}, None)])
    text = proposed(topic, "--broker", kafka.brokers)
    assert "1 partition, 2 records" in text
    assert "CREATE SOURCE customers (\n  id BIGINT,\n  sku STRING NOT NULL," in text
    assert "PRIMARY KEY (sku) NOT ENFORCED  -- guess: the key: the keys of the topic's records" in text
    assert "FORMAT JSON\n-- guess: records have before, after and op\nENVELOPE DEBEZIUM;" in text


def test_a_registry_gives_columns_also_while_the_topic_is_empty(
    kafka: Kafka, registry: SchemaRegistry, tmp_path: Path
) -> None:
    topic = kafka.topic()
    number, key = registry.register(f"{topic}-value", ORDER), registry.register(f"{topic}-key", KEY)
    options = ["--broker", kafka.brokers, "--registry", registry.uri, "--registry-user", USER]
    text = proposed(topic, *options)
    assert f"schema {topic}-value version 1, 1 partition, 0 records" in text
    assert "  id BIGINT NOT NULL,\n  amount DECIMAL(12,2),\n  PRIMARY KEY (id) NOT ENFORCED" in text
    assert PASSWORD not in text
    assert "CREATE SECRET registry_password FROM ENV 'CALVE_REGISTRY_PASSWORD';" in text
    kafka.send(topic, [(registry.encoded(key, {"id": 1}), registry.encoded(number, {"id": 1, "amount": Decimal(5)}))])
    assert "ENVELOPE UPSERT" in proposed(topic, *options)
    login = f"URL = '{registry.uri}', USER = '{USER}', PASSWORD = SECRET p"
    found = columns_of(
        tmp_path,
        f"""
        CREATE SECRET p FROM ENV 'P';
        CREATE CONNECTION k TO KAFKA (BROKER = '{kafka.brokers}');
        CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC = '{topic}') FORMAT AVRO USING SCHEMA REGISTRY ({login}) INFER;
        """,
    )
    assert found == ["id BIGINT", "amount DECIMAL(12,2)"]


def test_messages_of_protobuf_give_columns_and_the_pipeline_reads_them(
    kafka: Kafka, registry: SchemaRegistry, tmp_path: Path
) -> None:
    topic = kafka.topic()
    order = file_of({"Shop": {"name": "string"}, "Order": {"id": "int64", "tags": "repeated string", "paid": "bool"}})
    number = registry.register_file(f"{topic}-value", order)
    key = registry.register_file(f"{topic}-key", file_of({"Key": {"id": "int64"}}))
    options = ["--broker", kafka.brokers, "--registry", registry.uri, "--registry-user", USER]
    without = proposed(topic, *options)
    assert f"schema {topic}-value version 1, message shop.Shop, 1 partition, 0 records" in without
    assert "  name STRING" in without
    keys, orders = message_class([file_of({"Key": {"id": "int64"}})], "shop.Key"), message_class([order], "shop.Order")
    kafka.send(topic, [(encoded_message(key, [0], keys(id=1)), encoded_message(number, [1], orders(id=1, tags=["a"])))])
    text = proposed(topic, *options)
    assert f"schema {topic}-value version 1, message shop.Order, 1 partition, 1 record" in text
    assert "  id BIGINT NOT NULL,\n  tags ARRAY<STRING>,\n  paid BOOLEAN,\n  PRIMARY KEY (id) NOT ENFORCED" in text
    assert f"FORMAT PROTOBUF USING SCHEMA REGISTRY (URL = '{registry.uri}', USER = '{USER}'" in text
    assert "cannot be read" not in text
    login = f"URL = '{registry.uri}', USER = '{USER}', PASSWORD = SECRET p"
    statements = f"""
        CREATE SECRET p FROM ENV 'P';
        CREATE CONNECTION k TO KAFKA (BROKER = '{kafka.brokers}');
        CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC = '{topic}') FORMAT PROTOBUF USING SCHEMA REGISTRY ({login})
        INFER;
        """
    assert columns_of(tmp_path, statements) == ["id BIGINT", "tags ARRAY<STRING>", "paid BOOLEAN"]


def test_records_with_the_id_of_a_json_schema_are_json(kafka: Kafka, registry: SchemaRegistry) -> None:
    topic = kafka.topic()
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string", "format": "date"}}}
    number = registry.register(f"{topic}-value", schema, "JSON")
    value = json.dumps({"id": 1, "at": "2026-01-31"}).encode()
    kafka.send(topic, [(None, b"\x00" + number.to_bytes(4, "big") + value)])
    options = ["--broker", kafka.brokers, "--registry", registry.uri, "--registry-user", USER]
    text = proposed(topic, *options)
    assert "  id BIGINT NOT NULL,\n  at DATE,\n" in text
    assert "FORMAT JSON\n" in text
    assert "cannot be read" not in text


def test_what_cannot_be_read_is_an_error_with_a_way_on(kafka: Kafka, registry: SchemaRegistry) -> None:
    topic = kafka.topic()
    registry.register(f"{topic}-value", {}, "THRIFT")
    run = CliRunner(env={"CALVE_REGISTRY_PASSWORD": PASSWORD})
    found = run.invoke(
        app,
        ["init", topic, "--broker", kafka.brokers, "--registry", registry.uri, "--registry-user", USER, "-o", "-"],
    )
    assert isinstance(found.exception, InvalidInput)
    assert "THRIFT" in found.exception.primary
    empty = run.invoke(app, ["init", topic, "--broker", kafka.brokers, "-o", "-"])
    assert isinstance(empty.exception, InvalidInput)
    assert empty.exception.primary == f'topic "{topic}" has no records to infer columns from'
