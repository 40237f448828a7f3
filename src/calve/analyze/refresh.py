"""ANALYZE TABLE: inspects the files that changed since the last time, and modifies the metastore once.

    listing ──► the same digest: up to date
       └──► new, changed and removed files ──► inspect ──► their segments ──► one modification
                                                  unchanged segments stay ──┘

Without the level FILE nothing is known about single files, so any change means that all files are inspected again.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from calve.analyze.column_types import columns_of, schema_of
from calve.analyze.subject import AnalysisSubject, Columns, ListedFile, WantedFacts, digest_of, reaches, within
from calve.analyze.unit_rows import AnalyzedFile, TableFrame, kept_in, key_of, listed_file, looked_again, segment_units
from calve.catalog.failures import trying
from calve.errors import CommitConflict, InvalidInput, TransientError
from calve.iceberg.small_tables.partition_files import TableVersion
from calve.metastore.component import Component
from calve.metastore.filters import eq, one_of
from calve.metastore.statistics import Statistic, StatisticKind, merge_columns, merge_statistics
from calve.metastore.tables import GENERAL_INFO, MetadataType, TableId, TableUnit
from calve.retry import retry_on
from calve.sql.statements import MetadataLevel

ATTEMPTS: Final = 20
"""Each failed attempt means that another writer changed the metastore; files are inspected only once."""

_NOTHING: Final = tuple(Statistic(k, 0) for k in (StatisticKind.ROWS, StatisticKind.BYTES, StatisticKind.FILES))


@dataclass(frozen=True)
class AnalyzeRequest:
    """The columns (None for all) and the level that ANALYZE TABLE asks for."""

    columns: tuple[str, ...] | None = None
    level: MetadataLevel = MetadataLevel.ALL


@dataclass(frozen=True)
class Refreshed:
    """The outcome of a refresh."""

    table: TableId
    level: MetadataLevel
    files: int
    looked: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    up_to_date: bool = False


def refresh(tables: Component[TableUnit], subject: AnalysisSubject, request: AnalyzeRequest) -> Refreshed:
    """Bring the metadata of a table up to date. Raises InvalidInput, TransientError."""
    work = _Refresh(tables, subject, request)
    with trying(f"refreshing the metadata of {subject.location}"):
        try:
            return retry_on((CommitConflict, FileNotFoundError), ATTEMPTS, work.attempt)
        except (CommitConflict, FileNotFoundError) as error:
            raise TransientError(
                f"the metadata of {subject.location} could not be refreshed",
                detail="Other writers kept changing it.",
                hint="Try again.",
            ) from error


def drop_metadata(tables: Component[TableUnit], table: TableId) -> bool:
    """Remove the metadata of a table; False if there was none."""
    known = tables.read(where=table.condition(), columns=["metadata_key"])
    if known:
        tables.modify().delete(table.condition()).execute()
    return bool(known)


def level_of(general: TableUnit) -> MetadataLevel:
    """The level that a table was analyzed at."""
    found = [str(one.value) for one in general.metadata_statistics or () if one.kind is StatisticKind.LEVEL]
    return MetadataLevel(found[0]) if found else MetadataLevel.TABLE


@dataclass(frozen=True)
class _Goal:
    """The level and columns of the new metadata, and whether existing metadata can be reused."""

    level: MetadataLevel
    columns: tuple[str, ...] | None
    covered: bool
    """Existing metadata already covers the requested level and columns, and stays so."""

    @property
    def continues(self) -> bool:
        """Whether units of unchanged files are kept."""
        return self.covered and reaches(self.level, MetadataLevel.FILE)


@dataclass(frozen=True)
class _KnownFile:
    file: ListedFile
    schema: str


@dataclass(frozen=True)
class _Difference:
    """The current files compared with the analyzed ones."""

    listing: Sequence[ListedFile]
    known: Mapping[str, _KnownFile]

    @property
    def added(self) -> list[ListedFile]:
        return [file for file in self.listing if file.name not in self.known]

    @property
    def changed(self) -> list[ListedFile]:
        both = [(file, self.known[file.name].file) for file in self.listing if file.name in self.known]
        return [now for now, then in both if now.fingerprint != then.fingerprint]

    @property
    def removed(self) -> list[ListedFile]:
        there = {file.name for file in self.listing}
        return [one.file for name, one in self.known.items() if name not in there]


@dataclass(frozen=True)
class _Part:
    """What a top-level segment contributes to the table."""

    columns: Columns
    statistics: Sequence[Statistic]


class _Refresh:
    def __init__(self, tables: Component[TableUnit], subject: AnalysisSubject, request: AnalyzeRequest) -> None:
        self._tables, self._subject, self._request = tables, subject, request
        self._asked = subject.deepest if request.level is MetadataLevel.ALL else request.level
        if not reaches(subject.deepest, self._asked):
            raise InvalidInput(
                f"files of format {subject.kind} do not support level {self._asked.value}",
                hint=f"The deepest supported level is {subject.deepest.value}.",
            )
        self._looks: dict[tuple[WantedFacts, str, int, int], AnalyzedFile] = {}

    def attempt(self) -> Refreshed:
        listing, seen = self._subject.listing(), self._tables.see()
        general = self._general(seen)
        goal = self._goal(general)
        if goal.covered and kept_in(general)["digest"] == digest_of(listing):
            return Refreshed(self._subject.table, goal.level, len(listing), up_to_date=True)
        found = _Difference(listing, self._known_files(seen) if goal.continues else {})
        looks = self._looked([*found.added, *found.changed], goal)
        self._write(seen, general, goal, found, looks)
        return Refreshed(
            self._subject.table,
            goal.level,
            len(listing),
            looked=len(looks),
            added=len(found.added),
            changed=len(found.changed),
            removed=len(found.removed),
        )

    # ---- existing metadata

    def _general(self, seen: TableVersion) -> TableUnit | None:
        where = self._subject.table.condition() & eq("metadata_key", GENERAL_INFO)
        found = self._tables.read_at(seen, MetadataType.TABLE, where=where)
        return found[0] if found else None

    def _goal(self, general: TableUnit | None) -> _Goal:
        asked = self._request.columns
        if general is None or kept_in(general).get("reader") != dict(self._subject.reader):
            return _Goal(self._asked, asked, covered=False)
        known = general.interesting_columns
        wide = known is None or (asked is not None and set(asked) <= set(known))
        if wide and reaches(level_of(general), self._asked):
            return _Goal(level_of(general), known, covered=True)
        return _Goal(self._asked, asked, covered=False)

    def _known_files(self, seen: TableVersion) -> dict[str, _KnownFile]:
        columns = ["metadata_identifier", "path", "schema", "metadata_statistics", "additional_metadata"]
        units = self._tables.read_at(seen, MetadataType.FILE, where=self._subject.table.condition(), columns=columns)
        files = [_KnownFile(listed_file(unit), unit.schema or "") for unit in units]
        return {one.file.name: one for one in files}

    def _kept(self, seen: TableVersion, keys: set[str]) -> dict[str, AnalyzedFile]:
        """Unchanged files of rewritten segments, with what is known about them."""
        where = self._subject.table.condition() & one_of("metadata_key", sorted(keys))
        units = self._tables.read_at(seen, MetadataType.FILE, MetadataType.ROW_GROUP, where=where)
        return {one.file.name: one for one in looked_again(units)}

    def _untouched(self, seen: TableVersion, touched: set[str]) -> list[_Part]:
        columns = ["metadata_key", "metadata_identifier", "columns_statistics", "metadata_statistics"]
        where = self._subject.table.condition()
        units = self._tables.read_at(seen, MetadataType.SEGMENT, where=where, columns=columns)
        tops = [unit for unit in units if (unit.metadata_key or "").rstrip("/") == unit.metadata_identifier]
        return [
            _Part(unit.columns_statistics or {}, unit.metadata_statistics or ())
            for unit in tops
            if unit.metadata_key not in touched
        ]

    # ---- new metadata

    def _looked(self, files: Sequence[ListedFile], goal: _Goal) -> dict[str, AnalyzedFile]:
        """Inspect these files; results of failed attempts are reused."""
        wanted = WantedFacts(goal.columns, row_groups=reaches(goal.level, MetadataLevel.ROW_GROUP))
        missing = [file for file in files if (wanted, *file.fingerprint) not in self._looks]
        for file, look in zip(missing, self._subject.look(missing, wanted), strict=True):
            self._looks[wanted, *file.fingerprint] = AnalyzedFile(file, look)
        return {file.name: self._looks[wanted, *file.fingerprint] for file in files}

    def _write(
        self,
        seen: TableVersion,
        general: TableUnit | None,
        goal: _Goal,
        found: _Difference,
        looks: Mapping[str, AnalyzedFile],
    ) -> None:
        subject = self._subject
        frame = TableFrame(subject.table, subject.location, goal.level, subject.partition_columns)
        touched = {key_of(file) for file in [*found.added, *found.changed, *found.removed]}
        by_key: dict[str, list[ListedFile]] = defaultdict(list)
        for file in found.listing:
            by_key[key_of(file)].append(file)
        written = sorted(touched & by_key.keys())
        kept = self._kept(seen, set(written)) if goal.continues and written else {}
        files = {key: [looks.get(file.name) or kept[file.name] for file in by_key[key]] for key in written}
        parts = [_part(members) for members in files.values()]
        if goal.continues:
            parts += self._untouched(seen, touched)
        whole = self._table(frame, goal, parts, general, found, looks)
        modify = self._tables.modify().expecting(seen)
        if not goal.continues:
            modify = modify.delete(subject.table.condition())
        gone = sorted(touched - by_key.keys())
        if gone:
            modify = modify.delete(subject.table.condition() & one_of("metadata_key", gone))
        units = [unit for key, members in files.items() for unit in segment_units(frame, key, members)]
        modify.overwrite(whole, *units).execute()

    def _table(
        self,
        frame: TableFrame,
        goal: _Goal,
        parts: Sequence[_Part],
        general: TableUnit | None,
        found: _Difference,
        looks: Mapping[str, AnalyzedFile],
    ) -> TableUnit:
        subject = self._subject
        schemas = [looks[f.name].look.schema if f.name in looks else found.known[f.name].schema for f in found.listing]
        schema = subject.schema(schemas)
        if found.listing:
            _check_columns(goal.columns, schema)
        level = Statistic(StatisticKind.LEVEL, goal.level.value)
        written_by = {name: value for name, value in kept_in(general).items() if name == "sink"}
        kept = {"digest": digest_of(found.listing), "reader": dict(subject.reader), **written_by}
        return frame.unit(
            MetadataType.TABLE,
            GENERAL_INFO,
            table_type=subject.kind,
            location=subject.location,
            interesting_columns=goal.columns,
            schema=schema,
            columns_statistics=merge_columns(dict(part.columns) for part in parts),
            metadata_statistics=(*(merge_statistics(part.statistics for part in parts) or _NOTHING), level),
            last_modified_time=max((file.stamp for file in found.listing), default=0) // 1_000_000,
            partition_keys={f"dir{depth}": name for depth, name in enumerate(subject.partition_columns)},
            additional_metadata=json.dumps(kept),
        )


def _part(files: Sequence[AnalyzedFile]) -> _Part:
    return _Part(
        merge_columns(dict(one.look.columns) for one in files), merge_statistics(one.statistics for one in files)
    )


def _check_columns(asked: Sequence[str] | None, schema: str) -> None:
    known = [".".join(path) for path, _ in columns_of(schema_of(schema))]
    for name in asked or ():
        if not any(within(column, name) for column in known):
            raise InvalidInput(f'column "{name}" does not exist', hint=f"Columns are {', '.join(known[:20])}.")
