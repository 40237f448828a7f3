import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.errors import TransientError
from calve.keylookup.indexed import IndexLimits
from calve.keylookup.resolver import DriverLimits
from calve.model.spec import KeyIndexUse
from tests.support.foreign import Row, in_order
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows, spark_iceberg_rows
from tests.unit.keylookup.test_random import CASES, SCHEMA, check_vectors, files_of, random_row

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


def test_tasks_take_files_into_the_key_index_as_the_driver_does(spark: SparkSession, tmp_path: Path) -> None:
    key, spec = CASES[2]
    table = KeyedTable(tmp_path, SCHEMA, key, spec, session=lambda: spark, limits=NOT_HERE, index=KeyIndexUse.ON)
    table.resolver = table.new_resolver(index_limits=IndexLimits(taken_rows=0))
    rng = random.Random(4)
    for _ in range(3):
        rows: list[Row] = list({table.key_of(row): row for row in (random_row(rng) for _ in range(40))}.values())
        table.apply(files_of(table, rows, rng), rows)
        live = int(table.summary["total-records"]) - int(table.summary["total-position-deletes"])
        assert live == len(table.contents)
    assert table.key_index
    assert table.state.list("parts")
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
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
