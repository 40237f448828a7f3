"""PARTITION BY: columns and transforms of columns."""

from calve.sql.grammar.cursor import Cursor
from calve.sql.lexer import Token, TokenKind
from calve.sql.parts import PartitionField, Transform
from calve.suggest import closest_keyword, did_you_mean

MAX_WIDTH = 2**31 - 1
_WITH_WIDTH = frozenset({Transform.BUCKET, Transform.TRUNCATE})
_KNOWN = {transform.name: transform for transform in Transform}
_USAGE = "Transforms are bucket(n, col), truncate(w, col), year(col), month(col), day(col), hour(col) and void(col)."


def partition_by(cursor: Cursor) -> tuple[PartitionField, ...]:
    """`(field, ...)`, after PARTITION BY."""
    return cursor.list_of(lambda: partition_field(cursor), "partition fields")


def partition_by_or_none(cursor: Cursor) -> tuple[PartitionField, ...]:
    """The same, and `()` for a table that is not partitioned."""
    if cursor.at_symbol("(") and cursor.peek(1).is_symbol(")"):
        cursor.next()
        cursor.next()
        return ()
    return partition_by(cursor)


def partition_field(cursor: Cursor) -> PartitionField:
    """A column, or a transform of one."""
    if cursor.peek().kind is TokenKind.WORD and cursor.peek(1).is_symbol("("):
        return _transform(cursor)
    return PartitionField(Transform.IDENTITY, cursor.field_path("a column or a transform"))


def _transform(cursor: Cursor) -> PartitionField:
    token = cursor.next()
    transform = _KNOWN.get(token.word)
    if transform is None:
        guess = closest_keyword(token.value, _KNOWN)
        hint = did_you_mean(_KNOWN[guess].value if guess else None, _USAGE)
        raise cursor.error(f"unknown transform {cursor.shown(token)}", token, hint)
    opening = cursor.next()
    width = _width(cursor, transform) if transform in _WITH_WIDTH else None
    if width is None and cursor.peek().kind is TokenKind.NUMBER:
        raise cursor.error(f"{transform.value} takes only a column", hint=f"Write {transform.value}(column).")
    column = cursor.field_path(f"a column of {transform.value}")
    if not cursor.accept_symbol(")"):
        raise cursor.unclosed(opening, f'")" after the column of {transform.value}')
    return PartitionField(transform, column, width)


def _width(cursor: Cursor, transform: Transform) -> int:
    token = cursor.peek()
    example = f"Write {transform.value}(16, column)."
    if token.kind is TokenKind.WORD or token.kind is TokenKind.QUOTED:
        raise cursor.error(f"{transform.value} takes a number first", token, example)
    if not _is_width(token):
        raise cursor.unexpected(f"a whole number from 1 to {MAX_WIDTH} in {transform.value}", example)
    cursor.next()
    if not cursor.accept_symbol(","):
        raise cursor.unexpected(f'"," after the number of {transform.value}', example)
    return int(token.value)


def _is_width(token: Token) -> bool:
    whole = token.kind is TokenKind.NUMBER and token.value.isdecimal() and len(token.value) <= 10
    return whole and 0 < int(token.value) <= MAX_WIDTH
