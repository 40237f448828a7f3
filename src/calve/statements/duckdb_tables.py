"""Tables of a DuckDB query, read by calve with deletes applied, and results as Arrow.

DuckDB asks for the columns that it needs and passes the conditions that it can pass.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from calve.definitions.workplace import Workplace
from calve.errors import CalveError, InvalidInput
from calve.reader.local import LocalRead, read_here
from calve.sql.names import FieldPath, Identifier, quoted_name
from calve.statements.duckdb_query import refused
from calve.statements.moments import TableMoment
from calve.statements.tables import table_named

BATCH_ROWS = 65_536


def query_tables(
    place: Workplace, connection: duckdb.DuckDBPyConnection, named: Iterable[FieldPath], moments: Iterable[TableMoment]
) -> "QueryTables":
    """Make tables known to DuckDB, each at the snapshot that is current now, or at its moment."""
    tables = QueryTables(connection)
    for moment in moments:
        past = read_here(table_named(place, moment.path).ref, **moment.at)
        tables.add(FieldPath((Identifier(moment.alias),)), ScannedTable(past, tables.failures))
    for path in named:
        tables.add(path, ScannedTable(read_here(table_named(place, path).ref), tables.failures))
    return tables


class QueryTables:
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

    def execute(self, text: str) -> "ArrowResult":
        """Execute the query. Raises CalveError of a read, duckdb.Error."""
        with self.failures:
            found = self._connection.sql(text).to_arrow_reader(BATCH_ROWS)
            return ArrowResult(self._connection, found, self.failures)


class Failures:
    """The first error of a read, raised as it was at the end of the context: DuckDB keeps only its text."""

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
class ArrowResult:
    """The rows of a query; the connection lives as long as they are read."""

    connection: duckdb.DuckDBPyConnection
    reader: pa.RecordBatchReader
    failures: Failures

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.reader.schema

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, at most `limit` of them."""
        left = limit
        try:
            with self.failures:
                for batch in self.reader:
                    piece = batch if left is None else batch.slice(0, left)
                    if piece.num_rows:
                        yield piece
                    left = None if left is None else left - piece.num_rows
                    if left == 0:
                        return
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise refused(error) from error
        finally:
            self.connection.close()
