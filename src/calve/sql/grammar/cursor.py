"""A cursor over the tokens of a script, with which the grammar functions read.

Each function sets `usage` to its statement's synopsis, which is the hint of any error without a better one. Errors are
always raised as `raise cursor.error(...)`, so that a function's flow stays visible.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from calve.sql.errors import SqlSyntaxError
from calve.sql.hiding import is_hidden
from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.names import RESERVED, FieldPath, Identifier
from calve.sql.text import Span, SqlText
from calve.suggest import closest_keyword, did_you_mean

T = TypeVar("T")

_CURLY_QUOTES = frozenset("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u00b4")


class Cursor:
    """Reads tokens in order, with any lookahead."""

    def __init__(self, source: SqlText) -> None:
        self.source = source
        self.usage = ""
        self._lexer = Lexer(source.text)
        self._ahead: deque[Token] = deque()
        self.last = Token(TokenKind.END, 0, 0, "")
        """The token taken last."""

    # ---- looking and moving

    def peek(self, distance: int = 0) -> Token:
        """The token at this distance ahead."""
        while len(self._ahead) <= distance:
            self._ahead.append(self._lexer.next())
        return self._ahead[distance]

    def next(self) -> Token:
        """Take a token."""
        token = self.peek()
        self.last = self._ahead.popleft()
        return token

    def at_words(self, *words: str) -> bool:
        """Whether these keywords come next."""
        return all(self.peek(index).word == word for index, word in enumerate(words))

    def accept_words(self, *words: str) -> bool:
        """Take these keywords if they come next."""
        found = self.at_words(*words)
        for _ in words if found else ():
            self.next()
        return found

    def at_symbol(self, symbol: str) -> bool:
        """Whether this character comes next."""
        return self.peek().is_symbol(symbol)

    def accept_symbol(self, symbol: str) -> bool:
        """Take this character if it comes next."""
        found = self.at_symbol(symbol)
        if found:
            self.next()
        return found

    def span_from(self, start: int) -> Span:
        """From an offset to the end of the last token taken."""
        return Span(self.source, start, self.last.end)

    # ---- errors

    def span(self, token: Token) -> Span:
        """Where a token is; the end of a statement is right after its last token."""
        if token.ends_statement:
            return Span(self.source, self.last.end, self.last.end)
        return Span(self.source, token.start, token.end)

    def error(self, primary: str, at: Token | Span | None = None, hint: str | None = None) -> SqlSyntaxError:
        """An error at the next token or another place."""
        where = at if isinstance(at, Span) else self.span(at or self.peek())
        return SqlSyntaxError.at(where, primary, hint=self.usage if hint is None else hint)

    def unexpected(self, expected: str, hint: str | None = None) -> SqlSyntaxError:
        """The error for a next token other than what was expected."""
        token = self.peek()
        return self._broken(token) or self.error(f"expected {expected}, got {self.shown(token)}", hint=hint)

    def _broken(self, token: Token) -> SqlSyntaxError | None:
        """The error for a token that is valid nowhere."""
        if token.kind is TokenKind.BROKEN:
            return self.error(f"this {token.value} is never closed", token, _CLOSING[token.value])
        if token.kind is TokenKind.BACKTICK:
            return self.error("names are quoted with double quotes", token, 'Write "name" instead of `name`.')
        if token.kind is TokenKind.SYMBOL and token.value in _CURLY_QUOTES:
            return self.error(
                "this quote character is not valid in SQL", token, "Write straight quotes: 'text' or \"name\"."
            )
        if token.kind is TokenKind.SYMBOL and not token.value.isprintable():
            return self.error(f"invisible character U+{ord(token.value):04X}", token, "Delete it.")
        return None

    def shown(self, token: Token) -> str:
        """A token as messages show it."""
        where = self.span(token)
        if token.ends_statement:
            return "the end of the statement"
        if is_hidden(where):
            return "a hidden value"
        text = where.text if len(where.text) <= 40 else where.text[:39] + "…"
        return text if token.kind in {TokenKind.STRING, TokenKind.QUOTED} else f'"{text}"'

    # ---- expecting

    def expect_words(self, *words: str, after: str) -> None:
        """Take these keywords or raise."""
        for index, word in enumerate(words):
            if not self.accept_words(word):
                hint = did_you_mean(closest_keyword(self.peek().word, [word])) or None
                raise self.unexpected(f"{' '.join(words[index:])} after {words[index - 1] if index else after}", hint)

    def expect_symbol(self, symbol: str, where: str) -> Token:
        """Take this character or raise; `where` says what it belongs to, as in "before the options"."""
        if not self.at_symbol(symbol):
            raise self.unexpected(f'"{symbol}" {where}')
        return self.next()

    def expect_end(self, what: str) -> None:
        """Check that the statement ends here; the start of another one means that a semicolon is missing."""
        token = self.peek()
        if token.ends_statement:
            return
        if token.word in STATEMENT_STARTS and token.word != "WITH" and self.peek(1).kind is TokenKind.WORD:
            raise self.error(f"expected ; before {token.word}", token, "Statements are separated by semicolons.")
        raise self.unexpected(f"the end of {what}")

    def choose(self, what: str, choices: Iterable[str], *, hint: str | None = None) -> str:
        """Take one of several keywords or raise; `what` names the choice, as in "mode"."""
        names = list(choices)
        token = self.peek()
        if token.word in names:
            self.next()
            return token.word
        if token.kind is not TokenKind.WORD:
            raise self.unexpected(f"{'an' if what[0] in 'aeio' else 'a'} {what}", hint or _one_of(names))
        raise self.error(f"unknown {what} {self.shown(token)}", token, keyword_hint(token.value, names, otherwise=hint))

    def identifier(self, what: str) -> Identifier:
        """Take a name or raise; `what` describes it, as in "the name of the sink"."""
        token = self.peek()
        if token.kind is TokenKind.QUOTED and not token.value:
            raise self.error(f"{what} is empty", token)
        if token.kind is TokenKind.QUOTED or (token.kind is TokenKind.WORD and token.value.upper() not in RESERVED):
            self.next()
            return Identifier(token.value, token.kind is TokenKind.QUOTED, self.span(token))
        raise self.unexpected(what, self._name_hint(token))

    def _name_hint(self, token: Token) -> str | None:
        if token.kind is TokenKind.WORD and self.peek(1).ends_statement:
            return f'{token.value.upper()} is a keyword; as a name write "{token.value}".'
        if token.kind is TokenKind.STRING:
            return "Names are written without quotes or in double quotes."
        if token.kind is TokenKind.NUMBER:
            return "Names that do not start with a letter are written in double quotes."
        return None

    def name(self, what: str) -> Identifier:
        """Take the name of an object, which has one part."""
        found = self.identifier(what)
        if self.at_symbol("."):
            raise self.error(f"{what} has more than one part", hint="Names of objects have no dots.")
        return found

    def field_path(self, what: str) -> FieldPath:
        """Take a name with any number of parts."""
        parts = [self.identifier(what)]
        while self.accept_symbol("."):
            parts.append(self.identifier(f"a name after the dot of {what}"))
        return FieldPath(tuple(parts))

    def string(self, what: str) -> str:
        """Take a text in single or double quotes."""
        token = self.peek()
        if token.kind not in {TokenKind.STRING, TokenKind.QUOTED}:
            raise self.unexpected(f"{what} in single quotes")
        return self.next().value

    def list_of(self, item: Callable[[], T], what: str) -> tuple[T, ...]:
        """Take `( item, ... )` with at least one item and an optional trailing comma."""
        opening = self.expect_symbol("(", f"before {what}")
        if self.at_symbol(")"):
            raise self.error(f"the list of {what} is empty", Span(self.source, opening.start, self.peek().end))
        items = [item()]
        while not self.accept_symbol(")"):
            if not self.accept_symbol(","):
                raise self.unclosed(opening, f'"," or ")" in the list of {what}')
            if self.peek().ends_statement:
                raise self.unclosed(opening, "")
            if not self.at_symbol(")"):
                items.append(item())
        return tuple(items)

    def unclosed(self, opening: Token, expected: str) -> SqlSyntaxError:
        """The error for an unfinished list: at its parenthesis if nothing follows, otherwise at the next token."""
        if self.peek().ends_statement:
            return self.error("this parenthesis is never closed", opening, "")
        return self.unexpected(expected, "")


STATEMENT_STARTS = (
    *("CREATE", "ALTER", "DROP", "SHOW", "DESCRIBE", "EXPLAIN", "VALIDATE", "ANALYZE", "SELECT", "WITH"),
    *("OPTIMIZE", "EXPIRE", "REMOVE", "REWRITE", "CONVERT"),
)

_CLOSING = {
    "string": "Strings end with a single quote; a quote inside is doubled: 'it''s'.",
    "quoted name": 'Quoted names end with a double quote; a quote inside is doubled: "a ""b""".',
    "name in backticks": "Names in backticks end with a backtick; a backtick inside is doubled.",
    "comment": "Comments end with */, one for each /*.",
}


def keyword_hint(word: str, choices: Iterable[str], *, otherwise: str | None = None) -> str:
    """A hint for a word that is not among the choices: the closest one, else this text, else all of them."""
    names = list(choices)
    return did_you_mean(closest_keyword(word, names), otherwise or _one_of(names))


def _one_of(names: list[str]) -> str:
    return f"Expected {', '.join(names[:-1])} or {names[-1]}." if len(names) > 1 else f"Expected {names[0]}."


class Distinct:
    """Collects names and refuses duplicates."""

    def __init__(self, cursor: Cursor, what: str) -> None:
        self._cursor = cursor
        self._what = what
        self._seen: dict[str, list[Identifier]] = {}

    def add(self, name: Identifier) -> Identifier:
        """Add and return a name. Raises SqlSyntaxError for a duplicate."""
        alike = self._seen.setdefault(name.name.lower(), [])
        if any(name.collides(other) for other in alike):
            raise self._cursor.error(f'duplicate {self._what} "{name}"', name.where, "")
        alike.append(name)
        return name

    def finds(self, name: Identifier) -> bool:
        """Whether a name refers to one of those that were added."""
        return any(name.matches(other.name) for other in self._seen.get(name.name.lower(), ()))

    def names(self) -> list[str]:
        """All that were added."""
        return [name.name for alike in self._seen.values() for name in alike]


def names(cursor: Cursor, what: str) -> tuple[Identifier, ...]:
    """`(name, ...)`, each once; `what` is one of them, as in "key column"."""
    distinct = Distinct(cursor, what)
    return cursor.list_of(lambda: distinct.add(cursor.identifier(f"a {what}")), f"{what}s")
