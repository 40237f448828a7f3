"""Spark's side of `microbatch.py`: Structured Streaming from a folder of Parquet files to nowhere, or to Parquet files.

    python benchmarks/peer_microbatch.py <workload> <home> <unused> noop|parquet

`each` gives one file after the other and waits for it, `backlog` all at once; both answer with seconds per file.
"""

import itertools
import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from workload import COLUMNS, DDL, Workload

from calve.spark.session import embedded_session


def between(progress: list[dict[str, Any]]) -> list[float]:
    """Seconds between the beginnings of batches with rows."""
    begins = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in progress if one["numInputRows"]]
    return [later - earlier for earlier, later in itertools.pairwise(begins)]


def main() -> None:
    """Answer requests from standard input."""
    folder, home, _, sink = sys.argv[1:]
    incoming = Path(home) / "incoming"
    incoming.mkdir(parents=True)
    conf = {"spark.driver.memory": "6g", "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    spark = embedded_session(Path(home) / "spark", master="local[2]", conf=conf)
    _, *files = Workload.at(Path(folder)).files()
    changes = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(incoming)).select(*COLUMNS)
    writer = changes.writeStream.format(sink).option("checkpointLocation", f"{home}/checkpoint")
    query = (writer.option("path", f"{home}/out") if sink == "parquet" else writer).start()
    for line in sys.stdin:
        seconds = []
        if line.strip() == "each":
            for file in files:
                began = time.perf_counter()
                (incoming / file.name).hardlink_to(file)
                query.processAllAvailable()
                seconds.append(time.perf_counter() - began)
        else:
            for file in files:
                (incoming / file.name).hardlink_to(file)
            query.processAllAvailable()
            seconds = between([json.loads(one.json) for one in query.recentProgress])
        rows = sum(one.numInputRows for one in query.recentProgress)
        print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
