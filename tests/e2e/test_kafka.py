"""Topics of a real broker into tables, read back by DuckDB."""

import json
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql import SparkSession

from calve.api.verify import verify
from calve.errors import CalveError, InvalidInput, SourceLost, TransientError
from calve.model.health import SourcePart
from calve.pipeline.supervisor import Ending, SinkResult
from calve.source.kafka import brokers
from calve.watch.status_files import read_statuses
from tests.support.messages import file_of, message_class
from tests.support.pipelines import Pipelines, eventually
from tests.support.readers import ROOT, spark_iceberg_rows
from tests.support.servers.kafka import (
    AUTHORITY,
    CLIENT,
    CLIENT_KEY,
    CLIENT_KEY_PASSWORD,
    PASSWORD,
    STRANGER,
    USER,
    Kafka,
    Message,
)
from tests.support.servers.registry import PASSWORD as REGISTRY_PASSWORD
from tests.support.servers.registry import USER as REGISTRY_USER
from tests.support.servers.registry import SchemaRegistry, encoded_message

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
COLUMNS = "id BIGINT NOT NULL, value STRING, PRIMARY KEY (id) NOT ENFORCED"
UPSERT = "FORMAT JSON ENVELOPE UPSERT"
SINK = """CREATE SINK s FROM o TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "t" """
SECOND_ONE = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
LETTERS = ("topic", "partition", "offset", "key", "value", "reason")


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    running = SchemaRegistry()
    yield running
    running.stop()


def source(kafka: Kafka, topic: str, rest: str, columns: str = COLUMNS, options: str = "") -> str:
    """Statements of a source, with all that it needs."""
    connection = f"CREATE CONNECTION k TO KAFKA (BROKER = '{kafka.brokers}');"
    topic = f"KAFKA CONNECTION k (TOPIC = '{topic}'{options})"
    return f"{LAKE} {connection} CREATE SOURCE o ({columns}) FROM {topic} {rest};"


def upsert(key: int, value: Any) -> Message:
    return {"id": key}, None if value is None else {"id": key, "value": value}


def done(results: list[SinkResult]) -> None:
    assert [(r.ending, r.cause) for r in results] == [(Ending.DONE, None)]


def cause_of(results: list[SinkResult]) -> CalveError:
    (result,) = results
    assert isinstance(result.cause, CalveError)
    return result.cause


def test_upserts_follow_their_offsets_and_null_values_delete(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    kafka.send(topic, [upsert(1, "a"), upsert(2, "b"), upsert(1, "c"), upsert(2, None)], partition=0)
    kafka.send(topic, [({"id": 11}, {"value": "x"}), upsert(12, "y"), (b"12", {"value": "z"})], partition=1)
    done(pipelines.run(source(kafka, topic, UPSERT, options=", MAX OFFSETS PER CHECKPOINT = 3") + SINK))
    assert pipelines.rows("x.t") == [(1, "c"), (11, "x"), (12, "z")]
    kafka.send(topic, [upsert(12, "gone")], partition=1, transaction="abort")
    kafka.send(topic, [upsert(12, None), upsert(2, "again")], partition=1, transaction="commit")
    shutil.rmtree(pipelines.home / "state")  # the table alone says where to go on
    done(pipelines.run())
    assert pipelines.rows("x.t") == [(1, "c"), (2, "again"), (11, "x")]
    snapshots = len(pipelines.table("x.t").snapshots())
    done(pipelines.run())
    assert len(pipelines.table("x.t").snapshots()) == snapshots, "nothing new, nothing committed"


def wrapped(value: Any) -> Any:
    """With the schema part that connectors send unless told otherwise."""
    at = {"field": "at", "type": "int64", "name": "io.debezium.time.Timestamp"}
    image = {"type": "struct", "fields": [{"field": "id", "type": "int64"}, at]}
    schema = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
    return {"schema": schema, "payload": value}


def test_change_records_come_with_and_without_a_wrapper_and_with_what_is_known_of_them(
    pipelines: Pipelines, kafka: Kafka
) -> None:
    topic, moment = kafka.topic(), datetime(2026, 1, 31, 12, tzinfo=UTC)
    millis = round(moment.timestamp() * 1000)
    changes = [
        ({"id": 1}, wrapped({"op": "r", "before": None, "after": {"id": 1, "at": millis}})),
        ({"id": 2}, wrapped({"op": "c", "before": None, "after": {"id": 2, "at": millis}})),
        ({"id": 3}, {"op": "c", "before": None, "after": {"id": 3, "at": millis * 1000}}),
        ({"id": 2}, wrapped({"op": "d", "before": {"id": 2, "at": millis}, "after": None})),
        ({"id": 2}, None),
        ({"id": 3}, {"op": "u", "before": {"id": 3, "at": 0}, "after": {"id": 4, "at": millis * 1000}}),
    ]
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # brokers count milliseconds
    kafka.send(topic, changes, headers={"h": b"\xff"})
    columns = "id BIGINT NOT NULL, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED"
    include = "INCLUDE KEY AS k, PARTITION, OFFSET, TIMESTAMP AS sent, HEADERS, TOPIC"
    done(pipelines.run(source(kafka, topic, f"FORMAT JSON {include} ENVELOPE DEBEZIUM", columns) + SINK))
    location = pipelines.table("x.t").metadata_location
    found = sorted(spark_iceberg_rows(location), key=lambda row: int(row["id"]))
    assert [(r["id"], r["at"], r["k"], r["partition"], r["offset"], r["topic"]) for r in found] == [
        (1, moment, '{"id": 1}', 0, 0, topic),
        (4, moment, '{"id": 3}', 0, 5, topic),
    ]
    assert all(before <= row["sent"] <= datetime.now(UTC) for row in found)
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in found] == [[("h", b"\xff")]] * 2
    assert pipelines.rows("x.t", "id", "offset") == [(1, 0), (4, 5)]


def test_the_example_runs(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic()
    row = {"id": 1, "customer": 7, "amount": "12.50"}
    kafka.send(topic, [({"id": 1}, {"op": "c", "before": None, "after": row}), ({"id": 2}, b"?")])
    text = (ROOT / "examples" / "kafka.sql").read_text()
    done(pipelines.run(text.replace("localhost:9092", kafka.brokers).replace("shop.public.orders", topic)))
    assert pipelines.rows("shop.orders", "id", "customer", "amount") == [(1, 7, Decimal("12.50"))]
    assert pipelines.rows("shop.orders_dead_letters", "offset", "value") == [(1, b"?")]


def run_by_registry(pipelines: Pipelines, kafka: Kafka, topic: str, encoding: str, registry: SchemaRegistry) -> None:
    columns = "id BIGINT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED"
    login = f"USER = '{REGISTRY_USER}', PASSWORD = SECRET p"
    form = f"FORMAT {encoding} USING SCHEMA REGISTRY (URL = '{registry.uri}', {login}) ENVELOPE UPSERT"
    secret = f"CREATE SECRET p AS '{REGISTRY_PASSWORD}';"
    dead = "WITH (ON BAD ROW = 'dead letter', DEAD LETTER TABLE = 'x.bad')"
    done(pipelines.run(secret + source(kafka, topic, form, columns) + SINK + dead))


def test_avro_is_read_by_the_schemas_of_a_registry_as_they_change(
    pipelines: Pipelines, kafka: Kafka, registry: SchemaRegistry
) -> None:
    topic = kafka.topic()
    key = registry.add({"type": "record", "name": "k", "fields": [{"name": "id", "type": "long"}]})
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    moment = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
    first = [{"name": "id", "type": "long"}, {"name": "amount", "type": ["null", amount], "default": None}]
    second = [*first, {"name": "at", "type": ["null", moment], "default": None}]
    old, new = (registry.add({"type": "record", "name": "v", "fields": fields}) for fields in (first, second))
    keys = {n: registry.encoded(key, {"id": n}) for n in (1, 2, 3)}
    kafka.send(
        topic,
        [
            (keys[1], registry.encoded(old, {"id": 1, "amount": Decimal("1.50")})),
            (keys[2], registry.encoded(old, {"id": 2, "amount": None})),
            (keys[3], registry.encoded(new, {"id": 3, "amount": None, "at": 1_000_000})),
            (keys[2], None),
            (struct.pack(">q", 7), registry.encoded(new, {"id": 4, "amount": None, "at": None})),
            (keys[1], b"\x00\x00\x00\x00\x63what"),
            (keys[1], b"plain"),
        ],
    )
    run_by_registry(pipelines, kafka, topic, "AVRO", registry)
    assert pipelines.rows("x.t") == [(1, Decimal("1.50"), None), (3, None, SECOND_ONE), (4, None, None)]
    letters = pipelines.rows("x.bad", *LETTERS)
    assert [row[2:5] for row in letters] == [(5, keys[1], b"\x00\x00\x00\x00\x63what"), (6, keys[1], b"plain")]
    assert letters[0][5] == "the schema registry has no schema 99"
    asked = [path for path in registry.asked if path != "/subjects"]
    assert len(asked) <= 2 * 5, "a task asks for a number once"


def test_protobuf_is_read_by_the_schemas_of_a_registry_as_they_change(
    pipelines: Pipelines, kafka: Kafka, registry: SchemaRegistry
) -> None:
    topic, imports = kafka.topic(), ("google/protobuf/timestamp.proto",)
    time_file = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time_file)
    fields = {"id": "int64", "amount": "optional string", "at": ".google.protobuf.Timestamp"}
    first = file_of({"Order": {"id": "int64", "amount": "optional string"}}, imports=imports)
    second = file_of({"Head": {"n": "int32"}, "Order": fields}, imports=imports)
    key_file = file_of({"Key": {"id": "int64"}})
    numbers = [registry.register_file(f"{topic}-value", file) for file in (first, second)]
    key_number = registry.register_file(f"{topic}-key", key_file)
    old, new = (message_class([time_file, file], "shop.Order") for file in (first, second))
    key = message_class([key_file], "shop.Key")
    keys = {n: encoded_message(key_number, [0], key(id=n)) for n in (1, 2, 3)}
    timed = new(id=3)
    timed.at.seconds = 1
    kafka.send(
        topic,
        [
            (keys[1], encoded_message(numbers[0], [0], old(id=1, amount="1.50"))),
            (keys[2], encoded_message(numbers[0], [0], old(id=2))),
            (keys[3], encoded_message(numbers[1], [1], timed)),
            (keys[2], None),
            (keys[1], b"\x00\x00\x00\x00\x63\x00what"),
            (keys[1], b"plain"),
        ],
    )
    run_by_registry(pipelines, kafka, topic, "PROTOBUF", registry)
    assert pipelines.rows("x.t") == [(1, Decimal("1.50"), None), (3, None, SECOND_ONE)]
    letters = pipelines.rows("x.bad", *LETTERS)
    assert [row[2:5] for row in letters] == [(4, keys[1], b"\x00\x00\x00\x00\x63\x00what"), (5, keys[1], b"plain")]
    assert letters[0][5] == "the schema registry has no schema 99"


def test_every_record_is_a_row_without_an_envelope_from_where_reading_began(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    kafka.send(topic, [upsert(1, "old"), upsert(2, "old")])
    statements = source(kafka, topic, "FORMAT JSON ENVELOPE NONE", options=", START OFFSETS = 'latest'")
    done(pipelines.run(statements + SINK + "MODE APPEND"))
    kafka.send(topic, [upsert(3, "new"), upsert(3, "new")])
    time.sleep(0.01)  # of the broker's clock, in milliseconds
    moment = datetime.now(UTC).isoformat()
    kafka.send(topic, [upsert(4, "newer")], partition=1)
    other = """CREATE SOURCE p (id BIGINT) FROM KAFKA CONNECTION k (TOPIC = '{0}', START OFFSETS = '{1}') FORMAT JSON;
        CREATE SINK {2} FROM p{2} TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "{2}" MODE APPEND;"""
    for name, start in (("later", moment), ("given", '{"0": 3}')):
        pipelines.apply(other.replace("SOURCE p", f"SOURCE p{name}").format(topic, start, name))
    assert all(result.cause is None for result in pipelines.run())
    assert pipelines.rows("x.t", "id", "value") == [(3, "new"), (3, "new"), (4, "newer")]
    assert pipelines.rows("x.later", "id") == [(4,)]
    assert pipelines.rows("x.given", "id") == [(3,), (4,)]


def test_rows_with_times_and_multiplicities_add_up(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic()
    rows = [(1, "a", 1, 1), (1, "a", 2, -1), (1, "b", 2, 1), (2, "c", 2, 1), (2, "c", 3, -1)]
    sent = [{"id": key, "value": value, "at": at, "diff": diff} for key, value, at, diff in rows]
    kafka.send(topic, [(None, record) for record in [*sent, {"at": 4, "done": True}]])
    form = "FORMAT JSON ENVELOPE DIFF (TIME at, DIFF diff, PROGRESS done)"
    done(pipelines.run(source(kafka, topic, form) + SINK))
    assert pipelines.rows("x.t") == [(1, "b")]


def test_partitions_that_are_added_are_read_from_their_beginning(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, [upsert(1, "a")])
    done(pipelines.run(source(kafka, topic, UPSERT) + SINK))
    kafka.widen(topic, 3)
    kafka.send(topic, [upsert(2, "b")], partition=2)
    done(pipelines.run())
    assert pipelines.rows("x.t") == [(1, "a"), (2, "b")]
    assert verify(pipelines.place, "s").none
    kafka.forget(topic, before=1)
    done(pipelines.run())
    (status,) = read_statuses(pipelines.home)
    ends = [(f"{topic} 0", 1, 1, 1), (f"{topic} 1", 0, 0, 0), (f"{topic} 2", 1, 1, 0)]
    assert status.source == tuple(SourcePart(*part) for part in ends)
    assert status.source_keeps_ms == timedelta(days=7) // timedelta(milliseconds=1)
    assert (status.unread, status.unread_most, status.retention_left) == (0, 0, None)


def test_how_long_a_topic_keeps_records_is_known_unless_it_is_for_ever(kafka: Kafka) -> None:
    hour = 3_600_000
    for settings, kept in (
        ({"retention.ms": str(hour)}, hour),
        ({"retention.ms": str(hour), "cleanup.policy": "compact,delete"}, hour),
        ({"retention.ms": str(hour), "cleanup.policy": "compact"}, None),
        ({"retention.ms": "-1"}, None),
    ):
        topic, asked = kafka.topic(settings=settings), brokers.Brokers(brokers.BrokerAccess(kafka.brokers))
        eventually(lambda topic=topic, asked=asked: settles(lambda: asked._retention_ms(topic)))  # type: ignore[misc]
        assert asked.retention_ms(topic) == kept
    assert brokers.Brokers(brokers.BrokerAccess(kafka.brokers)).retention_ms("nothing") is None


def settles(ask: Callable[[], object]) -> bool:
    """Whether brokers know a new topic by now."""
    try:
        ask()
    except KafkaException:
        return False
    return True


def recreated(kafka: Kafka, topic: str) -> None:
    kafka.remove(topic)
    kafka.topic(name=topic)
    kafka.send(topic, [upsert(7, "other") for _ in range(5)])


def removed(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, [upsert(5, "lost"), upsert(6, "kept")])
    kafka.forget(topic, before=3)


LOSSES: dict[str, tuple[Callable[[Kafka, str], None], str]] = {
    "recreated": (recreated, r"Its id was \S+ and is now \S+"),
    "retention": (removed, "Offset 2 of partition 0 comes next, and the partition now starts at 3"),
    "gone": (lambda kafka, topic: kafka.remove(topic), "Brokers: "),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_topic_that_lost_what_comes_next_halts_the_sink(
    pipelines: Pipelines, kafka: Kafka, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "UNKNOWN_SECONDS", 1.0)
    harm, words = LOSSES[loss]
    topic = kafka.topic()
    kafka.send(topic, [upsert(1, "a"), upsert(2, "b")])
    done(pipelines.run(source(kafka, topic, UPSERT) + SINK))
    harm(kafka, topic)
    cause = cause_of(pipelines.run())
    assert isinstance(cause, SourceLost)
    assert topic in cause.primary
    assert re.search(words, cause.detail)
    assert pipelines.rows("x.t") == [(1, "a"), (2, "b")]


def test_brokers_and_topics_that_cannot_be_reached_are_refused_when_they_are_named(
    pipelines: Pipelines, kafka: Kafka
) -> None:
    topic = kafka.topic()
    guarded = f"""CREATE CONNECTION g TO KAFKA (BROKER = '{kafka.guarded}', SECURITY PROTOCOL = 'sasl_plaintext',
        SASL MECHANISM = 'plain', SASL USERNAME = '{USER}', SASL PASSWORD = """
    started = time.monotonic()
    with pytest.raises(TransientError, match="Connection refused"):
        pipelines.apply("CREATE CONNECTION k TO KAFKA (BROKER = '127.0.0.1:1')")
    with pytest.raises(TransientError, match="Authentication failed"):
        pipelines.apply(f"{guarded} 'wolfram-wrong-password')")
    assert time.monotonic() - started < 30
    pipelines.apply(f"{guarded} '{PASSWORD}')")
    with pytest.raises(InvalidInput, match=f'no topic "{topic}s"(.|\n)*Did you mean "{topic}"'):
        pipelines.apply(f"CREATE SOURCE o ({COLUMNS}) FROM KAFKA CONNECTION g (TOPIC = '{topic}s') {UPSERT}")
    kafka.send(topic, [upsert(1, "a")])
    done(
        pipelines.run(
            f"{LAKE} CREATE SOURCE o ({COLUMNS}) FROM KAFKA CONNECTION g (TOPIC = '{topic}') {UPSERT}; {SINK}"
        )
    )
    encrypted = f"""CREATE CONNECTION e TO KAFKA (BROKER = '{kafka.encrypted}', SECURITY PROTOCOL = 'sasl_ssl',
        SASL MECHANISM = 'scram-sha-256', SASL USERNAME = '{USER}', SASL PASSWORD = '{PASSWORD}',
        SSL CERTIFICATE AUTHORITY = """
    with pytest.raises(TransientError, match="certificate verify failed"):
        pipelines.apply(f"{encrypted} '{STRANGER}')")
    pipelines.apply(f"{encrypted} '{AUTHORITY.read_text()}')")
    pipelines.apply(f"CREATE SOURCE p ({COLUMNS}) FROM KAFKA CONNECTION e (TOPIC = '{topic}') {UPSERT}")
    pipelines.apply(SINK.replace("s FROM o", "e FROM p").replace('"t"', '"e"'))
    assert all(result.cause is None for result in pipelines.run())
    assert pipelines.rows("x.e") == pipelines.rows("x.t") == [(1, "a")]
    certified = f"""CREATE CONNECTION c TO KAFKA (BROKER = '{kafka.certified}', SECURITY PROTOCOL = 'ssl',
        SSL CERTIFICATE AUTHORITY = '{AUTHORITY}'"""
    with pytest.raises(TransientError):
        pipelines.apply(f"{certified})")
    login = f"""SSL CERTIFICATE = '{CLIENT.read_text()}', SSL KEY = '{CLIENT_KEY.read_text()}', SSL KEY PASSWORD = """
    with pytest.raises(InvalidInput, match=r"wrong password(.|\n)*Check SSL KEY PASSWORD"):
        pipelines.apply(f"{certified}, {login} 'wolfram-wrong-password')")
    pipelines.apply(f"{certified}, {login} '{CLIENT_KEY_PASSWORD}')")
    pipelines.apply(f"CREATE SOURCE q ({COLUMNS}) FROM KAFKA CONNECTION c (TOPIC = '{topic}') {UPSERT}")
    pipelines.apply(SINK.replace("s FROM o", "c FROM q").replace('"t"', '"c"'))
    assert all(result.cause is None for result in pipelines.run())
    assert pipelines.rows("x.c") == pipelines.rows("x.t")
    for secret in (PASSWORD, CLIENT_KEY_PASSWORD, CLIENT_KEY.read_text().splitlines()[1]):
        kept = [path for path in pipelines.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
        assert {path.parent.name for path in kept} == {"secrets"}


def test_bad_rows_stop_the_sink_or_become_letters(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, [upsert(1, "a"), (b"k", b"{not json"), upsert(2, "b"), ({"id": 3}, {"id": "x"}), (b"?", None)])
    halted = cause_of(pipelines.run(source(kafka, topic, UPSERT) + SINK))
    assert f"topic {topic} partition 0 offset" in halted.detail
    assert "origin" not in str(halted)
    done(pipelines.run("ALTER SINK s SET (ON BAD ROW = 'dead letter')"))
    assert pipelines.rows("x.t") == [(1, "a"), (2, "b")]
    letters = pipelines.rows("x.t_dead_letters", *LETTERS)
    assert [row[:5] for row in letters] == [
        (topic, 0, 1, b"k", b"{not json"),
        (topic, 0, 3, b'{"id": 3}', b'{"id": "x"}'),
        (topic, 0, 4, b"?", None),
    ]
    assert 'column "id" is "x", which is not BIGINT' in letters[1][5]
    status = json.loads((pipelines.home / "status" / "s.json").read_text())
    assert status["dead_letters"] == 3
    assert verify(pipelines.place, "s").none
    shutil.rmtree(pipelines.home / "state")
    kafka.send(topic, [(b"k", b"{not json")])
    done(
        pipelines.run(
            "ALTER SOURCE o SET (MAX OFFSETS PER CHECKPOINT = 2); ALTER SINK s SET FROM o WITH (SNAPSHOT = true)"
        )
    )
    assert [row[2] for row in pipelines.rows("x.t_dead_letters", *LETTERS)] == [1, 3, 4, 5], "read again, kept once"
