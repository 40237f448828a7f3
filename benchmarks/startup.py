"""CPU of commands that should answer at once, beside an empty Python and DuckDB.

    python benchmarks/startup.py [--runs 15]

Each command runs in a process of its own, in turns; user and system time of the process count, not the clock, so that a
busy machine changes little. Ratios are to `python -c pass`, the least that any command in Python takes. The lowest time
of each command must be below the limit, or the script ends with 1. DuckDB is its Python package, and its command line
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
EMPTY = "python -c pass"
COMMANDS = {
    EMPTY: ("-c", "pass"),
    "duckdb in Python, SELECT 1": ("-c", "import duckdb; print(duckdb.sql('SELECT 1').fetchall())"),
    "calve, imported": ("-c", "import calve"),
    "calve --version": (*CALVE, "--version"),
    "calve --help": (*CALVE, "--help"),
    "calve status": (*CALVE, "status"),
    "calve plan": (*CALVE, "plan", "{file}"),
    "calve sql, SHOW SINKS": (*CALVE, "sql", "SHOW SINKS"),
    "calve sql, CREATE of what exists": (
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
if CLI is not None:
    COMMANDS["duckdb's command line, SELECT 1"] = (CLI, "-c", "SELECT 1")
LIMIT = 300
"""CPU milliseconds that calve's commands may take."""


def cpu_milliseconds(arguments: tuple[str, ...], home: Path) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "CALVE_HOME": str(home), "S": "hidden"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    program = arguments if arguments[0] == CLI else (sys.executable, *arguments)
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * ((after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime))


def execute(statements: str, home: Path) -> None:
    """Prepare the home."""
    command = [sys.executable, *CALVE, "sql", statements, "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(runs: int, folder: Path) -> dict[str, list[float]]:
    """The CPU time of every command, in every run."""
    home, file = folder / "home", folder / "p.sql"
    execute(SETUP, home)
    pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "part.parquet")
    execute(f"ANALYZE TABLE '{folder}/*.parquet' REFRESH METADATA", home)
    file.write_text(SETUP.replace("TABLE c;", "TABLE c WITH (COMMIT INTERVAL = '1m');"))
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for run in range(runs):
        for name, arguments in COMMANDS.items():
            given = tuple(one.format(file=file, run=run) for one in arguments)
            times[name].append(cpu_milliseconds(given, home))
    return times


def main() -> None:
    """Measure, record, and compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    add_arguments(parser)
    given = parser.parse_args()
    case = Case("one command", "CPU ms", EMPTY)
    with (
        recording("startup", "Commands that answer at once", given) as results,
        tempfile.TemporaryDirectory(prefix="calve-startup-") as folder,
    ):
        times = measure(given.runs, Path(folder))
        for name, found in times.items():
            results.add(case, name, found, lowest=round(min(found), 1))
    own = [name for name in COMMANDS if name.startswith("calve")]
    slow = [name for name in own if min(times[name]) >= LIMIT]
    if slow:
        sys.exit(f"{'; '.join(slow)}: more than {LIMIT} ms of CPU")


if __name__ == "__main__":
    main()
