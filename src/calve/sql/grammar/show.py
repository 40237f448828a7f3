"""SHOW, DESCRIBE, EXPLAIN, VALIDATE, ANALYZE, and queries."""

from calve.sql.grammar import spark
from calve.sql.grammar.cursor import Cursor, keyword_hint
from calve.sql.grammar.sink import create_sink
from calve.sql.lexer import TokenKind
from calve.sql.names import FieldPath
from calve.sql.statements import (
    AnalyzeTarget,
    DropMetadata,
    Explain,
    MetadataLevel,
    ObjectKind,
    RefreshMetadata,
    SelectQuery,
    Show,
    ShowColumns,
    ShowCreate,
    ShowKind,
    ShowSnapshots,
    Validate,
)

_LISTINGS = [listing.value for listing in ShowKind]
_PARTS = ["COLUMNS", "SNAPSHOTS"]
"""What SHOW lists of one table."""
_DESCRIBED = {"TABLE", "SINK", "SOURCE", "VIEW"}


def show(cursor: Cursor) -> Show | ShowCreate | ShowColumns | ShowSnapshots:
    """SHOW, after this word."""
    cursor.usage = (
        f"SHOW {' | '.join(_LISTINGS)} [LIKE 'pattern'], SHOW COLUMNS | SNAPSHOTS FROM name, or SHOW CREATE kind name"
    )
    if cursor.accept_words("CREATE"):
        return _show_create(cursor)
    if cursor.accept_words("SINK", "STATUS"):
        return Show(listing=ShowKind.SINK_STATUS, like=_like(cursor))
    word = cursor.peek().word
    if f"{word}S" in _LISTINGS:
        hint = f"Write SHOW {word}S, or SHOW CREATE {word} name."
        raise cursor.error(f"SHOW lists all {word.lower()}s", hint=hint)
    chosen = cursor.choose("list", [*_LISTINGS, *_PARTS], hint=cursor.usage)
    if chosen in _PARTS:
        cursor.usage = f"SHOW {chosen} FROM namespace.table | connection.namespace.table | sink"
        cursor.expect_words("FROM", after=chosen)
        name = cursor.field_path("the name of a table or a sink")
        return ShowColumns(name=name) if chosen == "COLUMNS" else ShowSnapshots(name=name)
    listing = ShowKind(chosen)
    return Show(listing=listing, like=_like(cursor))


def _like(cursor: Cursor) -> str | None:
    return cursor.string("a pattern") if cursor.accept_words("LIKE") else None


def _show_create(cursor: Cursor) -> ShowCreate:
    cursor.usage = "SHOW CREATE SECRET | CONNECTION | SOURCE | VIEW | SINK name"
    kind = ObjectKind(cursor.choose("kind of object", [kind.value for kind in ObjectKind]))
    return ShowCreate(kind=kind, name=cursor.name(f"the name of the {kind.value.lower()}"))


def describe(cursor: Cursor) -> ShowColumns:
    """DESCRIBE or DESC, after this word."""
    cursor.usage = "DESCRIBE namespace.table | connection.namespace.table | sink | source | view"
    word = cursor.peek().word
    if word in _DESCRIBED and cursor.peek(1).kind in {TokenKind.WORD, TokenKind.QUOTED}:
        cursor.next()
    return ShowColumns(name=cursor.field_path("the name of a table, sink, source or view"))


def explain(cursor: Cursor) -> Explain:
    """EXPLAIN, after this word."""
    cursor.usage = "EXPLAIN CREATE SINK ..."
    if not cursor.accept_words("CREATE", "SINK"):
        raise cursor.unexpected("CREATE SINK after EXPLAIN", "EXPLAIN shows how a sink would run.")
    return Explain(statement=create_sink(cursor))


def validate(cursor: Cursor) -> Validate:
    """VALIDATE, after this word."""
    cursor.usage = "VALIDATE CONNECTION name"
    cursor.expect_words("CONNECTION", after="VALIDATE")
    return Validate(connection=cursor.name("the name of a connection"))


def analyze(cursor: Cursor) -> RefreshMetadata | DropMetadata:
    """ANALYZE, after this word."""
    cursor.usage = (
        "ANALYZE TABLE 'folder' | name [COLUMNS (column, ...) | COLUMNS NONE] REFRESH METADATA ['level' LEVEL], "
        "or ANALYZE TABLE 'folder' | name DROP METADATA [IF EXISTS]"
    )
    cursor.expect_words("TABLE", after="ANALYZE")
    target: AnalyzeTarget
    if cursor.peek().kind is TokenKind.STRING:
        target = cursor.next().value
    else:
        target = cursor.field_path("a folder or the name of a table")
    if cursor.accept_words("DROP"):
        cursor.expect_words("METADATA", after="DROP")
        return DropMetadata(target=target, if_exists=cursor.accept_words("IF", "EXISTS"))
    return _refresh(cursor, target)


def _refresh(cursor: Cursor, target: AnalyzeTarget) -> RefreshMetadata:
    columns: tuple[FieldPath, ...] | None = None
    if cursor.accept_words("COLUMNS"):
        none = cursor.accept_words("NONE")
        columns = () if none else cursor.list_of(lambda: cursor.field_path("a column"), "columns")
    cursor.expect_words("REFRESH", "METADATA", after="the table" if columns is None else "the columns")
    level = _level(cursor) if cursor.peek().kind in {TokenKind.STRING, TokenKind.QUOTED} else None
    return RefreshMetadata(target=target, columns=columns, level=level)


def _level(cursor: Cursor) -> MetadataLevel:
    token = cursor.next()
    levels = [level.value for level in MetadataLevel]
    if token.value.upper() not in levels:
        raise cursor.error(f"unknown level {cursor.shown(token)}", token, keyword_hint(token.value, levels))
    cursor.expect_words("LEVEL", after="the level")
    return MetadataLevel(token.value.upper())


def query(cursor: Cursor) -> SelectQuery:
    """SELECT or WITH, with this word still to come."""
    return SelectQuery(text=spark.query(cursor, "a query"))
