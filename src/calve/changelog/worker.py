"""A task -> events, and a partition of events -> changes. Runs in Spark's Python tasks, and in this process."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from calve.changelog.events import ChangedRows, EventTarget, TaskKeySets
from calve.changelog.pairing import Pairing
from calve.model.changelog import ChangedFile
from calve.model.scan import FileSplit
from calve.reader.deletes import TaskDeletes
from calve.reader.worker import TaskList, failing_in_task, names_by_place, reading_of

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
        with reading_of(split.file.path):
            yield from ChangedRows(changed, into, deletes, keys).read(split)


def changes_of(events: Sequence[pa.RecordBatch], schema: pa.Schema, pairing: Pairing) -> pa.Table:
    """The changes of all events of some keys. Raises TerminalError."""
    return pairing.changes(pa.Table.from_batches(events, schema=schema))


@dataclass(frozen=True)
class RangePairing:
    """Reads and pairs all events of a range in one task: a small range needs no shuffle."""

    tasks: TaskList[EventTask, EventTarget]
    pairing: Pairing

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: all task numbers -> changes, with columns named by index."""
        return PartitionPairing(self.pairing).read(self.tasks.read(numbers))


@dataclass(frozen=True)
class PartitionPairing:
    """Pairs the events of a partition, which has all events of its keys."""

    pairing: Pairing

    def read(self, events: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: events -> changes, with columns named by index."""
        batches = list(events)
        if not batches:
            return
        with failing_in_task():
            found = changes_of(batches, batches[0].schema, self.pairing)
        named = found.rename_columns(names_by_place(found.num_columns))
        yield from named.to_batches(max_chunksize=_BATCH_ROWS)
