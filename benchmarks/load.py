"""An initial load: the rows of Parquet files in a committed table, beside Spark's own write of the same rows.

    PYTHONPATH=. python benchmarks/load.py [--rows 5000000] [--files 1] [--runs 3]

    calve    a sink reads the files, keeps the last change per key, sorts by key, writes, and commits: from the moment
             that the files are there to the commit, with the session already started
    spark    `spark.read.parquet(...).select(...).write.parquet(...)`: rows as they come, no key, no commit

Each run is two processes, one after the other, on two cores. Both load twice, into a new table or folder: once cold,
right after the start of their JVM, and once warm. Printed are medians of all runs, the ratio with its spread (above 1:
calve is faster), CPU seconds of all processes, and the seconds until the session is up. DuckDB counts the rows of the
table and adds up their amounts; a wrong table ends the benchmark.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from harness import DATA, Case, Recording, add_arguments, recording
from peer_reader import duckdb_with_iceberg
from workload import COLUMNS, DDL, Workload, make_workload

from tests.support.cpu import cpu_seconds

TIMES = ("cold", "warm")


@dataclass(frozen=True)
class Load:
    """One load."""

    seconds: float
    cpu: float


def load_with_calve(folder: Path, home: Path) -> None:
    """Load twice, and print what it took as JSON."""
    import calve  # noqa: PLC0415 - the other side does not need it
    from calve.model.spec import Upsert  # noqa: PLC0415 - as above

    lake = calve.connect(home=home / "home")
    began = time.perf_counter()
    lake.spark(master="local[2]", conf={"spark.driver.memory": "6g"})
    started = time.perf_counter() - began
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(COLUMNS))
    found = []
    for name in TIMES:
        before = cpu_seconds(os.getpid())
        began = time.perf_counter()
        source = calve.files(folder, format="parquet", schema=DDL, envelope=envelope)
        query = calve.sink(source, name=name, into=lake.table(f"b.{name}"), key=["id"]).start()
        query.await_caught_up(3600)
        found.append((time.perf_counter() - began, cpu_seconds(os.getpid()) - before))
        query.stop()
    tables = [lake.open().load_table(f"b.{name}").metadata_location for name in TIMES]
    print(json.dumps({"started": started, "loads": found, "tables": tables}))


def load_with_spark(folder: Path, home: Path) -> None:
    """Write twice, and print what it took as JSON."""
    from calve.spark.session import embedded_session  # noqa: PLC0415 - as above

    began = time.perf_counter()
    spark = embedded_session(home / "home", master="local[2]", conf={"spark.driver.memory": "6g"})
    started = time.perf_counter() - began
    found = []
    for name in TIMES:
        before = cpu_seconds(os.getpid())
        began = time.perf_counter()
        rows = spark.read.schema(DDL).parquet(str(folder)).select(*COLUMNS)
        rows.write.option("compression", "zstd").parquet(str(home / name))
        found.append((time.perf_counter() - began, cpu_seconds(os.getpid()) - before))
    spark.stop()
    print(json.dumps({"started": started, "loads": found, "tables": []}))


NAMES = {"calve": "calve", "spark": "Spark's own write"}
SYSTEMS = {"calve": load_with_calve, "spark": load_with_spark}


def incoming(workload: Workload, files: int) -> Path:
    """The initial load of a workload as so many files."""
    folder = workload.folder / f"load{files}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        rows = pq.read_table(workload.initial)
        step = -(-rows.num_rows // files)
        for number in range(files):
            part = rows.slice(number * step, step)
            pq.write_table(part, folder / f"{number:05d}.parquet", compression="zstd")
        (folder / "done").mkdir()  # a folder: sources do not read it
    return folder


def measured(system: str, folder: Path, workload: Workload) -> tuple[float, list[Load]]:
    """Seconds until the session was up, and both loads; checked."""
    with tempfile.TemporaryDirectory(prefix="calve-load-") as home:
        command = [sys.executable, __file__, "--system", system, "--folder", str(folder), "--home", home]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        answer = json.loads(output.splitlines()[-1])
        for table in answer["tables"]:
            _check(table, workload)
    return answer["started"], [Load(*load) for load in answer["loads"]]


def _check(table: str, workload: Workload) -> None:
    rows, amount = workload.reference(0)
    found = duckdb_with_iceberg().execute(f"SELECT count(*), sum(amount) FROM iceberg_scan('{table}')").fetchone()
    if found is None or found[0] != rows or abs(found[1] - amount) > 1e-9 * abs(amount):
        raise SystemExit(f"calve is wrong: rows and sum are {found}; expected {(rows, amount)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    add_arguments(parser)
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.system:
        SYSTEMS[given.system](given.folder, given.home)
        return
    workload = make_workload(DATA, given.rows, 1)
    folder = incoming(workload, given.files)
    with recording("load", "Initial load", given) as results:
        runs: dict[str, list[list[Load]]] = {system: [] for system in SYSTEMS}
        for _ in range(given.runs):
            for system in SYSTEMS:
                started, loads = measured(system, folder, workload)
                runs[system].append(loads)
                words = ", ".join(
                    f"{n} {load.seconds:.2f} s ({load.cpu:.1f} CPU s)" for n, load in zip(TIMES, loads, strict=True)
                )
                print(f"{system}: {words}; session up in {started:.1f} s", flush=True)
        record(results, runs, given)


def record(results: Recording, runs: Mapping[str, Sequence[Sequence[Load]]], given: argparse.Namespace) -> None:
    """Cold and warm loads are cases of their own."""
    files = "" if given.files == 1 else f" in {given.files} files"
    for at, name in enumerate(TIMES):
        case = Case(f"{given.rows:,} rows{files}, {name}", "s", NAMES["spark"], "rows and sum, by DuckDB")
        for system, each in runs.items():
            cpu = statistics.median(both[at].cpu for both in each)
            results.add(case, NAMES[system], [both[at].seconds for both in each], cpu_s=cpu)


if __name__ == "__main__":
    main()
