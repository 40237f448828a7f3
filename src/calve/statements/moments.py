"""Time travel in SELECT: `FROM t FOR TIMESTAMP AS OF '2026-01-31 12:00'`, `FROM t FOR VERSION AS OF 5521`.

That is the syntax of Spark and Trino; DuckDB's `t AT (TIMESTAMP => '...')` and `t AT (VERSION => 5521)` mean the same.
A version is the id of a snapshot or, in quotes, the name of a branch or tag. Each such table is replaced by a name of
its own, under which the engine finds the rows of that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calve.errors import InvalidInput
from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.names import FieldPath, Identifier

if TYPE_CHECKING:
    from calve.reader.local import TimeTravel

_NAMES: Final = frozenset({TokenKind.WORD, TokenKind.QUOTED, TokenKind.BACKTICK})
_TIMES: Final = frozenset({"TIMESTAMP", "SYSTEM_TIME"})
_VERSIONS: Final = frozenset({"VERSION", "SYSTEM_VERSION"})
_AFTER_TABLE: Final = frozenset(
    {
        *("WHERE", "JOIN", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI", "ASOF", "POSITIONAL"),
        *("ON", "USING", "GROUP", "ORDER", "LIMIT", "OFFSET", "FETCH", "HAVING", "UNION", "EXCEPT", "INTERSECT"),
        *("WINDOW", "QUALIFY", "SAMPLE", "TABLESAMPLE", "LATERAL", "FOR"),
    }
)
"""Words that may follow a table without an alias."""


@dataclass(frozen=True)
class TableMoment:
    """A table of a query at a moment."""

    alias: str
    """Its name in the changed query."""
    path: FieldPath
    at: "TimeTravel"


def replace_moments(text: str) -> tuple[str, list[TableMoment]]:
    """The query with a name for each table at a moment, and these tables. Raises InvalidInput."""
    tokens = _tokens(text)
    pieces, here, found = list[str](), 0, list[TableMoment]()
    for place, token in enumerate(tokens):
        clause = _clause(tokens, place)
        if clause is None or token.start < here:
            continue
        first, end = _path_start(tokens, place), tokens[clause.last].end
        names = tuple(Identifier.exact(one.value) for one in tokens[first:place] if not one.is_symbol("."))
        if not names:
            continue
        moment = TableMoment(f"calve_moment_{len(found)}", FieldPath(names), clause.at)
        following = tokens[clause.last + 1] if clause.last + 1 < len(tokens) else None
        alias = "" if _is_alias(following) else f" AS {text[tokens[place - 1].start : tokens[place - 1].end]}"
        pieces += [text[here : tokens[first].start], f"{moment.alias}{alias}"]
        here = end
        found.append(moment)
    return "".join([*pieces, text[here:]]), found


@dataclass(frozen=True)
class _Clause:
    """A moment, and the place of its last token."""

    at: "TimeTravel"
    last: int


def _clause(tokens: Sequence[Token], place: int) -> _Clause | None:
    """The clause that starts here, if one does."""
    words = [token.word for token in tokens[place : place + 4]]
    if words[:1] == ["FOR"] and words[2:4] == ["AS", "OF"] and words[1] in _TIMES | _VERSIONS:
        return _value(tokens, place + 4, words[1])
    opens = [token.value for token in tokens[place + 1 : place + 5]]
    if words[:1] == ["AT"] and len(opens) == 4 and (opens[0], *opens[2:]) == ("(", "=", ">"):
        what = opens[1].upper()
        if what in _TIMES | _VERSIONS:
            found = _value(tokens, place + 5, what)
            if found.last + 1 < len(tokens) and tokens[found.last + 1].is_symbol(")"):
                return _Clause(found.at, found.last + 1)
    return None


def _value(tokens: Sequence[Token], place: int, what: str) -> _Clause:
    if place + 1 < len(tokens) and tokens[place].word == "TIMESTAMP":
        place += 1
    token = tokens[place] if place < len(tokens) else None
    if token is not None and what in _TIMES and token.kind is TokenKind.STRING:
        return _Clause({"as_of": token.value}, place)
    if token is not None and what in _VERSIONS and token.kind is TokenKind.NUMBER and token.value.isdecimal():
        return _Clause({"snapshot_id": int(token.value)}, place)
    if token is not None and what in _VERSIONS and token.kind is TokenKind.STRING:
        return _Clause({"ref": token.value}, place)
    wanted = "a time in quotes" if what in _TIMES else "the id of a snapshot, or a branch or tag in quotes"
    raise InvalidInput(
        f"{what} AS OF takes {wanted}",
        detail=f"Got {token.value}." if token else "",
        hint="Write FOR TIMESTAMP AS OF '2026-01-31 12:00', or FOR VERSION AS OF 5521. SHOW SNAPSHOTS FROM lists them.",
    )


def _path_start(tokens: Sequence[Token], place: int) -> int:
    """Where the name before this place starts."""
    first = place
    while first > 0 and tokens[first - 1].kind in _NAMES:
        first -= 1
        if first == 0 or not tokens[first - 1].is_symbol("."):
            break
        first -= 1
    return first


def _is_alias(token: Token | None) -> bool:
    return token is not None and token.kind in _NAMES and token.word not in _AFTER_TABLE


def _tokens(text: str) -> list[Token]:
    lexer, found = Lexer(text), list[Token]()
    while (token := lexer.next()).kind is not TokenKind.END:
        found.append(token)
    return found
