from datetime import UTC

import pytest
from pyspark.sql import DataFrame, SparkSession

from calve.clock import SystemClock
from calve.errors import InvalidInput
from calve.model.checkpoint import SizeLimit
from calve.source.generator import OrderRow, expected_orders, offsets_at, orders, position_of
from calve.storage.state import LocalState, StateFolder
from tests.support.clocks import ManualClock

STORE = StateFolder(LocalState.__new__(LocalState), "unused")


def applied(frame: DataFrame) -> dict[int, OrderRow]:
    table: dict[int, OrderRow] = {}
    for row in frame.toArrow().sort_by("seq").to_pylist():
        if row["op"] == "d":
            table.pop(row["id"], None)
        else:
            moment = row["updated_at"].astimezone(UTC)
            table[row["id"]] = (row["id"], row["customer"], row["amount"], row["status"], moment)
    return table


def test_the_changes_give_the_table_that_plain_python_computes(spark: SparkSession) -> None:
    definition = orders(rows=700, changes=4000, seed=11)
    source = definition.open(STORE, SystemClock())
    frame = source.frame(spark, None, offsets_at(4700))
    assert {r.op for r in frame.select("op").distinct().collect()} == {"i", "u", "d"}
    assert applied(frame) == expected_orders(definition, 4700)


def test_a_range_is_the_same_whatever_was_read_before_it(spark: SparkSession) -> None:
    definition = orders(rows=50, changes=200)
    whole = definition.open(STORE, SystemClock()).frame(spark, None, offsets_at(250)).collect()
    source = definition.open(STORE, SystemClock())
    parts = [source.frame(spark, offsets_at(n), offsets_at(n + 50)).collect() for n in range(0, 250, 50)]
    assert sorted((r for part in parts for r in part), key=lambda r: r.seq) == sorted(whole, key=lambda r: r.seq)


def test_other_seeds_give_other_changes(spark: SparkSession) -> None:
    frames = [orders(rows=20, seed=s).open(STORE, SystemClock()).frame(spark, None, offsets_at(20)) for s in (1, 2)]
    assert frames[0].collect() != frames[1].collect()


def test_checkpoints_cover_all_changes_and_then_the_source_has_ended() -> None:
    source = orders(rows=25, changes=10, per_checkpoint=20).open(STORE, SystemClock())
    ends = [source.next_end(None)]
    while (end := source.next_end(ends[-1])) is not None:
        ends.append(end)
    assert [position_of(e) for e in ends] == [20, 35]
    assert [source.ended(e) for e in (None, *ends)] == [False, False, True]
    assert source.size(ends[0], ends[1]).rows == 15


def test_a_paced_source_offers_what_time_allows() -> None:
    clock = ManualClock(100_000)
    source = orders(rows=1, per_second=10, per_checkpoint=1000).open(STORE, clock)
    assert source.next_end(offsets_at(40)) is None
    clock.seconds += 2.55
    assert position_of(source.next_end(offsets_at(40))) == 65
    assert not source.ended(offsets_at(10**9))


@pytest.mark.parametrize(
    "options", [{"rows": 0}, {"changes": -1}, {"per_checkpoint": 0}, {"per_second": 0}, {"per_second": -2.0}]
)
def test_a_generator_that_cannot_work_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        orders(**options)


def test_the_driver_computes_the_same_changes_as_spark(spark: SparkSession) -> None:
    source = orders(rows=50, changes=300, seed=-3).open(STORE, SystemClock())
    start, end, schema = offsets_at(20), offsets_at(350), source.schema(spark)
    expected = source.frame(spark, start, end).toArrow()
    found = source.arrow_records(spark, start, end, schema, SizeLimit(330, 1 << 20))
    assert found is not None
    assert found.schema.types == expected.schema.types
    assert found.to_pylist() == expected.sort_by("seq").to_pylist()
    assert source.arrow_records(spark, start, end, schema, SizeLimit(329, 1 << 20)) is None
