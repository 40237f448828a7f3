"""Text -> tokens, one at a time, in linear time.

A script mixes two languages. Outside queries, a string ends at the next single quote that is not doubled. Text for
Spark (a query, a view after AS, a condition after DELETE WHEN) follows Spark's rules, where a backslash also escapes a
quote; otherwise this lexer and Spark would disagree on where a string ends. `_Language` tracks which one applies.

Block comments nest, as they do in Spark. Nothing here raises: text that cannot be read becomes a `BROKEN` token, so
that a mistake before it is reported first.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

# All repetitions are possessive: a missing quote costs one pass over the text, not one for each way to split it.
_WORD = r"(?P<word>[^\W\d]\w*+)"
_NUMBER = r"(?P<number>[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)"
_BACKTICK = r"(?P<backtick>`(?:[^`]++|``)*+`)"
_SYMBOL = r"(?P<symbol>.)"
_STRING = r"(?P<string>'(?:[^']++|'')*+')"
_QUOTED = r'(?P<quoted>"(?:[^"]++|"")*+")'
_SPARK_RAW = r"""(?P<raw>[rR]'[^']*+'|[rR]"[^"]*+")"""
_SPARK_STRING = r"(?P<string>'(?:[^'\\]++|''|\\.)*+')"
_SPARK_QUOTED = r'(?P<quoted>"(?:[^"\\]++|""|\\.)*+")'
_CALVE_TOKEN = re.compile(f"{_WORD}|{_NUMBER}|{_STRING}|{_QUOTED}|{_BACKTICK}|{_SYMBOL}", re.DOTALL)
_SPARK_TOKEN = re.compile(
    f"{_SPARK_RAW}|{_WORD}|{_NUMBER}|{_SPARK_STRING}|{_SPARK_QUOTED}|{_BACKTICK}|{_SYMBOL}", re.DOTALL
)
# A byte order mark is not the user's mistake.
_CALVE_SPACE = re.compile(r"(?:[\s\ufeff]++|--[^\r\n]*+)*+")
_SPARK_SPACE = re.compile(r"(?:[\s\ufeff]++|--(?:\\\n|[^\r\n])*+)*+")
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class TokenKind(Enum):
    """The kind of a token."""

    WORD = auto()
    """A keyword or an identifier without quotes."""
    QUOTED = auto()
    """In double quotes: an identifier, or a value."""
    STRING = auto()
    NUMBER = auto()
    BACKTICK = auto()
    SYMBOL = auto()
    """One character."""
    BROKEN = auto()
    """A quote or a comment that is never closed; the last token before END."""
    END = auto()


_BROKEN_BY = {"'": "string", '"': "quoted name", "`": "name in backticks"}


class Token(NamedTuple):
    """A piece of text. `value` is its meaning: without quotes; for BROKEN, what was not closed."""

    kind: TokenKind
    start: int
    end: int
    value: str

    @property
    def word(self) -> str:
        """The word in capitals; empty for anything else. Only ASCII words can be keywords."""
        return self.value.upper() if self.kind is TokenKind.WORD and self.value.isascii() else ""

    def is_symbol(self, symbol: str) -> bool:
        """Whether this is that character."""
        return self.kind is TokenKind.SYMBOL and self.value == symbol

    @property
    def ends_statement(self) -> bool:
        """A semicolon or the end of the text."""
        return self.kind is TokenKind.END or self.is_symbol(";")


class _Language:
    """Follows the tokens of a statement and decides whether the next one belongs to Spark's language."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.is_spark = False
        self._words: list[str] = []
        self._before = ""
        self._depth: int | None = None

    def observe(self, token: Token) -> None:
        if token.is_symbol(";"):
            self._reset()
        elif self._depth is not None:
            self._follow_condition(token)
        elif not self.is_spark:
            self._watch_for_spark(token.word)

    def _watch_for_spark(self, word: str) -> None:
        first = not self._words
        if len(self._words) < 3:
            self._words.append(word)
        if word == "WHEN" and self._before == "DELETE":
            self.is_spark, self._depth = True, 0
        elif (first and word in {"SELECT", "WITH"}) or (word == "AS" and self._in_view()):
            self.is_spark = True
        self._before = word

    def _in_view(self) -> bool:
        words = self._words[1:] if self._words[0] == "EXPLAIN" else self._words
        second = words[1] if len(words) > 1 else ""
        return words[0] in {"CREATE", "ALTER"} and second in {"VIEW", "OR", "MATERIALIZED", "TEMPORARY", "TEMP"}

    def _follow_condition(self, token: Token) -> None:
        depth = self._depth or 0
        symbol = token.value if token.kind is TokenKind.SYMBOL else ""
        if depth == 0 and symbol in {",", ")"}:
            self.is_spark, self._depth = False, None
        elif symbol in {"(", "["}:
            self._depth = depth + 1
        elif symbol in {")", "]"}:
            self._depth = max(depth - 1, 0)


class Lexer:
    """Reads a text from its start. END repeats at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._language = _Language()

    def next(self) -> Token:
        """The next token."""
        broken = self._skip_space()
        if broken:
            return broken
        if self._offset == len(self._text):
            return Token(TokenKind.END, self._offset, self._offset, "")
        token = self._read()
        self._offset = token.end
        self._language.observe(token)
        return token

    def _read(self) -> Token:
        start, spark = self._offset, self._language.is_spark
        match = (_SPARK_TOKEN if spark else _CALVE_TOKEN).match(self._text, start)
        if match is None or match.lastgroup is None:  # the last alternative takes any character
            raise AssertionError(f"no token at offset {start}")
        text, end = match.group(), match.end()
        if match.lastgroup == "symbol" and text in _BROKEN_BY:
            return self._broken(_BROKEN_BY[text])
        match match.lastgroup:
            case "word":
                return Token(TokenKind.WORD, start, end, text)
            case "number":
                return Token(TokenKind.NUMBER, start, end, text)
            case "symbol":
                return Token(TokenKind.SYMBOL, start, end, text)
            case "quoted":
                return Token(TokenKind.QUOTED, start, end, text[1:-1].replace('""', '"'))
            case "backtick":
                return Token(TokenKind.BACKTICK, start, end, text[1:-1].replace("``", "`"))
            case _:
                return Token(TokenKind.STRING, start, end, text[1:-1].replace("''", "'"))

    def _broken(self, what: str) -> Token:
        start, end = self._offset, len(self._text)
        self._offset = end
        return Token(TokenKind.BROKEN, start, end, what)

    def _skip_space(self) -> Token | None:
        space = _SPARK_SPACE if self._language.is_spark else _CALVE_SPACE
        while True:
            match = space.match(self._text, self._offset)
            self._offset = match.end() if match else self._offset
            if not self._text.startswith("/*", self._offset):
                return None
            end = _comment_end(self._text, self._offset)
            if end is None:
                return self._broken("comment")
            self._offset = end


def _comment_end(text: str, start: int) -> int | None:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return None
