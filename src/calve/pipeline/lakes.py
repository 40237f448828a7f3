"""Opens the catalogs of defined connections, with their secrets; needs no Spark."""

from pathlib import Path

from calve.catalog.properties import Reveal, catalog_properties
from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.definitions.vault import Vault
from calve.definitions.workplace import workplace
from calve.errors import InvalidInput
from calve.lake import Lake
from calve.model.connection import AwsConnection, CatalogConnection, SecretRef
from calve.model.relation import TableInput
from calve.plan.connections import plan_connection
from calve.plan.lookup import required_connection
from calve.plan.sinks import plan_target
from calve.spark.on_demand import spark_on_demand
from calve.sql.names import Identifier
from calve.sql.statements import ConnectionKind, CreateConnection, CreateSink, ObjectKind


def revealing(definitions: Definitions, vault: Vault) -> Reveal:
    """Return a function that looks up the values of secrets."""

    def reveal(reference: SecretRef) -> str:
        definition = definitions.by_uid(reference.uid)
        if definition is None:
            raise InvalidInput(f'secret "{reference.name}" was dropped', hint="Create it again.")
        return vault.value(definition)

    return reveal


def lake_of(
    home: Path, catalog: CatalogConnection, store: AwsConnection | None, definitions: Definitions, vault: Vault
) -> Lake:
    """Open the lake of a planned catalog connection."""
    return Lake(home, catalog_properties(catalog, store, revealing(definitions, vault)))


def connected_lake(home: Path, name: str) -> Lake:
    """Open the lake of a catalog connection by its name."""
    place = workplace(home, spark_on_demand(home))
    definitions = place.definitions()
    found = required_connection(definitions, Identifier.exact(name), ConnectionKind.ICEBERG_CATALOG)
    planned = plan_connection(found.statement, definitions) if isinstance(found.statement, CreateConnection) else None
    if not isinstance(planned, CatalogConnection):
        raise TypeError("not a connection to a catalog")
    return lake_of(place.home, planned, store_of_sinks(found, definitions), definitions, place.vault)


def chosen_lake(home: Path, connection: str | None) -> Lake:
    """Open the embedded lake of a home folder, or that of a connection."""
    return Lake(home, {}) if connection is None else connected_lake(home, connection)


def store_of_sinks(connection: Definition, definitions: Definitions) -> AwsConnection | None:
    """Return the credentials that all sinks of a catalog connection use for table files; None if they differ."""
    sinks = [d for d in definitions.of(ObjectKind.SINK) if connection.uid in d.uses]
    stores = [plan_target(d.statement, definitions)[1] for d in sinks if isinstance(d.statement, CreateSink)]
    return stores[0] if stores and all(store == stores[0] for store in stores) else None


def store_of_input(read: TableInput, definitions: Definitions) -> AwsConnection | None:
    """Return the credentials for the files of a table that a source reads: those of the sinks of its connection."""
    connection = definitions.find(Identifier.exact(read.connection), ObjectKind.CONNECTION)
    return None if connection is None else store_of_sinks(connection, definitions)
