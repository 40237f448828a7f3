"""CPU seconds of commands that should answer at once, beside `python -c pass` and DuckDB.

    python benchmarks/startup.py [--runs 15]

Each command runs in a process of its own, in turns; user and system time of the process count, not the clock, so that a
busy machine changes little. The lowest time must be below the limit. DuckDB is its Python package, and its command line
where there is one on the path (`pip install duckdb-cli`). `SHOW SINKS` reads a home with five objects,
`INFORMATION_SCHEMA` the metadata of a folder, in DuckDB.

Importing pyiceberg, Arrow (which imports pandas) and SQLAlchemy takes seconds: statements about definitions do not
import them, whether they read or store, nor do queries of INFORMATION_SCHEMA alone; `SHOW TABLES` and other queries do.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from harness import Case, add_arguments, recording

SETUP = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100);
CREATE SINK a FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE a;
CREATE SINK b FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE b;
CREATE SINK c FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE c;
"""
CALVE = ("-m", "calve")
CLI = shutil.which("duckdb")
DUCKDB = "duckdb in Python"
PEERS = {
    "python -c pass": ("-c", "pass"),
    DUCKDB: ("-c", "import duckdb; print(duckdb.sql('SELECT 1').fetchall())"),
    **({} if CLI is None else {"duckdb CLI": (CLI, "-c", "SELECT 1")}),
}
COMMANDS = {
    "import calve": ("-c", "import calve"),
    "calve --version": (*CALVE, "--version"),
    "calve --help": (*CALVE, "--help"),
    "calve status": (*CALVE, "status"),
    "calve sql, SHOW SINKS": (*CALVE, "sql", "SHOW SINKS"),
    "calve plan": (*CALVE, "plan", "{file}"),
    "calve sql, CREATE, exists": (
        *(*CALVE, "sql"),
        "CREATE CONNECTION IF NOT EXISTS lake TO ICEBERG CATALOG (TYPE = 'embedded')",
    ),
    "calve sql, CREATE SECRET": (*CALVE, "sql", "CREATE SECRET s{run} FROM ENV 'S'"),
    "calve sql, CREATE SINK": (
        *(*CALVE, "sql"),
        "CREATE SINK k{run} FROM orders TO ICEBERG CATALOG lake NAMESPACE n TABLE k{run}",
    ),
    "calve sql, SELECT 1": (*CALVE, "sql", "SELECT 1"),
    "calve sql, INFORMATION_SCHEMA": (*CALVE, "sql", "SELECT * FROM INFORMATION_SCHEMA.TABLES"),
    "calve sql, SHOW TABLES": (*CALVE, "sql", "SHOW TABLES"),
}
SLOW = "calve sql, SHOW TABLES"
LIMIT = 0.3
"""CPU seconds that commands may take, but for `SLOW`."""


def cpu_seconds(arguments: tuple[str, ...], home: Path) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "CALVE_HOME": str(home), "S": "hidden"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    program = arguments if arguments[0] == CLI else (sys.executable, *arguments)
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def measure(runs: int) -> dict[str, list[float]]:
    """CPU seconds of every command, run by run."""
    with tempfile.TemporaryDirectory(prefix="calve-startup-") as folder:
        home = Path(folder) / "home"
        pq.write_table(pa.table({"id": [1, 2, 3]}), Path(folder) / "part.parquet")
        for statements in (SETUP, f"ANALYZE TABLE '{folder}/*.parquet' REFRESH METADATA"):
            cpu_seconds((*CALVE, "sql", statements), home)
        file = Path(folder) / "p.sql"
        file.write_text(SETUP.replace("TABLE c;", "TABLE c WITH (COMMIT INTERVAL = '1m');"))
        times: dict[str, list[float]] = {name: [] for name in (*PEERS, *COMMANDS)}
        for run in range(runs):
            for name, arguments in {**PEERS, **COMMANDS}.items():
                given = tuple(one.format(file=file, run=run) for one in arguments)
                times[name].append(cpu_seconds(given, home))
    return times


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    add_arguments(parser)
    given = parser.parse_args()
    with recording("startup", "Commands that answer at once", given) as results:
        times = measure(given.runs)
        for name, found in times.items():
            results.add(Case("CPU of a command", "s"), name, found, lowest=min(found))
        ask = Case("CPU of SELECT 1", "s", DUCKDB)
        for name, command in ((DUCKDB, DUCKDB), ("calve sql", "calve sql, SELECT 1")):
            results.add(ask, name, times[command])
    slow = [name for name in COMMANDS if name != SLOW and min(times[name]) >= LIMIT]
    if slow:
        raise SystemExit(f"{', '.join(slow)} took longer than {LIMIT} s")


if __name__ == "__main__":
    main()
