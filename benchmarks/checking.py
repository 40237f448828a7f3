"""Whether a table has the rows that the changes say: a digest of all rows and columns, by DuckDB.

DuckDB does not read equality deletes, so it gets the files of such a table, with their sequence numbers, and joins them
by hand, as the specification says: a delete of a key applies to rows of files with a smaller sequence number, a delete
of a position to one row. That takes one join, where readers compare the rows of each file with every later delete.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
from peer_reader import duckdb_with_iceberg
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import StaticTable
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


def digest_of_keyed(table: str, key: str = "id") -> Digest:
    """Of an Iceberg table without partitions whose equality deletes name a key, by its metadata file."""
    opened = StaticTable.from_metadata(table)
    snapshot, field = opened.current_snapshot(), opened.schema().find_field(key).field_id
    if snapshot is None or opened.spec().fields:
        raise SystemExit(f"{table} is empty or has partitions: its deletes cannot be joined by hand")
    files: dict[DataFileContent, dict[str, int]] = {content: {} for content in DataFileContent}
    for manifest in snapshot.manifests(opened.io):
        for entry in manifest.fetch_manifest_entry(opened.io, discard_deleted=True):
            file = entry.data_file
            other = file.content is DataFileContent.EQUALITY_DELETES and file.equality_ids != [field]
            if other or file.file_format is not FileFormat.PARQUET or entry.sequence_number is None:
                raise SystemExit(f"{file.file_path} cannot be joined by hand")
            files[file.content][file.file_path.removeprefix("file:")] = entry.sequence_number
    with duckdb.connect(":memory:") as connection:
        numbers = [pair for known in files.values() for pair in known.items()]
        paths, sequences = [path for path, _ in numbers], [number for _, number in numbers]
        connection.execute(
            "CREATE TABLE numbers AS SELECT unnest($1) AS filename, unnest($2) AS seq", [paths, sequences]
        )
        keys, places = (files[kind] for kind in (DataFileContent.EQUALITY_DELETES, DataFileContent.POSITION_DELETES))
        _make(connection, "keys", f"{key}, max(seq) AS seq", keys, f"GROUP BY {key}", f"0::BIGINT AS {key}")
        _make(
            *(connection, "places", "replace(file_path, 'file:', '') AS file_path, pos", places),
            *("GROUP BY ALL", "'' AS file_path, 0::BIGINT AS pos"),
        )
        data = _read(list(files[DataFileContent.DATA]), "file_row_number = true")
        live = f"""(SELECT d.* FROM {data} d LEFT JOIN keys k USING ({key})
            ANTI JOIN places p ON p.file_path = d.filename AND p.pos = d.file_row_number
            WHERE k.seq IS NULL OR k.seq <= d.seq)"""
        return _digest(connection, live, COLUMNS)


def _make(
    connection: duckdb.DuckDBPyConnection, name: str, what: str, files: Mapping[str, int], how: str, none: str
) -> None:
    """A table of what some files of deletes say; without files an empty one."""
    rows = f"SELECT {what} FROM {_read(list(files))} {how}" if files else f"SELECT {none}, 0::BIGINT AS seq LIMIT 0"
    connection.execute(f"CREATE TABLE {name} AS {rows}")


def _read(paths: Sequence[str], *options: str) -> str:
    """Rows of files with the sequence number of their file."""
    given = ", ".join([repr(list(paths)), "filename = true", *options])
    return f"(SELECT * FROM read_parquet({given}) JOIN numbers USING (filename))"


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
