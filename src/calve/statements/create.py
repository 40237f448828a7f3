"""CREATE and VALIDATE: a statement is planned against the definitions, and stored if it is valid.

What a statement asks of catalogs, stores and brokers is in `probing`, which is imported where it is needed: a statement
that is refused, or has nothing to do, answers before Iceberg and Arrow could be imported. Spark is imported only for
views, sinks over views, Kafka, and tables that a sink adopts.

The texts of secrets are stored in the vault before a definition refers to them, and removed if it is refused.
"""

from dataclasses import replace
from pathlib import Path

from calve.catalog.home_tables import is_in_order, is_new
from calve.definitions.objects import Definition, SinkState, kind_of, spaces
from calve.definitions.store import Definitions
from calve.definitions.vault import KEPT
from calve.definitions.workplace import Workplace
from calve.model.changelog import START_WORDS
from calve.model.connection import CatalogConnection, CatalogType, Connection
from calve.model.names import check_name
from calve.model.relation import FilesInput, KafkaInput, TableInput
from calve.model.spec import NoEnvelope
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
        from calve.statements.probing import try_connection

        try_connection(place, found.statement, definitions)
    return TextAnswer(f"{found.label} works")


def check_source(place: Workplace, statement: st.CreateSource, definitions: Definitions) -> None:
    """Check that a source is valid, that its topic exists, and its start in a table. Raises InvalidInput."""
    planned = plan_source(statement, definitions)
    if isinstance(planned.input, FilesInput) and not Path(planned.input.path).is_dir():
        from calve.statements.probing import warn_of_missing_folder

        warn_of_missing_folder(statement.name.name, planned.input.path)
    if isinstance(planned.input, TableInput) and planned.input.start not in START_WORDS:
        from calve.statements.probing import check_start

        check_start(place, planned.input, definitions)
    if isinstance(planned.input, KafkaInput):
        from calve.pipeline.build import check_topic
        from calve.pipeline.lakes import revealing

        check_topic(planned.input, planned.envelope or NoEnvelope(), revealing(definitions, place.vault))


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
        from calve.pipeline.lakes import revealing

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
                self._try(tried, Definitions([*self._definitions, *definitions]))
            self._store(*definitions)
        except BaseException:
            for uid in texts:
                vault.forget(uid)
            raise

    def _try(self, statement: st.CreateConnection, definitions: Definitions) -> None:
        planned = plan_connection(statement, definitions)
        if _is_embedded(planned) and is_in_order(self._place.home):
            return
        from calve.statements.probing import try_connection

        try_connection(self._place, statement, definitions)

    def _sink(self, statement: st.CreateSink) -> None:
        uses = uses_of_sink(statement, self._definitions)
        definition = Definition(self._uid, 1, statement, uses=uses)
        plan = plan_sink(definition, self._definitions)
        for table in filter(None, (plan.spec.table, plan.spec.dead_letters)):
            table.check()
        if plan.views:
            from calve.statements.views import check_sinks_view

            check_sinks_view(self._place, plan)
        self._store(self._started(definition, plan))

    def _started(self, definition: Definition, plan: SinkPlan) -> Definition:
        """The definition with the state in which the sink starts."""
        finds_nothing = _is_embedded(plan.catalog) and plan.state is None and is_new(self._place.home, plan.spec.table)
        if finds_nothing and not plan.spec.adopts and plan.beginning is not OnOldProgress.RESUME:
            started = plan.beginning is OnOldProgress.SNAPSHOT
            return replace(definition, standing=SinkState(generation=1)) if started else definition
        from calve.statements.probing import decide_start

        return decide_start(self._place, definition, plan, self._definitions)


def _is_embedded(connection: Connection) -> bool:
    return isinstance(connection, CatalogConnection) and connection.type is CatalogType.EMBEDDED
