"""Searches data files for keys, by threads of the driver or by Spark tasks, and writes deletes of what it finds.

The driver searches with all its cores and remembers which rows are deleted already, so that a batch on a table of some
ten million rows takes tenths of a second and one file of deletes per partition. Tasks know nothing of earlier searches:
each loads the keys and the deletes of its own files, and writes its own files.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from calve.catalog.hints import hint_for
from calve.errors import CalveError, TransientError, decode
from calve.iceberg.position_deletes import DeletePlace, Found, write_position_deletes
from calve.iceberg.readable import ReadTarget
from calve.model.files import WrittenFile
from calve.model.scan import ReadTask, ScanFile
from calve.scan.positions import PositionFinder, Remembered
from calve.scan.splits import read_tasks

_REPORT = "report"
THREADS = os.cpu_count() or 1


@dataclass(frozen=True)
class Jobs:
    """Where Spark jobs of a sink run."""

    make_session: Callable[[], SparkSession]
    pool: str

    def session(self) -> SparkSession:
        """The session, whose jobs of this thread run in the sink's pool from now on."""
        spark = self.make_session()
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
        return spark


@dataclass(frozen=True)
class Search:
    """Files to search, each with its deletes. Everything that is needed goes to tasks by pickle."""

    files: tuple[ScanFile, ...]
    target: ReadTarget
    place: DeletePlace
    name: str
    """Nobody else's: names of files of deletes are derived from it."""


def search_here(files: Sequence[ScanFile], finder: PositionFinder) -> list[Found]:
    """By threads of this process; nothing is written. Raises TransientError, TerminalError."""
    if not files:
        return []
    with reading("keys of the batch"):
        finder.prepare(files)
    splits = [split for task in read_tasks(files, THREADS) for split in task.splits]
    with ThreadPoolExecutor(THREADS) as pool:
        return _joined(pool.map(finder.find, splits))


def search_by_tasks(search: Search, spark: SparkSession) -> tuple[WrittenFile, ...]:
    """By Spark tasks. Raises TransientError, TerminalError."""
    tasks = read_tasks(search.files, spark.sparkContext.defaultParallelism)
    work = _Work(search.target, search.place, search.name, tuple(pickle.dumps(task) for task in tasks))
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    try:
        reports = numbers.mapInArrow(partial(_search_partition, work), f"{_REPORT} binary").collect()
    except (PySparkException, Py4JError) as error:
        raise decode(str(error)) or TransientError("rows could not be looked up by their keys") from error
    return tuple(file for row in reports for file in pickle.loads(row[_REPORT]))  # noqa: S301 - of our own tasks


@dataclass(frozen=True)
class _Work:
    """All tasks of a search; each is pickled by itself, so that a Spark task unpacks its own alone."""

    target: ReadTarget
    place: DeletePlace
    name: str
    tasks: tuple[bytes, ...] = field(repr=False)


def _search_partition(work: _Work, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            task: ReadTask = pickle.loads(work.tasks[number])  # noqa: S301 - of our own driver
            try:
                finder = PositionFinder(work.target, task.files, Remembered())
                found = _joined(map(finder.find, task.splits))
                files = written(work.place, found, f"{work.name}/{number}/{attempt}")
            except CalveError as error:
                raise RuntimeError(error.encode()) from error  # Spark keeps nothing of an error but its text
            yield pa.RecordBatch.from_pydict({_REPORT: pa.array([pickle.dumps(files)], pa.binary())})


def written(place: DeletePlace, found: Sequence[Found], name: str) -> tuple[WrittenFile, ...]:
    """Files of deletes of what was found. Raises TransientError."""
    with _trying("position deletes could not be written"):
        return write_position_deletes(place, found, name)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Say in calve's terms that files could not be read."""
    with _trying(f"{what} could not be read"):
        yield


@contextmanager
def _trying(failure: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise TransientError(failure, detail=f"{type(error).__name__}: {error}", hint=hint_for(error)) from error


def _joined(parts: Iterable[Found]) -> list[Found]:
    """What was found in parts of one file as one; parts come in the order of the file."""
    by_path: dict[str, list[Found]] = {}
    for part in parts:
        if len(part.positions):
            by_path.setdefault(part.file.path, []).append(part)
    return [
        replace(members[0], positions=np.concatenate([part.positions for part in members]))
        for members in by_path.values()
    ]
