"""Views with another key than their input: the old row is retracted, the new one inserted."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from calve.envelope.envelopes import changes_of
from calve.errors import BadRow, InvalidInput
from calve.model.change import BAD, BEFORE, DELETE, UPSERT
from calve.model.spec import Debezium, NoEnvelope
from calve.view.plan import Mode
from tests.integration.view.streams import IMAGES, Target, target

KAFKA = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"
COLUMNS = "id BIGINT NOT NULL, customer INT, amount DECIMAL(12,2), status STRING"
SLOTS = "SELECT status AS slot, id FROM orders WHERE amount > 0"


def slots(spark: SparkSession) -> Target:
    found = target(spark, SLOTS, source=IMAGES, key=["slot"])
    assert (found.plan.mode, found.plan.needs_before) == (Mode.REKEY, True)
    return found


def row(number: int, slot: str, amount: int = 1) -> tuple[Any, ...]:
    return (number, None, Decimal(amount), slot)


def test_a_row_that_changes_its_key_leaves_nothing_behind(spark: SparkSession) -> None:
    table = slots(spark)
    table.take([(1, None, row(1, "a")), (2, None, row(2, "b"))])
    table.take([(3, row(1, "a"), row(1, "c")), (4, row(2, "b"), None)])
    assert table.contents() == [("c", 1)]
    table.take([(5, row(1, "c"), row(1, "c", 0))])
    assert table.contents() == []


def test_rows_may_exchange_their_keys_in_one_checkpoint_in_any_order(spark: SparkSession) -> None:
    for orders in ([3, 4, 5, 6], [6, 5, 3, 4], [4, 3, 6, 5]):
        table = slots(spark)
        table.take([(1, None, row(1, "a")), (2, None, row(2, "b"))])
        one, two = sorted(orders[:2]), sorted(orders[2:])
        table.take(
            [
                (one[0], row(1, "a"), row(1, "spare")),
                (two[0], row(2, "b"), row(2, "a")),
                (one[1], row(1, "spare"), row(1, "b")),
                (two[1], row(2, "a"), row(2, "a", 5)),
            ]
        )
        assert table.contents() == [("a", 2), ("b", 1)]


def test_a_key_that_was_left_and_deleted_may_be_taken_in_the_same_checkpoint(spark: SparkSession) -> None:
    table = slots(spark)
    table.take([(1, None, row(1, "a"))])
    table.take([(9, row(1, "a"), None), (2, None, row(2, "a"))])
    assert table.contents() == [("a", 2)]


def test_a_hidden_row_does_not_delete_the_one_that_has_its_key(spark: SparkSession) -> None:
    table = slots(spark)
    table.take([(1, None, row(1, "a", 0)), (2, None, row(2, "a"))])
    table.take([(3, row(1, "a", 0), row(1, "a", -1))])
    assert table.contents() == [("a", 2)]


def test_two_rows_that_get_one_key_are_an_error(spark: SparkSession) -> None:
    with pytest.raises(BadRow, match=r"several rows with one key \(slot\)"):
        slots(spark).take([(1, None, row(1, "a")), (2, None, row(2, "a"))])


def test_other_columns_may_come_from_a_left_join(spark: SparkSession) -> None:
    text = "SELECT status, id, name FROM orders LEFT JOIN (SELECT 1 AS k, 'one' AS name) ON id = k"
    table = target(spark, text, source=IMAGES, key=["status"])
    table.take([(1, None, row(1, "a")), (2, None, row(2, "b"))])
    table.take([(3, row(1, "a"), row(1, "c"))])
    assert table.contents() == [("b", 2, None), ("c", 1, "one")]


def images(spark: SparkSession, *records: dict[str, Any] | None) -> DataFrame:
    rows = [(None, r if r is None else json.dumps(r), "t", 0, i) for i, r in enumerate(records)]
    envelope = Debezium(columns=COLUMNS)
    return changes_of(spark.createDataFrame(rows, KAFKA), envelope, ["id"], before=True)


def image(number: int, slot: str) -> dict[str, Any]:
    return {"id": number, "customer": None, "amount": 1, "status": slot}


def test_debezium_records_bring_the_row_before(spark: SparkSession) -> None:
    frame = images(
        spark,
        {"op": "c", "before": None, "after": image(1, "a")},
        {"op": "u", "before": image(1, "a"), "after": image(1, "b")},
        {"op": "u", "before": image(1, "b"), "after": image(2, "b")},
        {"op": "d", "before": image(2, "b"), "after": None},
        None,
    )
    found = [(r.id, r.status, r["_calve_op"], r[BEFORE] and r[BEFORE].status) for r in frame.collect()]
    assert found == [
        (1, "a", UPSERT, None),
        (1, "b", UPSERT, "a"),
        (1, None, DELETE, "b"),
        (2, "b", UPSERT, None),
        (2, None, DELETE, "b"),
    ]
    table = slots(spark)
    table.apply(table.view.changes(frame.limit(3), table.identity))
    assert table.contents() == [], "a limit of three cuts the change of the key in half"
    table.apply(table.view.changes(frame.limit(4), table.identity))
    assert table.contents() == [("b", 2)]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"op": "u", "before": None, "after": image(1, "a")}, "no row in before"),
        ({"op": "u", "before": {"id": 1}, "after": image(1, "a")}, 'no column "customer"'),
        ({"op": "d", "before": {"id": 1, "customer": None, "amount": None, "status": None}}, "contains only its key"),
        (
            {"op": "u", "before": image(1, "__debezium_unavailable_value"), "after": image(1, "a")},
            'no column "status"',
        ),
    ],
)
def test_a_record_without_the_whole_row_before_is_a_bad_row_that_says_what_to_do(
    spark: SparkSession, record: dict[str, Any], words: str
) -> None:
    frame = images(spark, record)
    assert "REPLICA IDENTITY FULL" in frame.collect()[0][BAD]
    with pytest.raises(BadRow, match=words):
        slots(spark).apply(slots(spark).view.changes(frame, slots(spark).identity))


def test_only_change_records_have_a_row_before(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1,)], "id INT")
    with pytest.raises(InvalidInput, match="only change records"):
        changes_of(frame, NoEnvelope(), ["id"], before=True)
    table = slots(spark)
    with pytest.raises(InvalidInput, match="needs the old rows"):
        table.view.changes(images(spark).drop(BEFORE), table.identity)
