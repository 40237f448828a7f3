"""Older files of position deletes -> fewer, as a part of a commit that deletes rows anyway.

Searches data files for keys, by threads of the driver or by Spark tasks, and writes deletes of what it finds.

The driver searches with all its cores and remembers which rows are deleted already, so that a batch on a table of some
ten million rows takes tenths of a second and one file of deletes per partition. Tasks know nothing of earlier searches:
each loads the keys and the deletes of its own files, and writes its own files.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from calve.iceberg.files.position_deletes import DeletePlace, RowPositions, write_position_deletes
from calve.iceberg.files.store import remove_new
from calve.iceberg.planning.delete_index import DeleteGroup
from calve.iceberg.schema.readable import ReadTarget
from calve.model.files import WrittenFile
from calve.model.scan import ReadTask, ScanFile
from calve.reader.deletes import positions_by_path
from calve.reader.frame import read_tasks
from calve.reader.key_positions import KeyMemory, PositionFinder
from calve.reader.key_sets import distinct
from calve.spark.failures import own_file_failure
from calve.spark.tasks import Tasks

THREADS = os.cpu_count() or 1


@dataclass(frozen=True)
class SparkJobs:
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


def search_here(files: Sequence[ScanFile], finder: PositionFinder) -> list[RowPositions]:
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
    act = _TaskSearch(search.target, search.place, search.name)
    found = Tasks("rows could not be looked up by their keys", act.discard).run(spark, tasks, act.search)
    return tuple(file for files in found for file in files)


@dataclass(frozen=True)
class _TaskSearch:
    """What every task of a search has to know."""

    target: ReadTarget
    place: DeletePlace
    name: str

    def search(self, task: ReadTask, attempt: str) -> tuple[WrittenFile, ...]:
        finder = PositionFinder(self.target, task.files, KeyMemory())
        return written(self.place, _joined(map(finder.find, task.splits)), f"{self.name}/{attempt}")

    def discard(self, files: Sequence[WrittenFile]) -> None:
        """Remove what a task wrote whose job failed elsewhere."""
        remove_new([file.path for file in files], self.place.io_properties, "another task of their search failed")


def written(place: DeletePlace, found: Sequence[RowPositions], name: str) -> tuple[WrittenFile, ...]:
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
        raise own_file_failure(error, failure) from error


def _joined(parts: Iterable[RowPositions]) -> list[RowPositions]:
    """What was found in parts of one file as one; parts come in the order of the file."""
    by_path: dict[str, list[RowPositions]] = {}
    for part in parts:
        if len(part.positions):
            by_path.setdefault(part.file.path, []).append(part)
    return [
        replace(members[0], positions=np.concatenate([part.positions for part in members]))
        for members in by_path.values()
    ]


@dataclass(frozen=True)
class MergedDeletes:
    """New files of deletes, and those whose place they take."""

    files: tuple[WrittenFile, ...] = ()
    replaced: tuple[str, ...] = ()


def merge_deletes(groups: Sequence[DeleteGroup], place: DeletePlace, live: Collection[str], name: str) -> MergedDeletes:
    """Deletes of data files that left the table are left out. Raises TransientError."""
    found = [one for group in groups for one in _positions(group, place, live)]
    return MergedDeletes(written(place, found, f"{name}/merged"), tuple(file.path for g in groups for file in g.files))


def _positions(group: DeleteGroup, place: DeletePlace, live: Collection[str]) -> list[RowPositions]:
    pieces: dict[str, list[np.ndarray]] = {}
    with reading("older position deletes"):
        for file in group.files:
            for path, positions in positions_by_path(file.path, place.io_properties).items():
                if path in live:
                    pieces.setdefault(path, []).append(positions)
    return [
        RowPositions(_data_file(path, group), distinct(np.concatenate(positions))) for path, positions in pieces.items()
    ]


def _data_file(path: str, group: DeleteGroup) -> ScanFile:
    """As much of a data file as its deletes have to say."""
    return ScanFile(path, 0, 0, 0, spec_id=group.spec_id, partition=group.partition)
