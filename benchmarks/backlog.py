"""A backlog behind a commit interval: how fast it is read, and how many snapshots it becomes.

    python benchmarks/backlog.py [--rows 1000000] [--interval 20s] [--seconds 60]

The source is the load generator with all of its rows waiting, 50,000 to a checkpoint. A commit interval says when
snapshots are made and never how much is read, so the rate must not depend on it.
"""

import argparse
import tempfile
import time
from pathlib import Path

from harness import Case, Recording, add_arguments, recording

import calve
from calve.sql.values import parse_duration


def measure(home: Path, rows: int, interval: str, seconds: float, results: Recording) -> None:
    """Run until everything is committed, or for so many seconds."""
    lake = calve.connect(home=home)
    lake.spark(master="local[2]").range(10).count()  # the JVM's own start is not the question
    sink = calve.sink(calve.orders(rows=rows, changes=0), name="bench", into=lake.table("b.t"), key=["id"])
    started = time.monotonic()
    query = sink.start(commit_interval=interval)
    while query.active and time.monotonic() - started < seconds:
        query.await_termination(0.1)
    taken = time.monotonic() - started
    done = sum(commit.changes for commit in query.recent_commits())
    snapshots = [commit.changes for commit in query.recent_commits() if commit.changes]
    query.stop()
    results.add(
        Case(f"{rows:,} rows waiting, commits every {interval}", "rows/s"),
        "calve",
        [done / taken],
        commits=len(snapshots),
    )
    print(f"COMMIT INTERVAL {parse_duration(interval)}: {done:,} of {rows:,} rows committed in {taken:.1f} s")
    print(f"  {done / taken:,.0f} rows/s; rows per snapshot: {', '.join(f'{n:,}' for n in snapshots)}")


def main() -> None:
    """One measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--interval", default="20s")
    parser.add_argument("--seconds", type=float, default=60.0)
    add_arguments(parser)
    given = parser.parse_args()
    with (
        recording("backlog", "A backlog behind a commit interval", given) as results,
        tempfile.TemporaryDirectory(prefix="calve-backlog-") as scratch,
    ):
        measure(Path(scratch), given.rows, given.interval, given.seconds, results)


if __name__ == "__main__":
    main()
