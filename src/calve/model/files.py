"""Files of a batch on their way into the table: write target -> written file -> manifest -> committable.

`WriteTarget` (where and how to write) and `WrittenFile` travel to and from executors by pickle, so they hold plain
values only. `Manifest` and `Committable` are kept in durable records as JSON: a committable names its manifests and
never its files, so a record stays small however many files a batch has.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import IntEnum
from operator import add
from typing import Any, Self

from calve.model.frontier import BatchDescription, Frontier
from calve.model.scan import ContentId
from calve.model.spec import MAX_FILE_SIZE, ArrowExtension


class Content(IntEnum):
    """The content of a file, with the numbers of the Iceberg specification."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True)
class ColumnMetrics:
    """Per field id; bounds in Iceberg's single-value binary form."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector:
    """A deletion vector in its Puffin file."""

    data_file: str
    """The data file whose rows it deletes."""
    offset: int
    length: int


@dataclass(frozen=True)
class WrittenFile:
    """One Parquet file, or a Puffin file with one deletion vector, that is complete in the store."""

    content: Content
    path: str
    record_count: int
    size: int
    spec_id: int
    partition: tuple[Any, ...]
    metrics: ColumnMetrics
    split_offsets: tuple[int, ...]
    equality_ids: tuple[int, ...] = ()
    vector: Vector | None = None

    @property
    def id(self) -> ContentId:
        """What distinguishes it from all other files of a table."""
        if self.vector is None:
            return ContentId(self.path)
        return ContentId(self.path, self.vector.offset, self.vector.length, self.vector.data_file)

    @property
    def content_size(self) -> int:
        """The size of the file or, of a Puffin file, that of the vector."""
        return self.size if self.vector is None else self.vector.length


@dataclass(frozen=True)
class WriteResult:
    """All files of a batch. `changes` counts the input, before deduplication by key."""

    files: tuple[WrittenFile, ...]
    changes: int

    @property
    def data_files(self) -> tuple[WrittenFile, ...]:
        """Files with rows."""
        return tuple(f for f in self.files if f.content is Content.DATA)

    @property
    def delete_files(self) -> tuple[WrittenFile, ...]:
        """Files with deletes."""
        return tuple(f for f in self.files if f.content is not Content.DATA)


@dataclass(frozen=True)
class FieldSummary:
    """Bounds of one partition field over a manifest."""

    contains_null: bool
    contains_nan: bool | None
    lower: bytes | None
    upper: bytes | None


@dataclass(frozen=True)
class Manifest:
    """A manifest of added files that inherit snapshot id and sequence number, so that any attempt can commit it."""

    path: str
    length: int
    spec_id: int
    content: Content
    """DATA or, for any kind of delete, not DATA."""
    files: int
    rows: int
    partitions: tuple[FieldSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        partitions = [[p.contains_null, p.contains_nan, _text(p.lower), _text(p.upper)] for p in self.partitions]
        return {**vars(self), "content": int(self.content), "partitions": partitions}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        partitions = tuple(
            FieldSummary(null, nan, _raw(low), _raw(high)) for null, nan, low, high in value["partitions"]
        )
        return cls(**{**value, "content": Content(value["content"]), "partitions": partitions})


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()


def _raw(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


@dataclass(frozen=True)
class FileTotals:
    """Counts of a committable, for the snapshot's summary and for metrics."""

    changes: int = 0
    data_files: int = 0
    data_rows: int = 0
    data_bytes: int = 0
    equality_delete_files: int = 0
    equality_deletes: int = 0
    position_delete_files: int = 0
    position_deletes: int = 0
    delete_bytes: int = 0
    vectors: int = 0

    @classmethod
    def of(cls, result: WriteResult) -> Self:
        """Totals of everything in a write result."""
        equality = [f for f in result.files if f.content is Content.EQUALITY_DELETES]
        position = [f for f in result.files if f.content is Content.POSITION_DELETES]
        vectors = sum(f.vector is not None for f in position)
        return cls(
            changes=result.changes,
            data_files=len(result.data_files),
            data_rows=sum(f.record_count for f in result.data_files),
            data_bytes=sum(f.size for f in result.data_files),
            equality_delete_files=len(equality),
            equality_deletes=sum(f.record_count for f in equality),
            position_delete_files=len(position) - vectors,
            position_deletes=sum(f.record_count for f in position),
            delete_bytes=sum(f.content_size for f in equality + position),
            vectors=vectors,
        )

    def plus(self, other: "FileTotals") -> "FileTotals":
        """The sum of both."""
        return FileTotals(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class RowsWithIds:
    """The rows of a batch, written again because some keep the ids of rows that they replace."""

    manifests: tuple[Manifest, ...]
    """Of all rows of the batch; they take the place of the batch's own manifests."""
    new: tuple[str, ...]
    """The files and manifests that were written for this."""
    unused: tuple[str, ...]
    """The files and manifests of the batch that are not needed if these manifests are committed."""


@dataclass(frozen=True)
class ResolvedDeletes:
    """The position deletes of a batch, resolved against one snapshot of the table."""

    manifests: tuple[Manifest, ...] = ()
    totals: FileTotals = FileTotals()
    """Of the rows that this batch deletes."""
    merged: FileTotals = FileTotals()
    """Of earlier deletes of the table that were merged into the new files."""
    replaced: tuple[ContentId, ...] = ()
    """The deletes that contained them."""
    key_index: str = ""
    """The new manifest of the sink's key index; empty if the previous one stays valid."""
    rows: RowsWithIds | None = None
    """The rows with the ids that they keep; None if all of them get new ones. `totals` contains the difference."""

    @property
    def all_manifests(self) -> tuple[Manifest, ...]:
        """Everything that a commit with these deletes refers to, apart from the files of the batch itself."""
        return self.manifests + (self.rows.manifests if self.rows else ())


@dataclass(frozen=True)
class Committable:
    """The files of one batch, ready to commit. Immutable within its run: a request that timed out may still land."""

    commit_id: str
    batch: BatchDescription
    query_id: str
    checkpoint: int
    offsets: str | None
    """End offsets of the last checkpoint whose rows are all in the table once this is committed."""
    manifests: tuple[Manifest, ...] = ()
    totals: FileTotals = FileTotals()
    generation: int = 0
    """The first committable of a new generation replaces all rows of the table."""
    keys: tuple[Manifest, ...] = ()
    """Manifests of key files, whose rows are deleted by position. They never become part of the table: every attempt
    looks up the positions of the rows, and the files are removed once the batch is committed."""
    ahead: str = ""
    """Digest of the end offsets of the last checkpoint that has some, but not all, of its rows in this batch."""
    letters: str = ""
    """The replay of dead letters whose rows are in this batch; empty if there is none."""

    @property
    def empty(self) -> bool:
        """True if it only advances progress."""
        return not self.manifests and not self.keys

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "commit-id": self.commit_id,
            "lower": self.batch.lower.to_json(),
            "upper": self.batch.upper.to_json(),
            "query-id": self.query_id,
            "checkpoint": self.checkpoint,
            "offsets": self.offsets,
            "manifests": [m.to_json() for m in self.manifests],
            "totals": {**vars(self.totals)},
            "generation": self.generation,
            "keys": [m.to_json() for m in self.keys],
            "ahead": self.ahead,
            "letters": self.letters,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(
            commit_id=value["commit-id"],
            batch=BatchDescription(Frontier.from_json(value["lower"]), Frontier.from_json(value["upper"])),
            query_id=value["query-id"],
            checkpoint=value["checkpoint"],
            offsets=value["offsets"],
            manifests=tuple(Manifest.from_json(m) for m in value["manifests"]),
            totals=FileTotals(**value["totals"]),
            generation=value.get("generation", 0),
            keys=tuple(Manifest.from_json(m) for m in value.get("keys", ())),
            ahead=value.get("ahead", ""),
            letters=value.get("letters", ""),
        )


@dataclass(frozen=True)
class BloomFilter:
    """A Bloom filter over the values of one column, by its name in the table."""

    column: str
    false_positives: float = 0.01
    distinct: int | None = None
    """Expected number of distinct values; None: the writer estimates it."""


@dataclass(frozen=True)
class FileOptions:
    """All options of table files, resolved. None leaves a value to the writer."""

    target_file_size: int = MAX_FILE_SIZE
    row_group_rows: int = 1 << 20
    row_group_size: int | None = None
    compression: str = "zstd"
    compression_level: int | None = None
    page_size: int | None = None
    page_rows: int | None = None
    dictionary_size: int | None = None
    bloom_filters: tuple[BloomFilter, ...] = ()
    extensions: tuple[ArrowExtension, ...] = ()


@dataclass(frozen=True)
class KeyPlace:
    """Location of key files if the table's store does not allow deletion."""

    location: str
    io_properties: dict[str, str] = field(default_factory=dict, repr=False)
    takes_new: bool = True
    """False: no more files may be added."""


@dataclass(frozen=True)
class WriteTarget:
    """A table as writers see it."""

    schema_json: str
    """The Iceberg schema of rows (pyiceberg's JSON), with field ids on every level."""
    key_ids: tuple[int, ...]
    """Field ids of the key columns, in key order."""
    data_location: str
    """URI of the folder for files: the table's `write.data.path`, or its location + /data."""
    data_spec_id: int
    """Partition spec of data files."""
    delete_spec_id: int
    """An unpartitioned spec: its equality deletes apply to rows of every partition and every older spec."""
    data_spec_json: str = ""
    """The spec of data files (pyiceberg's JSON); empty if it has no fields."""
    key_location: str = ""
    """URI of the folder for key files, if it differs from `data_location`."""
    table_properties: dict[str, str] = field(default_factory=dict)
    """For metrics modes."""
    io_properties: dict[str, str] = field(default_factory=dict, repr=False)
    """Endpoint and credentials of the store."""
    options: FileOptions = field(default_factory=FileOptions)
    mark: str = ""
    """Part of the names of files (`iceberg/files/names.py`)."""
    file_schema_json: str = ""
    """The schema of data files, if they have columns that rows lack: these have their write default in every row."""


@dataclass(frozen=True)
class ColumnNeeds:
    """Requirements of a table on its columns beyond what the input declares, by the input's column names."""

    required: frozenset[str] = frozenset()
    """Columns that must not be null."""
    uuids: frozenset[str] = frozenset()
    """Text columns that must contain UUIDs."""


NO_NEEDS = ColumnNeeds()


def tier_of(size: int, smallest: int, fan: int) -> int:
    """The size tier of what is merged with its like: 0 up to `smallest`, then one more for every factor `fan`.

    Merging `fan` members of one tier gives a member of the next, so that everything is rewritten a few times only.
    """
    tier = 0
    while size > smallest:
        size //= fan
        tier += 1
    return tier
