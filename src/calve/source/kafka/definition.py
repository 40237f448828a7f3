"""A topic as a source: the offsets of the next checkpoint, and whether the topic still has them.

Every commit stores the offsets that were read. Before each checkpoint they are compared with the topic: if it was
recreated (it has another id, or ends before them), or records were removed before they were read, that is an error that
names both. Partitions that are added later are read from their beginning.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from calve.calls import check_mapping, for_users
from calve.clock import Clock
from calve.errors import InvalidInput, SourceLost
from calve.model.change import Origin
from calve.model.checkpoint import Offsets, SizeHint, SizeLimit
from calve.model.health import SourcePart, SourcePosition
from calve.model.instants import millis_of
from calve.model.spec import Debezium, Envelope, EpochUnit, NoEnvelope, Upsert, check_envelope
from calve.records import frames
from calve.records.columns import declared_schema
from calve.records.frames import Records
from calve.records.strict import check_type
from calve.source.kafka.brokers import BrokerAccess, Brokers, TopicState
from calve.source.kafka.position import PartitionOffsets, TopicPosition, advanced, splits
from calve.source.kafka.reader import Encoding, Included, TopicReader, lost, typed_records, typed_schema, value_code
from calve.source.port import LEAST_POLL
from calve.storage.state import StateStore

MAX_OFFSETS = 1_000_000
MOST_IN_MEMORY = 5_000
"""Records that the driver reads itself: Python code converts them one by one, and blocks all other sinks meanwhile."""
_BEGINNING = "first-offsets"
_EARLIEST, _LATEST = "earliest", "latest"


@dataclass(frozen=True)
class StartOffsets:
    """Where a new sink starts: `earliest` or `latest`, offsets of partitions (others: earliest), or a time."""

    word: str = _EARLIEST
    offsets: tuple[tuple[int, int], ...] = ()
    millis: int | None = None

    @classmethod
    def parse(cls, text: str) -> "StartOffsets":
        """From `earliest`, `latest`, `{"0": 17}` or a time in ISO 8601. Raises InvalidInput."""
        if text.lower() in {_EARLIEST, _LATEST}:
            return cls(text.lower())
        try:
            if text.lstrip().startswith("{"):
                return cls(offsets=tuple(sorted((int(p), int(o)) for p, o in json.loads(text).items())))
            moment = datetime.fromisoformat(text)
        except (ValueError, TypeError, AttributeError):
            moment = None
        if moment is None or moment.tzinfo is None:
            raise InvalidInput(
                f'invalid start "{text}"',
                hint="""Use 'earliest', 'latest', '{"0": 17, "1": 4}', or a time with its zone.""",
            )
        return cls(millis=millis_of(moment))


@dataclass(frozen=True)
class Kafka:
    """Definition of a Kafka source. With `schema` (Spark DDL) it parses the values itself, else the envelope does."""

    access: BrokerAccess
    topic: str
    envelope: Envelope
    schema: str | None = None
    beginning: StartOffsets = StartOffsets()
    max_offsets: int = MAX_OFFSETS
    included: Included = ()
    encoding: Encoding | None = None
    epoch_unit: EpochUnit | None = None
    """The unit of numbers in TIMESTAMP columns of `schema`."""

    def open(self, store: StateStore, _clock: Clock) -> "KafkaSource":
        """Open the source, which keeps its first offsets in `store`."""
        return KafkaSource(self, store)

    def check(self) -> None:
        """Check that the topic exists and the registry responds. Raises InvalidInput, TransientError."""
        Brokers(self.access).require(self.topic)
        if self.encoding and self.encoding.registry:
            self.encoding.registry.subjects()


@for_users
def kafka(  # noqa: PLR0913 - all but the first two are options by name
    brokers: str,
    topic: str,
    *,
    envelope: Envelope | None = None,
    schema: str | None = None,
    start: str = _EARLIEST,
    max_offsets_per_checkpoint: int = MAX_OFFSETS,
    options: Mapping[str, str] | None = None,
) -> Kafka:
    """The JSON records of a topic, now and later.

    >>> columns = "id BIGINT NOT NULL, name STRING"
    >>> calve.kafka("localhost:9092", "customers", envelope=calve.Debezium(columns=columns)).topic
    'customers'

    `envelope` interprets them and declares the columns; without one every record is a row, and `schema` (Spark DDL)
    declares them. `start` is where a new sink starts: `earliest`, `latest`, offsets as JSON, or a time. `options` are
    those of librdkafka: security protocol, logins, certificates.
    """
    if max_offsets_per_checkpoint < 1:
        raise InvalidInput("max_offsets_per_checkpoint must be at least 1", detail=f"Got {max_offsets_per_checkpoint}.")
    check_envelope(envelope)
    check_mapping("options", options)
    by_envelope = isinstance(envelope, Upsert | Debezium)
    if by_envelope == (schema is not None):
        raise InvalidInput(
            "the columns of a topic must be declared in one place",
            hint="Give schema='id BIGINT, ...', or columns='...' of calve.Upsert or calve.Debezium.",
        )
    access = BrokerAccess(brokers, dict(options or {}))
    return Kafka(access, topic, envelope or NoEnvelope(), schema, StartOffsets.parse(start), max_offsets_per_checkpoint)


class KafkaSource:
    """An open source."""

    counts = "offsets"
    least_poll = LEAST_POLL

    def __init__(self, definition: Kafka, store: StateStore) -> None:
        self._definition = definition
        self._store = store
        self._brokers = Brokers(definition.access)
        self._reader = TopicReader(definition.access, definition.topic, definition.included, definition.encoding)
        self._unread = 0
        self._state: TopicState | None = None
        """The topic at the last poll."""
        self._begun: PartitionOffsets = {}
        """Where the first checkpoint starts."""

    @property
    def name(self) -> str:
        return f"kafka {self._definition.topic}"

    def schema(self, _spark: SparkSession) -> StructType:
        fields = self._fields()
        return self._reader.schema if fields is None else typed_schema(fields)

    def _fields(self) -> list[StructField] | None:
        if self._definition.schema is None:
            return None
        fields = declared_schema(self._definition.schema).fields
        for field in fields:
            check_type(field.dataType, field.name)
        return fields

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        here, now = TopicPosition.of(start), self._brokers.state(self._definition.topic)
        self._state = now
        first: PartitionOffsets = {}
        if here is None:
            first = self._begun = self._first(now)
            begun = dict(first)
        else:
            self._check(here, now)
            begun = dict(here.next)
        begun |= dict.fromkeys(now.high.keys() - begun.keys(), 0)
        self._check_still_there(begun, now)
        end = advanced(begun, now.high, None if whole else self._definition.max_offsets)
        self._unread = sum(max(0, high - end[p]) for p, high in now.high.items())
        if end == begun:
            return None
        return TopicPosition(self._definition.topic, now.topic_id, end, first).to_offsets()

    def begin(self) -> Offsets:
        now = self._brokers.state(self._definition.topic)
        return TopicPosition(self._definition.topic, now.topic_id, self._first(now)).to_offsets()

    @property
    def took_all(self) -> bool:
        return not self._unread

    @property
    def unread(self) -> int:
        return self._unread

    def position(self, at: Offsets) -> SourcePosition:
        topic, here, now = self._definition.topic, TopicPosition.of(at), self._state
        if now is None:
            return SourcePosition()
        read = self._begun if here is None else {**dict.fromkeys(now.high, 0), **here.next}
        parts = [SourcePart(f"{topic} {p}", read.get(p), high, now.low.get(p)) for p, high in sorted(now.high.items())]
        return SourcePosition(tuple(parts), self._brokers.retention_ms(topic))

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> Records:
        upper = TopicPosition.of(end)
        if upper is None:
            return spark.createDataFrame([], self.schema(spark))
        lower = TopicPosition.of(start)
        return self._read(spark, upper.first if lower is None else lower.next, upper.next)

    def _read(self, spark: SparkSession, lower: PartitionOffsets, upper: PartitionOffsets) -> Records:
        tasks = splits(lower, upper, 2 * spark.sparkContext.defaultParallelism)
        records, fields = self._reader.records(spark, tasks), self._fields()
        return records if fields is None else typed_records(records, fields, self._definition.epoch_unit)

    def arrow_records(
        self, spark: SparkSession, start: Offsets, end: Offsets, columns: StructType, limit: SizeLimit
    ) -> pa.Table | None:
        lower, upper = TopicPosition.of(start), TopicPosition.of(end)
        if upper is None:
            return None
        (ranges,) = splits(upper.first if lower is None else lower.next, upper.next, 1) or [[]]
        if sum(found.upper - found.lower for found in ranges) > min(MOST_IN_MEMORY, limit.rows):
            return None
        records, fields = self._reader.in_memory(ranges, limit.bytes), self._fields()
        if records is None:
            return None
        if fields is not None:
            code = value_code(self._reader.schema, fields, self._definition.epoch_unit, frames.time_zone(spark))
            records = code.in_memory(records)
            if records[frames.SOURCE_PROBLEM].null_count < records.num_rows:
                return None
        return records.select(columns.names)

    def check_letters(self) -> None:
        unknown = {"headers", "timestamp"} | ({"key"} if self._definition.schema is not None else set())
        lacking = [what for what, _ in self._definition.included if what in unknown]
        if lacking:
            raise InvalidInput(
                f"dead letters do not contain the {lacking[0]} of a record",
                detail=f"The source has a column for it: INCLUDE {lacking[0].upper()}.",
                hint="Send the corrected records to the topic again.",
            )

    def why_not(self, origin: Origin) -> str:
        if origin.topic is not None:
            return ""
        if origin.file is None:
            return "it is a row of a view, not a record"
        return "it is a record of a file, and the source reads a topic"

    def records_of(self, spark: SparkSession, origins: Sequence[Origin]) -> Records:
        records, fields = self._reader.records_of(spark, origins), self._fields()
        return records if fields is None else typed_records(records, fields, self._definition.epoch_unit)

    def contents(self, spark: SparkSession, end: Offsets) -> Records:
        upper = TopicPosition.of(end)
        kept = self._store.read(_BEGINNING)
        if upper is None or kept is None:
            raise SourceLost("the first offsets of the source are missing", hint="Restore the state location.")
        lower = TopicPosition.of(kept.decode())
        now = self._brokers.state(self._definition.topic)
        first = {} if lower is None else lower.next
        self._check_still_there({p: first.get(p, 0) for p in upper.next}, now)
        return self._read(spark, first, upper.next)

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        lower, upper = TopicPosition.of(start), TopicPosition.of(end)
        if upper is None:
            return SizeHint(rows=0)
        begun = upper.first if lower is None else lower.next
        return SizeHint(rows=sum(offset - begun.get(p, 0) for p, offset in upper.next.items()))

    def ended(self, _end: Offsets) -> bool:
        return False

    def committed(self, offsets: Offsets) -> None:
        """Do nothing: only the first offsets are kept."""

    def _first(self, now: TopicState) -> PartitionOffsets:
        """Where reading starts: decided once, so that records up to the first checkpoint are not skipped."""
        kept = self._store.read(_BEGINNING)
        known = TopicPosition.of(kept.decode()) if kept is not None else None
        if known is not None:
            self._check(known, now)
            return known.next
        chosen = self._chosen(now)
        position = TopicPosition(self._definition.topic, now.topic_id, chosen)
        self._store.put(_BEGINNING, position.to_offsets().encode())
        return chosen

    def _chosen(self, now: TopicState) -> PartitionOffsets:
        begin = self._definition.beginning
        if begin.millis is not None:
            return self._brokers.offsets(self._definition.topic, now.high, begin.millis)
        if begin.word == _LATEST:
            return dict(now.high)
        unknown = [p for p, _ in begin.offsets if p not in now.high]
        if unknown:
            raise InvalidInput(
                f'topic "{self._definition.topic}" has no partition {unknown[0]}',
                hint=f"It has {', '.join(map(str, sorted(now.high)))}.",
            )
        chosen = {**now.low, **dict(begin.offsets)}
        ahead = [p for p in chosen if chosen[p] > now.high[p]]
        if ahead:
            raise InvalidInput(
                f'partition {ahead[0]} of topic "{self._definition.topic}" ends before offset {chosen[ahead[0]]}',
                detail=f"It ends at {now.high[ahead[0]]}.",
            )
        return chosen

    def _check(self, here: TopicPosition, now: TopicState) -> None:
        """Check that this is the topic that was read. Raises SourceLost."""
        topic = self._definition.topic
        if here.topic != topic:
            raise SourceLost(
                "the topic of a Kafka source has changed",
                detail=f'It read "{here.topic}", and now reads "{topic}".',
                hint="Use the previous topic, or rebuild the table: WITH (SNAPSHOT = true).",
            )
        if here.topic_id and now.topic_id and here.topic_id != now.topic_id:
            raise lost(topic, f"Its id was {here.topic_id} and is now {now.topic_id}")
        for partition, offset in here.next.items():
            end = now.high.get(partition)
            if end is None or end < offset:
                there = "no longer exists" if end is None else f"now ends at {end}"
                raise lost(topic, f"Partition {partition} was read up to {offset}, and {there}")

    def _check_still_there(self, begun: PartitionOffsets, now: TopicState) -> None:
        for partition, offset in begun.items():
            low = now.low.get(partition, 0)
            if low > offset:
                raise lost(
                    self._definition.topic,
                    f"Offset {offset} of partition {partition} comes next, and the partition now starts at {low}",
                )
