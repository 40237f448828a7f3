"""Runs in Spark's Python tasks: writes the sorted changes of one task to files.

Assumes that a task has all changes of its keys, sorted by key and order; or, for a partitioned table, only the last
change per key, sorted by partition. Memory does not depend on the number of rows: batches arrive as a stream and leave
as row groups. Every attempt of a task writes under its own names.
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
    """The parameters that all tasks of a batch share."""

    target: WriteTarget
    columns: tuple[str, ...]
    """Names of the incoming columns; in transit they are numbered."""
    key: tuple[str, ...]
    last_only: bool
    """Whether every key occurs once."""
    deletes: bool
    batch_id: str


def write_partition(plan: TaskPlan, batches: Iterator[pa.RecordBatch], attempt: str) -> WriteResult:
    """Write the files of one partition, or none of them."""
    names = FileNames(plan.target, plan.batch_id, attempt)
    with names.removed_on_failure():
        return write_sorted(plan, batches, names)


def discard(plan: TaskPlan, result: WriteResult) -> None:
    """Remove the files of a task whose batch failed in another task."""
    remove_new([file.path for file in result.files], plan.target.io_properties, "another task of their batch failed")


def write_sorted(plan: TaskPlan, batches: Iterable[pa.RecordBatch], names: FileNames) -> WriteResult:
    """Write sorted changes to files."""
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
    """Counts the rows of batches that pass through."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
