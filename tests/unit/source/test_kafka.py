"""What of reading topics needs no broker: positions, where to begin, Avro, how letters travel."""

import io
import json
from concurrent.futures import Future
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st

from calve.clock import SystemClock
from calve.errors import BadRow, CalveError, InvalidInput, SourceLost, TransientError
from calve.model.change import Origin, letter_of
from calve.model.spec import NoEnvelope
from calve.records.documents import Malformed
from calve.source.kafka.avro import Avro, AvroReader
from calve.source.kafka.brokers import BrokerAccess, Brokers, TopicState
from calve.source.kafka.definition import Kafka, KafkaSource, StartOffsets
from calve.source.kafka.position import OffsetRange, TopicPosition, advanced, splits
from calve.source.kafka.reader import TopicReader, moment_text
from calve.spark.version import arrow_schema_of
from calve.storage.state import LocalState

offsets = st.dictionaries(st.integers(0, 9), st.integers(0, 400_000), min_size=1)


@given(offsets, st.data(), st.integers(1, 1_000_000))
def test_a_checkpoint_takes_as_many_offsets_as_it_may_and_no_more(
    start: dict[int, int], data: st.DataObject, most: int
) -> None:
    high = {p: offset + data.draw(st.integers(0, 400_000)) for p, offset in start.items()}
    end = advanced(start, high, most)
    waiting = sum(high.values()) - sum(start.values())
    assert sum(end.values()) - sum(start.values()) == min(most, waiting)
    assert all(start[p] <= end[p] <= high[p] for p in start)
    assert advanced(start, high, None) == high


@given(offsets, st.data(), st.integers(1, 16))
def test_tasks_read_every_offset_once_and_those_of_a_partition_in_order(
    start: dict[int, int], data: st.DataObject, tasks: int
) -> None:
    end = {p: offset + data.draw(st.integers(0, 400_000)) for p, offset in start.items()}
    at = dict(start)
    found = splits(start, end, tasks)
    for split in (split for task in found for split in task):
        assert at[split.partition] == split.lower < split.upper
        at[split.partition] = split.upper
    assert at == end
    assert all(found)
    assert len(found) <= 2 * tasks + 1


@given(offsets, offsets)
def test_a_position_is_what_its_text_says(upper: dict[int, int], first: dict[int, int]) -> None:
    position = TopicPosition("t", "id", upper, first)
    assert TopicPosition.of(position.to_offsets()) == position
    assert TopicPosition.of(None) is None


def test_reading_begins_where_the_text_says() -> None:
    assert StartOffsets.parse("LATEST") == StartOffsets("latest")
    assert StartOffsets.parse('{"1": 4, "0": 17}') == StartOffsets(offsets=((0, 17), (1, 4)))
    assert StartOffsets.parse("1970-01-01T00:00:01+00:00") == StartOffsets(millis=1000)
    assert StartOffsets.parse("1970-01-01T00:00:00.0009+00:00") == StartOffsets(millis=0), "records have this time"


@pytest.mark.parametrize("text", ["", "newest", '{"a": 1}', "[1]", "2026-01-31T12:00:00", "{"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="invalid start"):
        StartOffsets.parse(text)


KINDS: list[tuple[Any, Any, Any]] = [
    ("long", 2**53 + 1, 2**53 + 1),
    ("double", 0.1, 0.1),
    ("double", float("nan"), "NaN"),
    ("float", float("-inf"), "-Infinity"),
    ("bytes", b"\xff\x00", "/wA="),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.50"), "1.50"),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), "2026-01-31"),
    ({"type": "long", "logicalType": "time-micros"}, time(12, 30, 0, 5), "12:30:00.000005"),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime(2026, 1, 31, 1, 2, 3, 4, UTC),
        "2026-01-31T01:02:03.000004+00:00",
    ),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "map", "values": ["null", "int"]}, {"a": None, "b": 1}, {"a": None, "b": 1}),
    ({"type": "array", "items": "string"}, ["x"], ["x"]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), KINDS, ids=[json.dumps(k[0])[:40] for k in KINDS])
def test_avro_becomes_the_json_that_strict_rules_take(kind: Any, value: Any, expected: Any) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": ["null", kind]}]}
    assert json.loads(decoded(schema, {"f": value})) == {"f": expected}
    assert json.loads(decoded(schema, {"f": None})) == {"f": None}


def test_longs_that_a_connector_marks_as_times_come_with_their_meaning() -> None:
    marked = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    inner = {"type": "record", "name": "v", "fields": [{"name": "at", "type": ["null", marked]}]}
    fields = [{"name": "before", "type": ["null", inner]}, {"name": "after", "type": ["null", "v"]}]
    schema = {"type": "record", "name": "e", "fields": fields}
    found = json.loads(decoded(schema, {"before": None, "after": {"at": 5}}))
    assert found["payload"] == {"before": None, "after": {"at": 5}}
    for image in found["schema"]["fields"]:
        assert image["fields"] == [{"type": "long", "name": "io.debezium.time.MicroTimestamp", "field": "at"}]


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x02\x02"])
def test_bytes_that_are_not_of_the_schema_are_a_bad_row(data: bytes) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": ["null", "long"]}]}
    with pytest.raises(Malformed, match="does not match its Avro schema"):
        AvroReader(Avro(json.dumps(schema))).value(data)


@pytest.mark.parametrize("depth", [10, 5_000, 100_000])
def test_a_value_that_is_nested_to_any_depth_is_decoded_or_a_bad_row(depth: int) -> None:
    schema = {"type": "record", "name": "r", "namespace": "n", "fields": [{"name": "next", "type": ["null", "n.r"]}]}
    data = b"\x02" * depth + b"\x00"
    if depth == 10:
        assert AvroReader(Avro(json.dumps(schema))).value(data)
    else:
        with pytest.raises(Malformed, match="nested too deeply"):
            AvroReader(Avro(json.dumps(schema))).value(data)


def test_a_decimal_beyond_the_precision_of_its_schema_is_not_rounded() -> None:
    plain = {"type": "record", "name": "r", "fields": [{"name": "f", "type": "bytes"}]}
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]}
    reader = AvroReader(Avro(json.dumps(schema)))

    def read(unscaled: bytes) -> Any:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(plain), {"f": unscaled})
        return json.loads(reader.value(out.getvalue()) or b"")

    assert read((1234567).to_bytes(4, "big")) == {"f": "12345.67"}
    with pytest.raises(Malformed, match="a decimal that is too long"):
        read(b"\x01" * 100_000)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("date", 2_932_897), ("date", -719_163), ("timestamp-micros", 2**62), ("timestamp-millis", -(2**62))],
)
def test_a_time_of_avro_out_of_range_is_a_bad_row(kind: str, value: int) -> None:
    plain = "int" if kind == "date" else "long"
    out = io.BytesIO()
    named = {"type": "record", "name": "r", "fields": [{"name": "f", "type": plain}]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(named), {"f": value})
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": {"type": plain, "logicalType": kind}}]}
    with pytest.raises(Malformed, match="does not match its Avro schema"):
        AvroReader(Avro(json.dumps(schema))).value(out.getvalue())


def test_a_timestamp_of_a_record_may_be_any_number() -> None:
    assert moment_text(1000) == "1970-01-01T00:00:01+00:00"
    for millis in (2**63 - 1, -(2**63), 253_402_300_800_000):
        with pytest.raises(Malformed, match="out of range"):
            moment_text(millis)


def decoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    found = AvroReader(Avro(json.dumps(schema))).value(out.getvalue())
    assert found is not None
    return found


@given(st.binary(), st.text(), st.text())
def test_a_letter_arrives_whole_whatever_is_in_it(value: bytes, file: str, detail: str) -> None:
    origin = Origin(file=file, value=value)
    found = letter_of(BadRow("it is bad", detail=detail).encode() + origin.encode())
    assert found is not None
    assert (found.origin, found.error.detail) == (origin, detail)


class SaidByBrokers(Brokers):
    """Brokers whose answers are given."""

    def __init__(self) -> None:
        super().__init__(BrokerAccess("b:9092"))
        self.unknown = SourceLost('there is no topic "t"', detail="Brokers: b:9092.")
        self.away = TransientError("describing topic at b:9092 failed")
        self.answer: CalveError | TopicState = self.unknown

    def _state(self, topic: str) -> TopicState:
        del topic
        if isinstance(self.answer, CalveError):
            raise self.answer
        return self.answer


def test_a_missing_topic_is_believed_once_brokers_say_so_for_a_while_without_a_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("calve.source.kafka.brokers.time.monotonic", lambda: now[0])
    said = SaidByBrokers()

    def stalls_for_a_while() -> None:
        for _ in range(3):
            with pytest.raises(TransientError, match=r'no topic "t"(.|\n)*just started may not know(.|\n)*after 30 s'):
                said.state("t")
            now[0] += 9.9

    stalls_for_a_while()
    said.answer = there = TopicState("id", {0: 0}, {0: 5})
    assert said.state("t") == there
    said.answer = said.unknown
    stalls_for_a_while()
    said.answer = said.away
    with pytest.raises(TransientError, match="describing"):
        said.state("t")
    said.answer = said.unknown
    stalls_for_a_while()
    now[0] += 0.4
    with pytest.raises(SourceLost):
        said.state("t")


def test_a_missing_topic_is_refused_at_once_when_a_source_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Brokers, "topics", lambda _brokers: ["tt"])
    with pytest.raises(InvalidInput, match='Did you mean "tt"'):
        SaidByBrokers().require("t")


class SlowAnswer(Future[int]):
    """An answer that takes ten seconds of a clock."""

    def __init__(self, now: list[float]) -> None:
        super().__init__()
        self._now, self._until = now, now[0] + 10

    def result(self, timeout: float | None = None) -> int:
        del timeout
        self._now[0] += 1
        if self._now[0] < self._until:
            raise TimeoutError
        return 7


class ReportingBrokers(Brokers):
    """Brokers whose client reports what it is told to report."""

    reports: tuple[Any, ...] = ()

    def _admin(self) -> Any:
        return self

    def poll(self, _seconds: float) -> None:
        self._errors.extend(self.reports)
        self.reports = ()

    def wait_for(self, answer: SlowAnswer) -> int:
        return self._answer(answer)


def test_an_outage_that_is_over_does_not_cut_later_answers_short(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("calve.source.kafka.brokers.time.monotonic", lambda: now[0])
    brokers = ReportingBrokers(BrokerAccess("b:9092"))
    quick = SlowAnswer(now)
    quick._until = now[0] + 2
    brokers.reports = (KafkaError(KafkaError._ALL_BROKERS_DOWN),)
    assert brokers.wait_for(quick) == 7
    assert brokers.wait_for(SlowAnswer(now)) == 7
    brokers.reports = (KafkaError(KafkaError._ALL_BROKERS_DOWN),)
    with pytest.raises(KafkaException):
        brokers.wait_for(SlowAnswer(now))


def of_letters(origins: list[Origin], **how: Any) -> list[dict[str, Any]]:
    reader = TopicReader(BrokerAccess("nowhere:1"), "t", **how)
    found: list[dict[str, Any]] = reader.decode_letters(origins, arrow_schema_of(reader.schema)).to_pylist()
    return found


def test_letters_are_read_as_their_records_were() -> None:
    records = [Origin("t", 1, 7, key=b"k", value=b"{}"), Origin("before", 0, 8, value=None)]
    places = [{"topic": "t", "partition": 1, "offset": 7}, {"topic": "before", "partition": 0, "offset": 8}]
    assert of_letters(records) == [
        {"key": b"k", "value": b"{}", **places[0]},
        {"key": None, "value": None, **places[1]},
    ]
    included = (("key", "k"), ("topic", "t"), ("offset", "o"))
    (first, _) = of_letters(records, included=included)
    assert json.loads(first["_calve_source_included"]) == {"k": "k", "t": "t", "o": 7}


def test_letters_with_avro_are_decoded_again_or_are_bad_again() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": "long"}]}
    good, bad = of_letters(
        [Origin("t", 0, 1, value=b"\x02"), Origin("t", 0, 2, value=b"")], encoding=Avro(json.dumps(schema))
    )
    assert (json.loads(good["value"]), good["_calve_source_raw_value"]) == ({"f": 1}, b"\x02")
    letter = letter_of(bad["_calve_source_problem"])
    assert letter is not None
    assert letter.origin == Origin("t", 0, 2, value=b"")


def topic_with(what: str, schema: str | None, folder: Path) -> KafkaSource:
    made = Kafka(BrokerAccess("nowhere:1"), "t", NoEnvelope(), schema, included=((what, "x"),))
    return made.open(LocalState(folder), SystemClock())


@pytest.mark.parametrize(("what", "schema"), [("timestamp", None), ("headers", None), ("key", "id INT")])
def test_letters_without_what_the_source_includes_are_refused(what: str, schema: str | None, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"dead letters do not contain the {what} of a record"):
        topic_with(what, schema, tmp_path).check_letters()
    topic_with("key", None, tmp_path).check_letters()


@pytest.mark.parametrize("partitions", [[0], [0, 1]])
def test_records_with_more_bytes_than_the_driver_may_hold_are_left_to_spark(partitions: list[int]) -> None:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 3})
    for number in range(20):
        for partition in partitions:
            producer.produce("big", key=b"k" * 100, value=b"%03d" % number * 300, partition=partition)
    assert not producer.flush(30)
    brokers = ",".join(f"{one.host}:{one.port}" for one in producer.list_topics(timeout=30).brokers.values())
    reader = TopicReader(BrokerAccess(brokers), "big")
    ranges = [OffsetRange(partition, 0, 20) for partition in partitions]
    size = len(partitions) * 20 * 1000
    found = reader.in_memory(ranges, size)
    assert found is not None
    assert found["offset"].to_pylist() == [*range(20)] * len(partitions)
    assert reader.in_memory(ranges, size - 1) is None
