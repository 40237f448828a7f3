"""Merge and refresh as in LHBench, at scale factor 1: queries, ten merges of 3 % of a fact table, queries again.

    PYTHONPATH=. python benchmarks/refresh.py [--rows 2880000] [--refreshes 10] [--systems positions merge-v2 ...]

The table has as many rows and columns as `store_sales` of TPC-DS at scale factor 1 (2.88 million, 23); the data is that
of the other benchmarks. Every refresh changes 3 % of the rows: 90 % updates of random keys, 5 % inserts, 5 % deletes.
Five queries are asked after the load and after the last refresh, before anybody maintains the tables by hand: those of
Iceberg tables in one Spark with the Iceberg runtime, those of Delta tables in their own. Systems take turns; a first
round warms the sessions. Systems are those of `apply.py`; all rows of every table are checked.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from apply import KINDS, SCRIPTS, TITLES, Kind, Turns, available
from checking import CHECK
from harness import DATA, Case, Recording, add_arguments, recording
from workload import Shape, make_workload

QUERIES = (
    "SELECT status, count(*), sum(amount), avg(c5) FROM orders GROUP BY status",
    "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer ORDER BY total DESC LIMIT 100",
    "SELECT date(updated), count(*), sum(c7) FROM orders GROUP BY date(updated)",
    "SELECT count(*), min(c9), max(c11) FROM orders WHERE amount > 99000 AND status = 'PAID'",
    "SELECT * FROM orders WHERE id BETWEEN 1000000 AND 1000100",
)
WIDTH = 23
SHARE = 0.03
READER = "merge-v2"
ROUNDS = 3


def query_seconds(turns: Turns, systems: Sequence[str]) -> dict[str, list[float]]:
    """All queries on the table of each system, in turns; the first round warms the sessions and does not count."""
    tables = {name: "-" if name == "delta" else turns.peers[name].ask("table")["table"] for name in systems}
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(1 + ROUNDS):
        for name, table in tables.items():
            peer = turns.peers[name if name == "delta" else READER]
            found[name].append(sum(float(peer.ask(f"query {table} {query}")["seconds"]) for query in QUERIES))
    return {name: seconds[1:] for name, seconds in found.items()}


def measure(results: Recording, given: argparse.Namespace, systems: list[str], folder: Path) -> None:
    """Load, ask, refresh, ask again."""
    changes = int(given.rows * SHARE)
    workload = make_workload(DATA, given.rows, given.refreshes, changes, shape=Shape(width=WIDTH))
    turns = Turns(systems, workload, Kind(KINDS["wide"].words, Shape(width=WIDTH)), folder)
    turns.load()
    before = query_seconds(turns, systems)
    turns.run(given.within)
    after = query_seconds(turns, [name for name in systems if name not in turns.late])
    size = f"{given.rows:,} rows, {WIDTH} columns"
    turns.record(results, Case(f"a refresh of 3 %, {size}", "s", TITLES[READER], CHECK))
    for when, seconds in (("before any refresh", before), (f"after {given.refreshes} refreshes", after)):
        for name, taken in seconds.items():
            results.add(Case(f"five queries {when}, {size}", "s", TITLES[READER]), TITLES[name], taken)
    turns.end()


def main() -> None:
    """Measure, check and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_880_000)
    parser.add_argument("--refreshes", type=int, default=10)
    chosen = ["positions", "vectors", READER, "merge-v3", "delta"]
    parser.add_argument("--systems", nargs="+", choices=SCRIPTS, default=chosen)
    parser.add_argument("--within", type=float, default=300.0)
    add_arguments(parser)
    given = parser.parse_args()
    systems, versions = available(given.systems)
    if READER not in systems:
        parser.error(f"{READER} reads the tables of all others: it has to be one of the systems")
    with (
        recording("refresh", "Merge and refresh", given, **versions) as results,
        tempfile.TemporaryDirectory(prefix="calve-refresh-") as folder,
    ):
        measure(results, given, systems, Path(folder))


if __name__ == "__main__":
    main()
