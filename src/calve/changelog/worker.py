"""A task -> events, and a partition of events -> changes. Runs in Spark's Python tasks, and in this process."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.changelog.events import FLAGS, ChangedRows, EventTarget, TaskKeySets
from calve.changelog.pairing import Pairing
from calve.model.changelog import FRONTIER, TIMESTAMP, VERSION, ChangedFile, ChangeStep, ChangeType
from calve.model.scan import FileSplit
from calve.reader.deletes import TaskDeletes
from calve.reader.worker import failing_in_task, names_by_place, reading_of

STEP_FIELDS = (VERSION, TIMESTAMP, FRONTIER)
"""Columns of a stream's events after their flags: what is known of their step; times are in milliseconds."""

EventPart = tuple[FileSplit, ChangedFile]
"""A part of a file whose events are read."""


@dataclass(frozen=True)
class EventTask:
    """Parts of files whose events are read one after another, with deletes that are loaded once."""

    parts: tuple[EventPart, ...]


def events_of_task(task: EventTask, into: EventTarget) -> Iterator[pa.RecordBatch]:
    """The events of all parts of a task. Raises TransientError, TerminalError."""
    deletes = TaskDeletes(into.target, [changed.file for _, changed in task.parts])
    keys = TaskKeySets(deletes)
    for part in task.parts:
        yield from events_of_part(part, into, deletes, keys)


def events_of_part(
    part: EventPart, into: EventTarget, deletes: TaskDeletes, keys: TaskKeySets
) -> Iterator[pa.RecordBatch]:
    """The events of a part of a file. Raises TransientError, TerminalError."""
    split, changed = part
    with reading_of(split.file.path):
        yield from ChangedRows(changed, into, deletes, keys).read(split)


def named_by_place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with columns named by index."""
    for batch in batches:
        yield batch.rename_columns(names_by_place(batch.num_columns))


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
            yield from named_by_place(self.pairing.batches(pa.Table.from_batches(batches)))


@dataclass(frozen=True)
class StreamPairing:
    """Pairs the events of a partition of one batch of a stream. Its steps are known from the events alone.

    Rows of the first snapshot have a negative step. They are inserts, and are never held.
    """

    key: tuple[int, ...]
    before: bool

    def read(self, events: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: events with their steps -> changes, with columns named by index."""
        held: list[pa.RecordBatch] = []
        for batch in events:
            initial = pc.less(batch.column(_step_place(batch)), 0)
            if pc.any(initial).as_py():
                yield _inserted(batch.filter(initial))
                batch = batch.filter(pc.invert(initial))  # noqa: PLW2901 - the rest
            if batch.num_rows:
                held.append(batch)
        if not held:
            return
        with failing_in_task():
            table = pa.Table.from_batches(held)
            pairing = Pairing(_steps_of(table), self.key, net=False, before=self.before)
            yield from named_by_place(pairing.batches(table.select(range(table.num_columns - len(STEP_FIELDS)))))


def _step_place(events: pa.RecordBatch | pa.Table) -> int:
    return int(events.num_columns) - len(STEP_FIELDS) - len(FLAGS)


def _inserted(events: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the first snapshot as inserts."""
    place, size = _step_place(events), events.num_rows
    version, time, frontier = events.columns[place + len(FLAGS) :]
    when = pc.multiply(time, 1000).cast(pa.timestamp("us", "UTC"))
    columns = [*events.columns[:place], pa.repeat(pa.scalar(ChangeType.INSERT.value), size), version, when, frontier]
    return pa.RecordBatch.from_arrays(columns, names=names_by_place(len(columns)))


def _steps_of(events: pa.Table) -> tuple[ChangeStep, ...]:
    """The steps that events name, by number; what is between them is not needed."""
    place = _step_place(events)
    numbers, rows = np.unique(events.column(place).to_numpy(), return_index=True)
    known = (events.column(place + len(FLAGS) + n).take(pa.array(rows)).to_pylist() for n in range(len(STEP_FIELDS)))
    steps = [ChangeStep(0, 0, 0, None)] * (int(numbers[-1]) + 1)
    for number, version, millis, frontier in zip(numbers, *known, strict=True):
        steps[number] = ChangeStep(0, version, millis, frontier)
    return tuple(steps)
