"""What Spark with the Iceberg runtime reads of tables that were written without it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.api.engines import readable_table, recipe
from calve.definitions.workplace import workplace
from calve.iceberg.snapshot import draft
from calve.model.engine import ReadingEngine
from tests.support.keyed import no_session
from tests.support.readers import spark_iceberg_rows
from tests.unit.iceberg.sample import NAME, Sample

FAN_IN = 8


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path / "home")
    yield table
    table.close()


def spark_rows(sample: Sample, snapshot_id: int | None = None) -> dict[int, str]:
    found = spark_iceberg_rows(sample.table.metadata_location, snapshot_id=snapshot_id)
    rows = {row["id"]: row["v"] for row in found}
    assert len(rows) == len(found), found
    return rows


def test_spark_reads_a_table_with_claims_and_no_rows(sample: Sample) -> None:
    sample.commit({})
    assert spark_rows(sample) == {}


def test_spark_applies_equality_deletes_as_of_every_snapshot(sample: Sample) -> None:
    first = sample.commit({1: "a", 2: "b", 3: "c"})
    second = sample.commit({1: "A", 4: "d"}, deletes=[1, 2, 4])
    third = sample.commit({2: "again"}, deletes=[2, 3])
    assert spark_rows(sample, first.snapshot_id) == {1: "a", 2: "b", 3: "c"}
    assert spark_rows(sample, second.snapshot_id) == {1: "A", 3: "c", 4: "d"}
    assert spark_rows(sample, third.snapshot_id) == spark_rows(sample) == {1: "A", 2: "again", 4: "d"}


def test_spark_reads_merged_manifests_and_what_came_after(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "FAN_IN", FAN_IN)
    for number in range(FAN_IN):
        sample.commit({number: "x", 0: f"by {number}"}, deletes=[number, 0])
    assert sample.iceberg.merge_manifests(sample.iceberg.load())
    expected = {0: "by 7", **dict.fromkeys(range(1, FAN_IN), "x")}
    assert spark_rows(sample) == expected
    sample.commit({1: "later"}, deletes=[1, 2])
    del expected[2]
    assert spark_rows(sample) == sample.rows() == {**expected, 1: "later"}


def test_the_recipe_of_connect_info_reads_the_rows(sample: Sample) -> None:
    sample.commit({1: "a", 2: "b"})
    place = workplace(sample.home, no_session, {})
    text = recipe(readable_table(place, str(NAME), None), ReadingEngine.SPARK).text
    found = re.search(r'load\("([^"]+)"\)', text)
    assert found is not None
    rows = spark_iceberg_rows(found[1])
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, "a"), (2, "b")]


# Not with `#`: where Spark gets a path instead of a catalog's table, it takes what follows for a metadata table's name.
@pytest.mark.parametrize("name", ["a b%20c", "q?m", "ümläut"])
def test_spark_reads_a_table_under_any_name(tmp_path: Path, name: str) -> None:
    sample = Sample(tmp_path / name)
    sample.commit({1: "a", 2: "b"})
    sample.commit({1: "A"}, deletes=[1])
    assert spark_rows(sample) == {1: "A", 2: "b"}
    sample.close()
