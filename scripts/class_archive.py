"""Writes an archive of the classes that Spark loads for a sink: `python scripts/class_archive.py ARCHIVE`.

A JVM that maps it starts in half the time. It fits the Java and the Spark it was made with; any other pair ignores it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import calve
from calve.spark.session import embedded_session

_SECONDS_TO_END = 120


_QUERIES = (
    (
        "SELECT a.status, count(*), sum(a.amount), avg(a.id), min(a.updated_at), max(a.customer) FROM orders a "
        "JOIN orders b ON a.id = b.customer AND a.amount < b.amount GROUP BY a.status HAVING count(*) > 1"
    ),
    (
        "SELECT a.*, b.n FROM orders a LEFT JOIN (SELECT customer, count(*) AS n FROM orders GROUP BY customer) b "
        "ON a.customer <=> b.customer ORDER BY a.id LIMIT 5"
    ),
    "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY updated_at DESC) AS newest FROM orders",
    (
        "SELECT DISTINCT upper(status), CAST(amount AS STRING), date_trunc('DAY', updated_at) FROM orders "
        "WHERE status LIKE 'p%' OR id IN (1, 2) UNION ALL SELECT 'x', '1', current_timestamp()"
    ),
    (
        "SELECT id, from_json(to_json(named_struct('a', id, 'b', array(status))), 'a BIGINT, b ARRAY<STRING>') AS s, "
        "map('k', amount), sha2(status, 256), coalesce(status, 'none'), CASE WHEN id > 3 THEN 1 END FROM orders"
    ),
)
"""What tests ask Spark for besides sinks: joins, totals, windows, nested values."""


def exercise(home: Path, archive: Path) -> None:
    """One sink over a source that calve reads itself and one over a streaming frame, queries, the end of the JVM."""
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}"
    conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": options}
    spark = embedded_session(home, master="local[2]", conf=conf)
    lake = calve.connect(home=str(home))
    orders = calve.orders(rows=200, changes=400, per_checkpoint=300)
    query = calve.sink(orders, name="orders", into=lake.table("shop.orders"), key=["id"]).start()
    query.await_caught_up(timeout=_SECONDS_TO_END)
    query.stop()
    rows = calve.read(spark, lake.table("shop.orders"))
    rows.write.parquet(str(home / "in"))
    stream = spark.readStream.schema(rows.schema).parquet(str(home / "in"))
    query = calve.sink(stream, name="log", into=lake.table("shop.log"), key=["id"]).start()
    query.await_caught_up(timeout=_SECONDS_TO_END)
    query.stop()
    rows.createOrReplaceTempView("orders")
    for text in _QUERIES:
        spark.sql(text).toArrow()
    for kind in ("json", "csv"):
        flat = rows.select("id", "status")
        flat.write.format(kind).save(str(home / kind))
        spark.read.schema(flat.schema).format(kind).load(str(home / kind)).repartition(2, "id").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).count()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the archive is whole when the JVM has ended
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_SECONDS_TO_END)


def main() -> None:
    """Make the archive beside its place and move it there when it is whole."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        archive = Path(folder) / target.name
        exercise(Path(folder) / "home", archive)
        archive.replace(target)


if __name__ == "__main__":
    main()
