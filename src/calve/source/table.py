"""The changes of an Iceberg table as a source: its rows at one snapshot, then what every later snapshot changes.

    offsets      the table's uuid, and the snapshot up to which it was read, with its sequence number
    checkpoint   the rows of a snapshot, or the changes of whole snapshots after another; none is ever split
    records      rows with their kind of change, deleted and replaced ones complete (`model.spec.ChangeRows`)

Snapshots that change no rows (compactions, heartbeats) advance the offsets, too, so they never stay behind at one that
expires. Rows are read with the columns that the table had when the source was opened, matched by field id.
A later snapshot with other columns ends a checkpoint; the next one raises `SourceChanged`, and a new start reads it.

If the snapshots after the offsets cannot be found, the source stops: `SourceLost`. A consumer (`CONSUMER = 'name'`)
keeps them from expiring: `iceberg/snapshot/consumers.py`.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from calve.calls import for_users
from calve.changelog.frame import changes_frame
from calve.changelog.local import LocalChanges
from calve.changelog.pairing import META
from calve.changelog.request import ChangeRequest
from calve.clock import Clock
from calve.errors import InvalidInput, SourceChanged, SourceLost, TransientError
from calve.iceberg.loading import LoadedTable, load_table_or_none
from calve.iceberg.planning.change_range import ChangeRange, check_free_names
from calve.iceberg.planning.change_steps import (
    TableShape,
    check_order,
    check_version,
    newest_place,
    oldest_place,
    place_at,
    rows_at,
    shape_of,
    steps_after,
)
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.snapshot.consumers import ConsumerTag, consumer_tag
from calve.lake import TableRef, check_table
from calve.model.change import DIFF, ORDER, TIME
from calve.model.changelog import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    EARLIEST,
    FRONTIER,
    LATEST,
    MAX_HOLD_MS,
    SNAPSHOT,
    TIMESTAMP,
    VERSION,
    ChangeType,
    TablePlace,
)
from calve.model.checkpoint import UNKNOWN, Offsets, SizeHint, SizeLimit, canonical_offsets
from calve.model.health import SourcePart, SourcePosition
from calve.model.names import check_consumer
from calve.model.spec import ChangeRows
from calve.reader.arguments import check_list
from calve.reader.frame import frame_of
from calve.reader.local import LocalRead, rows_within
from calve.source.following import POLL_SECONDS, ConsumerHold, steps_taken
from calve.spark.sqltext import ident
from calve.spark.version import arrow_schema_of
from calve.storage.state import StateStore

MAX_ROWS = 1_000_000

_BEGINNING = "first-place"
_FILLED = "first-contents"
"""There if a sink that starts over has read the rows of the table first, whatever its start is."""
CHANGE_FIELDS = [
    StructField(CHANGE_TYPE, StringType()),
    StructField(VERSION, LongType()),
    StructField(TIMESTAMP, TimestampType()),
    StructField(FRONTIER, StringType()),
]
"""Columns of the records after those of the table."""


@dataclass(frozen=True)
class TableChanges:
    """Definition of a source of changes."""

    table: TableRef
    start: str | int = SNAPSHOT
    consumer: str | None = None
    max_hold_ms: int = MAX_HOLD_MS
    max_rows: int = MAX_ROWS
    key: tuple[str, ...] = ()
    """Empty: the identifier fields of the table."""
    reader: str = ""
    """The sink that reads; without one, no tag is made."""
    envelope: ChangeRows = field(default_factory=ChangeRows)

    def open(self, store: StateStore, clock: Clock) -> "TableSource":
        """Open the source, which keeps its start in `store`."""
        return TableSource(self, store, clock)

    def shape(self) -> TableShape | None:
        """The columns and the key of the table; None if it does not exist."""
        table = load_table_or_none(self.table.lake.open(), self.table.name)
        return None if table is None else _shape(table)

    def keyed(self) -> tuple[str, ...]:
        """The key of its rows. Raises TransientError while the table does not exist."""
        if self.key:
            return self.key
        shape = self.shape()
        if shape is None:
            raise _missing(self.table)
        return shape.key


@for_users
def table_changes(
    table: TableRef,
    *,
    start: str | int = SNAPSHOT,
    consumer: str | None = None,
    key: Sequence[str] = (),
    max_rows_per_checkpoint: int = MAX_ROWS,
) -> TableChanges:
    """The changes of an Iceberg table, now and later, as a source of a sink.

    A new sink starts with `start`: `"snapshot"`, the rows that the table has now, and then its changes; `"earliest"`,
    the rows of its oldest snapshot, and then all changes; `"latest"`, changes from now on; or the changes after a
    snapshot id, a time, a frontier, a branch or a tag.

    A `consumer` keeps snapshots that the sink has not read yet from expiring, by a tag of the table. `key` identifies
    rows, by default the table's own; changes of tables without a key are inserted and deleted rows. Snapshots are read
    together up to about `max_rows_per_checkpoint` changed rows.
    """
    check_table("calve.table_changes", table)
    if consumer is not None:
        check_consumer(consumer)
    check_list("key", key)
    if max_rows_per_checkpoint < 1:
        raise InvalidInput("max_rows_per_checkpoint must be at least 1", detail=f"Got {max_rows_per_checkpoint}.")
    return TableChanges(table, start, consumer, max_rows=max_rows_per_checkpoint, key=tuple(key))


def _shape(table: LoadedTable) -> TableShape:
    """The columns and the key. Raises InvalidInput if changes could not have these columns beside their own."""
    found = shape_of(table)
    names = StructType.fromJson(json.loads(found.columns)).names
    check_free_names(names, hint="Rename the column of the table; calve.read and SELECT read it as it is.")
    return found


def _missing(table: TableRef) -> TransientError:
    return TransientError(
        f'table "{table}" did not exist',
        detail="Its changes are read as soon as it exists.",
        hint="The sink that writes it has to run first; otherwise check the name.",
    )


class TableSource:
    """An open source."""

    counts = "snapshots"
    least_poll = POLL_SECONDS

    def __init__(self, definition: TableChanges, store: StateStore, clock: Clock) -> None:
        self._definition, self._store = definition, store
        self._ref = definition.table
        self._catalog = definition.table.lake.open()
        self._shape: TableShape | None = None
        self._filled: bool | None = None
        self._unread = 0
        self._newest: int | None = None
        self._committed: TablePlace | None = None
        tag: ConsumerTag | None = None
        if definition.consumer is not None and definition.reader:
            tag = ConsumerTag(consumer_tag(definition.consumer, definition.reader), definition.max_hold_ms, clock)
        self._consumer = ConsumerHold(tag, clock)

    @property
    def name(self) -> str:
        return f"table {self._ref}"

    def schema(self, _spark: SparkSession) -> StructType:
        """The columns of the table when this was first asked. Raises TransientError while it does not exist."""
        return record_fields(self._columns())

    def _columns(self) -> StructType:
        """Without the order that calve stores in some tables: it orders changes of another source."""
        columns = StructType.fromJson(json.loads(self._read_as().columns))
        return StructType([f for f in columns if f.name != ORDER])

    def _read_as(self) -> TableShape:
        """The columns that all snapshots are read with."""
        if self._shape is None:
            found = load_table_or_none(self._catalog, self._ref.name)
            if found is None:
                raise _missing(self._ref)
            check_version(found)
            self._shape = _shape(found)
        return self._shape

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        table = self._load()
        self._newest = newest_place(table).sequence_number
        shape = self._read_as()
        place = place_from(start)
        if place is None and whole and not self.starts_with_rows:
            self._store.put(_FILLED, b"")
            self._filled = True
        if place is None and self.starts_with_rows:
            end = newest_place(table) if whole or self._definition.start == SNAPSHOT else oldest_place(table)
            self._consumer.hold(table, end)
            self._unread = len(steps_after(table, end))
            return offsets_of(end)
        place = place or self._first(table)
        steps = steps_after(table, place)
        self._consumer.hold(table, place if self._committed is None else self._committed)
        taken = steps_taken(table, steps, shape, None if whole else self._definition.max_rows)
        self._unread = len(steps) - taken
        if steps and not taken:
            raise SourceChanged(
                f'the columns of table "{self._ref}" changed',
                detail=f"Snapshot {steps[0].place.snapshot_id} has other columns than those before it.",
                hint="Start the sink again: ON SCHEMA CHANGE decides what happens to its own table.",
            )
        return offsets_of(steps[taken - 1].place) if taken else None

    def begin(self) -> Offsets:
        """Where reading starts: decided once; None for the rows of the table."""
        return None if self.starts_with_rows else offsets_of(self._first(self._load()))

    @property
    def took_all(self) -> bool:
        return not self._unread

    @property
    def unread(self) -> int:
        return self._unread

    def position(self, at: Offsets) -> SourcePosition:
        """Counts commits of the table by sequence number. Snapshots may expire, but not by their number."""
        place = place_from(at)
        return SourcePosition((SourcePart("commits", place.sequence_number if place else None, self._newest),))

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
        table, until = self._load(), place_from(end)
        if until is None or until.snapshot_id is None:
            return spark.createDataFrame([], self.schema(spark))
        place = place_from(start)
        self._check(table, place, until)
        if place is None and self.starts_with_rows:
            return self._contents(spark, table, until)
        return self._changes(spark, table, place or self._first(table), until)

    def arrow_records(
        self, _spark: SparkSession, start: Offsets, end: Offsets, columns: StructType, limit: SizeLimit
    ) -> pa.Table | None:
        """The same records without a Spark job; see `source.port.ReadsArrow`."""
        table, until, place = self._load(), place_from(end), place_from(start)
        if until is None or until.snapshot_id is None:
            return arrow_schema_of(columns).empty_table()
        self._check(table, place, until)
        if place is None and self.starts_with_rows:
            found = self._rows_within(table, until, limit)
        else:
            request = self._request(table, place or self._first(table), until)
            found = LocalChanges(request, request.range.plan()).within(limit)
        if found is None:
            return None
        known = dict(zip([*self._columns().names, *CHANGE_COLUMNS], self._record_names, strict=True))
        named = found.rename_columns([known.get(name, name) for name in found.column_names])
        try:
            return named.select(columns.names).replace_schema_metadata().cast(arrow_schema_of(columns))
        except pa.ArrowException:
            return None

    def contents(self, spark: SparkSession, end: Offsets) -> DataFrame:
        """The rows of the table at `end`, or all changes up to it if its first rows were not read."""
        return self.frame(spark, None, end)

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        until, place = place_from(end), place_from(start)
        table = self._load()
        if until is None or until.snapshot_id is None:
            return SizeHint(rows=0)
        if place is None and self.starts_with_rows:
            rows = rows_at(table, until)
            return UNKNOWN if rows is None else SizeHint(rows=rows)
        steps = steps_after(table, place or self._first(table))
        places = [step.place for step in steps]
        taken = steps[: places.index(until) + 1] if until in places else ()
        return SizeHint(rows=2 * sum(step.rows for step in taken))

    def ended(self, _end: Offsets) -> bool:
        return False

    def committed(self, offsets: Offsets) -> None:
        """Note what the consumer's tag may move to; it moves with the next poll."""
        self._committed = place_from(offsets) or self._committed

    def check_unchanged(self, start: Offsets, end: Offsets) -> None:
        """Raise SourceLost if the snapshots between these offsets are gone: their files may be removed."""
        until = place_from(end)
        if until is not None:
            self._check(self._load(), place_from(start), until)

    def _check(self, table: LoadedTable, place: TablePlace | None, until: TablePlace) -> None:
        steps = steps_after(table, until if place is None and self.starts_with_rows else place or self._first(table))
        if place is not None and until not in {step.place for step in steps}:
            raise SourceLost(
                f'the history of table "{self._ref}" was changed',
                detail=f"Snapshot {until.snapshot_id} was being read, and no longer follows {place.snapshot_id}.",
                hint="Start the sink again: it continues if the snapshot that it has committed is still there.",
            )

    @property
    def starts_with_rows(self) -> bool:
        """Whether the rows of the table come first, and not only its changes."""
        if self._filled is None:
            self._filled = self._definition.start in {SNAPSHOT, EARLIEST} or self._store.read(_FILLED) is not None
        return self._filled

    def _load(self) -> LoadedTable:
        found = load_table_or_none(self._catalog, self._ref.name)
        if found is None:
            raise SourceLost(f'table "{self._ref}" was dropped', hint="Restore it, or drop the sink that reads it.")
        check_version(found)
        return found

    def _first(self, table: LoadedTable) -> TablePlace:
        """Where changes start, if the rows before are not read; decided once."""
        kept = self._store.read(_BEGINNING)
        known = place_from(kept.decode()) if kept is not None else None
        if known is not None:
            return known
        start = self._definition.start
        chosen = newest_place(table) if start == LATEST else place_at(table, start)
        self._store.put(_BEGINNING, offsets_of(chosen).encode())
        return chosen

    @property
    def _record_names(self) -> list[str]:
        names: list[str] = record_fields(self._columns()).names
        return names

    def _rows_within(self, table: LoadedTable, place: TablePlace, limit: SizeLimit) -> pa.Table | None:
        """The rows of the table as inserts; None if they may be too many."""
        found = self._scan(table, place).select(self._columns().names)
        rows = rows_within(LocalRead(found, found.plan()), limit)
        if rows is None:
            return None
        size = rows.num_rows
        meta = (
            pa.repeat(pa.scalar(ChangeType.INSERT.value), size),
            pa.repeat(pa.scalar(place.sequence_number, pa.int64()), size),
            pa.nulls(size, META.field(TIMESTAMP).type),
            pa.nulls(size, META.field(FRONTIER).type),
        )
        for name, column in zip(CHANGE_COLUMNS, meta, strict=True):
            rows = rows.append_column(name, column)
        return rows

    def _scan(self, table: LoadedTable, place: TablePlace) -> Scan:
        return Scan.of(table, AsOf(snapshot_id=place.snapshot_id)).read_as(self._read_as().schema_id)

    def _contents(self, spark: SparkSession, table: LoadedTable, place: TablePlace) -> DataFrame:
        rows = frame_of(spark, self._scan(table, place), self._columns().names, None).frame
        found = rows.select(
            "*",
            F.lit(ChangeType.INSERT.value).alias(CHANGE_TYPE),
            F.lit(place.sequence_number).cast("bigint").alias(VERSION),
            F.lit(None).cast("timestamp").alias(TIMESTAMP),
            F.lit(None).cast("string").alias(FRONTIER),
        )
        return self._renamed(found)

    def _changes(self, spark: SparkSession, table: LoadedTable, since: TablePlace, until: TablePlace) -> DataFrame:
        rows = changes_frame(spark, self._request(table, since, until), None).frame
        return self._renamed(rows.select(*map(ident, [*self._columns().names, *CHANGE_COLUMNS])))

    def _request(self, table: LoadedTable, since: TablePlace, until: TablePlace) -> ChangeRequest:
        schema_id = self._read_as().schema_id
        found = ChangeRange.of(table, since.snapshot_id, until.snapshot_id, net=False).read_as(schema_id)
        check_order(table, [snapshot for _, snapshot in found.pairs])
        key = self._definition.key or None
        return ChangeRequest.of(found, key=key, columns=self._columns().names, net=False, before=True)

    def _renamed(self, frame: DataFrame) -> DataFrame:
        schema = self.schema(frame.sparkSession)
        return frame.toDF(*schema.names).to(schema)


def record_fields(columns: StructType) -> StructType:
    """The columns of a source over a table with these columns.

    The two columns of a log (MODE APPEND) lose their first letter: a sink has such columns of its own. The log of a log
    has both, so they are numbered.
    """
    taken = {f.name.lower() for f in columns}
    names = {name: _free_name(name.removeprefix("_"), taken) for name in (DIFF, TIME)}
    kept = [StructField(names.get(f.name, f.name), f.dataType, metadata=f.metadata) for f in columns]
    return StructType([*kept, *CHANGE_FIELDS])


def _free_name(wanted: str, taken: Collection[str]) -> str:
    numbered = (f"{wanted}_{number}" for number in count(2))
    return next(name for name in chain([wanted], numbered) if name not in taken)


def offsets_of(place: TablePlace) -> str:
    """A place as offsets."""
    return canonical_offsets({"sequence": place.sequence_number, "snapshot": place.snapshot_id, "table": place.uuid})


def place_from(offsets: Offsets) -> TablePlace | None:
    """The place of offsets; None for the beginning."""
    if offsets is None:
        return None
    found = json.loads(offsets)
    return TablePlace(found["table"], found["snapshot"], found["sequence"])


def with_reader(definition: TableChanges, sink_id: str) -> TableChanges:
    """The definition as one sink reads it."""
    return replace(definition, reader=sink_id)
