"""calve's side of `upserts.py`: a source that holds what it was told to, one sink, one table."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyarrow.fs import LocalFileSystem
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from workload import Workload

import calve
from calve.clock import Clock, RandomIds
from calve.iceberg.planning.key_scan import key_target
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.keylookup.index.build import KeyReader
from calve.keylookup.index.key_index import KeyIndex
from calve.keylookup.index.manifest import IndexManifest, IndexOwner
from calve.model.checkpoint import Offsets, SizeHint, SizeLimit, canonical_offsets
from calve.model.health import SourcePosition
from calve.model.spec import Upsert
from calve.reader.key_positions import KeyMemory
from calve.source.files.in_memory import read_parquet
from calve.storage.listing import KnownFile
from calve.storage.state import LocalState, StateFolder, StateStore


class Batches:
    """Offsets count folders: 1 is the initial load, n + 1 the n-th batch. `released` says how many there are."""

    name = "batches"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(workload.columns))
        self.released = 0

    def open(self, _store: StateStore, _clock: Clock) -> "Batches":
        return self

    def schema(self, _spark: SparkSession) -> StructType:
        return cast("StructType", StructType.fromDDL(self._workload.ddl))

    took_all = False
    counts = "batches"
    unread = 0
    least_poll = 0.2

    def begin(self) -> Offsets:
        return None

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        del whole
        position = int(start or 0)
        return canonical_offsets(position + 1) if position < self.released else None

    def position(self, _at: Offsets) -> SourcePosition:
        return SourcePosition()

    def frame(self, spark: SparkSession, _start: Offsets, end: Offsets) -> DataFrame:
        return spark.read.schema(self._workload.ddl).parquet(self._folder(end))

    def arrow_records(
        self, _spark: SparkSession, _start: Offsets, end: Offsets, columns: StructType, limit: SizeLimit
    ) -> pa.Table | None:
        """As a source of files reads them."""
        paths = sorted(Path(self._folder(end)).glob("*.parquet"))
        known = [KnownFile(0, str(path), path.stat().st_size) for path in paths]
        return read_parquet(LocalFileSystem(), known, columns, limit)

    def _folder(self, end: Offsets) -> str:
        number = int(end or 0)
        return self._workload.initial if number == 1 else self._workload.batch(number - 2)

    def contents(self, spark: SparkSession, end: Offsets) -> DataFrame:
        return self.frame(spark, None, end)

    def size(self, _start: Offsets, end: Offsets) -> SizeHint:
        return SizeHint(rows=self._workload.rows if int(end or 0) == 1 else self._workload.changes)

    def ended(self, _end: Offsets) -> bool:
        return False

    def committed(self, offsets: Offsets) -> None:
        pass


def index_of(table: Table, state: StateStore) -> dict[str, object]:
    """How large the key index is, and how long it takes to rebuild it."""
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary]
    name = next((said["calve.key-index"] for said in reversed(summaries) if "calve.key-index" in said), None)
    if name is None:
        return {}
    key_ids = (table.schema().find_field("id").field_id,)
    data = StateFolder(state, "index").read(name) or b""
    manifest = IndexManifest.decoded(name, data, IndexOwner(str(table.metadata.table_uuid), key_ids))
    files = Scan.of(table, AsOf()).plan().files
    reader = KeyReader(key_target(table, key_ids), key_ids, KeyMemory(), os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        KeyIndex(LocalState(Path(folder)), RandomIds()).take_in(reader, files)
        seconds = time.perf_counter() - began
    return {
        "runs": len(manifest.runs),
        "bytes_per_row": manifest.size / manifest.rows,
        "seconds_per_million": seconds / sum(file.rows for file in files) * 1e6,
    }


def shape_of(table: Table) -> dict[str, object]:
    """Where a table is, and what readers have to open."""
    files = Scan.of(table, AsOf()).plan().files
    return {
        "table": table.metadata_location,
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "deletes": sum({d.path: d.rows for file in files for d in file.deletes}.values()),
    }


def main() -> None:
    """Answer requests from standard input."""
    folder, home, _, deletes, key_index, *more = sys.argv[1:]
    maintenance, partition = [*more, "", ""][:2]
    source = Batches(Workload.at(Path(folder)))
    lake = calve.connect(home=home)
    lake.spark(master="local[2]", conf={"spark.driver.memory": "6g"})
    warm = calve.sink(calve.orders(rows=100_000, changes=0), name="warm", into=lake.table("b.warm"), key=["id"]).start()
    warm.await_termination()
    sink = calve.sink(source, name="orders", into=lake.table("b.orders"), key=["id"])
    version = 3 if deletes == "vector" else None
    sink = sink.options(deletes=deletes, key_index=key_index, format_version=version)
    if partition:
        sink = sink.partition_by(partition)
    query = sink.options(maintenance=maintenance or None).start()
    state = lake.state(None, sink.spec.sink_id)
    for line in sys.stdin:
        answer: dict[str, object]
        if line.strip() == "table":
            query.await_maintained(120)
            answer = shape_of(lake.open().load_table("b.orders")) | {"compactions": query.status().compactions}
        elif line.strip() == "settle":
            began = time.perf_counter()
            query.await_maintained(120)
            answer = {"seconds": time.perf_counter() - began}
        elif line.strip() == "maintain":
            began = time.perf_counter()
            calve.compact(lake.table("b.orders"))
            answer = {"seconds": time.perf_counter() - began, **shape_of(lake.open().load_table("b.orders"))}
        elif line.strip() == "index":
            answer = index_of(lake.open().load_table("b.orders"), state)
        else:
            source.released += 1
            began = time.perf_counter()
            query.await_caught_up()
            answer = {"seconds": time.perf_counter() - began}
        print(json.dumps(answer), flush=True)
    query.stop()


if __name__ == "__main__":
    main()
