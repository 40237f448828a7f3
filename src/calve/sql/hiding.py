"""Finds the parts of a script that messages must not show.

A script contains passwords: in CREATE SECRET, and as literals of connection options. Messages also end up in logs. They
are built from broken statements, so nothing here relies on a complete statement: a missing semicolon, quote or keyword
must not expose a secret. In doubt a text is hidden.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise

from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.options import is_sensitive
from calve.sql.text import Span, SqlText

Range = tuple[int, int]

_WITHOUT_KIND = frozenset(
    {
        *("ANALYZE", "DESC", "DESCRIBE", "EXPLAIN", "SELECT", "SHOW", "VALIDATE", "WITH"),
        *("OPTIMIZE", "EXPIRE", "REMOVE", "REWRITE", "CONVERT"),
    }
)
_WITH_KIND = frozenset({"ALTER", "CREATE", "DROP"})
_KINDS = frozenset({"CONNECTION", "SECRET", "SINK", "SOURCE", "VIEW"})
_SHOWN_IN_CONNECTIONS = frozenset(
    {
        *("ARN", "AUTH", "BROKER", "BROKERS", "CONNECTION", "ENDPOINT", "ID", "MECHANISM", "MECHANISMS", "NAME"),
        *("PROTOCOL", "REGION", "SCOPE", "TYPE", "URI", "URL", "USER", "USERNAME", "VALIDATE", "WAREHOUSE"),
    }
)
"""Last words of the names of options whose values are not secret; a misspelt PASSWORD is not among them."""
_GUARDED = re.compile(r"\b(?:ALTER|CREATE)\s+(?:CONNECTION|SECRET)\b", re.IGNORECASE)
_QUOTES = ("'", '"', "`")
_TEXTS = frozenset({TokenKind.STRING, TokenKind.QUOTED, TokenKind.BROKEN})


def is_hidden(where: Span) -> bool:
    """Whether a place overlaps text that must not be shown."""
    return any(start < where.end and where.start < end for start, end in hidden_ranges(where.source, where.end))


def hidden_ranges(source: SqlText, end: int) -> list[Range]:
    """The ranges up to an offset that must not be shown, sorted and disjoint."""
    places = _Places(source)
    return _merge(sorted(hidden for tokens in _statements(source.text, end) for hidden in _hidden_in(tokens, places)))


class _Places:
    """The places of quotes and comments in a text. Finding the next one is fast, however long a line is."""

    def __init__(self, source: SqlText) -> None:
        self.source = source
        self._found = {mark: [match.start() for match in re.finditer(mark, source.text)] for mark in (*_QUOTES, "--")}

    def count(self, mark: str, start: int, end: int) -> int:
        """The number of occurrences of a mark from `start` to `end`, exclusive."""
        found = self._found[mark]
        return bisect_left(found, end) - bisect_left(found, start)

    def first(self, mark: str, start: int, end: int) -> int:
        """The first place of a mark, or `end`."""
        found = self._found[mark]
        index = bisect_left(found, start)
        return min(found[index], end) if index < len(found) else end


def _merge(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for start, stop in ranges:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _statements(text: str, end: int) -> Iterator[list[Token]]:
    """The tokens of each statement including its end, up to the statement that contains an offset."""
    lexer = Lexer(text)
    tokens: list[Token] = []
    while True:
        token = lexer.next()
        tokens.append(token)
        if token.ends_statement:
            yield tokens
            tokens = []
        if token.kind is TokenKind.END or (token.ends_statement and token.start >= end):
            return


def _hidden_in(tokens: list[Token], places: _Places) -> Iterator[Range]:
    text = places.source.text
    secret = _place_of(tokens, "SECRET")
    if secret is not None:
        yield from _hidden_in_secret(tokens[secret + 2 :])
    known = _is_known(tokens)
    # Searched anywhere and also inside strings: a semicolon or a quote may be missing before it.
    guarded = _GUARDED.search(text, tokens[0].start, tokens[-1].end) is not None
    shown = _SHOWN_IN_CONNECTIONS if guarded else None
    yield from _hidden_values(tokens[:secret], shown if known else frozenset())
    if guarded or not known:
        yield from _hidden_comments(tokens, text)
        yield from _hidden_by_missing_quote(tokens, places)


def _place_of(tokens: list[Token], kind: str) -> int | None:
    """The index of CREATE or ALTER of this kind."""
    for index, (token, following) in enumerate(pairwise(tokens)):
        if following.word == kind and token.word in {"ALTER", "CREATE"}:
            return index
    return None


def _is_known(tokens: list[Token]) -> bool:
    """Whether this is a known statement; if not, it may be a misspelt CREATE SECRET."""
    words = [token.word for token in tokens[:2]]
    return words[0] in _WITHOUT_KIND or (words[0] in _WITH_KIND and words[-1] in _KINDS)


def _hidden_in_secret(tokens: list[Token]) -> Iterator[Range]:
    """Everything after the name, unless it names an environment variable or a file."""
    name_and_body = [token for token in tokens[:-1] if token.word not in {"IF", "NOT", "EXISTS"}]
    if name_and_body and name_and_body[0].kind is TokenKind.BROKEN:
        yield name_and_body[0].start, name_and_body[0].end
    for before, token in pairwise(name_and_body):
        if token.kind in _TEXTS and before.word not in {"ENV", "FILE"}:
            yield token.start, token.end
    body = name_and_body[1:]
    if body and (body[0].word == "AS" or (len(body) > 1 and body[1].word in {"ENV", "FILE"})):
        body = body[1:]
    if body and body[0].word not in {"FROM", "ENV", "FILE"}:
        yield body[0].start, body[-1].end


def _hidden_values(tokens: list[Token], shown: frozenset[str] | None) -> Iterator[Range]:
    """Values of options with sensitive names; with `shown`, texts of all other options, too."""
    if tokens and tokens[0].kind in _TEXTS and shown is not None:
        yield tokens[0].start, tokens[0].end
    name: list[str] = []
    words: list[str] = []
    for before, token in pairwise(tokens):
        if before.kind is TokenKind.SYMBOL and before.value in ",();":
            name, words = [], []
        elif before.is_symbol("="):
            name, words = words or name, []
        elif before.word:
            words = [*words[-3:], before.word]  # option names are not longer
        if _hides(name or words, before, token, shown) or (words and _hides(words, before, token, shown)):
            yield token.start, token.end


def _hides(name: list[str], before: Token, token: Token, shown: frozenset[str] | None) -> bool:
    if is_sensitive(" ".join(name)) and before.is_symbol("="):
        return token.kind is not TokenKind.SYMBOL and token.word != "SECRET"
    if token.kind not in _TEXTS:
        return False
    doubtful = shown is not None and (token.kind is TokenKind.BROKEN or not shown.issuperset(name[-1:] or [""]))
    return doubtful or is_sensitive(" ".join(name)) or before.word == "AS" or _has_login(token)


def _has_login(token: Token) -> bool:
    """Whether a text looks like a URI with a user and a password in front of the host."""
    return "://" in token.value and "@" in token.value


def _hidden_comments(tokens: list[Token], text: str) -> Iterator[Range]:
    """Comments with something in quotes: a value that was commented out is still a value."""
    for before, token in pairwise(tokens):
        between = text[before.end : token.start]
        if "'" in between or '"' in between:
            start = before.end + len(between) - len(between.lstrip())
            yield start, start + len(between.strip())


def _hidden_by_missing_quote(tokens: list[Token], places: _Places) -> Iterator[Range]:
    """From a line with a missing quote on: what looks like SQL may be a secret, and vice versa."""
    start, end = tokens[0].start, tokens[-1].start
    for line in range(places.source.position(start).line, places.source.position(end).line + 1):
        line_start, line_end = places.source.line_bounds(line)
        low = max(line_start, start)
        comment = places.first("--", low, line_end)
        for quote in _QUOTES:
            if places.count(quote, low, comment) % 2:
                yield places.first(quote, low, comment), max(end, line_end)
                return
