"""A read task -> record batches. Runs in Spark's Python tasks, and in this process."""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from calve.errors import CalveError
from calve.iceberg.schema.readable import ReadTarget
from calve.model.scan import ReadTask
from calve.reader.deletes import TaskDeletes
from calve.reader.rows import read_split


def rows_of_task(task: ReadTask, target: ReadTarget) -> Iterator[pa.RecordBatch]:
    """The rows of all splits of a task. Raises TransientError, TerminalError."""
    deletes = TaskDeletes(target, task.files)
    for split in task.splits:
        try:
            yield from read_split(split, target, deletes)
        except (OSError, pa.ArrowException) as error:
            from calve.spark.failures import own_file_failure  # noqa: PLC0415 - rows are read without Spark, too

            raise own_file_failure(
                error,
                "a file of the table, or one of its deletes, could not be read",
                split.file.path,
                hint="The files of expired snapshots are removed; otherwise the store may be unreachable.",
            ) from error


@dataclass(frozen=True)
class TaskList:
    """All tasks of a scan, each pickled separately, so that a Spark task unpickles only its own."""

    target: ReadTarget
    tasks: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, target: ReadTarget, tasks: tuple[ReadTask, ...]) -> "TaskList":
        """Pickle the tasks; their numbers are their indexes."""
        return cls(target, tuple(pickle.dumps(task) for task in tasks))

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: task numbers -> rows, with columns named by index."""
        names = [f"c{place}" for place in range(len(self.target.schema))]
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    for rows in rows_of_task(pickle.loads(self.tasks[number]), self.target):  # noqa: S301 - our own
                        yield rows.rename_columns(names)
                except CalveError as error:
                    from calve.spark.tasks import TaskFailed  # noqa: PLC0415 - see above

                    raise TaskFailed(error.encode()) from error
