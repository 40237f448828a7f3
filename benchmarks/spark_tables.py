"""Tables that reads are measured on, in one Spark with the Iceberg runtime: of a sink of calve, and of `MERGE INTO`."""

import re
from pathlib import Path

from peer_merge import MERGE
from pyspark.sql import SparkSession
from upserts import JAR, Peer
from workload import COLUMNS, Workload

import calve
from calve.catalog.connect import connect_embedded
from calve.lake import TableRef
from calve.spark.session import embedded_session

_DDL = "id BIGINT NOT NULL, customer INT, amount DOUBLE, status STRING, updated TIMESTAMP"


def session_with_runtime(home: Path, warehouse: Path | None = None) -> SparkSession:
    """A local Spark with the Iceberg runtime; `i` is a catalog of the runtime, with a new warehouse or this one."""
    conf = {
        "spark.driver.memory": "6g",
        "spark.jars": str(JAR),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.i": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.i.type": "hadoop",
        "spark.sql.catalog.i.warehouse": (warehouse or home / "hadoop").as_uri(),
    }
    return embedded_session(home / "spark", master="local[2]", conf=conf)


def table_of_sink(workload: Workload, home: Path, deletes: str) -> tuple[TableRef, int]:
    """Written by a sink in a process of its own; with the snapshot before the first batch."""
    peer = Peer.of(("peer_calve.py", deletes, "auto"), workload, home)
    peer.ask("load")
    ref = calve.connect(home=home).table("b.orders")
    loaded = ref.lake.open().load_table(str(ref)).metadata.current_snapshot_id
    for number in range(workload.batches):
        peer.ask(f"batch {number}")
    peer.ask("table")
    peer.end()
    assert loaded is not None
    return ref, loaded


def table_of_merge(
    spark: SparkSession, workload: Workload, home: Path, *, merge_on_read: int | None = None
) -> tuple[TableRef, int]:
    """`MERGE INTO` in the catalog of the runtime, registered in one of calve's; with the snapshot before the batches.

    By copy-on-write or, with the format version of `merge_on_read`, by delete files or vectors.
    """
    modes = [f"'write.{m}.mode' = 'merge-on-read'" for m in ("merge", "update", "delete")]
    properties = [f"'format-version' = '{merge_on_read}'", *modes] if merge_on_read else ["'format-version' = '2'"]
    spark.sql("DROP TABLE IF EXISTS i.b.orders")
    spark.sql(f"CREATE TABLE i.b.orders ({_DDL}) USING iceberg TBLPROPERTIES ({', '.join(properties)})")
    spark.sql("ALTER TABLE i.b.orders SET IDENTIFIER FIELDS id")
    spark.read.parquet(workload.initial).select(*COLUMNS).writeTo("i.b.orders").append()
    loaded = spark.sql("SELECT max_by(snapshot_id, committed_at) AS id FROM i.b.orders.snapshots").first()
    for number in range(workload.batches):
        spark.read.parquet(workload.batch(number)).createOrReplaceTempView("changes")
        spark.sql(MERGE)
    assert loaded is not None
    return _registered(spark, home), int(loaded.id)


def _registered(spark: SparkSession, home: Path) -> TableRef:
    """The table of the runtime's catalog, in one of calve's."""
    files = [row.file for row in spark.sql("SELECT file FROM i.b.orders.metadata_log_entries").collect()]
    newest = max(files, key=lambda file: int(re.findall(r"v(\d+)\.", file)[-1]))
    catalog = connect_embedded(home)
    catalog.create_namespace("b")
    catalog.register_table("b.orders", f"file://{newest.removeprefix('file:')}")
    catalog.close()
    return calve.connect(home=home).table("b.orders")
