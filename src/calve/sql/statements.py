"""Statements as values. `to_sql()` is the canonical text on one line, `pretty()` the same with a line per clause.

    parse_one(statement.to_sql()) == statement

Equal statements print the same text. The only exception to the rule above is a literal that must not be shown: it
prints as `<hidden>`, and only `to_sql(reveal=True)` can be parsed again. The actions of ALTER come first.
"""

from dataclasses import field
from enum import StrEnum

from calve.sql.names import Clause, FieldPath, Identifier, Listed, in_parentheses, many_lines, one_line, quoted_text
from calve.sql.options import NO_OPTIONS, OptionName, Options, with_options
from calve.sql.parts import (
    ColumnClause,
    Envelope,
    IcebergTarget,
    Input,
    PartitionField,
    SecretOrigin,
    SinkMode,
    partition_by,
)
from calve.sql.text import Span
from calve.values import value

# ruff: noqa: ARG002 - all actions and statements have one signature to print, also those without secrets


@value
class SetOptions:
    """SET (...)."""

    options: Options

    def to_sql(self, *, reveal: bool) -> str:
        return f"SET {self.options.to_sql(reveal=reveal)}"


@value
class ResetOptions:
    """RESET (...): back to the defaults."""

    names: tuple[OptionName, ...]

    def to_sql(self, *, reveal: bool) -> str:
        return "RESET (" + ", ".join(name.text for name in self.names) + ")"


@value
class SetColumns:
    """SET COLUMNS: the new columns of a source."""

    columns: tuple[ColumnClause, ...]
    primary_key: tuple[Identifier, ...] = ()
    """The source's key, if the statement repeats it."""

    def to_sql(self, *, reveal: bool) -> str:
        key = [f"PRIMARY KEY {in_parentheses(self.primary_key)} NOT ENFORCED"] if self.primary_key else []
        return f"SET COLUMNS ({', '.join([*(column.to_sql() for column in self.columns), *key])})"


@value
class SetFrom:
    """SET FROM: another source or view for the same table."""

    source: Identifier
    options: Options = NO_OPTIONS

    def to_sql(self, *, reveal: bool) -> str:
        return one_line([f"SET FROM {self.source.to_sql()}", *with_options(self.options, reveal=reveal)])


@value
class SetPartitioning:
    """SET PARTITION BY; without fields the table is no longer partitioned."""

    fields: tuple[PartitionField, ...]

    def to_sql(self, *, reveal: bool) -> str:
        return f"SET {partition_by(self.fields)}"


@value
class Pause:
    """PAUSE."""

    def to_sql(self, *, reveal: bool) -> str:
        return "PAUSE"


@value
class Resume:
    """RESUME."""

    def to_sql(self, *, reveal: bool) -> str:
        return "RESUME"


@value
class AcceptSnapshot:
    """ACCEPT SNAPSHOT: continue from this snapshot although another writer committed it."""

    snapshot_id: int

    def to_sql(self, *, reveal: bool) -> str:
        return f"ACCEPT SNAPSHOT {self.snapshot_id}"


SinkAction = SetOptions | ResetOptions | SetFrom | SetPartitioning | Pause | Resume | AcceptSnapshot
OptionsAction = SetOptions | ResetOptions
SourceAction = OptionsAction | SetColumns


class ObjectKind(StrEnum):
    """Kinds of objects that can be created and dropped."""

    SECRET = "SECRET"  # noqa: S105 - a keyword
    CONNECTION = "CONNECTION"
    SOURCE = "SOURCE"
    VIEW = "VIEW"
    SINK = "SINK"


class ShowKind(StrEnum):
    """What SHOW lists."""

    SECRETS = "SECRETS"
    CONNECTIONS = "CONNECTIONS"
    SOURCES = "SOURCES"
    VIEWS = "VIEWS"
    SINKS = "SINKS"
    SINK_STATUS = "SINK STATUS"
    TABLES = "TABLES"
    CONSUMERS = "CONSUMERS"
    OPTIONS = "OPTIONS"


class ConnectionKind(StrEnum):
    """Kinds of systems that connections lead to."""

    ICEBERG_CATALOG = "ICEBERG CATALOG"
    AWS = "AWS"
    KAFKA = "KAFKA"


class MetadataLevel(StrEnum):
    """The level of detail of ANALYZE."""

    TABLE = "TABLE"
    SEGMENT = "SEGMENT"
    PARTITION = "PARTITION"
    FILE = "FILE"
    ROW_GROUP = "ROW_GROUP"
    ALL = "ALL"


@value(kw_only=True)
class Statement:
    """One statement; `where` is its text, without the semicolon."""

    where: Span | None = field(default=None, compare=False, repr=False)

    def clauses(self, *, reveal: bool) -> list[Clause]:
        """The canonical text in pieces, each of which may start a line."""
        raise NotImplementedError

    def to_sql(self, *, reveal: bool = False) -> str:
        """The canonical text on one line (a view's query keeps its own lines)."""
        return one_line(self.clauses(reveal=reveal))

    def pretty(self, *, reveal: bool = False) -> str:
        """The same formatted for people, on several lines if it is long."""
        return many_lines(self.clauses(reveal=reveal))


def _words(*words: str | bool | None) -> str:
    return " ".join(word for word in words if isinstance(word, str) and word)


@value(kw_only=True)
class Create(Statement):
    """What all CREATE statements share."""

    name: Identifier
    if_not_exists: bool = False

    def _head(self, kind: ObjectKind) -> str:
        return _words("CREATE", kind.value, self.if_not_exists and "IF NOT EXISTS", self.name.to_sql())


@value(kw_only=True)
class CreateSecret(Create):
    """CREATE SECRET."""

    origin: SecretOrigin

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [self._head(ObjectKind.SECRET), self.origin.to_sql(reveal=reveal)]


@value(kw_only=True)
class CreateConnection(Create):
    """CREATE CONNECTION. `settings` are the options of WITH, which control the statement, not the connection."""

    kind: ConnectionKind
    options: Options
    settings: Options = NO_OPTIONS

    def clauses(self, *, reveal: bool) -> list[Clause]:
        head = f"TO {self.kind.value}"
        target = Listed(head, self.options.items(reveal=reveal)) if self.options else head
        return [self._head(ObjectKind.CONNECTION), target, *with_options(self.settings, reveal=reveal)]


@value(kw_only=True)
class CreateSource(Create):
    """CREATE SOURCE. Without columns, the input has its own; without an envelope, the input's default applies.

    With `infer` the columns that are not declared are determined from the input when the statement is executed. The
    definition that is stored has them as declared columns, and is never `infer`.
    """

    input: Input
    columns: tuple[ColumnClause, ...] = ()
    primary_key: tuple[Identifier, ...] = ()
    envelope: Envelope | None = None
    infer: bool = False

    def clauses(self, *, reveal: bool) -> list[Clause]:
        items = [column.to_sql() for column in self.columns]
        if self.primary_key:
            items.append(f"PRIMARY KEY {in_parentheses(self.primary_key)} NOT ENFORCED")
        head = self._head(ObjectKind.SOURCE)
        after = [self.envelope.to_sql()] if self.envelope else []
        after += ["INFER"] if self.infer else []
        return [Listed(head, tuple(items)) if items else head, *self.input.clauses(reveal=reveal), *after]


@value(kw_only=True)
class CreateView(Create):
    """CREATE VIEW. The query is in Spark's language, verbatim."""

    query: str

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"{self._head(ObjectKind.VIEW)} AS", self.query]


@value(kw_only=True)
class CreateSink(Create):
    """CREATE SINK. The default key is that of the source, the default mode UPSERT."""

    source: Identifier
    target: IcebergTarget
    key: tuple[Identifier, ...] = ()
    key_not_enforced: bool = False
    mode: SinkMode | None = None
    partition_by: tuple[PartitionField, ...] = ()
    options: Options = NO_OPTIONS

    def clauses(self, *, reveal: bool) -> list[Clause]:
        found: list[Clause] = [self._head(ObjectKind.SINK), f"FROM {self.source.to_sql()}", *self.target.clauses()]
        if self.key:
            found.append(_words("KEY", in_parentheses(self.key), self.key_not_enforced and "NOT ENFORCED"))
        if self.mode:
            found.append(f"MODE {self.mode.value}")
        if self.partition_by:
            found.append(partition_by(self.partition_by))
        return [*found, *with_options(self.options, reveal=reveal)]


@value(kw_only=True)
class Alter(Statement):
    """What all ALTER statements share."""

    name: Identifier
    if_exists: bool = False

    def _head(self, kind: ObjectKind) -> str:
        return _words("ALTER", kind.value, self.if_exists and "IF EXISTS", self.name.to_sql())


@value(kw_only=True)
class AlterSecret(Alter):
    """ALTER SECRET: a new origin or value."""

    origin: SecretOrigin

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [self._head(ObjectKind.SECRET), self.origin.to_sql(reveal=reveal)]


@value(kw_only=True)
class AlterConnection(Alter):
    """ALTER CONNECTION. `settings` are the options of WITH."""

    action: OptionsAction
    settings: Options = NO_OPTIONS

    def clauses(self, *, reveal: bool) -> list[Clause]:
        head = self._head(ObjectKind.CONNECTION)
        return [head, self.action.to_sql(reveal=reveal), *with_options(self.settings, reveal=reveal)]


@value(kw_only=True)
class AlterSource(Alter):
    """ALTER SOURCE: options of its input, or its columns."""

    action: SourceAction

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [self._head(ObjectKind.SOURCE), self.action.to_sql(reveal=reveal)]


@value(kw_only=True)
class AlterView(Alter):
    """ALTER VIEW: a new query."""

    query: str

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"{self._head(ObjectKind.VIEW)} AS", self.query]


@value(kw_only=True)
class AlterSink(Alter):
    """ALTER SINK."""

    action: SinkAction

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [self._head(ObjectKind.SINK), self.action.to_sql(reveal=reveal)]


@value(kw_only=True)
class Drop(Statement):
    """DROP; with `cascade` also everything that depends on the object."""

    kind: ObjectKind
    name: Identifier
    if_exists: bool = False
    cascade: bool = False

    def clauses(self, *, reveal: bool) -> list[Clause]:
        exists, cascade = self.if_exists and "IF EXISTS", self.cascade and "CASCADE"
        return [_words("DROP", self.kind.value, exists, self.name.to_sql(), cascade)]


@value(kw_only=True)
class Show(Statement):
    """SHOW SINKS and the like; `like` is a pattern with % and _."""

    listing: ShowKind
    like: str | None = None

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"SHOW {self.listing.value}" + (f" LIKE {quoted_text(self.like)}" if self.like is not None else "")]


@value(kw_only=True)
class ShowCreate(Statement):
    """SHOW CREATE."""

    kind: ObjectKind
    name: Identifier

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"SHOW CREATE {self.kind.value} {self.name.to_sql()}"]


@value(kw_only=True)
class ShowColumns(Statement):
    """SHOW COLUMNS FROM, or DESCRIBE: the columns of a table, a source or a view."""

    name: FieldPath

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"SHOW COLUMNS FROM {self.name.to_sql()}"]


@value(kw_only=True)
class ShowSnapshots(Statement):
    """SHOW SNAPSHOTS FROM: the history of a table."""

    name: FieldPath

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"SHOW SNAPSHOTS FROM {self.name.to_sql()}"]


@value(kw_only=True)
class Explain(Statement):
    """EXPLAIN CREATE SINK: plan and check it, create nothing."""

    statement: CreateSink

    def clauses(self, *, reveal: bool) -> list[Clause]:
        first, *rest = self.statement.clauses(reveal=reveal)
        return [f"EXPLAIN {first}", *rest]


@value(kw_only=True)
class Validate(Statement):
    """VALIDATE CONNECTION: test it."""

    connection: Identifier

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [f"VALIDATE CONNECTION {self.connection.to_sql()}"]


AnalyzeTarget = str | FieldPath
"""A folder, or the name of a table."""


def _target(target: AnalyzeTarget) -> str:
    return quoted_text(target) if isinstance(target, str) else target.to_sql()


@value(kw_only=True)
class RefreshMetadata(Statement):
    """ANALYZE TABLE ... REFRESH METADATA. `columns` is None for all of them and empty for none."""

    target: AnalyzeTarget
    columns: tuple[FieldPath, ...] | None = None
    level: MetadataLevel | None = None

    def clauses(self, *, reveal: bool) -> list[Clause]:
        found: list[Clause] = [f"ANALYZE TABLE {_target(self.target)}"]
        if self.columns is not None:
            found.append(f"COLUMNS {in_parentheses(self.columns) if self.columns else 'NONE'}")
        return [*found, "REFRESH METADATA" + (f" {quoted_text(self.level.value)} LEVEL" if self.level else "")]


@value(kw_only=True)
class DropMetadata(Statement):
    """ANALYZE TABLE ... DROP METADATA."""

    target: AnalyzeTarget
    if_exists: bool = False

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [_words("ANALYZE TABLE", _target(self.target), "DROP METADATA", self.if_exists and "IF EXISTS")]


class MaintenanceKind(StrEnum):
    """Statements that maintain a table."""

    OPTIMIZE = "OPTIMIZE TABLE"
    EXPIRE = "EXPIRE SNAPSHOTS"
    ORPHANS = "REMOVE ORPHAN FILES"
    MANIFESTS = "REWRITE MANIFESTS"
    CONVERT = "CONVERT DELETES"


@value(kw_only=True)
class MaintainTable(Statement):
    """OPTIMIZE TABLE and the like. `where_text` is a condition in Spark's language, verbatim; only OPTIMIZE has one."""

    kind: MaintenanceKind
    target: FieldPath
    where_text: str = ""
    options: Options = NO_OPTIONS

    def clauses(self, *, reveal: bool) -> list[Clause]:
        found: list[Clause] = [f"{self.kind.value} {self.target.to_sql()}"]
        if self.where_text:
            found.append(f"WHERE {self.where_text}")
        return [*found, *with_options(self.options, reveal=reveal)]


@value(kw_only=True)
class SelectQuery(Statement):
    """SELECT or WITH ... SELECT, verbatim."""

    text: str

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [self.text]
