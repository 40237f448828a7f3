"""Rows of partitioned tables: where they are, where they move to, and that they are there once."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import DayTransform
from pyspark.sql import SparkSession

from calve.iceberg.files.manifest_cache import live_entries
from calve.model.change import DELETE, UPSERT
from tests.integration.write.every_type import COLUMNS, random_rows
from tests.integration.write.frames import frame_of
from tests.integration.write.partitioned_table import PartitionedTable
from tests.integration.write.test_writers import PARTITIONING

ITEMS = "id BIGINT, place STRING, at TIMESTAMP_NTZ"


def item(key: int, place: str | None, rank: int, *, day: int = 1) -> tuple[Any, ...]:
    return key, place, _day(day), UPSERT, rank, None


def _day(day: int) -> dt.datetime:
    return dt.datetime(1969, 12, 30) + dt.timedelta(days=day)  # noqa: DTZ001 - a local time


@pytest.mark.parametrize("writer", PARTITIONING)
def test_a_row_that_moves_to_another_partition_is_gone_from_the_old_one(
    spark: SparkSession, tmp_path: Path, writer: str
) -> None:
    first = frame_of(spark, ITEMS, [item(n, "north", n) for n in range(4)])
    table = PartitionedTable(tmp_path, first, "place")
    table.commit(PARTITIONING[writer], first)
    moves = [item(1, "south", 0), item(2, "east", 1), item(2, "west", 2), item(3, "south", 3), item(3, "north", 4)]
    table.commit(PARTITIONING[writer], frame_of(spark, ITEMS, [*moves, (0, None, None, DELETE, 9, None)]))
    wanted = [(1, "south"), (2, "west"), (3, "north")]
    assert table.rows(["id", "place"]) == {"DuckDB": wanted, "Spark": wanted}


def test_rows_of_older_specs_are_reached_by_deletes(spark: SparkSession, tmp_path: Path) -> None:
    first = frame_of(spark, ITEMS, [item(n, "north", n, day=n) for n in range(4)])
    table = PartitionedTable(tmp_path, first, "place")
    table.commit(PARTITIONING["driver"], first)
    with table.iceberg.update_spec() as update:
        update.add_field("at", DayTransform(), "at_day")
    with table.iceberg.update_spec() as update:
        update.remove_field("place")
    second = table.commit(PARTITIONING["tasks"], frame_of(spark, ITEMS, [item(1, "north", 0, day=7), item(5, "x", 1)]))
    assert {file.spec_id for file in second.data_files} == {table.iceberg.metadata.default_spec_id}
    assert {(file.spec_id, file.partition) for file in second.delete_files} == {(1, ())}
    gone = [(n, None, None, DELETE, n, None) for n in (0, 5)]
    table.commit(PARTITIONING["driver"], frame_of(spark, ITEMS, gone))
    wanted = [(1, _day(7)), (2, _day(2)), (3, _day(3))]
    assert table.rows(["id", "at"]) == {"DuckDB": wanted, "Spark": wanted}


def test_manifests_state_the_partitions_in_them(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ITEMS, [item(1, "b", 0, day=0), item(2, None, 1, day=3), item(3, "a", 2, day=1)])
    table = PartitionedTable(tmp_path, frame, "place", "day(at)", "bucket(4, id)", "void(id)")
    table.commit(PARTITIONING["driver"], frame)
    iceberg = table.iceberg
    spec = iceberg.spec()
    assert [field.field_id for field in spec.fields] == [1000, 1001, 1002, 1003]
    assert [field.name for field in spec.fields] == ["place", "at_day", "id_bucket", "id_null"]
    snapshot = iceberg.current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(iceberg.io)
    place, day, bucket, void = manifest.partitions or []
    assert (place.contains_null, place.lower_bound, place.upper_bound) == (True, b"a", b"b")
    assert (day.lower_bound, day.upper_bound) == ((-2).to_bytes(4, "little", signed=True), (1).to_bytes(4, "little"))
    assert not bucket.contains_null
    assert (void.contains_null, void.lower_bound) == (True, None)
    paths = [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(iceberg.io)]
    assert any("/data/place=b/at_day=1969-12-30/id_bucket=" in path for path in paths)


def test_values_that_no_folder_can_be_named_after_are_kept_whole(spark: SparkSession, tmp_path: Path) -> None:
    odd = ["x" * 100_000, "x" * 99_999 + "y", "a/b=c d%2F?#", "", "..", "null", "é😀"]
    frame = frame_of(spark, ITEMS, [item(n, place, n) for n, place in enumerate([*odd, None])])
    table = PartitionedTable(tmp_path, frame, "place")
    result = table.commit(PARTITIONING["driver"], frame)
    assert {file.partition for file in result.data_files} == {(place,) for place in [*odd, None]}
    wanted = sorted(enumerate([*odd, None]), key=repr)
    assert table.rows(["id", "place"]) == {"DuckDB": wanted, "Spark": wanted}


FIELDS = {
    **{name: ["{}"] for name in ("yes", "ratio", "exact")},
    **{
        name: ["{}", "bucket(3, {})", "truncate(10, {})"] for name in ("tiny", "small", "number", "long", "text", "raw")
    },
    **{name: ["{}", "bucket(3, {})", "truncate(1000, {})"] for name in ("price", "total", "huge")},
    **{name: ["{}", "bucket(3, {})", "year({})", "month({})", "day({})"] for name in ("day", "at", "local")},
}
fields = st.sampled_from(
    [form.format(name) for name, forms in FIELDS.items() for form in forms] + ["hour(at)", "void(id)"]
)
specs = st.lists(fields, min_size=1, max_size=3, unique_by=lambda text: text.strip(")").split("(")[-1].split(", ")[-1])
batches = st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12), min_size=1, max_size=4)


def partitions_in_manifests(table: PartitionedTable) -> set[tuple[str, str]]:
    """As they are read back when manifests are merged."""
    iceberg = table.iceberg
    snapshot = iceberg.current_snapshot()
    files = [
        entry.data_file
        for manifest in (snapshot.manifests(iceberg.io) if snapshot else ())
        for entry in live_entries(iceberg.io, manifest)
    ]
    return {(file.file_path, repr(tuple(file.partition[i] for i in range(len(file.partition))))) for file in files}


@settings(max_examples=settings().max_examples // 8)
@given(specs, batches, st.sampled_from(sorted(PARTITIONING)), st.randoms(use_true_random=False))
def test_random_changes_of_random_partitions_leave_what_a_dictionary_holds(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    spec: list[str],
    batches: list[list[tuple[int, bool]]],
    writer: str,
    rng: random.Random,
) -> None:
    empty = frame_of(spark, f"{COLUMNS}, mark STRING", [])
    table = PartitionedTable(tmp_path_factory.mktemp("home"), empty, *spec)
    model: dict[int, str] = {}
    for batch in batches:
        rows = []
        for rank, ((key, gone), values) in enumerate(zip(batch, random_rows(rng, len(batch)), strict=True)):
            text = None if gone else f"{rng.random()}"
            rows.append((key, *([None] * 15 if gone else values[1:]), text, DELETE if gone else UPSERT, rank, None))
            model.pop(key, None)
            if text is not None:
                model[key] = text
        result = table.commit(PARTITIONING[writer], frame_of(spark, f"{COLUMNS}, mark STRING", rows))
        assert partitions_in_manifests(table) >= {(file.path, repr(file.partition)) for file in result.data_files}
    wanted = sorted(model.items(), key=repr)
    assert table.rows(["id", "mark"]) == {"DuckDB": wanted, "Spark": wanted}
    table.catalog.close()
