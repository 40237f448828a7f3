"""SELECT in DuckDB's SQL, in this process.

    query ──► names of tables ──► snapshots, chosen now ──► DuckDB ──► rows

calve reads the tables itself (`duckdb_tables`). DuckDB gets no access to files or the network: a query reads only the
tables that it names.

A query of INFORMATION_SCHEMA, or of no table, is answered without Arrow, whose import takes longer than the query: if
the values of all columns are the same in Python as they are in Arrow, and the rows are few.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import MAXYEAR, MINYEAR, datetime
from decimal import Decimal
from typing import Any, Final

import duckdb

from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.metastore.information import VIEWS, Columns, Line
from calve.sql.grammar.cursor import Cursor
from calve.sql.names import FieldPath, Identifier, is_plain, quoted_name, quoted_text
from calve.sql.statements import SelectQuery
from calve.sql.text import SqlText
from calve.statements.answers import PlainColumn, PlainRows, QueryAnswer
from calve.statements.information_schema import lines_of
from calve.statements.moments import replace_moments
from calve.statements.select import replace_names

MOST_PLAIN_ROWS: Final = 10_000
"""Of a result without Arrow."""
_TYPES: Final = {"STRING": "VARCHAR", "INT": "INTEGER", "BIGINT": "BIGINT", "TIMESTAMP": "TIMESTAMPTZ"}
_NUMBERS: Final = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE"),
    }
)
_TIME: Final = "TIMESTAMP WITH TIME ZONE"
_OTHERS: Final = frozenset({"VARCHAR", "BOOLEAN", _TIME})
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def query(place: Workplace, statement: SelectQuery) -> QueryAnswer:
    """Execute a query. Raises InvalidInput if it names unknown tables, or if DuckDB refuses it."""
    timed, moments = replace_moments(statement.text)
    text, asked = replace_names(timed, '"')
    connection = duckdb.connect(":memory:")
    try:
        named = _tables(connection, text, {*asked, *(moment.alias.upper() for moment in moments)})
        for name, lines in lines_of(place, asked).items():
            connection.execute(_table_of(name, VIEWS[name].columns, lines))
        if not named and not moments:
            _close_off(connection)
            with connection.cursor() as once:  # since DuckDB 2, an unread result keeps its connection busy
                plain = _plain_rows(once.execute(text))
            if plain is not None:
                connection.close()
                return QueryAnswer(plain)
        from calve.statements.duckdb_tables import query_tables

        tables = query_tables(place, connection, named, moments)
        if named or moments:
            _close_off(connection)
        return QueryAnswer(tables.execute(text))
    except duckdb.Error as error:
        raise refused(error) from error


def _close_off(connection: duckdb.DuckDBPyConnection) -> None:
    for setting in _SETTINGS:
        connection.execute(setting)


def _tables(connection: duckdb.DuckDBPyConnection, text: str, asked: Iterable[str]) -> list[FieldPath]:
    known = set(asked)
    try:
        found = [_path(name) for name in sorted(connection.get_table_names(text, qualified=True))]
    except duckdb.BinderException:  # it binds what it can: JOIN ... USING needs the columns of the tables
        found = _parsed_tables(connection, text)
    return [path for path in found if not (len(path.parts) == 1 and path.parts[0].name.upper() in known)]


def _parsed_tables(connection: duckdb.DuckDBPyConnection, text: str) -> list[FieldPath]:
    """The tables that a query names, as DuckDB's parser sees it; names of WITH are not tables."""
    found = connection.execute(f"SELECT json_serialize_sql({quoted_text(text)})").fetchall()
    tables, named_by_with = set[tuple[str, ...]](), set[str]()
    waiting = [json.loads(serialized) for (serialized,) in found]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                parts = (node["catalog_name"], node["schema_name"], node["table_name"])
                tables.add(tuple(part for part in parts if part))
            named_by_with |= {entry["key"].lower() for entry in node.get("cte_map", {}).get("map", ())}
            waiting += node.values()
    chosen = sorted(one for one in tables if len(one) > 1 or one[0].lower() not in named_by_with)
    return [FieldPath(tuple(Identifier(part, quoted=not is_plain(part)) for part in one)) for one in chosen]


def _path(name: str) -> FieldPath:
    """The path of a name that DuckDB wrote, which quotes where it must."""
    found = Cursor(SqlText(name)).field_path("the name of a table")
    return FieldPath(tuple(replace(part, where=None) for part in found.parts))  # its place in the query is unknown


def _table_of(name: str, columns: Columns, lines: list[Line]) -> str:
    """The statement that creates a table with these rows; a parameter would make DuckDB import Arrow."""
    rows = [dict(zip((column for column, _ in columns), line, strict=True)) for line in lines]
    content = quoted_text(json.dumps(rows, default=datetime.isoformat))
    shape = quoted_text(json.dumps([{column: _TYPES[kind] for column, kind in columns}]))
    return f"CREATE TABLE {quoted_name(name)} AS SELECT unnest(from_json_strict({content}, {shape}), max_depth := 2)"


def _plain_rows(found: duckdb.DuckDBPyConnection) -> PlainRows | None:
    """The rows of a result; None if they need Arrow."""
    kinds = [(str(column[0]), str(column[1])) for column in found.description or ()]
    if not all(kind in _NUMBERS or kind in _OTHERS or kind.startswith("DECIMAL(") for _, kind in kinds):
        return None
    rows = found.fetchmany(MOST_PLAIN_ROWS + 1)
    times = [at for at, (_, kind) in enumerate(kinds) if kind == _TIME]
    if len(rows) > MOST_PLAIN_ROWS or any(_is_far(row[at]) for row in rows for at in times):
        return None
    wide = {at for at, (_, kind) in enumerate(kinds) if kind == "HUGEINT"}
    lines = tuple(
        tuple(Decimal(value) if at in wide and value is not None else value for at, value in enumerate(row))
        for row in rows
    )
    return PlainRows(tuple(PlainColumn(name, is_number=kind not in _OTHERS) for name, kind in kinds), lines)


def _is_far(value: Any) -> bool:
    """Whether it is a time that Python does not have: DuckDB returns a text, or Python's first or last time."""
    return value is not None and (not isinstance(value, datetime) or value.year in {MINYEAR, MAXYEAR})


def refused(error: BaseException) -> InvalidInput:
    """The error of DuckDB, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return InvalidInput("DuckDB refuses the query", detail=lines[0] if lines else type(error).__name__)
