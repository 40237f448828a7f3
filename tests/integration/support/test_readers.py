from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.support.readers import Rows, duckdb_rows, spark_iceberg_rows, spark_iceberg_sql

Reader = Callable[..., Rows]
readers = pytest.mark.parametrize("read", [duckdb_rows, spark_iceberg_rows])

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "the name": pa.array(["a", None, "c"]),
        "at": pa.array([0, 1, 2], pa.timestamp("us", tz="UTC")),
        "price": pa.array(["1.50", "2.00", None]).cast(pa.decimal128(10, 2)),
        "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
    }
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("t", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", schema=ROWS.schema)
    table.append(ROWS)
    table.append(ROWS.slice(0, 1))
    catalog.close()
    return table


def by_id(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["id"])


@readers
def test_rows_come_back_as_they_were_written(table: Table, read: Reader) -> None:
    first = ROWS.to_pylist()
    assert by_id(read(table.metadata_location)) == [first[0], *first]


@readers
def test_only_the_columns_asked_for_are_given(table: Table, read: Reader) -> None:
    rows = read(table.metadata_location, columns=["the name", "id"])
    assert by_id(rows)[-1] == {"the name": "c", "id": 3}


@readers
def test_an_older_snapshot_is_read_by_its_id(table: Table, read: Reader) -> None:
    rows = read(table.metadata_location, snapshot_id=table.snapshots()[0].snapshot_id)
    assert by_id(rows) == ROWS.to_pylist()


def test_both_readers_apply_position_deletes() -> None:
    spark_iceberg_sql(
        "CREATE TABLE scratch.ns.deleted (id BIGINT) USING iceberg"
        " TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    spark_iceberg_sql("INSERT INTO scratch.ns.deleted SELECT id FROM range(0, 100, 1, 1)")
    spark_iceberg_sql("DELETE FROM scratch.ns.deleted WHERE id % 3 = 0")
    (delete_files,) = spark_iceberg_sql("SELECT count(*) AS n FROM scratch.ns.deleted.delete_files WHERE content = 1")
    assert delete_files["n"] > 0
    logs = spark_iceberg_sql("SELECT file FROM scratch.ns.deleted.metadata_log_entries ORDER BY timestamp")
    location = logs[-1]["file"]
    kept = {n for n in range(100) if n % 3}
    for read in (duckdb_rows, spark_iceberg_rows):
        assert {row["id"] for row in read(location)} == kept


def test_an_error_of_the_other_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        spark_iceberg_rows(f"{tmp_path}/nowhere.metadata.json")
