"""Looks up the keys of a large batch in the key index, in Spark tasks; the driver gets the names of delete files.

    key files ──► keys ──► by range of hashes ──► places of rows ──► by group of data files ──► live rows ──► deletes

There are two shuffles. A task of the first half owns a range of hashes: it gets the keys of its range from all key
files, and reads that range of every part of the index, so each page is read once. A task of the second half owns some
data files: it gets all places in them, reads their deletes once, and writes position deletes of the rows that are still
live. What crosses a shuffle are a few arrays for each pair of tasks, not rows. A task holds about `RANGE_KEYS` keys and
one part of the index, or the deletes of about `GROUP_ROWS` rows; the driver holds descriptions of files.

Only tasks of the last step write, under names with the number of their attempt, and only reported files are used. What
an attempt leaves that was killed, or that ran twice, is an orphan. Earlier steps have no effects: Spark may repeat
them, in part and at any time, with the same result. If a repetition finds a part damaged that was whole before, its
output says so to every task that reads it, so no task takes an incomplete answer for a complete one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from calve.iceberg.files.position_deletes import DeletePlace, RowPositions
from calve.iceberg.files.store import remove_new
from calve.iceberg.planning.key_scan import KeyScan
from calve.iceberg.schema.readable import ReadTarget
from calve.keylookup.index.build import indexed
from calve.keylookup.index.manifest import IndexedFile, Run
from calve.keylookup.index.parts import DamagedIndex, Parts
from calve.keylookup.index.words import Keys, NotIndexable, Words, bounds_of_range, range_of, widened, widest
from calve.keylookup.search import write_deletes
from calve.model.files import WrittenFile
from calve.model.scan import DeleteFile, ScanFile
from calve.reader.key_positions import KeyMemory, PositionFinder
from calve.reader.key_sets import distinct
from calve.spark.owners import SENT, Shuffle, by_owner, received
from calve.spark.tasks import Tasks
from calve.storage.state import StateStore

RANGE_KEYS = 1_000_000
"""About the most keys that a task looks up: a few hundred megabytes with short keys."""
GROUP_ROWS = 20_000_000
"""About the most rows of the data files of a task, unless one file has more: a bit of memory for each."""
_FILE_SHIFT, _POSITION = np.uint64(32), np.uint64(0xFFFF_FFFF)
_FAILURE = "rows could not be looked up in the key index"

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class TaskAnswer:
    """What tasks found and wrote. If the index could not answer, nothing else is set."""

    files: tuple[WrittenFile, ...] = ()
    found: tuple[RowPositions, ...] = ()
    """The live rows, instead of files: of tables with vectors."""
    lost: frozenset[int] = frozenset()
    """Runs that cannot be read, by their number."""
    is_indexable: bool = True
    """Whether keys like those of the batch can be in an index."""

    @property
    def is_complete(self) -> bool:
        """Whether the index could answer."""
        return self.is_indexable and not self.lost

    def plus(self, other: "TaskAnswer") -> "TaskAnswer":
        """Both."""
        return TaskAnswer(
            self.files + other.files,
            self.found + other.found,
            self.lost | other.lost,
            self.is_indexable and other.is_indexable,
        )


@dataclass(frozen=True)
class TaskLookup:
    """A lookup of all keys of a scan in some runs, which cover `groups`. Pickled to tasks."""

    keys: tuple[DeleteFile, ...]
    runs: tuple[Run, ...]
    store: StateStore
    """Of the parts."""
    groups: tuple[tuple[ScanFile, ...], ...]
    """The data files to search, by the task that owns them."""
    target: ReadTarget
    place: DeletePlace
    name: str
    """Unique: names of delete files are derived from it."""
    ranges: int
    """The number of ranges of hashes."""

    @classmethod
    def of(cls, scan: KeyScan, runs: Sequence[Run], store: StateStore, name: str, parallelism: int) -> "TaskLookup":
        """Plan the lookup of a scan; data files that the runs lack are left aside."""
        covered = {file for run in runs for file in run.files}
        files = [c.file for c in scan.candidates if indexed(c.file) in covered]
        keys = sum(key.rows for key in scan.keys)
        return cls(
            scan.keys,
            tuple(runs),
            store,
            tuple(file_owners(files, parallelism)),
            scan.target,
            scan.place,
            name,
            ranges=max(parallelism, -(-keys // RANGE_KEYS)),
        )

    def run(self, spark: SparkSession) -> TaskAnswer:
        """Look up, and write the deletes. Raises TransientError, TerminalError."""
        if not self.groups or not self.keys:
            return TaskAnswer()
        tasks = Tasks(_FAILURE, self.discard)
        numbers = spark.range(0, len(self.keys), 1, len(self.keys)).toDF("owner")
        to_ranges, to_groups = Shuffle(self.ranges), Shuffle(len(self.groups))
        keys = tasks.through(numbers, partial(to_ranges.send, self.split_keys), SENT)
        places = tasks.through(to_ranges.at_owners(keys), partial(to_groups.send, self.find_places), SENT)
        answers = tasks.over(to_groups.at_owners(places), self.write)
        whole = TaskAnswer()
        for answer in answers:
            whole = whole.plus(answer)
        if not whole.is_complete:
            self.discard(whole)
            return replace(whole, files=(), found=())
        return whole

    def discard(self, answer: TaskAnswer) -> None:
        """Remove the files of a task whose job failed."""
        remove_new(
            [file.path for file in answer.files], self.place.io_properties, "another task of their lookup failed"
        )

    # ---- in a task

    def split_keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, object]]:
        """Keys of key files by the owner of their range."""
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            file = replace(self.groups[0][0], deletes=(self.keys[number],))
            finder = PositionFinder(self.target, [file], KeyMemory())
            try:
                keys = Keys.of(finder.key_columns_of(file))
            except NotIndexable:
                yield from ((owner, TaskAnswer(is_indexable=False)) for owner in range(self.ranges))
                continue
            owners = range_of(keys.hashes, self.ranges)
            for owner, rows in by_owner(owners):
                yield owner, _KeySlice(keys.hashes[rows], _words(keys, rows), keys.widths, keys.exact)

    def find_places(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, object]]:
        """Places of the keys of some ranges, by the owner of their data file."""
        for owner, members in received(batches).items():
            refused = [member for member in members if isinstance(member, TaskAnswer)]
            if refused:
                yield from ((group, refused[0]) for group in range(len(self.groups)))
                continue
            keys = _joined([member for member in members if isinstance(member, _KeySlice)])
            yield from self._places(owner, keys)

    def _places(self, owner: int, keys: Keys) -> Iterator[tuple[int, object]]:
        parts = Parts(self.store)
        low, high = bounds_of_range(owner, self.ranges)
        for number, run in enumerate(self.runs):
            files = np.array([self._numbers.get(file, -1) for file in run.files], np.int64)
            try:
                found = [
                    parts.between(part, low, high).with_keys(keys, run.widths).places
                    for part in run.parts
                    if part.low <= high and low <= part.high
                ]
            except DamagedIndex:
                yield from ((group, TaskAnswer(lost=frozenset({number}))) for group in range(len(self.groups)))
                continue
            if not found:
                continue
            places = np.concatenate(found)
            of_files = files[(places >> _FILE_SHIFT).astype(np.int64)]
            searched = of_files >= 0
            of_files, places = of_files[searched], places[searched]
            for group, rows in by_owner(self._owners[of_files]):
                yield group, _PlaceSlice(of_files[rows].astype(np.int32), (places[rows] & _POSITION).astype(np.uint32))

    def write(self, batches: Iterable[pa.RecordBatch], attempt: str) -> TaskAnswer:
        """The live rows at the places in some groups of data files; deletes of them, unless there are vectors."""
        answer = TaskAnswer()
        try:
            for owner, members in received(batches).items():
                refused = [member for member in members if isinstance(member, TaskAnswer)]
                for member in refused:
                    answer = answer.plus(member)
                if not refused:
                    slices = [member for member in members if isinstance(member, _PlaceSlice)]
                    answer = answer.plus(self._deletes(owner, slices, f"{self.name}/{attempt}/{owner}"))
        except BaseException:
            self.discard(answer)
            raise
        return answer

    def _deletes(self, owner: int, slices: Sequence["_PlaceSlice"], name: str) -> TaskAnswer:
        numbers = np.concatenate([one.files for one in slices]).astype(np.int64)
        positions = np.concatenate([one.positions for one in slices]).astype(np.int64)
        finder = PositionFinder(self.target, self.groups[owner], KeyMemory())
        found = []
        for number, rows in by_owner(numbers):
            file, unique = self._files[number], distinct(positions[rows])
            live = unique[~finder.deleted(file).at(unique)]
            if len(live):
                found.append(RowPositions(file, live))
        if self.place.vectors:
            return TaskAnswer(found=tuple(found))
        return TaskAnswer(files=write_deletes(self.place, found, name))

    @cached_property
    def _files(self) -> list[ScanFile]:
        return [file for group in self.groups for file in group]

    @cached_property
    def _numbers(self) -> dict[IndexedFile, int]:
        """The number of each data file."""
        return {indexed(file): number for number, file in enumerate(self._files)}

    @cached_property
    def _owners(self) -> Numbers:
        """The group of each data file, by its number."""
        return np.repeat(np.arange(len(self.groups)), [len(group) for group in self.groups])


def file_owners(files: Sequence[ScanFile], parallelism: int) -> list[tuple[ScanFile, ...]]:
    """Group data files for tasks; those of a partition are adjacent, so that their deletes share files."""
    total = sum(file.rows for file in files)
    count = min(len(files), max(parallelism, -(-total // GROUP_ROWS)))
    groups: list[list[ScanFile]] = [[] for _ in range(count)]
    before = 0
    for file in sorted(files, key=lambda f: (f.spec_id, repr(f.partition), f.path)):
        middle = before + file.rows / 2
        groups[min(count - 1, int(middle * count / max(1, total)))].append(file)
        before += file.rows
    return [tuple(group) for group in groups if group]


@dataclass(frozen=True)
class _KeySlice:
    """Keys of one key file in one range."""

    hashes: Words
    words: Words
    widths: tuple[int, ...]
    exact: bool


@dataclass(frozen=True)
class _PlaceSlice:
    """Places in the data files of one group: numbers of files, and positions."""

    files: NDArray[np.int32]
    positions: NDArray[np.uint32]


def _words(keys: Keys, rows: Numbers) -> Words:
    """The words of some keys; none where hashes are unique per key, since nobody compares them."""
    return np.empty((len(rows), 0), np.uint64) if keys.exact else keys.words[rows]


def _joined(slices: Sequence[_KeySlice]) -> Keys:
    """All keys of a range, sorted by hash."""
    exact = all(one.exact for one in slices)
    widths = widest(one.widths for one in slices)
    hashes = np.concatenate([one.hashes for one in slices])
    words = np.concatenate([one.words if exact else widened(one.words, one.widths, widths) for one in slices])
    order = np.argsort(hashes)
    return Keys(hashes[order], words[order], widths, order, exact)
