"""The index of one sink: opened by the name in the table, queried, extended, published under a new name.

Only the committer's thread calls it; merges run in a separate thread, and the next publication uses their results.
Whoever ends the run closes it.
Reading and writing may raise TransientError; damage never raises: damaged parts are skipped, logged, and rebuilt from
the data files.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from calve import faults
from calve.clock import IdSource
from calve.errors import CalveError, TransientError
from calve.keylookup.index.build import BuildTasks, KeyReader, Merge, build, due, index_by_tasks, run_of
from calve.keylookup.index.manifest import IndexedFile, IndexManifest, IndexOwner, Run
from calve.keylookup.index.parts import DamagedIndex, KeyPlaces, Parts
from calve.keylookup.index.words import Keys
from calve.model.scan import ScanFile
from calve.reader.key_positions import RowFlags
from calve.reader.resources import NO_MEMORY, THREADS, MemoryBudget
from calve.storage.state import StateStore

_MANIFESTS, _PARTS = "manifests", "parts"
_POSITION = np.uint64(0xFFFF_FFFF)
_FILE_SHIFT = np.uint64(32)

APART_ROWS = 500_000
"""Rows from which on new files are indexed apart from the batches, if that is possible."""

Apart = Callable[[Callable[[], tuple[Run, ...]]], tuple[Run, ...]]
"""Makes a call that can be pickled where it does not delay batches; raises what the call raises, or TransientError."""

_log = logging.getLogger(__name__)

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class FoundKeys:
    """Rows of a data file: their positions, ascending, and the row of each one's key among the keys of the lookup."""

    positions: Positions
    keys: Positions


@dataclass
class _Merging:
    """A merge in the background. `result` is set when it is done, unless it failed."""

    merge: Merge
    snapshot_id: int | None
    """Rows that are deleted in this snapshot were dropped."""
    thread: threading.Thread
    result: Run | None = None


@dataclass(frozen=True)
class IndexBase:
    """The state of the table that the attempt builds on."""

    owner: IndexOwner
    reference: str
    """The manifest that the newest own snapshot names; empty if there is none."""
    snapshots: tuple[int, ...]
    """The head first, then its ancestors."""
    live: frozenset[IndexedFile]


class KeyIndex:
    """The index of one sink. `inline` waits for merges, for tests."""

    def __init__(
        self,
        store: StateStore,
        ids: IdSource,
        *,
        memory: MemoryBudget = NO_MEMORY,
        inline: bool = False,
        apart: Apart | None = None,
    ) -> None:
        self._store, self._ids, self._inline, self._apart = store, ids, inline, apart
        self._parts = Parts(store, memory)
        self._opened: tuple[str, IndexManifest] | None = None
        """The reference that was opened last, and its manifest."""
        self._merging: _Merging | None = None
        self._written: set[str] | None = None
        """Names of this index in the store that may be removed later; None until they are listed."""
        self._failed: set[str] = set()
        """What the names of parts of failed jobs begin with, of which a task may still run."""

    def close(self) -> None:
        """Give the memory back, and keep nothing any more. A merge that still runs ends, and its result is removed."""
        self._opened = self._merging = None
        self._parts.close()

    @property
    def store(self) -> StateStore:
        """Where the parts are."""
        return self._store

    def opened(self, base: IndexBase) -> IndexManifest:
        """Open the index that the table names; without runs if there is no usable one."""
        if self._opened is not None and (self._opened[0], self._opened[1].owner) == (base.reference, base.owner):
            return self._opened[1]
        found = IndexManifest("", base.owner)
        if base.reference:
            try:
                found = IndexManifest.decoded(base.reference, self._store.read(base.reference) or b"", base.owner)
            except DamagedIndex as error:
                _log.warning("the key index is missing or damaged and will be rebuilt: %s", error)
        self._opened = base.reference, found
        return found

    def lookup(self, runs: Sequence[Run], keys: Keys) -> tuple[dict[IndexedFile, FoundKeys], tuple[Run, ...]]:
        """The rows with the keys, which are sorted by hash; and the runs that cannot be read."""
        found: dict[IndexedFile, list[FoundKeys]] = {}
        lost: list[Run] = []
        with ThreadPoolExecutor(THREADS) as pool:
            asked = [[pool.submit(self._parts.lookup, part, keys, run.widths) for part in run.parts] for run in runs]
            for run, answers in zip(runs, asked, strict=True):
                try:
                    places = [answer.result() for answer in answers]
                except DamagedIndex as error:
                    _log.warning("a part of the key index is missing or damaged and will be rebuilt: %s", error)
                    lost.append(run)
                    continue
                for file, rows in _by_file(run, places):
                    found.setdefault(file, []).append(rows)
        return {file: _together(pieces) for file, pieces in found.items()}, tuple(lost)

    def take_in(self, reader: KeyReader, files: Sequence[ScanFile]) -> tuple[Run, ...]:
        """Index data files; those whose keys cannot be indexed are skipped."""
        faults.reached("index.before")
        return tuple(
            run_of(built, lambda entries: self._parts.put(self._fresh(), entries)) for built in build(reader, files)
        )

    def prepared(self, reader: KeyReader, files: Sequence[ScanFile]) -> tuple[Run, ...]:
        """As `take_in`, for files that are not in the table yet: `adopt` the runs once they are. For any thread."""
        with self._removed_on_failure() as stem:
            if self._apart is not None and sum(file.rows for file in files) > APART_ROWS:
                work = BuildTasks(reader.target, reader.key_ids, self._store, stem)
                return self._apart(partial(work.runs, files, "0"))
            names = (f"{stem}-{number}" for number in itertools.count())
            return tuple(
                run_of(built, lambda entries: self._parts.put(next(names), entries)) for built in build(reader, files)
            )

    def adopt(self, runs: Sequence[Run]) -> None:
        """Keep prepared runs as long as a manifest names them, and remove them afterwards."""
        for part in (part for run in runs for part in run.parts):
            self._note(part.name)

    def remove(self, runs: Sequence[Run]) -> None:
        """Remove runs that no manifest ever named. What cannot be removed now is removed with other old parts."""
        for part in (part for run in runs for part in run.parts):
            try:
                self._store.delete(part.name)
            except TransientError as error:
                _log.warning("a part of the key index could not be removed: %s", error.primary)
            else:
                if self._written is not None:
                    self._written.discard(part.name)

    def take_in_by_tasks(self, reader: KeyReader, files: Sequence[ScanFile], spark: SparkSession) -> tuple[Run, ...]:
        """As `take_in`, in Spark tasks, which write the parts themselves."""
        faults.reached("index.before")
        with self._removed_on_failure() as stem:
            runs = index_by_tasks(BuildTasks(reader.target, reader.key_ids, self._store, stem), files, spark)
        self.adopt(runs)
        return runs

    def publish(self, base: IndexBase, runs: Sequence[Run], commit_id: str) -> IndexManifest:
        """Write the manifest for a commit, unless nothing changed. All parts it names are complete in the store."""
        live = [run for run in self._with_merged(base, runs) if any(f in base.live for f in run.files)]
        before = self.opened(base)
        if tuple(live) == before.runs:
            return before
        name = f"{_MANIFESTS}/{commit_id}-{self._ids.new_id()[:8]}"
        manifest = IndexManifest(name, base.owner, tuple(live))
        self._store.put_new(name, manifest.encoded())
        self._note(name)
        faults.reached("index.after")
        return manifest

    def merge_if_due(
        self,
        base: IndexBase,
        manifest: IndexManifest,
        deleted: Callable[[Collection[str]], Mapping[str, RowFlags]],
        by_tasks: Callable[[int], SparkSession | None],
    ) -> None:
        """Start a merge if there are many runs. `deleted` returns rows that are deleted in files at some paths.

        `by_tasks` gets the number of entries, and returns the session whose tasks merge them; None for a thread.
        """
        runs = due(manifest.runs)
        if self._merging is not None or not runs:
            return
        paths = {file.path for run in runs for file in run.files if file in base.live}
        merge = Merge(runs, base.live, deleted(paths))
        head = base.snapshots[0] if base.snapshots else None
        thread = threading.Thread(target=self._merge, args=(by_tasks,), name="calve-index-merge", daemon=True)
        self._merging = _Merging(merge, head, thread)
        thread.start()
        if self._inline:
            thread.join()

    def tidy(self, base: IndexBase, manifest: IndexManifest) -> None:
        """Remove objects that neither the table's manifest nor this attempt's names, unless a merge is running.

        One attempt lists what older runs left; a later one removes it. The later attempt loaded the table after the
        listing and saw that this run holds the fence, so nothing in the list belongs to a successor.
        """
        failed = frozenset(self._failed)
        if failed and not self._remove_parts_of(failed):
            self._failed -= failed
        if self._merging is not None:
            return
        kept = {base.reference, manifest.name}
        for one in (self.opened(base), manifest):
            kept |= one.part_names
        self._parts.retain(kept)
        try:
            if self._written is None:
                self._written = {*self._store.list(_MANIFESTS), *self._store.list(_PARTS)}
                return
            for name in sorted(self._written - kept):
                self._store.delete(name)
                self._written.discard(name)
        except TransientError as error:
            _log.warning("old files of the key index could not be removed: %s", error.primary)

    def _merge(self, by_tasks: Callable[[int], SparkSession | None]) -> None:
        merging = self._merging
        if merging is None:
            return
        try:
            faults.reached("index.merge.before")
            spark = by_tasks(merging.merge.rows)
            if spark is None:
                result = merging.merge.run(self._parts, self._fresh)
            else:
                with self._removed_on_failure() as stem:
                    result = merging.merge.run_by_tasks(self._store, stem, spark)
                self.adopt([result])
            if self._merging is merging:
                merging.result = result
            else:  # closed meanwhile: nobody publishes it
                self.remove([result])
            faults.reached("index.merge.after")
        except (CalveError, DamagedIndex) as error:
            _log.warning("runs of the key index could not be merged: %s", error)

    def _with_merged(self, base: IndexBase, runs: Sequence[Run]) -> list[Run]:
        """The runs, with finished merges applied; a merge is only valid in descendants of its snapshot."""
        merging = self._merging
        if merging is None or merging.thread.is_alive():
            return list(runs)
        self._merging = None
        result, inputs = merging.result, merging.merge.runs
        after = merging.snapshot_id is None or merging.snapshot_id in base.snapshots
        if result is None or not after or not set(inputs) <= set(runs):
            return list(runs)
        return [result, *(run for run in runs if run not in inputs)]

    @contextmanager
    def _removed_on_failure(self) -> Iterator[str]:
        """What the names of a job's parts begin with; if the job fails they are removed, since nothing names them.

        A task that is lost reports nothing, and one that still runs may write a part later: `tidy` looks again.
        """
        stem = f"{_PARTS}/{self._ids.new_id()}"
        try:
            yield stem
        except BaseException:
            self._failed.add(stem)
            self._remove_parts_of(frozenset(self._failed))
            raise

    def _remove_parts_of(self, stems: Collection[str]) -> bool:
        """Remove the parts of failed jobs; False if there were none."""
        begins = tuple(f"{stem}-" for stem in stems)
        try:
            found = [name for name in self._store.list(_PARTS) if name.startswith(begins)]
            for name in found:
                self._store.delete(name)
        except TransientError as error:
            _log.warning("parts of the key index that were not finished could not be removed: %s", error.primary)
            return True
        return bool(found)

    def _fresh(self) -> str:
        name = f"{_PARTS}/{self._ids.new_id()}"
        self._note(name)
        return name

    def _note(self, name: str) -> None:
        if self._written is not None:
            self._written.add(name)


def _by_file(run: Run, found: Sequence[KeyPlaces]) -> list[tuple[IndexedFile, FoundKeys]]:
    """Rows by data file, in ascending order."""
    places = np.concatenate([one.places for one in found]) if found else np.empty(0, np.uint64)
    keys = np.concatenate([one.rows for one in found]) if found else np.empty(0, np.int64)
    order = np.argsort(places)
    ordered = places[order]
    numbers = (ordered >> _FILE_SHIFT).astype(np.int64)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    positions = np.split((ordered & _POSITION).astype(np.int64), starts[1:])
    of_keys = np.split(keys[order], starts[1:])
    return [
        (run.files[numbers[at]], FoundKeys(here, of_key))
        for at, here, of_key in zip(starts, positions, of_keys, strict=False)
    ]


def _together(pieces: Sequence[FoundKeys]) -> FoundKeys:
    """Ascending positions without duplicates; those of one run already are."""
    if len(pieces) == 1:
        return pieces[0]
    positions = np.concatenate([piece.positions for piece in pieces])
    order = np.argsort(positions)
    first = np.diff(positions[order], prepend=-1) != 0
    return FoundKeys(positions[order][first], np.concatenate([piece.keys for piece in pieces])[order][first])
