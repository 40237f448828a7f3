"""Whether a table has the rows that the changes say: a digest of all rows and columns, by DuckDB.

DuckDB does not read equality deletes, and tables of other formats not at all: Spark copies such tables first.
"""

from collections.abc import Sequence
from pathlib import Path

import duckdb
from harness import JAR
from peer_merge import session_with_runtime
from peer_reader import duckdb_with_iceberg
from workload import COLUMNS, Workload

CHECK = "rows, sum and hash of all rows, by DuckDB"
Digest = tuple[object, ...]
"""Rows, the sum of their amounts, and a sum of hashes of whole rows."""


def digest_of_table(table: str, columns: Sequence[str] = COLUMNS) -> Digest:
    """Of an Iceberg table, by its metadata file."""
    return _digest(duckdb_with_iceberg(), f"iceberg_scan('{table}')", columns)


def digest_of_files(folder: Path, columns: Sequence[str] = COLUMNS) -> Digest:
    """Of Parquet files."""
    with duckdb.connect(":memory:") as connection:
        return _digest(connection, f"read_parquet('{folder}/*.parquet')", columns)


def digest_of_copy(table: str, home: Path) -> Digest:
    """Of an Iceberg table with equality deletes, copied by Spark."""
    spark = session_with_runtime(home, JAR)
    rows = spark.read.format("iceberg").load(table).select(*COLUMNS)
    rows.write.option("compression", "zstd").parquet(str(home / "copy"))
    spark.stop()
    return digest_of_files(home / "copy")


def expected_digest(workload: Workload, *, deletes: bool = True) -> Digest:
    """Of the last change per key; without deletes, those count as upserts."""
    with duckdb.connect(":memory:") as connection:
        rows = f"(FROM {workload.last_changes()} {'WHERE op <> $$d$$' if deletes else ''})"
        return _digest(connection, rows, workload.columns)


def difference(found: Digest, expected: Digest) -> str:
    """Nothing, if they are equal."""
    return "" if found == expected else f"rows, sum and hash are {found}; expected {expected}"


def _digest(connection: duckdb.DuckDBPyConnection, relation: str, columns: Sequence[str]) -> Digest:
    connection.execute("SET TimeZone = 'UTC'")
    found = connection.execute(
        f"SELECT count(*), sum(amount), sum(hash({', '.join(columns)})::HUGEINT) FROM {relation}"
    ).fetchone()
    if found is None:
        raise RuntimeError("an aggregate has a row")
    return found
