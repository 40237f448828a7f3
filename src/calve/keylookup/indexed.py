"""Looks up the keys of a batch in the sink's key index, and adds the data files that it lacks.

A file that the index covers is not opened at all. Positions from the index are checked against the deletes of the
snapshot, like all others. The driver indexes new files itself; if there are many, Spark tasks do. It also looks up the
keys itself, unless there are many, or many deletes to read (`indexed_tasks.py`).
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.planning.key_scan import KeyScan
from calve.keylookup.index.build import KeyReader, indexed
from calve.keylookup.index.key_index import FoundKeys, IndexBase, KeyIndex
from calve.keylookup.index.manifest import IndexedFile, IndexManifest, IndexOwner, Run
from calve.keylookup.index.words import Keys, NotIndexable, sorted_keys
from calve.keylookup.indexed_tasks import TaskLookup
from calve.keylookup.search import SparkJobs
from calve.model.files import WrittenFile
from calve.model.scan import DeleteKind, ScanFile
from calve.model.spec import KeyIndexUse
from calve.model.table import TableState
from calve.reader.key_positions import KeyMemory, PositionFinder, RowFlags
from calve.reader.resources import THREADS

_TRIES = 3
"""Lookups by tasks, of which all but the last have found damaged runs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexLimits:
    """When an index is worth its cost, and how much the driver does itself."""

    rows: int = 3_000_000
    """From this many rows on, a lookup costs less than reading their keys, including writing the index."""
    bytes: int = 24 << 20
    """The same limit in bytes of key columns."""
    ahead_rows: int = 2_000_000
    """The most rows of new files that are indexed ahead of a lookup: about half a second."""
    taken_rows: int = 10_000_000
    """The most rows that the driver indexes at a time; Spark tasks index more."""
    merged_rows: int = 50_000_000
    """The most entries that the driver merges, in a thread; Spark tasks merge more."""
    keys: int = 5_000_000
    """The most keys of a batch that the driver looks up; Spark tasks look up more."""
    deletes: int = 50_000_000
    """The most rows of position delete files that the driver reads for a batch, eight bytes each; Spark tasks look up
    keys in tables with more. Rows that it remembers as deleted do not count."""

    def worthwhile(self, scan: KeyScan) -> bool:
        """Whether reading the keys of all candidates would cost more."""
        rows = sum(c.file.rows for c in scan.candidates)
        return rows >= self.rows or sum(c.key_bytes for c in scan.candidates) >= self.bytes

    def allow_reading(self, files: Collection[ScanFile], remembered: KeyMemory) -> bool:
        """Whether the driver reads the position deletes of files. Vectors are read one by one, and do not count."""
        rows = sum(d.rows for file in files for d in file.deletes if d.kind is DeleteKind.POSITION)
        return rows <= self.deletes or remembered.unread_deletes(files) <= self.deletes


BY_MEASUREMENT = IndexLimits()
MOST_AHEAD = 64
"""The most runs that wait for a lookup. Keys that no file can have are not looked up, and all may be like that."""


@dataclass(frozen=True)
class IndexAnswer:
    """The positions from the index, and what remains to be searched."""

    found: tuple[RowPositions, ...]
    rest: KeyScan
    reference: str
    """The index manifest that the snapshot must name; empty if the index was not used."""
    files: tuple[WrittenFile, ...] = ()
    """Delete files that tasks have written, of other positions."""
    keys: tuple[pa.ChunkedArray, ...] = ()
    """The key columns that `RowPositions.keys` refers to."""


class IndexedSearch:
    """Queries the index of one sink."""

    def __init__(self, index: KeyIndex, use: KeyIndexUse, limits: IndexLimits = BY_MEASUREMENT) -> None:
        self._index, self._use, self._limits = index, use, limits
        self._ahead: tuple[Run, ...] = ()
        """Runs of files that were indexed ahead of a lookup."""
        self._asked_before = False

    def ask(self, scan: KeyScan, state: TableState, asking: "IndexRequest") -> IndexAnswer:
        """Look up the keys of a scan. Raises TransientError, TerminalError."""
        nothing = IndexAnswer((), scan, "")
        if self._use is KeyIndexUse.OFF:
            return nothing
        if self._use is KeyIndexUse.AUTO and not self._limits.worthwhile(scan):
            return nothing
        files = [c.file for c in scan.candidates]
        few = sum(key.rows for key in scan.keys) <= self._limits.keys
        if not (few and self._limits.allow_reading(files, asking.remembered)):
            return self._look_up_by_tasks(scan, _base(scan, state), asking) or nothing
        finder = PositionFinder(scan.target, files, asking.remembered)
        try:
            columns = finder.key_columns_of(scan.candidates[0].file)
            asking.keys_read(columns)
            keys = sorted_keys(columns)
        except NotIndexable:
            return nothing
        answer = self._look_up(scan, _base(scan, state), keys, _Search(finder, asking))
        return replace(answer, keys=tuple(columns))

    def look_ahead(self, scan: KeyScan, state: TableState, new: Collection[str], asking: "IndexRequest") -> None:
        """Index files that were recently added to the table, if it has an index. Raises TransientError."""
        if self._use is KeyIndexUse.OFF:
            return
        base = _base(scan, state)
        before = self._index.opened(base)
        self._forget_replaced(base)
        if not before.runs or len(self._ahead) >= MOST_AHEAD:
            return
        known = before.covered.union(*(run.files for run in self._ahead))
        files = [c.file for c in scan.candidates if c.file.path in new and indexed(c.file) not in known]
        if files and sum(file.rows for file in files) <= self._limits.ahead_rows:
            self._ahead += self._index.take_in(_reader(scan, asking), files)

    def prepared(self, scan: KeyScan, files: Sequence[ScanFile]) -> tuple[Run, ...]:
        """Index files that are about to be added to the table, if it has an index. Any thread may call it.

        Raises TransientError.
        """
        if not self._asked_before or sum(file.rows for file in files) > self._limits.taken_rows:
            return ()
        return self._index.prepared(KeyReader(scan.target, scan.key_ids, KeyMemory(), 1), files)

    def adopt(self, runs: Sequence[Run]) -> None:
        """Use these runs, whose files were added to the table."""
        self._index.adopt(runs)
        self._ahead += tuple(runs)

    def close(self) -> None:
        """Give the memory back, and keep nothing any more."""
        self._ahead = ()
        self._index.close()

    def _look_up(self, scan: KeyScan, base: IndexBase, keys: Keys, search: "_Search") -> IndexAnswer:
        self._asked_before = True
        before = self._index.opened(base)
        found, lost = self._index.lookup(before.runs, keys)
        runs = [run for run in before.runs if run not in lost]
        runs_ahead = self._taken_ahead(base)
        new = [*runs_ahead, *self._index_missing(scan, [*runs, *runs_ahead], search.asking)]
        more, lost = self._index.lookup(new, keys)
        runs += [run for run in new if run not in lost]
        manifest = self._index.publish(base, runs, search.asking.commit_id)
        covered = manifest.covered
        by_file = {indexed(c.file): c.file for c in scan.candidates}
        live = tuple(search.live(by_file[file], at) for file, at in {**found, **more}.items() if file in by_file)
        self._keep_small(base, manifest, search, by_file.values())
        return IndexAnswer(live, _without(scan, covered), manifest.name)

    def _look_up_by_tasks(self, scan: KeyScan, base: IndexBase, asking: "IndexRequest") -> IndexAnswer | None:
        """Look up in Spark tasks, which also write deletes; None if the index cannot answer."""
        self._asked_before = True
        spark = asking.jobs.session()
        search = _Search(PositionFinder(scan.target, [c.file for c in scan.candidates], asking.remembered), asking)
        runs = [*self._index.opened(base).runs, *self._taken_ahead(base)]
        for number in range(_TRIES):
            runs += self._index_missing(scan, runs, asking)
            manifest = self._index.publish(base, runs, asking.commit_id)
            self._keep_small(base, manifest, search, [c.file for c in scan.candidates])
            name = f"{asking.name}/{number}"
            work = TaskLookup.of(scan, manifest.runs, self._index.store, name, spark.sparkContext.defaultParallelism)
            found = work.run(spark)  # last of all: nothing may fail after deletes were written
            if found.is_complete:
                return IndexAnswer(found.found, _without(scan, manifest.covered), manifest.name, found.files)
            if not found.is_indexable:
                return None
            _log.warning("%d runs of the key index are missing or damaged and will be rebuilt", len(found.lost))
            runs = [run for at, run in enumerate(manifest.runs) if at not in found.lost]
        return None

    def _forget_replaced(self, base: IndexBase) -> None:
        """Remove runs of files that have left the table before a lookup used them."""
        replaced = [run for run in self._ahead if not base.live.issuperset(run.files)]
        self._ahead = tuple(run for run in self._ahead if run not in replaced)
        self._index.remove(replaced)

    def _taken_ahead(self, base: IndexBase) -> list[Run]:
        """The runs that were made ahead, if their files are in the table; they are no longer ahead."""
        self._forget_replaced(base)
        ahead, self._ahead = self._ahead, ()
        return list(ahead)

    def _keep_small(
        self, base: IndexBase, manifest: IndexManifest, search: "_Search", files: Collection[ScanFile]
    ) -> None:
        """Merge runs and remove old parts, if there are any."""
        jobs, most, remembered = search.asking.jobs, self._limits.merged_rows, search.asking.remembered

        def deleted(paths: Collection[str]) -> dict[str, RowFlags]:
            merged = [file for file in files if file.path in paths]
            if not self._limits.allow_reading(merged, remembered):
                merged = [file for file in merged if not remembered.unread_deletes([file])]
            return search.deleted(merged)

        self._index.merge_if_due(base, manifest, deleted, lambda rows: jobs.session() if rows > most else None)
        self._index.tidy(base, manifest)

    def _index_missing(self, scan: KeyScan, runs: Sequence[Run], asking: "IndexRequest") -> tuple[Run, ...]:
        """Index the files that these runs lack."""
        covered = {file for run in runs for file in run.files}
        lacking = [c.file for c in scan.candidates if indexed(c.file) not in covered]
        reader = _reader(scan, asking)
        if sum(file.rows for file in lacking) <= self._limits.taken_rows:
            return self._index.take_in(reader, lacking)
        return self._index.take_in_by_tasks(reader, lacking, asking.jobs.session())


@dataclass(frozen=True)
class IndexRequest:
    """The commit that queries the index, and its resources."""

    commit_id: str
    remembered: KeyMemory
    jobs: SparkJobs
    name: str = ""
    """Unique: names of delete files are derived from it."""
    keys_read: Callable[[Sequence[pa.ChunkedArray]], None] = lambda _: None
    """Gets the key columns of the batch before they are looked up."""


@dataclass(frozen=True)
class _Search:
    """What one lookup needs from the table."""

    finder: PositionFinder
    asking: IndexRequest

    def live(self, file: ScanFile, found: FoundKeys) -> RowPositions:
        """The rows that are not deleted yet."""
        left = ~self.finder.deleted(file).at(found.positions)
        return RowPositions(file, found.positions[left], found.keys[left])

    def deleted(self, files: Collection[ScanFile]) -> dict[str, RowFlags]:
        """Flags of deleted rows of some files; copies, because another thread reads them."""
        return {file.path: self.finder.deleted(file).copy() for file in files}


def _without(scan: KeyScan, covered: Collection[IndexedFile]) -> KeyScan:
    """The scan of the files that the index lacks."""
    return replace(scan, candidates=tuple(c for c in scan.candidates if indexed(c.file) not in covered))


def _reader(scan: KeyScan, asking: IndexRequest) -> KeyReader:
    return KeyReader(scan.target, scan.key_ids, asking.remembered, THREADS)


def _base(scan: KeyScan, state: TableState) -> IndexBase:
    reference = next((s.own.key_index for s in state.ancestors if s.own), "")
    return IndexBase(
        owner=IndexOwner(state.uuid, scan.key_ids),
        reference=reference,
        snapshots=tuple(s.snapshot_id for s in state.ancestors),
        live=frozenset(IndexedFile(path, size, rows) for path, (size, rows) in scan.live.items()),
    )
