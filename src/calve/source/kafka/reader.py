"""Reads ranges of offsets in tasks: as many as `position.splits` makes, each with a consumer of its own.

Consumers belong to no group and commit nothing. They read only committed transactions, and a missing offset is an
error, never a jump. Records have the relevant columns of Spark's Kafka source (see `records.frames`), and in addition:

    _calve_source_included   the columns of INCLUDE as a JSON object
    _calve_source_raw_key    key and value as they were read, where `key` and `value` are decoded
    _calve_source_raw_value
    _calve_source_problem    why they could not be decoded

The envelope's code runs in the same tasks (`records.frames.map_rows`). Where every record is a row (ENVELOPE NONE and
DIFF), `typed_records` reads JSON values as typed columns by the rules of `records.strict`.
"""

import json
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.errors import CalveError, SourceLost, TransientError
from calve.model.change import Origin
from calve.records import frames
from calve.records.documents import UNREADABLE, Malformed, codings_of, is_wrapped, malformed, parsed
from calve.records.frames import Columns, PythonRecords, Records, bad_row, map_rows
from calve.records.scalars import Settings
from calve.records.strict import Columns as Typed
from calve.source.kafka.avro import Avro
from calve.source.kafka.brokers import BrokerAccess, installed, transient
from calve.source.kafka.position import OffsetRange
from calve.source.kafka.protobuf import Protobuf
from calve.spark.tasks import TaskFailed
from calve.spark.version import arrow_schema_of

RECORDS_AT_ONCE = 2000
STALL_SECONDS = 60.0
"""A task fails after this time without a record; the checkpoint is retried."""
_POLL_SECONDS = 0.1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Included = tuple[tuple[str, str], ...]
"""Columns of INCLUDE: what they contain, and their names."""
Encoding = Avro | Protobuf
"""What keys and values are decoded from; JSON needs no decoding."""


def read_schema(*, included: bool, decoded: bool) -> T.StructType:
    """The columns of records."""
    fields = [
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
    ]
    if included:
        fields.append(T.StructField(frames.SOURCE_INCLUDED, T.StringType()))
    if included or decoded:
        fields.append(T.StructField(frames.SOURCE_PROBLEM, T.StringType()))
    if decoded:
        fields += [T.StructField(name, T.BinaryType()) for name in (frames.RAW_KEY, frames.RAW_VALUE)]
    return T.StructType(fields)


@dataclass(frozen=True)
class TopicReader:
    """Reads a topic. Pickled into tasks."""

    access: BrokerAccess
    topic: str
    included: Included = ()
    encoding: Encoding | None = None

    @property
    def schema(self) -> T.StructType:
        """The columns of its records."""
        return read_schema(included=bool(self.included), decoded=self.encoding is not None)

    def records(self, spark: SparkSession, tasks: list[list[OffsetRange]]) -> Records:
        """The records of all splits, those of a partition in order."""
        if not tasks:
            return spark.createDataFrame([], self.schema)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            schema = arrow_schema_of(self.schema)
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    yield from self._in_task(tasks[task], schema)

        return PythonRecords(spark.range(0, len(tasks), 1, len(tasks)), run, self.schema)

    def records_of(self, spark: SparkSession, origins: Sequence[Origin]) -> DataFrame:
        """The records of letters. Avro and Protobuf are decoded again, in tasks."""
        kept = read_schema(included=False, decoded=False)
        rows = [(o.key, o.value, o.topic, o.partition, o.offset) for o in origins]

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            schema = arrow_schema_of(self.schema)
            for batch in batches:
                if batch.num_rows:
                    yield self._decode_in_task(batch, schema)

        return spark.createDataFrame(rows, kept).mapInArrow(run, self.schema)

    def _decode_in_task(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return self.decode_letters([Origin(**row) for row in batch.to_pylist()], schema)
        except CalveError as error:
            raise TaskFailed(error.encode()) from error

    def decode_letters(self, origins: Sequence[Origin], schema: pa.Schema) -> pa.RecordBatch:
        """The records of letters, decoded by this process. Raises TransientError if the registry does not respond."""
        return _Decoding(self).batch([LetterMessage(origin) for origin in origins], schema)

    def _in_task(self, splits: list[OffsetRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.read_here(splits, schema)
        except CalveError as error:
            raise TaskFailed(error.encode()) from error

    def read_here(self, splits: list[OffsetRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records of splits, read by this process. Raises SourceLost and TransientError."""
        reading = _Reading(self)
        try:
            for split in splits:
                for messages in reading.messages(split):
                    yield reading.batch(messages, schema)
        finally:
            reading.close()


@dataclass(frozen=True)
class LetterMessage:
    """A record that was kept as a dead letter, with the interface of a consumed message as far as letters have it."""

    origin: Origin

    def topic(self) -> str | None:
        return self.origin.topic

    def partition(self) -> int | None:
        return self.origin.partition

    def offset(self) -> int | None:
        return self.origin.offset

    def key(self) -> bytes | None:
        return self.origin.key

    def value(self) -> bytes | None:
        return self.origin.value


class _Decoding:
    """Turns messages into rows of records."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._decoder = reader.encoding.reader() if reader.encoding else None

    def batch(self, messages: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        rows = [self._row(message) for message in messages]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _row(self, message: Any) -> list[Any]:
        key, value, place = message.key(), message.value(), _place(message)
        if not self._reader.included and self._decoder is None:
            return [key, value, *place]
        included = problem = None
        found_key, found_value = key, value
        try:
            if self._decoder is not None:
                found_key, found_value = self._decoder.key(key), self._decoder.value(value)
            if self._reader.included:
                included = self._included(message, found_key)
        except Malformed as error:
            found_key, found_value, included = key, None, None
            problem = bad_row(error, Origin(place[0], place[1], place[2], key=key, value=value))
        row = [found_key, found_value, *place]
        row += [included] if self._reader.included else []
        return [*row, problem, *([key, value] if self._decoder is not None else [])]

    def _included(self, message: Any, key: bytes | None) -> str:
        values: dict[str, Any] = {}
        for what, name in self._reader.included:
            match what:
                case "key":
                    values[name] = _text(key)
                case "headers":
                    values[name] = [
                        {"key": header, "value": None if data is None else b64encode(data).decode()}
                        for header, data in message.headers() or ()
                    ]
                case "timestamp":
                    kind, millis = message.timestamp()
                    known = kind != installed().TIMESTAMP_NOT_AVAILABLE
                    values[name] = moment_text(millis) if known else None
                case _:
                    values[name] = dict(zip(("topic", "partition", "offset"), _place(message), strict=True))[what]
        return json.dumps(values)


def _place(message: Any) -> list[Any]:
    return [message.topic(), message.partition(), message.offset()]


class _Reading:
    """A running consumer."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._kafka = installed()
        self._errors: list[Any] = []
        self._decoding = _Decoding(reader)
        settings = {
            "group.id": "calve",  # librdkafka requires one; it is never joined, and nothing is committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
        self._consumer = self._kafka.Consumer(reader.access.client(**settings, error_cb=self._errors.append))

    def close(self) -> None:
        self._consumer.close()

    def messages(self, split: OffsetRange) -> Iterator[list[Any]]:
        """The records of a split, without gaps for markers and for aborted and compacted records."""
        self._consumer.assign([self._kafka.TopicPartition(self._reader.topic, split.partition, split.lower)])
        at, heard = split.lower, time.monotonic()
        while at < split.upper:
            found = self._consumer.consume(min(RECORDS_AT_ONCE, split.upper - at), _POLL_SECONDS)
            wanted = []
            for message in found:
                if message.error() is not None:
                    at = max(at, self._end(message, split))
                elif message.offset() < split.upper:
                    wanted.append(message)
                    at = message.offset() + 1
                else:
                    at = split.upper
            if wanted:
                yield wanted
            if found:
                heard = time.monotonic()
            elif time.monotonic() - heard > STALL_SECONDS:
                raise self._silent(split, at)

    def _end(self, message: Any, split: OffsetRange) -> int:
        """The offset of the end of a partition; any other event instead of a record is an error."""
        kafka, error = self._kafka, message.error()
        if error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own code
            return int(message.offset())
        if error.code() in _gone(kafka.KafkaError):
            raise lost(
                self._reader.topic,
                f"Reading partition {split.partition} from offset {split.lower} failed: {error.str()}",
            )
        raise transient(f'reading topic "{self._reader.topic}"', self._reader.access, kafka.KafkaException(error))

    def _silent(self, split: OffsetRange, at: int) -> TransientError:
        reason = f" {self._errors[-1].str()}." if self._errors else ""
        return TransientError(
            f'reading topic "{self._reader.topic}" at {self._reader.access.brokers} timed out',
            detail=f"Partition {split.partition} returned nothing after offset {at} for {STALL_SECONDS:g} s.{reason}",
        )

    def batch(self, messages: list[Any], schema: pa.Schema) -> pa.RecordBatch:
        return self._decoding.batch(messages, schema)


def _gone(codes: Any) -> set[int]:
    """Errors for a missing topic, partition or offset; those for topics come with a delay."""
    own = {codes._AUTO_OFFSET_RESET, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION}  # noqa: SLF001 - librdkafka's codes
    return own | {codes.OFFSET_OUT_OF_RANGE, codes.UNKNOWN_TOPIC_OR_PART}


def moment_text(millis: int) -> str:
    """The timestamp of a record, which its producer chose. Raises Malformed."""
    try:
        return (_EPOCH + timedelta(milliseconds=millis)).isoformat()
    except OverflowError as error:
        raise Malformed(f"its timestamp is out of range: {millis}", "Leave INCLUDE TIMESTAMP out.") from error


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError as error:
        raise Malformed("the key is not valid UTF-8", "Leave INCLUDE KEY out.") from error


def lost(topic: str, detail: str) -> SourceLost:
    """The error for records that were removed before they were read."""
    return SourceLost(
        f'topic "{topic}" no longer has the next records',
        detail=f"{detail}.",
        hint="Retention removed them, or the topic was recreated. To restart: WITH (SNAPSHOT = true), or a new sink.",
    )


_PLACE = {frames.SOURCE_TOPIC: T.StringType(), frames.SOURCE_PARTITION: T.IntegerType()}


def typed_schema(fields: Sequence[T.StructField]) -> T.StructType:
    """The columns of typed records."""
    return T.StructType(
        [
            *(T.StructField(f.name, f.dataType) for f in fields),
            *(T.StructField(name, kind) for name, kind in _PLACE.items()),
            T.StructField(frames.SOURCE_OFFSET, T.LongType()),
            T.StructField(frames.SOURCE_PROBLEM, T.StringType()),
        ]
    )


def typed_records(records: Records, fields: Sequence[T.StructField], unit: str | None) -> DataFrame:
    """Read the values of records as columns. `unit` is that of numbers in TIMESTAMP columns."""
    reader = ValueReader(tuple(fields), Settings(unit, frames.time_zone_of(records)))
    return map_rows(records, records.schema.names, reader.rows, typed_schema(fields))


@dataclass(frozen=True)
class ValueReader:
    """Reads values of records. Pickled into tasks."""

    fields: tuple[T.StructField, ...]
    settings: Settings

    def rows(self) -> "ValueRows":
        """Prepare reading, in a task."""
        return ValueRows(self)


class ValueRows:
    """A running reader."""

    def __init__(self, reader: ValueReader) -> None:
        self._typed = Typed.of(reader.fields, reader.settings)
        self._nothing = [None] * len(reader.fields)

    def __call__(self, columns: Columns, count: int) -> Iterator[list[Any]]:
        unread = columns.get(frames.SOURCE_PROBLEM) or [None] * count
        places = zip(columns["topic"], columns["partition"], columns["offset"], strict=True)
        for row, place in enumerate(places):
            values, problem = self._nothing, unread[row]
            if problem is None:
                try:
                    values = self._values(columns, row)
                except UNREADABLE as error:
                    problem = bad_row(malformed(error), frames.origin(columns, row))
            yield [*values, *place, problem]

    def _values(self, columns: Columns, row: int) -> list[Any]:
        data = columns["value"][row]
        if data is None:
            raise Malformed("the value is null", "ENVELOPE UPSERT treats a null value as a delete.")
        record, codings = parsed(data), None
        if is_wrapped(record):
            record, codings = record["payload"], codings_of((record["schema"] or {}).get("fields"))
        if not isinstance(record, dict):
            raise Malformed("it is not a JSON object")
        return self._typed.values(frames.with_included(record, columns, row), codings)
