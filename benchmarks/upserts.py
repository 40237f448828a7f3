"""Seconds per batch of changes on tables of several sizes: calve beside `MERGE INTO` (merge-on-read).

    python benchmarks/upserts.py [--rows 1000000 5000000] [--batches 10] [--changes 100000]
                                 [--systems positions searched vectors equality merge] [--settle] [--fresh]

calve deletes by position (`positions`; `searched`: without a key index), by deletion vectors (`vectors`: a table of
format version 3, whose updated rows keep their ids) and by equality, each in a table of its own.
Each system runs in a process of its own with its own local Spark; they take turns batch by batch, so that noise of the
machine falls on all. Where several do, and with `--settle`, what a sink does beside its batches ends before the next
system has its turn, and its time is printed apart: no other system pays for it. The tables are then read by Spark with
the Iceberg runtime, and those without equality deletes by DuckDB and pyiceberg as well; all are checked against the
reference. `--fresh` reads a copy of the first table, too, that was written at once, and the table with position deletes
once more after `calve maintain` (`by hand`): before, it is what the sink itself makes of it. Of the key index its size
and the time to rebuild it are printed.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness import DATA, JAR, Case, Recording, add_arguments, recording
from peer_reader import read_by_duckdb, read_by_pyiceberg
from workload import CHANGES, Workload, make_workload

PEERS = {
    "positions": ("peer_calve.py", "position", "auto"),
    "searched": ("peer_calve.py", "position", "off"),
    "vectors": ("peer_calve.py", "vector", "auto"),
    "equality": ("peer_calve.py", "equality", "off"),
    "merge": ("peer_merge.py",),
}
NAMES = {
    **{name: f"calve, {name}" for name in PEERS},
    "merge": "MERGE INTO, merge-on-read",
    "by hand": "calve, after maintain",
    "fresh": "fresh",
}
"""In the report."""
CHECK = "rows and sum of every scan"


class Peer:
    """A process that applies one batch when told to, and says how long it took."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("pipes were asked for")
        self._requests, self._answers = self._process.stdin, self._process.stdout

    @classmethod
    def of(cls, script: Sequence[str], workload: Workload, home: Path, jars: str = str(JAR)) -> Self:
        """A script of this folder, with its arguments."""
        name, *more = script
        command = [sys.executable, str(Path(__file__).parent / name), str(workload.folder), str(home), jars]
        return cls([*command, *more])

    @property
    def pid(self) -> int:
        """Of the process, whose children are its JVMs."""
        return self._process.pid

    def ask(self, request: str, within: float | None = None) -> dict[str, Any]:
        """Send a line, wait for the answer; a process that has none `within` so many seconds is killed.

        Raises RuntimeError, or TimeoutError.
        """
        late = threading.Timer(within or 0, self._process.kill)
        if within is not None:
            late.start()
        try:
            self._requests.write(request + "\n")
            self._requests.flush()
            if (found := self.answer()) is not None:
                return found
        finally:
            late.cancel()
        if late.finished.is_set() and within is not None and self._process.wait() == -signal.SIGKILL:
            raise TimeoutError(f"{request}: no answer within {within:.0f} s")
        raise RuntimeError(f"{request}: the process ended with {self._process.wait()}")

    def answer(self) -> dict[str, Any] | None:
        """Wait for the next answer; None when the process ends instead."""
        for line in self._answers:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    def end(self) -> None:
        """Let it finish."""
        self._requests.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run_size(rows: int, options: argparse.Namespace, results: Recording) -> dict[str, list[float]]:
    """Batch times of the systems on one size, after checking what they wrote."""
    workload = make_workload(DATA, rows, options.batches, options.changes)
    with tempfile.TemporaryDirectory() as folder:
        peers = {name: Peer.of(PEERS[name], workload, Path(folder) / name) for name in {*options.systems, "merge"}}
        loads = {name: peers[name].ask("load")["seconds"] for name in options.systems}
        print(f"{rows:>10,} rows  initial load " + "  ".join(f"{n} {s:.2f} s" for n, s in loads.items()), flush=True)
        times: dict[str, list[float]] = {name: [] for name in options.systems}
        beside = dict.fromkeys(options.systems, 0.0)
        for number in range(options.batches):
            for name in options.systems:
                times[name].append(peers[name].ask(f"batch {number}")["seconds"])
                if options.settle or len(options.systems) > 1:
                    beside[name] += peers[name].ask("settle")["seconds"]
        print(f"{rows:>10,} rows  beside batches " + "  ".join(f"{n} {s:.1f} s" for n, s in beside.items()), flush=True)
        tables = _tables(rows, peers, options)
        reads = _Reads(peers["merge"], workload.reference(options.batches))
        for _ in range(3):  # in turns, so that none is always the one that finds everything cold
            for name, table in tables.items():
                reads.take(name, table)
        for line in reads.lines():
            print(f"{rows:>10,} rows  {line}", flush=True)
        index = peers["positions"].ask("index") if "positions" in options.systems else {}
        _record(results, workload, times, beside, index)
        reads.record(results, f"after {options.batches} batches of {options.changes:,}, {rows:,} rows")
        for line in _index_lines(index):
            print(f"{rows:>10,} rows  {line}", flush=True)
        for peer in peers.values():
            peer.end()
    return times


def _record(
    results: Recording,
    workload: Workload,
    times: Mapping[str, list[float]],
    beside: Mapping[str, float],
    index: Mapping[str, Any],
) -> None:
    name = f"{workload.changes:,} changes into {workload.rows:,} rows, {workload.batches} batches"
    case = Case(name, "s", NAMES["merge"], CHECK)
    for system, seconds in times.items():
        facts = {} if system != "positions" or not index else {"index_bytes_per_row": index["bytes_per_row"]}
        warm = seconds[len(seconds) // 2 :]
        more = {"last_half": statistics.median(warm), "beside_batches": beside[system], **facts}
        results.add(case, NAMES[system], seconds, first_batch=seconds[0], **more)


def _tables(rows: int, peers: dict[str, Peer], options: argparse.Namespace) -> dict[str, str]:
    """The tables that are read, by name."""
    shapes = {name: peers[name].ask("table") for name in options.systems}
    if options.fresh and "positions" in options.systems:
        shapes["by hand"] = peers["positions"].ask("maintain")
    for name, shape in shapes.items():
        print(f"{rows:>10,} rows  {name:9} {_words_of(shape)}", flush=True)
    tables: dict[str, str] = {name: shape["table"] for name, shape in shapes.items()}
    if options.fresh:
        tables["fresh"] = peers["merge"].ask(f"fresh {tables[options.systems[0]]}")["table"]
    return tables


def _words_of(shape: dict[str, Any]) -> str:
    """What readers have to open."""
    if "files" not in shape:
        return str(shape["table"]).rpartition("/")[2]
    done = f" after {shape['compactions']} compactions" if "compactions" in shape else ""
    took = f", made in {shape['seconds']:.2f} s" if "seconds" in shape else ""
    return f"has {shape['files']} files with {shape['rows']:,} rows and {shape['deletes']:,} deletes{done}{took}"


def _index_lines(index: dict[str, Any]) -> Iterator[str]:
    if index:
        yield (
            f"key index of {index['runs']} runs: {index['bytes_per_row']:.1f} bytes per row, "
            f"rebuilt in {index['seconds_per_million']:.2f} s per million rows"
        )


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
        fresh = {engine: min(later) for (name, engine), (_, *later) in self._seconds.items() if name == "fresh"}
        for (name, engine), (first, *later) in self._seconds.items():
            ratio = f", {min(later) / fresh[engine]:.2f}x of fresh" if engine in fresh else ""
            yield f"{name:9} read by {engine:9} first {first:.2f} s, then {min(later):.2f} s{ratio}"

    def record(self, results: Recording, when: str) -> None:
        """Keep all scans but the first of each, which find everything cold."""
        peer = "fresh" if any(name == "fresh" for name, _ in self._seconds) else NAMES["merge"]
        for (name, engine), (first, *later) in self._seconds.items():
            results.add(Case(f"scan by {engine} {when}", "s", peer, CHECK), NAMES[name], later, first=first)

    def _read_by_spark(self, table: str) -> tuple[int, float]:
        answer = self._spark.ask(f"read {table}")
        return int(answer["rows"]), float(answer["sum"])


OTHERS = {"DuckDB": read_by_duckdb, "pyiceberg": read_by_pyiceberg}


def _late(series: Sequence[float]) -> float:
    """The median of the last half: every JVM gets faster for some dozens of batches."""
    return statistics.median(series[len(series) // 2 :])


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--systems", nargs="+", choices=PEERS, default=["positions", "equality", "merge"])
    parser.add_argument("--settle", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    add_arguments(parser)
    options = parser.parse_args()
    with recording("upserts", "Batches of changes", options) as results:
        measure(options, results)


def measure(options: argparse.Namespace, results: Recording) -> None:
    """Print medians and ratios."""
    medians: dict[int, dict[str, float]] = {}
    lates: dict[int, dict[str, float]] = {}
    for rows in options.rows:
        times = run_size(rows, options, results)
        medians[rows] = {name: statistics.median(t) for name, t in times.items()}
        lates[rows] = {name: _late(t) for name, t in times.items()}
        for name, series in times.items():
            shown, slowest = [round(t, 2) for t in series[:20]], max(series[len(series) // 2 :])
            print(
                f"{rows:>10,} rows  {name:9} median {medians[rows][name]:.2f} s, "
                f"of the last half {_late(series):.2f} s, its slowest {slowest:.2f} s  {shown}",
                flush=True,
            )
        for name in [name for name in options.systems if name != "merge" and "merge" in options.systems]:
            ratio, late = medians[rows]["merge"] / medians[rows][name], _late(times["merge"]) / _late(times[name])
            print(
                f"{rows:>10,} rows  calve ({name}) is {ratio:.1f}x as fast as MERGE INTO, "
                f"{late:.1f}x in the last half of the batches",
                flush=True,
            )
    if len(medians) > 1:
        small, large = min(medians), max(medians)
        for name in options.systems:
            flat, late = medians[large][name] / medians[small][name], lates[large][name] / lates[small][name]
            print(f"{name} on {large:,} rows takes {flat:.2f}x of what it takes on {small:,}, {late:.2f}x when warm")


if __name__ == "__main__":
    main()
