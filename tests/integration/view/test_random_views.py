"""Random change streams: a view's table, built change by change, is the SELECT over the final contents."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from calve.storage.state import LocalState
from calve.view.plan import ViewInput
from tests.integration.view.streams import IMAGES, INSERTS, ORDERS, Change, Row, Target, selected, target

NAMES = "(SELECT 10 AS cid, 'ann' AS name UNION ALL SELECT 11, 'bob')"
FOLLOWED = (
    "SELECT id AS k, customer, amount, status FROM orders WHERE amount >= 0 OR status = 'a'",
    f"SELECT k, name, amount * 2 AS twice FROM v0 JOIN {NAMES} ON cid = customer WHERE amount IS NOT NULL",
)
TWINS = "(SELECT 10 AS cid, 'ann' AS name UNION ALL SELECT 10, 'amy' UNION ALL SELECT 11, 'bob')"
CHOSEN = (
    f"SELECT id, name, amount FROM orders LEFT JOIN {TWINS} ON cid = customer WHERE name <=> 'ann' OR cid IS NULL",
)
REKEYED = ("SELECT customer, id, upper(status) AS s FROM orders WHERE customer IS NOT NULL AND status <> 'c'",)
GROUPED = (
    (
        "SELECT customer, count(*) AS n, count(amount) AS m, sum(amount) AS s, avg(amount) AS a FROM orders "
        "WHERE customer IS NOT NULL GROUP BY customer HAVING count(*) > 1 OR sum(amount) > 0"
    ),
)
EXTREMES = (
    (
        "SELECT status, min(amount) AS lo, max(amount) AS hi, sum(id) AS ids, avg(id) AS mean, count(*) AS n "
        "FROM orders WHERE status IS NOT NULL GROUP BY status"
    ),
)

rows = st.tuples(
    st.sampled_from([None, 10, 11, 12]),
    st.sampled_from([None, Decimal("0.00"), Decimal("-1.50"), Decimal("2.25"), Decimal("99.99")]),
    st.sampled_from([None, "a", "b", "c"]),
)
ops = st.tuples(st.integers(0, 3), st.one_of(st.none(), rows))
"""An id, and its new row or a delete."""

streams = st.lists(st.lists(ops, min_size=1, max_size=6), min_size=1, max_size=3)


def changes_of_ops(contents: dict[int, Row], ops: Sequence[tuple[int, Row | None]], start: int) -> list[Change]:
    """What a database would log; `contents` becomes what it is afterwards."""
    changes: list[Change] = []
    for number, (key, row) in enumerate(ops):
        old, new = contents.pop(key, None), None if row is None else (key, *row)
        if new is not None:
            contents[key] = new
        if old is not None or new is not None:
            changes.append((start + number, old, new))
    return changes


@pytest.mark.parametrize(
    ("texts", "source", "key"),
    [(FOLLOWED, ORDERS, None), (CHOSEN, ORDERS, None), (REKEYED, IMAGES, ["customer", "id"]), (GROUPED, IMAGES, None)],
    ids=["follow", "choose", "rekey", "group"],
)
@settings(max_examples=settings().max_examples // 16)
@given(stream=streams)
def test_a_view_is_its_select_over_the_contents(
    spark: SparkSession,
    texts: Sequence[str],
    source: ViewInput,
    key: Sequence[str] | None,
    stream: list[list[tuple[int, Row | None]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = target(spark, *texts, source=source, key=key, state=LocalState(Path(folder)))
        contents: dict[int, Row] = {}
        for number, batch in enumerate(stream):
            table.take(changes_of_ops(contents, batch, 100 * number))
        assert table.contents() == selected(spark, contents.values(), *texts)


@settings(max_examples=settings().max_examples // 12)
@given(batches=st.lists(st.lists(rows, min_size=1, max_size=5), min_size=1, max_size=3), repeated=st.booleans())
def test_totals_of_inserts_are_their_select_with_and_without_restarts(
    spark: SparkSession, batches: list[list[Row]], *, repeated: bool
) -> None:
    folder = Path(tempfile.mkdtemp())
    table = target(spark, *EXTREMES, source=INSERTS, state=LocalState(folder))
    everything: list[Row] = []
    for number, batch in enumerate(batches):
        new = [(100 * number + i, *row) for i, row in enumerate(batch)]
        changes: list[Change] = [(i, None, row) for i, row in enumerate(new)]
        if repeated:
            table.take(changes, commit=False)
            table = Target(spark, replace(table.plan), LocalState(folder), rows=table.rows, position=table.position)
        table.take(changes)
        everything += new
    assert table.contents() == selected(spark, everything, *EXTREMES)
    shutil.rmtree(folder)
