"""Compactions of Spark with the Iceberg runtime that were planned before calve's maintenance and commit after it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField

import calve
from tests.support.foreign import ForeignTable, in_order
from tests.support.readers import spark_iceberg_compact, spark_iceberg_open, spark_iceberg_rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", IntegerType(), required=False),
)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ForeignTable]:
    made = ForeignTable(tmp_path, SCHEMA)
    yield made
    made.close()


def publish(table: ForeignTable, version: int) -> str:
    """Make the current state the given version for Iceberg's `HadoopTables`, in which Spark commits the next one."""
    now = table.table
    folder = Path(now.location().removeprefix("file://")) / "metadata"
    shutil.copy(now.metadata_location.removeprefix("file://"), folder / f"v{version}.metadata.json")
    (folder / "version-hint.text").write_text(str(version))
    return now.location()


def test_no_compaction_by_spark_brings_back_a_row_whose_delete_was_converted_meanwhile(table: ForeignTable) -> None:
    table.commit(table.data([{"id": n, "v": 0} for n in range(4)]))
    location = publish(table, 1)
    spark_iceberg_open(location)
    table.commit(table.equality(["id"], [{"id": 2}]))
    assert calve.convert_deletes(table.ref) is not None
    publish(table, 2)
    with pytest.raises(RuntimeError, match=r"found new .*delete"):
        spark_iceberg_compact(location)
    wanted = [{"id": n, "v": 0} for n in (0, 1, 3)]
    assert in_order(spark_iceberg_rows(location)) == wanted
    spark_iceberg_open(location)
    assert spark_iceberg_compact(location) == 1, "one that has seen the conversion commits"
    assert in_order(spark_iceberg_rows(location)) == wanted


def test_a_compaction_by_spark_that_was_planned_before_a_compaction_of_calve_is_refused(table: ForeignTable) -> None:
    table.commit(table.data([{"id": n, "v": 0} for n in range(4)]))
    table.commit(table.data([{"id": n, "v": 0} for n in range(4, 8)]))
    location = publish(table, 1)
    spark_iceberg_open(location)
    table.commit(table.equality(["id"], [{"id": 2}]))
    assert calve.compact(table.ref) is not None
    publish(table, 2)
    with pytest.raises(RuntimeError, match="Missing required files to delete"):
        spark_iceberg_compact(location)
    assert in_order(spark_iceberg_rows(location)) == [{"id": n, "v": 0} for n in range(8) if n != 2]
