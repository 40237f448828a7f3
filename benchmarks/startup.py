"""CPU seconds of commands that should answer at once, beside `python -c pass`.

    python benchmarks/startup.py [--runs 15]

Each command runs in a process of its own, in turns; user and system time of the process count, not the clock, so that a
busy machine changes little. `SHOW SINKS` reads a home with five objects, `INFORMATION_SCHEMA` the metadata of a folder.

Importing pyiceberg, Arrow (which imports pandas) and SQLAlchemy takes seconds: statements about definitions do not
import them, whether they read or store, nor do queries of INFORMATION_SCHEMA alone; `SHOW TABLES` and other queries do.
"""

import argparse
import os
import resource
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
COMMANDS = {
    "python -c pass": ("-c", "pass"),
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
LIMIT = 0.5
"""CPU seconds that the commands before `SHOW TABLES` may take on any machine that runs this."""


def cpu_seconds(arguments: tuple[str, ...], home: Path) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "CALVE_HOME": str(home), "S": "hidden"}
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
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
    medians = {name: statistics.median(found) for name, found in times.items()}
    base = medians["python -c pass"]
    print(f"{'':<20}{'CPU s':>8}{'ratio':>8}")
    for name, seconds in medians.items():
        print(f"{name:<20}{seconds:>8.3f}{seconds / base:>8.1f}")
    quick = list(COMMANDS)[: list(COMMANDS).index("SHOW TABLES")]
    assert all(medians[name] < LIMIT for name in quick), f"slower than {LIMIT} s"


if __name__ == "__main__":
    main()
