"""Chooses the files of an analyzed folder that a condition needs.

    listing ──► files unchanged since the analysis ──► by segment ──► by file ──► by row groups ──► to read
       └──► new and changed files: nothing is known about them ────────────────────────────────────┘

Statistics only exclude files. Missing statistics, and those of a different type than the column is read as, count as a
match.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calve.analyze.column_types import columns_of, kind_of, schema_of
from calve.analyze.refresh import ATTEMPTS, level_of
from calve.analyze.subject import AnalysisSubject, Columns, ListedFile, digest_of, reaches
from calve.analyze.unit_rows import kept_in, key_of, listed_file
from calve.catalog.failures import trying
from calve.iceberg.small_tables.partition_files import TableVersion
from calve.metastore.component import Component
from calve.metastore.filters import Filter, eq, one_of
from calve.metastore.statistics import ColumnStatistics, StatisticKind, StatisticsType
from calve.metastore.tables import GENERAL_INFO, MetadataType, TableId, TableUnit, number_of
from calve.model.scan import EVERYTHING, AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition, comparable
from calve.retry import retry_on
from calve.sql.statements import MetadataLevel


@dataclass(frozen=True)
class ChosenFiles:
    """The files to read, and why the others are skipped."""

    files: tuple[ListedFile, ...]
    listed: int
    level: MetadataLevel | None = None
    """The level of the folder's metadata; None if it was not analyzed, or is now read differently."""
    segments: int = 0
    by_segment: int = 0
    """Files that were skipped with their segment."""
    by_file: int = 0
    by_row_groups: int = 0
    row_groups: int = 0
    """Row groups that cannot match, in files that are read anyway."""
    outdated: int = 0
    """Files that are new or changed since the analysis."""

    @property
    def bytes(self) -> int:
        """The size of the files to read."""
        return sum(file.size for file in self.files)


def general_of(tables: Component[TableUnit], table: TableId) -> TableUnit | None:
    """The unit that describes a whole table."""
    found = tables.read(MetadataType.TABLE, where=table.condition() & eq("metadata_key", GENERAL_INFO))
    return found[0] if found else None


class Knowledge:
    """What the metastore knew about a folder at one moment, and the folder's current files."""

    def __init__(self, tables: Component[TableUnit], seen: TableVersion, subject: AnalysisSubject) -> None:
        """Read the metadata at `seen`. Raises FileNotFoundError if that version expired."""
        self._tables, self._seen = tables, seen
        self._where = subject.table.condition()
        self.listing = subject.listing()
        general = self._read(MetadataType.TABLE, where=self._where & eq("metadata_key", GENERAL_INFO))
        same = [unit for unit in general if kept_in(unit).get("reader") == dict(subject.reader)]
        self.general = same[0] if same else None
        self._level = level_of(same[0]) if same else None
        self.outdated = self._outdated()

    def choose(self, condition: Condition, schema: str) -> ChosenFiles:
        """The files that a condition needs, if they are read with this schema. Raises TransientError."""
        with trying("reading the metastore"):
            return self._chosen(condition, schema)

    def _chosen(self, condition: Condition, schema: str) -> ChosenFiles:
        if self.general is None or self._level is None or condition == EVERYTHING:
            return self._of(self.listing, outdated=len(self.outdated))
        sieve = Sieve(condition, {".".join(path): kind_of(kind) for path, kind in columns_of(schema_of(schema))})
        if not reaches(self._level, MetadataLevel.SEGMENT):
            return self._by_table(sieve, self.general)
        if not reaches(self._level, MetadataLevel.FILE):
            return self._by_segment(sieve)
        known = [file for file in self.listing if file.name not in self.outdated]
        segments = {u.metadata_key or "" for u in self._tops() if not sieve.may_match(u.columns_statistics or {})}
        rest = [file for file in known if key_of(file) not in segments]
        matching, without_groups, row_groups = self._by_file(sieve, rest)
        names = {file.name for file in matching} - without_groups | self.outdated
        return self._of(
            [file for file in self.listing if file.name in names],
            segments=len(segments),
            by_segment=len(known) - len(rest),
            by_file=len(rest) - len(matching),
            by_row_groups=len(without_groups),
            row_groups=row_groups,
            outdated=len(self.outdated),
        )

    def _read(self, *types: MetadataType, where: Filter, columns: Sequence[str] = ()) -> list[TableUnit]:
        return self._tables.read_at(self._seen, *types, where=where, columns=columns)

    def _of(self, files: Sequence[ListedFile], **counts: int) -> ChosenFiles:
        return ChosenFiles(tuple(files), len(self.listing), self._level, **counts)

    def _by_table(self, sieve: "Sieve", general: TableUnit) -> ChosenFiles:
        if self.outdated or sieve.may_match(general.columns_statistics or {}):
            return self._of(self.listing, outdated=len(self.outdated))
        return self._of((), segments=1, by_segment=len(self.listing))

    def _by_segment(self, sieve: "Sieve") -> ChosenFiles:
        """Nothing is known about single files: a segment is skipped as a whole, if it is unchanged."""
        left_out = {unit.metadata_key for unit in self._tops() if not sieve.may_match(unit.columns_statistics or {})}
        gone = [file for file in self.listing if key_of(file) in left_out and file.name not in self.outdated]
        names = {file.name for file in gone}
        return self._of(
            [file for file in self.listing if file.name not in names],
            segments=len({key_of(file) for file in gone}),
            by_segment=len(gone),
            outdated=len(self.outdated),
        )

    def _outdated(self) -> set[str]:
        """Names of files that are new or changed since the analysis."""
        if self.general is None or self._level is None:
            return {file.name for file in self.listing}
        if reaches(self._level, MetadataLevel.FILE):
            columns = ["metadata_identifier", "path", "metadata_statistics", "additional_metadata"]
            units = self._read(MetadataType.FILE, where=self._where, columns=columns)
            known = {listed_file(unit).fingerprint for unit in units}
            return {file.name for file in self.listing if file.fingerprint not in known}
        if kept_in(self.general)["digest"] == digest_of(self.listing):
            return set()
        same = self._same_segments() if reaches(self._level, MetadataLevel.SEGMENT) else set()
        return {file.name for file in self.listing if key_of(file) not in same}

    def _same_segments(self) -> set[str]:
        now: dict[str, list[ListedFile]] = {}
        for file in self.listing:
            now.setdefault(key_of(file), []).append(file)
        then = {unit.metadata_key or "": kept_in(unit)["digest"] for unit in self._tops()}
        return {key for key, files in now.items() if then.get(key) == digest_of(files)}

    def _tops(self) -> list[TableUnit]:
        columns = ["metadata_key", "metadata_identifier", "columns_statistics", "additional_metadata"]
        units = self._read(MetadataType.SEGMENT, where=self._where, columns=columns)
        return [unit for unit in units if (unit.metadata_key or "").rstrip("/") == unit.metadata_identifier]

    def _by_file(self, sieve: "Sieve", files: Sequence[ListedFile]) -> tuple[list[ListedFile], set[str], int]:
        """Files that may match; names of files without a matching row group; non-matching row groups in the others."""
        keys = sorted({key_of(file) for file in files})
        if not keys:
            return [], set(), 0
        where = self._where & one_of("metadata_key", keys)
        columns = ["metadata_identifier", "path", "columns_statistics", "metadata_statistics"]
        units = self._read(MetadataType.FILE, where=where, columns=columns)
        matching = {unit.metadata_identifier for unit in units if _may_match(sieve, unit)}
        groups: dict[str, list[bool]] = {}
        if self._level is MetadataLevel.ROW_GROUP:
            for unit in self._read(MetadataType.ROW_GROUP, where=where, columns=columns):
                groups.setdefault(unit.path or "", []).append(_may_match(sieve, unit))
        found = [file for file in files if file.name in matching]
        without = {file.name for file in found if groups.get(file.path) and not any(groups[file.path])}
        skipped = sum(answer is False for f in found if f.name not in without for answer in groups.get(f.path, ()))
        return found, without, skipped


def _may_match(sieve: "Sieve", unit: TableUnit) -> bool:
    return number_of(unit, StatisticKind.ROWS) != 0 and sieve.may_match(unit.columns_statistics or {})


def known_of(tables: Component[TableUnit], subject: AnalysisSubject) -> Knowledge:
    """The current knowledge. Raises TransientError."""
    with trying("reading the metastore"):
        # its files may expire meanwhile
        return retry_on(FileNotFoundError, ATTEMPTS, lambda: Knowledge(tables, tables.see(), subject))


# -------------------------------------------------------------------------------------------------------- conditions

_COMPARE: Final[Mapping[ComparisonOperator, Callable[[Any, Any, Any], bool]]] = {
    ComparisonOperator.EQUAL: lambda value, least, greatest: least <= value <= greatest,
    ComparisonOperator.LESS: lambda value, least, _: least < value,
    ComparisonOperator.LESS_OR_EQUAL: lambda value, least, _: least <= value,
    ComparisonOperator.GREATER: lambda value, _, greatest: greatest > value,
    ComparisonOperator.GREATER_OR_EQUAL: lambda value, _, greatest: greatest >= value,
    ComparisonOperator.STARTS_WITH: lambda value, least, greatest: (
        least[: len(value)] <= value <= greatest[: len(value)]
    ),
}
_ABOVE: Final = frozenset({ComparisonOperator.GREATER, ComparisonOperator.GREATER_OR_EQUAL})


@dataclass(frozen=True)
class Sieve:
    """Tests a condition against statistics. `kinds` are the types that columns are read as."""

    condition: Condition
    kinds: Mapping[str, StatisticsType]

    def may_match(self, columns: Columns) -> bool:
        """False if no row with such columns matches the condition."""
        return self._holds(self.condition, columns)

    def _holds(self, condition: Condition, columns: Columns) -> bool:
        match condition:
            case AllOf(parts):
                return all(self._holds(part, columns) for part in parts)
            case AnyOf(parts):
                return any(self._holds(part, columns) for part in parts)
            case ColumnComparison():
                known = columns.get(condition.column)
                if known is None or known.type is not self.kinds.get(condition.column):
                    return True
                return _may_hold(condition, known)


def _may_hold(comparison: ColumnComparison, known: ColumnStatistics) -> bool:
    operator = comparison.operator
    if operator is ComparisonOperator.IS_NULL:
        return known.nulls != 0
    if known.values == 0:
        return False
    least, greatest = comparable(known.least), comparable(known.greatest)
    if operator is ComparisonOperator.NOT_NULL or least is None or greatest is None:
        return True
    if operator is ComparisonOperator.IN:
        return any(_compares(ComparisonOperator.EQUAL, value, least, greatest) for value in comparison.value)
    if known.type is StatisticsType.FRACTION and operator in _ABOVE:
        return True  # bounds exclude NaN, which Spark sorts above every number
    return _compares(operator, comparison.value, least, greatest)


def _compares(operator: ComparisonOperator, value: Any, least: Any, greatest: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return True
    try:
        return _COMPARE[operator](value, least, greatest)
    except TypeError:  # a value outside of the column's type: Spark decides
        return True
