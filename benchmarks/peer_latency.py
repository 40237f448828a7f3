"""Both sides of `latency.py`: a folder of Parquet files kept in a table, with commits at intervals, until told to end.

    python benchmarks/peer_latency.py <incoming> <home> <jar> calve|merge <seconds>

`merge` is what one writes without calve: Structured Streaming, a trigger of the interval, and `MERGE INTO` in
`foreachBatch` (Iceberg runtime, merge-on-read). Answers `{}` after its first commit, and the table's metadata file at
the end.
"""

import json
import sys
import time
from pathlib import Path

from peer_merge import merge_into, newest_metadata, session_with_runtime
from pyspark.sql import DataFrame

import calve
from calve.model.spec import Upsert

COLUMNS = ("id", "made")
DDL = "id BIGINT, made BIGINT, op STRING, seq BIGINT"


def run_calve(incoming: Path, home: Path, seconds: float) -> str:
    """Until a line comes."""
    lake = calve.connect(home=home)
    lake.spark(master="local[2]", conf={"spark.driver.memory": "3g"})
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(COLUMNS))
    source = calve.files(incoming, format="parquet", schema=DDL, envelope=envelope)
    into = lake.table("b.orders")
    sink = calve.sink(source, name="orders", into=into, key=["id"], thin_snapshots="off")  # every commit is looked at
    query = sink.start(commit_interval=seconds)
    while not any(commit.changes for commit in query.recent_commits()):
        time.sleep(0.1)
    print("{}", flush=True)
    sys.stdin.readline()
    query.await_caught_up(600)
    query.stop()
    return str(lake.open().load_table("b.orders").metadata_location)


def run_merge(incoming: Path, home: Path, jar: Path, seconds: float) -> str:
    """Until a line comes."""
    spark = session_with_runtime(home, jar)
    modes = ", ".join(f"'write.{m}.mode' = 'merge-on-read'" for m in ("merge", "update", "delete"))
    columns = "id BIGINT NOT NULL, made BIGINT"
    spark.sql(f"CREATE TABLE i.b.orders ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2', {modes})")

    def apply(changes: DataFrame, _number: int) -> None:
        changes.createOrReplaceTempView("changes")
        changes.sparkSession.sql(merge_into("i.b.orders", COLUMNS))

    frames = spark.readStream.schema(DDL).parquet(str(incoming)).writeStream.foreachBatch(apply)
    query = frames.option("checkpointLocation", str(home / "checkpoint")).trigger(processingTime=f"{seconds} seconds")
    running = query.start()
    while not any(progress.numInputRows for progress in running.recentProgress):
        time.sleep(0.1)
    print("{}", flush=True)
    sys.stdin.readline()
    running.processAllAvailable()
    running.stop()
    return newest_metadata(spark, "i.b.orders")


def main() -> None:
    """Run one side."""
    incoming, home, jar, side, seconds = sys.argv[1:]
    if side == "calve":
        table = run_calve(Path(incoming), Path(home), float(seconds))
    else:
        table = run_merge(Path(incoming), Path(home), Path(jar), float(seconds))
    print(json.dumps({"table": table}), flush=True)


if __name__ == "__main__":
    main()
