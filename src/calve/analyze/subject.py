"""What is analyzed: listed files, their inspected contents, and the protocol of subjects that provide both."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from calve.metastore.statistics import ColumnStatistics
from calve.metastore.tables import TableId
from calve.sql.statements import MetadataLevel

Columns = Mapping[str, ColumnStatistics]
"""Statistics by column name; a field of a struct is `column.field`."""

DEPTH: Final = (
    MetadataLevel.TABLE,
    MetadataLevel.SEGMENT,
    MetadataLevel.PARTITION,
    MetadataLevel.FILE,
    MetadataLevel.ROW_GROUP,
)
"""The levels; each includes all those before it."""


def reaches(level: MetadataLevel, other: MetadataLevel) -> bool:
    """Whether metadata of one level includes that of another."""
    return DEPTH.index(level) >= DEPTH.index(other)


@dataclass(frozen=True)
class ListedFile:
    """A file at the time of listing."""

    name: str
    """Unique within the table."""
    path: str
    folders: tuple[str, ...]
    """The segments that contain it, from the top."""
    size: int
    stamp: int
    """Time of its last modification in nanoseconds; 0 if files never change."""

    @property
    def fingerprint(self) -> tuple[str, int, int]:
        """Changes when the file has to be inspected again."""
        return self.name, self.size, self.stamp


@dataclass(frozen=True)
class GroupLook:
    """The contents of a row group."""

    rows: int
    bytes: int
    columns: Columns


@dataclass(frozen=True)
class FileLook:
    """The contents of a file."""

    schema: str
    """Spark's, as JSON."""
    rows: int
    columns: Columns
    groups: tuple[GroupLook, ...] = ()
    exact: bool = True
    """False if some of its rows may be deleted."""


@dataclass(frozen=True)
class WantedFacts:
    """What to inspect: which columns (None for all), and whether row groups as well."""

    columns: tuple[str, ...] | None = None
    row_groups: bool = True

    def has(self, column: str) -> bool:
        """Whether a column, or a struct that contains it, is wanted. Ignores case, like Spark."""
        return self.columns is None or any(within(column, one) for one in self.columns)


def within(column: str, wanted: str) -> bool:
    """Whether a column equals another one, or is a field of it."""
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
        """Its location."""
        ...

    @property
    def reader(self) -> Mapping[str, str]:
        """How its files are read; metadata from a different reader cannot be reused."""
        ...

    @property
    def deepest(self) -> MetadataLevel:
        """The deepest level that it supports."""
        ...

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that its folders represent, from the top; empty if folders are not partitions."""
        ...

    def listing(self) -> Sequence[ListedFile]:
        """All current files."""
        ...

    def look(self, files: Sequence[ListedFile], wanted: WantedFacts) -> list[FileLook]:
        """Inspect these files, in order. Raises InvalidInput, TransientError."""
        ...

    def schema(self, schemas: Iterable[str]) -> str:
        """Merge the schemas of its files. Raises InvalidInput if they are incompatible."""
        ...


def digest_of(files: Iterable[ListedFile]) -> str:
    """A digest of a set of files."""
    listed = json.dumps(sorted(file.fingerprint for file in files))
    return hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()[:32]
