"""A sink in a process of its own, to be killed: `python -m tests.faults.process HOME FEED [NUMBERS]`.

FEED is `orders` (a source calve drives), `windows` (the same, its checkpoints staged), `stream` (Spark's streaming file
source) or `partitions` (a streaming source with Kafka's kind of offsets). The process runs until everything the source
holds is committed, prints its status as JSON, and exits as the command line would. `CALVE_FAULTS` arms failpoints.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import calve
from calve.errors import CalveError
from calve.runtime.query import exit_code
from tests.faults.partitions import register_partitions
from tests.faults.where import TABLE, Where
from tests.support.jvm import QUICK

SINK = "orders"


def main() -> int:
    home, feed, *numbers = sys.argv[1:]
    rows, changes, per_checkpoint = (int(n) for n in numbers or ("400", "1600", "250"))
    where = Where.told()
    lake = where.lake(Path(home))
    spark = lake.spark(master="local[2]", conf=QUICK)
    definition = calve.orders(rows=rows, changes=changes, per_checkpoint=per_checkpoint)
    envelope = definition.envelope
    if feed in {"orders", "windows"}:
        sink = calve.sink(definition, name=SINK, into=lake.table(TABLE), key=["id"])
    else:
        schema = (
            "id BIGINT, customer INT, amount DECIMAL(12,2), status STRING, updated_at TIMESTAMP, op STRING, seq BIGINT"
        )
        if feed == "stream":
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
            frame = reader.parquet(str(Path(home) / "in"))
        else:
            register_partitions(spark)
            reader = spark.readStream.format("partitions").schema(schema)
            frame = reader.option("folder", str(Path(home) / "in")).load()
        sink = calve.sink(frame, name=SINK, into=lake.table(TABLE), key=["id"], envelope=envelope)
    try:
        every = {"commit_interval": "2s", "checkpoint_interval": "200ms"} if feed == "windows" else {}
        query = sink.start(state=where.state, **every)
        query.await_caught_up(timeout=float(os.environ.get("CALVE_TEST_TIMEOUT", "200")))
        query.stop()
    except CalveError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "text": str(error)}) + "\n")
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(query.status())) + "\n")
    return exit_code(query)


if __name__ == "__main__":
    sys.exit(main())
