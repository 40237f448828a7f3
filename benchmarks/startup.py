"""CPU seconds of commands that should answer at once, beside `python -c pass` and DuckDB.

    python benchmarks/startup.py [--runs 15]

Each command runs in a process of its own, in turns; user and system time of the process count, not the clock, so that a
busy machine changes little. The ratio is that of the medians, and the lowest time must be below the limit. DuckDB is
its Python package, and its command line where there is one on the path (`pip install duckdb-cli`). `SHOW SINKS` reads a
home with five objects, `INFORMATION_SCHEMA` the metadata of a folder, in DuckDB.

Importing pyiceberg, Arrow (which imports pandas) and SQLAlchemy takes seconds: statements about definitions do not
import them, whether they read or store, nor do queries of INFORMATION_SCHEMA alone; `SHOW TABLES` and other queries do.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SETUP = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100);
CREATE SINK a FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE a;
CREATE SINK b FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE b;
CREATE SINK c FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE c;
"""
CALVE = ("-m", "calve")
CLI = shutil.which("duckdb")
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "duckdb in Python": ("-c", "import duckdb; print(duckdb.sql('SELECT 1').fetchall())"),
    "import calve": ("-c", "import calve"),
    "calve --version": (*CALVE, "--version"),
    "calve --help": (*CALVE, "--help"),
    "calve status": (*CALVE, "status"),
    "SHOW SINKS": (*CALVE, "sql", "SHOW SINKS"),
    "calve plan": (*CALVE, "plan", "{file}"),
    "CREATE, exists": (*CALVE, "sql", "CREATE CONNECTION IF NOT EXISTS lake TO ICEBERG CATALOG (TYPE = 'embedded')"),
    "CREATE SECRET": (*CALVE, "sql", "CREATE SECRET s{run} FROM ENV 'S'"),
    "CREATE SINK": (*CALVE, "sql", "CREATE SINK k{run} FROM orders TO ICEBERG CATALOG lake NAMESPACE n TABLE k{run}"),
    "SELECT 1": (*CALVE, "sql", "SELECT 1"),
    "INFORMATION_SCHEMA": (*CALVE, "sql", "SELECT * FROM INFORMATION_SCHEMA.TABLES"),
    "SHOW TABLES": (*CALVE, "sql", "SHOW TABLES"),
}
if CLI is not None:
    COMMANDS["duckdb CLI"] = (CLI, "-c", "SELECT 1")
PEERS = ("python -c pass", "duckdb in Python", "duckdb CLI")
SLOW = ("SHOW TABLES",)
LIMIT = 0.3
"""CPU seconds that the commands but `SLOW` may take."""


def cpu_seconds(arguments: tuple[str, ...], home: Path) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "CALVE_HOME": str(home), "S": "hidden"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    program = arguments if arguments[0] == CLI else (sys.executable, *arguments)
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="calve-startup-") as folder:
        home = Path(folder) / "home"
        subprocess.run(
            [sys.executable, *CALVE, "sql", SETUP, "--home", str(home)], check=True, stdout=subprocess.DEVNULL
        )
        pq.write_table(pa.table({"id": [1, 2, 3]}), Path(folder) / "part.parquet")
        analyze = f"ANALYZE TABLE '{folder}/*.parquet' REFRESH METADATA"
        subprocess.run(
            [sys.executable, *CALVE, "sql", analyze, "--home", str(home)], check=True, stdout=subprocess.DEVNULL
        )
        file = Path(folder) / "p.sql"
        file.write_text(SETUP.replace("TABLE c;", "TABLE c WITH (COMMIT INTERVAL = '1m');"))
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for run in range(runs):
            for name, arguments in COMMANDS.items():
                given = tuple(one.format(file=file, run=run) for one in arguments)
                times[name].append(cpu_seconds(given, home))
    base = statistics.median(times["python -c pass"])
    print(f"{'':<20}{'lowest':>8}{'median':>8}{'ratio':>8}")
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name:<20}{min(found):>8.3f}{middle:>8.3f}{middle / base:>8.1f}")
    slow = [name for name, found in times.items() if name not in (*PEERS, *SLOW) and min(found) >= LIMIT]
    assert not slow, f"{', '.join(slow)} took longer than {LIMIT} s"


if __name__ == "__main__":
    main()
