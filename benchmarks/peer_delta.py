"""Delta Lake's side of `apply.py`: `MERGE INTO` in Spark with Delta, deletion vectors on.

    python benchmarks/peer_delta.py <workload> <home> <jars, with commas> [<column>]

`copy <folder>` writes all rows as Parquet, to be checked by another engine.
"""

import json
import sys
import time
from pathlib import Path

from peer_merge import merge_into
from workload import Workload

from calve.spark.session import embedded_session


def main() -> None:
    """Answer requests from standard input."""
    folder, home, jars, *partition = sys.argv[1:]
    workload, table = Workload.at(Path(folder)), f"delta.`{home}/orders`"
    conf = {
        "spark.driver.memory": "6g",
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",  # for a small log; the default of 50 is for large ones
    }
    spark = embedded_session(Path(home) / "spark", master="local[2]", conf=conf)
    by = f"PARTITIONED BY ({partition[0]})" if partition and partition[0] else ""
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    for name in (table, f"delta.`{home}/warm`"):
        spark.sql(f"CREATE TABLE {name} ({workload.table_ddl}) USING delta {by} {properties}")
    initial = spark.read.parquet(workload.initial).select(*workload.columns)
    initial.limit(100_000).write.format("delta").mode("append").save(f"{home}/warm")
    for line in sys.stdin:
        began = time.perf_counter()
        answer: dict[str, object] = {}
        match line.split():
            case ["load"]:
                initial.write.format("delta").mode("append").save(f"{home}/orders")
            case ["batch", number]:
                spark.read.parquet(workload.batch(int(number))).createOrReplaceTempView("changes")
                spark.sql(merge_into(table, workload.columns))
            case ["copy", target]:
                spark.table(table).write.parquet(target)
            case ["query", _, *words]:
                spark.table(table).createOrReplaceTempView("orders")
                answer["rows"] = len(spark.sql(" ".join(words)).collect())
        print(json.dumps(answer | {"seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
