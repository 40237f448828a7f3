"""Builds the index: data files -> entries -> runs in the store; merges runs. Only key columns are read.

Spark tasks index many data files: each reads the keys of some files and writes its own parts. A task that runs twice
writes two sets of parts, of which one is reported. The other is removed, with everything that no manifest names, when a
process starts to use the index. If the job fails, all its parts are removed.

As soon as several runs have about the same size, they are merged into one, so there are always few. A merge goes
through the hashes range by range, and holds one range of all its runs in memory. It drops entries of data files that
left the table and, as far as known, of deleted rows. Spark tasks merge many entries: each merges some of the ranges and
writes its own parts. It removes nothing: its inputs stay until a manifest without them
is in the table.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from calve.errors import TransientError
from calve.iceberg.schema.readable import ReadTarget
from calve.keylookup.index.manifest import IndexedFile, Run
from calve.keylookup.index.parts import DamagedIndex, Entries, Part, Parts, encoded, rows_per_part
from calve.keylookup.index.words import Keys, NotIndexable, Words, is_short, widened, widest
from calve.model.files import tier_of
from calve.model.scan import ScanFile
from calve.reader.key_positions import KeyMemory, RowFlags, flags_at, key_columns
from calve.spark.failures import own_file_failure
from calve.spark.tasks import Tasks
from calve.storage.state import NewRecords, StateStore, delete_unreferenced

MOST_FILE_ROWS = 20_000_000
"""Larger files are not indexed: the keys of one file are sorted in memory."""
_PARTS_PER_RUN = 4
"""For short keys: fewer runs need fewer merges, and this many entries are sorted in a few hundred megabytes."""
_NONE: Words = np.empty(0, np.uint64)


def indexed(file: ScanFile) -> IndexedFile:
    """The index's description of a data file."""
    return IndexedFile(file.path, file.size, file.rows)


@dataclass(frozen=True)
class Built:
    """Entries of some data files; the number of a file is its index in `files`."""

    files: tuple[ScanFile, ...]
    entries: Entries
    widths: tuple[int, ...]
    exact: bool


@dataclass(frozen=True)
class KeyReader:
    """How to read key columns."""

    target: ReadTarget
    key_ids: tuple[int, ...]
    remembered: KeyMemory
    threads: int


@dataclass(frozen=True)
class _Read:
    """The keys of one file and their positions; None if they cannot be indexed."""

    file: ScanFile
    keys: tuple[tuple[Keys, int], ...] | None


def build(reader: KeyReader, files: Sequence[ScanFile]) -> Iterator[Built]:
    """Build the entries of files, group by group; files whose keys cannot be indexed are skipped.

    Raises TransientError.
    """
    with ThreadPoolExecutor(reader.threads) as pool:
        for group in file_groups(files, reader.target, reader.key_ids):
            read = [one for one in pool.map(lambda file: _read(reader, file), group) if one.keys is not None]
            if read:
                yield _built(read)


def run_of(built: Built, put: Callable[[Entries], Part]) -> Run:
    """Split entries into the parts of a run; `put` writes each."""
    step = rows_per_part(built.entries.words.shape[1])
    cuts = range(0, len(built.entries), step)
    parts = tuple(put(built.entries.taken(slice(at, at + step))) for at in cuts)
    return Run(tuple(map(indexed, built.files)), built.widths, built.exact, parts)


def file_groups(files: Sequence[ScanFile], target: ReadTarget, key_ids: Sequence[int]) -> Iterator[list[ScanFile]]:
    """Group files whose entries form a run; if keys may be long, no more than one part."""
    group: list[ScanFile] = []
    short = all(is_short(target.keys[number].kind) for number in key_ids)
    most = rows_per_part(0) * (_PARTS_PER_RUN if short else 1)
    for file in files:
        if group and sum(f.rows for f in group) + file.rows > most:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _read(reader: KeyReader, file: ScanFile) -> _Read:
    if file.rows > MOST_FILE_ROWS:
        return _Read(file, None)
    try:
        found = [
            (Keys.of([columns[number] for number in reader.key_ids]), first)
            for first, columns in key_columns(reader.target, file, reader.key_ids, reader.remembered)
        ]
    except NotIndexable:
        return _Read(file, None)
    except (OSError, pa.ArrowException) as error:
        raise own_file_failure(error, "the keys of a file of the table could not be read", file.path) from error
    return _Read(file, tuple(found))


def _built(read: Sequence[_Read]) -> Built:
    files = tuple(r.file for r in read)
    keys = [(number, one, first) for number, r in enumerate(read) for one, first in r.keys or ()]
    if not keys:
        return Built(files, Entries(_NONE, _NONE, _NONE.reshape(0, 0)), (), exact=True)
    widths = widest(one.widths for _, one, _ in keys)
    exact = all(one.exact for _, one, _ in keys)
    hashes = np.concatenate([one.hashes for _, one, _ in keys])
    order = np.argsort(hashes)
    places = np.concatenate([_places(number, one, first) for number, one, first in keys])[order]
    words = np.empty((len(order), 0), np.uint64)
    if not exact:
        words = np.concatenate([widened(one.words, one.widths, widths) for _, one, _ in keys])[order]
    return Built(files, Entries(hashes[order], places, words), widths, exact)


def _places(number: int, keys: Keys, first: int) -> Words:
    return (keys.rows + first).astype(np.uint64) | np.uint64(number << 32)


@dataclass(frozen=True)
class BuildTasks:
    """What every indexing task needs."""

    target: ReadTarget
    key_ids: tuple[int, ...]
    store: StateStore
    stem: str
    """Unique: names of parts are derived from it."""

    def runs(self, files: Sequence[ScanFile], writer: str) -> tuple[Run, ...]:
        """Index some files in this process. Raises TransientError."""
        reader = KeyReader(self.target, self.key_ids, KeyMemory(), threads=1)
        with _new_parts(self.store, f"{self.stem}-{writer}") as put:
            return tuple(run_of(built, put) for built in build(reader, files))

    def task(self, files: Sequence[ScanFile], attempt: str) -> tuple[Run, ...]:
        """As `runs`, for one attempt of a task."""
        return self.runs(files, attempt.replace("/", "-"))

    def discard(self, runs: Sequence[Run]) -> None:
        """Remove the parts of a task after another task of its job failed."""
        delete_unreferenced(self.store, [part.name for run in runs for part in run.parts])


@contextmanager
def _new_parts(store: StateStore, stem: str) -> Iterator[Callable[[Entries], Part]]:
    """Writes the parts of a task, under names that begin with `stem`; they are removed if the block fails."""
    sequence, records = itertools.count(), NewRecords(store)

    def put(entries: Entries) -> Part:
        part, data = encoded(f"{stem}-{next(sequence)}", entries)
        records.put_new(part.name, data)
        return part

    with records.removed_on_failure():
        yield put


def index_by_tasks(work: BuildTasks, files: Sequence[ScanFile], spark: SparkSession) -> tuple[Run, ...]:
    """Index all files in Spark tasks. Raises TransientError, TerminalError."""
    groups = list(file_groups(files, work.target, work.key_ids))
    found = Tasks("keys could not be indexed", work.discard).run(spark, groups, work.task)
    return tuple(run for runs in found for run in runs)


_FAN = 4
"""The number of runs in one tier that are merged."""
_SMALLEST = 131_071
"""Runs with at most this many entries are all in the lowest tier."""
_HASHES = 1 << 64
_POSITION = np.uint64(0xFFFF_FFFF)
_FILE_SHIFT = np.uint64(32)


def due(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs to merge now; usually none."""
    tiers: dict[int, list[Run]] = {}
    for run in runs:
        tiers.setdefault(tier_of(run.rows, _SMALLEST, _FAN), []).append(run)
    for _, members in sorted(tiers.items()):
        if len(members) >= _FAN:
            return tuple(members)
    return ()


@dataclass(frozen=True)
class Merge:
    """The runs to merge, and what to drop."""

    runs: tuple[Run, ...]
    live: frozenset[IndexedFile]
    """Data files of the snapshot."""
    deleted: Mapping[str, RowFlags]
    """Deleted rows by path. Files that are not listed keep all entries."""

    def run(self, parts: Parts, fresh_name: Callable[[], str]) -> Run:
        """Write the run that replaces them. Raises DamagedIndex, TransientError."""
        return self.replaced_by(self.parts_of(range(self.ranges), parts, lambda one: parts.put(fresh_name(), one)))

    def run_by_tasks(self, store: StateStore, stem: str, spark: SparkSession) -> Run:
        """As `run`, in Spark tasks, each of which writes some of the parts. Raises TransientError, TerminalError."""
        work = MergeTasks(self, store, stem)
        tasks = min(self.ranges, spark.sparkContext.defaultParallelism)
        shares = [range(n * self.ranges // tasks, (n + 1) * self.ranges // tasks) for n in range(tasks)]
        made = Tasks("runs of the key index could not be merged", work.discard).run(spark, shares, work.task)
        return self.replaced_by([part for parts in made for part in parts])

    @property
    def rows(self) -> int:
        """The number of entries to merge."""
        return sum(run.rows for run in self.runs)

    @property
    def ranges(self) -> int:
        """The number of ranges of hashes: each becomes a part."""
        return -(-self.rows // rows_per_part(0 if self._exact else sum(self._widths))) or 1

    def parts_of(self, ranges: Iterable[int], parts: Parts, put: Callable[[Entries], Part]) -> list[Part]:
        """Merge some of the ranges; `put` writes a part."""
        kept, made = _Kept.of(self._files, self.deleted), []
        for number in ranges:
            low, high = number * _HASHES // self.ranges, (number + 1) * _HASHES // self.ranges - 1
            pieces = [piece for run in self.runs for piece in self._pieces(run, (low, high), parts, kept)]
            if any(len(piece) for piece in pieces):
                made.append(put(Entries.together(pieces)))
        return made

    def replaced_by(self, parts: Sequence[Part]) -> Run:
        """The run of these parts."""
        return Run(self._files, self._widths, self._exact, tuple(parts))

    @cached_property
    def _files(self) -> tuple[IndexedFile, ...]:
        return tuple(dict.fromkeys(file for run in self.runs for file in run.files if file in self.live))

    @cached_property
    def _widths(self) -> tuple[int, ...]:
        return widest(run.widths for run in self.runs if run.parts)

    @cached_property
    def _exact(self) -> bool:
        return all(run.exact for run in self.runs)

    def _pieces(self, run: Run, between: tuple[int, int], parts: Parts, kept: "_Kept") -> list[Entries]:
        numbers = np.array([kept.numbers.get(file, -1) for file in run.files], np.int64)
        found = []
        for part in run.parts:
            if part.low <= between[1] and between[0] <= part.high:
                entries = parts.between(part, *between)
                stays, places = kept.placed(entries.places, numbers)
                words = entries.words[stays]
                words = words if run.exact else widened(words, run.widths, self._widths)
                found.append(Entries(entries.hashes[stays], places, words))
        return found


@dataclass(frozen=True)
class MergeTasks:
    """What every merging task needs."""

    merge: Merge
    store: StateStore
    stem: str
    """Unique: names of parts are derived from it."""

    def task(self, ranges: Sequence[int], attempt: str) -> list[Part]:
        """Merge some ranges, in one attempt of a task. Raises TransientError."""
        try:
            with _new_parts(self.store, f"{self.stem}-{attempt.replace('/', '-')}") as put:
                return self.merge.parts_of(ranges, Parts(self.store), put)
        except DamagedIndex as error:
            raise TransientError("a part of the key index is missing or damaged", detail=str(error)) from error

    def discard(self, parts: Sequence[Part]) -> None:
        """Remove the parts of a task after another task of its job failed."""
        delete_unreferenced(self.store, [part.name for part in parts])


@dataclass(frozen=True)
class _Kept:
    """The files of the new run, and one bit for each of their rows that may be deleted."""

    numbers: Mapping[IndexedFile, int]
    starts: NDArray[np.int64]
    """The first bit of a file, by its number; -1 if it has none."""
    bits: NDArray[np.uint8]

    @classmethod
    def of(cls, files: Sequence[IndexedFile], deleted: Mapping[str, RowFlags]) -> "_Kept":
        bits = [deleted[file.path].bits if file.path in deleted else np.empty(0, np.uint8) for file in files]
        lengths = np.array([8 * len(one) for one in bits], np.int64)
        starts = np.where(lengths > 0, np.cumsum(lengths) - lengths, -1)
        joined = np.concatenate(bits) if bits else np.empty(0, np.uint8)
        return cls({file: number for number, file in enumerate(files)}, starts, joined)

    def placed(self, places: Words, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], Words]:
        """The entries that stay, and their places with the new file numbers."""
        new = numbers[(places >> _FILE_SHIFT).astype(np.int64)]
        stays = new >= 0
        positions = (places & _POSITION).astype(np.int64)
        starts = np.where(stays, self.starts[new], -1) if len(self.starts) else np.full(len(new), -1)
        known = np.flatnonzero(starts >= 0)
        stays[known] = ~flags_at(self.bits, starts[known] + positions[known])
        which = np.flatnonzero(stays)
        return which, (new[which].astype(np.uint64) << _FILE_SHIFT) | positions[which].astype(np.uint64)
