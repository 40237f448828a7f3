"""Seconds for a full scan after ten batches of 100,000 changes: calve.read beside Spark with the Iceberg runtime.

    python benchmarks/reads.py [--rows 1000000] [--runs 6]

The same files, in the same Spark, in turns: tables of calve with either kind of deletes, and tables of `MERGE INTO`
with position deletes (v2) and with deletion vectors (v3). Both count the rows and sum a column, and must be right.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from peer_merge import session_with_runtime
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark_tables import table_of_merge, table_of_sink
from upserts import JAR, ROOT
from workload import make_workload

import calve
from calve.lake import TableRef

BATCHES = 10
NEEDED = ["id", "amount"]


def seconds_of(frame: Callable[[], DataFrame], expected: tuple[int, float]) -> float:
    """One scan, planning included, checked."""
    began = time.perf_counter()
    rows, total = frame().agg(F.count("*"), F.sum("amount")).collect()[0]
    taken = time.perf_counter() - began
    assert (rows, round(total, 2)) == (expected[0], round(expected[1], 2)), f"got {rows} and {total}"
    return taken


def compare(spark: SparkSession, name: str, ref: TableRef, expected: tuple[int, float], runs: int) -> None:
    """Print the first and the median of the later scans of both."""
    location = ref.lake.open().load_table(str(ref)).metadata_location
    frames: dict[str, Callable[[], DataFrame]] = {
        "calve": lambda: calve.read(spark, ref, columns=NEEDED),
        "runtime": lambda: spark.read.format("iceberg").load(location),
    }
    times: dict[str, list[float]] = {who: [] for who in frames}
    for turn in range(runs + 1):
        for who in sorted(frames, reverse=turn % 2 == 1):  # neither is always the one that finds everything warm
            times[who].append(seconds_of(frames[who], expected))
    ratio = statistics.median(times["runtime"][1:]) / statistics.median(times["calve"][1:])
    shown = {
        who: f"first {t[0]:.2f} s, then {statistics.median(t[1:]):.2f} s ({min(t[1:]):.2f} to {max(t[1:]):.2f})"
        for who, t in times.items()
    }
    print(f"{name:20} calve {shown['calve']}; runtime {shown['runtime']}; calve is {ratio:.1f}x as fast", flush=True)


def main() -> None:
    """Make the tables, then read them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=6)
    options = parser.parse_args()
    workload = make_workload(ROOT / ".cache" / "bench", options.rows, BATCHES)
    expected = workload.reference(BATCHES)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        own = {deletes: table_of_sink(workload, home / deletes, deletes)[0] for deletes in ("equality", "position")}
        spark = session_with_runtime(home, JAR)
        for deletes, ref in own.items():
            compare(spark, f"calve, {deletes}", ref, expected, options.runs)
        for version, name in ((2, "MERGE INTO, position"), (3, "MERGE INTO, vectors")):
            ref, _ = table_of_merge(spark, workload, home / f"v{version}", merge_on_read=version)
            compare(spark, name, ref, expected, options.runs)
        spark.stop()


if __name__ == "__main__":
    main()
