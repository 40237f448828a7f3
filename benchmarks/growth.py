"""What grows with a table: seconds of batches, the key index, memory of the driver; and what many sinks at once take.

    PYTHONPATH=. python benchmarks/growth.py [--rows 1000000 5000000 20000000] [--full] [--batches 12]
        [--changes 100000] [--deletes position|vector] [--cases size partitions columns sinks]

`size`: tables of several sizes get batches of changes of uniform keys (90 % updates, 5 % inserts, 5 % deletes), each
size in a process of its own. `--full` adds 100M rows, which needs about 6 GB of disk and five minutes. The time of a
batch is the sum of its phases up to the commit; `ahead` is done after it, while the sink waits for the next one. CPU is
that of the process and its JVM from one batch to the next, maintenance included. The first batch makes the key index
(`KEY INDEX = 'auto'`), and its phase `index` is the time that takes. Batches do not count until the runs of the new
index are merged. Then the sink is stopped and started twice: with its index (a cold cache), and without (a lost index,
which is rebuilt). The bar: once the index is there, batches on the largest table take at most 1.5x of those on the
smallest.

`partitions`: a table of a million rows and 1,000 partitions. `columns`: one of 100,000 rows with 500 columns, and
batches of 5,000 changes. `sinks`: 100 sinks of one process, each with a batch of 1,000 changes; beside them one sink
alone with as many changes.

Every table is read by DuckDB and compared with what the changes say: rows, and the sum of their amounts. A wrong table
ends the benchmark.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Case, Recording, add_arguments, recording
from numpy.typing import NDArray
from peer_reader import read_by_duckdb
from peer_stream import commits_kept
from workload import CHANGES, COLUMNS, DDL, STATUSES

import calve
from calve.model.health import CommitReport
from calve.model.spec import Upsert
from tests.support.cpu import cpu_seconds

LOAD_ROWS = 2_500_000
"""Rows of a file of the initial load."""
BAR = 1.5
CHECK = "rows and sum, by DuckDB"
BESIDE = ("read", "ahead")
"""Phases that are not part of the time of a batch: before its first step, and after its commit."""
SETTLED, SETTLING = 3, 40
"""Batches without a merge of the index after which it counts as complete, and the most until then."""
FULL = 100_000_000
PATIENCE = 3600.0
_FILES_FROM = 1_760_000_000
"""The time of the first file, in seconds."""

Numbers = NDArray[np.int64]


# ------------------------------------------------------------------------------------------------------------ changes


def first_amounts(ids: Numbers) -> Numbers:
    """Quarters in the initial load, by key."""
    return ids * 7919 % 400_000


@dataclass
class Truth:
    """What a table must contain: rows of the initial load by a formula, and the last change of every other key."""

    rows: int
    changed: dict[int, int | None] = field(default_factory=dict)
    """Quarters by key; None for a deleted one."""
    keys: int = 0
    """Keys that were ever used are below this."""

    def __post_init__(self) -> None:
        """All keys of the load are used."""
        self.keys = self.rows

    def totals(self) -> tuple[int, float]:
        """Rows, and the sum of their amounts."""
        steps = (np.arange(at, min(at + LOAD_ROWS, self.rows)) for at in range(0, self.rows, LOAD_ROWS))
        quarters = sum(int(first_amounts(step).sum()) for step in steps)
        touched = np.array([key for key in self.changed if key < self.rows], np.int64)
        quarters -= int(first_amounts(touched).sum())
        left = [value for value in self.changed.values() if value is not None]
        return self.rows - len(touched) + len(left), (quarters + sum(left)) / 4


class Incoming:
    """The folder that a sink reads; every file is a checkpoint."""

    def __init__(self, folder: Path, columns: int = 0) -> None:
        """`columns` are added to the usual ones."""
        self.folder, self._columns = folder, columns
        self._files = self._seq = 0
        self._hidden: list[Path] = []
        folder.mkdir(parents=True)

    def load(self, rows: int) -> None:
        """The initial load."""
        for at in range(0, rows, LOAD_ROWS):
            ids = np.arange(at, min(at + LOAD_ROWS, rows))
            self._write(ids, first_amounts(ids), pa.repeat("i", len(ids)))
        self.release()

    def make_batch(self, truth: Truth, changes: int, rng: np.random.Generator) -> None:
        """Changes of uniform keys, which the sink does not see before their `release`."""
        inserts = changes // 20
        ids = np.concatenate(
            [
                rng.integers(0, truth.keys, changes - 2 * inserts),
                np.arange(truth.keys, truth.keys + inserts),
                rng.integers(0, truth.keys, inserts),
            ]
        )
        op = np.repeat(np.array(["u", "i", "d"]), [changes - 2 * inserts, inserts, inserts])
        truth.keys += inserts
        order = rng.permutation(changes)
        ids, op, quarters = ids[order], op[order], rng.integers(0, 400_000, changes)
        for key, what, amount in zip(ids.tolist(), op.tolist(), quarters.tolist(), strict=True):
            truth.changed[key] = None if what == "d" else amount
        self._write(ids, quarters, pa.array(op))

    def release(self) -> None:
        """Show the sink all files that were made, in order."""
        for hidden in self._hidden:
            hidden.rename(self.folder / f"{hidden.name[1:]}.parquet")
        self._hidden.clear()

    def _write(self, ids: Numbers, quarters: Numbers, op: pa.Array) -> None:
        seq = np.arange(self._seq, self._seq + len(ids))
        table = pa.table(
            {
                "id": ids,
                "customer": pa.array((ids % 200_000).astype(np.int32)),
                "amount": quarters / 4.0,
                "status": pa.array(STATUSES).take(pa.array(quarters % 6)),
                "updated": pa.array(1_760_000_000_000_000 + quarters * 1000, pa.timestamp("us", tz="UTC")),
                "op": op,
                "seq": seq,
                **{f"c{number}": pa.array(quarters + number) for number in range(self._columns)},
            }
        )
        path = self.folder / f".{self._files:06d}"
        pq.write_table(table, path, compression="zstd")
        os.utime(path, (_FILES_FROM + self._files,) * 2)
        self._hidden.append(path)
        self._files, self._seq = self._files + 1, self._seq + len(ids)


# --------------------------------------------------------------------------------------------------------- processes


def megabytes(pid: int, counter: str) -> float:
    """Resident memory of a process: `VmHWM` is its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(counter)) / 1024


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass
class Bench:
    """One sink of a benchmark, and the truth about its table."""

    lake: calve.Lake
    incoming: Incoming
    truth: Truth
    name: str
    options: dict[str, Any]
    ddl: str = DDL
    columns: str = ", ".join(COLUMNS)
    state: str = ""
    """The state location, if not in the home: sinks on a cluster need one."""

    def start(self) -> Any:
        """A running sink."""
        envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=self.columns)
        source = calve.files(
            self.incoming.folder, format="parquet", schema=self.ddl, envelope=envelope, max_files_per_checkpoint=1
        )
        sink = calve.sink(source, name=self.name, into=self.lake.table(f"b.{self.name}"), key=["id"], **self.options)
        return sink.start(state=self.state or None)

    def check(self) -> None:
        """Compare the table with the truth. Raises SystemExit."""
        found, expected = read_by_duckdb(self.metadata()), self.truth.totals()
        if (found[0], round(found[1], 2)) != (expected[0], round(expected[1], 2)):
            raise SystemExit(f"the table {self.name} is wrong: {found}, expected {expected}")

    def metadata(self) -> str:
        """The location of the table's newest metadata."""
        return str(self.lake.open().load_table(f"b.{self.name}").metadata_location)

    @property
    def index_folder(self) -> Path:
        """The key index in the state location."""
        return next((self.lake.home / "state").rglob("index"), self.lake.home / "none")


def phases_of(commits: Sequence[CommitReport]) -> dict[str, float]:
    """Seconds by phase."""
    found: dict[str, float] = {}
    for commit in commits:
        for name, seconds in commit.phases:
            found[name] = found.get(name, 0.0) + seconds
    return found


def run_batches(bench: Bench, query: Any, numbers: range, changes: int) -> Iterator[dict[str, Any]]:
    """Batches one at a time: seconds, CPU and phases of each."""
    with commits_kept() as commits:
        for number in numbers:
            commits.clear()
            bench.incoming.make_batch(bench.truth, changes, np.random.default_rng(number))
            cpu, began = cpu_seconds(os.getpid()), time.perf_counter()
            bench.incoming.release()
            query.await_caught_up(PATIENCE)
            wall = time.perf_counter() - began
            query.await_maintained(PATIENCE)  # who waits for a batch may be told of its commit before it is reported
            phases = phases_of(commits)
            yield {
                "seconds": sum(seconds for name, seconds in phases.items() if name not in BESIDE),
                "wall": wall,
                "cpu": cpu_seconds(os.getpid()) - cpu,
                "phases": phases,
            }


def settle(bench: Bench, query: Any, changes: int) -> int:
    """Run batches until the runs of a new index are merged, and read again; returns how many."""
    without = 0
    for number in range(SETTLING):
        list(run_batches(bench, query, range(5000 + number, 5001 + number), changes))
        without = 0 if any(thread.name == "calve-index-merge" for thread in threading.enumerate()) else without + 1
        if without == SETTLED:
            return number + 1
    return SETTLING


def measure_size(home: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Batches on one table, then a restart with the index and one without."""
    lake = calve.connect(home=home / "home")
    lake.spark(master="local[2]", conf={"spark.driver.memory": "2g"})
    rows = options.rows[0]
    settings: dict[str, Any] = {"deletes": options.deletes, "key_index": options.key_index}
    if options.deletes == "vector":
        settings["format_version"] = 3
    if options.partitions:
        settings["partition_by"] = [f"bucket({options.partitions}, id)"]
    more = "".join(f", c{number} BIGINT" for number in range(options.columns))
    bench = Bench(
        lake,
        Incoming(home / "in", options.columns),
        Truth(rows),
        "orders",
        settings,
        DDL + more,
        ", ".join([*COLUMNS, *(f"c{number}" for number in range(options.columns))]),
    )
    bench.incoming.load(rows)
    began = time.perf_counter()
    query = bench.start()
    query.await_caught_up(PATIENCE)
    load = time.perf_counter() - began
    query.await_maintained(PATIENCE)
    (first,) = run_batches(bench, query, range(1), options.changes)
    settling = settle(bench, query, options.changes)
    others = list(run_batches(bench, query, range(1, options.batches), options.changes))
    bench.check()
    found: dict[str, Any] = {
        "rows": rows,
        "changes": options.changes,
        "load_seconds": load,
        "first": first,
        "settling": settling,
        "batches": others,
        "index_bytes": folder_bytes(bench.index_folder),
        "data_bytes": folder_bytes(home / "home" / "warehouse"),
        "driver_mb": megabytes(os.getpid(), "VmHWM"),
    }
    query.stop()
    for number, name in enumerate(("restarted", "index_lost")):
        if name == "index_lost":
            shutil.rmtree(bench.index_folder, ignore_errors=True)
        query = bench.start()
        (found[name],) = run_batches(bench, query, range(1000 + number, 1001 + number), options.changes)
        query.stop()
    bench.check()
    return found


def measure_sinks(home: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Many sinks of one process get a batch each at the same time; then one of them alone as many changes."""
    lake = calve.connect(home=home / "home")
    lake.spark(master="local[2]", conf={"spark.driver.memory": "2g"})
    changes = options.changes
    benches = [
        Bench(lake, Incoming(home / f"in{number}"), Truth(changes), f"t{number}", {}) for number in range(options.sinks)
    ]
    for bench in benches:
        bench.incoming.load(changes)
    began = time.perf_counter()
    queries = [bench.start() for bench in benches]
    for query in queries:
        query.await_caught_up(PATIENCE)
    found: dict[str, Any] = {"sinks": options.sinks, "started_seconds": time.perf_counter() - began, "rounds": []}
    for number in range(options.batches):
        for at, bench in enumerate(benches):
            bench.incoming.make_batch(bench.truth, changes, np.random.default_rng([number, at]))
        cpu, began = cpu_seconds(os.getpid()), time.perf_counter()
        for bench in benches:
            bench.incoming.release()
        for query in queries:
            query.await_caught_up(PATIENCE)
        found["rounds"].append({"seconds": time.perf_counter() - began, "cpu": cpu_seconds(os.getpid()) - cpu})
    found["driver_mb"] = megabytes(os.getpid(), "VmHWM")
    found["threads"] = len(list(Path("/proc/self/task").iterdir()))
    for query in queries:
        query.stop()
    for bench in benches:
        bench.check()
    return found


def in_process(how: str, options: argparse.Namespace, **given: int) -> dict[str, Any]:
    """A measurement in a process of its own."""
    values = {
        "rows": options.rows[0],
        "batches": options.batches,
        "changes": options.changes,
        "deletes": options.deletes,
        "key-index": options.key_index,
    }
    arguments = [f"--{name}={value}" for name, value in {**values, **given}.items()]
    with tempfile.TemporaryDirectory(dir=options.folder) as home:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", how, "--home", home, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{how} {given} failed")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------------------------------------------------- report


def late(batches: Sequence[dict[str, Any]], name: str) -> float:
    """The median of the last half: a JVM gets faster for some batches."""
    return float(statistics.median(batch[name] for batch in batches[len(batches) // 2 :]))


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """What one table took."""
    batches = found["batches"]
    yield (
        f"{found['rows']:>11,} rows: batch {late(batches, 'seconds'):.3f} s, {late(batches, 'cpu'):.2f} CPU s; "
        f"loaded in {found['load_seconds']:.1f} s; index {found['index_bytes'] / 1e6:.0f} MB; "
        f"peak memory of the driver's Python {found['driver_mb']:.0f} MB"
    )
    names = {name for batch in batches for name in batch["phases"]}
    phases = {name: late([{name: b["phases"].get(name, 0.0)} for b in batches], name) for name in names}
    shown = sorted(phases.items(), key=lambda item: -item[1])
    yield "             " + ", ".join(f"{name} {1000 * seconds:.0f}" for name, seconds in shown) + " ms"
    yield f"             {found['settling']} batches until the index was complete"
    for name, title in (("first", "first batch"), ("restarted", "restarted"), ("index_lost", "index lost")):
        one = found[name]
        index = one["phases"].get("index", 0.0)
        yield f"             {title}: {one['seconds']:.2f} s, of them the index {index:.2f} s"


def main() -> None:
    """Run the cases, or be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--deletes", choices=("position", "vector"), default="position")
    parser.add_argument("--key-index", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--partitions", type=int, default=0, help="of the table of case `size`")
    parser.add_argument("--columns", type=int, default=0, help="more than the usual ones, in case `size`")
    parser.add_argument("--sinks", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where tables are made; by default that of temporary files")
    parser.add_argument("--measure", choices=("size", "sinks"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    add_arguments(parser)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps((measure_size if options.measure == "size" else measure_sinks)(options.home, options)))
        return
    with recording("growth", "Growth", options) as results:
        for name in options.cases:
            CASES[name](options, results)


def record(results: Recording, options: argparse.Namespace, found: dict[str, Any], about: str = "") -> None:
    """Keep what one table took."""
    batches, changes = found["batches"], found["changes"]
    results.add(
        Case(f"{changes:,} changes into {found['rows']:,} rows, {len(batches)} batches{about}", "s", "", CHECK),
        f"calve, {options.deletes}s",
        [batch["seconds"] for batch in batches],
        last_half=late(batches, "seconds"),
        cpu_s_per_million=late(batches, "cpu") / changes * 1e6,
        index_bytes_per_row=found["index_bytes"] / found["rows"],
        driver_mb=round(found["driver_mb"]),
        load_s=found["load_seconds"],
        **{f"{name}_s": found[name]["seconds"] for name in ("first", "restarted", "index_lost")},
        **{f"{name}_index_s": found[name]["phases"].get("index", 0.0) for name in ("first", "index_lost")},
    )


def show_sizes(options: argparse.Namespace, recorded: Recording) -> None:
    """Tables of several sizes, and the ratio of their batches."""
    results = []
    for rows in [*options.rows, *([FULL] if options.full else [])]:
        given = {"partitions": options.partitions, "columns": options.columns}
        results.append(in_process("size", options, rows=rows, **given))
        for line in lines_of(results[-1]):
            print(line, flush=True)
        record(recorded, options, results[-1])
    small, large = (pick(results, key=lambda found: found["rows"]) for pick in (min, max))
    if small is not large:
        ratios = {name: late(large["batches"], name) / late(small["batches"], name) for name in ("seconds", "cpu")}
        met = "met" if ratios["seconds"] <= BAR else "missed"
        print(
            f"batches on {large['rows']:,} rows take {ratios['seconds']:.2f}x the time of those on {small['rows']:,}, "
            f"{ratios['cpu']:.2f}x the CPU: the bar of {BAR}x is {met}"
        )


def show_partitions(options: argparse.Namespace, results: Recording) -> None:
    """A table of 1,000 partitions."""
    found = in_process("size", options, rows=1_000_000, partitions=1000, batches=6)
    print("1,000 partitions", *lines_of(found), sep="\n", flush=True)
    record(results, options, found, ", 1,000 partitions")


def show_columns(options: argparse.Namespace, results: Recording) -> None:
    """A table of 500 columns."""
    found = in_process("size", options, rows=100_000, changes=5_000, columns=500 - len(COLUMNS), batches=6)
    print("500 columns, batches of 5,000 changes", *lines_of(found), sep="\n", flush=True)
    record(results, options, found, ", 500 columns")


def show_sinks(options: argparse.Namespace, results: Recording) -> None:
    """100 sinks in one process, beside one."""
    case = Case("1,000 changes for each of several sinks, all batches", "s", "", CHECK)
    many = in_process("sinks", options, sinks=options.sinks, changes=1_000, batches=4)
    alone = in_process("sinks", options, sinks=1, changes=1_000, batches=4)
    for found in (many, alone):
        rounds = found["rounds"]
        print(
            f"{found['sinks']} sinks: a batch of 1,000 changes each in {late(rounds, 'seconds'):.2f} s, "
            f"{late(rounds, 'cpu') / found['sinks']:.3f} CPU s per sink; started in {found['started_seconds']:.1f} s; "
            f"{found['threads']} threads, peak memory of the driver's Python {found['driver_mb']:.0f} MB",
            flush=True,
        )
        results.add(
            *(case, f"{found['sinks']} sinks", [one["seconds"] for one in rounds]),
            cpu_s_per_sink=late(rounds, "cpu") / found["sinks"],
            threads=found["threads"],
            driver_mb=round(found["driver_mb"]),
        )


CASES = {"size": show_sizes, "partitions": show_partitions, "columns": show_columns, "sinks": show_sinks}


if __name__ == "__main__":
    main()
