"""Manifests by partition: planning reads fewer of them, and nothing else changes."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

import calve
from calve.clock import RandomIds, SystemClock
from calve.errors import CommitConflict, InvalidInput
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.maintain.manifests import RewrittenManifests, rewrite_manifests
from calve.model.scan import ColumnComparison, ComparisonOperator
from calve.model.spec import TableName
from tests.support.combinations import seeds
from tests.support.foreign import NAME, ForeignTable, in_order
from tests.support.readers import duckdb_rows
from tests.support.regions import BY_REGION, SCHEMA, random_commit, row

IN_US = ColumnComparison("region", ComparisonOperator.EQUAL, "us")


@pytest.fixture
def regions(tmp_path: Path) -> Any:
    """A table by region; every commit adds a file to each of ten regions."""
    made = ForeignTable(tmp_path, SCHEMA, BY_REGION)
    for number in range(8):
        names = [f"r{n}" for n in range(8)] + ["us", None]
        made.commit(*(made.data([{**row(number), "region": name}], [name]) for name in names))
    yield made
    made.close()


def rewrite(table: ForeignTable, enough: int = 10) -> RewrittenManifests | None:
    return rewrite_manifests(table.catalog, TableName.parse(NAME), SystemClock(), RandomIds(), enough=enough)


def manifests_read(table: ForeignTable) -> int:
    plan = Scan.of(table.table, AsOf()).plan(IN_US)
    return plan.manifests - plan.pruned.manifests


def entries(table: ForeignTable) -> list[tuple[Any, ...]]:
    found = table.table.inspect.entries().to_pylist()
    numbers = ("snapshot_id", "sequence_number", "file_sequence_number")
    return sorted((e["data_file"]["file_path"], *(e[name] for name in numbers)) for e in found)


def test_a_scan_of_one_partition_reads_one_manifest_instead_of_all(regions: ForeignTable) -> None:
    wanted, before, was = in_order(regions.rows()), entries(regions), manifests_read(regions)
    assert was == 8
    done = rewrite(regions)
    assert done is not None
    assert (done.before, done.after, done.entries) == (8, 5, 80)
    assert manifests_read(regions) == 1
    assert entries(regions) == before, "snapshot ids and sequence numbers are as they were"
    assert in_order(regions.rows()) == wanted
    assert in_order(duckdb_rows(regions.table.metadata_location)) == wanted
    snapshot = regions.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    counts = snapshot.summary.additional_properties
    assert (counts["total-data-files"], counts["manifests-created"], counts["manifests-replaced"]) == ("80", "5", "8")
    assert rewrite(regions) is None, "there is nothing left to do"


def test_only_manifests_with_other_files_are_rewritten_the_next_time(regions: ForeignTable) -> None:
    rewrite(regions)
    regions.commit(*(regions.data([{**row(9), "region": "us"}], ["us"]) for _ in range(2)))
    done = rewrite(regions)
    assert done is not None
    assert done.entries < 80
    assert manifests_read(regions) == 1


@pytest.mark.long
@seeds(3)
def test_deletes_apply_as_before_whatever_their_kind(table: ForeignTable, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        random_commit(table, rng)
    wanted, before = in_order(table.rows()), entries(table)
    assert rewrite(table, enough=1) is not None
    assert entries(table) == before
    assert in_order(table.rows()) == wanted
    assert calve.convert_deletes(table.ref) is not None  # DuckDB cannot compare null keys
    assert rewrite(table, enough=1) is not None
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted


@pytest.mark.long
def test_what_others_commit_meanwhile_stays_in_its_own_manifest(regions: ForeignTable, at_maintenance: Any) -> None:
    """The same new manifests are committed on the new head."""
    others = [lambda n=n: regions.commit(regions.data([{**row(n), "region": "us"}], ["us"])) for n in (50, 51, 52)]
    at_maintenance(lambda: others.pop()() if others else None)
    done = rewrite(regions)
    assert done is not None
    assert not others
    assert manifests_read(regions) == 4
    assert {r["id"] for r in regions.rows()} >= {50, 51, 52}
    assert len(regions.rows()) == 83
    folder = Path(regions.table.location().removeprefix("file://")) / "metadata"
    assert len(list(folder.glob("*-sorted*"))) == 5, "written once"


def test_a_rewrite_that_loses_every_race_leaves_no_manifest_behind(regions: ForeignTable, at_maintenance: Any) -> None:
    at_maintenance(lambda: regions.commit(regions.data([{**row(5), "region": "us"}], ["us"])))
    with pytest.raises(CommitConflict):
        rewrite(regions)
    folder = Path(regions.table.location().removeprefix("file://")) / "metadata"
    assert not list(folder.glob("*-sorted*"))


def test_manifests_that_another_rewrite_replaced_meanwhile_are_planned_again(
    regions: ForeignTable, at_maintenance: Any
) -> None:
    others = [lambda: rewrite(regions, enough=1)]
    at_maintenance(lambda: others.pop()() if others else None)
    done = rewrite(regions)
    assert done is not None
    assert done.after == 5
    assert len(regions.rows()) == 80


def test_a_table_of_format_version_one_is_refused(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA, properties={"format-version": "1"})
    with pytest.raises(InvalidInput, match="cannot be rewritten"):
        rewrite(table)
    table.close()
