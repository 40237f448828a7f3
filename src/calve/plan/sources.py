"""CREATE SOURCE -> a checked `SourcePlan`: its input, its envelope, and its columns as far as they are known."""

from dataclasses import replace
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from calve.definitions.store import Definitions
from calve.errors import InvalidInput
from calve.model.changelog import MAX_HOLD_MS
from calve.model.connection import CatalogConnection, KafkaConnection, SchemaRegistry
from calve.model.names import check_consumer
from calve.model.relation import (
    METADATA_TYPES,
    FilesInput,
    GeneratorInput,
    Input,
    KafkaInput,
    KnownColumn,
    Relation,
    SourcePlan,
    TableInput,
)
from calve.model.spec import ChangeRows, Debezium, Diff, Envelope, NoEnvelope, TableName, Upsert
from calve.model.types import UUID_MARK, leaves
from calve.plan import catalogue
from calve.plan.catalogue import FilesOptions, GeneratorOptions, KafkaSourceOptions, RegistryOptions, TableSourceOptions
from calve.plan.connections import plan_connection, wants_validation
from calve.plan.lookup import required_connection, secret
from calve.plan.settings import CheckedOptions
from calve.sql import parts
from calve.sql.errors import SqlError
from calve.sql.names import FieldPath, Identifier
from calve.sql.options import SecretLiteral, SecretName
from calve.sql.parts import ColumnClause
from calve.sql.statements import ConnectionKind, CreateConnection, CreateSource

_ORDERS = (
    KnownColumn("id", "BIGINT", not_null=True),
    KnownColumn("customer", "INT"),
    KnownColumn("amount", "DECIMAL(12,2)"),
    KnownColumn("status", "STRING"),
    KnownColumn("updated_at", "TIMESTAMP"),
)
_CSV_ONLY = (FilesOptions.HEADER, FilesOptions.DELIMITER, FilesOptions.NULL_VALUE)
_TYPED = frozenset({"parquet", "orc"})
"""Formats whose files contain their schema."""
_LEAST_NAME = 2
"""Parts of the name of a table, without the connection."""
_NOT_TEXTUAL = ("INTERVAL", "VARIANT")


def plan_source(statement: CreateSource, definitions: Definitions) -> SourcePlan:
    """The source that a statement describes; columns that are still to be inferred are missing."""
    match statement.input:
        case parts.GeneratorClause():
            return _generator(statement, statement.input)
        case parts.FilesClause():
            return _files(statement, catalogue.FILES.check(statement.input.options, statement.where))
        case parts.KafkaClause():
            return _kafka(statement, statement.input, definitions)
        case parts.TableClause():
            return _table(statement, statement.input, definitions)


def uses_of_source(statement: CreateSource, definitions: Definitions) -> tuple[str, ...]:
    """Uids of the connection and the secret that a source refers to."""
    if isinstance(statement.input, parts.TableClause):
        name = statement.input.table.parts[0]
        return (required_connection(definitions, name, ConnectionKind.ICEBERG_CATALOG).uid,)
    if not isinstance(statement.input, parts.KafkaClause):
        return ()
    found = required_connection(definitions, statement.input.connection, ConnectionKind.KAFKA)
    form = statement.input.format
    registry = None if isinstance(form, parts.JsonFormat) else form.registry
    password = registry.value(RegistryOptions.PASSWORD.name) if registry else None
    known = secret(definitions, password) if isinstance(password, SecretName) else None
    return (found.uid, known.uid) if known else (found.uid,)


def column_named(columns: tuple[KnownColumn, ...], name: Identifier, what: str) -> KnownColumn:
    """Find a column by name. Raises SqlError."""
    found = next((c for c in columns if name.matches(c.name)), None)
    if found is None:
        raise SqlError.at(
            name.where, f'there is no {what} "{name}"', hint=f"Columns are {', '.join(c.name for c in columns)}."
        )
    return found


def _generator(statement: CreateSource, used: parts.GeneratorClause) -> SourcePlan:
    if not used.generator.matches("orders"):
        raise SqlError.at(used.generator.where, f'unknown load generator "{used.generator}"', hint="Expected orders.")
    given = catalogue.GENERATOR.check(used.options, statement.where)
    if statement.columns or statement.infer or statement.envelope:
        what = "columns" if statement.columns or statement.infer else "envelope"
        raise SqlError.at(statement.where, f"a load generator has its own {what}", hint="Leave them out.")
    pace = given.get(GeneratorOptions.UPDATES_PER_SECOND)
    made = GeneratorInput(
        rows=given.get(GeneratorOptions.ROWS, 100_000),
        changes=given.get(GeneratorOptions.UPDATES),
        seed=given.get(GeneratorOptions.SEED, 7),
        per_checkpoint=given.get(GeneratorOptions.MAX_ROWS_PER_CHECKPOINT, 50_000),
        per_second=None if pace is None else float(pace),
    )
    key = tuple(column_named(_ORDERS, name, "column").name for name in statement.primary_key) or ("id",)
    return SourcePlan(Relation(statement.name.name, _ORDERS, key), made, None)


def _files(statement: CreateSource, given: CheckedOptions) -> SourcePlan:
    form = given.required(FilesOptions.FORMAT)
    if form != "csv":
        for option in _CSV_ONLY:
            if option in given:
                raise given.error(option, f"{option.name} is only for CSV files", "Leave it out.")
    if form != "json" and FilesOptions.EPOCH_UNIT in given:
        raise given.error(FilesOptions.EPOCH_UNIT, "EPOCH UNIT is only for JSON files", "Leave it out.")
    columns = _columns(statement)
    if not columns and not statement.infer and form not in _TYPED | {"text"}:
        raise SqlError.at(
            statement.where,
            f"files of format {form} need columns",
            hint="Write (id BIGINT, ...), or INFER at the end to determine them from the files.",
        )
    if statement.infer and form == "text":
        raise SqlError.at(statement.where, "text files have one column, value", hint="Leave INFER out.")
    if form not in _TYPED:
        _check_textual(statement)
    envelope = _envelope(statement, columns, form)
    unit = given.get(FilesOptions.EPOCH_UNIT)
    if unit and isinstance(envelope, Upsert | Debezium):
        envelope = replace(envelope, epoch_unit=unit)
    by_envelope = form == "json" and isinstance(envelope, Upsert | Debezium)
    found_in_files = form in _TYPED and not isinstance(envelope, NoEnvelope)
    header = given.get(FilesOptions.HEADER)
    options = {
        "header": None if header is None else str(header).lower(),
        "sep": given.get(FilesOptions.DELIMITER),
        "nullValue": given.get(FilesOptions.NULL_VALUE),
    }
    made = FilesInput(
        path=given.required(FilesOptions.PATH),
        format=form,
        schema=None if by_envelope or found_in_files or not columns else ddl(_in_files(envelope, columns)),
        max_files=given.get(FilesOptions.MAX_FILES_PER_CHECKPOINT, 1000),
        options=tuple((k, v) for k, v in options.items() if v is not None),
        epoch_unit=unit.value if unit and not by_envelope else None,
    )
    return SourcePlan(Relation(statement.name.name, columns or None, _key(statement, columns)), made, envelope)


def _in_files(envelope: Envelope, columns: tuple[KnownColumn, ...]) -> tuple[KnownColumn, ...]:
    """The columns of the files: rows of DIFF have up to three more, and its progress rows have only these."""
    if not isinstance(envelope, Diff):
        return columns
    special = {envelope.time: "BIGINT", envelope.diff: "BIGINT", envelope.progress: "BOOLEAN"}
    declared = [replace(c, not_null=False) for c in columns]
    names = {c.name for c in columns}
    return (*declared, *(KnownColumn(n, kind) for n, kind in special.items() if n and n not in names))


def _kafka(statement: CreateSource, used: parts.KafkaClause, definitions: Definitions) -> SourcePlan:
    given = catalogue.KAFKA_SOURCE.check(used.options, statement.where)
    given.exclude(KafkaSourceOptions.START_OFFSETS, KafkaSourceOptions.START_OFFSET)
    found = required_connection(definitions, used.connection, ConnectionKind.KAFKA)
    if not isinstance(found.statement, CreateConnection):
        raise TypeError("not a connection")
    planned = plan_connection(found.statement, definitions)
    if not isinstance(planned, KafkaConnection):
        raise TypeError("not a connection to Kafka")
    declared = _columns(statement)
    if not declared and not statement.infer:
        raise SqlError.at(
            statement.where,
            "a source from Kafka needs columns",
            hint="Write (id BIGINT, ...), or INFER at the end to determine them from the topic.",
        )
    _check_textual(statement)
    included = tuple(
        (i.metadata.value.lower(), i.name.name if i.name else i.metadata.value.lower()) for i in used.include
    )
    columns = (*declared, *_included(statement, declared, included))
    envelope = _envelope(statement, columns, "kafka")
    unit = given.get(KafkaSourceOptions.EPOCH_UNIT)
    by_envelope = isinstance(envelope, Upsert | Debezium)
    if unit and isinstance(envelope, Upsert | Debezium):
        envelope = replace(envelope, epoch_unit=unit)
    made: Input = KafkaInput(
        connection=planned,
        topic=given.required(KafkaSourceOptions.TOPIC),
        start=given.get(KafkaSourceOptions.START_OFFSETS) or given.get(KafkaSourceOptions.START_OFFSET) or "earliest",
        max_offsets=given.get(KafkaSourceOptions.MAX_OFFSETS_PER_CHECKPOINT),
        format=_FORMATS[type(used.format)],
        schema=None if by_envelope else ddl(_in_files(envelope, columns)),
        epoch_unit=unit.value if unit and not by_envelope else None,
        included=included,
        avro_schema=used.format.schema if isinstance(used.format, parts.AvroFormat) else None,
        registry=_registry(statement, used.format, definitions),
        unchecked=not wants_validation(found.statement),
    )
    return SourcePlan(Relation(statement.name.name, columns, _key(statement, columns)), made, envelope)


def _table(statement: CreateSource, used: parts.TableClause, definitions: Definitions) -> SourcePlan:
    given = catalogue.TABLE_SOURCE.check(used.options, statement.where)
    if statement.columns or statement.infer or statement.envelope:
        what = "columns" if statement.columns or statement.infer else "envelope"
        raise SqlError.at(statement.where, f"an Iceberg table has its own {what}", hint="Leave them out.")
    connection, *name = used.table.parts
    if len(name) < _LEAST_NAME:
        raise SqlError.at(
            used.table.where,
            "the table of a source is named by its connection, its namespace and its name",
            hint="Write FROM ICEBERG TABLE connection.namespace.table.",
        )
    given.need(TableSourceOptions.MAX_HOLD, TableSourceOptions.CONSUMER)
    consumer = given.get(TableSourceOptions.CONSUMER)
    if consumer is not None:
        try:
            check_consumer(consumer)
        except InvalidInput as error:
            raise given.error(TableSourceOptions.CONSUMER, error.primary, hint=error.hint) from error
    found = required_connection(definitions, connection, ConnectionKind.ICEBERG_CATALOG)
    planned = plan_connection(found.statement, definitions) if isinstance(found.statement, CreateConnection) else None
    if not isinstance(planned, CatalogConnection):
        raise TypeError("not a connection to a catalog")
    hold = given.get(TableSourceOptions.MAX_HOLD)
    made = TableInput(
        connection=found.name,
        catalog=planned,
        table=TableName(tuple(part.name for part in name[:-1]), name[-1].name),
        start=given.get(TableSourceOptions.START, "snapshot"),
        consumer=consumer,
        max_hold_ms=MAX_HOLD_MS if hold is None else hold // timedelta(milliseconds=1),
        max_rows=given.get(TableSourceOptions.MAX_ROWS_PER_CHECKPOINT, 1_000_000),
    )
    key = tuple(part.name for part in statement.primary_key)
    return SourcePlan(Relation(statement.name.name, None, key), made, ChangeRows())


def _included(
    statement: CreateSource, declared: tuple[KnownColumn, ...], included: tuple[tuple[str, str], ...]
) -> tuple[KnownColumn, ...]:
    """Columns for a record's metadata."""
    taken = {column.name.lower() for column in declared}
    for _, name in included:
        if name.lower() in taken:
            raise SqlError.at(statement.where, f'duplicate column "{name}"', hint="Write INCLUDE ... AS name.")
        taken.add(name.lower())
    return tuple(KnownColumn(name, METADATA_TYPES[what]) for what, name in included)


_FORMATS: Final = {parts.JsonFormat: "json", parts.AvroFormat: "avro", parts.ProtobufFormat: "protobuf"}


def _registry(statement: CreateSource, form: parts.Format, definitions: Definitions) -> SchemaRegistry | None:
    if isinstance(form, parts.JsonFormat) or (isinstance(form, parts.AvroFormat) and form.schema is not None):
        return None
    if form.registry is None:
        raise SqlError.at(
            statement.where,
            "FORMAT AVRO needs a schema",
            hint="Write USING SCHEMA REGISTRY (URL = '...') or USING SCHEMA '{...}'.",
        )
    given = catalogue.SCHEMA_REGISTRY.check(form.registry, statement.where)
    given.need(RegistryOptions.USER, RegistryOptions.PASSWORD)
    given.need(RegistryOptions.PASSWORD, RegistryOptions.USER)
    if isinstance(form.registry.value(RegistryOptions.PASSWORD.name), SecretLiteral):
        raise given.error(
            RegistryOptions.PASSWORD, "PASSWORD of a schema registry takes a secret by name", "CREATE SECRET first."
        )
    url = given.required(RegistryOptions.URL)
    if urlsplit(url).scheme not in {"http", "https"} or urlsplit(url).password is not None:
        raise given.error(
            RegistryOptions.URL,
            "URL must be an HTTP address without a login",
            "Use USER and PASSWORD = SECRET name.",
        )
    return SchemaRegistry(
        url, given.get(RegistryOptions.USER), secret(definitions, given.get(RegistryOptions.PASSWORD))
    )


def _columns(statement: CreateSource) -> tuple[KnownColumn, ...]:
    seen: dict[str, ColumnClause] = {}
    for column in statement.columns:
        if column.name.name.lower() in seen:
            raise SqlError.at(column.name.where, f'duplicate column "{column.name}"', hint="Rename one of them.")
        seen[column.name.name.lower()] = column
    keys = [name for name in statement.primary_key if statement.columns and not statement.infer]
    columns = tuple(KnownColumn(c.name.name, c.type, c.not_null) for c in statement.columns)
    for name in keys:
        column_named(columns, name, "key column")
    return columns


def _check_textual(statement: CreateSource) -> None:
    """Refuse types that texts cannot be converted to."""
    for column in statement.columns:
        for path, kind in leaves(column.type, column.name.name):
            if kind.startswith(_NOT_TEXTUAL):
                raise SqlError.at(
                    column.name.where,
                    f'column "{path}" has type {kind}, which is not supported in text formats',
                    hint="Declare it as STRING: it takes any text, and objects and arrays as JSON.",
                )


def _key(statement: CreateSource, columns: tuple[KnownColumn, ...]) -> tuple[str, ...]:
    if not columns or statement.infer:
        return tuple(name.name for name in statement.primary_key)
    key = tuple(column_named(columns, name, "key column").name for name in statement.primary_key)
    if len(set(key)) < len(key):
        raise SqlError.at(statement.where, "the key contains a column twice", hint="Name each column once.")
    return key


def ddl(columns: tuple[KnownColumn, ...]) -> str:
    """The columns as Spark DDL."""
    return ", ".join(_declared(c) for c in columns)


def _declared(column: KnownColumn) -> str:
    kind, mark = ("STRING", f" COMMENT '{UUID_MARK}'") if column.type == "UUID" else (column.type, "")
    return f"`{column.name.replace('`', '``')}` {kind}" + (" NOT NULL" if column.not_null else "") + mark


def _envelope(statement: CreateSource, columns: tuple[KnownColumn, ...], form: str) -> Envelope:
    declared = ddl(columns) if columns else None
    match statement.envelope:
        case None | parts.NoneEnvelope():
            return NoEnvelope()
        case parts.UpsertEnvelope(order, delete_when):
            by = _order(statement, order, columns, form)
            return Upsert(by, delete_when, declared, across_checkpoints=_across(order))
        case parts.DebeziumEnvelope(order):
            if form in {"csv", "text"}:
                raise SqlError.at(
                    statement.where, f"files of format {form} cannot contain Debezium records", hint="Use JSON."
                )
            by = _order(statement, order, columns, form)
            return Debezium(by, declared, across_checkpoints=_across(order))
        case parts.DiffEnvelope(time, diff, progress):
            return _diff((time, diff, progress), columns, form)


def _diff(
    fields: tuple[FieldPath, FieldPath, FieldPath | None],
    columns: tuple[KnownColumn, ...],
    form: str,
) -> Diff:
    time, diff, progress = (_field(path, columns) if path else None for path in fields)
    nested = next((path for path in fields if path and len(path.parts) > 1), None)
    if nested and form not in _TYPED:
        raise SqlError.at(nested.where, f"fields of ENVELOPE DIFF in {form} cannot be nested")
    return Diff(time or "", diff or "", progress, ddl(columns) if columns else None)


def _order(
    statement: CreateSource, order: parts.OrderClause | None, columns: tuple[KnownColumn, ...], form: str
) -> tuple[str, ...]:
    if order is None:
        if form != "kafka":
            name = "UPSERT" if isinstance(statement.envelope, parts.UpsertEnvelope) else "DEBEZIUM"
            raise SqlError.at(
                statement.where,
                f"ENVELOPE {name} over files needs an order",
                hint=f"Write ENVELOPE {name} (ORDER BY field), with a field that grows from change to change.",
            )
        return ()
    if form == "csv":
        for path in order.fields:
            _check_declared(path, columns, inferred=statement.infer)
    return tuple(_field(path, columns) for path in order.fields)


def _check_declared(path: FieldPath, columns: tuple[KnownColumn, ...], *, inferred: bool) -> None:
    """Refuse a field of CSV files that is not a declared column: its place in a line is unknown."""
    if columns and not inferred and (len(path.parts) > 1 or not any(path.parts[0].matches(c.name) for c in columns)):
        raise SqlError.at(
            path.where,
            f'there is no column "{path}" to order by',
            hint="CSV files have only the declared columns: declare it, and use a view to leave it out of the table.",
        )


def _across(order: parts.OrderClause | None) -> bool:
    return order is not None and order.across_checkpoints


def _field(path: FieldPath, columns: tuple[KnownColumn, ...]) -> str:
    """The path of a field; a declared column keeps the case of its declaration."""
    first, *rest = path.parts
    known = next((c.name for c in columns if first.matches(c.name)), first.name)
    return ".".join([known, *(part.name for part in rest)])
