"""The metastore: components by name, in one catalog, below one location."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from calve.catalog.connect import Catalog, open_catalog, sqlite_uri
from calve.catalog.failures import trying
from calve.clock import Clock, IdSource, RandomIds, SystemClock
from calve.errors import InvalidInput
from calve.iceberg.small_tables.declared import Declaration
from calve.metastore.component import Component, ComponentTools
from calve.metastore.config import MetastoreConfig, below
from calve.metastore.units import UnitLayout
from calve.storage.local_folders import make_private

U = TypeVar("U")


class Metastore:
    """Components kept as Iceberg tables. Closing it closes its catalog."""

    def __init__(self, config: MetastoreConfig, *, clock: Clock | None = None, ids: IdSource | None = None) -> None:
        self.config = config
        self.location = below(config.base_path, config.relative_path)
        self._places = {name: below(self.location, one.location) for name, one in config.components.items()}
        _check_apart(self._places)
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._catalog: Catalog | None = None
        self._opened: dict[str, Component[Any]] = {}
        self._lock = threading.Lock()

    def component(self, name: str, unit: type[U]) -> Component[U]:
        """The component with units of this class; its table is created on first use. Raises InvalidInput."""
        with self._lock:
            if name not in self._opened:
                self._opened[name] = Component(UnitLayout(unit), self._declaration(name, unit), self._tools())
            found: Component[U] = self._opened[name]
        if found.layout.unit is not unit:
            raise InvalidInput(
                f'component "{name}" has units of another class', detail=f"They are {found.layout.unit.__name__}."
            )
        return found

    def close(self) -> None:
        """Close the catalog."""
        with self._lock:
            if self._catalog is not None:
                self._catalog.close()
            self._catalog = None
            self._opened.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _declaration(self, name: str, unit: type[Any]) -> Declaration:
        if name not in self.config.components:
            raise InvalidInput(
                f'component "{name}" has no location',
                hint=f"Set calve.metastore.iceberg.components.{name}.location.",
            )
        return Declaration(
            identifier=(*self.config.namespace.split("."), name),
            location=self._places[name],
            columns=UnitLayout(unit).columns(),
            properties=self.config.properties_of(name),
        )

    def _tools(self) -> ComponentTools:
        if self._catalog is None:
            self._catalog = open_catalog({**self.config.io_properties, **self._catalog_properties()})
        period_ms = int(self.config.expiration.total_seconds() * 1000)
        return ComponentTools(self._catalog, self._clock, self._ids, period_ms if period_ms > 0 else None)

    def _catalog_properties(self) -> dict[str, str]:
        given = dict(self.config.catalog)
        if given:
            return {"warehouse": self.location, **given}
        if "://" in self.config.base_path and not self.config.base_path.startswith("file://"):
            raise InvalidInput(
                "the metastore has no catalog",
                detail=f"It is at {self.location}; a SQLite file cannot be kept there.",
                hint="Set calve.metastore.catalog.type and calve.metastore.catalog.uri.",
            )
        folder = Path(self.location.removeprefix("file://"))
        with trying(f'creating the folder "{folder}" of the metastore'):
            make_private(folder)
        return {"type": "sql", "uri": sqlite_uri(folder / "catalog.db"), "warehouse": self.location}


def _check_apart(places: Mapping[str, str]) -> None:
    """Check that no component is in the folder of another: each removes unreferenced files in its folder."""
    for name, place in places.items():
        for other, below_it in places.items():
            if name != other and f"{below_it}/".startswith(f"{place}/"):
                raise InvalidInput(
                    f'component "{other}" is in the folder of component "{name}"',
                    detail=f"They are at {below_it} and {place}.",
                    hint="Give each component a separate location.",
                )
