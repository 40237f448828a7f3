"""Views that cannot follow changes are refused when they are created, with the reason."""

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from calve.errors import InvalidInput
from calve.view.plan import ViewInput, ViewQuery
from calve.view.planning import plan_view
from tests.integration.view.streams import IMAGES, INSERTS, ORDERS, queries_of
from tests.support.combinations import diagonal

STATIC = "(SELECT 10 AS cid, 'ann' AS name)"

ANY_INPUT = [
    ("SELECT DISTINCT id FROM orders", "SELECT DISTINCT", "equal rows may remain"),
    ("SELECT id, row_number() OVER (ORDER BY id) AS r FROM orders", "a window function", "other rows"),
    ("SELECT id FROM orders LIMIT 3", "LIMIT", "other rows"),
    ("SELECT id FROM orders OFFSET 3", "OFFSET", "other rows"),
    ("SELECT id FROM orders ORDER BY id", "ORDER BY", "no order"),
    ("SELECT id FROM orders UNION ALL SELECT id FROM orders", "UNION", "which part"),
    (f"SELECT id FROM orders UNION ALL SELECT cid FROM {STATIC}", "UNION", "which part"),
    ("SELECT id FROM orders EXCEPT SELECT 1", "EXCEPT", "other rows"),
    ("SELECT id FROM orders INTERSECT SELECT 1", "INTERSECT", "other rows"),
    ("SELECT id, explode(array(1, 2)) AS e FROM orders", "several rows from one", "the key of that row"),
    ("SELECT id, e FROM orders LATERAL VIEW explode(array(1, 2)) t AS e", "several rows from one", "the key"),
    ("SELECT id FROM orders TABLESAMPLE (10 PERCENT)", "TABLESAMPLE", "repeated checkpoint would sample other rows"),
    ("SELECT id, rand() AS r FROM orders", r"rand\(\)", "same rows"),
    ("SELECT id, uuid() AS r FROM orders", r"uuid\(\)", "same rows"),
    ("SELECT id FROM orders WHERE current_timestamp() > '2020-01-01'", r"current_timestamp\(\)", "same rows"),
    ("SELECT id, current_date() AS d FROM orders", r"current_date\(\)", "same rows"),
    ("SELECT id, now() AS d FROM orders", r"now\(\)", "same rows"),
    ("SELECT id, monotonically_increasing_id() AS d FROM orders", "increasing_id", "same rows"),
    (f"SELECT id FROM orders JOIN (SELECT cid, rand() AS r FROM {STATIC}) ON cid = id", r"rand\(\)", "same rows"),
    (f"SELECT id FROM orders JOIN (SELECT cid FROM {STATIC} LIMIT 1) ON cid = id", "LIMIT", "each time it is read"),
    (f"SELECT id FROM orders WHERE customer IN (SELECT cid FROM {STATIC})", "a subquery", "Only joins"),
    ("SELECT id, (SELECT max(id) FROM orders) AS m FROM orders", "a subquery", "Only joins"),
    ("SELECT a.id FROM orders a JOIN orders b ON a.id = b.customer", "two changing inputs in a join", "of the other"),
    (
        f"SELECT id FROM {STATIC} LEFT JOIN orders ON cid = id",
        "keeps all rows of the static table",
        "appear and disappear",
    ),
    (f"SELECT id FROM orders FULL JOIN {STATIC} ON cid = id", "a FULL OUTER JOIN", "inner and left joins"),
    (f"SELECT id FROM orders LEFT ANTI JOIN {STATIC} ON cid = id", "a LEFT ANTI JOIN", "inner and left joins"),
    (f"SELECT cid FROM {STATIC}", "static tables only", "would never change"),
]


@diagonal(case=ANY_INPUT, source=[ORDERS, IMAGES])
def test_what_cannot_follow_changes_is_refused(
    spark: SparkSession, case: tuple[str, str, str], source: ViewInput
) -> None:
    text, what, why = case
    with pytest.raises(InvalidInput, match=f'view "v0" uses .*{what}') as error:
        plan_view(spark, queries_of(text), source)
    assert why in error.value.detail


GROUPED = [
    (ORDERS, "SELECT customer, count(*) AS n FROM orders GROUP BY customer", "updates without before"),
    (IMAGES, "SELECT count(*) AS n FROM orders", "without GROUP BY"),
    (IMAGES, "SELECT customer, count(DISTINCT status) AS n FROM orders GROUP BY customer", r"count\(DISTINCT"),
    (IMAGES, "SELECT customer, min(amount) AS n FROM orders GROUP BY customer", r"min\(\)"),
    (IMAGES, "SELECT customer, sum(CAST(amount AS DOUBLE)) AS n FROM orders GROUP BY customer", "floating-point"),
    (IMAGES, "SELECT customer, avg(CAST(amount AS FLOAT)) AS n FROM orders GROUP BY customer", "floating-point"),
    (INSERTS, "SELECT customer, max(struct(amount, id)) AS n FROM orders GROUP BY customer", r"max\(\) of STRUCT"),
    (INSERTS, "SELECT customer, collect_list(id) AS n FROM orders GROUP BY customer", r"collect_list\(\)"),
    (INSERTS, "SELECT customer, count(*) AS n FROM orders GROUP BY CUBE (customer)", "CUBE"),
    (
        INSERTS,
        "SELECT n, count(*) AS m FROM (SELECT customer, count(*) AS n FROM orders GROUP BY customer) GROUP BY n",
        "GROUP BY over GROUP BY",
    ),
]


@pytest.mark.parametrize(("source", "text", "what"), GROUPED, ids=[t[1] for t in GROUPED])
def test_totals_that_would_go_wrong_are_refused(spark: SparkSession, source: ViewInput, text: str, what: str) -> None:
    with pytest.raises(InvalidInput, match=f'view "v0" uses .*{what}'):
        plan_view(spark, queries_of(text), source)


KEYS = [
    (ORDERS, "SELECT customer, status FROM orders", None, 'view "v0" has no key'),
    (ORDERS, "SELECT id + 0 AS id FROM orders", None, 'view "v0" has no key'),
    (INSERTS, "SELECT id FROM orders", None, 'view "v0" has no key'),
    (ORDERS, "SELECT id, customer FROM orders", ["customer"], "is not the key of orders, passed through unchanged"),
    (
        ORDERS,
        "SELECT id, customer FROM orders",
        ["id", "customer"],
        "is not the key of orders, passed through unchanged",
    ),
    (ORDERS, "SELECT id, customer FROM orders", ["nope"], 'has no column "nope"'),
    (ORDERS, "SELECT id, customer FROM orders", ["id", "id"], "the key contains a column twice"),
    (ORDERS, "SELECT id, customer FROM orders", [], "the sink has no key"),
    (IMAGES, f"SELECT name FROM orders JOIN {STATIC} ON cid = id", ["name"], "to determine rows or the key"),
    (IMAGES, f"SELECT customer FROM orders JOIN {STATIC} ON cid = id", ["customer"], "to determine rows"),
    (IMAGES, "SELECT count(*) AS n FROM orders GROUP BY customer", None, "does not select all columns of its GROUP BY"),
    (IMAGES, "SELECT customer, count(*) AS n FROM orders GROUP BY customer", ["n"], "is not its GROUP BY"),
]


@pytest.mark.parametrize(("source", "text", "key", "words"), KEYS)
def test_a_key_by_which_old_rows_are_not_found_is_refused(
    spark: SparkSession, source: ViewInput, text: str, key: Sequence[str] | None, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        plan_view(spark, queries_of(text), source, key)


def test_the_refusal_of_another_key_says_what_would_help(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput) as error:
        plan_view(spark, queries_of("SELECT id, customer FROM orders"), ORDERS, ["customer"])
    assert "it has no before" in error.value.detail
    assert "REPLICA IDENTITY FULL" in error.value.hint


TEXTS = [
    ("SELECT nope FROM orders", "the query of view .* is invalid"),
    ("SELECT id FROM nowhere", "the query of view .* is invalid"),
    ("SELECT id FORM orders", "the query of view .* is invalid"),
    ("SELECT id FROM orders; DROP TABLE x", "one SELECT"),
    ("SELECT id FROM orders WHERE status = 'open", "never closed"),
    ("SELECT id, id AS ID FROM orders", 'two columns "id"'),
    ("SELECT id, status AS _calve_op FROM orders", "reserved name"),
]


@pytest.mark.parametrize(("text", "words"), TEXTS)
def test_an_invalid_query_is_refused(spark: SparkSession, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        plan_view(spark, queries_of(text), ORDERS)


def test_two_inputs_of_one_name_are_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match='two inputs of a view are named "v0"'):
        plan_view(spark, [*queries_of("SELECT id FROM orders"), ViewQuery("V0", "SELECT id FROM v0")], ORDERS)


def test_a_view_that_writes_is_refused_before_anything_is_written(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput):
        plan_view(spark, queries_of("WITH x AS (SELECT id FROM orders) INSERT INTO elsewhere SELECT * FROM x"), ORDERS)
