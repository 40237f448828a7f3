"""Milliseconds per commit at snapshot 10 and at snapshot 1,000, on the embedded catalog.

    python benchmarks/commits.py [--commits 1000]

Every batch is one data file and one equality-delete file of a single row, so that nothing but the sink's own commit
path takes time: load, belief, attempt, clean-up of records, expiry of snapshots, merged manifests.

The same number of commits is made again without syncing files: the difference is what it costs to survive a power cut.
SQLite syncs its own file in both.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from harness import Case, Recording, add_arguments, recording
from pyiceberg.schema import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StructType

from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds, SystemClock
from calve.commit.checkpoints import CheckpointFiles
from calve.commit.committer import Signals
from calve.commit.journal import Journal
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.schema.arrow import arrow_schema, key_schema, metrics_of
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.index.key_index import KeyIndex
from calve.keylookup.indexed import IndexedSearch
from calve.keylookup.resolver import PositionResolver
from calve.keylookup.search import SparkJobs
from calve.model.checkpoint import CheckpointIdentity
from calve.model.files import Content, FileTotals, WriteResult, WriteTarget, WrittenFile
from calve.model.spec import NoEnvelope, SinkSpec, TableName, WriteOptions
from calve.pipeline.monitor import RunMonitor
from calve.storage.state import LocalState
from calve.watch.status_files import status_file
from calve.write.row_ids import RowIdWriter

AROUND = 10
"""Commits before and after the named one whose median is taken."""


def one_row_file(target: WriteTarget, number: int, content: Content) -> WrittenFile:
    """A file with one key, written as the writers would."""
    schema = Schema.model_validate_json(target.schema_json)
    if content is Content.EQUALITY_DELETES:
        schema = key_schema(schema, target.key_ids)
    arrow = arrow_schema(schema)
    path = Path(target.data_location.removeprefix("file://")) / f"calve-{number:05d}-{int(content)}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"id": number % 1000, "amount": float(number)}
    pq.write_table(pa.Table.from_pylist([{n: values[n] for n in arrow.names}], schema=arrow), path)
    metrics, splits = metrics_of(pq.read_metadata(path), schema, target.table_properties)
    ids = target.key_ids if content is Content.EQUALITY_DELETES else ()
    return WrittenFile(content, f"file://{path}", 1, path.stat().st_size, 0, (), metrics, splits, ids)


def no_session() -> SparkSession:
    """Nothing here is large enough for tasks."""
    raise RuntimeError("no Spark here")


def commit_times(home: Path, commits: int) -> list[float]:
    """Seconds of every commit, in order."""
    return list(islice(commit_on_demand(home), commits))


def commit_on_demand(home: Path) -> Iterator[float]:
    """Commit a batch for every value that is taken: the seconds of that commit."""
    clock, ids, signals = SystemClock(), RandomIds(), Signals()
    spec = SinkSpec("bench", "bench", TableName(("b",), "commits"), ("id",), NoEnvelope())
    schema = iceberg_schema(StructType().add("id", LongType()).add("amount", DoubleType()), spec.key)
    table = IcebergTable(
        load_or_create_table(connect_embedded(home), spec.table, schema, spec.key), "bench", spec.key, clock, ids
    )
    monitor = RunMonitor(spec, clock, status_file(home, spec.name), signals.wake)
    index = IndexedSearch(KeyIndex(LocalState(home / "index"), ids), spec.key_index)
    jobs = SparkJobs(no_session, "bench")
    resolver = PositionResolver(table, jobs, ids, index, RowIdWriter(table, spec.write, jobs))
    outside = RunPorts(clock, ids, monitor, signals, resolver)
    run = SinkRun(spec, table, Journal(LocalState(home / "state")), outside, lambda _: True)
    run.claims.boot()
    run.claims.claim()
    target = table.write_target(WriteOptions())
    for number in count():
        files = tuple(one_row_file(target, number, c) for c in (Content.DATA, Content.EQUALITY_DELETES))
        commit_id = ids.new_id()
        written = CheckpointFiles(
            commit_id, table.write_manifests(files, commit_id), FileTotals.of(WriteResult(files, 1))
        )
        run.checkpoints.record(
            CheckpointIdentity("q", number, run.state.end, str(number)), written, run.state.next_time(clock.now_ms())
        )
        began = time.perf_counter()
        if run.commits.commit_next() is None:
            raise SystemExit("a commit failed")
        yield time.perf_counter() - began


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    add_arguments(parser)
    options = parser.parse_args()
    with recording("commits", "Commits of a long-lived table", options) as results:
        measure(options, results)


def measure(options: argparse.Namespace, results: Recording) -> None:
    """Print the milliseconds and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = commit_times(Path(folder), options.commits + AROUND)
    with tempfile.TemporaryDirectory() as folder, patch.object(os, "fsync", lambda _: None):
        unsynced = commit_times(Path(folder), options.commits + AROUND)
    at = {
        n: statistics.median(seconds[n - AROUND : n + AROUND])
        for n in (10, 100, 300, options.commits)
        if n <= options.commits
    }
    for number, median in at.items():
        print(f"commit {number:>5}: {median * 1000:.1f} ms")
    print(f"ratio of commit {options.commits} to commit 10: {at[options.commits] / at[10]:.2f} (goal <= 1.5)")
    synced, without = statistics.median(seconds), statistics.median(unsynced)
    print(f"median {synced * 1000:.1f} ms, without syncs {without * 1000:.1f} ms: {synced / without:.2f}x")
    for number in at:
        around = [1000 * one for one in seconds[max(0, number - AROUND) : number + AROUND]]
        results.add(Case(f"snapshot {number:,}", "ms"), "calve", around)
    print(f"slowest: {max(seconds) * 1000:.0f} ms, mean {statistics.mean(seconds) * 1000:.1f} ms")


if __name__ == "__main__":
    main()
