"""What a sink is, checked and complete: everything the stages need, nothing they have to look up.

How a table is to be partitioned, as a sink says it.

When checkpoints are taken. A commit interval says when snapshots are made and never how much is read.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from calve.errors import InvalidInput
from calve.model.names import check_name


@dataclass(frozen=True)
class PartitionBy:
    """One partition field. `transform` is Iceberg's name of it without the width: identity, bucket, day, ..."""

    transform: str
    column: tuple[str, ...]
    """The column's name; more than one for a field inside of a struct."""
    width: int | None = None
    """The number of buckets, or the width of truncation."""

    def __str__(self) -> str:
        column = ".".join(self.column)
        if self.transform == "identity":
            return column
        width = "" if self.width is None else f"{self.width}, "
        return f"{self.transform}({width}{column})"


CHECKPOINTS_PER_WINDOW: Final = 300
"""About so many checkpoints are staged for a window when nobody said how often they are taken."""


@dataclass(frozen=True)
class Pace:
    """The rest after a checkpoint that left nothing behind. A backlog is read without any rest."""

    every: float = 0.0
    """Least seconds between the starts of two checkpoints; 0: as data comes."""
    at_multiples: bool = False
    """Checkpoints start at multiples of `every`: each of them is the commit of its window."""
    required: bool = True
    """Whether to rest where the source does not say if it has more."""

    @classmethod
    def of(cls, commit_every: float, checkpoint_every: float, *, replay: bool = False) -> "Pace":
        """From the two intervals, in seconds and 0 where not given. `replay`: one checkpoint for every window."""
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
"""Bytes; the largest Parquet file a sink writes, and the default."""


class OnForeignCommit(StrEnum):
    """When another writer changed the table's rows."""

    HALT = "halt"
    ACCEPT = "accept"


class Adopt(StrEnum):
    """Whether the rows of a table that this sink never wrote to count as the collection so far."""

    NO = "false"
    CHECK = "true"
    """Once they were read: no key may be null or there twice."""
    TRUST = "trust"
    """Without a look at them."""


class Deletes(StrEnum):
    """How the rows that a change replaces or deletes leave the table."""

    EQUALITY = "equality"
    """By files of keys that readers compare every row with: free for the writer, dear for all others."""
    POSITION = "position"
    """By their places in data files, looked up in each commit."""


class KeyIndexUse(StrEnum):
    """Whether the places of rows are looked up in an index of keys instead of in the key columns of the table."""

    AUTO = "auto"
    """Where that costs less."""
    ON = "on"
    OFF = "off"


class Maintenance(StrEnum):
    """Whether a sink keeps the files of its table in shape by itself."""

    AUTO = "auto"
    OFF = "off"


class OnSchemaChange(StrEnum):
    """When the input of a sink has other columns than its table."""

    EVOLVE = "evolve"
    HALT = "halt"


class OnKeyViolation(StrEnum):
    """When a checkpoint has different rows of one key, and the envelope's order does not tell which is the last."""

    IGNORE = "ignore"
    WARN = "warn"
    HALT = "halt"


class OnTruncate(StrEnum):
    """When a Debezium record says that the source table was truncated."""

    HALT = "halt"
    IGNORE = "ignore"


class OnUnavailableValue(StrEnum):
    """When a Debezium record leaves out an unchanged large value and the before-image lacks it, too."""

    HALT = "halt"
    NULL = "null"


class LateRows(StrEnum):
    """When a row is behind the frontier up to which the table was closed already."""

    ERROR = "error"
    ADVANCE = "advance"
    """It gets the first time that is still open."""
    DROP = "drop"


class EpochUnit(StrEnum):
    """What a number stands for where a timestamp is declared: so many of these since 1970."""

    MILLIS = "ms"
    MICROS = "us"
    NANOS = "ns"


@dataclass(frozen=True)
class TableName:
    """Namespace and name."""

    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> "TableName":
        """From `namespace.table`, with any number of levels."""
        *namespace, name = text.split(".")
        if not namespace or not name or not all(namespace):
            raise InvalidInput(f'"{text}" is not a table name', hint='Write "namespace.table".')
        return cls(tuple(namespace), name)

    def check(self) -> None:
        """Whether a table may be made with this name. Raises InvalidInput."""
        for level in self.namespace:
            check_name(level, "a namespace")
        check_name(self.name, "a table")

    @property
    def identifier(self) -> tuple[str, ...]:
        """Levels in order, the table's name last."""
        return (*self.namespace, self.name)

    def __str__(self) -> str:
        return ".".join(self.identifier)


def _check_fields(order_by: object) -> None:
    """A text would be taken for a list of its letters. Raises InvalidInput."""
    if isinstance(order_by, str):
        raise InvalidInput(
            "order_by is a tuple of fields", detail=f'Got "{order_by}".', hint=f'Write order_by=("{order_by}",).'
        )


@dataclass(frozen=True)
class NoEnvelope:
    """Every row is an insert."""

    order_by: tuple[str, ...] = ()
    """As of `Upsert`; without it the last one to arrive wins."""

    def __post_init__(self) -> None:
        _check_fields(self.order_by)


@dataclass(frozen=True)
class Upsert:
    """A row replaces the row with its key; `delete_when` (a Spark SQL condition on the record) says which rows delete.

    `order_by` names fields of the record, dots for nested ones: the greatest wins among changes of one key in one
    checkpoint. Without it the frame must come from Kafka, whose offset orders.

    `columns` are the table's columns, as names (`id, amount`) or as Spark DDL (`id BIGINT NOT NULL, amount DOUBLE`);
    without it every column of the frame is one. Fields used only in `order_by` and `delete_when` need not be among
    them. A frame from Kafka needs the DDL, since its records are JSON text.
    """

    order_by: tuple[str, ...] = ()
    delete_when: str | None = None
    columns: str | None = None
    epoch_unit: EpochUnit | None = None
    """For JSON text only. None: a number where a timestamp is declared is a bad row."""
    across_checkpoints: bool = False
    """The order also holds between a change and the row in the table: an older change that comes later is left out."""

    def __post_init__(self) -> None:
        _check_fields(self.order_by)


@dataclass(frozen=True)
class Debezium:
    """Change records with before, after and op.

    The record is either columns of the frame (`before`, `after`, `op`, ... or `payload` with them inside), or JSON
    text in the column `value` (with the key's JSON in `key`); then `columns` declares the table's columns as Spark
    DDL.
    """

    order_by: tuple[str, ...] = ()
    columns: str | None = None
    on_truncate: OnTruncate = OnTruncate.HALT
    on_unavailable_value: OnUnavailableValue = OnUnavailableValue.HALT
    epoch_unit: EpochUnit | None = None
    """For JSON text without a schema part. None: microseconds, and numbers that make no sense as such are bad rows."""
    across_checkpoints: bool = False
    """As of `Upsert`."""
    unavailable_value: str = "__debezium_unavailable_value"
    """The connector's `unavailable.value.placeholder`."""

    def __post_init__(self) -> None:
        _check_fields(self.order_by)


@dataclass(frozen=True)
class Diff:
    """Rows with a time and a multiplicity: so many of the row come, or go, at that time.

    `time` (BIGINT milliseconds, or TIMESTAMP), `diff` (an integer) and `progress` (BOOLEAN) name fields of the record,
    dots for nested ones. A row whose progress is true is no change: no time below its own follows; if it has none,
    nothing follows. `columns` are the table's columns as of `Upsert`, by default all others of the frame.
    """

    time: str
    diff: str
    progress: str | None = None
    columns: str | None = None


Envelope = NoEnvelope | Upsert | Debezium | Diff

HEARTBEAT_MS = 3_600_000

MAX_PENDING_BATCHES = 100
"""Batches that may wait for the catalog, unless the sink says otherwise."""

MAX_STAGED_SIZE = 8_000_000_000
"""Bytes that a sink by the clock may stage, unless it says otherwise."""


@dataclass(frozen=True)
class RowTimes:
    """Rows have a logical time of their own, instead of that of their checkpoint."""

    late: LateRows
    field: str | None = None
    """Of the record, dots for nested ones; None where the envelope names it."""
    by_progress: bool = False
    """Progress rows move the frontier; else it follows the highest time seen."""
    delay_ms: int = 0
    """How far the frontier stays behind the highest time."""
    idle_ms: int | None = None
    """When the source was asked for so long and had nothing, the frontier follows the clock."""


EXTENSION_NAME, EXTENSION_METADATA = "ARROW:extension:name", "ARROW:extension:metadata"
"""Where Arrow looks for them in the metadata of a field."""


@dataclass(frozen=True)
class ArrowExtension:
    """What Arrow calls the type of a column beyond how it is stored: `geoarrow.wkb` for bytes, for instance."""

    column: str
    name: str
    metadata: str = ""


@dataclass(frozen=True)
class WriteOptions:
    """How table files are written, as far as the sink says so; else it is the table that says it."""

    target_file_size: int | None = None
    row_group_size: int | None = None
    """Bytes in the file."""
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


@dataclass(frozen=True)
class SinkSpec:
    """One sink. `sink_id` is its uuid; `version` grows when its definition changes and fences older definitions."""

    name: str
    sink_id: str
    table: TableName
    key: tuple[str, ...]
    envelope: Envelope
    version: int = 1
    on_foreign_commit: OnForeignCommit = OnForeignCommit.HALT
    write: WriteOptions = field(default_factory=WriteOptions)
    window_ms: int | None = None
    """Checkpoints are staged, and committed together at multiples of this; None: each one is committed by itself."""
    generation: int = 0
    """Grows when the table is to be filled anew: the first batch of a generation replaces what the table holds."""
    accepted_snapshot: int | None = None
    """A snapshot that the user vouched for: foreign changes up to it are no reason to halt."""
    deletes: Deletes = Deletes.POSITION
    key_index: KeyIndexUse = KeyIndexUse.AUTO
    partition_by: tuple[PartitionBy, ...] = ()
    """How the table is partitioned; a table that exists keeps its own way, and none here asks for none."""
    uuids: tuple[str, ...] = ()
    """Columns that are texts in Spark and uuids in a table that is made."""
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    unpartitioned: bool = False
    """The table is to lose its partitions; `partition_by` is empty then."""
    on_key_violation: OnKeyViolation = OnKeyViolation.IGNORE
    branch: str = "main"
    """Branch of the table that commits go to."""
    append: bool = False
    """Keep every change as a row with its multiplicity and its time, instead of one row per key; there is no key."""
    times: RowTimes | None = None
    commit_bytes: int | None = None
    """Staged bytes that are committed without waiting for the end of their window."""
    coalesce: bool = True
    """Whether windows, or times, that are complete together become one snapshot."""
    dead_letters: TableName | None = None
    """Where records go that cannot become changes; None: they stop the sink."""
    maintenance: Maintenance = Maintenance.AUTO
    heartbeat_ms: int = HEARTBEAT_MS
    """An idle sink commits an empty snapshot this long after the last one."""
    pace: Pace = field(default_factory=Pace)
    max_pending_batches: int = MAX_PENDING_BATCHES
    """With so many batches waiting for the catalog nothing more is read."""
    max_staged_size: int | None = None
    """Staged bytes, as far as the sink says so; see `staged_limit`."""
    adopt: Adopt = Adopt.NO

    def __post_init__(self) -> None:
        if self.deletes is Deletes.EQUALITY and (unfound := [name for name in self.key if name in self.uuids]):
            raise InvalidInput(
                f'column "{unfound[0]}" cannot be a key with equality deletes',
                detail="Spark with the Iceberg runtime finds no uuid by equality deletes.",
                hint="Use DELETES = 'position', or declare it as STRING.",
            )
        if self.adopts and isinstance(self.envelope, Diff):
            raise InvalidInput(
                "a table cannot be taken over with ENVELOPE DIFF",
                detail="Rows that are there have neither a time nor a multiplicity.",
                hint="Leave ADOPT out, and write to an empty table.",
            )
        against = [
            (self.append, "A table that keeps every change has nothing to leave out."),
            (self.times is not None, "Rows have times of their own, which order them."),
            (self.deletes is Deletes.EQUALITY, "Keys alone do not tell which of two rows is the newer one."),
        ]
        for given, reason in against:
            if given and self.ordered:
                raise InvalidInput(
                    "an order across checkpoints does not fit to this sink",
                    detail=reason,
                    hint="Leave GLOBAL (across_checkpoints) out, or MODE APPEND, TIME COLUMN and DELETES = 'equality'.",
                )

    @property
    def adopts(self) -> bool:
        """Whether rows that are in the table before this sink's first commit stay; a new generation replaces them."""
        return self.adopt is not Adopt.NO and not self.generation

    @property
    def ordered(self) -> bool:
        """Whether changes are compared with the rows of the table."""
        return isinstance(self.envelope, Upsert | Debezium) and self.envelope.across_checkpoints

    @property
    def staged_limit(self) -> int | None:
        """Staged bytes at which a sink by the clock closes its window early. None: no limit.

        Where rows have times of their own the sink ends there if nothing can be closed.
        """
        by_default = MAX_STAGED_SIZE if self.times is None else None
        return by_default if self.max_staged_size is None else self.max_staged_size

    @property
    def stages(self) -> bool:
        """Whether checkpoints are staged before they are committed."""
        return self.window_ms is not None or self.times is not None or self.commit_bytes is not None
