"""A task -> events, and a partition of events -> changes. Runs in Spark's Python tasks, and in this process."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from calve.changelog.events import ChangedRows, EventTarget, TaskKeySets
from calve.changelog.pairing import Pairing
from calve.errors import CalveError
from calve.model.changelog import ChangedFile
from calve.model.scan import FileSplit
from calve.reader.deletes import TaskDeletes
from calve.spark.failures import own_file_failure
from calve.spark.tasks import TaskFailed

_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class EventTask:
    """Parts of files whose events are read one after another, with deletes that are loaded once."""

    parts: tuple[tuple[FileSplit, ChangedFile], ...]


def events_of_task(task: EventTask, into: EventTarget) -> Iterator[pa.RecordBatch]:
    """The events of all parts of a task. Raises TransientError, TerminalError."""
    deletes = TaskDeletes(into.target, [changed.file for _, changed in task.parts])
    keys = TaskKeySets(deletes)
    for split, changed in task.parts:
        try:
            yield from ChangedRows(changed, into, deletes, keys).read(split)
        except (OSError, pa.ArrowException) as error:
            raise own_file_failure(
                error,
                "a file of the table, or one of its deletes, could not be read",
                split.file.path,
                hint="The files of expired snapshots are removed; otherwise the store may be unreachable.",
            ) from error


def changes_of(events: Sequence[pa.RecordBatch], schema: pa.Schema, pairing: Pairing) -> pa.Table:
    """The changes of all events of some keys. Raises TerminalError."""
    return pairing.changes(pa.Table.from_batches(events, schema=schema))


@dataclass(frozen=True)
class EventTasks:
    """All tasks, each pickled separately, so that a Spark task unpickles only its own."""

    into: EventTarget
    tasks: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, into: EventTarget, tasks: Sequence[EventTask]) -> "EventTasks":
        """Pickle the tasks; their numbers are their indexes."""
        return cls(into, tuple(pickle.dumps(task) for task in tasks))

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: task numbers -> events, with columns named by index."""
        names = names_by_place(len(self.into.schema))
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    for events in events_of_task(pickle.loads(self.tasks[number]), self.into):  # noqa: S301 - our own
                        yield events.rename_columns(names)
                except CalveError as error:
                    raise TaskFailed(error.encode()) from error


@dataclass(frozen=True)
class PartitionPairing:
    """Pairs the events of a partition, which has all events of its keys."""

    pairing: Pairing

    def read(self, events: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: events -> changes, with columns named by index."""
        batches = list(events)
        if not batches:
            return
        try:
            found = changes_of(batches, batches[0].schema, self.pairing)
        except CalveError as error:
            raise TaskFailed(error.encode()) from error
        named = found.rename_columns(names_by_place(found.num_columns))
        yield from named.to_batches(max_chunksize=_BATCH_ROWS)


def names_by_place(count: int) -> list[str]:
    """Names for `mapInArrow`, which fails for names with a dot."""
    return [f"c{place}" for place in range(count)]
