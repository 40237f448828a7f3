"""Conditions leave out files, and never a row."""

from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

import calve
from calve.errors import InvalidInput
from calve.iceberg.loading import load_table
from calve.iceberg.planning.table_scan import NOTHING, Scan
from calve.iceberg.planning.travel import AsOf
from calve.lake import TableRef
from calve.model.scan import ScanPlan
from calve.reader.conditions import understand
from calve.reader.frame import _frame
from calve.reader.worker import TaskList, rows_of_task
from tests.integration.reader.tables import SparkTable, in_order, rows_of
from tests.support.readers import Rows

COLUMNS = (
    "id BIGINT, day DATE, at TIMESTAMP, ntz TIMESTAMP_NTZ, price DECIMAL(10, 2), f DOUBLE, name STRING, flag BOOLEAN, "
    "small INT, `odd.name` INT"
)
ROWS = (
    "SELECT CASE WHEN id % 40 = 39 THEN NULL ELSE id END, DATE'2024-01-01' + CAST(id DIV 20 AS INT), "
    "timestamp_seconds(1704067200 + id * 4000), "
    "TIMESTAMP_NTZ'2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, CAST(id AS INT)), "
    "CAST(id AS DECIMAL(10, 2)) / 4, CASE WHEN id = 77 THEN CAST('NaN' AS DOUBLE) ELSE id / 8 END, "
    "CASE WHEN id BETWEEN 60 AND 79 THEN NULL ELSE concat(char(97 + CAST(id DIV 20 AS INT)), id) END, id < 20, "
    "CAST(id AS INT), CAST(id % 3 AS INT) FROM range({}, {})"
)
FILES = 5


@pytest.fixture(scope="module", params=["", "PARTITIONED BY (day)", "PARTITIONED BY (days(at), truncate(1, name))"])
def ref(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TableRef:
    """A hundred rows in files of twenty."""
    table = SparkTable(tmp_path_factory.mktemp("pruned"), "pruned", COLUMNS, 2, request.param)
    for start in range(0, 100, 20):
        table.run(f"INSERT INTO {{t}} {ROWS.format(start, start + 20)}")
    table.run("DELETE FROM {t} WHERE small IN (3, 33, 50)")
    return table.ref


@pytest.fixture(scope="module")
def rows_where(spark: SparkSession, ref: TableRef) -> dict[str, Rows]:
    """The rows of every condition: all rows are read once, and Spark evaluates all conditions on them in one query."""
    frame = calve.read(spark, ref)
    everything = spark.createDataFrame(frame.toArrow(), frame.schema)
    marks = {where: f"_{number}" for number, where in enumerate(CONDITIONS)}
    marked = rows_of(everything.select("*", *(F.expr(where).alias(mark) for where, mark in marks.items())))
    return {
        where: [{name: row[name] for name in frame.columns} for row in marked if row[mark]]
        for where, mark in marks.items()
    }


@pytest.mark.parametrize("where", ["nope = 1", "id =", "id"])
def test_a_condition_that_spark_rejects_is_invalid_input(spark: SparkSession, ref: TableRef, where: str) -> None:
    with pytest.raises(InvalidInput, match="the condition is invalid") as caught:
        calve.read(spark, ref, where=where)
    assert caught.value.detail
    assert caught.value.hint


def planned(spark: SparkSession, ref: TableRef, where: str) -> ScanPlan:
    scan = Scan.of(load_table(ref.lake.open(), ref.name), AsOf())
    return scan.plan(
        understand(_frame(spark, scan, TaskList.of(scan.target(NOTHING), (), rows_of_task)), where).condition
    )


FEWER = [
    "id = 5",
    "id <=> 5",
    "5 < id AND id < 12",
    "id IN (1, 2, 45)",
    "small = 5L",
    "day = DATE'2024-01-03'",
    "day > '2024-01-04'",
    "at >= TIMESTAMP'2024-01-05 00:00:00'",
    "ntz < TIMESTAMP_NTZ'2024-01-02 00:00:00'",
    "price > 20.5",
    "f < 3",
    "name LIKE 'a%'",
    "startswith(name, 'b')",
    "name = 'c41' OR id = 3",
    "name IS NULL",
    "id = 5 AND length(name) > 0",
    "`odd.name` = 1 AND id = 4",
    "id > 10000",
]
ALL = ["NOT (id = 5)", "id + 1 = 6", "id = 5 OR length(name) > 2", "`odd.name` = 1", "id IS NOT NULL", "name RLIKE 'a'"]
ODD = [
    "f > 12",
    "f >= 12",
    "isnan(f)",
    "f = double('NaN')",
    "f < double('NaN')",
    "id IS NULL",
    "flag",
    "NOT flag",
    "false",
]


CONDITIONS = [*FEWER, *ALL, *ODD]
WHERE = "_where"


def test_a_condition_changes_no_row(spark: SparkSession, ref: TableRef, rows_where: dict[str, Rows]) -> None:
    """Every read plans and prunes for itself; one query collects them all."""
    reads = [calve.read(spark, ref, where=where).withColumn(WHERE, F.lit(where)) for where in CONDITIONS]
    found: dict[str, Rows] = {where: [] for where in CONDITIONS}
    for row in rows_of(reduce(DataFrame.unionAll, reads)):
        found[row.pop(WHERE)].append(row)
    for where in CONDITIONS:
        assert in_order(found[where]) == in_order(rows_where[where]), where


def test_a_condition_leaves_out_files(spark: SparkSession, ref: TableRef) -> None:
    for where in FEWER:
        plan = planned(spark, ref, where)
        assert len(plan.files) < plan.data_files, where
        pruned = plan.pruned
        assert pruned.manifests + pruned.files_by_partition + pruned.files_by_bounds > 0, where


def test_columns_of_a_condition_need_not_be_asked_for(spark: SparkSession, ref: TableRef) -> None:
    frame = calve.read(spark, ref, columns=["name"], where=F.col("id") == 5)
    assert frame.columns == ["name"]
    assert rows_of(frame) == [{"name": "a5"}]


def test_a_condition_names_columns_in_any_case(spark: SparkSession, ref: TableRef) -> None:
    frame = calve.read(spark, ref, columns=["name"], where="ID = 5 AND Name LIKE 'a%'")
    assert frame.columns == ["name"]
    assert rows_of(frame) == [{"name": "a5"}]
    assert [row["id"] for row in rows_of(calve.changes(spark, ref, columns=["id"], where="NAME = 'a5'"))] == [5]


def test_a_row_whose_delete_does_not_match_stays_deleted(spark: SparkSession, ref: TableRef) -> None:
    assert rows_of(calve.read(spark, ref, where="id = 33")) == []


def test_the_frame_has_the_types_of_the_table(spark: SparkSession, ref: TableRef) -> None:
    assert calve.read(spark, ref, where="id = 1").schema == StructType.fromDDL(COLUMNS)
