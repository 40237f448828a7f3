"""SHOW and EXPLAIN. They change nothing and never show a secret."""

import re
from dataclasses import replace
from datetime import timedelta

from calve.catalog.home_tables import table_names
from calve.clock import SystemClock
from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.definitions.vault import is_kept
from calve.definitions.workplace import Workplace
from calve.model.connection import CatalogConnection, CatalogType
from calve.model.health import Health, Status
from calve.model.instants import instant_text
from calve.model.relation import FilesInput, GeneratorInput, KafkaInput, SourcePlan, TableInput
from calve.model.spec import (
    LATEST_FORMAT,
    CompactionOptions,
    Deletes,
    Envelope,
    Maintenance,
    RetentionOptions,
    SinkSpec,
    WriteOptions,
)
from calve.plan import catalogue
from calve.plan.connections import plan_connection
from calve.plan.lookup import required
from calve.plan.sinks import SinkPlan, plan_sink, uses_of_sink
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.options import SecretLiteral
from calve.sql.values import format_duration, format_size
from calve.statements.answers import RowsAnswer, TextAnswer
from calve.watch.status_files import read_statuses

_KINDS = {
    st.ShowKind.SECRETS: st.ObjectKind.SECRET,
    st.ShowKind.CONNECTIONS: st.ObjectKind.CONNECTION,
    st.ShowKind.SOURCES: st.ObjectKind.SOURCE,
    st.ShowKind.VIEWS: st.ObjectKind.VIEW,
    st.ShowKind.SINKS: st.ObjectKind.SINK,
}


def show(place: Workplace, statement: st.Show) -> RowsAnswer:
    """List objects; LIKE filters by the first column."""
    if statement.listing is st.ShowKind.OPTIONS:
        found = _options()
    elif statement.listing is st.ShowKind.TABLES:
        found = _tables(place)
    elif statement.listing is st.ShowKind.CONSUMERS:
        from calve.statements.consumers import show_consumers

        found = show_consumers(place)
    elif statement.listing is st.ShowKind.SINKS:
        found = _sinks(place)
    elif statement.listing is st.ShowKind.SINK_STATUS:
        found = _sink_statuses(place)
    else:
        headings, described = _LISTED[statement.listing]
        objects = place.definitions().of(_KINDS[statement.listing])
        found = RowsAnswer(headings, tuple((d.name, *described(d)) for d in objects))
    if statement.like is None:
        return found
    pattern = _pattern(statement.like)
    return RowsAnswer(found.headings, tuple(row for row in found.rows if pattern.fullmatch(row[0])))


def _pattern(like: str) -> re.Pattern[str]:
    """A regular expression for LIKE: `%` matches any text, `_` one character."""
    pieces = {"%": ".*", "_": "."}
    return re.compile("".join(pieces.get(c) or re.escape(c) for c in like), re.IGNORECASE | re.DOTALL)


def _secret(found: Definition) -> tuple[str, ...]:
    if is_kept(found):
        return ("stored in the home folder",)
    statement = found.statement
    return (statement.origin.to_sql() if isinstance(statement, st.CreateSecret) else "",)


_ADDRESSES = (catalogue.CatalogOptions.URI, catalogue.KafkaOptions.BROKER, catalogue.AwsOptions.ENDPOINT)


def _connection(found: Definition) -> tuple[str, ...]:
    statement = found.statement
    if not isinstance(statement, st.CreateConnection):
        return ("", "")
    at = next((value for option in _ADDRESSES if (value := statement.options.value(option.name))), None)
    return (statement.kind.value, at if isinstance(at, str) else "")


def _source(found: Definition) -> tuple[str, ...]:
    statement = found.statement
    if not isinstance(statement, st.CreateSource):
        return ("", "")
    kind = {
        parts.FilesClause: "files",
        parts.GeneratorClause: "load generator",
        parts.KafkaClause: "Kafka",
        parts.TableClause: "Iceberg table",
    }
    key = ", ".join(name.name for name in statement.primary_key)
    return (kind[type(statement.input)], key)


def _view(found: Definition) -> tuple[str, ...]:
    statement = found.statement
    return (" ".join(statement.query.split()) if isinstance(statement, st.CreateView) else "",)


_LISTED = {
    st.ShowKind.SECRETS: (("secret", "value"), _secret),
    st.ShowKind.CONNECTIONS: (("connection", "to", "at"), _connection),
    st.ShowKind.SOURCES: (("source", "from", "key"), _source),
    st.ShowKind.VIEWS: (("view", "query"), _view),
}


def _sinks(place: Workplace) -> RowsAnswer:
    statuses = {status.sink: status for status in read_statuses(place.home)}
    rows = []
    for found in place.definitions().of(st.ObjectKind.SINK):
        statement = found.statement
        if isinstance(statement, st.CreateSink):
            table = ".".join((*statement.target.namespace, statement.target.table))
            known = statuses.get(found.name)
            resumed_only = known is not None and known.health is Health.STOPPED and not known.table
            health = "never run" if known is None or resumed_only else known.health.value
            state = "paused" if found.standing.paused else health
            rows.append((found.name, statement.source.name, table, str(found.version), state))
    return RowsAnswer(("sink", "from", "table", "version", "state"), tuple(rows))


def _sink_statuses(place: Workplace) -> RowsAnswer:
    """The state of every defined sink, and why; sinks of Python programs have no definition and are left out."""
    now_ms = SystemClock().now_ms()
    statuses = {status.sink: status for status in read_statuses(place.home, now_ms)}
    rows = []
    for found in place.definitions().of(st.ObjectKind.SINK):
        status = statuses.get(found.name) or Status.unknown(found.name, now_ms)
        health = status.health.value if found.name in statuses else "paused" if found.standing.paused else "never run"
        rows.append(
            (
                found.name,
                health,
                _instant(status.since_ms or None),
                _seconds(status.lag_now_ms(now_ms)),
                str(status.pending),
                str(status.commits),
                str(status.rows),
                _instant(status.last_commit_ms),
                _seconds(status.since_commit_ms(now_ms)),
                status.cause,
                status.hint,
            )
        )
    return RowsAnswer(_STATUS_HEADINGS, tuple(rows))


_STATUS_HEADINGS = (
    *("sink", "state", "since", "lag seconds", "pending", "commits", "changes", "last commit", "seconds since commit"),
    *("cause", "hint"),
)


def _seconds(millis: int | None) -> str:
    return "" if millis is None else str(millis // 1000)


def _instant(millis: int | None) -> str:
    return "" if millis is None else instant_text(millis)


def _options() -> RowsAnswer:
    rows = [
        (setting.name, group.title, setting.type_text, setting.default, setting.doc)
        for group in catalogue.GROUPS
        for setting in group.settings
    ]
    return RowsAnswer(("option", "of", "type", "default", "meaning"), tuple(rows))


def _tables(place: Workplace) -> RowsAnswer:
    """The tables of all connected catalogs."""
    rows = []
    definitions = place.definitions()
    for found in definitions.of(st.ObjectKind.CONNECTION):
        statement = found.statement
        planned = plan_connection(statement, definitions) if isinstance(statement, st.CreateConnection) else None
        if isinstance(planned, CatalogConnection):
            names = table_names(place.home) if planned.type is CatalogType.EMBEDDED else None
            if names is None:
                names = _listed(place, found, planned, definitions)
            rows += [(name, namespace, found.name) for namespace, name in names]
    return RowsAnswer(("table", "namespace", "connection"), tuple(rows))


def _listed(
    place: Workplace, found: Definition, planned: CatalogConnection, definitions: Definitions
) -> list[tuple[str, str]]:
    """Namespace and name of the tables of a catalog, as it lists them. Raises CalveError."""
    from calve.catalog.failures import trying
    from calve.pipeline.lakes import lake_of

    catalog = lake_of(place.home, planned, None, definitions, place.vault).open()
    with trying(f"listing the tables of {found.label}"):
        tables = [name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace)]
    return [(".".join(name[:-1]), name[-1]) for name in tables]


def show_create(place: Workplace, statement: st.ShowCreate) -> TextAnswer:
    """The statement that creates an object as it is now."""
    found = required(place.definitions(), statement.name, statement.kind)
    return TextAnswer(f"{display_statement(found).pretty()};")


def display_statement(found: Definition) -> st.Create:
    """An object's statement for display: a stored secret prints as hidden."""
    statement = found.statement
    if is_kept(found) and isinstance(statement, st.CreateSecret):
        return replace(statement, origin=parts.FromLiteral(SecretLiteral("")))
    return statement


def explain(place: Workplace, statement: st.Explain) -> RowsAnswer:
    """The plan of a sink."""
    definitions = place.definitions()
    create = statement.statement
    uses = uses_of_sink(create, definitions)
    plan = plan_sink(Definition(place.ids.new_id(), 1, create, uses=uses), definitions)
    return RowsAnswer(("what", "value"), tuple(_describe_plan(plan)))


def _describe_plan(plan: SinkPlan) -> list[tuple[str, str]]:
    spec = plan.spec
    every = "as data arrives" if plan.every is None else format_duration(plan.every)
    commits = "one per checkpoint" if plan.commit_every is None else format_duration(plan.commit_every)
    return [
        ("sink", spec.name),
        ("reads", " > ".join([_input(plan.source), *(f"view {v.name}" for v in plan.views)])),
        ("envelope", _envelope(spec.envelope) if plan.source.envelope else "the generator's own"),
        ("key", ", ".join(spec.key) or ("that of the view" if plan.views else "that of the source's table")),
        ("table", f"{spec.table} in a catalog of type {plan.catalog.type.value}"),
        *([("partitions", ", ".join(map(str, spec.partition_by)))] if spec.partition_by else []),
        *([] if spec.append else [("deletes", _deletes(spec)), ("key index", spec.key_index.value)]),
        *([("format version", str(spec.table_format))] if spec.table_format else []),
        *((f"reader {reader}", reader.describe()) for reader in spec.readers),
        ("checkpoints", every),
        ("commits", commits),
        ("files", _files(spec.write)),
        *([("snapshots", _retention(spec.retention))] if spec.retention != RetentionOptions() else []),
        *([("maintenance", "off")] if spec.maintenance is Maintenance.OFF else []),
        *([("compactions", _compaction(spec.compaction))] if spec.compaction != CompactionOptions() else []),
        ("foreign commits", spec.on_foreign_commit.value),
        *([("bad rows", f"dead letters in {spec.dead_letters}")] if spec.dead_letters else []),
        ("state", plan.state or "below the home folder"),
        ("begins", plan.beginning.value if plan.beginning.value != "refuse" else "with the source's first change"),
    ]


def _deletes(spec: SinkSpec) -> str:
    """How rows are deleted, in the only format version that the sink allows."""
    by_position = spec.deletes is Deletes.POSITION and spec.table_format == LATEST_FORMAT
    return Deletes.VECTOR.value if by_position else spec.deletes.value


def _retention(given: RetentionOptions) -> str:
    parts = [
        f"kept for {format_duration(timedelta(milliseconds=given.max_age_ms))}" if given.max_age_ms else "",
        f"at least {given.min_snapshots}" if given.min_snapshots else "",
        "" if given.thin else "not thinned",
        f"files removed after {format_duration(timedelta(milliseconds=given.grace_ms))}"
        if given.grace_ms != RetentionOptions.grace_ms
        else "",
    ]
    return ", ".join(filter(None, parts))


def _compaction(given: CompactionOptions) -> str:
    parts = [
        f"for {given.reads_per_hour:g} reads per hour" if given.reads_per_hour is not None else "",
        f"of files with a share of {given.deleted_share:g} deleted rows" if given.deleted_share is not None else "",
        f"of {given.small_files} small files" if given.small_files else "",
        f"{given.hours} UTC" if given.hours else "",
        f"on a share of {given.core_share:g} of the cores" if given.core_share != CompactionOptions.core_share else "",
        f"sorted by {given.order}" if given.order.columns else "",
    ]
    return ", ".join(filter(None, parts))


def _files(write: WriteOptions) -> str:
    parts = [
        f"up to {format_size(write.target_file_size)}" if write.target_file_size else "",
        write.compression or "",
        f"row groups of {format_size(write.row_group_size)}" if write.row_group_size else "",
        "Bloom filters of the key" if write.bloom_filter else "",
    ]
    return ", ".join(filter(None, parts)) or "as the table's properties say, else up to 512MB, zstd"


def _input(source: SourcePlan) -> str:
    match source.input:
        case FilesInput(path, form):
            return f"{form} files in {path}"
        case GeneratorInput(rows):
            return f"load generator orders, {rows:,} rows"
        case KafkaInput():
            return f"topic {source.input.topic} at {source.input.connection.brokers}"
        case TableInput():
            return f"changes of table {source.input.connection}.{source.input.table}"


def _envelope(envelope: Envelope) -> str:
    order = getattr(envelope, "order_by", ())
    names = {"NoEnvelope": "NONE", "Upsert": "UPSERT", "Debezium": "DEBEZIUM", "Diff": "DIFF"}
    name = names.get(type(envelope).__name__, "the changes of a table")
    across = " across checkpoints" if getattr(envelope, "across_checkpoints", False) else ""
    return f"{name}, ordered by {', '.join(order)}{across}" if order else name
