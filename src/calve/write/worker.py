"""What runs in Spark's Python tasks: the sorted changes of one task -> files.

Assumes that a task has all changes of its keys, sorted by key and order; or, for a table with partitions, their last
ones alone, sorted by partition. Memory does not depend on the number of
rows: batches come in as a stream and go out as row groups. Every attempt of a task writes under names of its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from calve import faults
from calve.iceberg.files.store import remove_new
from calve.model.files import WriteResult, WriteTarget
from calve.write.consolidate import last_of_runs, upserts
from calve.write.data_files import FileNames, data_files, key_files


@dataclass(frozen=True)
class TaskPlan:
    """What every task of a batch has to know."""

    target: WriteTarget
    columns: tuple[str, ...]
    """Names of the columns that come in, whatever they are called on the way."""
    key: tuple[str, ...]
    last_only: bool
    """Whether every key comes once."""
    deletes: bool
    batch_id: str


def write_partition(plan: TaskPlan, batches: Iterator[pa.RecordBatch], attempt: str) -> WriteResult:
    """Write the files of one partition, or none of them."""
    names = FileNames(plan.target, plan.batch_id, attempt)
    with names.removed_on_failure():
        return write_sorted(plan, batches, names)


def discard(plan: TaskPlan, result: WriteResult) -> None:
    """Remove what a task wrote whose batch failed elsewhere."""
    remove_new([file.path for file in result.files], plan.target.io_properties, "another task of their batch failed")


def write_sorted(plan: TaskPlan, batches: Iterable[pa.RecordBatch], names: FileNames) -> WriteResult:
    """Files of sorted changes."""
    counted = _Counted(batches)
    midway = partial(faults.reached, "task.write")
    with ExitStack() as stack:
        data = stack.enter_context(data_files(plan.target, names, midway=midway))
        keys = key_files(plan.target, names, midway=midway) if plan.deletes else None
        if keys:
            stack.enter_context(keys)
        named = (batch.rename_columns(list(plan.columns)) for batch in counted)
        for batch in named if plan.last_only else last_of_runs(named, plan.key):
            data.write(upserts(batch))
            if keys:
                keys.write(batch)
    return WriteResult(data.files + (keys.files if keys else ()), counted.rows)


class _Counted:
    """Batches, and how many rows they had."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
