"""Problems of records as Spark SQL, and the `BadRow` that is made from them inside Spark.

A problem is a STRUCT<text, hint>, null for a good record. `bad_row` writes it in the form of `CalveError.encode`, so
that the error can be decoded and raised elsewhere. Text is JSON-encoded, and the mark that ends an encoded error is
escaped, so that no record can truncate its own error.
"""

from calve.errors import BadRow
from calve.model.change import ORIGIN_CLOSE, ORIGIN_OPEN
from calve.spark.sqltext import coalesce, literal
from calve.spark.version import valid_utf8

SAMPLE_LENGTH = 200
"""Characters of a record that an error shows."""

PROBLEM = "struct<text:string,hint:string>"
_HEAD, _TAIL = BadRow("").encode().split('["BadRow", "", "", ""]')
_BACKSLASH = "chr(92)"


def problem(words: str, hint: str = "") -> str:
    """A problem; `words` is SQL."""
    return f"named_struct('text', {words}, 'hint', {literal(hint)})"


def misfit(name: str, text: str, type_name: str) -> str:
    """The problem that a value does not fit its column; `text` is SQL."""
    before, after = literal(f'column "{name}" is "'), literal(f'", which is not {type_name}')
    return problem(f"concat({before}, {shortened(text, 60)}, {after})")


def no_text(name: str) -> str:
    """The problem that a string is not UTF-8."""
    return problem(literal(f'column "{name}" contains invalid UTF-8'), "Declare it as BINARY, or correct it.")


def no_moment(name: str) -> str:
    """The problem that a date or a timestamp is out of range."""
    return problem(literal(f'column "{name}" contains a time outside of the years 0001 to 9999'))


def missing(name: str) -> str:
    """The problem that a NOT NULL column is null."""
    return problem(literal(f'column "{name}" is missing or null, but declared NOT NULL'))


def first_problem(choices: list[str]) -> str:
    """The first problem that is not null."""
    return coalesce(choices, PROBLEM)


def shortened(text: str, length: int) -> str:
    """A text truncated to `length` characters, valid UTF-8."""
    return valid_utf8(f"if(length({text}) > {length}, concat(left({text}, {length}), '...'), {text})")


def bad_row(found: str, where: str, sample: str, origin: str) -> str:
    """An encoded `BadRow`, followed by the record, where a problem was found; else null. All arguments are SQL."""
    detail = f"concat_ws(': ', {where}, {shortened(sample, SAMPLE_LENGTH)})"
    body = f"to_json(array('BadRow', {found}.text, {detail}, {found}.hint))"
    escaped = f"concat({_BACKSLASH}, 'u{ord(_TAIL):04x}')"
    safe = f"replace({body}, '{_TAIL}', {escaped})"
    behind = f"'{ORIGIN_OPEN}', replace({origin}, '{ORIGIN_CLOSE}', {escaped}), '{ORIGIN_CLOSE}'"
    return f"if({found} is null, null, concat('{_HEAD}', {safe}, '{_TAIL}', {behind}))"
