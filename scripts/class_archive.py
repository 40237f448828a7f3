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


def exercise(home: Path, archive: Path) -> None:
    """One sink over a source that calve reads itself and one over a streaming frame, then the end of the JVM."""
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
