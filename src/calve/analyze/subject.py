"""What is analyzed, as values: files that are there, what looking into one found, and whoever can do both."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from calve.metastore.statistics import ColumnStatistics
from calve.metastore.tables import TableId
from calve.sql.statements import MetadataLevel

Columns = Mapping[str, ColumnStatistics]
"""What is known of columns, by name; a field of a struct is `column.field`."""

DEPTH: Final = (
    MetadataLevel.TABLE,
    MetadataLevel.SEGMENT,
    MetadataLevel.PARTITION,
    MetadataLevel.FILE,
    MetadataLevel.ROW_GROUP,
)
"""Levels, each with all those before it."""


def reaches(level: MetadataLevel, other: MetadataLevel) -> bool:
    """Whether metadata of a level has that of another one."""
    return DEPTH.index(level) >= DEPTH.index(other)


@dataclass(frozen=True)
class ListedFile:
    """A file as it is now."""

    name: str
    """Tells it from all others of the table."""
    path: str
    folders: tuple[str, ...]
    """The segments it is in, from the top."""
    size: int
    stamp: int
    """Time of its last modification in nanoseconds; 0 where files never change."""

    @property
    def fingerprint(self) -> tuple[str, int, int]:
        """A file with another one has to be looked into again."""
        return self.name, self.size, self.stamp


@dataclass(frozen=True)
class GroupLook:
    """What a row group holds."""

    rows: int
    bytes: int
    columns: Columns


@dataclass(frozen=True)
class FileLook:
    """What a file holds."""

    schema: str
    """Spark's, as JSON."""
    rows: int
    columns: Columns
    groups: tuple[GroupLook, ...] = ()
    exact: bool = True
    """False when rows of it may be deleted."""


@dataclass(frozen=True)
class WantedFacts:
    """What has to be found out: of which columns (None: all), and whether of row groups."""

    columns: tuple[str, ...] | None = None
    row_groups: bool = True

    def has(self, column: str) -> bool:
        """Whether a column, or a struct that it is in, is wanted. Case does not matter, as it does not to Spark."""
        return self.columns is None or any(within(column, one) for one in self.columns)


def within(column: str, wanted: str) -> bool:
    """Whether a column is another one, or a field of it."""
    return f"{column.lower()}.".startswith(f"{wanted.lower()}.")


class AnalysisSubject(Protocol):
    """Something that can be analyzed."""

    @property
    def table(self) -> TableId:
        """Its name in the metastore."""
        ...

    @property
    def kind(self) -> str:
        """PARQUET, CSV, JSON or ICEBERG."""
        ...

    @property
    def location(self) -> str:
        """Where it is."""
        ...

    @property
    def reader(self) -> Mapping[str, str]:
        """How its files are read; metadata of another way is of no use."""
        ...

    @property
    def deepest(self) -> MetadataLevel:
        """The deepest level that it has."""
        ...

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """What its folders stand for, from the top; empty for folders that are just names."""
        ...

    def listing(self) -> Sequence[ListedFile]:
        """All files that are there now."""
        ...

    def look(self, files: Sequence[ListedFile], wanted: WantedFacts) -> list[FileLook]:
        """What is in these files, in their order. Raises InvalidInput, TransientError."""
        ...

    def schema(self, schemas: Iterable[str]) -> str:
        """The columns of the whole, out of those of its files. Raises InvalidInput when they do not fit."""
        ...


def digest_of(files: Iterable[ListedFile]) -> str:
    """Equal for equal sets of files."""
    listed = json.dumps(sorted(file.fingerprint for file in files))
    return hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()[:32]
