"""A planned sink -> a sink that can be started: the same parts that the Python interface puts together."""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame

from calve.catalog.properties import Reveal, catalog_properties
from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.definitions.vault import Vault
from calve.errors import InvalidInput
from calve.model.connection import AwsConnection, CatalogConnection, SecretRef
from calve.model.relation import FilesInput, GeneratorInput, KafkaInput, SourcePlan
from calve.model.spec import NoEnvelope
from calve.plan.connections import plan_connection
from calve.plan.lookup import required_connection
from calve.plan.sinks import SinkPlan, connected
from calve.runtime.api import Sink
from calve.runtime.lake import Lake
from calve.runtime.reading import read
from calve.runtime.session import embedded_session
from calve.runtime.topics import topic_of
from calve.runtime.views import view_over
from calve.runtime.workplace import workplace
from calve.source.files import files
from calve.source.generator import orders
from calve.source.port import SourceDefinition
from calve.sql.names import Identifier
from calve.sql.statements import ConnectionKind, CreateConnection, CreateSink, ObjectKind
from calve.view.plan import Resolve


def revealing(definitions: Definitions, vault: Vault) -> Reveal:
    """Looks up the texts of secrets."""

    def reveal(reference: SecretRef) -> str:
        definition = definitions.by_uid(reference.uid)
        if definition is None:
            raise InvalidInput(f'secret "{reference.name}" was dropped', hint="Create it again.")
        return vault.value(definition)

    return reveal


def lake_of(
    home: Path, catalog: CatalogConnection, store: AwsConnection | None, definitions: Definitions, vault: Vault
) -> Lake:
    """The catalog of a connection."""
    return Lake(home, catalog_properties(catalog, store, revealing(definitions, vault)))


def connected_lake(home: Path, name: str) -> Lake:
    """The catalog of a connection by its name."""
    place = workplace(home, lambda: embedded_session(home))
    definitions = place.definitions()
    found = required_connection(definitions, Identifier.exact(name), ConnectionKind.ICEBERG_CATALOG)
    planned = plan_connection(found.statement, definitions) if isinstance(found.statement, CreateConnection) else None
    if not isinstance(planned, CatalogConnection):
        raise TypeError("not a connection to a catalog")
    return lake_of(place.home, planned, store_of_sinks(found, definitions), definitions, place.vault)


def store_of_sinks(connection: Definition, definitions: Definitions) -> AwsConnection | None:
    """The credentials that sinks use for the files of a catalog's tables, if all of them use the same."""
    sinks = [d for d in definitions.of(ObjectKind.SINK) if connection.uid in d.uses]
    stores = [connected(d.statement, definitions)[1] for d in sinks if isinstance(d.statement, CreateSink)]
    return stores[0] if stores and all(store == stores[0] for store in stores) else None


def static_tables(home: Path, definitions: Definitions, vault: Vault) -> Resolve:
    """Tables of connected catalogs, for views that join them: `connection.namespace.table`."""

    def resolve(parts: tuple[str, ...]) -> DataFrame | None:
        found = definitions.find(Identifier.exact(parts[0]), ObjectKind.CONNECTION) if len(parts) > 2 else None
        if found is None or not isinstance(found.statement, CreateConnection):
            return None
        planned = plan_connection(found.statement, definitions)
        if not isinstance(planned, CatalogConnection):
            return None
        lake = lake_of(home, planned, store_of_sinks(found, definitions), definitions, vault)
        return read(lake.spark(), lake.table(".".join(parts[1:])))

    return resolve


def sink_of(home: Path, plan: SinkPlan, definitions: Definitions, vault: Vault) -> Sink:
    """The sink of a plan, ready to start."""
    source = source_of(plan.source, revealing(definitions, vault))
    spec = plan.spec
    if plan.source.envelope is None:
        spec = replace(spec, envelope=source.envelope)
    lake = lake_of(home, plan.catalog, plan.store, definitions, vault)
    over = view_over(plan, static_tables(home, definitions, vault)) if plan.views else None
    return Sink(source, lake, spec, view=over, record_key=plan.source.relation.key)


def source_of(plan: SourcePlan, reveal: Reveal) -> SourceDefinition:
    """The source of a plan, not open yet."""
    match plan.input:
        case FilesInput() as found:
            return files(
                found.path,
                format=found.format,
                schema=found.schema,
                envelope=plan.envelope,
                max_files_per_checkpoint=found.max_files,
                options=dict(found.options),
                epoch_unit=found.epoch_unit,
            )
        case GeneratorInput() as found:
            return orders(
                rows=found.rows,
                changes=found.changes,
                seed=found.seed,
                per_checkpoint=found.per_checkpoint,
                per_second=found.per_second,
            )
        case KafkaInput() as found:
            return topic_of(found, plan.envelope or NoEnvelope(), reveal)
