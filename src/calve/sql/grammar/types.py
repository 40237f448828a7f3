"""Column types: Spark's notation in, Spark's notation in canonical form out.

Synonyms become one name (`INTEGER` -> `INT`, `DECIMAL` -> `DECIMAL(10,0)`), so that equal types are equal texts. Names
of struct fields keep their case and get backticks where Spark needs them; they may be written in double quotes as well.
"""

from calve.sql.errors import SqlSyntaxError
from calve.sql.grammar.cursor import Cursor
from calve.sql.lexer import Token, TokenKind
from calve.sql.names import is_plain
from calve.suggest import closest_keyword, did_you_mean

MAX_DEPTH = 64
"""Levels of nesting; more is a mistake, and would exhaust the stack."""

_SIMPLE = {
    **{name: name for name in ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE")},
    **{name: name for name in ("STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "VARIANT", "UUID")},
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_CHARS = {"CHAR": "CHAR", "CHARACTER": "CHAR", "VARCHAR": "VARCHAR"}
_NESTED = ("ARRAY", "MAP", "STRUCT")
_EXAMPLES = {"ARRAY": "ARRAY<INT>", "MAP": "MAP<STRING, INT>", "STRUCT": "STRUCT<name: TYPE, ...>"}
_INTERVAL_FIELDS = (("YEAR", "MONTH"), ("DAY", "HOUR", "MINUTE", "SECOND"))
_KNOWN = (*_SIMPLE, *_DECIMALS, *_CHARS, *_NESTED, "INTERVAL", "TIME")

_ELSEWHERE = {
    **dict.fromkeys(("TEXT", "CLOB", "NVARCHAR", "VARCHAR2", "JSON", "JSONB", "XML", "ENUM"), "STRING"),
    **dict.fromkeys(("BYTEA", "BLOB", "BYTES", "VARBINARY"), "BINARY"),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ", "INSTANT"), "TIMESTAMP"),
    **dict.fromkeys(("DATETIME", "DATETIME2", "TIMESTAMPNTZ"), "TIMESTAMP_NTZ"),
    "BOOL": "BOOLEAN",
    "BIT": "BOOLEAN",
    "INT2": "SMALLINT",
    "INT4": "INT",
    "INT8": "BIGINT",
    "MEDIUMINT": "INT",
    "SERIAL": "INT",
    "BIGSERIAL": "BIGINT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "NUMBER": "DECIMAL(p,s)",
    "MONEY": "DECIMAL(19,4)",
    "LIST": "ARRAY<...>",
    "ROW": "STRUCT<...>",
    "RECORD": "STRUCT<...>",
}
"""Types of other systems, and their names here."""


def column_type(cursor: Cursor, depth: int = 0) -> str:
    """A type."""
    token = cursor.peek()
    word = token.word
    if depth > MAX_DEPTH:
        raise cursor.error(f"types nest more than {MAX_DEPTH} levels deep", hint="")
    if token.kind is not TokenKind.WORD or word not in _KNOWN:
        raise _unknown(cursor, token)
    if word == "UUID" and depth:
        raise cursor.error("UUID is not supported inside other types", token, "Write STRING.")
    cursor.next()
    if word in _SIMPLE:
        return _simple(cursor, token)
    if word in _DECIMALS:
        return _decimal(cursor)
    if word in _CHARS:
        return f"{_CHARS[word]}({_length(cursor, word)})"
    if word == "INTERVAL":
        return _interval(cursor)
    if word == "TIME":
        return _time(cursor)
    return _nested(cursor, word, depth + 1)


def _unknown(cursor: Cursor, token: Token) -> SqlSyntaxError:
    if token.kind is not TokenKind.WORD:
        return cursor.unexpected("a type", "A column is a name and a type: id BIGINT.")
    guess = _ELSEWHERE.get(token.word) or closest_keyword(token.value, _KNOWN)
    hint = did_you_mean(guess, "Types are those of Spark SQL, such as BIGINT, STRING or ARRAY<INT>.")
    return cursor.error(f"unknown type {cursor.shown(token)}", token, hint)


def _simple(cursor: Cursor, token: Token) -> str:
    if token.word == "DOUBLE" and cursor.at_words("PRECISION"):
        raise cursor.error("unknown type DOUBLE PRECISION", hint="Write DOUBLE.")
    if token.word.startswith("TIMESTAMP") and (cursor.at_words("WITH") or cursor.at_words("WITHOUT")):
        hint = "TIMESTAMP has a time zone, TIMESTAMP_NTZ has none."
        raise cursor.error(f"{token.word} does not take WITH or WITHOUT TIME ZONE", hint=hint)
    if cursor.at_symbol("("):
        raise cursor.error(f"{token.word} does not take a number", hint=f"Write {_SIMPLE[token.word]}.")
    return _SIMPLE[token.word]


def _decimal(cursor: Cursor) -> str:
    if not cursor.at_symbol("("):
        return "DECIMAL(10,0)"
    opening = cursor.peek()
    precision, *rest = _numbers(cursor, 2)
    scale = rest[0] if rest else 0
    where = cursor.span_from(opening.start)
    if not 1 <= precision <= 38:
        raise cursor.error(f"a decimal has 1 to 38 digits, not {precision}", where, "")
    if scale > precision:
        raise cursor.error(f"a decimal with {precision} digits cannot have {scale} of them after the point", where, "")
    return f"DECIMAL({precision},{scale})"


def _time(cursor: Cursor) -> str:
    if not cursor.at_symbol("("):
        return "TIME(6)"
    opening = cursor.peek()
    digits = _numbers(cursor, 1)[0]
    if digits > 6:
        raise cursor.error(f"a time has 0 to 6 digits of a second, not {digits}", cursor.span_from(opening.start), "")
    return f"TIME({digits})"


def _length(cursor: Cursor, word: str) -> int:
    if not cursor.at_symbol("("):
        raise cursor.error(f"{word} needs a length", hint=f"Write {word}(10), or STRING for any length.")
    where = cursor.peek()
    length = _numbers(cursor, 1)[0]
    if not 1 <= length < 2**31:
        raise cursor.error(f"a length of {length} is out of range", cursor.span_from(where.start), "")
    return length


def _numbers(cursor: Cursor, at_most: int) -> list[int]:
    """`(n)` or `(n, n)`."""
    opening = cursor.expect_symbol("(", "before a number")
    found: list[int] = []
    while True:
        token = cursor.peek()
        if token.kind is not TokenKind.NUMBER or not token.value.isdecimal() or len(token.value) > 10:
            raise cursor.unexpected("a whole number", "")
        found.append(int(cursor.next().value))
        if len(found) == at_most or not cursor.accept_symbol(","):
            break
    if not cursor.accept_symbol(")"):
        raise cursor.unclosed(opening, '")" after the number')
    return found


def _interval(cursor: Cursor) -> str:
    known = [name for names in _INTERVAL_FIELDS for name in names]
    first = cursor.choose("unit of an interval", known)
    if not cursor.accept_words("TO"):
        return f"INTERVAL {first}"
    token = cursor.peek()
    last = cursor.choose("unit of an interval", known)
    family = next(names for names in _INTERVAL_FIELDS if first in names)
    if last not in family or family.index(last) <= family.index(first):
        raise cursor.error(
            f"an interval cannot go from {first} to {last}", token, "Write YEAR TO MONTH or DAY TO SECOND."
        )
    return f"INTERVAL {first} TO {last}"


def _nested(cursor: Cursor, word: str, depth: int) -> str:
    example = _EXAMPLES[word]
    _expect(cursor, "<", f"after {word}", example)
    if word == "ARRAY":
        inside = column_type(cursor, depth)
    elif word == "MAP":
        key = column_type(cursor, depth)
        _expect(cursor, ",", "between the key and the value of a map", example)
        inside = f"{key}, {column_type(cursor, depth)}"
    else:
        inside = _struct_fields(cursor, depth)
    _expect(cursor, ">", f"at the end of {word}", example)
    return f"{word}<{inside}>"


def _expect(cursor: Cursor, symbol: str, where: str, example: str) -> None:
    if not cursor.accept_symbol(symbol):
        raise cursor.unexpected(f'"{symbol}" {where}', f"Write {example}.")


def _struct_fields(cursor: Cursor, depth: int) -> str:
    fields: dict[str, str] = {}
    while True:
        token = cursor.peek()
        name = token.value.lower()
        text = _struct_field(cursor, depth)
        if name in fields:
            raise cursor.error(
                f'duplicate field "{token.value}"', token, "Field names of a struct must differ in more than case."
            )
        fields[name] = text
        if not cursor.accept_symbol(","):
            return ", ".join(fields.values())


def _struct_field(cursor: Cursor, depth: int) -> str:
    token = cursor.peek()
    if token.kind not in {TokenKind.WORD, TokenKind.QUOTED, TokenKind.BACKTICK} or not token.value:
        raise cursor.unexpected("the name of a field", "A struct is STRUCT<name: TYPE, ...>.")
    cursor.next()
    cursor.accept_symbol(":")
    inside = column_type(cursor, depth)
    not_null = " NOT NULL" if cursor.accept_words("NOT", "NULL") else ""
    # Spark does not need quotes around a reserved word, but they do no harm.
    name = (
        token.value if is_plain(token.value) and token.value.isascii() else "`" + token.value.replace("`", "``") + "`"
    )
    return f"{name}: {inside}{not_null}"
