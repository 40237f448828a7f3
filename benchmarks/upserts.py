"""Seconds per batch of 100,000 changes on tables of 1M and 5M rows: calve beside `MERGE INTO` (merge-on-read).

    python benchmarks/upserts.py [--rows 1000000 5000000] [--batches 10]

calve deletes by position and, in a second table, by equality. Each system runs in a process of its own with its own
local Spark; they take turns batch by batch, so that noise of the machine falls on all. The tables are then read by
Spark with the Iceberg runtime, and those with position deletes by DuckDB and pyiceberg as well, beside the table of
`MERGE INTO`; all are checked against the reference.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
from pyiceberg.table import StaticTable
from workload import Workload, make_workload

ROOT = Path(__file__).resolve().parents[1]
JAR = ROOT / ".cache" / "jars" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
PEERS = {
    "positions": ("peer_calve.py", "position"),
    "equality": ("peer_calve.py", "equality"),
    "merge": ("peer_merge.py",),
}


class Peer:
    """A process that applies one batch when told to, and says how long it took."""

    def __init__(self, script: Sequence[str], workload: Workload, home: Path) -> None:
        name, *more = script
        command = [sys.executable, str(Path(__file__).parent / name), str(workload.folder), str(home), str(JAR)]
        self._process = subprocess.Popen([*command, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("pipes were asked for")
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, request: str) -> dict[str, Any]:
        """Send a line, wait for the answer."""
        self._requests.write(request + "\n")
        self._requests.flush()
        for line in self._answers:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{request}: the process ended with {self._process.wait()}")

    def end(self) -> None:
        """Let it finish."""
        self._requests.close()
        self._process.wait(60)


def run_size(rows: int, batches: int) -> dict[str, list[float]]:
    """Batch times of all systems on one size, after checking what they wrote."""
    workload = make_workload(ROOT / ".cache" / "bench", rows, batches)
    with tempfile.TemporaryDirectory() as folder:
        peers = {name: Peer(script, workload, Path(folder) / name) for name, script in PEERS.items()}
        loads = {name: peer.ask("load")["seconds"] for name, peer in peers.items()}
        print(f"{rows:>10,} rows  initial load " + "  ".join(f"{n} {s:.2f} s" for n, s in loads.items()), flush=True)
        times: dict[str, list[float]] = {name: [] for name in PEERS}
        for number in range(batches):
            for name, peer in peers.items():
                times[name].append(peer.ask(f"batch {number}")["seconds"])
        tables = {name: peer.ask("table")["table"] for name, peer in peers.items()}
        reads = _Reads(peers["merge"], workload.reference(batches))
        for _ in range(3):  # in turns, so that none is always the one that finds everything cold
            for name, table in tables.items():
                reads.take(name, table)
        for line in reads.lines():
            print(f"{rows:>10,} rows  {line}", flush=True)
        for peer in peers.values():
            peer.end()
    return times


class _Reads:
    """Scans of the tables by other engines, timed and checked."""

    def __init__(self, spark: Peer, expected: tuple[int, float]) -> None:
        self._spark, self._expected = spark, expected
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def take(self, name: str, table: str) -> None:
        """One scan by every engine; DuckDB and pyiceberg do not read equality deletes, or not in time."""
        engines = {"Spark": self._read_by_spark} | ({} if name == "equality" else OTHERS)
        for engine, read in engines.items():
            began = time.perf_counter()
            count, total = read(table)
            self._seconds.setdefault((name, engine), []).append(time.perf_counter() - began)
            if (count, round(total, 2)) != (self._expected[0], round(self._expected[1], 2)):
                raise SystemExit(f"{name} is wrong by {engine}: {count} rows, {total}; expected {self._expected}")

    def lines(self) -> Iterator[str]:
        """What was measured."""
        for (name, engine), (first, *later) in self._seconds.items():
            yield f"{name:9} read by {engine:9} first {first:.2f} s, then {min(later):.2f} s"

    def _read_by_spark(self, table: str) -> tuple[int, float]:
        answer = self._spark.ask(f"read {table}")
        return int(answer["rows"]), float(answer["sum"])


def _read_by_duckdb(table: str) -> tuple[int, float]:
    with duckdb.connect(":memory:") as connection:
        for name in ("avro", "iceberg"):
            folder = Path(str(files(f"duckdb_extension_{name}")), f"extensions/v{duckdb.__version__}")
            connection.execute(f"LOAD '{folder / f'{name}.duckdb_extension'}'")
        found = connection.execute("SELECT count(*), sum(amount) FROM iceberg_scan(?)", [table]).fetchone()
    if found is None:
        raise RuntimeError("an aggregate has a row")
    return int(found[0]), float(found[1])


def _read_by_pyiceberg(table: str) -> tuple[int, float]:
    found = StaticTable.from_metadata(table).scan(selected_fields=("amount",)).to_arrow()
    return found.num_rows, float(pc.sum(found["amount"]).as_py())


OTHERS = {"DuckDB": _read_by_duckdb, "pyiceberg": _read_by_pyiceberg}


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--batches", type=int, default=10)
    options = parser.parse_args()
    medians: dict[int, dict[str, float]] = {}
    for rows in options.rows:
        times = run_size(rows, options.batches)
        medians[rows] = {name: statistics.median(t) for name, t in times.items()}
        for name, series in times.items():
            print(
                f"{rows:>10,} rows  {name:9} median {statistics.median(series):.2f} s  {[round(t, 2) for t in series]}"
            )
        for name in ("positions", "equality"):
            ratio = medians[rows]["merge"] / medians[rows][name]
            print(f"{rows:>10,} rows  calve by {name} is {ratio:.1f}x as fast as MERGE INTO", flush=True)
    if len(medians) > 1:
        small, large = min(medians), max(medians)
        for name in ("positions", "equality"):
            flat = medians[large][name] / medians[small][name]
            print(f"calve by {name} on {large:,} rows takes {flat:.2f}x of what it takes on {small:,}")


if __name__ == "__main__":
    main()
