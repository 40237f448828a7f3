"""The line of a place with a caret below it, for error messages. Never shows what may be a secret.

A script holds passwords: in CREATE SECRET, and as literals of connection options. A line is shown to a person, but
also lands in logs, so whatever may be such a literal is shown as `<hidden>`, also when the statement around it is
broken: that is when excerpts are made.
"""

import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from calve.sql.lexer import Kind, Lexer, Token
from calve.sql.options import HIDDEN, is_sensitive
from calve.sql.text import Span, SqlText

_WIDTH = 100
"""Columns of an excerpt; a longer line is cut around the place."""

_WITHOUT_SECRETS = frozenset({"ANALYZE", "DROP", "SELECT", "SHOW", "VALIDATE", "WITH"})
_KINDS = frozenset({"SOURCE", "VIEW", "SINK"})
_SHOWN_IN_CONNECTIONS = frozenset(
    {
        *(
            "AUTH",
            "BROKER",
            "BROKERS",
            "ENDPOINT",
            "ID",
            "NAME",
            "PROTOCOL",
            "REGION",
            "SCOPE",
            "TYPE",
            "URI",
            "URL",
            "USER",
        ),
        *("ARN", "CONNECTION", "MECHANISM", "MECHANISMS", "USERNAME", "WAREHOUSE", "VALIDATE"),
    }
)
"""Last words of option names whose texts are no secrets."""


def excerpt(where: Span) -> str:
    """`line 3: the text` and, on a second line, carets below the place."""
    position = where.position
    start, end = where.source.line_bounds(position.line)
    cells = _cells(where, start, end)
    marked = [
        index for index, (_, offset) in enumerate(cells) if where.start <= offset < max(where.end, where.start + 1)
    ]
    first, last = (marked[0], marked[-1] + 1) if marked else (len(cells), len(cells) + 1)
    low, high = _window(len(cells), first, last)
    shown = "".join(text for text, _ in cells[low:high])
    label = f"line {position.line}: " + ("…" if low else "")
    before = sum(_width(text) for text, _ in cells[low:first])
    carets = max(1, sum(_width(text) for text, _ in cells[first : min(last, high)]))
    below = " " * (len(label) + before) + "^" * carets
    return f"{label}{shown}{'…' if high < len(cells) else ''}\n{below}"


def is_hidden(where: Span) -> bool:
    """Whether a place lies in text that must not be shown."""
    return any(start < where.end and where.start < end for start, end in _hidden_ranges(where.source, where.end))


def _window(length: int, first: int, last: int) -> tuple[int, int]:
    """Which cells to show: all of them, or as many as fit with the place inside."""
    if length <= _WIDTH:
        return 0, length
    low = max(0, min(first - _WIDTH // 3, length - _WIDTH))
    return low, max(low + _WIDTH, min(last, first + _WIDTH // 2))


def _cells(where: Span, start: int, end: int) -> list[tuple[str, int]]:
    """The characters of a line with their offsets; a hidden range is one cell for each character of its replacement."""
    hidden = _hidden_ranges(where.source, end)
    cells: list[tuple[str, int]] = []
    offset = start
    for low, high in [*hidden, (end, end)]:
        cut_low, cut_high = max(low, offset), min(high, end)
        cells.extend((_visible(where.source.text[at]), at) for at in range(offset, min(cut_low, end)))
        if cut_low < cut_high:
            # The caret goes below the whole replacement when the place is anywhere inside of it.
            inside = where.start if cut_low <= where.start < cut_high else cut_low
            cells.extend((char, inside) for char in HIDDEN)
        offset = max(offset, cut_high)
    return cells


def _visible(char: str) -> str:
    return char if char.isprintable() else " "


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _hidden_ranges(source: SqlText, end: int) -> list[tuple[int, int]]:
    """What must not be shown up to an offset, in order.

    With a quote missing on its line (`'it's'`), the rest of the line may belong to the secret.
    """
    ranges: list[tuple[int, int]] = []
    line_end = counted = quotes = -1
    for start, stop in (hidden for tokens in _statements(source.text, end) for hidden in _hidden_in(tokens)):
        if start > line_end:
            counted, line_end = source.line_bounds(source.position(start).line)
            quotes = source.text.count("'", counted, line_end)
        quotes -= source.text.count("'", counted, start)
        counted = start
        ranges.append((start, max(stop, line_end) if quotes % 2 else stop))
    return ranges


def _statements(text: str, end: int) -> Iterator[list[Token]]:
    lexer = Lexer(text)
    tokens: list[Token] = []
    while True:
        token = lexer.next()
        if token.kind is not Kind.END:
            tokens.append(token)
        if token.ends_statement:
            if tokens:
                yield tokens
            tokens = []
        if token.kind is Kind.END or (token.ends_statement and token.start >= end):
            return


def _hidden_in(tokens: list[Token]) -> Iterator[tuple[int, int]]:
    words = [token.word for token in tokens[:2]]
    if words[0] in _WITHOUT_SECRETS:
        return
    if words[-1] == "SECRET":
        yield from _hidden_in_secret(tokens)
    elif words[-1] == "CONNECTION":
        yield from _hidden_values(tokens, shown=_SHOWN_IN_CONNECTIONS)
    elif words[-1] in _KINDS or words[0] == "EXPLAIN":
        yield from _hidden_values(tokens, shown=None)
    else:  # a statement that is not understood may be a misspelt secret
        yield from _hidden_values(tokens, shown=frozenset())


def _hidden_in_secret(tokens: list[Token]) -> Iterator[tuple[int, int]]:
    """Everything after the name, unless it says where the value comes from."""
    body = [token for token in tokens[2:] if token.word not in {"IF", "NOT", "EXISTS"}][1:]
    if body and (body[0].word == "AS" or (len(body) > 1 and body[1].word in {"ENV", "FILE"})):
        body = body[1:]
    if body and body[0].word not in {"FROM", "ENV", "FILE"} and not body[0].ends_statement:
        last = body[-2] if body[-1].ends_statement else body[-1]
        yield body[0].start, last.end


def _hidden_values(tokens: list[Token], shown: frozenset[str] | None) -> Iterator[tuple[int, int]]:
    """Values of options whose name is sensitive; with `shown`, texts of all options but those."""
    name = ""
    for before, token in pairwise(tokens):
        if before.word or (before.kind is Kind.SYMBOL and before.value in ",()"):
            name = before.word
        literal = token.kind in {Kind.STRING, Kind.QUOTED, Kind.BROKEN}
        if is_sensitive(name):
            hide = literal or (
                before.is_symbol("=") and token.kind in {Kind.WORD, Kind.NUMBER} and token.word != "SECRET"
            )
        else:
            hide = literal and ((shown is not None and name not in shown) or _has_login(token))
        if hide:
            yield token.start, token.end


def _has_login(token: Token) -> bool:
    """Whether a text looks like a URI with a user and a password in front of the host."""
    return "://" in token.value and "@" in token.value
