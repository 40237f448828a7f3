"""Memory and time of orphan removal by the number of files: `python benchmarks/orphans.py [--names 1000000]`.

Half of the listed names are named by the table, half are orphans. Listing, metadata and deletion are made up, so
this measures what the job itself holds, and nothing of the store.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import PropertyMock, patch

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import calve
from calve.iceberg.files.names import own_name
from calve.iceberg.snapshot.table_files import TableView
from calve.maintain.orphans import OrphanOptions, remove_orphans
from calve.storage.listing import StoredFile

YEAR_MS = 365 * 24 * 3_600_000


def peak_mb() -> float:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", type=int, default=1_000_000)
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory() as home:
        lake = calve.connect(home=home)
        catalog = lake.open()
        catalog.create_namespace("shop")
        table = catalog.create_table("shop.t", Schema(NestedField(1, "id", LongType(), required=False)))
        mark, old_ms = table.metadata.table_uuid.hex[:8], round(time.time() * 1000) - YEAR_MS

        def name(number: int) -> str:
            return f"data/day=2026-01-{number % 28:02d}/{own_name(mark, f'{number:05d}-{number:032x}.parquet')}"

        def listed(location: str, _: object) -> Iterator[StoredFile]:
            del location
            return (StoredFile(name(number).encode(), 1000, old_ms) for number in range(names))

        def files(*_: object, **__: object) -> Iterator[str]:
            return (f"{table.location()}/{name(number)}" for number in range(0, names, 2))

        before, options = peak_mb(), OrphanOptions(timedelta(0), force=True)
        with (
            patch("calve.maintain.orphans.walk_files", listed),
            patch("calve.maintain.orphans.discard_orphans", lambda _, locations: len(locations)),
            patch.object(TableView, "files_in", files),
            patch.object(TableView, "head_lists", PropertyMock(return_value=frozenset({"list"}))),
            patch.object(TableView, "lists", PropertyMock(return_value=frozenset({"list"}))),
            patch.object(TableView, "manifests_in", return_value=("manifest",)),
        ):
            for run in ("first", "second"):
                began = time.perf_counter()
                report = remove_orphans(lake.table("shop.t"), options)
                print(
                    f"{run} run: {names:,} names, {report.orphans.files:,} orphans, {report.removed.files:,} removed, "
                    f"{time.perf_counter() - began:.1f} s, peak {peak_mb() - before:.0f} MB above {before:.0f} MB"
                )
        print(f"notes: {sum(f.stat().st_size for f in Path(home, 'orphans').iterdir()) / 1e6:.0f} MB on disk")


if __name__ == "__main__":
    main()
