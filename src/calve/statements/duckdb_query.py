"""SELECT in DuckDB's SQL, in this process.

    query ──► names of tables ──► snapshots, chosen now ──► DuckDB ──► rows

calve reads the tables itself, with deletes applied, and DuckDB asks for the columns that it needs and passes the
conditions that it can pass. DuckDB gets no access to files or the network: a query reads only the tables that it names.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from calve.definitions.workplace import Workplace
from calve.errors import CalveError, InvalidInput
from calve.reader.local import LocalRead, read_here
from calve.sql.grammar.cursor import Cursor
from calve.sql.names import FieldPath, Identifier, is_plain, quoted_name
from calve.sql.statements import SelectQuery
from calve.sql.text import SqlText
from calve.statements.answers import QueryAnswer
from calve.statements.information_schema import VIEWS, Columns, Line, lines_of
from calve.statements.moments import replace_moments
from calve.statements.select import replace_names
from calve.statements.tables import table_named

BATCH_ROWS = 65_536
_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}
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
    tables = _Tables(connection)
    try:
        named = _tables(connection, text, {*asked, *(moment.alias.upper() for moment in moments)})
        for name, lines in lines_of(place, asked).items():
            tables.add(FieldPath((Identifier(name),)), _arrow(VIEWS[name][0], lines))
        for moment in moments:
            past = read_here(table_named(place, moment.path).ref, **moment.at)
            tables.add(FieldPath((Identifier(moment.alias),)), ScannedTable(past, tables.failures))
        for path in named:
            tables.add(path, ScannedTable(read_here(table_named(place, path).ref), tables.failures))
        for setting in _SETTINGS:
            connection.execute(setting)
        with tables.told():
            found = connection.execute(text).to_arrow_reader(BATCH_ROWS)
    except duckdb.Error as error:
        raise _refused(error) from error
    return QueryAnswer(_Result(connection, found, tables))


def _tables(connection: duckdb.DuckDBPyConnection, text: str, asked: Iterable[str]) -> list[FieldPath]:
    known = set(asked)
    try:
        found = [_path(name) for name in sorted(connection.get_table_names(text, qualified=True))]
    except duckdb.BinderException:  # it binds what it can: JOIN ... USING needs the columns of the tables
        found = _parsed_tables(connection, text)
    return [path for path in found if not (len(path.parts) == 1 and path.parts[0].name.upper() in known)]


def _parsed_tables(connection: duckdb.DuckDBPyConnection, text: str) -> list[FieldPath]:
    """The tables that a query names, as DuckDB's parser sees it; names of WITH are not tables."""
    found = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
    tables, named_by_with = set[tuple[str, ...]](), set[str]()
    waiting = [json.loads(found[0])] if found else []
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


def _arrow(columns: Columns, lines: list[Line]) -> pa.Table:
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
    values = [list(column) for column in zip(*lines, strict=True)] or [[] for _ in columns]
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)


class _Tables:
    """The tables of one query."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._count = 0
        self._schemas = {"main"}
        self._databases: set[str] = set()
        self.failures = Failures()

    def add(self, path: FieldPath, content: object) -> None:
        """Make a table known under its name."""
        registered = f"calve_table_{self._count}"
        self._count += 1
        self._connection.register(registered, content)
        names = [part.name for part in path.parts]
        if len(names) > 3:  # deeper namespaces: DuckDB's names have three parts
            raise InvalidInput(
                f'table "{path}" cannot be named in a query',
                detail="DuckDB's names have at most three parts.",
                hint="Use the name of its sink.",
            )
        database = names[0] if len(names) == 3 else None
        schema = names[-2] if len(names) > 1 else "main"
        where = [quoted_name(name) for name in names]
        if database is not None and database not in self._databases:
            self._connection.execute(f"ATTACH ':memory:' AS {quoted_name(database)}")
            self._databases.add(database)
        if schema != "main":
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(where[:-1])}")
        main = "temp.main."  # where DuckDB keeps registered objects
        self._connection.execute(f"CREATE VIEW {'.'.join(where)} AS SELECT * FROM {main}{registered}")  # noqa: S608 - names are quoted

    def told(self) -> "Failures":
        """A context in which failures of reads are raised as they were."""
        return self.failures


class Failures:
    """The first error of a read: DuckDB keeps only its text."""

    def __init__(self) -> None:
        self._first: CalveError | None = None
        self._lock = threading.Lock()

    def keep(self, error: CalveError) -> None:
        """Remember an error, unless there is one."""
        with self._lock:
            self._first = self._first or error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and self._first is not None:
            raise self._first from error


class ScannedTable(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table as a dataset of Arrow, which is how DuckDB asks for columns and passes conditions."""

    def __init__(self, reading: LocalRead, failures: Failures) -> None:
        self._reading = reading
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._reading.schema.remove_metadata()

    def scanner(self, columns: list[str] | None = None, filter: ds.Expression | None = None, **_rest: Any) -> "_Scan":  # noqa: A002 - pyarrow's name
        """The rows that meet the condition, with these columns only."""
        return _Scan(self._reading, self._failures, columns, filter)


@dataclass(frozen=True)
class _Scan:
    """One pass over a table."""

    reading: LocalRead
    failures: Failures
    columns: list[str] | None
    condition: ds.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        names = self.reading.schema.names if self.columns is None else self.columns
        schema = self.reading.schema.remove_metadata()
        return pa.schema([schema.field(name).remove_metadata() for name in names])

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        wanted = self.projected_schema
        reading = self.reading.select(self._needed(wanted.names))
        try:
            for batch in reading.rows():
                kept = batch if self.condition is None else batch.filter(self.condition)
                if kept.num_rows:
                    arrays = [kept.column(name) for name in wanted.names]
                    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
        except CalveError as error:
            self.failures.keep(error)
            raise

    def _needed(self, names: list[str]) -> list[str]:
        """The columns to read: a condition may compare others, and Arrow does not tell which."""
        if self.condition is None:
            return names
        text = str(self.condition)
        others = [name for name in self.reading.schema.names if name not in names and name in text]
        return [*names, *others]


@dataclass(frozen=True)
class _Result:
    """The rows of a query; the connection lives as long as they are read."""

    connection: duckdb.DuckDBPyConnection
    reader: pa.RecordBatchReader
    tables: _Tables

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.reader.schema

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, at most `limit` of them."""
        left = limit
        try:
            with self.tables.told():
                for batch in self.reader:
                    piece = batch if left is None else batch.slice(0, left)
                    if piece.num_rows:
                        yield piece
                    left = None if left is None else left - piece.num_rows
                    if left == 0:
                        return
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise _refused(error) from error
        finally:
            self.connection.close()


def _refused(error: BaseException) -> InvalidInput:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return InvalidInput("DuckDB refuses the query", detail=lines[0] if lines else type(error).__name__)
