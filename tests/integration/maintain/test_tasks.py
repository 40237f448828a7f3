"""Many rows are written anew by Spark tasks: the same table comes out, and rows that are deleted meanwhile stay so."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.clock import RandomIds, SystemClock
from calve.errors import TransientError
from calve.iceberg.planning.compaction_groups import BY_HAND
from calve.maintain.compact import CompactionScope, Compactor
from calve.maintain.convert import ConversionTools
from calve.model.spec import TableName
from tests.support.foreign import NAME, Row, in_order
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows, spark_iceberg_rows
from tests.unit.keylookup.test_random import CASES, SCHEMA, files_of, random_row


def change(table: KeyedTable, rng: random.Random) -> None:
    changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(40))}
    gone = [row for row in changes.values() if rng.random() < 0.3]
    kept: list[Row] = [row for row in changes.values() if row not in gone]
    table.apply(files_of(table, kept, rng), kept, gone)


def test_tasks_write_what_this_process_would_write(spark: SparkSession, tmp_path: Path) -> None:
    key, spec = CASES[2]
    table, rng = KeyedTable(tmp_path, SCHEMA, key, spec), random.Random(5)
    for _ in range(4):
        change(table, rng)
    tools = ConversionTools(lambda: spark, SystemClock(), RandomIds())
    compactor = Compactor(table.ref.lake.open(), CompactionScope(TableName.parse(NAME)), tools)
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    assert len(plan.groups.groups) > 3, "one for each partition"
    ready = compactor.rewrite(plan, lambda: None, here_rows=0)
    change(table, rng)
    done = compactor.commit(ready)
    assert done is not None
    assert done.files_after == len(plan.groups.groups)
    wanted, location = in_order(table.contents.values()), table.table.metadata_location
    assert in_order(duckdb_rows(location)) == in_order(spark_iceberg_rows(location)) == wanted
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    Path(plan.groups.groups[0][0].path.removeprefix("file://")).unlink()
    with pytest.raises(TransientError, match="data files could not be rewritten"):
        compactor.rewrite(plan, lambda: None, here_rows=0)
    table.close()
