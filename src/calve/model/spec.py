"""The specification of a sink, checked and complete: everything that the stages need, nothing that they look up.

It includes the envelope, the policies, the partition fields, the options of table files, and the pace of checkpoints. A
commit interval determines when snapshots are committed, never how much is read.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from calve.calls import for_users
from calve.errors import InvalidInput
from calve.model.names import check_name
from calve.model.readers import Reader, layouts, version_for
from calve.values import value


@value
class PartitionBy:
    """One partition field. `transform` is Iceberg's name without the width: identity, bucket, day, ..."""

    transform: str
    column: tuple[str, ...]
    """The path of the column; more than one name for a field of a struct."""
    width: int | None = None
    """The number of buckets, or the truncation width."""

    def __str__(self) -> str:
        column = ".".join(self.column)
        if self.transform == "identity":
            return column
        width = "" if self.width is None else f"{self.width}, "
        return f"{self.transform}({width}{column})"


CHECKPOINTS_PER_WINDOW: Final = 300
"""Approximate number of checkpoints per window if no checkpoint interval is given."""


@value
class Pace:
    """The pause after a checkpoint that read everything available. A backlog is read without pauses."""

    every: float = 0.0
    """Minimum seconds between the starts of two checkpoints; 0: as data arrives."""
    at_multiples: bool = False
    """Checkpoints start at multiples of `every`, and each commits its window."""
    required: bool = True
    """Whether to pause if the source cannot tell whether it has more."""

    @classmethod
    def of(cls, commit_every: float, checkpoint_every: float, *, replay: bool = False) -> "Pace":
        """The pace for two intervals in seconds, 0 if not given. `replay`: one checkpoint per window."""
        if commit_every and replay:
            return cls(commit_every, at_multiples=True)
        if commit_every and not checkpoint_every:
            return cls(commit_every / CHECKPOINTS_PER_WINDOW, required=False)
        return cls(checkpoint_every)

    def rest(self, started: float, now: float, now_ms: int) -> float:
        """Seconds to wait after a checkpoint that started at `started`; `now` is of the same clock."""
        if self.at_multiples:
            return self.every - now_ms / 1000 % self.every
        return started + self.every - now


MAX_FILE_SIZE = 512_000_000
"""Bytes: the maximum and the default size of the Parquet files of a sink."""


class OnForeignCommit(StrEnum):
    """What to do when another writer changed the table's rows."""

    HALT = "halt"
    ACCEPT = "accept"


class Adopt(StrEnum):
    """Whether a sink adopts the existing rows of a table that it never wrote to."""

    NO = "false"
    CHECK = "true"
    """After a check that no key is null or duplicated."""
    TRUST = "trust"
    """Without a check."""


LATEST_FORMAT = 3
"""The latest format version of tables that calve writes."""


class Deletes(StrEnum):
    """How the rows that a change replaces or deletes are removed from the table."""

    POSITION = "position"
    """By their positions in data files, which each commit looks up."""
    EQUALITY = "equality"
    """By files of keys that readers compare every row with: cheap for the writer, expensive for every reader."""
    VECTOR = "vector"
    """By their positions, in deletion vectors. Tables of format version 3 have no other positions."""


def format_for(
    readers: tuple[Reader, ...], deletes: Deletes, format_version: int | None, *, append: bool
) -> int | None:
    """The format version that a sink asks for, or that all its readers read. Raises InvalidInput if there is none."""
    if not readers:
        return format_version
    asked = LATEST_FORMAT if format_version is None and deletes is Deletes.VECTOR else format_version
    return version_for(readers, layouts(by_key=deletes is Deletes.EQUALITY, keeps_all=append), asked)


class KeyIndexUse(StrEnum):
    """Whether positions of rows are looked up in an index of keys instead of the key columns of the table."""

    AUTO = "auto"
    """Where that costs less."""
    ON = "on"
    OFF = "off"


class Maintenance(StrEnum):
    """Whether a sink maintains the files of its table."""

    AUTO = "auto"
    OFF = "off"


class ThinSnapshots(StrEnum):
    """Which old snapshots are kept until their retention ends."""

    HOURLY = "hourly"
    OFF = "off"


class OnSchemaChange(StrEnum):
    """What to do when the columns of the input differ from those of the table."""

    EVOLVE = "evolve"
    HALT = "halt"


class OnKeyViolation(StrEnum):
    """What to do when a checkpoint has different rows with the same key and the same order."""

    IGNORE = "ignore"
    WARN = "warn"
    HALT = "halt"


class OnTruncate(StrEnum):
    """What to do when a Debezium record reports that the source table was truncated."""

    HALT = "halt"
    IGNORE = "ignore"


class OnUnavailableValue(StrEnum):
    """What to do when a Debezium record omits an unchanged large value, also from the before-image."""

    HALT = "halt"
    NULL = "null"


class LateRows(StrEnum):
    """What to do when a row is older than the closed frontier."""

    ERROR = "error"
    ADVANCE = "advance"
    """Give it the first time that is still open."""
    DROP = "drop"


class EpochUnit(StrEnum):
    """Unit of numbers in timestamp columns, counted since 1970."""

    MILLIS = "ms"
    MICROS = "us"
    NANOS = "ns"


@value
class TableName:
    """Namespace and name."""

    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> "TableName":
        """Parse `namespace.table`, with any number of levels. Raises InvalidInput."""
        *namespace, name = text.split(".")
        if not namespace or not name or not all(namespace):
            raise InvalidInput(f'"{text}" is not a table name', hint='Write "namespace.table".')
        return cls(tuple(namespace), name)

    def check(self) -> None:
        """Check that a table can be created with this name. Raises InvalidInput."""
        for level in self.namespace:
            check_name(level, "a namespace")
        check_name(self.name, "a table")

    @property
    def identifier(self) -> tuple[str, ...]:
        """Levels in order, the table's name last."""
        return (*self.namespace, self.name)

    @property
    def dead_letters(self) -> "TableName":
        """Where records go that cannot become rows of this table, unless the sink names another table."""
        return TableName(self.namespace, f"{self.name}_dead_letters")

    def __str__(self) -> str:
        return ".".join(self.identifier)


def _check_order(order_by: object) -> None:
    """Refuse a string, which would pass as a list of its letters. Raises InvalidInput."""
    if isinstance(order_by, str):
        raise InvalidInput(
            "order_by is a tuple of fields", detail=f'Got "{order_by}".', hint=f'Write order_by=("{order_by}",).'
        )
    if not isinstance(order_by, tuple | list) or not all(isinstance(one, str) for one in order_by):
        raise InvalidInput(
            "order_by is a tuple of fields", detail=f"Got {order_by!r}.", hint='Write order_by=("seq",).'
        )


def _choose(envelope: object, name: str, choices: type[StrEnum]) -> None:
    """Replace the text of a choice, which compares as equal but is not the same, with the choice."""
    given = getattr(envelope, name)
    if given is None or isinstance(given, choices):
        return
    if given not in set(choices):
        raise InvalidInput(f'unknown {name} "{given}"', hint=f"Use one of {', '.join(choices)}.")
    object.__setattr__(envelope, name, choices(given))


@for_users
@dataclass(frozen=True)
class NoEnvelope:
    """Every row is an insert."""

    order_by: tuple[str, ...] = ()
    """As in `Upsert`; without it, the last row to arrive wins."""

    def __post_init__(self) -> None:
        _check_order(self.order_by)


@for_users
@dataclass(frozen=True)
class Upsert:
    """A row replaces the row with its key, or deletes it where the Spark SQL condition `delete_when` is true.

    `order_by` names fields of the record, with dots for nested ones: among changes of one key in one checkpoint, the
    greatest wins. Without it the frame must come from Kafka, whose offsets order the changes.

    `columns` are the table's columns, as names (`id, amount`) or as Spark DDL (`id BIGINT NOT NULL, amount DOUBLE`);
    the default is every column of the frame. Fields used only in `order_by` and `delete_when` need not be among them. A
    frame from Kafka needs the DDL, since its records are JSON text.

    >>> Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, status").order_by
    ('seq',)
    >>> Upsert(order_by="seq")
    Traceback (most recent call last):
    calve.errors.InvalidInput: order_by is a tuple of fields
    """

    order_by: tuple[str, ...] = ()
    delete_when: str | None = None
    columns: str | None = None
    epoch_unit: EpochUnit | None = None
    """For JSON text only. None: a number in a timestamp column is a bad row."""
    across_checkpoints: bool = False
    """The order also applies between a change and the row in the table: a change that is older is dropped."""

    def __post_init__(self) -> None:
        _check_order(self.order_by)
        _choose(self, "epoch_unit", EpochUnit)


@for_users
@dataclass(frozen=True)
class Debezium:
    """Debezium change records with before, after and op.

    The record is either columns of the frame (`before`, `after`, `op`, ... or `payload` with them inside), or JSON
    text in the column `value` (with the key's JSON in `key`); then `columns` declares the table's columns as Spark
    DDL.

    >>> Debezium(order_by=("source.lsn",), columns="id BIGINT NOT NULL, name STRING").order_by
    ('source.lsn',)
    """

    order_by: tuple[str, ...] = ()
    columns: str | None = None
    on_truncate: OnTruncate = OnTruncate.HALT
    on_unavailable_value: OnUnavailableValue = OnUnavailableValue.HALT
    epoch_unit: EpochUnit | None = None
    """For JSON text without a schema part. None: microseconds; numbers that are implausible as such are bad rows."""
    across_checkpoints: bool = False
    """As in `Upsert`."""
    unavailable_value: str = "__debezium_unavailable_value"
    """The connector's `unavailable.value.placeholder`."""

    def __post_init__(self) -> None:
        _check_order(self.order_by)
        _choose(self, "on_truncate", OnTruncate)
        _choose(self, "on_unavailable_value", OnUnavailableValue)
        _choose(self, "epoch_unit", EpochUnit)


@for_users
@dataclass(frozen=True)
class Diff:
    """Rows with a time and a multiplicity: how many copies of the row are added, or removed, at that time.

    `time` (BIGINT milliseconds, or TIMESTAMP), `diff` (an integer) and `progress` (BOOLEAN) name fields of the record,
    with dots for nested ones. A row whose progress is true is not a change: it states that no smaller time follows or,
    without a time, that nothing follows. `columns` are the table's columns as in `Upsert`, by default all other columns
    of the frame.

    >>> Diff("time", "diff", "progress").progress
    'progress'
    """

    time: str
    diff: str
    progress: str | None = None
    columns: str | None = None


@value
class ChangeRows:
    """Rows of a change feed, as `calve.changes` returns them for every step, with before images.

    `_change_type` says what a row is, `_commit_version` orders the steps; all other columns are those of the table. A
    row that is deleted, or about to be replaced, is complete: it is the row before the change.
    """


Envelope = NoEnvelope | Upsert | Debezium | Diff | ChangeRows


def check_envelope(given: object) -> None:
    """Refuse anything but an envelope; None is the default one. Raises InvalidInput."""
    if given is not None and not isinstance(given, Envelope):
        raise InvalidInput(
            "unknown envelope",
            detail=f"Got {given!r}.",
            hint="Use calve.NoEnvelope(), calve.Upsert(...), calve.Debezium(...) or calve.Diff(...).",
        )


HEARTBEAT_MS = 3_600_000

MAX_PENDING_BATCHES = 100
"""Default maximum of batches that wait for the catalog."""

MAX_STAGED_SIZE = 8_000_000_000
"""Default maximum of bytes that a sink without row times stages."""


@value
class RowTimes:
    """Rows have their own logical time instead of that of their checkpoint."""

    late: LateRows
    field: str | None = None
    """Field of the record with the time, with dots for nested ones; None if the envelope names it."""
    by_progress: bool = False
    """Progress rows advance the frontier; otherwise it follows the highest time seen."""
    delay_ms: int = 0
    """How far the frontier lags behind the highest time."""
    idle_ms: int | None = None
    """Once the source has had no data for this long, the frontier follows the clock."""


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEAST_RETENTION_MS = HOUR_MS
"""Shorter retentions are raised to this: work in progress builds on snapshots that are this old."""
LEAST_GRACE_MS = HOUR_MS
GRACE_MS = DAY_MS


@value
class RetentionOptions:
    """How long a sink keeps old snapshots, and the files of expired ones."""

    max_age_ms: int | None = None
    """None: as the table says, else seven days."""
    min_snapshots: int | None = None
    """Snapshots of the branch that are kept whatever their age."""
    thin: bool = True
    """Whether one snapshot per hour is kept of those that are not among the newest."""
    grace_ms: int = GRACE_MS
    """Files are removed this long after their snapshot expired."""


@value
class DayHours:
    """Part of every day, in minutes since midnight UTC; it may contain midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> "DayHours":
        """Parse '22:00-06:30'. Raises InvalidInput."""
        found = re.fullmatch(r"(\d\d?):([0-5]\d)-(\d\d?):([0-5]\d)", text.replace(" ", ""), re.ASCII)
        times = [60 * int(found[at]) + int(found[at + 1]) for at in (1, 3)] if found else []
        if not times or max(times) > _DAY_MINUTES or times[0] == times[1] or times == [_DAY_MINUTES, 0]:
            raise InvalidInput(
                f'"{text}" is not a part of the day', hint="Write its start and its end in UTC: '22:00-06:00'."
            )
        return cls(*times)

    def __str__(self) -> str:
        return "-".join(f"{minutes // 60:02}:{minutes % 60:02}" for minutes in (self.start, self.end))

    def contains(self, instant_ms: int) -> bool:
        """Whether an instant is in this part of its day."""
        minute = instant_ms // 60_000 % _DAY_MINUTES
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


_DAY_MINUTES = 24 * 60


_ORDER_NAME = r'\s*("(?:[^"]|"")+"|[^\s",()]+)\s*'
MOST_INTERLEAVED = 8
"""The most columns of a Z-order: with more of them, files could hardly be told apart by any."""


@value
class RowOrder:
    """The order of rows in files that compactions write: by columns, or by the Z-order of columns."""

    columns: tuple[str, ...] = ()
    """Empty: by the table's sort order, else by the key."""
    interleaved: bool = False

    @classmethod
    def parse(cls, text: str) -> "RowOrder":
        """Parse 'region, created' or 'zorder(lat, lon)'; names may have double quotes. Raises InvalidInput."""
        inner = re.fullmatch(r"\s*zorder\s*\((.*)\)\s*", text, re.IGNORECASE | re.DOTALL)
        names = inner[1] if inner else text
        found = re.findall(_ORDER_NAME, names) if re.fullmatch(f"{_ORDER_NAME}(?:,{_ORDER_NAME})*", names) else []
        columns = tuple(one[1:-1].replace('""', '"') if one.startswith('"') else one for one in found)
        hint = "Write columns, 'region, created', or their Z-order: 'zorder(lat, lon)'."
        if not columns:
            raise InvalidInput(f'"{text}" is not an order of rows', hint=hint)
        if len(set(columns)) < len(columns):
            raise InvalidInput(f'"{text}" names a column twice', hint="Name each column once.")
        if inner and not 1 < len(columns) <= MOST_INTERLEAVED:
            raise InvalidInput(f"a Z-order has 2 to {MOST_INTERLEAVED} columns", detail=f"Got {text}.", hint=hint)
        return cls(columns, inner is not None)

    def __str__(self) -> str:
        names = [
            one if re.fullmatch(_ORDER_NAME, one) else '"{}"'.format(one.replace('"', '""')) for one in self.columns
        ]
        return f"zorder({', '.join(names)})" if self.interleaved else ", ".join(names)


@value
class CompactionOptions:
    """When a sink compacts its table, and what that may take from other work."""

    reads_per_hour: float | None = None
    """Expected full reads of the table; None: the default."""
    deleted_share: float | None = None
    """The share of deleted rows at which a file is rewritten; None: by cost."""
    small_files: int | None = None
    """The number of small files that are merged; None: by cost."""
    hours: DayHours | None = None
    """When compactions may begin; None: at any time."""
    core_share: float = 0.5
    """Share of Spark's cores that may rewrite files at the same time; at least one does."""
    order: RowOrder = RowOrder()
    """The order of rows in new files."""


EXTENSION_NAME, EXTENSION_METADATA = "ARROW:extension:name", "ARROW:extension:metadata"
"""Keys of Arrow's field metadata."""


@value
class ArrowExtension:
    """The Arrow extension type of a column, for instance `geoarrow.wkb` over bytes."""

    column: str
    name: str
    metadata: str = ""


@value
class WriteOptions:
    """The sink's options of table files; the table's properties decide what is not set here."""

    target_file_size: int | None = None
    row_group_size: int | None = None
    """In bytes of the file."""
    compression: str | None = None
    bloom_filter: bool = False
    """For the columns of the key."""
    extensions: tuple[ArrowExtension, ...] = ()

    def __post_init__(self) -> None:
        if self.target_file_size is not None and not 0 < self.target_file_size <= MAX_FILE_SIZE:
            raise InvalidInput(
                "target file size is out of range",
                detail=f"Got {self.target_file_size} bytes; the largest is {MAX_FILE_SIZE}.",
            )


@value
class SinkSpec:
    """One sink. `sink_id` is its UUID; `version` grows when its definition changes and fences older definitions."""

    name: str
    sink_id: str
    table: TableName
    key: tuple[str, ...]
    envelope: Envelope
    version: int = 1
    on_foreign_commit: OnForeignCommit = OnForeignCommit.HALT
    write: WriteOptions = field(default_factory=WriteOptions)
    window_ms: int | None = None
    """Checkpoints are staged and committed together at multiples of this; None: each is committed on its own."""
    generation: int = 0
    """Grows when the table is to be refilled: the first batch of a generation replaces all rows of the table."""
    accepted_snapshot: int | None = None
    """A snapshot that the user accepted: foreign changes up to it do not halt the sink."""
    deletes: Deletes = Deletes.POSITION
    format_version: int | None = None
    """Of the table, which is upgraded if it has an older one. None: see `table_format`."""
    readers: tuple[Reader, ...] = ()
    """Engines that have to be able to read the table."""
    key_index: KeyIndexUse = KeyIndexUse.AUTO
    partition_by: tuple[PartitionBy, ...] = ()
    """Partition fields of the table. Empty: an existing table keeps its own, a new one is not partitioned."""
    uuids: tuple[str, ...] = ()
    """Columns that are strings in Spark and UUIDs in a table that calve creates."""
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    unpartitioned: bool = False
    """Remove the partition fields of the table; `partition_by` is empty then."""
    on_key_violation: OnKeyViolation = OnKeyViolation.IGNORE
    branch: str = "main"
    """Branch of the table that commits go to."""
    append: bool = False
    """Keep every change as a row with its multiplicity and time instead of one row per key; there is no key."""
    times: RowTimes | None = None
    commit_bytes: int | None = None
    """Staged bytes at which a commit does not wait for the end of the window."""
    coalesce: bool = True
    """Whether windows, or times, that are complete together become one snapshot."""
    dead_letters: TableName | None = None
    """Table for records that cannot be converted to changes; None: they halt the sink."""
    maintenance: Maintenance = Maintenance.AUTO
    heartbeat_ms: int = HEARTBEAT_MS
    """An idle sink commits an empty snapshot this long after the last one."""
    pace: Pace = field(default_factory=Pace)
    max_pending_batches: int = MAX_PENDING_BATCHES
    """Reading pauses while this many batches wait for the catalog."""
    max_staged_size: int | None = None
    """Limit of staged bytes, if the sink sets one; see `staged_limit`."""
    adopt: Adopt = Adopt.NO
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    compaction: CompactionOptions = field(default_factory=CompactionOptions)

    def __post_init__(self) -> None:
        needed = self.table_format  # raises InvalidInput if readers exclude every version
        if self.deletes is Deletes.VECTOR and needed != LATEST_FORMAT:
            raise InvalidInput(
                "deletion vectors need format version 3",
                detail="Tables of format version 2 have position deletes instead.",
                hint="Add FORMAT VERSION = 3 (format_version=3), or use DELETES = 'position'.",
            )
        if self.deletes is Deletes.EQUALITY and (unfound := [name for name in self.key if name in self.uuids]):
            raise InvalidInput(
                f'column "{unfound[0]}" cannot be a key with equality deletes',
                detail="Spark with the Iceberg runtime does not apply equality deletes to UUIDs.",
                hint="Use DELETES = 'position', or declare it as STRING.",
            )
        if self.adopts and isinstance(self.envelope, Diff):
            raise InvalidInput(
                "ADOPT is not supported with ENVELOPE DIFF",
                detail="Existing rows have neither a time nor a multiplicity.",
                hint="Leave ADOPT out, and write to an empty table.",
            )
        against = [
            (self.append, "MODE APPEND keeps every change and drops none."),
            (self.times is not None, "Rows have times of their own, which order them."),
            (self.deletes is Deletes.EQUALITY, "Equality deletes compare keys only, not which of two rows is newer."),
        ]
        for given, reason in against:
            if given and self.ordered:
                raise InvalidInput(
                    "an order across checkpoints is not supported for this sink",
                    detail=reason,
                    hint="Leave GLOBAL (across_checkpoints) out, or MODE APPEND, TIME COLUMN and DELETES = 'equality'.",
                )

    @property
    def table_format(self) -> int | None:
        """The format version that the table must have: the one asked for, or the only one that all readers read.

        None: an existing table keeps its own, a new one has version 2.
        """
        return format_for(self.readers, self.deletes, self.format_version, append=self.append)

    @property
    def adopts(self) -> bool:
        """Whether rows from before this sink's first commit are kept; a new generation replaces them."""
        return self.adopt is not Adopt.NO and not self.generation

    @property
    def ordered(self) -> bool:
        """Whether changes are compared with the rows in the table."""
        return isinstance(self.envelope, Upsert | Debezium) and self.envelope.across_checkpoints

    @property
    def order_by(self) -> tuple[str, ...]:
        """The fields of the records that order changes of a key."""
        return getattr(self.envelope, "order_by", ())

    @property
    def staged_limit(self) -> int | None:
        """Staged bytes at which the sink closes its window early. None: no limit.

        Where rows have times of their own, the sink halts at the limit if no time is complete.
        """
        by_default = MAX_STAGED_SIZE if self.times is None else None
        return by_default if self.max_staged_size is None else self.max_staged_size

    @property
    def stages(self) -> bool:
        """Whether checkpoints are staged before they are committed."""
        return self.window_ms is not None or self.times is not None or self.commit_bytes is not None
