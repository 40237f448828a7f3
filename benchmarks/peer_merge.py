"""The other side of `upserts.py`: Spark with the Iceberg runtime, `MERGE INTO` with merge-on-read, format v2."""

import json
import re
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from workload import COLUMNS, Workload

from calve.spark.session import embedded_session

NAMES = ", ".join(COLUMNS)
MERGE = f"""
MERGE INTO i.b.orders t USING (
  SELECT {NAMES}, op FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) n FROM changes) WHERE n = 1
) s ON t.id = s.id
WHEN MATCHED AND s.op = 'd' THEN DELETE
WHEN MATCHED THEN UPDATE SET {", ".join(f"t.{c} = s.{c}" for c in COLUMNS)}
WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({NAMES}) VALUES ({", ".join(f"s.{c}" for c in COLUMNS)})
"""


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
    folder, home, jar = sys.argv[1:]
    workload = Workload.at(Path(folder))
    spark = session_with_runtime(Path(home), Path(jar))
    modes = ", ".join(f"'write.{m}.mode' = 'merge-on-read'" for m in ("merge", "update", "delete"))
    columns = "id BIGINT NOT NULL, customer INT, amount DOUBLE, status STRING, updated TIMESTAMP"
    for name in ("warm", "orders"):
        spark.sql(f"CREATE TABLE i.b.{name} ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2', {modes})")
    spark.read.parquet(workload.initial).select(*COLUMNS).limit(100_000).writeTo("i.b.warm").append()
    for line in sys.stdin:
        began = time.perf_counter()
        answer: dict[str, object] = {}
        match line.split():
            case ["load"]:
                spark.read.parquet(workload.initial).select(*COLUMNS).writeTo("i.b.orders").append()
            case ["batch", number]:
                spark.read.parquet(workload.batch(int(number))).createOrReplaceTempView("changes")
                spark.sql(MERGE)
            case ["settle"]:
                pass
            case ["table"]:
                answer = {"table": _newest(spark, "i.b.orders")}
            case ["fresh", table]:
                rows = spark.read.format("iceberg").load(table)
                spark.sql(f"CREATE TABLE i.b.fresh ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
                rows.sortWithinPartitions("id").writeTo("i.b.fresh").append()
                answer = {"table": _newest(spark, "i.b.fresh")}
            case ["read", table]:
                found = spark.read.format("iceberg").load(table)
                answer = dict(found.agg(F.count("*").alias("rows"), F.sum("amount").alias("sum")).collect()[0].asDict())
                answer["seconds"] = time.perf_counter() - began
        print(json.dumps(answer or {"seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


def _newest(spark: SparkSession, table: str) -> str:
    """The metadata file of a table."""
    files = [row.file for row in spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()]
    newest = max(files, key=lambda file: int(re.findall(r"v(\d+)\.", file)[-1]))
    return f"file://{newest.removeprefix('file:')}"


if __name__ == "__main__":
    main()
