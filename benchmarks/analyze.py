"""Seconds of ANALYZE TABLE over many Parquet files: the first time, again with nothing new, and with a few changes.

    python benchmarks/analyze.py [--files 10000] [--folders 100]

Files are in folders of a few rows each; Spark runs already. The second time has to be at least 20 times as fast as the
first. At the end: what planning a read of one file out of all takes.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from harness import Case, Recording, add_arguments, recording

from calve.analyze.file_pruning import known_of
from calve.analyze.folder_subject import FolderSubject
from calve.analyze.refresh import AnalyzeRequest, Refreshed, refresh
from calve.metastore.config import MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.tables import open_tables
from calve.model.scan import ColumnComparison, ComparisonOperator
from calve.spark.session import embedded_session

T = TypeVar("T")

AT_LEAST = 20
ROWS = 20


def put(path: Path, first: int) -> None:
    """A small file with numbers of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first * ROWS, (first + 1) * ROWS)
    pq.write_table(
        pa.table({"id": numbers, "amount": [n / 7 for n in numbers], "name": [f"n{n}" for n in numbers]}), path
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and how long it takes."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--files", type=int, default=10_000)
    arguments.add_argument("--folders", type=int, default=100)
    add_arguments(arguments)
    given = arguments.parse_args()
    with recording("analyze", "ANALYZE TABLE", given) as results, tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.files, given.folders, results)


def measure(place: Path, files: int, folders: int, results: Recording) -> None:
    """All of it on one tree."""
    root, home = place / "in", place / "home"
    paths = [root / f"{number % folders:03}" / f"{number:06}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        put(path, number)
    spark = embedded_session(home)
    spark.sparkContext.parallelize(range(4), 4).map(str).collect()  # workers are there
    with Metastore(MetastoreConfig.load(home, {})) as metastore:
        tables = open_tables(metastore)

        def analyze() -> Refreshed:
            return refresh(tables, FolderSubject.of(str(root), lambda: spark), AnalyzeRequest())

        found, first = timed(analyze)
        assert found.looked == files
        found, second = timed(analyze)
        assert found.up_to_date
        for number in range(0, files, max(1, files // 5)):
            put(paths[number], files + number)
        found, third = timed(analyze)
        assert (found.looked, found.changed) == (5, 5)
        subject = FolderSubject.of(str(root), lambda: spark)
        condition = ColumnComparison("id", ComparisonOperator.EQUAL, ROWS + 1)
        known, look = timed(lambda: known_of(tables, subject))
        assert known.general is not None
        schema = known.general.schema or ""
        chosen, choice = timed(lambda: known.choose(condition, schema))
        assert len(chosen.files) == 1
    for when, seconds in (("first", first), ("nothing new", second), ("five files changed", third)):
        results.add(Case(f"{files:,} files in {folders:,} folders, {when}", "s"), "calve", [seconds])
    print(f"{files:,} files in {folders:,} folders: seconds")
    print(f"  first             {first:8.2f}")
    print(f"  nothing new       {second:8.2f}   {first / second:6.1f} times as fast")
    print(f"  five files changed{third:8.2f}   {first / third:6.1f} times as fast")
    print(f"  which file to read{look + choice:8.2f}   1 of {chosen.listed:,}")
    assert first / second >= AT_LEAST, f"the second time is only {first / second:.1f} times as fast"


if __name__ == "__main__":
    main()
