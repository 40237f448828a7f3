"""Views with the key of their input: a change stays a change of the same row."""

import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from calve.envelope.envelopes import changes_of
from calve.errors import BadRow, InvalidInput, TerminalError
from calve.model.change import BAD, DELETE, OP
from calve.model.spec import Debezium, NoEnvelope, Upsert
from calve.view.plan import Changes, Mode, ViewInput, ViewQuery
from calve.view.planning import plan_view
from calve.view.scope import tables_read
from tests.integration.view.streams import INSERTS, ORDERS, SCHEMA, frame_of, queries_of, target

A = (1, 10, Decimal("5.00"), "open")
B = (2, 11, Decimal("50.00"), "open")
C = (3, None, Decimal("500.00"), None)


@pytest.fixture
def customers(spark: SparkSession) -> Iterator[str]:
    frame = spark.createDataFrame([(10, "ann"), (12, "bob")], "cid INT, name STRING")
    frame.createOrReplaceTempView("customers")
    yield "customers"
    spark.catalog.dropTempView("customers")


def test_a_row_that_leaves_the_filter_is_deleted_and_one_that_enters_it_is_written(spark: SparkSession) -> None:
    table = target(spark, "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 10")
    table.take([(1, None, A), (2, None, B), (3, None, C)])
    assert table.contents() == [(2, Decimal("100.00")), (3, Decimal("1000.00"))]
    table.take(
        [(4, None, (1, 10, Decimal("11.00"), "open")), (5, None, (2, 11, Decimal("1.00"), "open")), (6, C, None)]
    )
    assert table.contents() == [(1, Decimal("22.00"))]


def test_a_condition_that_is_null_is_not_true(spark: SparkSession) -> None:
    table = target(spark, "SELECT id FROM orders WHERE NOT (customer = 10)")
    table.take([(1, None, A), (2, None, B), (3, None, C)])
    assert table.contents() == [(2,)]


def test_order_and_errors_go_through_untouched(spark: SparkSession) -> None:
    frame = frame_of(spark, [(7, None, A), (9, B, None)])
    bad = spark.createDataFrame([(None, None, None, None, 1, None, "broken")], frame.schema)
    view = target(spark, "SELECT id, status FROM orders WHERE status = 'open'").view
    found = view.changes(frame.union(bad), target(spark, "SELECT id FROM orders").identity).collect()
    assert sorted((r.id or 0, r[OP], r["_calve_order_0"] or 0) for r in found if not r[BAD]) == [(1, 1, 7), (2, -1, 9)]
    assert [(r.id, r.status, r["_calve_order_0"], r[BAD]) for r in found if r[BAD]] == [(None, None, None, "broken")]


def test_an_inner_join_deletes_what_no_longer_matches(spark: SparkSession, customers: str) -> None:
    table = target(spark, f"SELECT o.id, c.name FROM orders o JOIN {customers} c ON o.customer = c.cid")
    table.take([(1, None, A), (2, None, B), (3, None, C)])
    assert table.contents() == [(1, "ann")]
    table.take([(4, None, (1, 99, None, None)), (5, None, (2, 12, None, None))])
    assert table.contents() == [(2, "bob")]


def test_a_left_join_keeps_what_does_not_match(spark: SparkSession, customers: str) -> None:
    for text in (
        f"SELECT o.id, c.name FROM orders o LEFT JOIN {customers} c ON o.customer = c.cid",
        f"SELECT o.id, c.name FROM {customers} c RIGHT JOIN orders o ON o.customer = c.cid",
    ):
        table = target(spark, text)
        table.take([(1, None, A), (2, None, B), (3, None, C), (4, C, None)])
        assert table.contents() == [(1, "ann"), (2, None)]


def test_the_source_may_stand_on_either_side_of_an_inner_join_and_joins_may_use_names(
    spark: SparkSession, customers: str
) -> None:
    renamed = f"(SELECT cid AS customer, name FROM {customers} WHERE name <> 'bob')"
    table = target(spark, f"SELECT name, id FROM {renamed} JOIN orders USING (customer)")
    table.take([(1, None, A), (2, None, (2, 12, None, None))])
    assert table.contents() == [("ann", 1)]


def test_several_matches_of_one_row_are_an_error_and_not_a_random_row(spark: SparkSession) -> None:
    spark.createDataFrame([(10, "a"), (10, "b")], "cid INT, name STRING").createOrReplaceTempView("twins")
    for join in (
        "JOIN twins t ON o.customer = t.cid",
        "LEFT JOIN twins t ON o.customer = t.cid",
        "LEFT JOIN twins t ON o.customer = t.cid AND o.amount > 0 AND t.name < 'c'",
        "JOIN twins t ON o.customer >= t.cid AND o.customer < 11",
        "JOIN twins t ON o.customer = t.cid AND o.status > t.name",
        "CROSS JOIN twins t",
    ):
        table = target(spark, f"SELECT o.id, t.name FROM orders o {join}")
        if "CROSS" not in join:
            table.take([(1, None, B)])
        with pytest.raises(BadRow, match=r'view "v0" has several rows with one key \(id\)'):
            table.take([(2, None, A)])
    spark.catalog.dropTempView("twins")


def test_a_condition_on_either_side_may_choose_one_of_several_matches(spark: SparkSession) -> None:
    twins = "(SELECT 10 AS cid, 'a' AS name, 5 AS least UNION ALL SELECT 10, 'b', 1)"
    for condition in ("name <> 'b'", "o.amount < least + 1 AND o.amount > 4.5 + least / 100 AND name = 'a'"):
        table = target(spark, f"SELECT o.id, name FROM orders o JOIN {twins} ON cid = o.customer AND {condition}")
        table.take([(1, None, A), (2, None, B)])
        assert table.contents() == [(1, "a")]
    one = f"(SELECT cid, max(name) AS name FROM {twins} GROUP BY cid)"
    table = target(spark, f"SELECT o.id, name FROM orders o JOIN {one} ON cid <=> o.customer CROSS JOIN (SELECT 1)")
    table.take([(1, None, A), (2, None, B)])
    assert table.contents() == [(1, "b")]


def test_a_condition_after_the_join_may_choose_one_of_several_matches(spark: SparkSession) -> None:
    twins = "(SELECT 10 AS cid, 'a' AS name, 'x' AS tag UNION ALL SELECT 10, 'b', 'y' UNION ALL SELECT 99, 'c', 'z')"
    up = "WHERE n = 'A'"
    tags = "(SELECT 'x' AS t, 'one' AS tagged UNION ALL SELECT 'q', 'two')"
    for text in (
        f"SELECT o.id, name FROM orders o, {twins} WHERE cid = o.customer AND name = 'a'",
        f"SELECT o.id, name FROM orders o, {twins}, {tags} WHERE cid = o.customer AND t = tag",
        f"SELECT o.id, name FROM orders o JOIN {twins} ON cid = o.customer JOIN {tags} ON t = tag",
        f"SELECT o.id, name FROM orders o LEFT JOIN {twins} ON cid = o.customer WHERE name = 'a'",
        f"SELECT id, name FROM (SELECT o.id, upper(name) AS n, name FROM orders o JOIN {twins} ON cid = customer) {up}",
    ):
        table = target(spark, text)
        table.take([(1, None, A), (2, None, B)])
        assert table.contents() == [(1, "a")], text
        table.take([(3, None, (1, 11, None, None))])
        assert table.contents() == [], text


def test_nothing_is_computed_for_rows_that_a_filter_removes(spark: SparkSession, customers: str) -> None:
    guarded = "SELECT id, customer, 1 / amount AS share, status FROM orders WHERE amount <> 0"
    joined = f"SELECT v.id, share, c.name FROM v0 v LEFT JOIN {customers} c ON cast(v.status AS INT) = c.cid"
    numeric = "SELECT * FROM orders WHERE status RLIKE '^[0-9]+$'"
    joined_numeric = f"SELECT v.id, c.name FROM v0 v JOIN {customers} c ON cast(v.status AS INT) = c.cid"
    table = target(spark, guarded)
    table.take([(1, None, (1, 10, Decimal(0), "x")), (2, None, (2, 10, Decimal(4), "x"))])
    assert [row[0] for row in table.contents()] == [2]
    table = target(spark, numeric, joined_numeric)
    table.take([(1, None, (1, 10, None, "no number")), (2, None, (2, 10, None, "12"))])
    assert table.contents() == [(2, "bob")]
    assert target(spark, guarded, joined).plan.mode is Mode.FOLLOW


def test_views_over_views_are_as_if_they_were_nested(spark: SparkSession) -> None:
    table = target(
        spark,
        "SELECT id AS k, amount AS a, status FROM orders WHERE amount > 10",
        "WITH few AS (SELECT k, a FROM v0 WHERE a < 100) SELECT *, a + 1 AS more FROM few",
        "SELECT more, x.k AS id FROM v1 AS x",
    )
    table.take([(1, None, A), (2, None, B), (3, None, C)])
    assert table.contents() == [(Decimal("51.00"), 2)]
    assert (table.plan.key, table.plan.origin) == (("id",), ("id",))


def test_quoted_names_work_as_outside_of_views(spark: SparkSession) -> None:
    table = target(
        spark,
        """SELECT ID AS "Order Id", 'it''s "fine"' AS "a""b", "status" AS `tick` FROM "orders" WHERE Status = 'open'""",
        'SELECT "Order Id", "a""b", tick, "Order Id" + 1 AS next FROM v0',
    )
    assert table.plan.schema.names == ["Order Id", 'a"b', "tick", "next"]
    assert table.plan.key == ("Order Id",)
    table.take([(1, None, A)])
    assert table.contents() == [(1, 'it\'s "fine"', "open", 2)]


def test_a_name_in_double_quotes_matches_exactly(spark: SparkSession) -> None:
    for text in ('SELECT "ID" FROM orders', 'SELECT o.id FROM orders o WHERE "O".id = 1', 'SELECT id FROM "Orders"'):
        with pytest.raises(InvalidInput, match="there is no column or table"):
            plan_view(spark, queries_of(text), ORDERS)
    with pytest.raises(InvalidInput, match="single quotes"):
        plan_view(spark, queries_of('SELECT id FROM orders WHERE status = "open"'), ORDERS)


def test_static_tables_may_be_files_tables_of_the_session_and_what_a_hook_knows(
    spark: SparkSession, customers: str, tmp_path: Path
) -> None:
    files = str(tmp_path / "regions")
    spark.createDataFrame([(10, "north"), (11, "south")], "cid INT, region STRING").write.parquet(files)
    asked: list[tuple[str, ...]] = []

    def resolve(parts: tuple[str, ...]) -> DataFrame | None:
        asked.append(parts)
        if parts not in {("Lake", "shop", "tiers"), ("ranks",)}:
            return None
        return spark.createDataFrame([(10, f"{parts[-1]} 1")], "cid INT, tier STRING")

    text = f"""
        SELECT o.id, c.name, r.region, t.tier, ranks.tier AS rank FROM orders o
        JOIN {customers} c ON c.cid = o.customer
        LEFT JOIN parquet.`{files}` r ON r.cid = o.customer
        LEFT JOIN "Lake".shop.tiers t ON t.cid = o.customer
        LEFT JOIN ranks ON ranks.cid = o.customer
    """
    table = target(spark, text, resolve=resolve)
    assert set(asked) == {("customers",), ("parquet", files), ("Lake", "shop", "tiers"), ("ranks",)}
    table.take([(1, None, A)])
    assert table.contents() == [(1, "ann", "north", "tiers 1", "ranks 1")]


def test_a_static_table_is_read_again_for_every_checkpoint_and_old_rows_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = str(tmp_path / "names")
    spark.createDataFrame([(10, "old")], "cid INT, name STRING").write.parquet(files)
    table = target(spark, f"SELECT o.id, n.name FROM orders o LEFT JOIN parquet.`{files}` n ON n.cid = o.customer")
    table.take([(1, None, A)])
    spark.createDataFrame([(10, "new")], "cid INT, name STRING").write.mode("overwrite").parquet(files)
    table.take([(2, None, (2, 10, None, None))])
    assert table.contents() == [(1, "old"), (2, "new")]


def test_a_key_of_several_columns_may_be_renamed_and_turned_round(spark: SparkSession) -> None:
    source = ViewInput("orders", SCHEMA, ("id", "customer"), Changes.UPSERTS)
    plan = plan_view(spark, queries_of("SELECT customer AS c, status, id AS i FROM orders"), source, ["c", "i"])
    assert (plan.mode, plan.key, plan.origin) == (Mode.FOLLOW, ("c", "i"), ("customer", "id"))
    assert [f.name for f in plan.schema.fields if not f.nullable] == ["c", "i"]
    natural = plan_view(spark, queries_of("SELECT customer AS c, status, id AS i FROM orders"), source)
    assert natural.key == ("i", "c")


def test_inserts_pass_or_are_skipped_and_are_never_deleted(spark: SparkSession, customers: str) -> None:
    text = f"SELECT customer, status, name FROM orders JOIN {customers} ON customer = cid WHERE amount > 1"
    table = target(spark, text, source=INSERTS, key=["customer", "status"])
    frame = table.view.changes(frame_of(spark, [(1, None, A), (2, None, B), (3, None, C)]), table.identity)
    assert [r[OP] for r in frame.collect()] == [1]
    assert table.plan.mode is Mode.INSERT
    appended = target(spark, "SELECT customer FROM orders", source=INSERTS, key=())
    assert appended.view.changes(frame_of(spark, [(1, None, A), (2, None, A)]), table.identity).count() == 2


def test_deletes_carry_the_key_alone(spark: SparkSession) -> None:
    view = target(spark, "SELECT id AS k, 'x' AS tag, coalesce(status, 'none') AS s FROM orders WHERE amount > 10").view
    found = view.changes(frame_of(spark, [(1, None, A), (2, B, None)]), target(spark, "SELECT id FROM orders").identity)
    assert sorted((r.k, r.tag, r.s, r[OP]) for r in found.collect()) == [
        (1, None, None, DELETE),
        (2, None, None, DELETE),
    ]


def test_rows_of_no_envelope_need_no_key_of_their_own(spark: SparkSession) -> None:
    frame = spark.createDataFrame([A, B], SCHEMA)
    table = target(spark, "SELECT id, status FROM orders WHERE amount > 10", source=INSERTS, key=["id"])
    table.apply(table.view.changes(changes_of(frame, NoEnvelope(), ()), table.identity))
    assert table.contents() == [(2, "open")]
    assert [Changes.of(e) for e in (NoEnvelope(), Upsert(), Debezium())] == list(Changes)


def test_inserts_that_a_join_multiplies_need_a_key_that_distinguishes_them(spark: SparkSession) -> None:
    twice = "(SELECT 10 AS cid, 'a' AS part UNION ALL SELECT 10, 'b')"
    text = f"SELECT id, part FROM orders JOIN {twice} ON cid = customer"
    table = target(spark, text, source=INSERTS, key=["id", "part"])
    table.take([(1, None, A)])
    assert table.contents() == [(1, "a"), (1, "b")]
    with pytest.raises(BadRow, match="several rows with one key"):
        target(spark, text, source=INSERTS, key=["id"]).take([(1, None, A)])


def test_functions_of_the_session_work_if_they_are_deterministic(spark: SparkSession) -> None:
    spark.udf.register("shout", lambda text: text and text.upper() + "!")
    table = target(spark, "SELECT id, shout(status) AS loud FROM orders WHERE shout(status) = 'OPEN!'")
    table.take([(1, None, A), (2, None, C), (3, B, None)])
    assert table.contents() == [(1, "OPEN!")]
    spark.udf.register("dice", udf(lambda: "4").asNondeterministic())
    with pytest.raises(InvalidInput, match=r"dice\(\)"):
        plan_view(spark, queries_of("SELECT id, dice() AS d FROM orders"), ORDERS)


def test_nothing_of_a_view_shows_in_the_users_session(spark: SparkSession) -> None:
    spark.createDataFrame([(7,)], "x INT").createOrReplaceTempView("orders")
    table = target(spark, "SELECT id FROM orders", "SELECT id AS k FROM v0")
    table.take([(1, None, A)])
    assert table.contents() == [(1,)]
    assert [r.x for r in spark.table("orders").collect()] == [7]
    assert not spark.catalog.tableExists("v0")
    spark.catalog.dropTempView("orders")


def test_a_static_table_that_changes_its_types_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    files = str(tmp_path / "names")
    spark.createDataFrame([(10, "old")], "cid INT, name STRING").write.parquet(files)
    table = target(spark, f"SELECT o.id, n.name FROM orders o LEFT JOIN parquet.`{files}` n ON n.cid = o.customer")
    table.take([(1, None, A)])
    spark.createDataFrame([(10, 1.5)], "cid INT, name DOUBLE").write.mode("overwrite").parquet(files)
    with pytest.raises(TerminalError, match='column "name" of view "v0" has changed its type'):
        table.take([(2, None, A)])


def test_the_tables_that_a_text_reads_are_found_without_those_it_defines(spark: SparkSession) -> None:
    text = """WITH few AS (SELECT * FROM "My Orders" WHERE 'FROM x' <> '') SELECT * FROM few JOIN a.b ON true, few f"""
    assert tables_read(spark, ViewQuery("v", text)) == [("My Orders",), ("a", "b")]


def test_a_plan_survives_pickle_and_knows_its_definition(spark: SparkSession) -> None:
    plan = plan_view(spark, queries_of("SELECT id FROM orders"), ORDERS)
    assert pickle.loads(pickle.dumps(plan)) == plan
    other = plan_view(spark, queries_of("SELECT id FROM orders WHERE id > 1"), ORDERS)
    assert (plan.definition == plan.definition, plan.definition == other.definition) == (True, False)
