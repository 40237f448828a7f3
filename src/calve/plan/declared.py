"""Statements of a pipeline file beside the stored ones: how they are stored, and in what they differ.

Two statements differ if they mean something different. Comments, layout, the order of options, the case of names
without quotes, and the spelling of a value (`'60s'` and `'1m'`) do not count. Secrets are compared but never shown.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.definitions.vault import KEPT, Vault, is_kept
from calve.plan import catalogue
from calve.plan.alterations import options_of
from calve.plan.catalogue import SinkOptions
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.lexer import Lexer, TokenKind
from calve.sql.names import FieldPath, Identifier, in_parentheses, is_plain
from calve.sql.options import Option, OptionName, Options, SecretLiteral, SecretName, Value, value_to_sql

S = TypeVar("S", bound=st.Create)

START_OPTIONS: Final = (SinkOptions.RESUME.name, SinkOptions.SNAPSHOT.name, SinkOptions.ADOPT.name)
"""Options that act once, when a sink is created: later they do not count as a difference."""

_KEYWORDS: Final = frozenset(
    {
        *("SELECT", "FROM", "WHERE", "AS", "AND", "OR", "NOT", "GROUP", "ORDER", "BY", "HAVING", "JOIN", "ON", "LEFT"),
        *("RIGHT", "INNER", "OUTER", "FULL", "CROSS", "CASE", "WHEN", "THEN", "ELSE", "END", "IN", "IS", "NULL"),
        *("BETWEEN", "LIKE", "DISTINCT", "CAST", "WITH", "UNION", "ALL", "EXISTS", "TRUE", "FALSE"),
    }
)
"""Words of a query that are the same in any case; the case of others may become the name of a column."""


def normalise(statement: S) -> S:
    """The statement to store: its folders are absolute, so that it does not depend on the working directory."""
    if isinstance(statement, st.CreateSource) and isinstance(statement.input, parts.FilesClause):
        options = statement.input.options
        path = options.find(catalogue.FilesOptions.PATH.name)
        if path is not None and isinstance(path.value, str) and "://" not in path.value:
            made = replace(path, value=str(Path(path.value).absolute()))
            statement = replace(statement, input=replace(statement.input, options=options.updated(Options((made,)))))
    return replace(statement, if_not_exists=False)


@dataclass(frozen=True)
class HiddenLiterals:
    """A connection's statement with its literal secrets replaced by names, and these secrets."""

    statement: st.CreateConnection
    secrets: tuple[Definition, ...]
    texts: dict[str, str]
    """By uid of the secret."""


def hide_literals(statement: st.CreateConnection, owner: str, new_id: Callable[[], str]) -> HiddenLiterals:
    """Give every literal secret of a connection a name."""
    secrets, texts, options = [], {}, list[Option]()
    for option in statement.options:
        value = option.value
        if isinstance(value, SecretLiteral):
            uid = new_id()
            name = Identifier.exact(f"{statement.name}.{option.name.lower().replace(' ', '_')}")
            made = st.CreateSecret(name=name, origin=parts.FromFile(f"{KEPT}{uid}"))
            secrets.append(Definition(uid, 1, made, owner=owner))
            texts[uid] = value.reveal()
            option = replace(option, value=SecretName(name))  # noqa: PLW2901 - the same option, its secret by name
        options.append(option)
    return HiddenLiterals(replace(statement, options=Options(tuple(options))), tuple(secrets), texts)


@dataclass(frozen=True)
class Difference:
    """What a file says differently: as a line for people, the ALTER that closes it, or why none can."""

    text: str
    alter: st.Alter | None
    """None if no ALTER changes it."""
    what: str = ""
    """What no ALTER changes: key, mode, table, ..."""


class Comparison:
    """Compares the statements of a file with the definitions of a home."""

    def __init__(self, definitions: Definitions, vault: Vault) -> None:
        self._definitions = definitions
        self._vault = vault

    def differences(self, existing: Definition, wanted: st.Create) -> list[Difference]:
        """In what a statement differs from an existing object of the same kind. Raises SqlError for bad options."""
        there = existing.statement
        match there, wanted:
            case st.CreateSecret(), st.CreateSecret():
                return self._secret(existing, there, wanted)
            case st.CreateConnection(), st.CreateConnection():
                return self._connection(existing, there, wanted)
            case st.CreateSource(), st.CreateSource():
                return self._source(there, with_inferred(there, wanted))
            case st.CreateView(), st.CreateView():
                if words_of(there.query) == words_of(wanted.query):
                    return []
                return [Difference("~ query", st.AlterView(name=there.name, query=wanted.query))]
            case st.CreateSink(), st.CreateSink():
                return self._sink(existing, there, wanted)
            case _:
                raise TypeError(f"{existing.label} is of another kind")

    def _secret(self, existing: Definition, there: st.CreateSecret, wanted: st.CreateSecret) -> list[Difference]:
        change = st.AlterSecret(name=there.name, origin=wanted.origin)
        if isinstance(wanted.origin, parts.FromLiteral):
            if not is_kept(existing):
                return [Difference(f"~ {there.origin.to_sql()} -> a value in the file", change)]
            same = self._vault.kept(existing.uid) == wanted.origin.value.reveal()
            return [] if same else [Difference("~ value", change)]
        if there.origin == wanted.origin:
            return []
        before = "a stored value" if is_kept(existing) else there.origin.to_sql()
        return [Difference(f"~ {before} -> {wanted.origin.to_sql()}", change)]

    def _connection(
        self, existing: Definition, there: st.CreateConnection, wanted: st.CreateConnection
    ) -> list[Difference]:
        if there.kind is not wanted.kind:
            return [Difference(f"~ TO {there.kind.value} -> TO {wanted.kind.value}", None)]

        def same_secret(before: Value, after: Value) -> bool:
            """Whether a literal of the file is the one that the connection was created with."""
            if not isinstance(before, SecretName) or not isinstance(after, SecretLiteral):
                return False
            found = self._definitions.find(before.name, st.ObjectKind.SECRET)
            return found is not None and found.owner == existing.uid and self._vault.kept(found.uid) == after.reveal()

        def alter(action: st.OptionsAction) -> st.Alter:
            return st.AlterConnection(name=there.name, action=action, settings=wanted.settings)

        return _options(there, wanted, alter, same_secret)

    def _source(self, there: st.CreateSource, wanted: st.CreateSource) -> list[Difference]:
        found: list[Difference] = []
        found += _fixed(_input(there), _input(wanted))
        if type(there.input) is type(wanted.input):

            def alter(action: st.OptionsAction) -> st.Alter:
                return st.AlterSource(name=there.name, action=action)

            found += _options(there, wanted, alter)
        if not _same_names(there.primary_key, wanted.primary_key):
            keys = [in_parentheses(key) if key else "none" for key in (there.primary_key, wanted.primary_key)]
            found.append(Difference(f"~ PRIMARY KEY {keys[0]} -> {keys[1]}", None, "primary key"))
        if (changed := column_changes(there, wanted)) or _columns(there) != _columns(wanted):
            alter_columns = st.AlterSource(name=there.name, action=st.SetColumns(wanted.columns))
            texts = [change.text for change in changed] or ["~ order of columns"]
            found += [Difference(text, alter_columns if wanted.columns else None) for text in texts]
        return found

    def _sink(self, existing: Definition, there: st.CreateSink, wanted: st.CreateSink) -> list[Difference]:
        found: list[Difference] = []
        read = self._definitions.find(wanted.source, st.ObjectKind.SOURCE, st.ObjectKind.VIEW)
        if read is None or read.uid not in existing.uses:
            change = st.AlterSink(name=there.name, action=st.SetFrom(wanted.source))
            found.append(Difference(f"~ FROM {there.source.to_sql()} -> {wanted.source.to_sql()}", change))
        found += _fixed(_target(there), _target(wanted))
        if there.key and wanted.key and not _same_names(there.key, wanted.key):
            found.append(Difference(f"~ KEY {in_parentheses(there.key)} -> {in_parentheses(wanted.key)}", None, "key"))
        elif bool(there.key) != bool(wanted.key) and not self._repeats_key(there, wanted):
            keys = [in_parentheses(one.key) if one.key else "that of the source" for one in (there, wanted)]
            found.append(Difference(f"~ KEY {keys[0]} -> {keys[1]}", None, "key"))
        modes = [(one.mode or parts.SinkMode.UPSERT).value for one in (there, wanted)]
        if modes[0] != modes[1]:
            found.append(Difference(f"~ MODE {modes[0]} -> {modes[1]}", None, "mode"))
        if _fields(there) != _fields(wanted):
            change = st.AlterSink(name=there.name, action=st.SetPartitioning(wanted.partition_by))
            specs = [parts.partition_by(one.partition_by) if one.partition_by else "none" for one in (there, wanted)]
            specs = [spec.removeprefix("PARTITION BY ") for spec in specs]
            found.append(Difference(f"~ PARTITION BY {specs[0]} -> {specs[1]}", change))

        def alter(action: st.OptionsAction) -> st.Alter:
            return st.AlterSink(name=there.name, action=action)

        return [*found, *_options(_without_start(there), _without_start(wanted), alter)]

    def _repeats_key(self, there: st.CreateSink, wanted: st.CreateSink) -> bool:
        """Whether the KEY of one of them is only the primary key of the source, which is the default."""
        source = self._definitions.find(there.source, st.ObjectKind.SOURCE)
        declared = source.statement.primary_key if source and isinstance(source.statement, st.CreateSource) else ()
        return bool(declared) and _same_names(there.key or wanted.key, declared)


def start_options(statement: st.CreateSink) -> list[Option]:
    """The options of a sink that act only when it is created."""
    return [option for option in statement.options if option.name in START_OPTIONS]


def _without_start(statement: st.CreateSink) -> st.CreateSink:
    return replace(statement, options=statement.options.without(START_OPTIONS))


# ------------------------------------------------------------------------------------------------------------- options


def _options(
    there: st.Create,
    wanted: st.Create,
    alter: Callable[[st.OptionsAction], st.Alter],
    same_secret: Callable[[Value, Value], bool] = lambda _before, _after: False,
) -> list[Difference]:
    """Options that differ: those to set, in one ALTER, and those to reset, in another one."""
    group, before = options_of(there)
    _, after = options_of(wanted)
    typed = [group.check(options, one.where).values for options, one in ((before, there), (after, wanted))]
    changed = [
        option
        for option in after
        if (was := before.value(option.name)) is None
        or not (same_secret(was, option.value) or _same(typed[0][option.name][0], typed[1][option.name][0]))
    ]
    gone = [option for option in before if after.find(option.name) is None]
    setting, resetting = (
        alter(st.SetOptions(Options(tuple(changed)))),
        alter(st.ResetOptions(tuple(OptionName(option.name) for option in gone))),
    )
    found = []
    for option in changed:
        was = before.value(option.name)
        shown = option.to_sql()
        text = f"+ {shown}" if was is None else f"~ {option.name}: {_shown(was)} -> {_shown(option.value)}"
        found.append(Difference(text, setting))
    return [*found, *(Difference(f"- {option.to_sql()}", resetting) for option in gone)]


def _shown(value: Value) -> str:
    return value_to_sql(value)


def _same(before: object, after: object) -> bool:
    if isinstance(before, SecretName) and isinstance(after, SecretName):
        return before.name.collides(after.name)
    if isinstance(before, Identifier) and isinstance(after, Identifier):
        return before.collides(after)
    return before == after


# --------------------------------------------------------------------------------------------- columns, inputs, targets


@dataclass(frozen=True)
class ColumnChange:
    """A column that was added, dropped or changed; None where it is missing."""

    before: parts.ColumnClause | None
    after: parts.ColumnClause | None

    @property
    def name(self) -> str:
        """The name of the column."""
        return next(one.name.name for one in (self.after, self.before) if one is not None)

    @property
    def text(self) -> str:
        """For people."""
        match self.before, self.after:
            case None, parts.ColumnClause() as after:
                return f"+ column {after.to_sql()}"
            case parts.ColumnClause() as before, None:
                return f"- column {before.to_sql()}"
            case parts.ColumnClause() as before, parts.ColumnClause() as after:
                return f"~ column {before.to_sql()} -> {after.to_sql()}"
            case _:
                raise TypeError("a change of nothing")


def column_changes(there: st.CreateSource, wanted: st.CreateSource) -> list[ColumnChange]:
    """The columns that differ, by name; whether their order differs is another question."""
    before = {column.name.name: column for column in there.columns}
    after = {column.name.name: column for column in wanted.columns}
    changed = [
        ColumnChange(before.get(name), column)
        for name, column in after.items()
        if name not in before or (before[name].type, before[name].not_null) != (column.type, column.not_null)
    ]
    return [*changed, *(ColumnChange(column, None) for name, column in before.items() if name not in after)]


def _columns(statement: st.CreateSource) -> list[tuple[str, str, bool]]:
    return [(column.name.name, column.type, column.not_null) for column in statement.columns]


def _fixed(before: dict[str, str], after: dict[str, str]) -> list[Difference]:
    """What differs of clauses that no ALTER changes."""
    return [
        Difference(f"~ {before[what] or 'none'} -> {text or 'none'}", None, what)
        for what, text in after.items()
        if before[what] != text
    ]


def _input(statement: st.CreateSource) -> dict[str, str]:
    """What no ALTER changes of the input of a source, by what it is."""
    used = statement.input
    found = {"input": "FROM FILES", "format": "", "include": "", "envelope": _envelope(statement.envelope)}
    if isinstance(used, parts.GeneratorClause):
        found["input"] = f"FROM LOAD GENERATOR {used.generator.name.lower()}"
    if isinstance(used, parts.KafkaClause):
        found["input"] = f"FROM KAFKA CONNECTION {used.connection.name.lower()}"
        found["format"] = used.format.to_sql()
        included = ", ".join(f"{i.metadata.value} AS {i.name or i.metadata.value.lower()}" for i in used.include)
        found["include"] = f"INCLUDE {included}" if included else ""
    if isinstance(used, parts.TableClause):
        connection, *name = (part.name for part in used.table.parts)
        listed = ".".join(Identifier.shortest(part).to_sql() for part in (connection.lower(), *name))
        found["input"] = f"FROM ICEBERG TABLE {listed}"
    return found


def with_inferred(there: st.CreateSource, wanted: st.CreateSource) -> st.CreateSource:
    """The wanted source with the columns that were inferred for it: they stay, unless the file declares them."""
    if not wanted.infer:
        return wanted
    declared = {column.name.name: column for column in wanted.columns}
    stored = [declared.pop(column.name.name, column) for column in there.columns]
    return replace(wanted, columns=(*stored, *declared.values()), infer=False)


def _envelope(envelope: parts.Envelope | None) -> str:
    """An envelope without what does not matter: quotes of names, layout of conditions."""
    match envelope:
        case None:
            return "ENVELOPE NONE"
        case parts.UpsertEnvelope(order, delete_when):
            condition = None if delete_when is None else " ".join(words_of(delete_when))
            return parts.UpsertEnvelope(_plain(order), condition).to_sql()
        case parts.DebeziumEnvelope(order):
            return parts.DebeziumEnvelope(_plain(order)).to_sql()
        case _:
            return envelope.to_sql()


def _plain(order: parts.OrderClause | None) -> parts.OrderClause | None:
    """An order whose names have quotes only where they need them."""
    if order is None:
        return None

    def plain(path: FieldPath) -> FieldPath:
        return FieldPath(tuple(Identifier(part.name, quoted=not is_plain(part.name)) for part in path.parts))

    return replace(order, fields=tuple(plain(path) for path in order.fields))


def _target(statement: st.CreateSink) -> dict[str, str]:
    target = statement.target
    aws = target.aws.name if target.aws else "none"
    table = ".".join((*target.namespace, target.table))
    return {
        "catalog": f"CATALOG {target.catalog.name.lower()}",
        "aws": f"AWS CONNECTION {aws.lower()}",
        "table": f"TABLE {table}",
    }


def _fields(statement: st.CreateSink) -> list[tuple[str, str, int | None]]:
    return [(f.transform.value, str(f.column).lower(), f.width) for f in statement.partition_by]


def _same_names(left: tuple[Identifier, ...], right: tuple[Identifier, ...]) -> bool:
    return len(left) == len(right) and all(a.collides(b) for a, b in zip(left, right, strict=True))


def words_of(text: str) -> list[str]:
    """The tokens of a text in Spark's language, without comments and layout; keywords in capitals."""
    lexer, found = Lexer(f"SELECT {text}"), list[str]()
    while (token := lexer.next()).kind is not TokenKind.END:
        word = token.value.upper() if token.word in _KEYWORDS else token.value
        marks = {TokenKind.STRING: "'", TokenKind.QUOTED: '"', TokenKind.BACKTICK: "`"}
        mark = marks.get(token.kind, "")
        found.append(f"{mark}{word}{mark}")
    return found[1:]
