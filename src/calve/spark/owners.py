"""What tasks send to each other through a shuffle: values for owners, not rows.

    frame = tasks.through(frame, partial(sent, split), OWNED)     # split: rows of a partition -> (owner, value), ...
    tasks.over(at_owners(frame, owners), write)                   # write: received(batches) -> {owner: [values]}

An owner is a number, of a range of hashes or a group of files. A value is any object that can be pickled, usually a few
arrays.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

OWNED = "owner bigint, owned binary"
"""Columns of what crosses the shuffle."""

Numbers = NDArray[np.int64]


def by_owner(owners: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The rows of each owner, in ascending order."""
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    for start, rows in zip(starts, np.split(order, starts[1:]), strict=False):
        yield int(ordered[start]), rows


def at_owners(frame: DataFrame, owners: int) -> DataFrame:
    """Bring everything of one owner to one task; a task may have several owners."""
    return frame.repartition(owners, "owner")


def sent(
    act: Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[int, object]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What an earlier step has for each owner, as rows that cross a shuffle."""
    for owner, value in act(batches):
        columns = [pa.array([owner], pa.int64()), pa.array([pickle.dumps(value)], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["owner", "owned"])


def received(batches: Iterable[pa.RecordBatch]) -> dict[int, list[object]]:
    """What the tasks before have sent, by owner."""
    found: dict[int, list[object]] = {}
    for batch in batches:
        for owner, value in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            found.setdefault(owner, []).append(pickle.loads(value.as_buffer()))  # noqa: S301 - of our own tasks
    return found
