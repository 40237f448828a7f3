import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType

import calve
from calve.errors import CalveError, InvalidInput
from calve.model.frontier import SEALED
from calve.reader.local import read_here
from tests.unit.iceberg.sample import SINK, Sample, SetClock

OTHER = "5e9a2d0c-0000-4000-8000-000000000002"


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    """Frontiers 10, 20 and 30."""
    table = Sample(tmp_path)
    table.commit({1: "a", 2: "b"})
    table.commit({2: "bb", 3: "c"}, [2])
    table.commit({}, [1])
    yield table
    table.close()


def rows(sample: Sample, name: str = "shop.orders", **at: Any) -> dict[int, str]:
    reading = read_here(calve.connect(home=sample.home).table(name), **at)
    return {row["id"]: row["v"] for batch in reading.rows() for row in batch.to_pylist()}


def refused(sample: Sample, name: str = "shop.orders", **at: Any) -> CalveError:
    with pytest.raises(InvalidInput) as error:
        rows(sample, name, **at)
    return error.value


def test_a_table_is_read_as_it_is_now(sample: Sample) -> None:
    assert rows(sample) == {2: "bb", 3: "c"}


@pytest.mark.parametrize(
    ("frontier", "wanted"),
    [(10, {1: "a", 2: "b"}), (19, {1: "a", 2: "b"}), (20, {1: "a", 2: "bb", 3: "c"}), (10**15, {2: "bb", 3: "c"})],
)
def test_as_of_a_frontier_the_newest_snapshot_at_or_below_it_is_read(
    sample: Sample, frontier: int, wanted: dict[int, str]
) -> None:
    assert rows(sample, as_of_frontier=frontier) == wanted


def test_a_sealed_snapshot_is_above_every_frontier(sample: Sample) -> None:
    proposal = sample.proposal({9: "last"})
    sample.iceberg.commit(
        sample.iceberg.load(), replace(proposal, progress=replace(proposal.progress, frontier=SEALED))
    )
    assert rows(sample)[9] == "last"
    assert 9 not in rows(sample, as_of_frontier=10**15)


def test_a_snapshot_is_read_with_the_columns_of_its_time(sample: Sample) -> None:
    first = min(sample.table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    with sample.table.update_schema() as update:
        update.rename_column("v", "w")
        update.add_column("more", StringType())
    assert rows(sample, snapshot_id=first.snapshot_id) == {1: "a", 2: "b"}
    lake = calve.connect(home=sample.home)
    assert read_here(lake.table("shop.orders")).schema.names == ["id", "w", "more"]


def test_branches_and_tags_are_read(sample: Sample) -> None:
    first = min(sample.table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    with sample.table.manage_snapshots() as manage:
        manage.create_branch(first.snapshot_id, "audit").create_tag(first.snapshot_id, "eod")
    assert rows(sample, ref="audit") == rows(sample, ref="eod") == {1: "a", 2: "b"}
    assert rows(sample, ref=f"calve-{SINK}") == rows(sample)


def test_a_table_without_snapshots_has_no_rows(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    assert rows(sample) == {}
    assert "no snapshot of a sink" in refused(sample, as_of_frontier=10).primary
    sample.close()


def test_a_frontier_before_the_oldest_snapshot_is_refused(sample: Sample) -> None:
    error = refused(sample, as_of_frontier=9)
    assert error.primary == 'table "shop.orders" has no snapshot at or before frontier 9'
    assert error.detail == "The oldest remaining snapshot is at [10]."


def test_a_snapshot_of_another_table_is_refused(sample: Sample) -> None:
    error = refused(sample, snapshot_id=7)
    assert error.primary == 'table "shop.orders" has no snapshot 7'
    assert error.detail.startswith("It has 3; the newest are ")


def test_a_branch_that_is_misspelt_is_suggested(sample: Sample) -> None:
    assert refused(sample, ref="mian").hint == 'Did you mean "main"?'


def test_a_table_that_is_misspelt_is_suggested(sample: Sample) -> None:
    error = refused(sample, "shop.order")
    assert (error.primary, error.hint) == ('table "shop.order" does not exist', 'Did you mean "shop.orders"?')
    assert refused(sample, "shp.orders").hint == 'Did you mean "shop.orders"?'


def test_two_moments_at_once_are_refused(sample: Sample) -> None:
    assert refused(sample, as_of_frontier=10, snapshot_id=1).detail == "Got snapshot_id and frontier."
    assert "only together with a frontier" in refused(sample, sink="s").primary


def test_with_several_sinks_the_frontier_needs_a_name(sample: Sample) -> None:
    proposal = sample.proposal({8: "other"})
    sample.iceberg.commit(sample.iceberg.load(), replace(proposal, progress=replace(proposal.progress, sink_id=OTHER)))
    assert "several sinks" in refused(sample, as_of_frontier=40).primary
    assert rows(sample, as_of_frontier=40, sink=SINK) == {2: "bb", 3: "c"}
    assert rows(sample, as_of_frontier=40, sink=OTHER)[8] == "other"
    assert "no snapshot of sink nobody" in refused(sample, as_of_frontier=40, sink="nobody").primary


def at(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(SetClock().now / 1000 + seconds, dt.UTC)


def test_as_of_a_time_the_head_of_that_time_is_read(tmp_path: Path) -> None:
    table = Sample(tmp_path)
    start = table.clock.now
    for number, value in enumerate("abc"):
        table.clock.now = start + number * 1000
        table.commit({1: value}, [1] if number else [])
    for seconds, wanted in ((0, "a"), (0.999, "a"), (1, "b"), (1.5, "b"), (2, "c"), (10**6, "c")):
        assert rows(table, as_of=at(seconds)) == {1: wanted}
    text = f"{at(1.5):%Y-%m-%d %H:%M:%S.%f}"
    assert rows(table, as_of=text) == {1: "b"}, "UTC without a zone"
    assert rows(table, as_of=at(1.5).astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat()) == {1: "b"}
    assert rows(table, as_of=start + 1500) == {1: "b"}
    assert "had no snapshot at 2020-01-01" in refused(table, as_of="2020-01-01").primary
    assert "is not a point in time" in refused(table, as_of="yesterday").primary
    assert "only one point" in refused(table, as_of=at(1), snapshot_id=1).primary
    for wrong in (str(table.table.metadata.current_snapshot_id), True, 1.0):
        assert refused(table, snapshot_id=wrong).primary == "snapshot_id must be a whole number"
    assert rows(table, as_of_frontier="1970-01-01 00:00:00.020") == {1: "b"}, "a frontier as a time"
    table.close()
