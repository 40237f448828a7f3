"""CREATE and VALIDATE: a statement is planned against the definitions, and stored if it is valid.

Spark is imported only for statements that need it: views, sinks over views, Kafka, and tables that a sink adopts.
The texts of secrets are stored in the vault before a definition refers to them, and removed if it is refused.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from calve.catalog.failures import trying
from calve.catalog.properties import store_properties
from calve.definitions.objects import Definition, SinkState, kind_of, spaces
from calve.definitions.store import Definitions
from calve.definitions.vault import KEPT, is_kept
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput, TransientError
from calve.iceberg.loading import NEW_VERSION, Occupied, check_format, planned_location, sinks_of_table
from calve.model.connection import AwsConnection, CatalogConnection
from calve.model.names import check_name
from calve.model.relation import FilesInput, KafkaInput
from calve.model.spec import NoEnvelope, TableName
from calve.pipeline.lakes import lake_of, revealing
from calve.plan import catalogue
from calve.plan.connections import plan_connection, wants_validation
from calve.plan.lookup import required, required_connection, secret
from calve.plan.sinks import OnOldProgress, SinkPlan, plan_sink, uses_of_sink
from calve.plan.sources import plan_source
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.errors import SqlError
from calve.sql.names import Identifier
from calve.sql.options import Option, Options, SecretLiteral, SecretName
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
    _Creation(place).run(statement)
    return TextAnswer(f"created {kind.value.lower()} {statement.name.to_sql()}")


def apply(place: Workplace, statement: st.Create) -> TextAnswer:
    """As `create`, but an existing object with the same definition is left alone."""
    kind = kind_of(statement)
    existing = place.definitions().find(statement.name, *spaces(kind))
    if existing is None or statement.if_not_exists:
        return create(place, statement)
    if is_same(place, existing, statement):
        return TextAnswer(f"{existing.label} is unchanged")
    raise SqlError.at(
        statement.name.where,
        f"{existing.label} exists with another definition",
        hint=f"Use ALTER {existing.kind.value}, or DROP it first. SHOW CREATE {existing.kind.value} prints it.",
    )


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


def normalise(statement: st.Create) -> st.Create:
    """The statement to store: its folders are absolute, so that it does not depend on the working directory."""
    if isinstance(statement, st.CreateSource) and isinstance(statement.input, parts.FilesClause):
        options = statement.input.options
        path = options.find(catalogue.FilesOptions.PATH.name)
        if path is not None and isinstance(path.value, str) and "://" not in path.value:
            made = replace(path, value=str(Path(path.value).absolute()))
            statement = replace(statement, input=replace(statement.input, options=options.updated(Options((made,)))))
    return replace(statement, if_not_exists=False)


def is_same(place: Workplace, existing: Definition, statement: st.Create) -> bool:
    """Whether a statement equals the existing definition; literal secrets are compared with the stored ones."""
    there, wanted = existing.statement, normalise(statement)
    if isinstance(there, st.CreateSecret) and isinstance(wanted, st.CreateSecret):
        if isinstance(wanted.origin, parts.FromLiteral):
            return is_kept(existing) and place.vault.kept(existing.uid) == wanted.origin.value.reveal()
        return there.origin == wanted.origin
    if isinstance(there, st.CreateConnection) and isinstance(wanted, st.CreateConnection):
        definitions = place.definitions()
        hidden = {}
        for option in wanted.options:
            reference = there.options.value(option.name)
            if isinstance(option.value, SecretLiteral) and isinstance(reference, SecretName):
                found = definitions.find(reference.name, st.ObjectKind.SECRET)
                if found and found.owner == existing.uid and place.vault.kept(found.uid) == option.value.reveal():
                    hidden[option.name] = reference
        options = Options(tuple(replace(o, value=hidden.get(o.name, o.value)) for o in wanted.options))
        return replace(wanted, options=options, name=there.name, settings=there.settings) == there
    return replace(wanted, name=there.name) == there


@dataclass(frozen=True)
class HiddenLiterals:
    """A connection's statement with its literal secrets replaced by names, and these secrets."""

    statement: st.CreateConnection
    secrets: tuple[Definition, ...]
    texts: dict[str, str]
    """By uid of the secret."""


def hide_literals(place: Workplace, statement: st.CreateConnection, owner: str) -> HiddenLiterals:
    """Give every literal secret of a connection a name."""
    secrets, texts, options = [], {}, list[Option]()
    for option in statement.options:
        value = option.value
        if isinstance(value, SecretLiteral):
            uid = place.ids.new_id()
            name = Identifier.exact(f"{statement.name}.{option.name.lower().replace(' ', '_')}")
            made = st.CreateSecret(name=name, origin=parts.FromFile(f"{KEPT}{uid}"))
            secrets.append(Definition(uid, 1, made, owner=owner))
            texts[uid] = value.reveal()
            option = replace(option, value=SecretName(name))  # noqa: PLW2901 - the same option, its secret by name
        options.append(option)
    return HiddenLiterals(replace(statement, options=Options(tuple(options))), tuple(secrets), texts)


class _Creation:
    """Creates one object."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._definitions = place.definitions()
        self._uid = place.ids.new_id()

    def run(self, given: st.Create) -> None:
        statement = normalise(given)
        match statement:
            case st.CreateSecret():
                self._secret(statement)
            case st.CreateConnection():
                self._connection(statement)
            case st.CreateSource():
                check_source(self._place, statement, self._definitions)
                self._store(Definition(self._uid, 1, statement, uses=self._source_uses(statement)))
            case st.CreateView():
                from calve.statements.views import plan_view

                viewed = plan_view(self._place, statement, self._definitions)
                self._store(Definition(self._uid, 1, statement, uses=viewed.uses))
            case st.CreateSink():
                self._sink(statement)

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
        hidden = hide_literals(self._place, given, self._uid)
        with_secrets = Definitions([*self._definitions, *hidden.secrets])
        plan_connection(hidden.statement, with_secrets)
        uses = connection_uses(hidden.statement, with_secrets)
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

    def _source_uses(self, statement: st.CreateSource) -> tuple[str, ...]:
        if not isinstance(statement.input, parts.KafkaClause):
            return ()
        found = required_connection(self._definitions, statement.input.connection, st.ConnectionKind.KAFKA)
        form = statement.input.format
        registry = form.registry if isinstance(form, parts.AvroFormat) else None
        password = registry.value(catalogue.RegistryOptions.PASSWORD.name) if registry else None
        known = secret(self._definitions, password) if isinstance(password, SecretName) else None
        return (found.uid, known.uid) if known else (found.uid,)

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


def connection_uses(statement: st.CreateConnection, definitions: Definitions) -> tuple[str, ...]:
    """Uids of the secrets and connections that a connection refers to."""
    found = []
    for option in statement.options:
        if isinstance(option.value, SecretName):
            reference = secret(definitions, option.value)
            found.append(reference.uid if reference else "")
        elif option.name == catalogue.CatalogOptions.AWS_CONNECTION.name and isinstance(option.value, Identifier):
            found.append(required_connection(definitions, option.value, st.ConnectionKind.AWS).uid)
    return tuple(found)


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
    found = Occupied.of(catalog, table, plan.spec.branch)
    if found is not None:
        check_format(found.format_version, plan.spec.format_version, table)
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
    if found.format_version != NEW_VERSION:
        raise InvalidInput(
            f"table {table} cannot be adopted",
            detail=f"It has format version {found.format_version}; calve adopts tables of version {NEW_VERSION}.",
        )
