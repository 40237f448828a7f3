"""Reads Iceberg tables with engines that are not calve: DuckDB, Spark with the Iceberg runtime, and DataFusion.

All take the location of a table's metadata file and return rows as dicts of plain Python values, unordered. A test
that compares a table with its reference uses at least the first two: each has its own blind spots.

The Spark session of the tests has no Iceberg jar, like that of a user, so the second reader is a separate process
(`iceberg_process.py`), started by the first query and ended by `stop_iceberg_process` at the end of the session.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from datafusion import SessionContext
from pyiceberg.table import StaticTable

ROOT = Path(__file__).resolve().parents[2]
JAR = ROOT / ".cache" / "jars" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
AWS_JARS = ROOT / ".cache" / "servers" / "spark-aws"
ANSWER_SECONDS = 300

Rows = list[dict[str, Any]]


def duckdb_rows(
    metadata_location: str,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    s3: Mapping[str, str] | None = None,
) -> Rows:
    """Read a table with DuckDB, now or as of a snapshot; `s3` are options of DuckDB's secret."""
    selected = "*" if columns is None else ", ".join(f'"{name}"' for name in columns)
    options = "" if snapshot_id is None else f", snapshot_from_id => {snapshot_id}"
    with _duckdb_with_secret(s3) if s3 else _duckdb().cursor() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT {selected} FROM iceberg_scan(?{options})"
        rows: Rows = connection.execute(query, [metadata_location]).to_arrow_table().to_pylist()
    return rows


def in_duckdb(statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last of some statements as a reader pastes them; extensions come from here instead."""
    with _connected_duckdb() as connection:
        return connection.execute(statements.replace("INSTALL iceberg; LOAD iceberg;", "")).fetchall()


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """The database of this process for local files: loading the extensions takes longer than most queries."""
    return _connected_duckdb()


def _duckdb_with_secret(s3: Mapping[str, str]) -> duckdb.DuckDBPyConnection:
    """A database of its own, since a secret is valid for all of a database."""
    connection = _connected_duckdb("httpfs")
    options = ", ".join(f"{name} '{value}'" for name, value in s3.items())
    connection.execute(f"CREATE SECRET (TYPE s3, PROVIDER config, {options})")
    return connection


def _connected_duckdb(*extensions: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    for extension in _duckdb_extensions(*extensions):
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET GLOBAL threads = 2; SET GLOBAL enable_external_file_cache = false")
    return connection


def _duckdb_extensions(*more: str) -> list[Path]:
    """Load the extensions from their PyPI packages: nothing is installed in the user's home."""
    folder = f"extensions/v{duckdb.__version__}"
    return [
        Path(str(files(f"duckdb_extension_{x}")), folder, f"{x}.duckdb_extension") for x in (*more, "avro", "iceberg")
    ]


def datafusion_rows(metadata_location: str) -> Rows:
    """Read a table with DataFusion, through Iceberg's Rust library."""
    context = SessionContext()
    context.register_table("t", StaticTable.from_metadata(metadata_location))
    rows: Rows = context.sql("SELECT * FROM t").to_arrow_table().to_pylist()
    return rows


def spark_iceberg_rows(
    metadata_location: str, columns: Sequence[str] | None = None, snapshot_id: int | None = None
) -> Rows:
    """Read a table with Spark and the Iceberg runtime, now or as of a snapshot."""
    return _ask(("read", metadata_location, None if columns is None else list(columns), snapshot_id))


def spark_iceberg_sql(statement: str) -> Rows:
    """Run a statement, for tables that the tests create with Spark itself: `scratch.<namespace>.<table>`."""
    return _ask(("sql", statement))


def spark_iceberg_open(location: str) -> None:
    """Open a table of Iceberg's `HadoopTables` in its current state, for `spark_iceberg_compact`."""
    _ask(("open", location))


def spark_iceberg_compact(location: str) -> int:
    """Compact a table with the Iceberg runtime, in the state in which it was opened; the number of replaced files."""
    ((count,),) = (row.values() for row in _ask(("compact", location)))
    return int(count)


def spark_rest_rows(properties: Mapping[str, str], table: str) -> Rows:
    """Read a table with Spark and the Iceberg runtime through a REST catalog."""
    if not AWS_JARS.is_dir():
        pytest.skip("AWS's client for Spark is not there: it needs mvn, see scripts/fetch_servers.py")
    return _ask(("rest", dict(properties), table))


class IcebergProcess:
    """The process with Spark and the Iceberg runtime. It ends when its end of the connection does."""

    def __init__(self, jar: Path) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="calve-iceberg-")
        self._connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", "tests.support.iceberg_process", str(theirs.fileno()), str(jar)]
            self._process = subprocess.Popen([*command, self._home.name], cwd=ROOT, pass_fds=[theirs.fileno()])

    def ask(self, request: tuple[Any, ...]) -> Rows:
        """Send one query; its failure is raised here."""
        connection: Connection[Any, Any] = self._connection
        connection.send(request)
        if not connection.poll(ANSWER_SECONDS):
            stop_iceberg_process()  # a late answer must not be taken for that to the next query
            raise TimeoutError(f"no answer within {ANSWER_SECONDS} s to {request}")
        answer = connection.recv()
        if isinstance(answer, str):
            raise RuntimeError(  # noqa: TRY004 - the text is the other process's error
                f"Spark with the Iceberg runtime failed on {request}:\n{answer}"
            )
        with pa.ipc.open_stream(answer) as stream:
            rows: Rows = stream.read_all().to_pylist()
        return rows

    def stop(self) -> None:
        """End the process and remove its files."""
        self._connection.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._home.cleanup()


_running: list[IcebergProcess] = []


def _ask(request: tuple[Any, ...]) -> Rows:
    if not JAR.is_file():
        pytest.skip("the Iceberg runtime for Spark is not there: it needs mvn, see `make integration`")
    if not _running:
        _running.append(IcebergProcess(JAR))
    return _running[0].ask(request)


def stop_iceberg_process() -> None:
    """End the process if one was started."""
    while _running:
        _running.pop().stop()
