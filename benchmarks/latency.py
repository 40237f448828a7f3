"""Commit latency: from the time stamp in a record to the snapshot that has it, p50 and p99; calve beside `MERGE INTO`.

    PYTHONPATH=. python benchmarks/latency.py [--intervals 1 10] [--seconds 60] [--rate 5000] [--warm 20]

A file with `--rate` / 10 records is put into a folder ten times a second; all its records have the time when it was
made, and one of them a key of its own. Both systems keep a table equal to the records by key, and commit at the
interval: calve with `COMMIT INTERVAL`, Spark's Structured Streaming with a trigger of that time and `MERGE INTO` in
`foreachBatch`. They run one after the other. The latency of a record is the time of the first snapshot with the row
that only its file has, as the table's metadata states, minus its own time: it counts even if a later record of its key
is in the same snapshot. The records of all snapshots count that are committed in `--seconds`: whole intervals, since
the first and the last records of one have other latencies than those between. Snapshots of `--warm` seconds after the
first commit do not count: JVMs are cold. DuckDB compares the table with the last record of every key.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import JAR, Case, Recording, Spread, add_arguments, recording
from peer_reader import duckdb_with_iceberg
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation
from upserts import Peer

SYSTEMS = {"calve": "calve", "merge": "foreachBatch + MERGE INTO"}
KEYS = 20_000
"""Higher keys are those of files: each has one."""
FILES_PER_SECOND = 10


class Producer(threading.Thread):
    """Puts files into a folder until it is told to stop."""

    def __init__(self, folder: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._rate = folder, rate
        self._stopped = threading.Event()
        self._rng = np.random.default_rng(7)

    def run(self) -> None:
        """One file after the other, each complete before it is seen."""
        began, number = time.time(), 0
        while not self._stopped.is_set():
            self._put(number)
            number += 1
            self._stopped.wait(max(0.0, began + number / FILES_PER_SECOND - time.time()))

    def stop(self) -> None:
        """No more files."""
        self._stopped.set()
        self.join()

    def _put(self, number: int) -> None:
        count = self._rate // FILES_PER_SECOND
        made = time.time_ns() // 1_000_000
        keys = self._rng.integers(0, KEYS, count)
        keys[0] = KEYS + number
        table = pa.table(
            {
                "id": keys,
                "made": np.full(count, made),
                "op": np.full(count, "u"),
                "seq": np.arange(count) + number * count,
            }
        )
        hidden = self._folder.parent / "making.parquet"
        pq.write_table(table, hidden, compression="zstd")
        hidden.rename(self._folder / f"{number:06d}.parquet")


def latencies(location: str, times: range, per_file: int) -> tuple[list[float], int]:
    """Seconds of every record that became visible at these times, and the number of commits that made them so."""
    table = StaticTable.from_metadata(location)
    kept = {one.snapshot_id for one in table.metadata.snapshots}
    counted = [one for one in table.metadata.snapshots if one.timestamp_ms in times]
    assert all(one.parent_snapshot_id in kept for one in counted), "snapshots that count have expired"
    seen: set[int] = set()
    found: list[float] = []
    commits = 0
    for snapshot in sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0):
        if snapshot.summary is None or snapshot.summary.operation == Operation.REPLACE:
            continue
        files = [
            entry.data_file.file_path.removeprefix("file://").removeprefix("file:")
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]
        rows = [row for file in files for row in pq.read_table(file, filters=[("id", ">=", KEYS)]).to_pylist()]
        new = {row["id"]: row["made"] for row in rows if row["id"] not in seen}
        seen |= new.keys()
        if new and snapshot.timestamp_ms in times:
            commits += 1
            found += [(snapshot.timestamp_ms - made) / 1000 for made in new.values() for _ in range(per_file)]
    return found, commits


def check(location: str, incoming: Path) -> str:
    """How the table differs from the last record of every key; nothing if it is right."""
    with duckdb.connect(":memory:") as connection:
        last = f"(SELECT id, max_by(made, seq) AS made FROM '{incoming}/*.parquet' GROUP BY id)"
        expected = connection.execute(f"SELECT count(*), sum(hash(id, made)::HUGEINT) FROM {last}").fetchone()
    rows = f"SELECT count(*), sum(hash(id, made)::HUGEINT) FROM iceberg_scan('{location}')"
    found = duckdb_with_iceberg().execute(rows).fetchone()
    return "" if found == expected else f"rows and hash are {found}; expected {expected}"


def measure(results: Recording, case: Case, side: str, interval: float, given: argparse.Namespace) -> None:
    """One system at one interval."""
    with tempfile.TemporaryDirectory(prefix="calve-latency-") as folder:
        home, incoming = Path(folder) / "home", Path(folder) / "incoming"
        incoming.mkdir()
        script = Path(__file__).parent / "peer_latency.py"
        peer = Peer([sys.executable, str(script), str(incoming), str(home), str(JAR), side, str(interval)])
        producer = Producer(incoming, given.rate)
        producer.start()
        peer.answer()
        time.sleep(given.warm)
        began = time.time_ns() // 1_000_000
        time.sleep(given.seconds)
        times = range(began, time.time_ns() // 1_000_000)
        producer.stop()
        location = peer.ask("end")["table"]
        peer.end()
        if wrong := check(location, incoming):
            results.disqualify(case, SYSTEMS[side], wrong)
            return
        seconds, commits = latencies(location, times, given.rate // FILES_PER_SECOND)
        spread = Spread(tuple(seconds))
        percentiles = [spread.percentile(percent) for percent in range(1, 100)]
        p50, p99 = spread.median, spread.percentile(99)
        results.add(case, SYSTEMS[side], percentiles, p50=p50, p99=p99, commits=commits, records=len(seconds))
        print(f"{case.name}: {SYSTEMS[side]}: p50 {p50:.2f} s, p99 {p99:.2f} s, {commits} commits", flush=True)


def main() -> None:
    """Measure, check and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--intervals", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    add_arguments(parser)
    given = parser.parse_args()
    with recording("latency", "Commit latency", given) as results:
        for interval in given.intervals:
            name = f"commits every {interval:g} s, {given.rate:,} changes/s"
            note = "Values are the percentiles of all records."
            case = Case(name, "s", SYSTEMS["merge"], "rows and hash of all rows, by DuckDB", note)
            for side in given.systems:
                measure(results, case, side, interval, given)


if __name__ == "__main__":
    main()
