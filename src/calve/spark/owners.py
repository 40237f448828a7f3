"""What tasks send to each other through a shuffle: values for owners, not rows.

    shuffle = Shuffle(owners)
    sent = tasks.through(frame, partial(shuffle.send, split), SENT)     # split: rows of a partition -> (owner, value)
    tasks.over(shuffle.at_owners(sent), write)                          # write: received(batches) -> {owner: [values]}

An owner is a number, of a range of hashes or a group of files. A value is any object that can be pickled, usually a few
arrays.

Spark places rows by a hash. Hashes of a few numbers collide: of two owners, both would be at one task, and the other
would have nothing to do; of a hundred, up to five at one. So rows are placed by numbers whose hashes differ.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import mmh3
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

SENT = "place bigint, owner bigint, value binary"
"""Columns of what crosses the shuffle."""
_SPARKS_SEED = 42

Numbers = NDArray[np.int64]


def by_owner(owners: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The rows of each owner, in ascending order."""
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    for start, rows in zip(starts, np.split(order, starts[1:]), strict=False):
        yield int(ordered[start]), rows


@dataclass(frozen=True)
class Shuffle:
    """Brings values to as many tasks as there are owners. Pickled to tasks."""

    owners: int
    _places: tuple[int, ...] = field(init=False)
    """By owner: the number that Spark's hash brings to a task of its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", places(self.owners))

    def send(
        self, act: Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[int, object]]], batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """What an earlier step has for each owner, as rows that cross the shuffle."""
        for owner, value in act(batches):
            numbers = [pa.array([self._places[owner]], pa.int64()), pa.array([owner], pa.int64())]
            columns = [*numbers, pa.array([pickle.dumps(value)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["place", "owner", "value"])

    def at_owners(self, frame: DataFrame) -> DataFrame:
        """Bring everything of one owner to a task of its own."""
        return frame.repartition(self.owners, "place")


def places(tasks: int) -> tuple[int, ...]:
    """For each of so many tasks a number that `repartition` places there."""
    found: dict[int, int] = {}
    numbers = count()
    while len(found) < tasks:
        number = next(numbers)
        found.setdefault(mmh3.hash(number.to_bytes(8, "little"), _SPARKS_SEED) % tasks, number)
    return tuple(found[task] for task in range(tasks))


def received(batches: Iterable[pa.RecordBatch]) -> dict[int, list[object]]:
    """What the tasks before have sent, by owner."""
    found: dict[int, list[object]] = {}
    for batch in batches:
        for owner, value in zip(batch.column(1).to_pylist(), batch.column(2), strict=True):
            found.setdefault(owner, []).append(pickle.loads(value.as_buffer()))  # noqa: S301 - of our own tasks
    return found
