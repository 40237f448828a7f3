import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.catalog.row_lineage import next_row_id
from calve.errors import TransientError
from calve.keylookup.indexed import IndexLimits
from calve.keylookup.resolver import DriverLimits
from calve.model.spec import KeyIndexUse
from calve.storage.state import LocalState
from tests.support.dying import DyingState
from tests.support.foreign import Row, in_order
from tests.support.jobs import jobs_counted
from tests.support.keyed import KeyedTable
from tests.support.lineage import check_batch, lineage_of
from tests.support.readers import duckdb_rows, spark_iceberg_rows
from tests.unit.keylookup.test_index import manifest_of, places
from tests.unit.keylookup.test_random import CASES, SCHEMA, check_vectors, files_of, random_row
from tests.unit.keylookup.test_row_ids import BY_VALUE
from tests.unit.keylookup.test_row_ids import SCHEMA as WITH_IDS

NOT_HERE = DriverLimits(rows=0, round_keys=20)


@pytest.mark.parametrize("version", [2, 3])
def test_tasks_find_what_the_driver_finds(spark: SparkSession, tmp_path: Path, version: int) -> None:
    key, spec = CASES[2]
    table = KeyedTable(tmp_path, SCHEMA, key, spec, session=lambda: spark, limits=NOT_HERE, version=version)
    rng = random.Random(3)
    for _ in range(3):
        changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(40))}
        gone = [row for row in changes.values() if rng.random() < 0.3]
        kept: list[Row] = [row for row in changes.values() if row not in gone]
        table.apply(files_of(table, kept, rng), kept, gone)
        live = int(table.summary["total-records"]) - int(table.summary["total-position-deletes"])
        assert live == len(table.contents)
        if version == 3:
            check_vectors(table)
    wanted = in_order(table.contents.values())
    location = table.table.metadata_location
    assert in_order(duckdb_rows(location)) == in_order(spark_iceberg_rows(location)) == wanted
    table.close()


def test_tasks_index_files_and_merge_runs_as_the_driver_does(spark: SparkSession, tmp_path: Path) -> None:
    key, spec = CASES[2]
    table = KeyedTable(tmp_path, SCHEMA, key, spec, session=lambda: spark, limits=NOT_HERE, index=KeyIndexUse.ON)
    table.resolver = table.new_resolver(index_limits=IndexLimits(taken_rows=0, merged_rows=0))
    rng = random.Random(4)
    for _ in range(7):
        rows: list[Row] = list({table.key_of(row): row for row in (random_row(rng) for _ in range(40))}.values())
        table.apply(files_of(table, rows, rng), rows)
        live = int(table.summary["total-records"]) - int(table.summary["total-position-deletes"])
        assert live == len(table.contents)
    assert any(len(run.files) > 7 for run in manifest_of(table).runs), "tasks have merged runs of several batches"
    assert {part.rpartition("-")[2] for part in table.state.list("parts")} == {"0"}, "tasks have written all parts"
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    table.close()


BY_TASKS = IndexLimits(keys=0)
"""Tasks look up the keys of every batch in the index."""


def test_tasks_find_in_the_key_index_what_the_driver_finds(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, spec = CASES[2]
    table = KeyedTable(tmp_path, SCHEMA, key, spec, session=lambda: spark, index=KeyIndexUse.ON)
    by_driver, by_search = table.new_resolver(), table.new_resolver(KeyIndexUse.OFF)
    table.resolver = table.new_resolver(index_limits=BY_TASKS)
    rng = random.Random(5)
    for number in range(4):
        changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(40))}
        gone = [row for row in changes.values() if rng.random() < 0.3]
        kept: list[Row] = [row for row in changes.values() if row not in gone]
        if number == 3:
            part = manifest_of(table).runs[0].parts[0].name
            table.state.put(part, (table.state.read(part) or b"")[:-1])
        state, keys = table.iceberg.load(), table.keys([*kept, *gone])
        found = [places(table, who.resolve(state, keys, "compared")) for who in (table.resolver, by_driver, by_search)]
        assert found[0] == found[1] == found[2]
        assert ("damaged and will be rebuilt" in caplog.text) == (number == 3)
        table.apply(files_of(table, kept, rng), kept, gone)
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    table.close()


def rows_with(*ids: int) -> list[dict[str, Any]]:
    rng = random.Random(len(ids))
    return [random_row(rng) | {"id": number} for number in ids]


def test_parts_of_the_key_index_that_killed_tasks_wrote_do_not_stay(spark: SparkSession, tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], session=lambda: spark, index=KeyIndexUse.ON)
    rows = rows_with(*range(20))
    table.apply([table.data(rows)], rows)
    table.state = DyingState(tmp_path / "state")
    table.resolver = table.new_resolver(index_limits=IndexLimits(taken_rows=0))
    index = table.resolver._index._index
    for _ in range(2):
        with pytest.raises(TransientError, match="keys could not be indexed"):
            table.resolved(rows)
        assert table.state.list("parts") == []
    late = [f"{stem}-late" for stem in index._failed]
    assert len(late) == 2
    for name in late:  # of tasks that were still running
        table.state.put(name, b"")
    index._store = LocalState(tmp_path / "state")
    for _ in range(2):
        table.apply([table.data(rows)], rows)
        assert not set(late) & set(table.state.list("parts"))
    assert not index._failed
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    table.close()


def test_parts_of_the_key_index_that_killed_tasks_merged_do_not_stay(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], session=lambda: spark, index=KeyIndexUse.ON)
    table.state = DyingState(tmp_path / "state")
    table.resolver = table.new_resolver(index_limits=IndexLimits(merged_rows=0))
    rows = rows_with(*range(20))
    while "runs of the key index could not be merged" not in caplog.text:
        table.apply([table.data(rows)], rows)
    own = table.resolver._index._index._written
    assert own is not None
    assert set(table.state.list("parts")) <= own, "what the driver wrote, and removes when nothing names it"
    table.close()


def test_tasks_look_up_keys_where_the_driver_would_have_to_read_many_deletes(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], session=lambda: spark, index=KeyIndexUse.ON)
    limits, rows = IndexLimits(deletes=5), rows_with(*range(20))
    table.resolver = table.new_resolver(index_limits=limits)
    for changed in (rows, rows, rows[:10]):
        table.apply([table.data(changed)], changed)
    state, keys = table.iceberg.load(), table.keys(rows)
    found, jobs = [], []
    for resolver in (table.resolver, table.new_resolver(index_limits=limits), table.new_resolver()):
        with jobs_counted(spark) as counted:
            found.append(places(table, resolver.resolve(state, keys, "compared")))
        jobs.append(counted[0] > 0)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 20
    assert jobs == [False, True, False], "the driver remembers what it has deleted itself"
    table.close()


def test_rows_that_tasks_find_in_the_key_index_keep_their_ids(spark: SparkSession, tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, WITH_IDS, ["id"], BY_VALUE, session=lambda: spark, index=KeyIndexUse.ON, version=3)
    table.resolver = table.new_resolver(index_limits=BY_TASKS)
    rng = random.Random(6)
    for _ in range(3):
        before, new_from = lineage_of(table.table), next_row_id(table.table.metadata) or 0
        upserts: dict[int, Row] = {
            number: {"id": number, "v": rng.choice("ab")} for number in rng.sample(range(30), 12)
        }
        deletes = rng.sample([number for number in range(30) if number not in upserts], 3)
        files = [
            table.data(rows, [value])
            for value in "ab"
            if (rows := [row for row in upserts.values() if row["v"] == value])
        ]
        table.apply(files, list(upserts.values()), [{"id": number, "v": "a"} for number in deletes])
        check_batch(before, lineage_of(table.table), upserts, deletes, new_from)
        check_vectors(table)
    assert table.key_index
    table.close()


def test_a_part_of_the_key_index_that_a_task_cannot_reach_fails_the_lookup(spark: SparkSession, tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], session=lambda: spark, index=KeyIndexUse.ON)
    table.resolver = table.new_resolver(index_limits=BY_TASKS)
    rows: list[dict[str, Any]] = [random_row(random.Random(1))]
    table.apply([table.data(rows)], rows)
    table.apply([table.data(rows)], rows)
    part = tmp_path / "state" / manifest_of(table).runs[0].parts[0].name
    part.unlink()
    part.mkdir()
    with pytest.raises(TransientError, match="could not read the state record"):
        table.resolved(rows)
    table.close()


def test_a_file_that_is_gone_is_told_by_a_task_as_by_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["id"], session=lambda: spark, limits=NOT_HERE)
    rows: list[dict[str, Any]] = [random_row(random.Random(1))]
    file = table.data(rows)
    table.apply([file], rows)
    Path(file.path.removeprefix("file://")).unlink()
    with pytest.raises(TransientError, match="could not be searched for keys"):
        table.resolved(rows)
    table.close()
