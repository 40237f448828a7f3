"""Seconds to read the last changes of a table: calve.changes beside a diff of two scans and Spark's changelog view.

    python benchmarks/changes.py [--rows 5000000 20000000] [--batches 10] [--changes 10000] [--runs 5] [--view [500000]]

The table is that of a sink, after an initial load and `batches` batches of `changes` changes; the range is all of the
batches. Updates are spread over the whole table, and clustered in neighboring keys. calve reads keys and new rows only,
then before images as well. The diff is made by Spark with the Iceberg runtime: two scans, joined by key. One scan is
that of all columns, by calve. All are in the same Spark, in turns, and must find the same changes. The changelog view
refuses tables with delete files: with `--view` both read a table of so many rows that three times `MERGE INTO` changed
by copy-on-write, which writes most of the table every time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import DATA, JAR, Case, Recording, add_arguments, recording
from peer_merge import session_with_runtime
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark_tables import table_of_merge, table_of_sink
from workload import COLUMNS, Workload, make_workload

import calve
from calve.lake import TableRef

TITLES = {
    "changes": "calve.changes",
    "before images": "calve.changes, with before images",
    "diff": "diff of two scans",
    "changelog view": "Spark's changelog view",
}
"""In the report."""
_VIEW_ROWS, _VIEW_BATCHES = 500_000, 3
_AFTER = ("insert", "update_postimage")


def diff(spark: SparkSession, ref: TableRef, since: int) -> DataFrame:
    """Two scans by the Iceberg runtime, joined by key; the new rows, and nulls for deleted ones."""
    location = ref.lake.open().load_table(str(ref)).metadata_location
    reader = spark.read.format("iceberg")
    old = reader.option("versionAsOf", str(since)).load(location).select(F.struct(*COLUMNS).alias("o"))
    new = spark.read.format("iceberg").load(location).select(F.struct(*COLUMNS).alias("n"))
    joined = old.join(new, F.col("o.id") == F.col("n.id"), "full_outer").where(~F.col("o").eqNullSafe(F.col("n")))
    return joined.select(*(F.col(f"n.{name}").alias(name) for name in COLUMNS))


def view(spark: SparkSession, since: int) -> DataFrame:
    """Spark's changelog view, net; the rows after."""
    spark.sql(
        "CALL i.system.create_changelog_view(table => 'b.orders', changelog_view => 'seen', net_changes => true, "
        f"options => map('start-snapshot-id', '{since}'))"
    )
    return spark.table("seen").where("_change_type = 'INSERT'").select(*COLUMNS)


def finger(make_frame: Callable[[], DataFrame]) -> tuple[float, tuple[int, int]]:
    """Seconds to read all columns of a frame, planning included; the rows with a key after, and a hash of them."""
    began = time.perf_counter()
    frame = make_frame()  # calve plans here, the Iceberg runtime for the most part later
    hashed = F.sum(F.when(F.col("id").isNotNull(), F.xxhash64(*COLUMNS).cast("decimal(38,0)")))
    row = frame.agg(F.count("id"), hashed).first()
    assert row is not None
    return time.perf_counter() - began, (int(row[0]), int(row[1] or 0))


def compare(name: str, ways: dict[str, Callable[[], DataFrame]], runs: int, same: set[str]) -> dict[str, list[float]]:
    """Print the median of each way, after one run that warms all; ways of `same` must agree. All times."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(runs + 1):
        found = {}
        for way in sorted(ways, reverse=turn % 2 == 1):
            seconds, found[way] = finger(ways[way])
            times[way].append(seconds)
        assert len({found[way] for way in same & found.keys()}) == 1, found
    medians = _medians(times)
    for way, taken in times.items():
        print(f"{name}  {way:14} {medians[way]:6.2f} s ({min(taken[1:]):.2f} to {max(taken[1:]):.2f})", flush=True)
    return times


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {way: statistics.median(taken[1:]) for way, taken in times.items()}


def _record(results: Recording, workload: Workload, kind: str, times: dict[str, list[float]], peer: str) -> None:
    """Keep all runs but the first, which warms all."""
    name = f"{workload.batches} x {workload.changes:,} changes of {workload.rows:,} rows, {kind}"
    for way, (_, *later) in times.items():
        results.add(Case(name, "s", peer, "all ways find the same changes"), TITLES.get(way, way), later)


def run_sink(spark: SparkSession, workload: Workload, home: Path, results: Recording, runs: int) -> None:
    """The table of a sink."""
    kind = "clustered" if workload.span else "spread"
    name = f"{workload.rows:>10,} rows, {kind:9}"
    ref, since = table_of_sink(workload, home, "position")

    def after(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("_change_type").isin(*_AFTER)).select(*COLUMNS)

    times = compare(
        name,
        {
            "changes": lambda: after(calve.changes(spark, ref, since=since)),
            "before images": lambda: after(calve.changes(spark, ref, since=since, before=True)),
            "diff": lambda: diff(spark, ref, since),
            "one scan": lambda: calve.read(spark, ref),
        },
        runs,
        {"changes", "before images", "diff"},
    )
    _record(results, workload, kind, times, TITLES["diff"])
    took = _medians(times)
    print(
        f"{name}  changes / diff {took['changes'] / took['diff']:.3f}; "
        f"before images / one scan {took['before images'] / took['one scan']:.2f}; "
        f"before images / diff {took['before images'] / took['diff']:.3f}",
        flush=True,
    )


def run_view(spark: SparkSession, workload: Workload, home: Path, results: Recording, runs: int) -> None:
    """A copy-on-write table, beside Spark's changelog view."""
    name = f"{workload.rows:>10,} rows, rewritten"
    ref, since = table_of_merge(spark, workload, home)

    def after() -> DataFrame:
        found = calve.changes(spark, ref, since=since)
        return found.where(F.col("_change_type").isin(*_AFTER)).select(*COLUMNS)

    ways = {"changes": after, "changelog view": lambda: view(spark, since)}
    times = compare(name, ways, runs, set(ways))
    _record(results, workload, "rewritten", times, TITLES["changelog view"])
    took = _medians(times)
    print(f"{name}  changes / changelog view {took['changes'] / took['changelog view']:.3f}", flush=True)


def main() -> None:
    """Make the tables, then read their changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[5_000_000])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--view", type=int, nargs="?", const=_VIEW_ROWS, help="rows of the table of the view")
    add_arguments(parser)
    options = parser.parse_args()
    with recording("changes", "Reading what changed", options) as results, tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        spark = session_with_runtime(home, JAR)
        for rows in options.rows:
            for span in (0, 2 * options.changes):
                workload = make_workload(DATA, rows, options.batches, options.changes, span)
                run_sink(spark, workload, home / f"{rows}-{span}", results, options.runs)
        if options.view:
            workload = make_workload(DATA, options.view, min(options.batches, _VIEW_BATCHES), options.changes)
            run_view(spark, workload, home / "view", results, options.runs)
        spark.stop()


if __name__ == "__main__":
    main()
