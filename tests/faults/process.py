"""A sink in its own process, to be killed: `python -m tests.faults.process HOME FEED [NUMBERS]`.

FEED is `orders` (a source calve drives), `windows` (the same, its checkpoints staged), `stream` (Spark's streaming file
source) or `partitions` (a streaming source with Kafka-like offsets). The process runs until everything the source has
is committed, prints its status as JSON, and exits like the command line. `CALVE_FAULTS` arms failpoints,
`CALVE_TEST_DELETES` and `CALVE_TEST_KEY_INDEX` are options of the sink, `CALVE_TEST_NOTES` is the folder for records of
syncs.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import calve
from calve.clock import Clock
from calve.errors import CalveError
from calve.model.checkpoint import Offsets
from calve.model.spec import Envelope
from calve.pipeline.query import exit_code
from calve.source.generator import Orders
from calve.source.port import Source
from calve.storage.state import StateStore
from tests.faults.where import TABLE, Where
from tests.support.jvm import QUICK
from tests.support.powercut import Disk

SINK = "orders"
GENERATED = frozenset({"orders", "windows", "replay"})
"""Feeds that calve drives itself."""


READS = "reads.txt"


@dataclass(frozen=True)
class Counted:
    """A source that writes down every range that it is read for."""

    definition: Orders
    file: Path

    @property
    def envelope(self) -> Envelope:
        return self.definition.envelope

    def open(self, store: StateStore, clock: Clock) -> Source:
        opened = self.definition.open(store, clock)
        frame = opened.frame

        def counted(spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
            if start != end:  # else it is asked for its columns
                with self.file.open("a") as reads:
                    reads.write(f"{start} {end}\n")
            return frame(spark, start, end)

        opened.frame = counted  # type: ignore[method-assign]
        return opened


def main() -> int:
    home, feed, *numbers = sys.argv[1:]
    if "CALVE_TEST_NOTES" in os.environ:
        Disk(Path(home), Path(os.environ["CALVE_TEST_NOTES"])).install()
    rows, changes, per_checkpoint = (int(n) for n in numbers or ("400", "1600", "250"))
    where = Where.from_environment()
    lake = where.lake(Path(home))
    spark = lake.spark(master="local[2]", conf=QUICK)
    definition = calve.orders(rows=rows, changes=changes, per_checkpoint=per_checkpoint)
    envelope = definition.envelope
    if feed in GENERATED:
        counted = Counted(definition, Path(home) / READS)
        sink = calve.sink(counted, name=SINK, into=lake.table(TABLE), key=["id"])
    else:
        schema = (
            "id BIGINT, customer INT, amount DECIMAL(12,2), status STRING, updated_at TIMESTAMP, op STRING, seq BIGINT"
        )
        if feed == "stream":
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
            frame = reader.parquet(str(Path(home) / "in"))
        else:
            from tests.faults.partitions import register_partitions  # noqa: PLC0415 - Spark 3.5 has no such sources

            register_partitions(spark)
            reader = spark.readStream.format("partitions").schema(schema)
            frame = reader.option("folder", str(Path(home) / "in")).load()
        sink = calve.sink(frame, name=SINK, into=lake.table(TABLE), key=["id"], envelope=envelope)
    deletes = os.environ.get("CALVE_TEST_DELETES", where.deletes)
    sink = sink.options(deletes=deletes, key_index=os.environ.get("CALVE_TEST_KEY_INDEX"))
    try:
        commit, checkpoint = os.environ.get("CALVE_TEST_INTERVALS", "2s 200ms").split()
        windows = {"commit_interval": commit, "checkpoint_interval": checkpoint}
        replay = {"commit_interval": commit, "recovery": "replay"}
        query = sink.start(state=where.state, **{"windows": windows, "replay": replay}.get(feed, {}))
        query.await_caught_up(timeout=float(os.environ.get("CALVE_TEST_TIMEOUT", "200")))
        query.stop()
    except CalveError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "text": str(error)}) + "\n")
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(query.status())) + "\n")
    return exit_code(query)


if __name__ == "__main__":
    sys.exit(main())
