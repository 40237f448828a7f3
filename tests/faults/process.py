"""A sink in its own process, to be killed: `python -m tests.faults.process HOME FEED [NUMBERS]`.

FEED is `orders` (a source calve drives), `windows` (the same, its checkpoints staged), `stream` (Spark's streaming file
source) or `partitions` (a streaming source with Kafka-like offsets). The process runs until everything the source has
is committed, prints its status as JSON, and exits like the command line. `CALVE_FAULTS` arms failpoints,
`CALVE_TEST_DELETES` and `CALVE_TEST_KEY_INDEX` are options of the sink, `CALVE_TEST_NOTES` is the folder for records of
syncs. With `CALVE_TEST_BESIDE` processes beside this one rewrite files, however few. `CALVE_TEST_AWAITS` is a failpoint
of a thread in the background, and a share of the changes: the source keeps the rest until the point is reached, so that
a sink which is fast today neither ends before nor leaves nothing to later runs.
"""

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import calve
from calve import faults
from calve.clock import Clock
from calve.errors import CalveError
from calve.lake import Lake
from calve.model.checkpoint import Offsets, SizeLimit
from calve.model.spec import Envelope
from calve.pipeline import start
from calve.pipeline.query import Query, exit_code
from calve.pipeline.sink import Sink
from calve.source.generator import Orders, position_of
from calve.source.port import Source
from calve.storage.state import StateStore
from tests.faults.where import TABLE, Where
from tests.support.jvm import QUICK
from tests.support.names import replace_by
from tests.support.powercut import Disk

SINK = "orders"
GENERATED = frozenset({"orders", "windows", "replay"})
"""Feeds that calve drives itself."""


READS = "reads.txt"
AWAITED_SECONDS = 60


def watch(point: str) -> threading.Event:
    """Return an event that is set when a failpoint is reached for the first time."""
    seen, armed = threading.Event(), faults._hook

    def note(reached: str) -> None:
        if reached == point:
            seen.set()
        if armed is not None:
            armed(reached)

    faults.install(note)
    return seen


@dataclass(frozen=True)
class Counted:
    """A source that notes every range that it is read for, and keeps the last ones until a failpoint is reached."""

    definition: Orders
    file: Path
    awaits: str = ""

    @property
    def envelope(self) -> Envelope:
        return self.definition.envelope

    def open(self, store: StateStore, clock: Clock) -> Source:
        opened = self.definition.open(store, clock)
        frame, arrow_records = opened.frame, opened.arrow_records
        point, _, share = self.awaits.partition(" ")
        given = int(float(share or 1) * (self.definition.rows + (self.definition.changes or 0)))
        awaited = watch(point) if point else None

        def note(start: Offsets, end: Offsets) -> None:
            with self.file.open("a") as reads:
                reads.write(f"{start} {end}\n")
            if awaited and position_of(end) >= given:
                awaited.wait(AWAITED_SECONDS)

        def counted(spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
            if start != end:  # else it is asked for its columns
                note(start, end)
            return frame(spark, start, end)

        def counted_in_memory(
            _spark: SparkSession, start: Offsets, end: Offsets, columns: StructType, limit: SizeLimit
        ) -> pa.Table | None:
            note(start, end)
            return arrow_records(_spark, start, end, columns, limit)

        opened.arrow_records = counted_in_memory  # type: ignore[method-assign]
        opened.frame = counted  # type: ignore[method-assign]
        return opened


@dataclass(frozen=True)
class Feed:
    """What a sink is fed with, in this process or in one of its own."""

    home: Path
    name: str
    rows: int = 400
    changes: int = 1600
    per_checkpoint: int = 250

    def start(self, where: Where, options: Mapping[str, str]) -> Query:
        """Start the sink in the Spark session of this process; without one, start that first."""
        lake = where.lake(self.home)
        spark = lake.spark(master="local[2]", conf=QUICK)
        sink = self._sink(spark, lake, options.get("CALVE_TEST_AWAITS", "")).options(
            deletes=options.get("CALVE_TEST_DELETES", where.deletes),
            format_version=where.format_version,
            key_index=options.get("CALVE_TEST_KEY_INDEX"),
            small_files=8,  # so that a few thousand changes are worth a compaction
        )
        commit, checkpoint = options.get("CALVE_TEST_INTERVALS", "2s 200ms").split()
        windows = {"commit_interval": commit, "checkpoint_interval": checkpoint}
        replay = {"commit_interval": commit, "recovery": "replay"}
        return sink.start(state=where.state, **{"windows": windows, "replay": replay}.get(self.name, {}))

    def _sink(self, spark: SparkSession, lake: Lake, awaits: str) -> Sink:
        definition = calve.orders(rows=self.rows, changes=self.changes, per_checkpoint=self.per_checkpoint)
        if self.name in GENERATED:
            counted = Counted(definition, self.home / READS, awaits)
            return calve.sink(counted, name=SINK, into=lake.table(TABLE), key=["id"])
        schema = (
            "id BIGINT, customer INT, amount DECIMAL(12,2), status STRING, updated_at TIMESTAMP, op STRING, seq BIGINT"
        )
        folder = str(self.home / "in")
        if self.name == "stream":
            frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(folder)
        else:
            from tests.faults.partitions import register_partitions  # noqa: PLC0415 - Spark 3.5 has no such sources

            register_partitions(spark)
            frame = spark.readStream.format("partitions").schema(schema).option("folder", folder).load()
        return calve.sink(frame, name=SINK, into=lake.table(TABLE), key=["id"], envelope=definition.envelope)


def main() -> int:
    home, name, *numbers = sys.argv[1:]
    if "CALVE_TEST_BESIDE" in os.environ:
        replace_by(start, "HERE_ROWS", 0)
    if "CALVE_TEST_NOTES" in os.environ:
        Disk(Path(home), Path(os.environ["CALVE_TEST_NOTES"])).install()
    try:
        query = Feed(Path(home), name, *(int(n) for n in numbers)).start(Where.from_environment(), os.environ)
        query.await_caught_up(timeout=200)
        query.stop()
    except CalveError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "text": str(error)}) + "\n")
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(query.status())) + "\n")
    return exit_code(query)


if __name__ == "__main__":
    sys.exit(main())
