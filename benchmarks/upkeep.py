"""Compaction, expiry and orphan removal of calve beside Spark's procedures, on equal tables of many small files.

    PYTHONPATH=. python benchmarks/upkeep.py [--files 20000] [--rows 200] [--commits 40] [--orphans 50000]
        [--minutes 8] [--folder DIR]

The table is made once, file by file and without Spark: small data files in many commits, each with position deletes and
equality deletes of its own: what a busy sink without maintenance leaves in a few hours. Both sides get it in turn, at
the same path. Each works in a process of its own, and starts before it is measured: seconds are those of the jobs.
Memory is the highest sum of all processes of a side during a job, and the parts of Python and of the JVM in it. DuckDB
reads the table after each side (before, 20,000 files with equality deletes are too much for it) and finds the rows that
the deletes leave, and what is left on disk is counted.

    compact    calve.compact              rewrite_data_files (every file with deletes; dangling ones are removed)
    expire     calve, no grace            expire_snapshots (retain_last => 1)
    orphans    calve, both runs           remove_orphan_files (older than two days, as the orphans are)

A side that has not ended after its share of `--minutes` is stopped; its job is shown with the time that it had.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import JAR, ROOT, Case, Recording, add_arguments, recording
from peer_merge import session_with_runtime
from peer_reader import duckdb_with_iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import calve
from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds
from calve.iceberg.files.store import open_output
from calve.iceberg.schema.arrow import arrow_schema, metrics_of
from calve.maintain.expire import expire_snapshots
from calve.maintain.orphans import OrphanOptions, remove_orphans
from calve.model.files import Content, WrittenFile
from tests.support.foreign import NAME, POSITION_DELETES, ForeignTable, exchange_files

PROCEDURES, CHECK = "Spark's procedures", "rows and sum, by DuckDB"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "amount", DoubleType(), required=False),
    NestedField(3, "status", StringType(), required=False),
    identifier_field_ids=[1],
)
JOBS = ("compact", "expire", "orphans")
WATCH_SECONDS = 0.2
_PSS = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
BEGAN = time.perf_counter()
OLD = timedelta(days=10)


@dataclass(frozen=True)
class Scale:
    """How large the tables are."""

    files: int
    rows: int
    """Of a data file."""
    commits: int
    orphans: int


class SmallFiles:
    """Writes files of one table without loading it for each."""

    def __init__(self, table: Table) -> None:
        self._location, self._ids = table.location(), RandomIds()

    def write(
        self, content: Content, schema: Schema, columns: dict[str, Any], fields: tuple[int, ...] = ()
    ) -> WrittenFile:
        """Write one file."""
        path = f"{self._location}/data/{self._ids.new_id()}.parquet"
        written = pa.table(columns, schema=arrow_schema(schema))
        with open_output(path, {}) as sink:
            with pq.ParquetWriter(sink, written.schema, compression="zstd") as writer:
                writer.write_table(written)
            size = sink.tell()
        metrics, offsets = metrics_of(writer.writer.metadata, schema, {})
        return WrittenFile(content, path, len(written), size, 0, (), metrics, offsets, fields)


def make_table(home: Path, scale: Scale) -> tuple[int, float]:
    """Write the table file by file; returns what `facts_of` must find.

    A tenth of the rows is deleted, by position and by key.
    """
    rng, made = np.random.default_rng(1), ForeignTable(home, SCHEMA)
    files, keys = SmallFiles(made.table), Schema(SCHEMA.find_field("id").model_copy(update={"required": False}))
    per_commit, written = max(1, scale.files // scale.commits), 0
    statuses = np.array(["open", "paid", "sent"])
    live, amounts = np.ones(scale.files * scale.rows, bool), np.empty(scale.files * scale.rows)
    live[::20] = False
    while written < scale.files:
        new: list[WrittenFile] = []
        for _ in range(min(per_commit, scale.files - written)):
            first = (written + len(new)) * scale.rows
            columns = {
                "id": np.arange(first, first + scale.rows),
                "amount": rng.uniform(1, 500, scale.rows).round(2),
                "status": rng.choice(statuses, scale.rows),
            }
            amounts[first : first + scale.rows] = columns["amount"]
            new.append(files.write(Content.DATA, SCHEMA, columns))
        exchange_files(made.table, (), new, Operation.APPEND)
        written += len(new)
        each = np.arange(0, scale.rows, 20)
        places = {
            "file_path": sorted(file.path for file in new for _ in each),
            "pos": np.tile(each, len(new)),
        }
        gone = rng.integers(0, written * scale.rows, len(new) * scale.rows // 20)
        live[gone] = False
        deletes = [
            files.write(Content.POSITION_DELETES, POSITION_DELETES, places),
            files.write(Content.EQUALITY_DELETES, keys, {"id": gone}, (1,)),
        ]
        exchange_files(made.table, (), deletes, Operation.DELETE)
        say(f"{written:,} of {scale.files:,} data files are written")
    data = Path(made.table.location().removeprefix("file://")) / "data"
    old = time.time() - OLD.total_seconds()
    for number in range(scale.orphans):
        path = data / f"orphan-{number:08}.parquet"
        path.write_bytes(b"x")
        os.utime(path, (old, old))
    made.close()
    return int(live.sum()), round(float(amounts[live].sum()), 2)


def say(text: str) -> None:
    """Show progress."""
    print(f"{time.perf_counter() - BEGAN:6.0f} s  {text}", file=sys.stderr, flush=True)


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
    """Count the rows, and sum a column, with DuckDB; keys are unique."""
    query = "SELECT count(*), count(DISTINCT id), sum(amount::DECIMAL(12, 2)) FROM iceberg_scan(?)"
    found = duckdb_with_iceberg().execute(query, [metadata_of(home, side)]).fetchone()
    assert found is not None
    rows, keys, total = found
    assert keys == rows, f"{rows - keys} rows have the key of another"
    return rows, round(float(total), 2)


def files_of(home: Path) -> int:
    """The Parquet files on disk."""
    return sum(1 for _ in home.joinpath("warehouse").rglob("*.parquet"))


# ---- a side, in a process of its own


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
    spark = session_with_runtime(home, JAR, home / "warehouse")
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
    """Do the jobs of one side, and say when each begins and what it took."""
    jobs = (calve_jobs if side == "calve" else spark_jobs)(home)
    for name in JOBS:
        print(json.dumps({"begins": name}), flush=True)
        began = time.perf_counter()
        jobs[name]()
        print(json.dumps({"job": name, "seconds": time.perf_counter() - began}), flush=True)


# ---- both


@dataclass
class Taken:
    """What a job took."""

    seconds: float = 0.0
    memory: dict[str, int] = field(default_factory=lambda: {"python": 0, "java": 0})
    """At the moment with the highest sum."""
    begun: bool = False
    ended: bool = False

    @property
    def peak(self) -> int:
        """The highest sum of all processes."""
        return sum(self.memory.values())


class Side:
    """One side at work in a process of its own, watched from this one."""

    def __init__(self, side: str, home: Path) -> None:
        command = [sys.executable, __file__, "--side", side, "--folder", str(home)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._side, self._job, self.taken = side, "", {name: Taken() for name in JOBS}

    def run(self, seconds: float) -> dict[str, Taken]:
        """Wait for all jobs, at most so long; what is not done then is stopped."""
        stopping = threading.Timer(seconds, self._stop)
        stopping.start()
        watching = threading.Thread(target=self._watch, daemon=True)
        watching.start()
        began = time.perf_counter()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if "begins" in said:
                self._job, began = said["begins"], time.perf_counter()
                self.taken[self._job].begun = True
            else:
                done = self.taken[said["job"]]
                done.seconds, done.ended, self._job = said["seconds"], True, ""
                say(f"{self._side} {said['job']}: {done.seconds:.1f} s, {done.peak / 1e6:.0f} MB")
        if self._job:
            self.taken[self._job].seconds = time.perf_counter() - began
            say(f"{self._side} {self._job}: stopped after {self.taken[self._job].seconds:.0f} s")
        stopping.cancel()
        if self._process.wait() and not stopping.finished.is_set():
            raise SystemExit(f"{self._side} failed")
        watching.join()
        return self.taken

    def _stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        while self._process.poll() is None:
            memory, job = _memory_below(self._process.pid), self._job
            if job and sum(memory.values()) > self.taken[job].peak:
                self.taken[job].memory = memory
            time.sleep(WATCH_SECONDS)


def _memory_below(root: int) -> dict[str, int]:
    """What a process and all that it started have in memory, by kind; what several share counts once."""
    found, family = {"python": 0, "java": 0}, [root]
    for pid in family:
        process = Path("/proc", str(pid))
        with suppress(OSError):  # it has just ended
            family += [int(n) for one in process.glob("task/*/children") for n in one.read_text().split()]
            kind = "python" if "python" in (process / "exe").readlink().name else "java"  # or a fork of it
            found[kind] += 1024 * sum(map(int, _PSS.findall((process / "smaps_rollup").read_text())))
    return found


def compare(folder: Path, scale: Scale, seconds: float, results: Recording) -> None:
    """Make the table, let both sides work, check, and print."""
    deadline, home, made = time.perf_counter() + seconds, folder / "home", folder / "made"
    expected = make_table(home, scale)
    home.rename(made)
    taken: dict[str, dict[str, Taken]] = {}
    for left, side in ((2, "calve"), (1, "spark")):
        shutil.copytree(made, home)
        if side == "spark":
            give_to_hadoop(home)
        count = files_of(home)
        say(f"{side} begins: {count:,} Parquet files, {expected[0]:,} rows")
        taken[side] = Side(side, home).run(max(30.0, (deadline - time.perf_counter()) / left))
        if taken[side]["compact"].ended:
            found = facts_of(home, side)
            assert found == expected, f"{side} changed the table: rows and sum are {found}, expected {expected}"
        print(f"{side}: {count:,} Parquet files became {files_of(home):,}; {expected[0]:,} rows", flush=True)
        shutil.rmtree(home)
    print(
        f"{'job':10}{'calve':>10}{'Spark':>10}{'ratio':>8}   memory: calve (Python, JVM)   Spark (Python, JVM)   ratio"
    )
    for name in JOBS:
        ours, theirs = taken["calve"][name], taken["spark"][name]
        _record(results, Case(f"{name}: {scale.files:,} files of {scale.rows:,} rows", "s", PROCEDURES, CHECK), taken)
        print(
            f"{name:10}{_seconds(ours):>10}{_seconds(theirs):>10}{_ratio(ours, theirs, 'seconds'):>8}"
            f"{_memory(ours):>28}{_memory(theirs):>28}{_ratio(ours, theirs, 'peak'):>8}"
        )


def _record(results: Recording, case: Case, taken: dict[str, dict[str, Taken]]) -> None:
    job = case.name.partition(":")[0]
    for side, system in (("calve", "calve"), ("spark", PROCEDURES)):
        done = taken[side][job]
        if done.ended:
            results.add(case, system, [done.seconds], peak_mb=round(done.peak / 1e6))
        else:
            results.leave_out(case, system, f"not done after {done.seconds:.0f} s" if done.begun else "not begun")


def _ratio(ours: Taken, theirs: Taken, what: str) -> str:
    """Of what both took, if both did the whole job."""
    if not (ours.ended and theirs.ended):
        return "-"
    return f"{getattr(ours, what) / max(0.01, getattr(theirs, what)):.2f}"


def _seconds(taken: Taken) -> str:
    if not taken.begun:
        return "not begun"
    return f"{'' if taken.ended else '>'}{taken.seconds:.1f} s"


def _memory(taken: Taken) -> str:
    if not taken.begun:
        return "-"
    return f"{taken.peak / 1e6:,.0f} MB ({taken.memory['python'] / 1e6:,.0f}, {taken.memory['java'] / 1e6:,.0f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--orphans", type=int, default=50_000)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--side", choices=["calve", "spark"], help=argparse.SUPPRESS)
    add_arguments(parser)
    given = parser.parse_args()
    if given.side:
        work(given.side, given.folder)
        return
    with (
        recording("upkeep", "Compaction, expiry and orphans", given) as results,
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
    ):
        scale = Scale(given.files, given.rows, given.commits, given.orphans)
        compare(Path(folder), scale, 60 * given.minutes, results)


if __name__ == "__main__":
    main()
