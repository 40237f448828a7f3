"""Names in the text of a view.

calve takes `"Order Id"` for a name, as outside of views; for Spark it is a name or a text, as a setting of the session
says. So names are handed over in backticks, where Spark has no doubt. Spark compares all names without case; that a
name in double quotes matches exactly is checked here, on the analysed plan.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from calve.errors import InvalidInput
from calve.sparktext import ident
from calve.sql.lexer import Kind, Lexer, Token
from calve.view.catalyst import Node, children, expressions_of, items, kind, outputs, walk

_HEAD = "CREATE VIEW v AS "
"""What makes the lexer read the rest by Spark's rules."""

_NAMES = frozenset({Kind.WORD, Kind.QUOTED, Kind.BACKTICK})

Parts = tuple[str, ...]


def spark_text(text: str, tables: Collection[Parts] = ()) -> str:
    """The text with its quoted names in backticks, and with the names of `tables` as single names."""
    tokens = _tokens(text)
    pieces, end, index = [], 0, 0
    while index < len(tokens):
        token = tokens[index]
        length = _table_at(tokens, index, tables)
        last = tokens[index + max(length, 1) - 1]
        pieces.append(text[end : token.start])
        if length:
            pieces.append(ident(".".join(t.value for t in tokens[index : index + length : 2])))
        elif token.kind is Kind.QUOTED:
            pieces.append(ident(token.value))
        else:
            pieces.append(text[token.start : token.end])
        end = last.end
        index += max(length, 1)
    return "".join([*pieces, text[end:]])


def quoted_names(text: str) -> set[str]:
    """The names in double quotes."""
    return {token.value for token in _tokens(text) if token.kind is Kind.QUOTED}


def relations_in(parsed: Node) -> list[Parts]:
    """The names of the tables and views that a parsed query reads, without those it defines itself."""
    found, defined = dict[Parts, None](), set[str]()
    for node in _with_definitions(parsed):
        if kind(node) == "UnresolvedRelation":
            found[tuple(items(node.multipartIdentifier()))] = None
        elif kind(node) == "UnresolvedWith":
            defined |= {alias.alias().lower() for alias in items(node.innerChildren())}
    return [parts for parts in found if len(parts) > 1 or parts[0].lower() not in defined]


def _with_definitions(plan: Node) -> Iterator[Node]:
    yield plan
    below = items(plan.innerChildren()) if kind(plan) == "UnresolvedWith" else []
    for child in [*below, *children(plan)]:
        yield from _with_definitions(child)


def check_exact(quoted: Collection[str], plan: Node, others: Iterable[str]) -> None:
    """Refuse a name in double quotes that Spark found only because it does not mind the case."""
    if not quoted:
        return
    known = {*others, *_defined(plan)}
    folded = {name.lower(): name for name in known}
    for name in sorted(quoted):
        meant = folded.get(name.lower())
        if name not in known and meant is not None:
            raise InvalidInput(
                f'there is no column or table "{name}"',
                detail="A name in double quotes matches exactly.",
                hint=f'Did you mean "{meant}"?',
            )


def _defined(plan: Node) -> Iterator[str]:
    """Names where they come from: columns of relations with their fields, and aliases."""
    for node in walk(plan):
        if kind(node) == "SubqueryAlias":
            yield str(node.alias())
        if not children(node):
            for column in outputs(node):
                yield str(column.name())
                yield from _fields(json.loads(column.dataType().json()))
        for expression in expressions_of(node):
            if kind(expression) == "Alias":
                yield str(expression.name())


def _fields(data_type: Any) -> Iterator[str]:
    if isinstance(data_type, dict):
        for field in data_type.get("fields", ()):
            yield field["name"]
            yield from _fields(field["type"])
        for inner in ("elementType", "keyType", "valueType"):
            yield from _fields(data_type.get(inner))


def _tokens(text: str) -> list[Token]:
    lexer, found = Lexer(_HEAD + text), list[Token]()
    while (token := lexer.next()).kind is not Kind.END:
        if token.start < len(_HEAD):
            continue
        if token.kind is Kind.BROKEN:
            raise InvalidInput(f"a {token.value} is never closed", detail=text)
        if token.ends_statement:
            raise InvalidInput("a view is one SELECT", detail=text, hint="Leave out the semicolon.")
        found.append(token._replace(start=token.start - len(_HEAD), end=token.end - len(_HEAD)))
    return found


def _table_at(tokens: list[Token], index: int, tables: Collection[Parts]) -> int:
    """How many tokens the name of a table takes that begins here; 0 when none does."""
    for parts in tables:
        length = 2 * len(parts) - 1
        here = tokens[index : index + length]
        if len(here) == length and all(
            t.is_symbol(".") if i % 2 else t.kind in _NAMES and t.value.lower() == parts[i // 2].lower()
            for i, t in enumerate(here)
        ):
            return length
    return 0
