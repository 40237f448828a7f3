"""Commit latency: from the time stamp in a record to the snapshot that has it, p50 and p99; calve beside `MERGE INTO`.

    PYTHONPATH=. python benchmarks/latency.py [--intervals 1 10] [--seconds 60] [--rate 5000] [--warm 20]

A file with `--rate` / 10 records is put into a folder ten times a second; each record has the time when it was made.
Both systems keep a table equal to the records by key, and commit at the interval: calve with `COMMIT INTERVAL`, Spark's
Structured Streaming with a trigger of that time and `MERGE INTO` in `foreachBatch`. They run one after the other. The
latency of a record is the time of the snapshot whose data files contain it, as the table's metadata states, minus its
own time. Records of the first `--warm` seconds after the first commit do not count: JVMs are cold. DuckDB compares the
table with the last record of every key.
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
        table = pa.table(
            {
                "id": self._rng.integers(0, KEYS, count),
                "made": np.full(count, made),
                "op": np.full(count, "u"),
                "seq": np.arange(count) + number * count,
            }
        )
        hidden = self._folder.parent / "making.parquet"
        pq.write_table(table, hidden, compression="zstd")
        hidden.rename(self._folder / f"{number:06d}.parquet")


def latencies(location: str, since_ms: int) -> tuple[list[float], int]:
    """Seconds of every record that was made since then, and the number of commits that have them."""
    table = StaticTable.from_metadata(location)
    found: list[float] = []
    commits = 0
    for snapshot in table.metadata.snapshots:
        if snapshot.summary is None or snapshot.summary.operation == Operation.REPLACE:
            continue
        files = [
            entry.data_file.file_path
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]
        made = [
            value
            for file in files
            for value in pq.read_table(file.removeprefix("file://").removeprefix("file:"), columns=["made"])["made"]
            .to_numpy()
            .tolist()
            if value >= since_ms
        ]
        commits += bool(made)
        found += [(snapshot.timestamp_ms - value) / 1000 for value in made]
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
        since = time.time_ns() // 1_000_000
        time.sleep(given.seconds)
        producer.stop()
        location = peer.ask("end")["table"]
        peer.end()
        if wrong := check(location, incoming):
            results.disqualify(case, SYSTEMS[side], wrong)
            return
        seconds, commits = latencies(location, since)
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
