"""Resolves the names of a view in a copy of the user's session, in which the input and the views are registered.

The copy has the user's tables, temporary views and functions; what is registered in it is invisible outside. Every call
of `analyse` resolves names again and lists a folder of files once: this is how static tables are read once per
checkpoint.

In calve `"Order Id"` is a name, inside views as elsewhere; in Spark it is a name or a string, depending on a setting of
the session. calve therefore hands names to Spark in backticks, which are unambiguous. Spark compares all names
case-insensitively, so this module checks on the analysed plan that names in double quotes match exactly.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from calve.errors import InvalidInput
from calve.spark.sqltext import ident
from calve.spark.version import condition_of, quiet_analysis
from calve.sql.lexer import Lexer, Token, TokenKind
from calve.view.catalyst import Catalyst, Node, children, expressions_of, items, kind, outputs, walk
from calve.view.plan import Resolve, ViewInput, ViewQuery

_HEAD = "CREATE VIEW v AS "
"""Makes the lexer read the rest by Spark's rules."""

_NAMES = frozenset({TokenKind.WORD, TokenKind.QUOTED, TokenKind.BACKTICK})

Parts = tuple[str, ...]


def spark_text(text: str, tables: Collection[Parts] = ()) -> str:
    """The query with its quoted names in backticks, and with the names of `tables` as single names."""
    tokens = _tokens(text)
    pieces, end, index = [], 0, 0
    while index < len(tokens):
        token = tokens[index]
        length = _table_at(tokens, index, tables)
        last = tokens[index + max(length, 1) - 1]
        pieces.append(text[end : token.start])
        if length:
            pieces.append(ident(".".join(t.value for t in tokens[index : index + length : 2])))
        elif token.kind is TokenKind.QUOTED:
            pieces.append(ident(token.value))
        else:
            pieces.append(text[token.start : token.end])
        end = last.end
        index += max(length, 1)
    return "".join([*pieces, text[end:]])


def quoted_names(text: str) -> set[str]:
    """The names in double quotes."""
    return {token.value for token in _tokens(text) if token.kind is TokenKind.QUOTED}


def relations_in(parsed: Node) -> list[Parts]:
    """The names of the tables and views that a parsed query reads, without its own common table expressions."""
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
    """Refuse a name in double quotes that Spark found only because it ignores case."""
    if not quoted:
        return
    known = {*others, *_defined(plan)}
    folded = {name.lower(): name for name in known}
    for name in sorted(quoted):
        similar = folded.get(name.lower())
        if name not in known and similar is not None:
            raise InvalidInput(
                f'there is no column or table "{name}"',
                detail="A name in double quotes matches exactly.",
                hint=f'Did you mean "{similar}"?',
            )


def _defined(plan: Node) -> Iterator[str]:
    """All names that a plan defines: columns of relations with their fields, and aliases."""
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
    while (token := lexer.next()).kind is not TokenKind.END:
        if token.start < len(_HEAD):
            continue
        if token.kind is TokenKind.BROKEN:
            raise InvalidInput(f"a {token.value} is never closed", detail=text)
        if token.ends_statement:
            raise InvalidInput("a view is one SELECT", detail=text, hint="Remove the semicolon.")
        found.append(token._replace(start=token.start - len(_HEAD), end=token.end - len(_HEAD)))
    return found


def _table_at(tokens: list[Token], index: int, tables: Collection[Parts]) -> int:
    """The number of tokens of the table name that begins here; 0 if none does."""
    for parts in tables:
        length = 2 * len(parts) - 1
        here = tokens[index : index + length]
        if len(here) == length and all(
            t.is_symbol(".") if i % 2 else t.kind in _NAMES and t.value.lower() == parts[i // 2].lower()
            for i, t in enumerate(here)
        ):
            return length
    return 0


_SETTINGS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.escapedStringLiterals": "false",  # so that calve's lexer and Spark agree on where a string ends
}


class ViewScope:
    """Analyses the queries of one view."""

    def __init__(
        self, spark: SparkSession, source: ViewInput, queries: Sequence[ViewQuery], resolve: Resolve | None
    ) -> None:
        _check_names(source, queries)
        self._source, self._queries, self._resolve = source, tuple(queries), resolve
        session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001 - no public way
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        self.catalyst = Catalyst(session)
        # Deletes and bad rows have nulls in any column, so Spark has to treat every column as nullable.
        columns = StructType([StructField(f.name, f.dataType) for f in source.schema.fields])
        session.createDataFrame([], columns).createOrReplaceTempView(ident(source.name))

    def is_input(self, node: Node) -> bool:
        """Whether an operator of an analysed plan is the input."""
        if kind(node) != "View" or not node.isTempView():
            return False
        return str(node.desc().identifier().table()).lower() == self._source.name.lower()

    def analyse(self) -> Node:
        """The analysed plan of the view."""
        *inner, last = self._queries
        for query in inner:
            self.catalyst.frame(self._analyse(query)).createOrReplaceTempView(ident(query.name))
        return self._analyse(last)

    def _analyse(self, query: ViewQuery) -> Node:
        try:
            with quiet_analysis():
                parsed = self.catalyst.parse(spark_text(query.text))
                tables = self._register_static(parsed)
                plan = self.catalyst.analyse(self.catalyst.parse(spark_text(query.text, tables)) if tables else parsed)
        except (AnalysisException, ParseException) as error:
            raise _invalid_query(query, error) from error
        check_exact(quoted_names(query.text), plan, [self._source.name, *(q.name for q in self._queries)])
        return plan

    def _register_static(self, parsed: Node) -> list[Parts]:
        """Register the tables that the hook resolves; returns those whose names have several parts."""
        if self._resolve is None:
            return []
        own = {self._source.name.lower(), *(q.name.lower() for q in self._queries)}
        found = []
        for parts in relations_in(parsed):
            frame = None if len(parts) == 1 and parts[0].lower() in own else self._resolve(parts)
            if frame is not None:
                plan = self.catalyst.plan_of(frame)
                self.catalyst.frame(plan).createOrReplaceTempView(ident(".".join(parts)))
                found.append(parts)
        return [parts for parts in found if len(parts) > 1]


def tables_read(spark: SparkSession, query: ViewQuery) -> list[Parts]:
    """The distinct tables, sources and views that a query reads, as the parts of their names."""
    try:
        with quiet_analysis():
            return relations_in(Catalyst(spark).parse(spark_text(query.text)))
    except ParseException as error:
        raise _invalid_query(query, error) from error


def _check_names(source: ViewInput, queries: Sequence[ViewQuery]) -> None:
    names = [source.name, *(q.name for q in queries)]
    for name in names:
        if sum(other.lower() == name.lower() for other in names) > 1:
            raise InvalidInput(f'two inputs of a view are named "{name}"', hint="Rename one of them.")


def _invalid_query(query: ViewQuery, error: AnalysisException | ParseException) -> InvalidInput:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    texts = condition_of(error).startswith("UNRESOLVED_COLUMN") and '"' in query.text
    return InvalidInput(
        f'the query of view "{query.name}" is invalid',
        detail=lines[0] if lines else type(error).__name__,
        hint="Strings are in single quotes; double quotes are for names." if texts else "",
    )
