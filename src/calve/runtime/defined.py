"""A planned sink -> a sink that can be started: the same parts that the Python interface puts together."""

from dataclasses import replace
from pathlib import Path

from calve.catalog.properties import catalog_properties
from calve.definitions.store import Definitions
from calve.definitions.vault import Vault
from calve.errors import InvalidInput
from calve.model.connection import AwsConnection, CatalogConnection, SecretRef
from calve.model.relation import FilesInput, GeneratorInput, KafkaInput, SourcePlan
from calve.plan.sinks import SinkPlan
from calve.runtime.api import Lake, Sink
from calve.runtime.views import view_over
from calve.source.files import files
from calve.source.generator import orders
from calve.source.port import SourceDefinition


def lake_of(
    home: Path, catalog: CatalogConnection, store: AwsConnection | None, definitions: Definitions, vault: Vault
) -> Lake:
    """The catalog of a connection."""

    def reveal(reference: SecretRef) -> str:
        definition = definitions.by_uid(reference.uid)
        if definition is None:
            raise InvalidInput(f'secret "{reference.name}" was dropped', hint="Create it again.")
        return vault.value(definition)

    return Lake(home, catalog_properties(catalog, store, reveal))


def sink_of(home: Path, plan: SinkPlan, definitions: Definitions, vault: Vault) -> Sink:
    """The sink of a plan, ready to start."""
    source = source_of(plan.source)
    spec = plan.spec
    if plan.source.envelope is None:
        spec = replace(spec, envelope=source.envelope)
    lake = lake_of(home, plan.catalog, plan.store, definitions, vault)
    return Sink(source, lake, spec, view=view_over(plan) if plan.views else None)


def source_of(plan: SourcePlan) -> SourceDefinition:
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
        case KafkaInput():
            raise InvalidInput(
                "sources from Kafka cannot be run yet",
                hint="Read the topic with Spark's connector, and give the DataFrame to calve.sink(...).",
            )
