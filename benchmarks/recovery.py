"""A crash at 90 % of a long window: how long until the first commit, with staged checkpoints and without.

    python benchmarks/recovery.py [--files 60] [--rows 20000]

The source is a folder of JSON files, one per checkpoint. Staged, the run that follows reads the last tenth and merges
what is there; with `RECOVERY = 'replay'` it reads the whole window again. Beside it: what staging costs, as a ratio of
the time to take everything in to that with a commit for every checkpoint.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Case, Recording, add_arguments, recording
from peer_reader import duckdb_with_iceberg

import calve

KILLED = -9
CHECK = "rows, sum and values, by DuckDB"
REPLAY, EACH = "the window read again", "a commit for every checkpoint"


def make_files(folder: Path, files: int, rows: int) -> None:
    """Upserts of random keys."""
    folder.mkdir()
    rng = random.Random(7)
    for number in range(files):
        lines = (
            json.dumps(
                {"id": rng.randrange(files * rows // 4), "v": f"value {i}", "amount": i / 4, "seq": number * rows + i}
            )
            for i in range(rows)
        )
        (folder / f"{number:05d}.json").write_text("\n".join(lines) + "\n")


def run_once(home: Path, folder: Path, how: str) -> float:
    """Take everything in; seconds from the start of the sink to its last commit."""
    lake = calve.connect(home=home)
    lake.spark(master="local[2]").range(10).count()  # the JVM's own start is not the question
    source = calve.files(
        str(folder),
        format="json",
        schema="id BIGINT NOT NULL, v STRING, amount DOUBLE, seq BIGINT",
        envelope=calve.Upsert(order_by=("seq",), columns="id BIGINT NOT NULL, v STRING, amount DOUBLE"),
        max_files_per_checkpoint=10_000 if how == "replay" else 1,
    )
    sink = calve.sink(source, name="bench", into=lake.table("b.t"), key=["id"])
    started = time.monotonic()
    query = sink.start() if how == "each" else sink.start(commit_interval=3600, recovery=how)
    query.await_caught_up()
    seconds = time.monotonic() - started
    query.stop()
    return seconds


def in_process(home: Path, folder: Path, how: str, faults: str = "") -> float:
    """The same in a process of its own; -1 when it was killed."""
    command = [sys.executable, __file__, "--home", str(home), "--folder", str(folder), "--how", how]
    done = subprocess.run(
        command, env={**os.environ, "CALVE_FAULTS": faults}, capture_output=True, text=True, check=False
    )
    if done.returncode == KILLED:
        return -1.0
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout.split()[-1])


def check(home: Path, folder: Path) -> None:
    """Compare the rows of the table with the last change of each key."""
    last = f"(SELECT id, unnest(arg_max(struct_pack(v, amount), seq)) FROM '{folder}/*.json' GROUP BY id)"
    table = calve.connect(home=home).open().load_table("b.t").metadata_location
    connection = duckdb_with_iceberg()
    found, expected = (
        connection.execute(f"SELECT count(*), sum(amount), count(DISTINCT (id, v)) FROM {rows}").fetchone()
        for rows in (f"iceberg_scan('{table}')", last)
    )
    if found != expected:
        raise SystemExit(f"{home.name} is wrong: {found}, expected {expected}")


def compare(files: int, rows: int, results: Recording) -> None:
    """Print and record both tables."""
    with tempfile.TemporaryDirectory(prefix="calve-recovery-") as scratch:
        root = Path(scratch)
        make_files(root / "in", files, rows)
        print(f"{files} checkpoints of {rows:,} changes in one window")
        found = {}
        for how, fault in (("stage", f"stage.after:{files * 9 // 10}=kill"), ("replay", "files.after:1=kill")):
            home = root / f"crash-{how}"
            if in_process(home, root / "in", how, fault) != -1:
                raise RuntimeError("the crash did not happen")
            found[how] = in_process(home, root / "in", how)
            check(home, root / "in")
            print(f"  first commit after a crash at 90 %, {how}: {found[how]:.2f} s")
        print(f"  replay / stage: {found['replay'] / found['stage']:.2f}x")
        size = f"{files} checkpoints of {rows:,} changes"
        crash = Case(f"first commit after a crash at 90 % of {size}", "s", REPLAY, CHECK)
        results.add(crash, "calve, staged", [found["stage"]])
        results.add(crash, REPLAY, [found["replay"]])
        whole = {how: in_process(root / f"whole-{how}", root / "in", how) for how in ("stage", "each")}
        for how in whole:
            check(root / f"whole-{how}", root / "in")
        written = list((root / "whole-stage" / "warehouse").rglob("data/*.parquet"))
        print(f"  everything, staged and committed once: {whole['stage']:.2f} s, {len(written)} data files")
        print(f"  everything, a commit for every checkpoint: {whole['each']:.2f} s")
        print(f"  staging costs {whole['stage'] / whole['each']:.2f} of it")
        every = Case(f"{size} without a crash", "s", EACH, CHECK)
        results.add(every, "calve, staged", [whole["stage"]], data_files=len(written))
        results.add(every, EACH, [whole["each"]])


def main() -> None:
    """Compare, or be one of the compared processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--how", default="")
    add_arguments(parser)
    given = parser.parse_args()
    if given.how:
        print(run_once(given.home, given.folder, given.how))
    else:
        with recording("recovery", "Recovery from a crash", given) as results:
            compare(given.files, given.rows, results)


if __name__ == "__main__":
    main()
