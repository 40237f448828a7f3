"""Measures what `compaction_costs.py` predicts: full reads of a real table while it is changed and compacted.

A table is loaded, changed by uniform updates, and compacted when the default policy says so, with the clock of the
prediction. In between, engines read all of it. A ratio is that to the table after a first compaction of everything, and
the mean over all looks is comparable to the prediction of the model for the same files. Times of engines in this
process are CPU seconds, so other work on the machine matters little; those of Spark are wall clock. The least of
several reads counts.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import JAR
from peer_merge import session_with_runtime
from peer_reader import duckdb_with_iceberg
from pyiceberg.table import Table
from pyspark.sql import SparkSession

import calve
from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds
from calve.iceberg.planning.compaction_cost import read_ratio
from calve.iceberg.planning.compaction_groups import AUTOMATIC, BY_HAND, CompactionPolicy
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.snapshot.compaction import CompactionOwner
from calve.maintain.compact import CompactionScope, Compactor
from calve.maintain.convert import ConversionTools
from calve.model.spec import SinkSpec
from calve.reader.local import read_here
from tests.support.keyed import no_session
from tests.support.runs import NAME, Run, spec_of
from tests.unit.iceberg.sample import SetClock

READS = 3


@dataclass(frozen=True)
class Measured:
    """What is measured."""

    rows: int
    batch: int
    """Changes of a batch."""
    batches: int
    seconds: float
    """Between two batches, by the clock of the policy."""
    every: int
    """Batches between two looks."""
    spark: bool
    """Whether Spark with the Iceberg runtime reads, too."""


def measure(version: int, what: Measured, look_every: int, target: int) -> None:
    """Run one stream into a table of this format version, and print a line for each look and one for their means."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="calve-reads-") as folder:
        home, clock = Path(folder), SetClock()
        spec: SinkSpec = spec_of("s", format_version=version)
        run = Run(home, spec, clock=clock)
        owner = CompactionOwner(spec.sink_id, lambda: run.run.state.fence)
        tools = ConversionTools(no_session, clock, RandomIds())
        compactor = Compactor(connect_embedded(home), CompactionScope(NAME), tools, owner=owner)
        spark = session_with_runtime(home / "runtime", JAR) if what.spark else None
        engines = _engines(home, spark)
        run.commit({key: f"{rng.random():.12f}" for key in range(what.rows)})
        run.commit({0: "so that a file is written again"})
        assert _compact(compactor, BY_HAND)
        for read in engines.values():
            read(run.now)  # whatever the first read starts is there now
        fresh = {name: _least(read, run.now, what.rows) for name, read in engines.items()}
        shown = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in fresh.items())
        print(f"\nformat version {version}, {what.rows:,} rows; freshly compacted: {shown}")
        print(f"{'batches':>8}{'files':>7}{'deletes':>9}{'predicted':>11}" + "".join(f"{n:>11}" for n in engines))
        ratios: dict[str, list[float]] = {"predicted": [], **{name: [] for name in engines}}
        compactions = 0
        for number in range(1, what.batches + 1):
            run.commit({key: f"{rng.random():.12f}" for key in rng.sample(range(what.rows), what.batch)})
            clock.now += round(1000 * what.seconds)
            if number % look_every == 0:
                compactions += _compact(compactor, AUTOMATIC)
            if number % what.every:
                continue
            table = run.now
            planned = Scan.of(table, AsOf()).plan().files
            size = max(16 << 20, min(target, sum(file.size for file in planned) // 8))
            ratios["predicted"].append(read_ratio(planned, size))
            for name, read in engines.items():
                ratios[name].append(_least(read, table, what.rows) / fresh[name])
            deletes = {delete.id for file in planned for delete in file.deletes}
            last = "".join(f"{values[-1]:>10.2f}x" for values in ratios.values())
            print(f"{number:>8}{len(planned):>7}{len(deletes):>9}{last}", flush=True)
        means = "".join(f"{statistics.mean(values):>10.2f}x" for values in ratios.values())
        print(f"{'mean':>8}{'':>7}{'':>9}{means}   {compactions} compactions")
        if spark is not None:
            spark.stop()


def _compact(compactor: Compactor, policy: CompactionPolicy) -> bool:
    plan = compactor.plan(policy)
    if plan is None:
        return False
    for ready in compactor.rewrite(plan, lambda: None):
        compactor.commit(ready)
    return True


Read = Callable[[Table], tuple[int, float]]
"""A full read; returns the rows that it found, and the seconds that it took."""


def _engines(home: Path, spark: SparkSession | None) -> dict[str, Read]:
    connection = duckdb_with_iceberg()
    ref = calve.connect(home=home).table(str(NAME))

    def by_duckdb(table: Table) -> int:
        query = "SELECT count(*), sum(id), max(v) FROM iceberg_scan(?)"
        found = connection.execute(query, [table.metadata_location]).fetchone()
        assert found is not None
        return int(found[0])

    def by_calve(_: Table) -> int:
        return sum(batch.num_rows for batch in read_here(ref).rows())

    engines = {
        "DuckDB": _timed(by_duckdb, time.process_time),
        "pyiceberg": _timed(lambda table: len(table.scan().to_arrow()), time.process_time),
        "calve": _timed(by_calve, time.process_time),
    }
    if spark is not None:

        def by_spark(table: Table) -> int:
            frame = spark.read.format("iceberg").load(table.metadata_location)
            return int(frame.selectExpr("count(*)", "sum(id)", "max(v)").collect()[0][0])

        engines["Spark"] = _timed(by_spark, time.perf_counter)
    return engines


def _timed(read: Callable[[Table], int], clock: Callable[[], float]) -> Read:
    def timed(table: Table) -> tuple[int, float]:
        began = clock()
        rows = read(table)
        return rows, clock() - began

    return timed


def _least(read: Read, table: Table, expected: int) -> float:
    seconds = []
    for _ in range(READS):
        rows, taken = read(table)
        assert rows == expected, f"found {rows:,} rows of {expected:,}"
        seconds.append(taken)
    return min(seconds)
