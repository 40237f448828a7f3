"""Limits what tables and catalogs can decide.

pyiceberg imports and calls what certain properties name (`py-io-impl`, `write.py-location-provider.impl`,
`s3.retry-strategy-impl`, `auth`), and prefers the store's endpoint and credentials in the properties of a table to
those of the connection. Anyone with write access to a table could run code on the driver, or redirect its signed
requests to another store. Here only the connection names code, stores and logins:

- Properties of a table never reach a store's client, and no location provider is imported.
- A REST catalog may vend a store and credentials, which is its task, but no code.
- Tables of a remote catalog cannot refer to files of this machine.

All catalogs that `connect.py` opens use these classes; nothing else loads a FileIO or a location provider.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.io import FileIO
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.locations import LocationProvider, ObjectStoreLocationProvider, SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _update_table_metadata_log,
    update_table_metadata,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from calve.catalog.row_lineage import check_snapshots, check_writable, with_upgrade, write_metadata
from calve.model.names import path_segment
from calve.model.numbers import number_property
from calve.storage.filesystems import NO_LOCAL_FILES, is_local_location

_OBJECT_STORE = "write.object-storage.enabled"
_LOG_LIMIT, _DEFAULT_LOG_LIMIT = "write.metadata.previous-versions-max", 100
_CODE = frozenset({"auth"})
"""Properties whose entry `impl` names a class."""

if TYPE_CHECKING:
    _Base = MetastoreCatalog
else:
    _Base = object


def names_code(name: str) -> bool:
    """Whether pyiceberg imports the value of a property of this name."""
    last = name.rpartition(".")[2]
    return name in _CODE or last.startswith("py-") or ".py-" in name or last == "impl" or last.endswith("-impl")


def without_code(properties: Mapping[str, str]) -> dict[str, str]:
    """Untrusted properties, without those that name code."""
    return {name: value for name, value in properties.items() if not names_code(name)}


def location_provider(location: str, table_properties: Mapping[str, str]) -> LocationProvider:
    """Where files of a table go, by Iceberg's own rules: a provider that the table names is ignored."""
    properties = without_code(table_properties)
    hashed = properties.get(_OBJECT_STORE, "false").lower() == "true"
    return (ObjectStoreLocationProvider if hashed else SimpleLocationProvider)(location.rstrip("/"), properties)


def locations_of(table: Table) -> LocationProvider:
    """The same for a table. Use it instead of `Table.location_provider`."""
    return location_provider(table.metadata.location, table.metadata.properties)


def local_files(properties: Mapping[str, str]) -> dict[str, str]:
    """The property that says whether tables of this catalog may have files on this machine; the user's own wins.

    They may if the warehouse is a local folder or, without a warehouse, if the catalog runs on this machine.
    """
    if NO_LOCAL_FILES in properties:
        return {}
    warehouse, uri = properties.get("warehouse", ""), properties.get("uri", "")
    if "/" in warehouse:
        here = is_local_location(warehouse)
    else:
        here = uri.startswith("sqlite:") or is_loopback(urlsplit(uri).hostname or "")
    return {NO_LOCAL_FILES: "false" if here else "true"}


def is_loopback(host: str) -> bool:
    """Whether a host name is that of this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Guarded(_Base):
    """Mixin before a pyiceberg catalog that keeps metadata files: SQL, Glue, Hive."""

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        del properties  # the table's
        return super()._load_file_io(EMPTY_DICT, location)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Like pyiceberg's, which uses the location provider that the table names."""
        if current_table is None:
            return super()._update_and_stage_table(None, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        check_writable(current_table)
        base, others = with_upgrade(current_table.metadata, updates)
        check_snapshots(base, others)
        metadata = update_table_metadata(base, others)
        metadata = with_log_entry(metadata, current_table.metadata_location, base.last_updated_ms)
        # pyiceberg uses the clock of this machine; Java rejects metadata that is older than its predecessor
        if metadata.last_updated_ms < (before := current_table.metadata.last_updated_ms):
            metadata = metadata.model_copy(update={"last_updated_ms": before})
        location = self._next_metadata_location(metadata, current_table.metadata_location)
        io = self._load_file_io(location=location)
        return StagedTable(table_identifier, metadata, location, io, self)

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        write_metadata(metadata, io, metadata_path)

    @staticmethod
    def _write_metadata_no_exist_check(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        write_metadata(metadata, io, metadata_path, overwrite=True)

    def _get_default_warehouse_location(self, database_name: str, table_name: str) -> str:
        return self._new_location(database_name, table_name, "")

    def _get_hive_style_warehouse_location(self, database_name: str, table_name: str) -> str:
        return self._new_location(database_name, table_name, ".db")

    def _new_location(self, namespace: str, table: str, ending: str) -> str:
        """Where a new table goes; pyiceberg does not escape names, although `#` and `/` are special in locations."""
        base = self.load_namespace_properties(namespace).get("location")
        if not base:
            warehouse = self.properties.get("warehouse")
            if not warehouse:
                raise ValueError("the catalog has no warehouse, and the namespace no location")
            base = f"{warehouse.rstrip('/')}/{path_segment(namespace)}{ending}"
        return f"{base.rstrip('/')}/{path_segment(table)}"

    def _next_metadata_location(self, metadata: TableMetadata, location: str) -> str:
        version = self._parse_metadata_version(location) + 1
        provider = location_provider(metadata.location, metadata.properties)
        return provider.new_table_metadata_file_location(version)


def with_log_entry(metadata: TableMetadata, location: str, at_ms: int) -> TableMetadata:
    """Add the metadata file before this one to the log. An invalid limit of its length is ignored.

    pyiceberg fails on such a limit: whoever set it would stop all commits to the table.
    """
    limit = number_property(metadata.properties, _LOG_LIMIT, _DEFAULT_LOG_LIMIT)
    limited = metadata.model_copy(update={"properties": {_LOG_LIMIT: str(limit)}})
    log = _update_table_metadata_log(limited, location, at_ms).metadata_log
    return metadata.model_copy(update={"metadata_log": log})


def new_location(catalog: Catalog, identifier: Identifier) -> str | None:
    """The default location of a new table; None if only the catalog knows."""
    warehouse = catalog.properties.get("warehouse")
    if not isinstance(catalog, Guarded) or not warehouse:
        return None
    try:
        return catalog._resolve_table_location(None, ".".join(identifier[:-1]), identifier[-1])  # noqa: SLF001 - pyiceberg's
    except NoSuchNamespaceError:
        return f"{warehouse.rstrip('/')}/{path_segment('.'.join(identifier[:-1]))}/{path_segment(identifier[-1])}"
