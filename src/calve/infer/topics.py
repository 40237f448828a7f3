"""Samples of topics, and the schemas of their records in a registry."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from calve.infer.sample import MOST_RECORDS, Sample, Sampled, counted, sampled
from calve.records import frames
from calve.records.documents import Malformed
from calve.source.kafka.avro import parsed_entry
from calve.source.kafka.brokers import BrokerAccess, Brokers
from calve.source.kafka.position import OffsetRange
from calve.source.kafka.protobuf import first_message, messages_beside
from calve.source.kafka.reader import Encoding, TopicReader
from calve.source.kafka.registry import AVRO, PROTOBUF, RegisteredSchema, RegistryClient, RegistryEntry
from calve.spark.version import arrow_schema_of

_AT_LEAST = 10


def sample_topic(access: BrokerAccess, topic: str, encoding: Encoding | None) -> Sample:
    """Read the first and the last records of every partition; none if the topic is empty.

    Raises InvalidInput if there is no such topic, and TransientError.
    """
    state = Brokers(access).require(topic)
    each = max(_AT_LEAST, MOST_RECORDS // max(1, len(state.high)))
    splits = [
        split
        for partition in sorted(state.high)
        for split in _ends(partition, state.low[partition], state.high[partition], each)
    ]
    reader = TopicReader(access, topic, encoding=encoding)
    records: list[Sampled] = []
    problems: list[str] = []
    for batch in reader.read_here(splits, arrow_schema_of(reader.schema)):
        for found in _parsed(batch):
            (records if isinstance(found, Sampled) else problems).append(found)  # type: ignore[arg-type]
    partitions = counted(len(state.high), "partition")
    looked = f"{partitions}, {counted(len(records) + len(problems), 'record')}"
    return Sample(looked, tuple(records), problems=tuple(problems))


def _ends(partition: int, low: int, high: int, each: int) -> list[OffsetRange]:
    if high - low <= each:
        return [OffsetRange(partition, low, high)] if high > low else []
    half = each // 2
    return [OffsetRange(partition, low, low + half), OffsetRange(partition, high - half, high)]


def _parsed(batch: pa.RecordBatch) -> Iterator[Sampled | str]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    unread = columns.get(frames.SOURCE_PROBLEM) or [None] * batch.num_rows
    places = zip(columns["partition"], columns["offset"], strict=True)
    for row, (partition, offset) in enumerate(places):
        if unread[row] is not None:
            yield f"partition {partition}, offset {offset}: it cannot be decoded"
            continue
        try:
            yield sampled(columns["value"][row], columns["key"][row])
        except Malformed as error:
            yield f"partition {partition}, offset {offset}: {error.text}"


def schema_of_values(registry: RegistryClient, topic: str) -> RegisteredSchema | None:
    """The newest schema of a topic's values, under the name that serializers give it by default."""
    return _latest(registry, f"{topic}-value")


def schema_of_records(registered: RegisteredSchema, records: Sequence[Sampled]) -> RegisteredSchema:
    """The schema, of whose messages, if it has several, the one that most of the records are.

    A decoded message has all its fields, set or not, so its names tell which one it is. Without any it is the first.
    """
    if registered.kind != PROTOBUF:
        return registered
    seen = Counter(frozenset(record.value) for record in records if isinstance(record.value, dict))
    for names, _ in seen.most_common():
        for message in messages_beside(registered.schema):
            if names == {field.name for field in message.fields}:
                return replace(registered, schema=message)
    return registered


def described_schema(registered: RegisteredSchema) -> str:
    """`schema orders-value version 3`, with the message if the file has several."""
    text = f"schema {registered.subject} version {registered.version}"
    if registered.kind == PROTOBUF and len(messages_beside(registered.schema)) > 1:
        text += f", message {registered.schema.full_name}"
    return text


def schema_of_keys(registry: RegistryClient, topic: str) -> RegisteredSchema | None:
    """The same of keys."""
    return _latest(registry, f"{topic}-key")


def _latest(registry: RegistryClient, subject: str) -> RegisteredSchema | None:
    found = registry.latest(subject)
    return None if found is None else RegisteredSchema(subject, found.version, found.kind, _parsed_schema(found))


def _parsed_schema(entry: RegistryEntry) -> Any:
    if entry.kind == AVRO:
        return parsed_entry(entry)
    return first_message(entry) if entry.kind == PROTOBUF else entry.text
