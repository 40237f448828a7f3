"""Searches data files for keys, in threads of the driver or in Spark tasks, and writes deletes of their positions.

The driver searches with all its cores and remembers which rows are already deleted, so that a batch on a table of about
ten million rows takes tenths of a second and one delete file per partition. Tasks know nothing about earlier searches:
each loads the keys and the deletes of its own files, and writes its own delete files.

A commit that deletes rows also merges older position delete files (`merge_deletes`).

In tables of format version 3, tasks write nothing: they return the positions, and the driver writes one vector for each
data file, with everything that was deleted in the file before (`replace_vectors`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from calve.iceberg.files.position_deletes import DeletePlace, RowPositions, write_position_deletes
from calve.iceberg.files.store import remove_new
from calve.iceberg.files.vectors import DeletedRows, bitmap_of, write_vectors
from calve.iceberg.planning.delete_index import DeleteGroup
from calve.iceberg.schema.readable import ReadTarget
from calve.model.files import WrittenFile
from calve.model.scan import ContentId, DeleteFile, DeleteKind, ReadTask, ScanFile
from calve.reader.deletes import TaskDeletes, paths_named, positions_by_path
from calve.reader.key_positions import KeyMemory, PositionFinder, key_columns
from calve.reader.key_sets import distinct
from calve.reader.resources import THREADS
from calve.reader.splits import read_tasks
from calve.spark.failures import own_file_failure
from calve.spark.tasks import Tasks

_PARTS = 4
"""Parts of a search for each thread, so that none waits long for the others."""
_OPEN_AT_ONCE = 8
"""Files that are opened at the same time; matters for object stores only."""
FORGETFUL = KeyMemory()
"""Remembers nothing."""


MAINTENANCE_POOL = "calve-maintenance"
"""Pool of the jobs of maintenance by hand."""


@dataclass(frozen=True)
class SparkJobs:
    """Where Spark jobs of a sink run."""

    make_session: Callable[[], SparkSession]
    pool: str

    def session(self) -> SparkSession:
        """The session; jobs of this thread run in the sink's pool from now on."""
        spark = self.make_session()
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
        return spark


@dataclass(frozen=True)
class Search:
    """Files to search, each with its deletes. Pickled to tasks."""

    files: tuple[ScanFile, ...]
    target: ReadTarget
    place: DeletePlace
    name: str
    """Unique: names of delete files are derived from it."""


def search_here(files: Sequence[ScanFile], finder: PositionFinder) -> list[RowPositions]:
    """Search in threads of this process, without writing. Raises TransientError, TerminalError."""
    if not files:
        return []
    with reading("keys of the batch"):
        finder.prepare(files)
    tasks = read_tasks(files, _PARTS * THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        return _joined(chain.from_iterable(pool.map(lambda task: finder.find(task.splits), tasks)))


def read_keys_ahead(
    files: Sequence[ScanFile], target: ReadTarget, key_ids: tuple[int, ...], remembered: KeyMemory
) -> None:
    """Remember the key columns of files that a lookup will search, if there is room. Raises TransientError."""
    if not remembered.has_room(sum(file.rows for file in files) * len(key_ids)):
        return

    def read(file: ScanFile) -> None:
        with reading("keys of new files"):
            for _ in key_columns(target, file, key_ids, remembered):
                pass

    with ThreadPoolExecutor(max(THREADS, _OPEN_AT_ONCE)) as pool:
        for _ in pool.map(read, files):
            pass


def search_by_tasks(search: Search, spark: SparkSession) -> tuple[WrittenFile, ...]:
    """Search in Spark tasks, which write the deletes. Raises TransientError, TerminalError."""
    tasks = read_tasks(search.files, spark.sparkContext.defaultParallelism)
    act = _TaskSearch(search.target, search.place, search.name)
    found = Tasks("rows could not be looked up by their keys", act.discard).run(spark, tasks, act.search)
    return tuple(file for files in found for file in files)


def find_by_tasks(search: Search, spark: SparkSession) -> list[RowPositions]:
    """Search in Spark tasks, without writing. Raises TransientError, TerminalError."""
    tasks = read_tasks(search.files, spark.sparkContext.defaultParallelism)
    act = _TaskSearch(search.target, search.place, search.name)
    found = Tasks[list[RowPositions]]("rows could not be looked up by their keys").run(spark, tasks, act.find)
    return [one for positions in found for one in positions]


@dataclass(frozen=True)
class _TaskSearch:
    """What every task of a search needs."""

    target: ReadTarget
    place: DeletePlace
    name: str

    def search(self, task: ReadTask, attempt: str) -> tuple[WrittenFile, ...]:
        return write_deletes(self.place, self.find(task, attempt), f"{self.name}/{attempt}")

    def find(self, task: ReadTask, _attempt: str) -> list[RowPositions]:
        finder = PositionFinder(self.target, task.files, KeyMemory())
        return _joined(finder.find(task.splits))

    def discard(self, files: Sequence[WrittenFile]) -> None:
        """Remove the files of a task after another task of its job failed."""
        remove_new([file.path for file in files], self.place.io_properties, "another task of their search failed")


def write_deletes(
    place: DeletePlace, found: Sequence[RowPositions], name: str, remembered: KeyMemory = FORGETFUL
) -> tuple[WrittenFile, ...]:
    """Write position deletes of these rows. Raises TransientError."""
    with _trying("position deletes could not be written"):
        return write_position_deletes(place, found, name, remembered.wrote)


def write_deletes_of_new(place: DeletePlace, found: Sequence[RowPositions], name: str) -> tuple[WrittenFile, ...]:
    """Write deletes of rows of new data files, which have no others; each file occurs once. Raises TransientError."""
    if not place.vectors:
        return write_deletes(place, found, name)
    with _trying("deletion vectors could not be written"):
        return write_vectors(place, [DeletedRows(one.file, bitmap_of(one.positions)) for one in found], name)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate failures to read files to calve's errors."""
    with _trying(f"{what} could not be read"):
        yield


@contextmanager
def _trying(failure: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise own_file_failure(error, failure) from error


def _joined(parts: Iterable[RowPositions]) -> list[RowPositions]:
    """Join the positions of parts of one file; parts are in file order."""
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
    """New delete files, and those that they replace."""

    files: tuple[WrittenFile, ...] = ()
    replaced: tuple[ContentId, ...] = ()


def merge_deletes(
    groups: Sequence[DeleteGroup],
    place: DeletePlace,
    live: Collection[str],
    name: str,
    remembered: KeyMemory = FORGETFUL,
) -> MergedDeletes:
    """Merge delete files; deletes of data files that left the table are dropped. Raises TransientError."""
    found = [one for group in groups for one in _positions(group, place, live, remembered)]
    files = write_deletes(place, found, f"{name}/merged", remembered)
    return MergedDeletes(files, tuple(file.id for g in groups for file in g.files))


@dataclass(frozen=True)
class ReplacedVectors:
    """New vectors, and the deletes that they replace."""

    files: tuple[WrittenFile, ...] = ()
    replaced: tuple[ContentId, ...] = ()
    known: int = 0
    """Rows of the new vectors that were deleted before."""


def replace_vectors(
    files: Iterable[ScanFile],
    target: ReadTarget,
    place: DeletePlace,
    found: Sequence[RowPositions],
    name: str,
    remembered: KeyMemory = FORGETFUL,
) -> ReplacedVectors:
    """Write one vector for each data file with found rows, with all rows that are deleted in it by position.

    `files` have the deletes that apply to them. Raises TransientError, TerminalError.
    """
    by_path: dict[str, list[np.ndarray]] = {}
    touched: dict[str, ScanFile] = {}
    for one in found:
        if len(one.positions):
            by_path.setdefault(one.file.path, []).append(one.positions)
            touched.setdefault(one.file.path, one.file)
    touched |= {file.path: file for file in files if file.path in touched}
    deletes = TaskDeletes(target, list(touched.values()))
    wanted: list[DeletedRows] = []
    replaced: list[ContentId] = []
    known = 0
    with reading("older deletes"):
        for path, file in touched.items():
            before = [d for d in file.deletes if d.kind is not DeleteKind.EQUALITY]
            added = np.concatenate(by_path[path])
            rows = BitMap64().union(*(_rows_in(delete, path, deletes, remembered) for delete in before))
            known += len(rows)
            rows |= bitmap_of(added)
            wanted.append(DeletedRows(file, rows, frozenset(d.id for d in before), added))
            replaced += [delete.id for delete in before if _is_only_about(delete, path, place)]
    with _trying("deletion vectors could not be written"):
        written = write_vectors(place, wanted, name, remembered.wrote_vector)
    return ReplacedVectors(written, tuple(replaced), known)


def _rows_in(delete: DeleteFile, path: str, deletes: TaskDeletes, remembered: KeyMemory) -> BitMap64:
    """The rows that a delete file or vector deletes in a data file."""
    if delete.kind is DeleteKind.VECTOR:
        return remembered.rows_in(delete, deletes)
    return bitmap_of(deletes.positions_in(delete, path))


def _is_only_about(delete: DeleteFile, path: str, place: DeletePlace) -> bool:
    """Whether a delete file refers to this data file only; bounds of other writers may be truncated."""
    return delete.kind is DeleteKind.VECTOR or paths_named(delete.path, place.io_properties) == {path}


def _positions(
    group: DeleteGroup, place: DeletePlace, live: Collection[str], remembered: KeyMemory
) -> list[RowPositions]:
    pieces: dict[str, list[np.ndarray]] = {}
    with reading("older position deletes"):
        for file in group.files:
            own = remembered.written_in(file.path)
            for path, positions in (positions_by_path(file.path, place.io_properties) if own is None else own).items():
                if path in live:
                    pieces.setdefault(path, []).append(positions)
    return [
        RowPositions(_data_file(path, group), distinct(np.concatenate(positions))) for path, positions in pieces.items()
    ]


def _data_file(path: str, group: DeleteGroup) -> ScanFile:
    """A data file, with only the values that its deletes need."""
    return ScanFile(path, 0, 0, 0, spec_id=group.spec_id, partition=group.partition)
