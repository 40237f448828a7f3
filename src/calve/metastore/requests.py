"""Common queries of the components `tables` and `views`, without writing filters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from calve.errors import TerminalError
from calve.metastore.component import Component
from calve.metastore.filters import Filter, Value, all_of, eq, one_of
from calve.metastore.tables import GENERAL_INFO, MetadataType, TableId, TableUnit
from calve.metastore.views import ViewId, ViewType, ViewUnit

T = TypeVar("T")


@dataclass(frozen=True)
class UnitRef:
    """A unit by type, metadata key and identifier."""

    type: MetadataType
    key: str
    identifier: str


@dataclass(frozen=True)
class TableStanding:
    """Whether the metastore had a table at one version, and when the table was modified."""

    table: TableId
    last_modified_time: int | None
    exists: bool
    version: int


@dataclass(frozen=True)
class TableParts:
    """Units of several types, grouped by type."""

    tables: tuple[TableUnit, ...] = ()
    segments: tuple[TableUnit, ...] = ()
    files: tuple[TableUnit, ...] = ()
    row_groups: tuple[TableUnit, ...] = ()
    partitions: tuple[TableUnit, ...] = ()

    @classmethod
    def of(cls, units: Iterable[TableUnit]) -> "TableParts":
        """Group units by type."""
        found: dict[MetadataType | None, list[TableUnit]] = {}
        for unit in units:
            found.setdefault(unit.metadata_type, []).append(unit)
        return cls(*(tuple(found.get(one, ())) for one in MetadataType))


class TableRequests:
    """Queries of the component of tables. An empty list does not restrict the result."""

    def __init__(self, tables: Component[TableUnit]) -> None:
        self._tables = tables

    # ---- tables

    def standing(self, table: TableId) -> TableStanding:
        """Whether the metastore has a table, and when the table was modified."""
        version = self._tables.metadata().version
        unit = self._general(table.condition(), ("last_modified_time",))
        return TableStanding(table, unit.last_modified_time if unit else None, unit is not None, version)

    def has_changed(self, standing: TableStanding) -> bool:
        """Whether a table has changed since. Cheap while the component's version is the same."""
        if self._tables.metadata().version == standing.version:
            return False
        now = self.standing(standing.table)
        return (now.exists, now.last_modified_time) != (standing.exists, standing.last_modified_time)

    def tables(self, condition: Filter | None = None) -> list[TableUnit]:
        """General information of the tables that match."""
        return self._ask([MetadataType.TABLE], _where(condition, metadata_key=GENERAL_INFO))

    def table(self, table: TableId) -> TableUnit | None:
        """General information of one table."""
        return _single(self.tables(table.condition()), str(table))

    def interesting_columns_and_partition_keys(self, table: TableId) -> TableUnit | None:
        """Only these two columns of the general information."""
        return self._general(table.condition(), ("interesting_columns", "partition_keys"))

    # ---- segments

    def segments_by_key(self, table: TableId, locations: Sequence[str], metadata_key: str) -> list[TableUnit]:
        """Segments at some locations, below one top-level segment."""
        where = _where(table.condition(), metadata_key=metadata_key, location=locations)
        return self._ask([MetadataType.SEGMENT], where)

    def segments_by_column(self, table: TableId, locations: Sequence[str], column: str) -> list[TableUnit]:
        """Segments at some locations that represent values of a column."""
        return self._ask([MetadataType.SEGMENT], _where(table.condition(), location=locations, column=column))

    def segments(self, table: TableId, refs: Sequence[UnitRef]) -> list[TableUnit]:
        """Segments by key and identifier."""
        return self._referred(table, refs, MetadataType.SEGMENT)

    def segments_last_modified(self, table: TableId, locations: Sequence[str]) -> dict[str, int | None]:
        """The last modification time of segments by metadata key; the latest per key."""
        where = _where(table.condition(), location=locations)
        return _times(self._ask([MetadataType.SEGMENT], where, ("metadata_key", "last_modified_time")), "metadata_key")

    # ---- files

    def files(self, table: TableId, metadata_key: str, paths: Sequence[str]) -> list[TableUnit]:
        """Files by path, below one top-level segment."""
        where = _where(table.condition(), metadata_key=metadata_key, path=paths)
        return self._ask([MetadataType.FILE], where)

    def files_by_ref(self, table: TableId, refs: Sequence[UnitRef]) -> list[TableUnit]:
        """Files by key and identifier."""
        return self._referred(table, refs, MetadataType.FILE)

    def file(self, table: TableId, metadata_key: str, path: str) -> TableUnit | None:
        """One file."""
        return _single(self.files(table, metadata_key, [path]), path)

    def files_last_modified(self, table: TableId, metadata_key: str, locations: Sequence[str]) -> dict[str, int | None]:
        """The last modification time of files by path."""
        where = _where(table.condition(), metadata_key=metadata_key, location=locations)
        return _times(self._ask([MetadataType.FILE], where, ("path", "last_modified_time")), "path")

    # ---- row groups and partitions

    def row_groups(self, table: TableId, metadata_keys: Sequence[str], paths: Sequence[str]) -> list[TableUnit]:
        """Row groups of files."""
        where = _where(table.condition(), metadata_key=metadata_keys, path=paths)
        return self._ask([MetadataType.ROW_GROUP], where)

    def row_groups_by_ref(self, table: TableId, refs: Sequence[UnitRef]) -> list[TableUnit]:
        """Row groups by key and identifier."""
        return self._referred(table, refs, MetadataType.ROW_GROUP)

    def partitions(self, table: TableId, metadata_keys: Sequence[str], column: str) -> list[TableUnit]:
        """Partitions of a column."""
        where = _where(table.condition(), metadata_key=metadata_keys, column=column)
        return self._ask([MetadataType.PARTITION], where)

    # ---- several types

    def units(self, table: TableId, refs: Sequence[UnitRef]) -> list[TableUnit]:
        """Units of any type by key and identifier."""
        return self._referred(table, refs, *dict.fromkeys(ref.type for ref in refs))

    def parts(self, table: TableId, metadata_keys: Sequence[str], locations: Sequence[str]) -> TableParts:
        """Segments, files and row groups at some locations."""
        types = [MetadataType.SEGMENT, MetadataType.FILE, MetadataType.ROW_GROUP]
        where = _where(table.condition(), metadata_key=metadata_keys, location=locations)
        return TableParts.of(self._tables.read(*types, where=where))

    # ---- private

    def _general(self, condition: Filter, columns: Sequence[str]) -> TableUnit | None:
        where = _where(condition, metadata_key=GENERAL_INFO)
        return _single(self._ask([MetadataType.TABLE], where, columns), "the table")

    def _referred(self, table: TableId, refs: Sequence[UnitRef], *types: MetadataType) -> list[TableUnit]:
        keys = tuple(dict.fromkeys(ref.key for ref in refs))
        identifiers = tuple(dict.fromkeys(ref.identifier for ref in refs))
        where = _where(table.condition(), metadata_key=keys, metadata_identifier=identifiers)
        wanted = {(ref.type, ref.key, ref.identifier) for ref in refs}
        found = self._ask(types, where)
        if not wanted:
            return found
        return [u for u in found if (u.metadata_type, u.metadata_key, u.metadata_identifier) in wanted]

    def _ask(self, types: Sequence[MetadataType], where: Filter, columns: Sequence[str] = ()) -> list[TableUnit]:
        if not columns and len(types) == 1:
            columns = self._tables.layout.columns_of(types[0])
        return self._tables.read(*types, where=where, columns=columns)


class ViewRequests:
    """Queries of the component of views."""

    def __init__(self, views: Component[ViewUnit]) -> None:
        self._views = views

    def view(self, view: ViewId) -> ViewUnit | None:
        """One view."""
        return _single(self._views.read(ViewType.VIEW, where=view.condition()), str(view))

    def views(self, storage_plugin: str, workspace: str | None = None) -> list[ViewUnit]:
        """The views of a storage plugin, or of one of its workspaces, by name."""
        where = eq("storage_plugin", storage_plugin)
        if workspace is not None:
            where &= eq("workspace", workspace)
        return sorted(self._views.read(ViewType.VIEW, where=where), key=lambda unit: unit.view_name or "")


def _where(condition: Filter | None, **given: Value | Sequence[str]) -> Filter:
    conditions = [] if condition is None else [condition]
    for name, value in given.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            conditions += [one_of(name, value)] if value else []
        else:
            conditions.append(eq(name, value))
    return all_of(*conditions)


def _single(found: Sequence[T], what: str) -> T | None:
    if len(found) > 1:
        raise TerminalError(f"the metastore holds {len(found)} units for {what}", detail="Expected one.")
    return found[0] if found else None


def _times(units: Iterable[TableUnit], key: str) -> dict[str, int | None]:
    times: dict[str, int | None] = {}
    for unit in units:
        name, time = getattr(unit, key), unit.last_modified_time
        known = times.get(name)
        times[name] = time if known is None else max(known, time if time is not None else known)
    return times
