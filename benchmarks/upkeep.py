"""Compaction, expiry and orphan removal of calve beside Spark's procedures, on equal tables of many small files.

    python benchmarks/upkeep.py [--files 2000] [--rows 500] [--commits 40] [--orphans 5000] [--folder DIR]

Both tables are made by the same steps in folders of their own, without Spark: small data files in many commits, then
position deletes and equality deletes. `--files 20000 --orphans 50000` is what a busy sink without maintenance leaves in
a few hours. Each side works in a process of its own, and starts before it is measured: seconds are those of the jobs.
Peak memory is that of all processes of a side, from its start to the end of the job. DuckDB reads both tables before
and after, and what is left on disk is compared with what the tables name.

    compact    calve.compact              rewrite_data_files (every file with deletes; dangling ones are removed)
    expire     calve, no grace            expire_snapshots (retain_last => 1)
    orphans    calve, both runs           remove_orphan_files (older than two days, as the orphans are)
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from spark_tables import session_with_runtime
from upserts import ROOT

import calve
from calve.catalog.connect import connect_embedded
from calve.maintain.expire import expire_snapshots
from calve.maintain.orphans import OrphanOptions, remove_orphans
from calve.model.files import WrittenFile
from tests.support.foreign import NAME, ForeignTable, exchange_files
from tests.support.readers import duckdb_rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "amount", DoubleType(), required=False),
    NestedField(3, "status", StringType(), required=False),
    identifier_field_ids=[1],
)
JOBS = ("compact", "expire", "orphans")
PAGE = os.sysconf("SC_PAGE_SIZE")
OLD = timedelta(days=10)


@dataclass(frozen=True)
class Scale:
    """How large the tables are."""

    files: int
    rows: int
    """Of a data file."""
    commits: int
    orphans: int


def make_table(home: Path, scale: Scale) -> None:
    """Write the table file by file: equal for equal scales. A tenth of the rows is deleted, by position and by key."""
    rng, made = random.Random(1), ForeignTable(home, SCHEMA)
    per_commit = max(1, scale.files // scale.commits)
    written: list[WrittenFile] = []
    while len(written) < scale.files:
        new: list[WrittenFile] = []
        for _ in range(min(per_commit, scale.files - len(written))):
            first = (len(written) + len(new)) * scale.rows
            rows = [
                {"id": n, "amount": rng.uniform(1, 500), "status": rng.choice(["open", "paid", "sent"])}
                for n in range(first, first + scale.rows)
            ]
            new.append(made.data(rows))
        exchange_files(made.table, (), new, Operation.APPEND)
        written += new
        places = [(file, at) for file in new for at in range(0, scale.rows, 20)]
        gone = [{"id": rng.randrange(len(written) * scale.rows)} for _ in range(len(new) * scale.rows // 20)]
        exchange_files(made.table, (), [made.positions(places), made.equality(["id"], gone)], Operation.DELETE)
    data = Path(made.table.location().removeprefix("file://")) / "data"
    old = time.time() - OLD.total_seconds()
    for number in range(scale.orphans):
        path = data / f"orphan-{number:08}.parquet"
        path.write_bytes(b"x")
        os.utime(path, (old, old))
    made.close()


def give_to_hadoop(home: Path) -> None:
    """Let the runtime's catalog find the newest metadata where it looks for it."""
    catalog = connect_embedded(home)
    newest = Path(catalog.load_table(NAME).metadata_location.removeprefix("file://"))
    catalog.close()
    (newest.parent / "v1.metadata.json").write_bytes(newest.read_bytes())
    (newest.parent / "version-hint.text").write_text("1")


def metadata_of(home: Path, side: str) -> str:
    """The newest metadata file."""
    if side == "calve":
        catalog = connect_embedded(home)
        location: str = catalog.load_table(NAME).metadata_location
        catalog.close()
        return location
    folder = home.joinpath("warehouse", *NAME.split("."), "metadata")
    return f"file://{folder}/v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"


def facts_of(home: Path, side: str) -> tuple[int, float]:
    """Count the rows, and sum a column, with DuckDB."""
    rows = duckdb_rows(metadata_of(home, side), ["id", "amount"])
    assert len({row["id"] for row in rows}) == len(rows)
    return len(rows), round(sum(row["amount"] for row in rows), 2)


def files_of(home: Path) -> int:
    """The Parquet files on disk."""
    return sum(1 for _ in home.joinpath("warehouse").rglob("*.parquet"))


# ---- a side, in a process of its own


class PeakMemory:
    """The most memory that this process and those that it started had at a time."""

    def __init__(self) -> None:
        self.bytes, self._ended = 0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.bytes = max(self.bytes, sum(map(_memory, _family(os.getpid()))))

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()


def _family(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def calve_jobs(home: Path) -> dict[str, Callable[[], object]]:
    """The jobs of calve."""
    ref = calve.connect(home=home).table(NAME)
    now = timedelta(0)

    def orphans() -> None:
        for _ in range(2):  # the first run notes them
            remove_orphans(ref, OrphanOptions(now, everything=True, force=True))

    return {
        "compact": lambda: calve.compact(ref),
        "expire": lambda: expire_snapshots(ref, older_than=now, grace=now, force=True),
        "orphans": orphans,
    }


def spark_jobs(home: Path) -> dict[str, Callable[[], object]]:
    """The procedures of the Iceberg runtime."""
    spark = session_with_runtime(home, home / "warehouse")
    spark.sql(f"SELECT count(*) FROM i.{NAME}.snapshots").collect()  # whatever the first query starts is there now

    def call(procedure: str, more: str = "") -> object:
        return spark.sql(f"CALL i.system.{procedure}(table => '{NAME}'{more})").collect()

    rewriting = "'min-input-files', '2', 'delete-file-threshold', '1', 'remove-dangling-deletes', 'true'"
    now = datetime.now(UTC)
    later, before = (now + timedelta(hours=1)).isoformat(" "), (now - timedelta(days=2)).isoformat(" ")
    return {
        "compact": lambda: call("rewrite_data_files", f", options => map({rewriting})"),
        "expire": lambda: call("expire_snapshots", f", older_than => TIMESTAMP '{later}', retain_last => 1"),
        "orphans": lambda: call("remove_orphan_files", f", older_than => TIMESTAMP '{before}'"),
    }


def work(side: str, home: Path) -> None:
    """Do the jobs of one side, and print what each took."""
    jobs, peak = (calve_jobs if side == "calve" else spark_jobs)(home), PeakMemory()
    for name in JOBS:
        began = time.perf_counter()
        jobs[name]()
        print(json.dumps({"job": name, "seconds": time.perf_counter() - began, "peak": peak.bytes}), flush=True)
    peak.end()


# ---- both


def run_side(side: str, home: Path) -> dict[str, tuple[float, int]]:
    """Run a side in a process of its own; seconds and peak memory of each job."""
    command = [sys.executable, __file__, "--side", side, "--folder", str(home)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["job"]: (one["seconds"], one["peak"]) for one in found}


def compare(folder: Path, scale: Scale) -> None:
    """Make both tables, let both sides work, check, and print."""
    taken: dict[str, dict[str, tuple[float, int]]] = {}
    facts: set[tuple[int, float]] = set()
    for side in ("calve", "spark"):
        home = folder / side
        make_table(home, scale)
        if side == "spark":
            give_to_hadoop(home)
        before, files = facts_of(home, side), files_of(home)
        taken[side] = run_side(side, home)
        facts |= {before, facts_of(home, side)}
        print(f"{side}: {files:,} Parquet files became {files_of(home):,}; {before[0]:,} rows")
    assert len(facts) == 1, facts
    print(f"{'job':10}{'calve':>10}{'Spark':>10}{'ratio':>8}{'calve':>12}{'Spark':>10}{'ratio':>8}")
    for name in JOBS:
        (seconds, memory), (its_seconds, its_memory) = taken["calve"][name], taken["spark"][name]
        print(
            f"{name:10}{seconds:>8.1f} s{its_seconds:>8.1f} s{seconds / its_seconds:>8.2f}"
            f"{memory / 1e6:>9.0f} MB{its_memory / 1e6:>7.0f} MB{memory / its_memory:>8.2f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--orphans", type=int, default=5_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--side", choices=["calve", "spark"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        work(given.side, given.folder)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        compare(Path(folder), Scale(given.files, given.rows, given.commits, given.orphans))


if __name__ == "__main__":
    main()
