"""A component: one Iceberg table of units, read by filter and modified by whole partitions.

    read:     load ──► files whose partition may match ──► rows that match ──► units
    modify:   units ──► one file per partition ──► one snapshot, whatever the number of operations

Any number of processes may do both at any time. A reader sees one snapshot; when its files expire under it, it starts
again with the newest. A writer that meets another one starts again, unless it expected a version.
"""

import threading
from collections.abc import Iterable, Sequence
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
from calve.iceberg.small_tables.partition_files import HistoryLimits, RowReader, SeenTable, TableVersion
from calve.metastore.filters import Filter, all_of, matching, one_of
from calve.metastore.modify import Modify
from calve.metastore.units import UnitLayout

U = TypeVar("U")

READ_ATTEMPTS = 50
"""A read starts again when what it reads expires; each time somebody else has made progress."""


@dataclass(frozen=True)
class ComponentMetadata:
    """What a component is at one moment."""

    version: int
    """0 for one that nothing was written to, then growing with every modification."""
    properties: MappingProxyType[str, str]
    location: str


@dataclass(frozen=True)
class ComponentTools:
    """What every component of a metastore uses."""

    catalog: Catalog
    clock: Clock
    ids: IdSource
    expiration_ms: int | None = None


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
        """Where its files are."""
        return self.declaration.location

    @property
    def label(self) -> str:
        """How messages call it."""
        return f'component "{self.declaration.identifier[-1]}"'

    def metadata(self) -> ComponentMetadata:
        """Version and properties, as they are now."""
        seen = self.see()
        return ComponentMetadata(seen.version, MappingProxyType(dict(seen.properties)), self.location)

    def read(self, *types: StrEnum, where: Filter | None = None, columns: Sequence[str] = ()) -> list[U]:
        """Units of these metadata types (of all when none is given) that match the filter.

        With `columns`, units have these only; all others are None.
        """
        return self.read_at(None, *types, where=where, columns=columns)

    def read_at(
        self, seen: TableVersion | None, *types: StrEnum, where: Filter | None = None, columns: Sequence[str] = ()
    ) -> list[U]:
        """As `read`, of the component as it was seen; FileNotFoundError when that expired."""
        condition = self._condition(types, where)
        wanted = tuple(columns) or self.layout.names
        self.layout.check_columns(wanted)
        if seen is not None:
            return self._scan(seen, condition, wanted)
        last = ""
        for _ in range(READ_ATTEMPTS):
            seen = self.see()
            with trying(f"reading {self.label}"):
                try:
                    return self._scan(seen, condition, wanted)
                except FileNotFoundError:
                    if seen.moment == last:
                        raise  # it is not somebody's progress: the file is lost
                    last = seen.moment
        raise TransientError(
            f"reading {self.label} was overtaken again and again",
            detail=f"Its files expired {READ_ATTEMPTS} times while they were read.",
            hint="Keep more versions (write.metadata.previous-versions-max).",
        )

    def modify(self) -> Modify[U]:
        """Operations to be executed together."""
        return Modify(self)

    def purge(self) -> int:
        """Delete all units; history stays until it expires. The new version."""
        return self.modify().delete(all_of()).execute()

    def remove_orphans(self, older_than: timedelta = timedelta(days=1)) -> list[str]:
        """Remove files that processes left which died at work; their paths. Younger ones may be at work still."""
        with trying(f"removing orphans of {self.label}"):
            return remove_orphans(self.see(), self._tools.clock.now_ms(), int(older_than.total_seconds() * 1000))

    # ---- for those who modify

    @property
    def catalog(self) -> Catalog:
        """Where its table is known."""
        return self._tools.catalog

    @property
    def tools(self) -> tuple[Clock, IdSource]:
        """Time and ids."""
        return self._tools.clock, self._tools.ids

    def see(self) -> TableVersion:
        """The component as it is now."""
        return see_together([self])[0]

    def open(self) -> None:
        """Make the table, or bring it in step with the configuration, when it is used first."""
        with self._opening:
            if not self._in_step:
                open_declared(self._tools.catalog, self.declaration)
                self._in_step = True

    def seen(self, table: SeenTable) -> TableVersion:
        """The component as its table was loaded."""
        return TableVersion(table, self._manifests)

    def kept(self, seen: TableVersion) -> HistoryLimits:
        """Which snapshots stay, by the component's properties and the expiration period."""
        enabled = seen.properties.get("write.metadata.delete-after-commit.enabled", "false").lower() == "true"
        most = seen.properties.get("write.metadata.previous-versions-max", "100")
        return HistoryLimits(
            snapshots=max(1, int(most)) if enabled and most.lstrip("-").isdigit() else None,
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
        units: list[U] = []
        for file in seen.files:
            keys = dict(zip(self.layout.partition_keys, file.partition, strict=True))
            matches = condition.outcome(keys)
            if matches is False:
                continue
            rest = all_of() if matches else condition.open_parts(keys)
            needed = tuple(dict.fromkeys((*wanted, *sorted(rest.columns()))))
            rows = matching(self._rows.read(seen.table, file.path, needed, file.rows), rest).select(wanted)
            units += [self.layout.from_row(row) for row in rows.to_pylist()]
        return units


def see_together(components: Sequence[Component[Any]]) -> list[TableVersion]:
    """Components of one metastore as they are at one moment, where its catalog is a SQLite file."""
    for component in components:
        component.open()
    tables = load_declared(components[0].catalog, [component.declaration for component in components])
    return [component.seen(table) for component, table in zip(components, tables, strict=True)]
