"""The other side of `upserts.py` and `apply.py`: Spark with the Iceberg runtime, and `MERGE INTO`.

    python benchmarks/peer_merge.py <workload> <home> <jar> [v2|v3|cow] [<column>]

Merge-on-read with format version 2 (position deletes; the default) or 3 (deletion vectors), or copy-on-write; the table
has partitions by a column, or none.
"""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from workload import COLUMNS, Workload

from calve.spark.session import embedded_session


def merge_into(table: str, columns: Sequence[str] = COLUMNS) -> str:
    """The statement that applies the last change of every key in the view `changes`."""
    names = ", ".join(columns)
    newest = "SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) n FROM changes"
    return f"""
MERGE INTO {table} t USING (SELECT {names}, op FROM ({newest}) WHERE n = 1) s ON t.id = s.id
WHEN MATCHED AND s.op = 'd' THEN DELETE
WHEN MATCHED THEN UPDATE SET {", ".join(f"t.{c} = s.{c}" for c in columns)}
WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({names}) VALUES ({", ".join(f"s.{c}" for c in columns)})
"""


MERGE = merge_into("i.b.orders")
VERSIONS = {"v2": 2, "v3": 3, "cow": 2}


def session_with_runtime(home: Path, jar: Path, warehouse: Path | None = None) -> SparkSession:
    """A local Spark with the Iceberg runtime; `i` is a catalog of the runtime's."""
    conf = {
        "spark.driver.memory": "6g",
        "spark.jars": str(jar),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.i": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.i.type": "hadoop",
        "spark.sql.catalog.i.warehouse": (warehouse or home / "hadoop").absolute().as_uri(),
    }
    return embedded_session(home / "spark", master="local[2]", conf=conf)


def main() -> None:
    """Answer requests from standard input."""
    folder, home, jar, *more = sys.argv[1:]
    mode, partition = [*more, "", ""][:2]
    workload = Workload.at(Path(folder))
    spark = session_with_runtime(Path(home), Path(jar))
    how = "copy-on-write" if mode == "cow" else "merge-on-read"
    modes = ", ".join(f"'write.{m}.mode' = '{how}'" for m in ("merge", "update", "delete"))
    properties = f"TBLPROPERTIES ('format-version' = '{VERSIONS[mode or 'v2']}', {modes})"
    by = f"PARTITIONED BY ({partition})" if partition else ""
    columns = workload.table_ddl.replace("id BIGINT", "id BIGINT NOT NULL", 1)
    for name in ("warm", "orders"):
        spark.sql(f"CREATE TABLE i.b.{name} ({columns}) USING iceberg {by} {properties}")
    spark.read.parquet(workload.initial).select(*workload.columns).limit(100_000).writeTo("i.b.warm").append()
    for line in sys.stdin:
        began = time.perf_counter()
        answer: dict[str, object] = {}
        match line.split():
            case ["load"]:
                spark.read.parquet(workload.initial).select(*workload.columns).writeTo("i.b.orders").append()
            case ["batch", number]:
                spark.read.parquet(workload.batch(int(number))).createOrReplaceTempView("changes")
                spark.sql(merge_into("i.b.orders", workload.columns))
            case ["settle"]:
                pass
            case ["table"]:
                answer = {"table": newest_metadata(spark, "i.b.orders")}
            case ["fresh", table]:
                rows = spark.read.format("iceberg").load(table)
                spark.sql(f"CREATE TABLE i.b.fresh ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
                rows.sortWithinPartitions("id").writeTo("i.b.fresh").append()
                answer = {"table": newest_metadata(spark, "i.b.fresh")}
            case ["query", table, *words]:
                spark.read.format("iceberg").load(table).createOrReplaceTempView("orders")
                answer = {"rows": len(spark.sql(" ".join(words)).collect()), "seconds": time.perf_counter() - began}
            case ["read", table]:
                found = spark.read.format("iceberg").load(table)
                answer = dict(found.agg(F.count("*").alias("rows"), F.sum("amount").alias("sum")).collect()[0].asDict())
                answer["seconds"] = time.perf_counter() - began
        print(json.dumps(answer or {"seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


def newest_metadata(spark: SparkSession, table: str) -> str:
    """The metadata file of a table."""
    files = [row.file for row in spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()]
    newest = max(files, key=lambda file: int(re.findall(r"v(\d+)\.", file)[-1]))
    return f"file://{newest.removeprefix('file:')}"


if __name__ == "__main__":
    main()
