"""A component: one Iceberg table of units, read by filter and modified by whole partitions.

    read:     load ──► files whose partition may match ──► rows that match ──► units
    modify:   units ──► one file per partition ──► one snapshot, whatever the number of operations

Any number of processes may do both at any time. A reader sees one snapshot; if its files expire during the read, it
restarts with the newest. A writer that conflicts with another one retries, unless it expected a version.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from calve.catalog.connect import Catalog
from calve.catalog.failures import trying
from calve.clock import Clock, IdSource
from calve.errors import TransientError
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.small_tables.declared import Declaration, load_declared, open_declared
from calve.iceberg.small_tables.orphans import remove_orphans
from calve.iceberg.small_tables.partition_files import (
    HistoryLimits,
    PartitionFile,
    RowReader,
    SeenTable,
    TableVersion,
)
from calve.metastore.filters import Filter, all_of, matching, one_of
from calve.metastore.modify import Modify
from calve.metastore.units import UnitLayout
from calve.model.numbers import number_property

U = TypeVar("U")
T = TypeVar("T")

READ_ATTEMPTS = 50
"""A read restarts if the files it reads expire; each restart means that another process has made progress."""


@dataclass(frozen=True)
class ComponentMetadata:
    """The state of a component at one moment."""

    version: int
    """0 for a component that was never written to; grows with every modification."""
    properties: MappingProxyType[str, str]
    location: str


@dataclass(frozen=True)
class ComponentTools:
    """The services that all components of a metastore share."""

    catalog: Catalog
    clock: Clock
    ids: IdSource
    expiration_ms: int | None = None


@dataclass(frozen=True)
class FileUnits(Generic[U]):
    """The data files of a component at one moment."""

    moment: str
    """Identifies this state of the component uniquely."""
    paths: tuple[str, ...]
    rows: int
    """Of all files."""
    units: Mapping[str, list[U]]
    """By the path of the file; of the files that were read."""


class Component(Generic[U]):
    """Units of one class."""

    def __init__(self, layout: UnitLayout[U], declaration: Declaration, tools: ComponentTools) -> None:
        self.layout = layout
        self.declaration = declaration
        self._tools = tools
        self._manifests = ManifestCache()
        self._rows = RowReader()
        self._in_step = False
        self._opening = threading.Lock()

    @property
    def location(self) -> str:
        """The location of its files."""
        return self.declaration.location

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f'component "{self.declaration.identifier[-1]}"'

    def metadata(self) -> ComponentMetadata:
        """The current version and properties."""
        seen = self.see()
        return ComponentMetadata(seen.version, MappingProxyType(dict(seen.properties)), self.location)

    def read(self, *types: StrEnum, where: Filter | None = None, columns: Sequence[str] = ()) -> list[U]:
        """Read the units of these metadata types (of all if none is given) that match the filter.

        With `columns`, only these columns are read; all others are None.
        """
        return self.read_at(None, *types, where=where, columns=columns)

    def read_at(
        self, seen: TableVersion | None, *types: StrEnum, where: Filter | None = None, columns: Sequence[str] = ()
    ) -> list[U]:
        """As `read`, at the version `seen`. Raises FileNotFoundError if that expired."""
        condition = self._condition(types, where)
        wanted = tuple(columns) or self.layout.names
        self.layout.check_columns(wanted)
        if seen is not None:
            return self._scan(seen, condition, wanted)
        return self._read_newest(lambda newest: self._scan(newest, condition, wanted))

    def read_files(self, *types: StrEnum, known: Collection[str]) -> "FileUnits[U]":
        """The data files, and the units of these metadata types in those that are not known."""
        condition = self._condition(types, None)

        def attempt(seen: TableVersion) -> FileUnits[U]:
            new = [file for file in seen.files if file.path not in known]
            units = {file.path: self._scan_file(seen, file, condition, self.layout.names) for file in new}
            paths = tuple(file.path for file in seen.files)
            return FileUnits(seen.moment, paths, sum(file.rows for file in seen.files), units)

        return self._read_newest(attempt)

    def _read_newest(self, attempt: Callable[[TableVersion], T]) -> T:
        """Read the current version; the next one if its files expire meanwhile."""
        last = ""
        for _ in range(READ_ATTEMPTS):
            seen = self.see()
            with trying(f"reading {self.label}"):
                try:
                    return attempt(seen)
                except FileNotFoundError:
                    if seen.moment == last:
                        raise  # no other process made progress: the file is lost
                    last = seen.moment
        raise TransientError(
            f"{self.label} could not be read",
            detail=f"Its files expired {READ_ATTEMPTS} times during the read.",
            hint="Keep more versions (write.metadata.previous-versions-max).",
        )

    def modify(self) -> Modify[U]:
        """Start a modification: operations that are executed together."""
        return Modify(self)

    def purge(self) -> int:
        """Delete all units; history stays until it expires. Returns the new version."""
        return self.modify().delete(all_of()).execute()

    def remove_orphans(self, older_than: timedelta = timedelta(days=1)) -> list[str]:
        """Remove files that dead processes left behind; returns their paths. Younger files may still be in use."""
        with trying(f"removing orphans of {self.label}"):
            return remove_orphans(self.see(), self._tools.clock.now_ms(), int(older_than.total_seconds() * 1000))

    # ---- for modifications

    @property
    def catalog(self) -> Catalog:
        """The catalog of its table."""
        return self._tools.catalog

    @property
    def tools(self) -> tuple[Clock, IdSource]:
        """Time and ids."""
        return self._tools.clock, self._tools.ids

    def see(self) -> TableVersion:
        """Load the current version."""
        return see_together([self])[0]

    def open(self) -> None:
        """Create the table, or alter it to match the configuration, on first use."""
        with self._opening:
            if not self._in_step:
                open_declared(self._tools.catalog, self.declaration)
                self._in_step = True

    def seen(self, table: SeenTable) -> TableVersion:
        """The version of the component that a loaded table represents."""
        return TableVersion(table, self._manifests)

    def kept(self, seen: TableVersion) -> HistoryLimits:
        """Which snapshots are kept, by the component's properties and the expiration period."""
        enabled = seen.properties.get("write.metadata.delete-after-commit.enabled", "false").lower() == "true"
        most = number_property(seen.properties, "write.metadata.previous-versions-max", 100)
        return HistoryLimits(
            snapshots=max(1, most) if enabled else None,
            age_ms=self._tools.expiration_ms,
        )

    def _condition(self, types: Iterable[StrEnum], where: Filter | None) -> Filter:
        conditions = [] if where is None else [where]
        given = tuple(types)
        if given and self.layout.type_column:
            conditions.append(one_of(self.layout.type_column, given))
        condition = all_of(*conditions)
        self.layout.check_filter(condition)
        return condition

    def _scan(self, seen: TableVersion, condition: Filter, wanted: Sequence[str]) -> list[U]:
        return [unit for file in seen.files for unit in self._scan_file(seen, file, condition, wanted)]

    def _scan_file(self, seen: TableVersion, file: PartitionFile, condition: Filter, wanted: Sequence[str]) -> list[U]:
        keys = dict(zip(self.layout.partition_keys, file.partition, strict=True))
        matches = condition.outcome(keys)
        if matches is False:
            return []
        rest = all_of() if matches else condition.open_parts(keys)
        needed = tuple(dict.fromkeys((*wanted, *sorted(rest.columns()))))
        rows = matching(self._rows.read(seen.table, file.path, needed, file.rows), rest).select(wanted)
        return [self.layout.from_row(row) for row in rows.to_pylist()]


def see_together(components: Sequence[Component[Any]]) -> list[TableVersion]:
    """Load several components of one metastore; at one moment if its catalog is a SQLite file."""
    for component in components:
        component.open()
    tables = load_declared(components[0].catalog, [component.declaration for component in components])
    return [component.seen(table) for component, table in zip(components, tables, strict=True)]
