"""Seconds per batch of changes by kind of changes and of table: calve beside Iceberg's and Delta's `MERGE INTO`.

    PYTHONPATH=. python benchmarks/apply.py [--rows 1000000] [--batches 6] [--changes 100000]
        [--cases uniform recent inserts wide partitioned] [--systems positions vectors merge-v2 ...] [--within 120]

    uniform       90 % updates of random keys, 5 % inserts, 5 % deletes; five columns
    recent        the same, but nine of ten updates and deletes are of the newest twentieth of the keys
    inserts       90 % inserts, 5 % updates, 5 % deletes
    wide          as uniform, 50 columns
    partitioned   as uniform, partitions by `status`: most updates move a row to another partition

    positions, vectors            calve, format version 2 and 3
    merge-v2, merge-v3, merge-cow Iceberg's `MERGE INTO`: merge-on-read in version 2 and 3, copy-on-write
    delta                         Delta Lake's `MERGE INTO` with deletion vectors (`make delta` fetches it)
    pyiceberg                     `Table.upsert` and `Table.delete` in a transaction, no Spark

Every system has a process of its own; they take turns batch by batch, and what a sink does beside its batches ends
before the next one has its turn. A system that needs more than `--within` seconds for a batch is left out of the rest
of its case. All rows and columns of every table are compared with the last change of each key; a system whose table is
wrong is disqualified. Hudi has no bundle for this Spark: Maven has one for Spark 3.5 only.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checking import CHECK, difference, digest_of_files, digest_of_table, expected_digest
from harness import DATA, JAR, ROOT, Case, Recording, add_arguments, recording
from upserts import Peer
from workload import CHANGES, PLAIN, Shape, Workload, make_workload

DELTA = ROOT / ".cache" / "delta"
NEEDED = ("delta-", "unitycatalog-", "jts-")
"""Jars of Delta that Spark does not have itself."""
SCRIPTS = {
    "positions": ("peer_calve.py", "position", "auto", ""),
    "vectors": ("peer_calve.py", "vector", "auto", ""),
    "merge-v2": ("peer_merge.py", "v2"),
    "merge-v3": ("peer_merge.py", "v3"),
    "merge-cow": ("peer_merge.py", "cow"),
    "delta": ("peer_delta.py",),
    "pyiceberg": ("peer_pyiceberg.py",),
}
"""Each takes the column of partitions as one more argument."""
TITLES = {
    "positions": "calve, positions",
    "vectors": "calve, vectors",
    "merge-v2": "MERGE INTO, Iceberg v2, merge-on-read",
    "merge-v3": "MERGE INTO, Iceberg v3, vectors",
    "merge-cow": "MERGE INTO, Iceberg, copy-on-write",
    "delta": "MERGE INTO, Delta, vectors",
    "pyiceberg": "pyiceberg upsert and delete",
}
PEER = TITLES["merge-v2"]


@dataclass(frozen=True)
class Kind:
    """What is special about a case."""

    words: str
    shape: Shape = PLAIN
    partition: str = ""


KINDS = {
    "uniform": Kind("uniform keys"),
    "recent": Kind("mostly recent keys", Shape(kind="recent")),
    "inserts": Kind("mostly inserts", Shape(kind="inserts")),
    "wide": Kind("50 columns", Shape(width=50)),
    "partitioned": Kind("partitions by status", partition="status"),
}


class Turns:
    """Systems that apply the same batches in turns."""

    def __init__(self, systems: Sequence[str], workload: Workload, kind: Kind, folder: Path) -> None:
        self.workload, self._folder = workload, folder
        self.peers = {name: start(name, workload, kind.partition, folder / name) for name in systems}
        self.seconds: dict[str, list[float]] = {name: [] for name in systems}
        self.late: dict[str, str] = {}

    def load(self) -> None:
        """The rows that are there before the first batch."""
        for name in self.peers:
            self.peers[name].ask("load")

    def run(self, within: float) -> None:
        """All batches; a system that is too slow is dropped."""
        for number in range(self.workload.batches):
            for name in [one for one in self.peers if one not in self.late]:
                try:
                    answer = self.peers[name].ask(f"batch {number}", within)
                except TimeoutError:
                    self.late[name] = f"over {within:.0f} s for a batch"
                    continue
                self.seconds[name].append(answer["seconds"])
                if name in {"positions", "vectors"}:
                    self.peers[name].ask("settle")

    def difference(self, name: str) -> str:
        """How its table differs from what the changes say; nothing if it is right."""
        columns = self.workload.columns
        if name == "delta":
            copy = self._folder / "delta-copy"
            self.peers[name].ask(f"copy {copy}")
            found = digest_of_files(copy, columns)
        else:
            found = digest_of_table(self.peers[name].ask("table")["table"], columns)
        return difference(found, expected_digest(self.workload))

    def record(self, results: Recording, case: Case) -> None:
        """Check all, and keep the batch times of those that are right."""
        for name, seconds in self.seconds.items():
            if name in self.late:
                results.leave_out(case, TITLES[name], self.late[name])
            elif wrong := self.difference(name):
                results.disqualify(case, TITLES[name], wrong)
            else:
                half = statistics.median(seconds[len(seconds) // 2 :])
                results.add(case, TITLES[name], seconds, first_batch=seconds[0], last_half=half)

    def end(self) -> None:
        """End all processes."""
        for name in self.peers:
            if name not in self.late:  # those were killed
                self.peers[name].end()


def start(name: str, workload: Workload, partition: str, home: Path) -> Peer:
    """The process of a system."""
    script, *arguments = SCRIPTS[name]
    needed = [jar for jar in sorted((DELTA / "jars").glob("*.jar")) if jar.name.startswith(NEEDED)]
    jars = ",".join(map(str, needed)) if name == "delta" else str(JAR)
    return Peer.of((script, *arguments, partition), workload, home, jars)


def available(systems: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those that can run, and versions of what Python does not know."""
    found = list(systems)
    if "delta" in found and not (DELTA / "complete").exists():
        print("Delta is left out: scripts/fetch_delta.py .cache/delta has not fetched it")
        found.remove("delta")
    versions = {"iceberg-spark-runtime": JAR.stem.rpartition("-")[2]}
    if "delta" in found:
        versions["delta-spark"] = next((DELTA / "jars").glob("delta-spark*")).stem.rpartition("-")[2]
    return found, versions


def main() -> None:
    """Measure, check and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--cases", nargs="+", choices=KINDS, default=list(KINDS))
    every = [name for name in SCRIPTS if name != "pyiceberg"]
    parser.add_argument("--systems", nargs="+", choices=SCRIPTS, default=every)
    parser.add_argument("--within", type=float, default=120.0)
    add_arguments(parser)
    given = parser.parse_args()
    systems, versions = available(given.systems)
    with recording("apply", "Kinds of changes and tables", given, **versions) as results:
        for name in given.cases:
            measure(results, KINDS[name], systems, given)


def measure(results: Recording, kind: Kind, systems: Sequence[str], given: argparse.Namespace) -> None:
    """One case."""
    workload = make_workload(DATA, given.rows, given.batches, given.changes, shape=kind.shape)
    case = Case(f"{given.changes:,} changes into {given.rows:,} rows: {kind.words}", "s", PEER, CHECK)
    with tempfile.TemporaryDirectory(prefix="calve-apply-") as folder:
        turns = Turns(systems, workload, kind, Path(folder))
        turns.load()
        turns.run(given.within)
        turns.record(results, case)
        turns.end()
    print(f"{case.name}: {_words(turns.seconds)}", flush=True)


def _words(seconds: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(f"{name} {[round(one, 2) for one in taken]}" for name, taken in seconds.items())


if __name__ == "__main__":
    main()
