"""calve's side of `upserts.py`: a source that holds what it was told to, one sink, one table."""

import json
import sys
import time
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from workload import CHANGES, COLUMNS, DDL, Workload

import calve
from calve.clock import Clock
from calve.model.checkpoint import Offsets, canonical_offsets
from calve.model.size import SizeHint
from calve.model.spec import Upsert
from calve.state import StateStore


class Batches:
    """Offsets count folders: 1 is the initial load, n + 1 the n-th batch. `released` says how many there are."""

    name = "batches"
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(COLUMNS))

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.released = 0

    def open(self, _store: StateStore, _clock: Clock) -> "Batches":
        return self

    def schema(self, _spark: SparkSession) -> StructType:
        return cast("StructType", StructType.fromDDL(DDL))

    took_all = False

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        del whole
        position = int(start or 0)
        return canonical_offsets(position + 1) if position < self.released else None

    def frame(self, spark: SparkSession, _start: Offsets, end: Offsets) -> DataFrame:
        number = int(end or 0)
        path = self._workload.initial if number == 1 else self._workload.batch(number - 2)
        return spark.read.schema(DDL).parquet(path)

    def contents(self, spark: SparkSession, end: Offsets) -> DataFrame:
        return self.frame(spark, None, end)

    def size(self, _start: Offsets, end: Offsets) -> SizeHint:
        return SizeHint(rows=self._workload.rows if int(end or 0) == 1 else CHANGES)

    def ended(self, _end: Offsets) -> bool:
        return False

    def committed(self, offsets: Offsets) -> None:
        pass


def main() -> None:
    """Answer requests from standard input."""
    folder, home, _, deletes = sys.argv[1:]
    rows, batches = (int(n) for n in Path(folder).name.split("x"))
    source = Batches(Workload(Path(folder), rows, batches))
    lake = calve.connect(home=home)
    lake.spark(master="local[2]", conf={"spark.driver.memory": "6g"})
    warm = calve.sink(calve.orders(rows=100_000, changes=0), name="warm", into=lake.table("b.warm"), key=["id"]).start()
    warm.await_termination()
    sink = calve.sink(source, name="orders", into=lake.table("b.orders"), key=["id"])
    query = sink.options(deletes=deletes).start()
    for line in sys.stdin:
        answer: dict[str, object]
        if line.strip() == "table":
            answer = {"table": lake.open().load_table("b.orders").metadata_location}
        else:
            source.released += 1
            began = time.perf_counter()
            query.await_caught_up()
            answer = {"seconds": time.perf_counter() - began}
        print(json.dumps(answer), flush=True)
    query.stop()


if __name__ == "__main__":
    main()
