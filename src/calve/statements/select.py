"""SELECT: queries over tables of sinks and INFORMATION_SCHEMA.

DuckDB answers them in this process (`duckdb_query`). Without it, or if it is asked for, Spark does (`spark_query`).
"""

from importlib.util import find_spec

from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.metastore.information import SCHEMA, VIEWS
from calve.model.engine import Engine
from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.names import quoted_name
from calve.sql.statements import SelectQuery
from calve.statements.answers import QueryAnswer


def select(place: Workplace, statement: SelectQuery, engine: Engine = Engine.AUTO) -> QueryAnswer:
    """Execute a query. Raises InvalidInput if it names unknown tables, or if the engine refuses it."""
    if chosen_engine(engine) is Engine.DUCKDB:
        from calve.statements.duckdb_query import query
    else:
        from calve.statements.spark_query import query
    return query(place, statement)


def chosen_engine(wanted: Engine) -> Engine:
    """The engine that executes queries. Raises InvalidInput if it is not installed."""
    if wanted is Engine.SPARK:
        return wanted
    if find_spec("duckdb") is not None:
        return Engine.DUCKDB
    if wanted is Engine.DUCKDB:
        raise InvalidInput("DuckDB is not installed", hint='Install it with pip install "calve[query]".')
    return Engine.SPARK


def replace_names(text: str, quote: str) -> tuple[str, set[str]]:
    """The query with the names of INFORMATION_SCHEMA's tables without their schema, and these names.

    Names in backticks get the engine's own quotes.
    """
    lexer, tokens = Lexer(text), list[Token]()
    while (token := lexer.next()).kind is not TokenKind.END:
        tokens.append(token)
    pieces, at, asked = list[str](), 0, set[str]()
    for place, token in enumerate(tokens):
        if token.start < at:
            continue
        second = tokens[place + 2] if place + 2 < len(tokens) and tokens[place + 1].is_symbol(".") else None
        if _name(token) == SCHEMA and second is not None:
            if _name(second) not in VIEWS:
                raise InvalidInput(f"{SCHEMA} has no table {second.value}", hint=f"It has {', '.join(sorted(VIEWS))}.")
            pieces += [text[at : token.start], _name(second)]
            at = second.end
            asked.add(_name(second))
        elif token.kind is TokenKind.BACKTICK and quote != "`":
            pieces += [text[at : token.start], quoted_name(token.value)]
            at = token.end
    return "".join([*pieces, text[at:]]), asked


def _name(token: Token) -> str:
    return token.value.upper() if token.kind in {TokenKind.WORD, TokenKind.BACKTICK} else ""
