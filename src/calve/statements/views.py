"""CREATE VIEW, and sinks over views: finds the input of a query, and checks that it can be maintained."""

from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.clock import SystemClock
from calve.definitions.objects import RELATIONS, Definition
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.envelope.envelopes import table_schema
from calve.envelope.log import LOG_FIELDS
from calve.errors import InvalidInput
from calve.iceberg.schema.creation import iceberg_schema, partition_spec
from calve.model.relation import SourcePlan, TableInput
from calve.model.spec import ChangeRows, Envelope, TableName
from calve.pipeline.build import source_of, static_tables
from calve.pipeline.existing_rows import check_adopted_view
from calve.pipeline.views import ViewOver, view_over
from calve.plan.sinks import SinkPlan, plan_sink, resolve_relation
from calve.source.table import TableChanges, record_fields
from calve.sql.statements import CreateView, ObjectKind
from calve.storage.state import StateFolder, open_state
from calve.view.plan import Changes, ViewPlan, ViewQuery
from calve.view.planning import NoNaturalKey
from calve.view.scope import tables_read


@dataclass(frozen=True)
class PlannedView:
    """A view that can be maintained. `uses` has the uid of the source or view below."""

    uses: tuple[str, ...]


def plan_view(place: Workplace, statement: CreateView, definitions: Definitions) -> PlannedView:
    """Check a view. A view without a natural key is accepted if the sink can choose any key."""
    spark = place.spark()
    query = ViewQuery(statement.name.name, statement.query)
    found = _changing_input(spark, query, definitions)
    source, views = resolve_relation(found, definitions)
    queries = (*(ViewQuery(v.name, v.query) for v in views), query)
    resolve = static_tables(place.home, definitions, place.vault)
    read = _frames(place, source)
    over = ViewOver(queries, source.relation.name, read.key, resolve)
    try:
        over.planned(spark, read.schema, read.envelope, None)
    except NoNaturalKey:
        if Changes.of(read.envelope) is Changes.UPSERTS:
            raise
    return PlannedView((found.uid,))


def columns_of_relation(place: Workplace, relation: Definition) -> list[tuple[str, str, bool]]:
    """Name, type and nullability of the columns of a view, or of a source without declared columns."""
    definitions = place.definitions()
    source, views = resolve_relation(relation, definitions)
    read = _frames(place, source)
    schema = read.schema
    if views:
        queries = tuple(ViewQuery(v.name, v.query) for v in views)
        resolve = static_tables(place.home, definitions, place.vault)
        over = ViewOver(queries, source.relation.name, read.key, resolve)
        try:
            schema = over.planned(place.spark(), read.schema, read.envelope, None).schema
        except NoNaturalKey:  # only the sink decides on the key
            schema = over.columns(place.spark(), read.schema, read.envelope)
    elif isinstance(read.envelope, ChangeRows):
        schema = table_schema(read.schema, read.envelope, read.key)
    return [(f.name, f.dataType.simpleString().upper(), f.nullable) for f in schema.fields]


def plan_sinks_view(place: Workplace, plan: SinkPlan) -> ViewPlan | None:
    """Plan the view that a sink reads, with the sink's key; None without a view."""
    if not plan.views:
        return None
    read = _frames(place, plan.source)
    over = replace(view_over(plan, static_tables(place.home, place.definitions(), place.vault)), source_key=read.key)
    return over.planned(place.spark(), read.schema, read.envelope, plan.spec.key or None)


def check_sinks_view(place: Workplace, plan: SinkPlan) -> None:
    """Check that a table with the sink's key and partitions can hold the view that it reads."""
    viewed = plan_sinks_view(place, plan)
    if viewed is not None:
        check_adopted_view(plan.spec, viewed)
        partition_spec(iceberg_schema(viewed.schema, viewed.key), plan.spec.partition_by)


def _changing_input(spark: SparkSession, query: ViewQuery, definitions: Definitions) -> Definition:
    """The only source or view of calve that a query reads. Raises InvalidInput if there is none or more than one."""
    named = [parts[0] for parts in tables_read(spark, query) if len(parts) == 1]
    wanted = {name.lower() for name in named}  # Spark compares names case-insensitively
    found = [d for d in definitions.of(*RELATIONS) if d.name.lower() in wanted]
    if not found:
        known = ", ".join(d.name for d in definitions.of(*RELATIONS))
        raise InvalidInput(
            f'view "{query.name}" does not read a source or view',
            detail=f"It reads {', '.join(named) or 'nothing'}.",
            hint=f"There are {known}." if known else "Create a source first.",
        )
    if len(found) > 1:
        raise InvalidInput(
            f'view "{query.name}" reads more than one changing input',
            detail=f"It reads {', '.join(d.label for d in found)}.",
            hint="Join static tables: files like parquet.`path`, or tables like lake.namespace.table.",
        )
    return found[0]


@dataclass(frozen=True)
class _Frames:
    """What a source delivers."""

    schema: StructType
    envelope: Envelope
    key: tuple[str, ...]


def _frames(place: Workplace, source: SourcePlan, waiting: tuple[TableName, ...] = ()) -> _Frames:
    """The schema, the envelope and the key of a source's frames. `waiting` are tables that do not exist yet."""
    definition = source_of(place.home, source, place.definitions(), place.vault)
    nowhere = StateFolder(open_state(str(Path(place.home) / "state")), "planning")  # reading the columns stores nothing
    envelope = source.envelope or definition.envelope
    if isinstance(definition, TableChanges):
        shape = definition.shape()
        if shape is None:
            written = _written(place, source, (*waiting, definition.table.name))
            key = source.relation.key or written.key
            return _Frames(record_fields(written.schema), envelope, key)
        source = replace(source, relation=replace(source.relation, key=source.relation.key or shape.key))
    schema = definition.open(nowhere, SystemClock()).schema(place.spark())
    return _Frames(schema, envelope, source.relation.key)


def _written(place: Workplace, source: SourcePlan, waiting: tuple[TableName, ...]) -> _Frames:
    """What a sink will write to a table that does not exist yet. Raises InvalidInput if no sink is defined for it."""
    definitions, wanted = place.definitions(), source.input
    for found in definitions.of(ObjectKind.SINK):
        plan = plan_sink(found, definitions)
        if not isinstance(wanted, TableInput) or (plan.spec.table, plan.catalog) != (wanted.table, wanted.catalog):
            continue
        if isinstance(plan.source.input, TableInput) and plan.source.input.table in waiting:
            raise InvalidInput(
                f'sink "{plan.spec.name}" reads, through other sinks, the table that it writes to',
                detail=f"Tables: {', '.join(map(str, waiting))}.",
                hint="Let one of them read another table.",
            )
        read = _frames(place, plan.source, waiting)
        log = LOG_FIELDS if plan.spec.append else ()
        if plan.views:
            over = replace(view_over(plan, static_tables(place.home, definitions, place.vault)), source_key=read.key)
            viewed = over.planned(place.spark(), read.schema, read.envelope, plan.spec.key or None)
            return _Frames(StructType([*viewed.schema, *log]), read.envelope, () if log else viewed.key)
        key = plan.spec.key or (() if plan.spec.append else read.key)
        columns = table_schema(read.schema, read.envelope, read.key if plan.spec.append else key)
        return _Frames(StructType([*columns, *log]), read.envelope, key)
    raise InvalidInput(
        f'table "{waiting[-1]}" does not exist', hint="Create the sink that writes it first, or check the name."
    )
