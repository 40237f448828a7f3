"""Small batches end to end: calve's commits beside Spark's own micro-batches of the same files.

    PYTHONPATH=. python benchmarks/microbatch.py [--rows 5000000] [--files 100] [--changes 1000]

Files of `--changes` changes each, one per batch:

    one at a time   a file arrives when the last one is done; milliseconds from its arrival until it is processed
    backlog         all files are there; milliseconds between two batches

calve keeps a table of `--rows` rows equal to the changes (deletes by position, maintenance on), one commit per file.
Spark's Structured Streaming reads the same files and writes them nowhere (`noop`), or as Parquet files: no key, no
table. The bar: calve takes at most 100 ms more than Spark. calve's table is checked, and the number of Spark's rows.
"""

import argparse
import itertools
import tempfile
from pathlib import Path

from checking import difference, digest_of_table, expected_digest
from harness import DATA, Case, Recording, Spread, add_arguments, recording
from upserts import Peer
from workload import Workload, make_workload

CALVE = "calve, positions"
SYSTEMS = {
    CALVE: ("peer_stream.py", "position", "2", "auto"),
    "Spark to nowhere": ("peer_microbatch.py", "noop"),
    "Spark to Parquet": ("peer_microbatch.py", "parquet"),
}
PEER = "Spark to Parquet"
MODES = {"each": "one at a time", "backlog": "backlog"}
BAR_MS = 100
CHECKS = "calve: rows, sum and hash of all rows, by DuckDB; Spark: the number of rows"
NOTE = "The first fifth of the batches is left out."


def measure(system: str, mode: str, workload: Workload, home: Path) -> tuple[list[float], str]:
    """Milliseconds per file, and what is wrong with the result."""
    peer = Peer.of(SYSTEMS[system], workload, home)
    if system != CALVE:
        answer = peer.ask(mode)
        peer.end()
        expected = workload.batches * workload.changes
        wrong = "" if answer["rows"] == expected else f"{answer['rows']:,} rows, expected {expected:,}"
        return [1000 * one for one in answer["seconds"]], wrong
    peer.ask("load")
    if mode == "each":
        seconds = peer.ask("each")["files"]
    else:
        times = [commit["at"] for commit in peer.ask("stream")["commits"]]
        seconds = [later - earlier for earlier, later in itertools.pairwise(times)]
    table = peer.ask("table")["table"]
    peer.end()
    return [1000 * one for one in seconds], difference(digest_of_table(table), expected_digest(workload))


def compare(results: Recording, case: Case, mode: str, workload: Workload) -> None:
    """All systems, one after the other."""
    for system in SYSTEMS:
        with tempfile.TemporaryDirectory(prefix="calve-microbatch-") as folder:
            values, wrong = measure(system, mode, workload, Path(folder))
        if wrong:
            results.disqualify(case, system, wrong)
            continue
        warm = Spread(tuple(values[len(values) // 5 :]))  # every JVM gets faster for some batches
        results.add(case, system, warm.values, p90=warm.percentile(90), p99=warm.percentile(99))
    medians = {one["system"]: one["median"] for one in results.results if one["case"] == case.name and "median" in one}
    for system in medians.keys() - {CALVE}:
        if CALVE in medians:
            more = medians[CALVE] - medians[system]
            print(f"{case.name}: calve takes {more:+.0f} ms beside {system} (bar: {BAR_MS:+d} ms)", flush=True)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--changes", type=int, default=1_000)
    add_arguments(parser)
    given = parser.parse_args()
    workload = make_workload(DATA, given.rows, given.files, given.changes)
    workload.files()
    with recording("microbatch", "Small batches", given) as results:
        for mode, words in MODES.items():
            name = f"{given.files} files of {given.changes:,} changes on {given.rows:,} rows, {words}"
            compare(results, Case(name, "ms", PEER, CHECKS, NOTE), mode, workload)


if __name__ == "__main__":
    main()
