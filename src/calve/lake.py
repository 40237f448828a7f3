"""A catalog of tables, and calve's home folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from calve.calls import for_users
from calve.catalog.connect import CATALOG_NAME, Catalog, check_catalog_type, connect_embedded, open_catalog
from calve.errors import InvalidInput
from calve.metastore.tables import TableId
from calve.model.spec import TableName
from calve.spark.on_demand import spark_on_demand
from calve.storage.filesystems import io_properties_of
from calve.storage.local_folders import default_home, make_private
from calve.storage.state import StateFolder, StateStore, open_state
from calve.suggest import suggestion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTIES = frozenset(
    {
        *(
            "type",
            "uri",
            "warehouse",
            "catalog-name",
            "credential",
            "token",
            "scope",
            "audience",
            "resource",
            "oauth2-server-uri",
        ),
        *("prefix", "auth", "ssl", "echo", "pool-pre-ping", "init-catalog-tables", "snapshot-loading-mode"),
        *("py-io-impl", "buffer-size", "scan-planning-mode", "namespace-separator", "view-endpoints-supported"),
    }
)
"""Properties of pyiceberg's catalogs whose names have no dot."""


@dataclass(frozen=True)
class Lake:
    """A catalog. Every sink opens its own client."""

    home: Path
    properties: Mapping[str, str] = field(repr=False)

    @property
    def label(self) -> str:
        """Its name in the metastore: the same for all connections to one catalog, without credentials."""
        if not self.properties:
            return "embedded"
        address = urlsplit(self.properties.get("uri", ""))
        port = f":{address.port}" if address.port else ""
        place = f"{address.hostname}{port}" if address.hostname else address.path
        named = ("type", "warehouse", CATALOG_NAME)
        kind, warehouse, name = (self.properties.get(key, "") for key in named)
        parts = [kind, place, warehouse, name]
        return " ".join(filter(None, parts)) or "catalog"

    @for_users
    def table(self, name: str) -> "TableRef":
        """A table by `namespace.table`; it need not exist yet."""
        return TableRef(self, TableName.parse(name))

    def open(self) -> Catalog:
        """Open a new client."""
        return open_catalog(self.properties) if self.properties else connect_embedded(self.home)

    def state_root(self, location: str | None) -> StateStore:
        """A state location, reached with the credentials of the table files; by default the one in the home folder."""
        if location is None:
            make_private(self.home / "state")
        return open_state(location or str(self.home / "state"), io_properties_of(self.properties))

    def state(self, location: str | None, sink_id: str) -> StateStore:
        """The folder of a sink in a state location."""
        return StateFolder(self.state_root(location), sink_id)

    @for_users
    def spark(self, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> "SparkSession":
        """The active Spark session, or a quiet local one."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - catalogs and tables are used without Spark, too

        return SparkSession.getActiveSession() or spark_on_demand(self.home, master=master, conf=conf)()


@dataclass(frozen=True)
class TableRef:
    """A table of a lake."""

    lake: Lake
    name: TableName

    def __str__(self) -> str:
        return str(self.name)


def check_table(function: str, given: object) -> None:
    """Refuse anything but a table of a lake, such as its name alone. Raises InvalidInput."""
    if not isinstance(given, TableRef):
        raise InvalidInput(
            f"{function} takes a table of a lake",
            detail=f"Got {given!r}.",
            hint=f'Write {function}(calve.connect().table("namespace.table")).',
        )


@for_users
def connect(*, home: str | Path | None = None, **properties: str) -> Lake:
    """The embedded lake of a home folder, or any catalog by pyiceberg's properties (`type="rest"`, `uri=...`).

    Nothing is created or asked before the lake is used.

    >>> lake = calve.connect(home="/data/calve")
    >>> print(lake.table("shop.orders"))
    shop.orders
    >>> calve.connect(type="rest", uri="https://catalog.example", warehouse="lake").label
    'rest catalog.example lake'
    >>> calve.connect(typ="rest")
    Traceback (most recent call last):
    calve.errors.InvalidInput: unknown property "typ" of a catalog
    """
    _check_home(home)
    settings = {key.replace("_", "-"): value for key, value in properties.items()}
    for name, given in settings.items():
        if "." not in name and name not in _PROPERTIES:
            raise InvalidInput(
                f'unknown property "{name}" of a catalog',
                detail=f"Expected one of: home, {', '.join(sorted(_PROPERTIES))}, or a name with a dot (s3.endpoint).",
                hint=suggestion(name, ("home", *_PROPERTIES)),
            )
        _check_text(name, given)
    if settings and not {"type", "uri"} & settings.keys():
        raise InvalidInput(
            "a catalog needs a type or an address", hint='Give type="rest" and uri="https://...", or home= alone.'
        )
    if "type" in settings:
        check_catalog_type(settings["type"])
    return Lake(Path(home).absolute() if home else default_home(), settings)


def _check_home(home: object) -> None:
    if home is not None and not isinstance(home, (str, Path)):
        raise InvalidInput("home must be a folder", detail=f"Got {home!r}.", hint='Write home="/data/calve".')


def _check_text(name: str, given: object) -> None:
    if not isinstance(given, str):
        kind = type(given).__name__  # the value itself may be a secret
        raise InvalidInput(f'property "{name}" of a catalog must be a string', detail=f"Got a value of type {kind}.")


def table_id(ref: TableRef) -> TableId:
    """The identity of a table in the metastore."""
    return TableId(ref.lake.label, ".".join(ref.name.namespace), ref.name.name)


def same_table(one: TableRef, other: TableRef) -> bool:
    """Whether two references mean the same table, as far as their connections tell."""
    embedded = not one.lake.properties and not other.lake.properties
    return table_id(one) == table_id(other) and (not embedded or one.lake.home == other.lake.home)
