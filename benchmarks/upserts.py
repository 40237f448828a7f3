"""Seconds per batch of 100,000 changes on tables of 1M and 5M rows: calve beside `MERGE INTO` (merge-on-read).

    python benchmarks/upserts.py [--rows 1000000 5000000] [--batches 10]

Each system runs in a process of its own with its own local Spark; they take turns batch by batch, so that noise of
the machine falls on both. Both tables are then read by Spark with the Iceberg runtime and checked against the
reference.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workload import Workload, make_workload

ROOT = Path(__file__).resolve().parents[1]
JAR = ROOT / ".cache" / "jars" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"


class Peer:
    """A process that applies one batch when told to, and says how long it took."""

    def __init__(self, script: str, workload: Workload, home: Path) -> None:
        command = [sys.executable, str(Path(__file__).parent / script), str(workload.folder), str(home), str(JAR)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
    """Batch times of both systems on one size, after checking what they wrote."""
    workload = make_workload(ROOT / ".cache" / "bench", rows, batches)
    with tempfile.TemporaryDirectory() as folder:
        peers = {name: Peer(script, workload, Path(folder) / name) for name, script in PEERS.items()}
        loads = {name: peer.ask("load")["seconds"] for name, peer in peers.items()}
        print(f"{rows:>10,} rows  initial load " + "  ".join(f"{n} {s:.2f} s" for n, s in loads.items()), flush=True)
        times: dict[str, list[float]] = {name: [] for name in PEERS}
        for number in range(batches):
            for name, peer in peers.items():
                times[name].append(peer.ask(f"batch {number}")["seconds"])
        for name, peer in peers.items():
            answer = peers["merge"].ask(f"read {peer.ask('table')['table']}")
            expected = workload.reference(batches)
            if (answer["rows"], round(answer["sum"], 2)) != (expected[0], round(expected[1], 2)):
                raise SystemExit(f"{name} is wrong: {answer}, expected {expected}")
        for peer in peers.values():
            peer.end()
    return times


PEERS = {"calve": "peer_calve.py", "merge": "peer_merge.py"}


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
                f"{rows:>10,} rows  {name:6} median {statistics.median(series):.2f} s  {[round(t, 2) for t in series]}"
            )
        ratio = medians[rows]["merge"] / medians[rows]["calve"]
        print(f"{rows:>10,} rows  calve is {ratio:.1f}x as fast as MERGE INTO (goal 8x at 5M)", flush=True)
    if len(medians) > 1:
        small, large = min(medians), max(medians)
        flat = medians[large]["calve"] / medians[small]["calve"]
        print(f"calve on {large:,} rows takes {flat:.2f}x of what it takes on {small:,} (goal: flat)")


if __name__ == "__main__":
    main()
