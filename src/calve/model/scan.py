"""A scan of one snapshot: the files to read and the deletes to apply. Plain values that go to executors by pickle.

conditions   what a reader asks for; used to skip files, never to filter rows
files        data files with the deletes that apply to them
splits       parts of files; a task reads some
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import Any

from calve.values import value

# ------------------------------------------------------------------------------------------------------- conditions


class ComparisonOperator(StrEnum):
    """How a column is compared."""

    EQUAL = "="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "in"
    STARTS_WITH = "starts with"
    IS_NULL = "is null"
    NOT_NULL = "is not null"


@value
class ColumnComparison:
    """A comparison of a column with a value.

    Dates are days and timestamps microseconds since 1970; `IN` has a tuple of values, the null tests have none.
    """

    column: str
    operator: ComparisonOperator
    value: Any = None


@value
class AllOf:
    """Every part holds."""

    parts: tuple["Condition", ...]


@value
class AnyOf:
    """At least one part holds."""

    parts: tuple["Condition", ...]


Condition = ColumnComparison | AllOf | AnyOf

EVERYTHING = AllOf(())
"""The condition that every row meets."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def comparable(value: Any) -> Any:
    """A bound of a column as conditions have it: dates as days and timestamps as microseconds since 1970."""
    match value:
        case dt.datetime():
            instant = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
            return (instant - _EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - _EPOCH.date()).days
        case _:
            return value


# ------------------------------------------------------------------------------------------------------------ files


class DeleteKind(StrEnum):
    """How rows are deleted."""

    EQUALITY = "equality"
    POSITION = "position"
    VECTOR = "vector"


@value
class ContentId:
    """What an entry of a manifest refers to: a file or, of a Puffin file, one deletion vector in it.

    Several vectors may share a file, so a path alone does not identify deletes.
    """

    path: str
    offset: int = 0
    length: int = 0
    data_file: str = ""
    """The data file of a vector."""


@value
class DeleteFile:
    """A file of deletes, or one deletion vector in it."""

    kind: DeleteKind
    path: str
    size: int
    rows: int
    sequence_number: int
    equality_ids: tuple[int, ...] = ()
    scope: tuple[Any, ...] | None = None
    """Of equality deletes: spec id and partition values; None if they apply to every partition."""
    offset: int = 0
    """Of a deletion vector in its file."""
    length: int = 0
    data_file: str = ""
    """Of a deletion vector."""

    @cached_property
    def id(self) -> ContentId:
        """What distinguishes it from all other deletes of a table."""
        return ContentId(self.path, self.offset, self.length, self.data_file)


@value
class ScanFile:
    """A data file to read."""

    path: str
    size: int
    rows: int
    sequence_number: int
    split_offsets: tuple[int, ...] = ()
    """Offsets of its row groups, ascending; empty if unknown."""
    constants: tuple[tuple[int, Any], ...] = ()
    """Values of identity partition fields by the id of their column, for columns that the file lacks."""
    deletes: tuple[DeleteFile, ...] = ()
    spec_id: int = 0
    """Its partition spec; position deletes of the file belong to the same spec and partition."""
    partition: tuple[Any, ...] = ()
    """Values of its partition, as in manifests."""
    first_row_id: int | None = None
    """The id of its first row, unless the file states ids; None in tables without row ids."""


@value
class Pruned:
    """What a condition pruned, by reason."""

    manifests: int = 0
    files_by_partition: int = 0
    files_by_bounds: int = 0


@value
class ScanPlan:
    """The plan to read one snapshot. `snapshot_id` is None for a table without snapshots."""

    snapshot_id: int | None
    timestamp_ms: int | None
    frontier: str | None
    """Frontier of the snapshot, if a calve sink committed it."""
    files: tuple[ScanFile, ...]
    data_files: int
    """Number in the snapshot; the manifest list contains that of skipped manifests."""
    manifests: int
    pruned: Pruned = field(default_factory=Pruned)
    where: Condition = EVERYTHING

    @property
    def rows(self) -> int:
        """Rows in the files, deleted ones included."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of the data files."""
        return sum(file.size for file in self.files)

    def deletes(self, kind: DeleteKind) -> tuple[DeleteFile, ...]:
        """The deletes of a kind that apply to any of the files, each once."""
        return tuple({d: None for file in self.files for d in file.deletes if d.kind is kind})


@value
class SortFields:
    """The fields that rows are sorted by when they are written again; without any they keep their order."""

    ids: tuple[int, ...] = ()
    interleaved: bool = False
    """By the Z-order of the fields, instead of one after the other."""


# ----------------------------------------------------------------------------------------------------------- splits


@value
class FileSplit:
    """The row groups of a file that start in [start, end)."""

    file: ScanFile
    start: int
    end: int


@value
class ReadTask:
    """Splits that are read one after another, with deletes that are loaded once."""

    splits: tuple[FileSplit, ...]

    @property
    def files(self) -> Sequence[ScanFile]:
        """Every file of the task once."""
        return list({split.file.path: split.file for split in self.splits}.values())
