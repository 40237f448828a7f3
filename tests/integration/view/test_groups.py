"""Views with GROUP BY: totals that follow inserts, updates and deletes."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.errors import BadRow, CheckpointGap, InvalidInput, TerminalError, decode
from calve.model.change import BAD, DELETE, OP
from calve.storage.state import LocalState, StateFolder
from calve.view.planning import plan_view
from calve.view.run import View
from tests.integration.view.streams import IMAGES, INSERTS, SCHEMA, Target, frame_of, queries_of, selected, target

TOTALS = (
    "SELECT customer, count(*) AS n, count(amount) AS m, sum(amount) AS s, avg(amount) AS a, sum(id) AS ids, "
    "avg(id) AS mean, count_if(status = 'open') AS opened, sum(id) FILTER (WHERE status = 'open') AS open_ids "
    "FROM orders WHERE customer IS NOT NULL GROUP BY customer"
)


def order(number: int, customer: int | None, amount: str | None, status: str = "open") -> tuple[Any, ...]:
    return (number, customer, None if amount is None else Decimal(amount), status)


def test_totals_follow_changes_as_spark_would_compute_them(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path))
    one, two, three = order(1, 10, "1.10"), order(2, 10, None, "paid"), order(3, 11, "2.00")
    table.take([(1, None, one), (2, None, two), (3, None, three), (4, None, order(4, None, "9"))])
    assert table.contents() == selected(spark, [one, two, three], TOTALS)
    moved, cut = order(3, 10, "0.01"), order(1, 10, None)
    table.take([(5, three, moved), (6, one, cut), (7, order(4, None, "9"), None)])
    assert table.contents() == selected(spark, [cut, two, moved], TOTALS)
    table.take([(8, cut, None), (9, two, None), (10, moved, None)])
    assert table.contents() == []


def test_a_group_that_leaves_having_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT status, count(*) * 2 AS twice FROM orders GROUP BY status HAVING sum(amount) > 5"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(1, 1, "4")), (2, None, order(2, 1, "4"))])
    assert table.contents() == [("open", 4)]
    table.take([(3, order(1, 1, "4"), order(1, 1, "1"))])
    assert table.contents() == []


def test_groups_may_be_expressions_and_stand_under_other_views_and_joins(spark: SparkSession, tmp_path: Path) -> None:
    texts = (
        "SELECT upper(status) AS kind, customer % 2 AS odd, count(*) + 1 AS n FROM orders GROUP BY 1, customer % 2",
        "SELECT odd AS o, kind AS k, n, name FROM v0 JOIN (SELECT 'OPEN' AS w, 'still open' AS name) ON w = kind",
    )
    table = target(spark, *texts, source=IMAGES, state=LocalState(tmp_path))
    assert table.plan.key == ("k", "o")
    rows = [order(1, 1, None), order(2, 3, None), order(3, 2, None), order(4, 2, None, "paid")]
    table.take([(i, None, row) for i, row in enumerate(rows)])
    assert table.contents() == selected(spark, rows, *texts)


def test_inserts_have_minimum_maximum_and_floating_point_sums(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "SELECT status, min(amount) AS lo, max(customer) AS hi, min(status) AS word, sum(CAST(amount AS DOUBLE)) AS d, "
        "avg(CAST(id AS FLOAT)) AS f FROM orders GROUP BY status"
    )
    table = target(spark, text, source=INSERTS, state=LocalState(tmp_path))
    rows = [order(1, 5, "1.5"), order(2, 7, "0.25"), order(3, None, None, "paid")]
    table.take([(1, None, rows[0])])
    table.take([(2, None, rows[1]), (3, None, rows[2])])
    assert table.contents() == selected(spark, rows, text)


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_nan_is_the_greatest_number_whichever_checkpoint_brings_it(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    value = f"coalesce(CAST(amount AS {kind}), CAST('NaN' AS {kind}))"
    text = f"SELECT status, string(min({value})) AS lo, string(max({value})) AS hi FROM orders GROUP BY status"
    rows = [
        *[order(1, 1, None, "first"), order(2, 1, "5", "last"), order(3, 1, None, "only"), order(4, 1, "-1", "never")],
        *[order(5, 1, "5", "first"), order(6, 1, None, "last"), order(7, 1, None, "only"), order(8, 1, "-2", "never")],
    ]
    table = target(spark, text, source=INSERTS, state=LocalState(tmp_path))
    table.take([(i, None, row) for i, row in enumerate(rows[:4])])
    table.take([(i, None, row) for i, row in enumerate(rows[4:])])
    assert table.contents() == selected(spark, rows, text)
    assert ("first", "5.0", "NaN") in table.contents()


def test_group_by_without_functions_is_a_distinct_that_follows_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, "SELECT status FROM orders GROUP BY status", source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(1, 1, "4")), (2, None, order(2, 1, "4"))])
    table.take([(3, order(1, 1, "4"), None)])
    assert table.contents() == [("open",)]
    table.take([(4, order(2, 1, "4"), None)])
    assert table.contents() == []


def test_a_group_that_is_named_twice_is_one(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT status, count(*) AS n FROM orders GROUP BY status, status"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(1, 1, "4"))])
    assert (table.plan.key, table.contents()) == (("status",), [("open", 1)])


def test_a_constant_group_is_the_total_of_all(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT 'all' AS scope, count(*) AS n FROM orders GROUP BY 'all'"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(1, 1, "4")), (2, None, order(2, 1, "4"))])
    assert table.contents() == [("all", 2)]


def test_a_repeated_checkpoint_counts_once_also_in_another_process(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path))
    first, second = order(1, 10, "1.10"), order(1, 10, "2.20")
    table.take([(1, None, first)], commit=False)
    table.take([(1, None, first)])
    table.take([(2, first, second)], commit=False)
    again = Target(spark, table.plan, LocalState(tmp_path), rows=table.rows, position=1)
    again.take([(2, first, second)])
    assert again.contents() == selected(spark, [second], TOTALS)


def test_a_checkpoint_that_is_cut_elsewhere_the_next_time_leaves_no_trace(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=INSERTS, state=LocalState(tmp_path), key=["customer"])
    rows = [order(1, 10, "1"), order(2, 10, "2")]
    table.take([(1, None, rows[0]), (2, None, rows[1])], commit=False)
    again = Target(spark, table.plan, LocalState(tmp_path))
    again.position = 4
    identity = again.identity
    frames = [frame_of(spark, [(i, None, row)]) for i, row in enumerate(rows)]
    again.apply(again.view.changes(frames[0], type(identity)("q", 0, None, "half")))
    again.apply(again.view.changes(frames[1], type(identity)("q", 1, "half", "1")))
    assert again.contents() == selected(spark, rows, TOTALS)


def test_missing_totals_are_an_error_and_never_start_from_zero(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(1, 10, "1"))])
    for name in LocalState(tmp_path).list(""):
        LocalState(tmp_path).delete(name)
    again = Target(spark, table.plan, LocalState(tmp_path), position=1)
    with pytest.raises(CheckpointGap, match='the totals of view "v0" are missing'):
        again.take([(2, None, order(2, 10, "1"))])


def test_totals_of_another_definition_are_not_used(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(1, 10, "1"))])
    other = target(spark, TOTALS.replace("IS NOT NULL", "> 10"), source=IMAGES, state=LocalState(tmp_path))
    other.position = 1
    with pytest.raises(CheckpointGap):
        other.take([(2, None, order(2, 10, "1"))])


def test_more_deletes_than_rows_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path))
    with pytest.raises(TerminalError, match="more rows were removed from a group") as error:
        table.take([(1, order(1, 10, "1"), None)])
    assert "(10)" in error.value.detail


def test_a_sum_that_does_not_fit_is_an_error_and_not_null(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT status, sum(id) AS s FROM orders GROUP BY status"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path))
    high = 2**63 - 1
    table.take([(1, None, order(high, 1, None))])
    changes = table.view.changes(frame_of(spark, [(2, None, order(high - 1, 1, None))], before=True), table.identity)
    with pytest.raises(Exception, match="calve") as error:
        changes.collect()
    assert "too large" in str(decode(str(error.value)))
    table.position += 1
    table.take([(3, order(high, 1, None), None)])
    assert table.contents() == [("open", high - 1)], "the exact sum was kept"
    wide = "SELECT status, sum(CAST(id AS DECIMAL(38,0)) * 10000000000000000000) AS s FROM orders GROUP BY status"
    table = target(spark, wide, source=IMAGES, state=LocalState(tmp_path))
    table.take([(1, None, order(high, 1, None))])
    with pytest.raises(TerminalError, match="more than 38 digits"):
        table.take([(2, None, order(high - 1, 1, None))])


def test_bad_rows_and_null_groups_reach_the_writer(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path))
    frame = frame_of(spark, [(1, None, order(1, None, "1"))], before=True)
    bad = spark.createDataFrame([(None, None, None, None, 1, None, "broken", None)], frame.schema)
    found = table.view.changes(frame.union(bad), table.identity).collect()
    assert sorted((r.n or 0, r.customer, r[BAD] or "") for r in found) == [(0, None, "broken"), (1, None, "")]


def test_a_static_table_below_group_by_must_not_change_if_rows_are_subtracted(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = str(tmp_path / "names")
    spark.createDataFrame([(10, "old")], "cid INT, name STRING").write.parquet(files)
    text = f"SELECT name, count(*) AS n FROM orders JOIN parquet.`{files}` ON cid = customer GROUP BY name"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path / "state"))
    table.take([(1, None, order(1, 10, "1")), (2, None, order(2, 11, "1"))])
    assert table.contents() == [("old", 1)]
    table.take([(3, order(2, 11, "1"), order(2, 10, "1"))])
    assert table.contents() == [("old", 2)]
    spark.createDataFrame([(10, "new")], "cid INT, name STRING").write.mode("overwrite").parquet(files)
    with pytest.raises(TerminalError, match=r"a static table .* has changed"):
        table.take([(4, order(1, 10, "1"), None)])
    with pytest.raises(TerminalError, match=r"a static table .* has changed"):
        Target(spark, table.plan, LocalState(tmp_path / "state"), position=2).take([(4, order(1, 10, "1"), None)])


def test_a_value_that_cannot_be_computed_is_a_bad_row(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT status, sum(id / customer) AS n FROM orders GROUP BY status"
    with pytest.raises(InvalidInput, match="floating-point"):
        plan_view(spark, queries_of(text), IMAGES)
    table = target(spark, text.replace("id /", "id DIV"), source=IMAGES, state=LocalState(tmp_path))
    with pytest.raises(BadRow, match="cannot be computed"):
        table.take([(1, None, order(1, 0, "1"))])


def test_a_view_with_totals_needs_a_place_for_them(spark: SparkSession) -> None:
    plan = plan_view(spark, queries_of(TOTALS), IMAGES)
    assert plan.stateful
    assert plan.schema["customer"].nullable is False
    with pytest.raises(InvalidInput, match="no state location"):
        View(spark, plan)


def test_types_of_groups_survive_the_state(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "SELECT CAST(status AS DATE) AS d, CAST(concat(status, ' 12:00:00') AS TIMESTAMP) AS t, "
        "CAST(status AS TIMESTAMP_NTZ) AS z, amount, customer IS NULL AS b, CAST(status AS BINARY) AS raw, "
        "count(*) AS n FROM orders GROUP BY ALL"
    )
    table = target(spark, text, source=IMAGES, state=StateFolder(LocalState(tmp_path), "sink"))
    rows = [order(1, None, "1.5", "2024-02-29"), order(2, 1, "1.5", "2024-02-29")]
    table.take([(1, None, rows[0])])
    again = Target(spark, table.plan, StateFolder(LocalState(tmp_path), "sink"), rows=table.rows, position=1)
    again.take([(2, None, rows[1]), (3, None, order(3, None, "1.5", "2024-02-29"))])
    assert again.contents() == selected(spark, [*rows, order(3, None, "1.5", "2024-02-29")], text)
    assert SCHEMA.names[0] == "id"


def test_only_touched_groups_become_changes(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path))
    table.take([(i, None, order(i, i, "1")) for i in range(5)])
    frame = frame_of(spark, [(9, order(3, 3, "1"), None)], before=True)
    found = table.view.changes(frame, table.identity).collect()
    assert [(r.customer, r.n, r[OP]) for r in found] == [(3, None, DELETE)]
