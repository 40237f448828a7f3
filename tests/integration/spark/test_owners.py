"""Values that tasks send to owners: every owner has a task of its own, whatever Spark's hash does to small numbers."""

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.spark.owners import SENT, Shuffle, received
from calve.spark.tasks import Tasks


def to_all(owners: int, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, object]]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from ((owner, (number, owner)) for owner in range(owners))


def at_task(batches: Iterable[pa.RecordBatch], _attempt: str) -> dict[int, list[object]]:
    return received(batches)


@pytest.mark.parametrize("owners", [1, 2, 3, 8, 50])
def test_every_owner_has_a_task_of_its_own(spark: SparkSession, owners: int) -> None:
    tasks, shuffle = Tasks[dict[int, list[object]]]("it failed"), Shuffle(owners)
    numbers = spark.range(0, 2, 1, 2).toDF("owner")
    sent = tasks.through(numbers, partial(shuffle.send, partial(to_all, owners)), SENT)
    found = tasks.over(shuffle.at_owners(sent), at_task)
    assert sorted(map(len, found)) == [1] * owners, "owners at each task"
    for values in found:
        [(owner, members)] = values.items()
        assert sorted(members) == [(0, owner), (1, owner)]  # type: ignore[type-var]
