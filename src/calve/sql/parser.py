"""The entry point: text -> statements.

`parse` reads a whole script before any of it runs: a mistake in the last statement also stops the first one.
"""

from collections.abc import Callable
from dataclasses import replace

from calve.sql.errors import SqlSyntaxError
from calve.sql.grammar.alter import alter, drop
from calve.sql.grammar.cursor import STATEMENT_STARTS, Cursor, keyword_hint
from calve.sql.grammar.maintenance import maintenance
from calve.sql.grammar.objects import create_connection, create_secret, create_view
from calve.sql.grammar.partition import partition_field
from calve.sql.grammar.show import analyze, describe, explain, query, show, validate
from calve.sql.grammar.sink import create_sink
from calve.sql.grammar.source import create_source
from calve.sql.lexer import Lexer, TokenKind
from calve.sql.parts import PartitionField
from calve.sql.statements import MaintenanceKind, Statement
from calve.sql.text import SqlText

_CREATE: dict[str, Callable[[Cursor], Statement]] = {
    "SECRET": create_secret,
    "CONNECTION": create_connection,
    "SOURCE": create_source,
    "VIEW": create_view,
    "SINK": create_sink,
}
_STATEMENTS: dict[str, Callable[[Cursor], Statement]] = {
    "ALTER": alter,
    "DROP": drop,
    "SHOW": show,
    "DESCRIBE": describe,
    "DESC": describe,
    "EXPLAIN": explain,
    "VALIDATE": validate,
    "ANALYZE": analyze,
    **{kind.value.split()[0]: maintenance(kind) for kind in MaintenanceKind},
}
_STARTS = (
    "Statements start with CREATE, ALTER, DROP, SHOW, DESCRIBE, EXPLAIN, VALIDATE, ANALYZE, SELECT, OPTIMIZE, EXPIRE, "
    "REMOVE, REWRITE or CONVERT."
)
_NOT_HERE = {
    **dict.fromkeys(
        ("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "COPY"), "Tables are written by sinks: CREATE SINK."
    ),
    **dict.fromkeys(("SET", "RESET", "USE"), "Give options in WITH (...) of a statement."),
    **dict.fromkeys(
        ("BEGIN", "COMMIT", "ROLLBACK"), "calve has no transactions: each statement takes effect on its own."
    ),
    "REFRESH": "Write ANALYZE TABLE 'folder' REFRESH METADATA.",
    "VACUUM": "Write EXPIRE SNAPSHOTS or REMOVE ORPHAN FILES.",
}
_NOT_CREATED = {
    "TABLE": 'A sink creates its table: CREATE SINK ... TABLE "name".',
    "MATERIALIZED": "Write CREATE VIEW, and CREATE SINK to keep a table equal to it.",
    "TEMPORARY": "Write CREATE VIEW.",
    "TEMP": "Write CREATE VIEW.",
    "SCHEMA": 'A sink creates its namespace: CREATE SINK ... NAMESPACE "name".',
    "NAMESPACE": 'A sink creates its namespace: CREATE SINK ... NAMESPACE "name".',
    "DATABASE": 'A sink creates its namespace: CREATE SINK ... NAMESPACE "name".',
    "CATALOG": "Write CREATE CONNECTION name TO ICEBERG CATALOG (...).",
}


def parse(text: str) -> tuple[Statement, ...]:
    """All statements of a script, separated by semicolons. Raises `SqlSyntaxError` at the first mistake."""
    cursor = Cursor(SqlText(text))
    found: list[Statement] = []
    while cursor.peek().kind is not TokenKind.END:
        if not cursor.accept_symbol(";"):
            found.append(_statement(cursor))
    return tuple(found)


def parse_one(text: str) -> Statement:
    """The one statement of a text."""
    found = parse(text)
    if len(found) != 1:
        where = found[1].where if found else None
        raise SqlSyntaxError.at(where, "expected one statement" + (", got more" if found else ", got none"))
    return found[0]


def parse_partition_field(text: str) -> PartitionField:
    """One field of PARTITION BY: a column, or a transform of one."""
    cursor = Cursor(SqlText(text))
    found = partition_field(cursor)
    if cursor.peek().kind is not TokenKind.END:
        raise cursor.unexpected("the end after the partition field", "Pass each field as a separate argument.")
    return found


def split_complete(text: str) -> tuple[tuple[str, ...], str]:
    """The complete statements, without their semicolons, and the remaining text.

    For a prompt, which asks for more lines while text remains. Nothing is checked. Spaces and comments do not count as
    remaining text.
    """
    lexer, found, start, empty = Lexer(text), list[str](), 0, True
    while (token := lexer.next()).kind is not TokenKind.END:
        if not token.is_symbol(";"):
            empty = False
            continue
        if not empty:
            found.append(text[start : token.start].strip())
        start, empty = token.end, True
    return tuple(found), "" if empty else text[start:]


def _statement(cursor: Cursor) -> Statement:
    token = cursor.peek()
    cursor.usage = ""
    found = _dispatch(cursor)
    cursor.expect_end(f"this {token.word} statement")
    return replace(found, where=cursor.span_from(token.start))


def _dispatch(cursor: Cursor) -> Statement:
    word = cursor.peek().word
    if word in {"SELECT", "WITH"}:
        return query(cursor)
    if word == "CREATE":
        cursor.next()
        return _create(cursor)
    if word in _STATEMENTS:
        cursor.next()
        return _STATEMENTS[word](cursor)
    if cursor.peek().kind is not TokenKind.WORD:
        raise cursor.unexpected("a statement", _STARTS)
    hint = _NOT_HERE.get(word) or keyword_hint(word, STATEMENT_STARTS, otherwise=_STARTS)
    raise cursor.error(f"unknown statement {cursor.shown(cursor.peek())}", hint=hint)


def _create(cursor: Cursor) -> Statement:
    if cursor.at_words("OR", "REPLACE"):
        kind = cursor.peek(2).word
        hint = f"Use ALTER {kind if kind in _CREATE else 'SINK'}, or DROP it and CREATE it."
        raise cursor.error("CREATE does not support OR REPLACE", hint=hint)
    word = cursor.peek().word
    if word in _NOT_CREATED:
        raise cursor.error(f"CREATE {word} is not supported", hint=_NOT_CREATED[word])
    return _CREATE[cursor.choose("kind of object", _CREATE)](cursor)
