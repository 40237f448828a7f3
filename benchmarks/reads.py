"""Seconds for a full scan after ten batches of 100,000 changes: calve.read beside Spark with the Iceberg runtime.

    python benchmarks/reads.py [--rows 1000000] [--runs 6]

The same files, in the same Spark, in turns: tables of calve with either kind of deletes, and tables of `MERGE INTO`
with position deletes (v2) and with deletion vectors (v3). Both count the rows and sum a column, and must be right.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import DATA, JAR, Case, Recording, add_arguments, recording
from peer_merge import session_with_runtime
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark_tables import table_of_merge, table_of_sink
from workload import make_workload

import calve
from calve.lake import TableRef

BATCHES = 10
NEEDED = ["id", "amount"]
RUNTIME, CHECK = "Iceberg runtime", "rows and sum of every scan"


def seconds_of(frame: Callable[[], DataFrame], expected: tuple[int, float]) -> float:
    """One scan, planning included, checked."""
    began = time.perf_counter()
    rows, total = frame().agg(F.count("*"), F.sum("amount")).collect()[0]
    taken = time.perf_counter() - began
    assert (rows, round(total, 2)) == (expected[0], round(expected[1], 2)), f"got {rows} and {total}"
    return taken


def compare(
    spark: SparkSession, case: Case, ref: TableRef, expected: tuple[int, float], results: Recording, runs: int
) -> None:
    """Record the first and the later scans of both."""
    location = ref.lake.open().load_table(str(ref)).metadata_location
    frames: dict[str, Callable[[], DataFrame]] = {
        "calve.read": lambda: calve.read(spark, ref, columns=NEEDED),
        RUNTIME: lambda: spark.read.format("iceberg").load(location),
    }
    times: dict[str, list[float]] = {who: [] for who in frames}
    for turn in range(runs + 1):
        for who in sorted(frames, reverse=turn % 2 == 1):  # neither is always the one that finds everything warm
            times[who].append(seconds_of(frames[who], expected))
    for who, (first, *later) in times.items():
        results.add(case, who, later, first=first)
    ratio = results.ratios(case)["calve.read"].median
    print(f"{case.name}: calve.read is {ratio:.1f}x as fast as the runtime", flush=True)


def main() -> None:
    """Make the tables, then read them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=6)
    add_arguments(parser)
    options = parser.parse_args()
    workload = make_workload(DATA, options.rows, BATCHES)
    expected = workload.reference(BATCHES)
    size = f"{options.rows:,} rows, {BATCHES} batches"
    with (
        recording("reads", "Scans of tables with deletes", options) as results,
        tempfile.TemporaryDirectory() as folder,
    ):
        home = Path(folder)
        own = {deletes: table_of_sink(workload, home / deletes, deletes)[0] for deletes in ("equality", "position")}
        spark = session_with_runtime(home, JAR)
        for deletes, ref in own.items():
            case = Case(f"{size}, {deletes} deletes", "s", RUNTIME, CHECK)
            compare(spark, case, ref, expected, results, options.runs)
        for version, name in ((2, "position deletes"), (3, "vectors")):
            ref, _ = table_of_merge(spark, workload, home / f"v{version}", merge_on_read=version)
            case = Case(f"{size} of MERGE INTO, {name}", "s", RUNTIME, CHECK)
            compare(spark, case, ref, expected, results, options.runs)
        spark.stop()


if __name__ == "__main__":
    main()
