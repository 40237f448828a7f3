"""Builds a sink that can be started from a planned one, out of the same parts as the Python interface.

Secrets are looked up here: plans contain only references to them.
"""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame

from calve.catalog.properties import Reveal
from calve.definitions.store import Definitions
from calve.definitions.vault import Vault
from calve.errors import InvalidInput
from calve.lake import TableRef
from calve.model.connection import CatalogConnection, KafkaConnection
from calve.model.relation import FilesInput, GeneratorInput, KafkaInput, SourcePlan, TableInput
from calve.model.spec import Envelope, EpochUnit, NoEnvelope
from calve.pipeline.lakes import lake_of, revealing, store_of_input, store_of_sinks
from calve.pipeline.sink import Sink
from calve.pipeline.views import view_over
from calve.plan.connections import plan_connection
from calve.plan.sinks import SinkPlan
from calve.reader.read import read
from calve.source.files.definition import files
from calve.source.generator import orders
from calve.source.kafka.access import access_of, encoding_of
from calve.source.kafka.avro import parsed_schema
from calve.source.kafka.brokers import Brokers
from calve.source.kafka.definition import MAX_OFFSETS, Kafka, StartOffsets
from calve.source.port import SourceDefinition
from calve.source.table import TableChanges, table_changes
from calve.sql.names import Identifier
from calve.sql.statements import CreateConnection, ObjectKind
from calve.view.plan import Resolve


def topic_of(found: KafkaInput, envelope: Envelope, reveal: Reveal) -> Kafka:
    """Build the source of a topic."""
    return Kafka(
        access=access_of(found.connection, reveal),
        topic=found.topic,
        envelope=envelope,
        schema=found.schema,
        beginning=StartOffsets.parse(found.start),
        max_offsets=found.max_offsets or MAX_OFFSETS,
        included=found.included,
        encoding=encoding_of(found, reveal),
        epoch_unit=EpochUnit(found.epoch_unit) if found.epoch_unit else None,
    )


def check_topic(found: KafkaInput, envelope: Envelope, reveal: Reveal) -> None:
    """Check the start offsets and the schema of a topic and, unless checks are disabled, the topic itself.

    Raises InvalidInput, and TransientError if the brokers do not respond.
    """
    topic = topic_of(found, envelope, reveal)
    if found.avro_schema:
        parsed_schema(found.avro_schema)
    if not found.unchecked:
        topic.check()


def try_brokers(connection: KafkaConnection, reveal: Reveal) -> None:
    """Check that the brokers respond. Raises TransientError."""
    Brokers(access_of(connection, reveal)).check()


def static_tables(home: Path, definitions: Definitions, vault: Vault) -> Resolve:
    """Resolve `connection.namespace.table` to tables of connected catalogs, for views that join them."""

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
    """Build the sink of a plan, ready to start."""
    source = source_of(home, plan.source, definitions, vault)
    if isinstance(source, TableChanges):
        plan = with_key(plan, source.keyed())
    spec = plan.spec
    if plan.source.envelope is None:
        spec = replace(spec, envelope=source.envelope)
    lake = lake_of(home, plan.catalog, plan.store, definitions, vault)
    over = view_over(plan, static_tables(home, definitions, vault)) if plan.views else None
    return Sink(source, lake, spec, view=over, record_key=plan.source.relation.key)


def with_key(plan: SinkPlan, key: tuple[str, ...]) -> SinkPlan:
    """The plan of a sink whose source has the key of a table."""
    if not key and not plan.spec.key and not plan.spec.append and not plan.views:  # a view may group its rows
        raise InvalidInput(
            f'sink "{plan.spec.name}" has no key',
            detail="The table that its source reads has no identifier fields.",
            hint="Write KEY (column), or give the source a PRIMARY KEY (column) NOT ENFORCED.",
        )
    source = replace(plan.source, relation=replace(plan.source.relation, key=key))
    own = plan.spec.key or (() if plan.views or plan.spec.append else key)
    return replace(plan, source=source, spec=replace(plan.spec, key=own))


def source_of(home: Path, plan: SourcePlan, definitions: Definitions, vault: Vault) -> SourceDefinition:
    """Build the source of a plan; it is not opened yet."""
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
            return topic_of(found, plan.envelope or NoEnvelope(), revealing(definitions, vault))
        case TableInput() as found:
            lake = lake_of(home, found.catalog, store_of_input(found, definitions), definitions, vault)
            made = table_changes(
                TableRef(lake, found.table),
                start=found.start,
                consumer=found.consumer,
                key=plan.relation.key,
                max_rows_per_checkpoint=found.max_rows,
            )
            return replace(made, max_hold_ms=found.max_hold_ms)
