"""ALTER and DROP."""

from collections.abc import Callable

from calve.sql.grammar import spark
from calve.sql.grammar.cursor import Cursor
from calve.sql.grammar.objects import secret_origin
from calve.sql.grammar.options import option_names, options, with_clause
from calve.sql.grammar.partition import partition_by_or_none
from calve.sql.grammar.source import columns
from calve.sql.lexer import TokenKind
from calve.sql.names import Identifier
from calve.sql.statements import (
    AcceptSnapshot,
    Alter,
    AlterConnection,
    AlterSecret,
    AlterSink,
    AlterSource,
    AlterView,
    Drop,
    ObjectKind,
    OptionsAction,
    Pause,
    ResetOptions,
    Resume,
    SetColumns,
    SetFrom,
    SetOptions,
    SetPartitioning,
    SinkAction,
    SourceAction,
)
from calve.values import value

_KINDS = [kind.value for kind in ObjectKind]
_SINK_USAGE = (
    "ALTER SINK name SET (option = value, ...) | RESET (option, ...) | SET FROM source [WITH (...)] | "
    "SET PARTITION BY (...) | PAUSE | RESUME | ACCEPT SNAPSHOT id"
)


def drop(cursor: Cursor) -> Drop:
    """DROP, after this word."""
    cursor.usage = "DROP SECRET | CONNECTION | SOURCE | VIEW | SINK [IF EXISTS] name [CASCADE]"
    kind = _kind(cursor)
    thing = _thing(cursor, kind)
    if cursor.at_symbol(","):
        raise cursor.error("DROP takes one name", hint=f"Write DROP {kind.value} for each of them.")
    if cursor.at_words("RESTRICT"):
        raise cursor.error(
            "DROP does not support RESTRICT",
            hint="Leave it out: without CASCADE, objects with dependents are not dropped.",
        )
    return Drop(kind=kind, name=thing.name, if_exists=thing.if_exists, cascade=cursor.accept_words("CASCADE"))


def alter(cursor: Cursor) -> Alter:
    """ALTER, after this word."""
    cursor.usage = "ALTER SECRET | CONNECTION | SOURCE | VIEW | SINK [IF EXISTS] name ..."
    kind = _kind(cursor)
    thing = _thing(cursor, kind)
    if cursor.at_words("RENAME"):
        raise cursor.error(f"a {kind.value.lower()} cannot be renamed", hint="DROP it and CREATE it with another name.")
    return _ALTER[kind](cursor, thing)


def _kind(cursor: Cursor) -> ObjectKind:
    return ObjectKind(cursor.choose("kind of object", _KINDS))


@value
class _Thing:
    """The object, and whether it may be missing."""

    name: Identifier
    if_exists: bool


def _thing(cursor: Cursor, kind: ObjectKind) -> _Thing:
    """`[IF EXISTS] name`."""
    if cursor.at_words("IF", "NOT"):
        raise cursor.error("this statement takes IF EXISTS", cursor.peek(1), "Leave NOT out.")
    if_exists = cursor.accept_words("IF", "EXISTS")
    return _Thing(cursor.name(f"the name of the {kind.value.lower()}"), if_exists)


def _alter_secret(cursor: Cursor, thing: _Thing) -> AlterSecret:
    cursor.usage = "ALTER SECRET name FROM ENV 'VARIABLE' | FROM FILE 'path' | AS 'value'"
    return AlterSecret(name=thing.name, if_exists=thing.if_exists, origin=secret_origin(cursor))


def _alter_connection(cursor: Cursor, thing: _Thing) -> AlterConnection:
    cursor.usage = "ALTER CONNECTION name SET (option = value, ...) | RESET (option, ...) [WITH (VALIDATE = false)]"
    action = _options_action(cursor)
    return AlterConnection(name=thing.name, if_exists=thing.if_exists, action=action, settings=with_clause(cursor))


def _alter_source(cursor: Cursor, thing: _Thing) -> AlterSource:
    cursor.usage = "ALTER SOURCE name SET (option = value, ...) | RESET (option, ...) | SET COLUMNS (column TYPE, ...)"
    return AlterSource(name=thing.name, if_exists=thing.if_exists, action=_source_action(cursor))


def _source_action(cursor: Cursor) -> SourceAction:
    if cursor.accept_words("SET", "COLUMNS"):
        return SetColumns(*columns(cursor))
    return _options_action(cursor)


def _alter_view(cursor: Cursor, thing: _Thing) -> AlterView:
    cursor.usage = "ALTER VIEW name AS SELECT ..."
    cursor.expect_words("AS", after="the name of the view")
    return AlterView(name=thing.name, if_exists=thing.if_exists, query=spark.query(cursor, "the body of the view"))


def _alter_sink(cursor: Cursor, thing: _Thing) -> AlterSink:
    cursor.usage = _SINK_USAGE
    return AlterSink(name=thing.name, if_exists=thing.if_exists, action=_sink_action(cursor))


_ALTER: dict[ObjectKind, Callable[[Cursor, _Thing], Alter]] = {
    ObjectKind.SECRET: _alter_secret,
    ObjectKind.CONNECTION: _alter_connection,
    ObjectKind.SOURCE: _alter_source,
    ObjectKind.VIEW: _alter_view,
    ObjectKind.SINK: _alter_sink,
}


def _options_action(cursor: Cursor) -> OptionsAction:
    if cursor.choose("action", ["SET", "RESET"], hint=cursor.usage) == "SET":
        return SetOptions(options(cursor))
    return ResetOptions(option_names(cursor))


def _sink_action(cursor: Cursor) -> SinkAction:
    match cursor.choose("action", ["SET", "RESET", "PAUSE", "RESUME", "ACCEPT"], hint=cursor.usage):
        case "RESET":
            return ResetOptions(option_names(cursor))
        case "PAUSE":
            return Pause()
        case "RESUME":
            return Resume()
        case "ACCEPT":
            cursor.expect_words("SNAPSHOT", after="ACCEPT")
            return AcceptSnapshot(_snapshot_id(cursor))
    if cursor.accept_words("FROM"):
        return SetFrom(cursor.name("the name of a source or view"), with_clause(cursor))
    if cursor.accept_words("PARTITION"):
        cursor.expect_words("BY", after="PARTITION")
        return SetPartitioning(partition_by_or_none(cursor))
    if not cursor.at_symbol("("):
        raise cursor.unexpected('"(", FROM or PARTITION BY after SET')
    return SetOptions(options(cursor))


def _snapshot_id(cursor: Cursor) -> int:
    token = cursor.peek()
    if token.kind is not TokenKind.NUMBER or not token.value.isdecimal() or len(token.value) > 19:
        raise cursor.unexpected("a snapshot id", "A snapshot id is a whole number, such as 5521046911201043216.")
    return int(cursor.next().value)
