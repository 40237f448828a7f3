"""What a second executor brings: batches on a standalone cluster with one and with two workers of one core each.

    PYTHONPATH=. python benchmarks/executors.py [--rows 4000000] [--changes 2000000] [--batches 4] [--share 0.5]

A table is loaded, and gets batches of changes of uniform keys, each too large for the driver: Spark tasks write the
files, find the rows to delete and write the deletes. With `searched` they read the key columns of the table, with
`indexed` they look the keys up in the key index; limits of the driver are lowered for that, since a table of this size
would be its own work. A batch of a million narrow changes is one task on any cluster (`write/batch.py`), so these have
two million: two row groups to read, and two tasks that write. Seconds are those of the phases of a commit in which
tasks work (`write`, `index`, `lookup`), medians of all batches but the first. The bar: with two workers at most 1/1.7
of the time with one. Driver, master and source take a part of a core, too, so the machine needs at least three, and
nothing else to do. On a smaller one, `--share` limits every worker with all its processes to a share of a core: with
0.5, two of them and a driver have a machine of two cores for themselves. The driver is then twice as fast as a worker.

Every table is read by DuckDB and compared with what the changes say.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from cpu_share import CpuShare, limit
from growth import CHECK, PATIENCE, Bench, Incoming, Truth, run_batches
from harness import Case, add_arguments, recording

import calve
from calve.keylookup.indexed import IndexedSearch, IndexLimits
from calve.keylookup.resolver import DriverLimits, PositionResolver
from calve.pipeline import start
from calve.spark.session import embedded_session
from calve.write import native_files
from tests.support.names import replace_by
from tests.support.servers.cluster import started

ROOT = Path(__file__).resolve().parents[1]
BAR = 1.7
WAYS = {"searched": "off", "indexed": "on"}
"""`KEY INDEX` by the way rows are found."""
STEPS = {"searched": {"write": "write", "find": "lookup"}, "indexed": {"write": "write", "find": "index"}}
"""Phases by what is measured."""


def measure(home: Path, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the phases on a cluster, by way."""
    by_tasks = IndexLimits(rows=0, taken_rows=0, merged_rows=0, keys=0)
    replace_by(start, "IndexedSearch", partial(IndexedSearch, limits=by_tasks))
    replace_by(start, "PositionResolver", partial(PositionResolver, limits=DriverLimits(rows=0)))
    replace_by(native_files, "_ROWS_PER_DELETE_FILE", options.changes // 4)  # several key files, as of larger batches
    (home / "cluster").mkdir()
    cluster = started(home / "cluster", home / "hidden", workers)
    try:
        for group, worker in zip(options.group, cluster.workers, strict=bool(options.group)):
            limit(worker.pid, group)  # before it starts executors
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "700m",
            "spark.executorEnv.PYTHONPATH": str(ROOT / "src"),
        }
        embedded_session(home / "home", master=cluster.url, conf=settings)
        return {way: _measured(home / way, way, options) for way in WAYS}
    finally:
        cluster.stop()


def _measured(home: Path, way: str, options: argparse.Namespace) -> dict[str, list[float]]:
    lake = calve.connect(home=home / "home")
    settings = {"key_index": WAYS[way]}
    bench = Bench(lake, Incoming(home / "in"), Truth(options.rows), "orders", settings, state=str(home / "state"))
    bench.incoming.load(options.rows)
    query = bench.start()
    query.await_caught_up(PATIENCE)
    _, *later = run_batches(bench, query, range(options.batches), options.changes)
    query.stop()
    bench.check()
    return {step: [batch["phases"].get(phase, 0.0) for batch in later] for step, phase in STEPS[way].items()}


def main() -> None:
    """Compare, or be one of the compared processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--changes", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=Path, action="append", default=[], help=argparse.SUPPRESS)
    add_arguments(parser)
    options = parser.parse_args()
    if options.workers:
        print(json.dumps(measure(options.home, options.workers, options)))
        return
    found: dict[int, dict[str, dict[str, list[float]]]] = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as home, ExitStack() as groups:
            command = [sys.executable, __file__, "--workers", str(workers), "--home", home]
            command += [f"--{name}={getattr(options, name)}" for name in ("rows", "changes", "batches")]
            for number in range(workers) if options.share < 1 else ():
                share = groups.enter_context(CpuShare(f"worker-{number}", options.share))
                command.append(f"--group={share.group}")
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the run with {workers} workers failed")
        found[workers] = json.loads(done.stdout.splitlines()[-1])
    with recording("executors", "Executors", options) as results:
        for way, steps in STEPS.items():
            for step in steps:
                one, two = found[1][way][step], found[2][way][step]
                size = f"{options.changes:,} changes into {options.rows:,} rows"
                limit = f", workers of {options.share:g} cores" if options.share < 1 else ""
                name = f"{step}, {way}: {size}{limit}"
                case = Case(name, "s", "one worker", CHECK)
                results.add(case, "one worker", one)
                results.add(case, "two workers", two)
                ratio = results.ratios(case)["two workers"].median
                print(f"{name}: {ratio:.2f}x with two workers, {BAR}x {'met' if ratio >= BAR else 'missed'}")


if __name__ == "__main__":
    main()
