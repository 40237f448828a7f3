"""Where and how the files of one batch are written. Goes to executors by pickle, so it holds plain values only."""

from dataclasses import dataclass, field

from calve.model.spec import MAX_FILE_SIZE, ArrowExtension


@dataclass(frozen=True)
class BloomFilter:
    """A filter for the values of one column, by its name in the table."""

    column: str
    false_positives: float = 0.01
    distinct: int | None = None
    """Number of values that it is made for; None: the writer's own guess."""


@dataclass(frozen=True)
class FileOptions:
    """How table files are written, complete. None leaves it to the writer."""

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
    """Where files of keys are if the store of a table lets nobody delete."""

    location: str
    io_properties: dict[str, str] = field(default_factory=dict, repr=False)
    takes_new: bool = True
    """False: no file is added to those that are there."""


@dataclass(frozen=True)
class WriteTarget:
    """A table as writers see it."""

    schema_json: str
    """The Iceberg schema (pyiceberg's JSON), with field ids on every level."""
    key_ids: tuple[int, ...]
    """Field ids of the key columns, in key order."""
    data_location: str
    """Files go here: the table's `write.data.path` or its location + /data, as a URI."""
    data_spec_id: int
    """Partition spec of data files."""
    delete_spec_id: int
    """An unpartitioned spec: equality deletes under it reach rows of every partition and every older spec."""
    data_spec_json: str = ""
    """The spec of data files (pyiceberg's JSON); empty where it has no field."""
    key_location: str = ""
    """Files of keys go here, where it is not the same."""
    table_properties: dict[str, str] = field(default_factory=dict)
    """For metrics modes."""
    io_properties: dict[str, str] = field(default_factory=dict, repr=False)
    """What the store needs (endpoint, credentials)."""
    options: FileOptions = field(default_factory=FileOptions)


@dataclass(frozen=True)
class ColumnNeeds:
    """What a table asks of columns beyond what its input declares, by the names that the input has for them."""

    required: frozenset[str] = frozenset()
    """Columns that must not be null."""
    uuids: frozenset[str] = frozenset()
    """Texts that must be uuids."""


NO_NEEDS = ColumnNeeds()
