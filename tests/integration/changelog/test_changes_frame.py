"""`calve.changes` on Spark: the same rows as in one process, with conditions, also of tables that Spark writes."""

import random
from collections.abc import Callable
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, MapType, NestedField, StringType
from pyspark.sql import DataFrame, SparkSession

import calve
import calve.changelog.frame
from calve.api.verify import Differences, sum_of_changes
from calve.errors import InvalidInput
from calve.lake import TableRef
from calve.model.changelog import CHANGE_COLUMNS
from calve.model.scan import DeleteKind
from calve.reader.local import read_here
from tests.integration.reader.tables import SparkTable, rows_of
from tests.support.change_feed import Change, Row, apply_by_key, check_keyed, read_changes, states
from tests.support.fake_query import FakeQuery, ordered
from tests.support.foreign import ForeignTable
from tests.support.readers import spark_iceberg_sql
from tests.unit.changelog.test_random_changes import EvolvingTable, snapshots


def read_on(spark: SparkSession, ref: TableRef, **how: Any) -> list[Change]:
    return ordered(rows_of(calve.changes(spark, ref, **how)))


def test_one_task_reads_a_small_range_as_several_tasks_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(6)
    made = EvolvingTable(tmp_path, rng)
    for _ in range(8):
        made.batch()
        made.rewrite()
        made.evolve()
    ids, ref = snapshots(made.table.table), made.table.ref
    for how in ({}, {"before": True}, {"net": False}, {"net": False, "before": True, "columns": ["n"]}):
        small = calve.changes(spark, ref, since=ids[1], **how)
        with monkeypatch.context() as patched:
            patched.setattr(calve.changelog.frame, "ONE_TASK_ROWS", -1)
            large = calve.changes(spark, ref, since=ids[1], **how)
        assert "Exchange" not in explained(small)
        assert "Exchange" in explained(large)
        assert small.schema == large.schema
        found = ordered(rows_of(small))
        assert found
        assert repr(found) == repr(ordered(rows_of(large)))
    made.table.close()


def test_a_small_range_of_a_table_with_dots_in_names_is_read(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "the.id", LongType(), required=True),
        NestedField(2, "v", StringType(), required=False),
        identifier_field_ids=[1],
    )
    made = ForeignTable(tmp_path, schema)
    made.commit(made.data([{"the.id": 1, "v": "a"}]))
    for columns, names in ((None, ["the.id", "v"]), (["the.id"], ["the.id"])):
        found = calve.changes(spark, made.ref, columns=columns)
        assert found.columns == [*names, *CHANGE_COLUMNS]
        assert [tuple(row)[:-3] for row in found.collect()] == [(1, *(["a"] if "v" in names else []), "insert")]
    made.close()


def test_equal_rows_of_maps_meet_in_one_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema(NestedField(1, "attrs", MapType(2, StringType(), 3, LongType(), value_required=False)))
    made = ForeignTable(tmp_path, schema)
    rows = [{"attrs": [(f"k{n}", n)]} for n in range(50)]
    old = made.data(rows)
    since = made.commit(old)
    made.exchange([old], made.data(rows[:-1]))
    monkeypatch.setattr(calve.changelog.frame, "ONE_TASK_ROWS", -1)
    monkeypatch.setattr(calve.changelog.frame, "_PARTITION_ROWS", 10)
    changes = calve.changes(spark, made.ref, since=since, net=False)
    assert [(row["_change_type"], row["attrs"]) for row in changes.collect()] == [("delete", {"k49": 49})]
    made.close()


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("first_way", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_spark_reads_the_changes_that_one_process_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_way: int
) -> None:
    monkeypatch.setattr(calve.changelog.frame, "ONE_TASK_ROWS", -1)
    rng = random.Random(3)
    made = EvolvingTable(tmp_path, rng)
    for number in range(9):
        made.batch()
        if number % 3 == 1:
            made.rewrite()
            made.evolve()
    ids = snapshots(made.table.table)
    ref = made.table.ref
    for since, until in ((None, None), (ids[2], ids[7])):
        for how in ({}, {"before": True}, {"net": False, "before": True}):
            found = read_on(spark, ref, since=since, until=until, **how)
            assert found
            assert repr(found) == repr(ordered(read_changes(ref, since=since, until=until, **how)))
    frame = calve.changes(spark, ref, since=ids[2], columns=["n"])
    assert [f.name for f in frame.schema] == ["id", "n", *CHANGE_COLUMNS]
    assert [f.dataType.simpleString() for f in frame.schema][2:] == ["string", "bigint", "timestamp", "string"]
    # A condition filters the table: rows that leave it are deleted, rows that enter it are inserted.
    conditions: dict[str, Callable[[Row], bool]] = {
        "n < 3": lambda row: row["n"] < 3,
        "id >= 10 AND id < 30": lambda row: 10 <= row["id"] < 30,
        "region = 'eu'": lambda row: row["region"] == "eu",
    }
    ways = islice(cycle(product((True, False), (True, False))), first_way, None)
    for where, holds in conditions.items():
        first, last = ([row for row in rows if holds(row)] for rows in states(ref, ids[2], None))
        for net, before in islice(ways, 2):
            found = read_on(spark, ref, since=ids[2], where=where, net=net, before=before)
            reached = apply_by_key(first, found, ["id"], before=before)
            assert sorted(map(repr, reached)) == sorted(map(repr, last)), (where, net, before)
    some = read_on(spark, ref, since=ids[2], where="n < 3", columns=["region"])
    assert some
    assert "n" not in some[0]
    made.table.close()


def test_errors_of_tasks_and_of_conditions_arrive_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, EvolvingTable(tmp_path / "other", random.Random(1)).table.table.schema())
    row = {"id": 1, "region": "a", "n": 1, "x": 0.5}
    since = table.commit(table.data([row, {**row, "n": 2}]))
    table.commit(table.equality(["id"], [{"id": 1}]))
    with pytest.raises(Exception, match="several rows of the table have the same key"):
        calve.changes(spark, table.ref, since=since).collect()
    assert len(calve.changes(spark, table.ref, since=since, before=True).collect()) == 2
    with pytest.raises(InvalidInput, match="takes a Spark session and a table"):
        calve.changes(spark, "shop.others")  # type: ignore[arg-type]
    table.close()


COLUMNS = "id BIGINT NOT NULL, region STRING, note STRING, tags ARRAY<STRING>, at TIMESTAMP"
ROWS = (
    "SELECT id, concat('r', id % 3), concat('note ', id), CASE WHEN id % 5 > 0 THEN array('a', CAST(id AS STRING)) END,"
    " timestamp_millis(id * 1000000) FROM range({}, {})"
)
MERGE = (
    "MERGE INTO {t} t USING (SELECT id, id % 4 AS op FROM range(50, 150, 3)) s ON t.id = s.id "
    "WHEN MATCHED AND s.op = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'merged' "
    "WHEN NOT MATCHED THEN INSERT (id, region, note) VALUES (s.id, 'new', 'inserted')"
)


def spark_table(home: Path, name: str, version: int, mode: str) -> tuple[SparkTable, list[int]]:
    """A table that Spark changes in several ways; its snapshots, oldest first."""
    table = SparkTable(home, name, COLUMNS, version, "PARTITIONED BY (region)")
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    table.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({modes})")
    table.run("ALTER TABLE {t} SET IDENTIFIER FIELDS id")
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 100)}")
    table.run(MERGE)
    table.run("DELETE FROM {t} WHERE id % 7 = 0")
    table.run("UPDATE {t} SET region = 'moved' WHERE id % 11 = 0")
    table.run("DELETE FROM {t} WHERE region = 'r1'")
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 5)} WHERE id % 7 = 0")
    return table, [row["snapshot_id"] for row in spark_iceberg_sql(f"SELECT snapshot_id FROM {table.name}.snapshots")]


@pytest.mark.parametrize(
    ("version", "mode", "kind"),
    [
        (2, "copy-on-write", None),
        (2, "merge-on-read", DeleteKind.POSITION),
        (3, "merge-on-read", DeleteKind.VECTOR),
    ],
)
def test_changes_of_merge_update_and_delete_lead_from_any_snapshot_to_any_later_one(
    tmp_path: Path, version: int, mode: str, kind: DeleteKind | None
) -> None:
    table, ids = spark_table(tmp_path, f"changed{version}{mode[0]}", version, mode)
    ref = table.ref
    deletes = read_here(ref, snapshot_id=ids[2]).plan
    assert kind is None or deletes.deletes(kind)
    rng = random.Random(version)
    for _ in range(4):
        first, last = sorted(rng.sample(range(len(ids)), 2))
        check_keyed(ref, ids[first], ids[last], ["id"])
    assert check_keyed(ref, None, None, ["id"])


def test_steps_and_net_changes_are_those_of_the_changelog_view(spark: SparkSession, tmp_path: Path) -> None:
    table, ids = spark_table(tmp_path, "viewed", 2, "copy-on-write")
    ref, name = table.ref, table.name.removeprefix("scratch.")
    for since, until in ((ids[0], ids[-1]), (ids[1], ids[3]), (ids[2], ids[-1])):
        span = f"options => map('start-snapshot-id', '{since}', 'end-snapshot-id', '{until}')"
        call = f"CALL scratch.system.create_changelog_view(table => '{name}', changelog_view => 'seen', {span}"
        spark_iceberg_sql(f"{call}, identifier_columns => array('id'), compute_updates => true)")
        order = {number: place for place, number in enumerate(ids, start=1)}
        wanted = [
            (order[row["_commit_snapshot_id"]], _TYPES[row["_change_type"]], row["id"], row["note"], row["region"])
            for row in _seen()
        ]
        found = read_on(spark, ref, since=since, until=until, net=False, before=True)
        got = [(c["_commit_version"], c["_change_type"], c["id"], c["note"], c["region"]) for c in found]
        assert sorted(got) == sorted(wanted)
        spark_iceberg_sql(f"{call}, net_changes => true)")
        net = [(row["_change_type"] == "INSERT", row["id"], row["note"], row["region"]) for row in _seen()]
        added = {"insert": True, "update_postimage": True, "delete": False, "update_preimage": False}
        ours = read_on(spark, ref, since=since, until=until, before=True)
        assert sorted((added[c["_change_type"]], c["id"], c["note"], c["region"]) for c in ours) == sorted(net)


@pytest.mark.parametrize(("version", "mode"), [(2, "copy-on-write"), (3, "merge-on-read")])
def test_a_stream_follows_merge_update_and_delete_across_restarts(tmp_path: Path, version: int, mode: str) -> None:
    table = SparkTable(tmp_path, f"followed{version}", COLUMNS, version, "PARTITIONED BY (region)")
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    table.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({modes})")
    table.run("ALTER TABLE {t} SET IDENTIFIER FIELDS id")
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 100)}")
    query = FakeQuery(table.ref, {"start": "snapshot", "before": True})
    assert query.poll()
    for statement in (MERGE, "DELETE FROM {t} WHERE id % 7 = 0", "UPDATE {t} SET region = 'moved' WHERE id % 11 = 0"):
        table.run(statement)
        assert table.ref == query.ref
        assert query.poll(dies=True)
        query.restart()
        assert not query.poll()
    reached = apply_by_key([], ordered(query.changes), ["id"], before=True)
    assert sorted(row["id"] for row in reached) == sorted(row["id"] for row in table.rows())
    assert sorted(map(repr, reached)) == sorted(map(repr, states(table.ref, None)[1]))


_TYPES = {
    "INSERT": "insert",
    "DELETE": "delete",
    "UPDATE_BEFORE": "update_preimage",
    "UPDATE_AFTER": "update_postimage",
}


def _seen() -> list[dict[str, Any]]:
    return spark_iceberg_sql("SELECT * FROM seen")


def test_a_table_equals_the_sum_of_its_changes_unless_a_rewrite_changed_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = EvolvingTable(tmp_path, random.Random(11))
    for _ in range(4):
        made.batch()
        made.rewrite()
        made.evolve()
    table = made.table.table
    assert sum_of_changes(spark, table) == Differences(len(made.table.rows()))
    # A snapshot that calls itself a rewrite and drops a row is no change by the specification: the sum shows it.
    file = next(file for file in made.files.values() if any(at[0].path == file.path for at in made.places.values()))
    lost = sum(where.path == file.path for where, _ in made.places.values())
    made.table.exchange([file], operation=Operation.REPLACE)
    found = sum_of_changes(spark, made.table.table)
    assert (found.missing, found.unexpected) == (lost, 0)
    made.table.close()
