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
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.errors import CalveError, SourceLost, TransientError
from calve.model.change import Origin
from calve.records import frames
from calve.records.documents import UNREADABLE, Malformed, codings_of, is_wrapped, malformed, parsed
from calve.records.frames import Columns, PythonRecords, Records, RowCode, bad_row, map_rows
from calve.records.scalars import Settings
from calve.records.strict import Columns as Typed
from calve.source.kafka.avro import Avro
from calve.source.kafka.brokers import BrokerAccess, installed, transient
from calve.source.kafka.position import OffsetRange
from calve.source.kafka.protobuf import Protobuf
from calve.spark.tasks import TaskFailed
from calve.spark.version import arrow_schema_of, frame_of_rows

RECORDS_AT_ONCE = 2000
RECORDS_TOGETHER = 20_000
"""Splits of different partitions that have at most this many records are read at the same time."""
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

        return frame_of_rows(spark, rows, kept).mapInArrow(run, self.schema)

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

    def in_memory(self, splits: list[OffsetRange], most_bytes: int) -> pa.Table | None:
        """The records of splits, read by this process; None if they have more bytes.

        Raises SourceLost and TransientError.
        """
        schema = arrow_schema_of(self.schema)
        try:
            return pa.Table.from_batches(self.read_here(splits, schema, most_bytes), schema)
        except _TooLarge:
            return None

    def read_here(
        self, splits: list[OffsetRange], schema: pa.Schema, most_bytes: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records of splits, read by this process. Raises SourceLost, TransientError, _TooLarge."""
        reading = _Reading(self, most_bytes)
        few = sum(split.upper - split.lower for split in splits) <= RECORDS_TOGETHER
        distinct = len({split.partition for split in splits}) == len(splits)
        try:
            for group in [splits] if few and distinct else [[split] for split in splits]:
                for messages in reading.messages(group):
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


@dataclass
class _Place:
    """How far a split is read."""

    split: OffsetRange
    at: int
    """The next offset."""
    records: list[Any] = field(default_factory=list)

    def taken(self) -> list[Any]:
        """The records that were read, which are no longer kept."""
        found, self.records = self.records, []
        return found


class _TooLarge(Exception):
    """The records have more bytes than they may have."""


class _Reading:
    """A running consumer."""

    def __init__(self, reader: TopicReader, most_bytes: int | None = None) -> None:
        self._reader = reader
        self._room = most_bytes
        """Bytes that further records may have; None for any."""
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

    def messages(self, splits: Sequence[OffsetRange]) -> Iterator[list[Any]]:
        """The records of splits of different partitions, without gaps for markers, aborted and compacted records.

        A single split is a stream. Several are read at the same time, because each one alone takes a tenth of a second
        however few records it has; their records are held in memory, and delivered partition by partition.
        """
        places = {split.partition: _Place(split, split.lower) for split in splits}
        partitions = [self._partition(split.partition, split.lower) for split in splits]
        self._consumer.assign(partitions)
        heard = time.monotonic()
        while unfinished := [place for place in places.values() if place.at < place.split.upper]:
            wanted = sum(place.split.upper - place.at for place in unfinished)
            found = self._consumer.consume(min(RECORDS_AT_ONCE, wanted), _POLL_SECONDS)
            self._check_room(found)
            for message in found:
                place = places.get(message.partition(), unfinished[0])
                self._take(message, place)
                if place.at >= place.split.upper and len(unfinished) > 1:
                    self._consumer.pause([self._partition(place.split.partition)])
            if len(splits) == 1 and unfinished[0].records:
                yield unfinished[0].taken()
            if found:
                heard = time.monotonic()
            elif time.monotonic() - heard > STALL_SECONDS:
                raise self._silent(unfinished[0].split, unfinished[0].at)
        for split in splits:
            if places[split.partition].records:
                yield places[split.partition].taken()

    def _check_room(self, found: Sequence[Any]) -> None:
        if self._room is not None:
            self._room -= sum(len(part) for message in found for part in (message.key(), message.value()) if part)
            if self._room < 0:
                raise _TooLarge

    def _partition(self, number: int, *offset: int) -> Any:
        return self._kafka.TopicPartition(self._reader.topic, number, *offset)

    def _take(self, message: Any, place: "_Place") -> None:
        if message.error() is not None:
            place.at = max(place.at, self._end(message, place.split))
        elif message.offset() < place.split.upper:
            place.records.append(message)
            place.at = message.offset() + 1
        else:
            place.at = place.split.upper

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
    return map_rows(records, value_code(records.schema, fields, unit, frames.time_zone_of(records)))


def value_code(schema: T.StructType, fields: Sequence[T.StructField], unit: str | None, zone: str) -> RowCode:
    """Reads records of a schema as typed rows."""
    reader = ValueReader(tuple(fields), Settings(unit, zone))
    return RowCode(tuple(schema.names), reader.rows, typed_schema(fields))


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
