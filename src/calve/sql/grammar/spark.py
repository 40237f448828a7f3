"""Text in Spark's language: kept verbatim, checked only for closed brackets and quotes."""

from calve.sql.errors import SqlSyntaxError
from calve.sql.grammar.cursor import STATEMENT_STARTS, Cursor
from calve.sql.lexer import Token, TokenKind
from calve.sql.statements import ObjectKind

_CLOSES = {")": "(", "]": "["}
_OBJECT_KINDS = frozenset(kind.value for kind in ObjectKind)


def query(cursor: Cursor, what: str) -> str:
    """A query up to the end of the statement."""
    if cursor.peek().word not in {"SELECT", "WITH"} and not cursor.at_symbol("("):
        raise cursor.unexpected(f"a SELECT as {what}")
    return _spark_text(cursor, in_list=False)


def condition(cursor: Cursor, what: str) -> str:
    """A condition up to the comma or the parenthesis that ends it."""
    token = cursor.peek()
    if token.ends_statement or token.is_symbol(")") or token.is_symbol(","):
        raise cursor.unexpected(what)
    return _spark_text(cursor, in_list=True)


def condition_before_options(cursor: Cursor, what: str) -> str:
    """A condition up to WITH and its options, or the end of the statement."""
    if cursor.peek().ends_statement or _at_options(cursor):
        raise cursor.unexpected(what)
    return _spark_text(cursor, in_list=False, before_options=True)


def _at_options(cursor: Cursor) -> bool:
    return cursor.at_words("WITH") and cursor.peek(1).is_symbol("(")


def _spark_text(cursor: Cursor, *, in_list: bool, before_options: bool = False) -> str:
    start, opened = cursor.peek().start, list[Token]()
    while True:
        token = cursor.peek()
        if token.ends_statement or (
            in_list and not opened and token.kind is TokenKind.SYMBOL and token.value in {",", ")"}
        ):
            break
        if before_options and not opened and _at_options(cursor):
            break
        if token.kind is TokenKind.BROKEN:
            raise cursor.unexpected("more")
        if not opened and not in_list:
            _refuse_next_statement(cursor, token)
        if token.kind is TokenKind.SYMBOL:
            _follow(cursor, token, opened)
        cursor.next()
    if opened:
        raise cursor.error("this bracket is never closed", opened[-1], "")
    return cursor.span_from(start).text


def _follow(cursor: Cursor, token: Token, opened: list[Token]) -> None:
    if token.value in {"(", "["}:
        opened.append(token)
    elif token.value in _CLOSES:
        if not opened or opened[-1].value != _CLOSES[token.value]:
            raise _unmatched(cursor, token, opened)
        opened.pop()


def _unmatched(cursor: Cursor, token: Token, opened: list[Token]) -> SqlSyntaxError:
    if opened:
        return cursor.error(f'"{token.value}" does not close "{opened[-1].value}"', token, "")
    return cursor.error(f'unmatched "{token.value}"', token, "")


def _refuse_next_statement(cursor: Cursor, token: Token) -> None:
    """Refuse a query that continues with CREATE SINK or the like: it lacks its semicolon."""
    if (
        token.word in STATEMENT_STARTS
        and cursor.peek(1).word in _OBJECT_KINDS
        and token.word in {"CREATE", "ALTER", "DROP"}
    ):
        raise cursor.error(f"expected ; before {token.word}", token, "Statements are separated by semicolons.")
