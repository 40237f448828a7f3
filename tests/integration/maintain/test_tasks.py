"""More than a moment's work is done by Spark tasks or by processes: parts are committed one by one, beside a sink's."""

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.clock import RandomIds, SystemClock
from calve.errors import TransientError
from calve.iceberg.planning.compaction_groups import BY_HAND, SORTING
from calve.iceberg.snapshot.compaction import CompactionPlan
from calve.iceberg.snapshot.holds import PREFIX
from calve.maintain import compact
from calve.maintain.compact import CompactionScope, Compactor, RewriteRoom, RewrittenFiles
from calve.maintain.convert import ConversionTools
from calve.maintain.rewrite import GroupWork
from calve.model.spec import RowOrder, TableName
from tests.support.foreign import NAME, Row, in_order
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows, spark_iceberg_rows
from tests.unit.keylookup.test_random import CASES, SCHEMA, files_of, random_row
from tests.unit.maintain.test_row_orders import LONS, places, share_read

POOL = "pool of the rewrites"
ROOM = RewriteRoom(here_rows=0, core_share=0.5, pool=POOL, bundle_rows=1)
"""Every group is a part, and one task runs at a time."""
REGIONS = ("eu", "us", "é", "", "us0")
"""Each is a partition, and so a group."""


def change(table: KeyedTable, rng: random.Random) -> None:
    rows = ({**random_row(rng), "region": rng.choice(REGIONS)} for _ in range(40))
    changes = {table.key_of(row): row for row in rows}
    gone = [row for row in changes.values() if rng.random() < 0.3]
    kept: list[Row] = [row for row in changes.values() if row not in gone]
    table.apply(files_of(table, kept, rng), kept, gone)


def changed_table(home: Path, rng: random.Random, version: int = 2) -> KeyedTable:
    key, spec = CASES[2]
    table = KeyedTable(home, SCHEMA, key, spec, version=version)
    for _ in range(4):
        change(table, rng)
    return table


def planned(table: KeyedTable, spark: SparkSession, room: RewriteRoom = ROOM) -> tuple[Compactor, CompactionPlan]:
    tools = ConversionTools(lambda: spark, SystemClock(), RandomIds())
    compactor = Compactor(table.ref.lake.open(), CompactionScope(TableName.parse(NAME)), tools, room=room)
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    assert len(plan.groups.groups) > 3, "one for each partition"
    return compactor, plan


def holds(table: KeyedTable) -> list[str]:
    return [name for name in table.table.metadata.refs if name.startswith(PREFIX)]


@pytest.mark.parametrize(
    ("version", "room"),
    [
        pytest.param(2, ROOM, marks=pytest.mark.soak, id="positions-tasks"),
        pytest.param(3, ROOM, id="vectors-tasks"),
        pytest.param(2, replace(ROOM, beside=True, pool="unused"), id="positions-processes"),
        pytest.param(3, replace(ROOM, beside=True, pool="unused"), marks=pytest.mark.soak, id="vectors-processes"),
    ],
)
def test_parts_are_committed_one_by_one_between_commits_of_a_sink(
    spark: SparkSession, tmp_path: Path, version: int, room: RewriteRoom
) -> None:
    rng = random.Random(5)
    table = changed_table(tmp_path, rng, version)
    compactor, plan = planned(table, spark, room)
    after = 0
    for ready in compactor.rewrite(plan, lambda: None):
        assert len(ready.groups) == len(holds(table)) == 1
        change(table, rng)
        done = compactor.commit(ready)
        assert done is not None
        after += done.files_after
        assert in_order(table.rows()) == in_order(table.contents.values())
    assert after == len(plan.groups.groups)
    assert holds(table) == []
    assert spark.sparkContext._jsc.sc().getPoolForName(room.pool).isDefined() == (not room.beside)
    wanted, location = in_order(table.contents.values()), table.table.metadata_location
    assert in_order(duckdb_rows(location)) == wanted
    if version == 2:
        assert in_order(spark_iceberg_rows(location)) == wanted
    table.close()


class Deadly(GroupWork):
    """Work whose task dies without a word, as one does whose executor is lost."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


def test_parts_that_fail_or_are_killed_do_not_lose_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(6)
    table = changed_table(tmp_path, rng)
    compactor, plan = planned(table, spark)
    missing = Path(plan.groups.groups[0][0].path.removeprefix("file://"))
    aside = missing.rename(tmp_path / "aside")
    made: list[GroupWork] = []

    def work(*arguments: Any) -> GroupWork:
        made.append(Deadly(*arguments) if len(made) == 1 else GroupWork(*arguments))
        return made[-1]

    committed: list[RewrittenFiles] = []

    def commit_all() -> None:
        for ready in compactor.rewrite(plan, lambda: None):
            assert compactor.commit(ready) is not None
            committed.append(ready)

    with monkeypatch.context() as patch:
        patch.setattr(compact, "GroupWork", work)
        with pytest.raises(TransientError, match="data files could not be rewritten"):
            commit_all()
    assert len(committed) == len(plan.groups.groups) - 2
    assert holds(table) == []
    aside.rename(missing)
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    again = compactor.plan(BY_HAND)
    assert again is not None
    assert len(again.groups.groups) == 2, "they are left to the next round"
    table.close()


def test_a_sink_that_ends_cancels_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    table = changed_table(tmp_path, random.Random(7))
    compactor, plan = planned(table, spark)
    before, calls = table.table.metadata.current_snapshot_id, list[int]()

    def check() -> None:
        calls.append(len(holds(table)))
        if len(calls) == 2:
            raise KeyboardInterrupt

    def abandon_all() -> None:
        for ready in compactor.rewrite(plan, check):
            compactor.abandon(ready)

    with pytest.raises(KeyboardInterrupt):
        abandon_all()
    assert calls == [1, 1]
    assert holds(table) == []
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert table.table.metadata.current_snapshot_id == before
    table.close()


def test_tasks_sort_rows_as_the_user_wants(spark: SparkSession, tmp_path: Path) -> None:
    table = places(tmp_path)
    wanted = in_order(table.rows())
    tools = ConversionTools(lambda: spark, SystemClock(), RandomIds())
    for text, shares in (("lat, id", (0.25, 1.0)), ("zorder(lat, lon)", (0.5, 0.5))):
        scope = CompactionScope(TableName.parse(NAME), order=RowOrder.parse(text))
        compactor = Compactor(table.ref.lake.open(), scope, tools, room=ROOM)
        plan = compactor.plan(SORTING)
        assert plan is not None
        for ready in compactor.rewrite(plan, lambda: None):
            assert compactor.commit(ready) is not None
        assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
        assert share_read(table, "lat", range(-80, 90, 20)) <= shares[0]
        assert share_read(table, "lon", LONS) <= shares[1]
    table.close()
