"""The changes of a range, read in this process, without a Spark job.

A job costs several tenths of a second before it does anything, and events that pass through it cost several times more
than Arrow data. So small ranges are read here, by several threads: in the driver for a sink and the command line, in
one task for a frame. All others are left to several tasks (`frame`), with the same rows.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from calve.changelog.events import EventTarget, TaskKeySets
from calve.changelog.pairing import META, Pairing
from calve.changelog.request import ChangeRequest, event_tasks
from calve.changelog.worker import EventPart, events_of_part, named_by_place
from calve.errors import CalveError
from calve.model.changelog import ChangedFile, ChangeScanPlan
from calve.model.checkpoint import SizeLimit
from calve.reader.deletes import TaskDeletes
from calve.reader.splits import TASK_BYTES
from calve.reader.worker import failing_in_task

_THREADS = 8
"""The most: they wait for the store most of the time."""
_TASKS = 2
"""More bytes of files than this many tasks of a scan would read are left to several tasks."""
_SEARCHED_ROWS = 30_000_000
"""Rows of files of which only keys are read."""
_UNLIMITED = SizeLimit(1 << 62, 1 << 62)


@dataclass(frozen=True)
class LocalChanges:
    """The changes of a range, read in this process. Holds all of them in memory."""

    request: ChangeRequest
    plan: ChangeScanPlan

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return pa.schema([*self.request.range.target(self.plan).schema, *META])

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The changes, by step; at most `limit`. Raises TransientError, TerminalError."""
        found = self._read(_UNLIMITED)
        yield from (found if limit is None else found.slice(0, limit)).to_batches()

    def within(self, limit: SizeLimit) -> pa.Table | None:
        """The changes, by step; None if they may be too many, or there is a problem: Spark reads them then."""
        if not is_small(self.request, self.plan, limit.rows):
            return None
        try:
            return self._read(limit)
        except (CalveError, _TooLarge):
            return None

    def _read(self, limit: SizeLimit) -> pa.Table:
        return range_read(self.request, self.plan).changes(limit.bytes)


@dataclass(frozen=True)
class RangeRead:
    """Reads a small range: its events, by several threads, and their changes. Pickled to the one task that does so."""

    files: tuple[ChangedFile, ...]
    into: EventTarget
    pairing: Pairing
    by_place: bool = False
    """Whether `read` names columns by index."""

    def changes(self, most_bytes: int) -> pa.Table:
        """The changes, by step. Raises TransientError, TerminalError, and _TooLarge for events of more bytes."""
        return self.pairing.changes(self._events(most_bytes))

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow` with one number: the changes."""
        for _ in numbers:
            with failing_in_task():
                found = self.pairing.batches(self._events(_UNLIMITED.bytes))
                yield from named_by_place(found) if self.by_place else found

    def _events(self, most_bytes: int) -> pa.Table:
        """The events of every part of a file, in the order of the parts."""
        room = _Room(most_bytes)
        threads = min(_THREADS, os.cpu_count() or 1)
        parts = [part for task in event_tasks(self.files, threads) for part in task.parts]
        deletes = TaskDeletes(self.into.target, [changed.file for _, changed in parts])
        keys = TaskKeySets(deletes)

        def read(part: EventPart) -> list[pa.RecordBatch]:
            events = []
            for batch in events_of_part(part, self.into, deletes, keys):
                room.take(batch.nbytes)
                events.append(batch)
            return events

        if threads == 1 or len(parts) <= 1:
            found = list(map(read, parts))
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(read, parts))
        return pa.Table.from_batches(chain.from_iterable(found), schema=self.into.schema)


def is_small(request: ChangeRequest, plan: ChangeScanPlan, most_rows: int) -> bool:
    """Whether one process reads a range in less time than several tasks take to exchange its events."""
    whole = [changed.file for changed in plan.files if changed.is_read_whole or request.needs_images]
    searched = [changed.file for changed in plan.files if not (changed.is_read_whole or request.needs_images)]
    return (
        plan.rows <= most_rows
        and sum(file.size for file in whole) <= _TASKS * TASK_BYTES
        and sum(file.rows for file in searched) <= _SEARCHED_ROWS
    )


def range_read(request: ChangeRequest, plan: ChangeScanPlan, *, by_place: bool = False) -> RangeRead:
    """How to read all changes of a plan at once."""
    return RangeRead(plan.files, request.into(request.range, plan), request.pairing(plan), by_place)


class _TooLarge(Exception):
    """The events do not fit."""


class _Room:
    """The bytes that events may still take. Used by several threads."""

    def __init__(self, size: int) -> None:
        self._left, self._lock = size, threading.Lock()

    def take(self, size: int) -> None:
        """Raise _TooLarge if they do not fit."""
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise _TooLarge
