"""A clock that is set back between two runs: what is in the table's metadata stays in order, as Java demands."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

from calve.catalog.connect import STORE_IO, Catalog, _catalog_class, connect_embedded, sqlite_uri
from calve.clock import SystemClock
from tests.support.readers import duckdb_rows
from tests.support.runs import Run, spec_of

AHEAD = timedelta(hours=1)


class Ahead(SystemClock):
    """As it was before somebody set it back by an hour."""

    def now_ms(self) -> int:
        return super().now_ms() + AHEAD // timedelta(milliseconds=1)


def catalog_of(kind: str, home: Path) -> Catalog:
    if kind == "embedded":
        return connect_embedded(home)
    catalog = _catalog_class("sql")  # as with PostgreSQL
    return catalog("calve", uri=sqlite_uri(home / "other.db"), warehouse=f"file://{home}/other", **STORE_IO)


def in_order(table: Table) -> None:
    """What Java checks whenever it reads metadata."""
    metadata = table.metadata
    snapshots = [entry.timestamp_ms for entry in metadata.snapshot_log]
    files = [entry.timestamp_ms for entry in metadata.metadata_log]
    assert (snapshots, files) == (sorted(snapshots), sorted(files))
    assert metadata.last_updated_ms >= max(*snapshots, *files)


@pytest.mark.parametrize("kind", ["embedded", "sql"])
def test_times_of_a_table_stay_in_order_when_the_clock_is_set_back_by_an_hour(tmp_path: Path, kind: str) -> None:
    catalog = catalog_of(kind, tmp_path)
    before = Run(tmp_path, spec_of("s"), catalog, Ahead())
    before.commit({1: "a", 2: "a"})
    after = Run(tmp_path, spec_of("s"), catalog)
    frontier = before.run.state.frontier
    for value in ("b", "c"):
        after.commit({2: value})
        in_order(after.now)
        with after.now.transaction() as change:
            change.set_properties({"owner": value})
        in_order(after.now)
    assert after.run.state.frontier > frontier
    assert sorted((row["id"], row["v"]) for row in duckdb_rows(after.now.metadata_location)) == [(1, "a"), (2, "c")]
