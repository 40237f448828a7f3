"""pyiceberg's side of `apply.py`: `Table.upsert` of the changed rows and `Table.delete` of the deleted keys, no Spark.

    python benchmarks/peer_pyiceberg.py <workload> <home> <unused> [<column>]

A batch is one transaction. The table has partitions by a column, or none.
"""

import json
import sys
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from workload import Workload


def last_changes(workload: Workload, number: int) -> tuple[pa.Table, list[int]]:
    """Rows to write, and keys to delete."""
    changes = f"'{workload.batch(number)}/*.parquet'"
    newest = f"SELECT id, max_by(op, seq) AS last, max(seq) AS seq FROM {changes} GROUP BY id"
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = f"FROM {changes} JOIN ({newest}) USING (id, seq)"
        upserts = connection.execute(f"SELECT {', '.join(workload.columns)} {rows} WHERE last <> 'd'").to_arrow_table()
        deletes = connection.execute(f"SELECT id {rows} WHERE last = 'd'").fetchall()
    return upserts, [key for (key,) in deletes]


def create(workload: Workload, home: Path, partition: str) -> Table:
    """An empty table in a catalog of its own."""
    home.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("bench", uri=f"sqlite:///{home}/catalog.db", warehouse=(home / "warehouse").as_uri())
    catalog.create_namespace("b")
    table = catalog.create_table("b.orders", pq.read_schema(f"{workload.initial}/p0.parquet").remove_metadata())
    with table.update_schema() as schema:
        for name in ("op", "seq"):
            schema.delete_column(name)
    if partition:
        with table.update_spec() as spec:
            spec.add_identity(partition)
    return table


def main() -> None:
    """Answer requests from standard input."""
    folder, home, _, *more = sys.argv[1:]
    workload = Workload.at(Path(folder))
    table = create(workload, Path(home), more[0] if more else "")
    for line in sys.stdin:
        began = time.perf_counter()
        answer: dict[str, object] = {}
        match line.split():
            case ["load"]:
                table.append(pq.read_table(workload.initial, columns=list(workload.columns)))
            case ["batch", number]:
                upserts, deletes = last_changes(workload, int(number))
                with table.transaction() as transaction:
                    transaction.upsert(upserts, join_cols=["id"])
                    transaction.delete(f"id IN ({', '.join(map(str, deletes))})")
            case ["table"]:
                answer["table"] = table.metadata_location
        print(json.dumps(answer | {"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
