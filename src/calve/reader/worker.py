"""A read task -> record batches. Runs in Spark's Python tasks, and in this process.

`TaskList` carries tasks of any kind to executors: a function reads one task into a target that has a schema.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from calve.errors import CalveError
from calve.iceberg.schema.readable import ReadTarget
from calve.model.scan import ReadTask
from calve.reader.deletes import TaskDeletes
from calve.reader.rows import read_split


class RowTarget(Protocol):
    """What rows are read into."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        ...


TargetT = TypeVar("TargetT", bound=RowTarget)
TaskT = TypeVar("TaskT")


def rows_of_task(task: ReadTask, target: ReadTarget) -> Iterator[pa.RecordBatch]:
    """The rows of all splits of a task. Raises TransientError, TerminalError."""
    deletes = TaskDeletes(target, task.files)
    for split in task.splits:
        with reading_of(split.file.path):
            yield from read_split(split, target, deletes)


@contextmanager
def reading_of(path: str) -> Iterator[None]:
    """Name the file in failures to read it or its deletes. Raises TransientError, TerminalError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        from calve.spark.failures import own_file_failure  # noqa: PLC0415 - rows are read without Spark, too

        raise own_file_failure(
            error,
            "a file of the table, or one of its deletes, could not be read",
            path,
            hint="The files of expired snapshots are removed; otherwise the store may be unreachable.",
        ) from error


@contextmanager
def failing_in_task() -> Iterator[None]:
    """Let an error of calve reach the driver through Spark."""
    try:
        yield
    except CalveError as error:
        from calve.spark.tasks import TaskFailed  # noqa: PLC0415 - rows are read without Spark, too

        raise TaskFailed(error.encode()) from error


@dataclass(frozen=True)
class TaskList(Generic[TaskT, TargetT]):
    """All tasks of a scan, each pickled separately, so that a Spark task unpickles only its own."""

    target: TargetT
    read_task: Callable[[TaskT, TargetT], Iterator[pa.RecordBatch]]
    tasks: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        target: TargetT,
        tasks: Sequence[TaskT],
        read_task: Callable[[TaskT, TargetT], Iterator[pa.RecordBatch]],
    ) -> "TaskList[TaskT, TargetT]":
        """Pickle the tasks; their numbers are their indexes."""
        return cls(target, read_task, tuple(pickle.dumps(task) for task in tasks))

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: task numbers -> rows, with columns named by index."""
        names = names_by_place(len(self.target.schema))
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with failing_in_task():
                    for rows in self.read_task(pickle.loads(self.tasks[number]), self.target):  # noqa: S301 - our own
                        yield rows.rename_columns(names)


def names_by_place(count: int) -> list[str]:
    """Names for `mapInArrow`, which fails for names with a dot."""
    return [f"c{place}" for place in range(count)]
