"""CREATE and VALIDATE: a statement is planned against the definitions, and stored if it is valid.

Spark is imported only for statements that need it: views, sinks over views, Kafka, and tables that a sink adopts.
The texts of secrets are stored in the vault before a definition refers to them, and removed if it is refused.
"""

import logging
from dataclasses import replace

from calve.catalog.failures import trying
from calve.catalog.properties import store_properties
from calve.definitions.objects import Definition, SinkState, kind_of, spaces
from calve.definitions.store import Definitions
from calve.definitions.vault import KEPT
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput, TransientError
from calve.iceberg.loading import FORMAT_VERSION, Occupied, planned_location, sinks_of_table
from calve.model.connection import AwsConnection, CatalogConnection
from calve.model.names import check_name
from calve.model.relation import FilesInput, KafkaInput
from calve.model.spec import NoEnvelope, TableName
from calve.pipeline.lakes import lake_of, revealing
from calve.plan.connections import plan_connection, uses_of_connection, wants_validation
from calve.plan.declared import hide_literals, normalise
from calve.plan.lookup import required
from calve.plan.sinks import OnOldProgress, SinkPlan, plan_sink, uses_of_sink
from calve.plan.sources import plan_source, uses_of_source
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.errors import SqlError
from calve.sql.names import Identifier
from calve.statements.answers import TextAnswer
from calve.storage.filesystems import io_properties_of, try_bucket, try_keys
from calve.storage.listing import check_there
from calve.storage.state import check_apart

_log = logging.getLogger("calve")


def create(place: Workplace, statement: st.Create) -> TextAnswer:
    """Store a new object. Raises SqlError if it exists, unless the statement says IF NOT EXISTS."""
    kind = kind_of(statement)
    check_name(statement.name.name, f"a {kind.value.lower()}")
    existing = place.definitions().find(statement.name, *spaces(kind))
    if existing is not None:
        if statement.if_not_exists:
            return TextAnswer(f"{existing.label} already exists")
        raise SqlError.at(
            statement.name.where,
            f"{existing.label} already exists",
            hint=f"Use ALTER {existing.kind.value}, or another name.",
        )
    done = _Creation(place).run(statement)
    return TextAnswer("\n".join([f"created {kind.value.lower()} {statement.name.to_sql()}", *done]))


def validate(place: Workplace, statement: st.Validate) -> TextAnswer:
    """Test a connection."""
    definitions = place.definitions()
    found = required(definitions, statement.connection, st.ObjectKind.CONNECTION)
    if isinstance(found.statement, st.CreateConnection):
        try_connection(place, found.statement, definitions)
    return TextAnswer(f"{found.label} works")


def try_connection(place: Workplace, statement: st.CreateConnection, definitions: Definitions) -> None:
    """Test a connection: list namespaces and the warehouse's bucket, buckets of the store, or topics of the brokers."""
    planned = plan_connection(statement, definitions)
    if isinstance(planned, CatalogConnection):
        lake = lake_of(place.home, planned, None, definitions, place.vault)
        catalog = lake.open()
        with trying(f'listing the namespaces of connection "{statement.name}"'):
            catalog.list_namespaces()
            try_bucket(planned.warehouse or "", io_properties_of(lake.properties))
    elif isinstance(planned, AwsConnection):
        with trying(f'asking the store of connection "{statement.name}" for its buckets'):
            try_keys(store_properties(planned, revealing(definitions, place.vault)))
    else:
        from calve.pipeline.build import try_brokers

        try_brokers(planned, revealing(definitions, place.vault))


def check_source(place: Workplace, statement: st.CreateSource, definitions: Definitions) -> None:
    """Check that a source is valid, and that its topic exists. Raises InvalidInput."""
    planned = plan_source(statement, definitions)
    if isinstance(planned.input, FilesInput):
        _warn_of_missing_folder(statement.name.name, planned.input.path)
    if isinstance(planned.input, KafkaInput):
        from calve.pipeline.build import check_topic

        check_topic(planned.input, planned.envelope or NoEnvelope(), revealing(definitions, place.vault))


def _warn_of_missing_folder(source: str, path: str) -> None:
    """Warn of a missing folder. It may be created later, but it may also be misspelt."""
    try:
        check_there(path)
    except TransientError as error:
        _log.warning("source %s reads nothing yet: there is no folder %s. %s", source, path, error.hint)


class _Creation:
    """Creates one object."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._definitions = place.definitions()
        self._uid = place.ids.new_id()

    def run(self, given: st.Create) -> list[str]:
        """Create it; returns what else the user should know."""
        statement, notes = normalise(given), list[str]()
        match statement:
            case st.CreateSecret():
                self._secret(statement)
            case st.CreateConnection():
                self._connection(statement)
            case st.CreateSource():
                if statement.infer:
                    statement, notes = self._with_columns(statement)
                check_source(self._place, statement, self._definitions)
                self._store(Definition(self._uid, 1, statement, uses=uses_of_source(statement, self._definitions)))
            case st.CreateView():
                from calve.statements.views import plan_view

                viewed = plan_view(self._place, statement, self._definitions)
                self._store(Definition(self._uid, 1, statement, uses=viewed.uses))
            case st.CreateSink():
                self._sink(statement)
        return notes

    def _with_columns(self, statement: st.CreateSource) -> tuple[st.CreateSource, list[str]]:
        """The source with the columns of its input as declared ones, and what was inferred."""
        from calve.infer.columns import infer_columns

        plan = plan_source(statement, self._definitions)
        found = infer_columns(plan, revealing(self._definitions, self._place.vault))
        declared = {column.name.name: column for column in statement.columns}
        included = {column.name for column in plan.relation.columns or ()} - set(declared)
        columns = tuple(
            declared.get(c.name) or parts.ColumnClause(Identifier.shortest(c.name), c.type)
            for c in found.columns
            if c.name not in included
        )
        listed = ", ".join(column.to_sql() for column in columns)
        notes = [f"columns inferred from {found.looked}: {listed}", *(f"  note: {text}" for text in found.warnings())]
        return replace(statement, columns=columns, infer=False), notes

    def _store(self, *definitions: Definition) -> None:
        self._place.store.create(definitions)

    def _secret(self, statement: st.CreateSecret) -> None:
        origin = statement.origin
        if isinstance(origin, parts.FromFile) and origin.path.startswith(KEPT):
            raise SqlError.at(statement.where, f'a file of a secret cannot start with "{KEPT}"')
        if not isinstance(origin, parts.FromLiteral):
            self._store(Definition(self._uid, 1, statement))
            return
        kept = replace(statement, origin=parts.FromFile(f"{KEPT}{self._uid}"))
        self._keeping({self._uid: origin.value.reveal()}, Definition(self._uid, 1, kept))

    def _connection(self, given: st.CreateConnection) -> None:
        hidden = hide_literals(given, self._uid, self._place.ids.new_id)
        with_secrets = Definitions([*self._definitions, *hidden.secrets])
        plan_connection(hidden.statement, with_secrets)
        uses = uses_of_connection(hidden.statement, with_secrets)
        stored = Definition(self._uid, 1, hidden.statement, uses=uses)
        validated = wants_validation(given)
        self._keeping(hidden.texts, *hidden.secrets, stored, tried=hidden.statement if validated else None)

    def _keeping(
        self, texts: dict[str, str], *definitions: Definition, tried: st.CreateConnection | None = None
    ) -> None:
        vault = self._place.vault
        try:
            for uid, text in texts.items():
                vault.keep(uid, text)
            if tried is not None:
                try_connection(self._place, tried, Definitions([*self._definitions, *definitions]))
            self._store(*definitions)
        except BaseException:
            for uid in texts:
                vault.forget(uid)
            raise

    def _sink(self, statement: st.CreateSink) -> None:
        uses = uses_of_sink(statement, self._definitions)
        definition = Definition(self._uid, 1, statement, uses=uses)
        plan = plan_sink(definition, self._definitions)
        for table in filter(None, (plan.spec.table, plan.spec.dead_letters)):
            table.check()
        if plan.views:
            from calve.statements.views import check_sinks_view

            check_sinks_view(self._place, plan)
        self._store(decide_start(self._place, definition, plan, self._definitions))


def decide_start(place: Workplace, definition: Definition, plan: SinkPlan, definitions: Definitions) -> Definition:
    """The definition with the state in which a new sink starts: empty, resumed, adopting, or with a new generation.

    A sink that resumes takes over the identity of the dropped one, with the next version. Existing rows are kept
    (ADOPT) or replaced (SNAPSHOT); only the user decides. Raises InvalidInput if the decision is missing or impossible.
    """
    table: TableName = plan.spec.table
    lake = lake_of(place.home, plan.catalog, plan.store, definitions, place.vault)
    with trying(f"looking at the state location {plan.state}"):
        try_bucket(plan.state or "", io_properties_of(lake.properties))
    catalog = lake.open()
    place_of_table = planned_location(catalog, table)
    if plan.state is not None and place_of_table is not None:
        check_apart(plan.state, place_of_table)
    stopped = sinks_of_table(catalog, table)
    defined = {d.uid for d in definitions.of(st.ObjectKind.SINK)}
    free = {uid: version for uid, version in stopped.items() if uid not in defined}
    if plan.beginning is OnOldProgress.SNAPSHOT:
        return replace(definition, standing=SinkState(generation=1))
    if plan.beginning is OnOldProgress.RESUME:
        if len(free) != 1:
            raise InvalidInput(
                f"table {table} has {'no' if not free else 'more than one'} dropped sink to resume",
                detail=f"Sinks with progress in it: {', '.join(sorted(free))}." if free else "",
                hint="Leave out RESUME." if not free else "Use SNAPSHOT = true to start over.",
            )
        ((uid, version),) = free.items()
        return replace(definition, uid=uid, version=version + 1)
    found = Occupied.of(catalog, table, plan.spec.branch)
    if plan.spec.adopts:
        from calve.pipeline.build import sink_of
        from calve.pipeline.existing_rows import check_adoption

        check_adoption(sink_of(place.home, plan, definitions, place.vault))
        _check_adopted(found, table)
        return definition
    if free:
        raise InvalidInput(
            f"table {table} has the progress of a dropped sink",
            detail=f"Sinks: {', '.join(sorted(free))}.",
            hint="Write WITH (RESUME = true) to continue where it stopped, WITH (SNAPSHOT = true) to refill it, or "
            "WITH (ADOPT = true) to keep its rows and read the source from its start.",
        )
    if found is not None and found.written:
        raise InvalidInput(
            f"table {table} has {'rows' if found.rows else 'snapshots'} that no run of this sink wrote",
            hint="WITH (ADOPT = true) adopts it, WITH (SNAPSHOT = true) replaces its rows.",
        )
    return definition


def _check_adopted(found: Occupied | None, table: TableName) -> None:
    if found is None:
        raise InvalidInput(
            f"there is no table {table} to adopt", hint="Leave out ADOPT: a sink creates the table that it writes to."
        )
    if found.format_version != FORMAT_VERSION:
        raise InvalidInput(
            f"table {table} cannot be adopted",
            detail=f"It has format version {found.format_version}; calve writes version {FORMAT_VERSION}.",
        )
