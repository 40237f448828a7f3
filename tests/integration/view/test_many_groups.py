"""Views with more groups than fit the driver: Spark tasks keep their totals, with the same results."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve import faults
from calve.errors import CheckpointGap, TransientError
from calve.model.change import BAD
from calve.model.checkpoint import UNKNOWN, SizeHint
from calve.reader.resources import NO_MEMORY, MemoryBudget
from calve.storage.state import LocalState
from calve.view import totals, totals_tasks
from calve.view.totals import TotalsLimits, TotalsPiece
from calve.view.totals_tasks import collected_within
from tests.integration.view.streams import IMAGES, INSERTS, Row, Target, frame_of, selected, target
from tests.integration.view.test_groups import TOTALS, order
from tests.integration.view.test_random_views import EXTREMES, changes_of_ops

MANY = TotalsLimits(NO_MEMORY, small=0)
"""Nothing fits the driver."""


def named(folder: Path) -> set[str]:
    """The parts in the store."""
    return {path.name for path in folder.rglob("parts/*")}


@contextmanager
def crashing_before_the_record() -> Iterator[None]:
    """The parts of a checkpoint are written, and nothing after them."""

    def crash(point: str) -> None:
        if point == "totals.parts":
            raise TransientError("crashed")

    faults.install(crash)
    try:
        with pytest.raises(TransientError, match="crashed"):
            yield
    finally:
        faults.install(None)


def random_ops(rng: random.Random, count: int) -> list[tuple[int, Row | None]]:
    def value() -> tuple[Any, ...]:
        customer = rng.choice([None, *range(300)])
        return customer, rng.choice([None, Decimal(rng.randint(-999, 999)) / 4]), rng.choice(["open", "paid"])

    return [(rng.randint(0, 200), None if rng.random() < 0.2 else value()) for _ in range(count)]


def test_tasks_keep_the_totals_of_a_view_through_merges_repetitions_and_restarts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "FANOUT", 3)
    rng, contents = random.Random(5), dict[int, Row]()
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path), limits=MANY)
    for number in range(5):
        changes = changes_of_ops(contents, random_ops(rng, 60), 1000 * number)
        if number == 2:
            table.take(changes, commit=False)
            table = Target(spark, table.plan, table.state, rows=table.rows, position=table.position, limits=MANY)
        table.take(changes)
    assert table.contents() == selected(spark, contents.values(), TOTALS)
    assert named(tmp_path)
    names = [name.rpartition("/")[2] for name in LocalState(tmp_path).list("")]
    pieces = [piece for name in names if (piece := TotalsPiece.parse(name))]
    assert max(piece.checkpoints for piece in pieces) >= 3, "tasks have merged some"


def test_a_view_outgrows_the_driver_and_fits_again_after_a_restart_with_more_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first checkpoints are the driver's, the others are of tasks; a piece of rows is split into parts."""
    some = TotalsLimits(MemoryBudget(8 * 3000), small=0)
    table = target(spark, *EXTREMES, source=INSERTS, state=LocalState(tmp_path), limits=some)
    everything: list[Row] = []
    for number, groups in enumerate((10, 400, 5)):
        new = [order(1000 * number + i, i, "1.25", f"s{i % groups}") for i in range(groups)]
        table.take([(i, None, row) for i, row in enumerate(new)])
        everything += new
        assert bool(named(tmp_path)) == (number > 0)
    assert table.contents() == selected(spark, everything, *EXTREMES)
    again = Target(spark, table.plan, table.state, rows=table.rows, position=table.position)
    last = order(9999, 1, "7", "s3")
    again.take([(1, None, last)])
    assert again.contents() == selected(spark, [*everything, last], *EXTREMES)


@pytest.mark.parametrize("size", [UNKNOWN, SizeHint(bytes=50_000)], ids=str)
def test_a_large_checkpoint_after_a_small_one_is_left_to_tasks(
    spark: SparkSession, tmp_path: Path, size: SizeHint
) -> None:
    some = TotalsLimits(NO_MEMORY, small=20_000)
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path), limits=some)
    few, many = ([order(i, i, "1.25") for i in numbers] for numbers in (range(3), range(3, 500)))
    table.take([(i, None, row) for i, row in enumerate(few)])
    assert not named(tmp_path)
    table.take([(i, None, row) for i, row in enumerate(many)], commit=False, size=size)
    assert named(tmp_path), "they would be one record of rows if the driver had got them all"
    assert table.contents() == selected(spark, [*few, *many], TOTALS)


def test_of_additions_that_do_not_fit_the_driver_gets_next_to_nothing(spark: SparkSession) -> None:
    """Those of each partition would fit alone."""
    conf, limit = spark.sparkContext._jsc.sc().conf(), "spark.driver.maxResultSize"
    before = conf.get(limit, "1g")
    conf.set(limit, "2m")
    try:
        additions = spark.range(0, 1_000_000, 1, 64)
        assert collected_within(additions, 1 << 20, "additions could not be collected") == (None, 1_000_000)
    finally:
        conf.set(limit, before)


@pytest.mark.parametrize("partitions", [1, 8])
def test_additions_that_fit_are_collected_however_they_are_spread(spark: SparkSession, partitions: int) -> None:
    additions = spark.range(0, 40_000, 1, partitions)
    rows, count = collected_within(additions, 400_000, "additions could not be collected")
    assert rows is not None
    assert (sorted(rows["id"].to_pylist()), count) == (list(range(40_000)), 40_000)


def test_tasks_share_the_groups_of_a_large_checkpoint_however_few_there_were_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals_tasks, "RANGE_ROWS", 50)
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path), limits=MANY)
    table.take([(1, None, order(1, 1, "1"))])
    before, many = named(tmp_path), [order(i, i, "1.25") for i in range(2, 402)]
    table.take([(i, None, row) for i, row in enumerate(many)], size=SizeHint(rows=len(many)))
    assert len(named(tmp_path) - before) == 400 // 50, "a part for each range"
    assert table.contents() == selected(spark, [order(1, 1, "1"), *many], TOTALS)


def test_a_crash_between_the_parts_and_their_record_leaves_the_totals_as_they_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path), limits=MANY)
    first, second = order(1, 10, "1.10"), order(1, 10, "2.20")
    table.take([(1, None, first)])
    before = named(tmp_path)
    with crashing_before_the_record():
        table.take([(2, first, second)])
    assert named(tmp_path) > before
    again = Target(spark, table.plan, table.state, rows=table.rows, position=1, limits=MANY)
    again.take([(2, first, second)])
    assert again.contents() == selected(spark, [second], TOTALS)
    again.take([(3, None, order(2, 10, "1"))])
    again.take([(4, None, order(3, 10, "1"))])
    records = [name for name in LocalState(tmp_path).list("") if "/parts/" not in name]
    assert len(named(tmp_path)) == len(records), "what the crash left is gone: one part for each checkpoint"
    for path in tmp_path.rglob("parts/*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointGap, match="missing or damaged"):
        again.take([(5, None, order(4, 10, "1"))])


def test_a_run_removes_what_its_own_failed_attempts_wrote(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, TOTALS, source=IMAGES, state=LocalState(tmp_path), limits=MANY)
    rows = [order(number, 10, "1.10") for number in range(4)]
    for number, row in enumerate(rows):
        if number == 2:
            with crashing_before_the_record():
                table.take([(number, None, row)])
        table.take([(number, None, row)])
    assert table.contents() == selected(spark, rows, TOTALS)
    assert len(named(tmp_path)) == len(rows), "one part for each checkpoint"


def test_bad_rows_null_groups_and_empty_checkpoints_pass_through_tasks(spark: SparkSession, tmp_path: Path) -> None:
    text = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path), limits=MANY)
    table.take([])
    frame = frame_of(spark, [(1, None, order(1, None, "1"))], before=True)
    bad = spark.createDataFrame([(None, None, None, None, 1, None, "broken", None)], frame.schema)
    found = table.view.changes(frame.union(bad), table.identity).collect()
    assert sorted((r.n or 0, r.customer, r[BAD] or "") for r in found) == [(0, None, "broken"), (1, None, "")]


def test_types_of_groups_are_the_same_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "SELECT CAST(status AS DATE) AS d, CAST(concat(status, ' 12:00:00') AS TIMESTAMP) AS t, "
        "CAST(status AS TIMESTAMP_NTZ) AS z, amount, customer IS NULL AS b, CAST(status AS BINARY) AS raw, "
        "CAST(id % 2 AS DOUBLE) AS f, NULL AS nothing, count(*) AS n FROM orders GROUP BY ALL"
    )
    table = target(spark, text, source=IMAGES, state=LocalState(tmp_path), limits=MANY)
    rows = [order(n, None if n % 3 else 1, "1.5", f"2024-02-{1 + n % 28:02}") for n in range(40)]
    table.take([(n, None, row) for n, row in enumerate(rows[:30])])
    table.take([(n + 30, None, row) for n, row in enumerate(rows[30:])])
    table.take([(50, rows[0], None)])
    assert table.contents() == selected(spark, rows[1:], text)
