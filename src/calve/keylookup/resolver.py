"""Finds the rows with a batch's keys, in exactly the snapshot that a commit attempt builds on."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from calve.clock import IdSource, Timer, untimed
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.files.store import remove_new
from calve.iceberg.planning.key_scan import KeyScan
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.index.manifest import Run
from calve.keylookup.indexed import IndexAnswer, IndexedSearch, IndexRequest
from calve.keylookup.row_ids import AddedKeysAhead, IdReading, IdWriting, KeptIds, RowWriter, keep_ids
from calve.keylookup.search import (
    FORGETFUL,
    Search,
    SparkJobs,
    find_by_tasks,
    merge_deletes,
    read_keys_ahead,
    reading,
    replace_vectors,
    search_by_tasks,
    search_here,
    write_deletes,
)
from calve.model.files import FileTotals, Manifest, ResolvedDeletes, WriteResult, WrittenFile
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.model.table import TableState
from calve.reader.key_positions import KeyMemory, MemoryLimits, PositionFinder
from calve.reader.resources import UNBOUNDED, MemoryBudget


@dataclass(frozen=True)
class DriverLimits:
    """How much the driver searches itself: it is fastest for little work, but it is one process for all sinks."""

    rows: int = 30_000_000
    bytes: int = 256 << 20
    """Bytes of key columns."""
    keys: int = 5_000_000
    round_keys: int = 10_000_000
    """The most keys that a task holds in memory; every round searches the files again."""

    def allow(self, scan: KeyScan) -> bool:
        return not scan.candidates or (
            sum(c.file.rows for c in scan.candidates) <= self.rows
            and sum(c.key_bytes for c in scan.candidates) <= self.bytes
            and sum(key.rows for key in scan.keys) <= self.keys
        )


BY_MEASUREMENT = DriverLimits()
MEMORY = MemoryLimits(key_bytes=64 << 20, deleted_rows=400_000_000, positions=8_000_000)
"""What the driver remembers about the files of one table: one bit for each row that may be deleted, eight bytes for
each position in delete files that it wrote. All tables together get no more than the budget of the process."""


class PositionResolver:
    """Resolves keys of one sink. Only its committer thread calls it."""

    def __init__(  # noqa: PLR0913 - the parts that it works with
        self,
        table: IcebergTable,
        jobs: SparkJobs,
        ids: IdSource,
        index: IndexedSearch,
        rows: RowWriter,
        limits: DriverLimits = BY_MEASUREMENT,
        *,
        memory: MemoryBudget = UNBOUNDED,
        timed: Timer = untimed,
    ) -> None:
        self._table, self._jobs, self._ids, self._index, self._rows = table, jobs, ids, index, rows
        self._limits, self._timed = limits, timed
        self._remembered = KeyMemory(MEMORY, memory)
        self._last: KeyScan | None = None
        self._reaches_most = False
        """Whether the last lookup searched most files of the table: then the next one will search the new ones, too."""

    def resolve(
        self, state: TableState, keys: Sequence[Manifest], commit_id: str, added: Sequence[Manifest] = ()
    ) -> ResolvedDeletes:
        with self._timed("plan"):
            scan = self._table.plan_keys(state, keys, added)
        self._reaches_most = False
        if not scan.candidates:
            return ResolvedDeletes()
        self._retain(scan)
        self._last = scan
        name = f"{commit_id}/{self._ids.new_id()}"
        asking = IndexRequest(commit_id, self._remembered, self._jobs, f"{name}/index")
        if scan.place.vectors:
            with AddedKeysAhead(scan) as ahead:
                answer = self._ask(scan, state, replace(asking, keys_read=ahead.begin))
                found = self._find(answer.rest, answer.found, name)
                writing = IdWriting(self._table, self._rows, IdReading(self._remembered, answer.keys, ahead))
                proposed = propose_with_ids(state, scan, found, writing, name)
        else:
            answer = self._ask(scan, state, asking)
            written = self._search(answer, name)
            proposed = propose_deletes(self._table, scan, written, name, self._remembered)
        return replace(proposed, key_index=answer.reference)

    def _retain(self, scan: KeyScan) -> None:
        """Forget files that have left the table."""
        self._remembered.retain(scan.live.keys(), {d.path for c in scan.candidates for d in c.file.deletes})

    def _ask(self, scan: KeyScan, state: TableState, asking: IndexRequest) -> IndexAnswer:
        with self._timed("index"):
            return self._index.ask(scan, state, asking)

    def look_ahead(self) -> None:
        """Index files that were added to the table since the last lookup, or read their keys, before the next one.

        Raises TransientError, TerminalError.
        """
        if self._last is None:
            return
        state = self._table.load()
        scan = self._table.plan_all_keys(state, self._last.key_ids)
        self._retain(scan)
        new = frozenset(scan.live.keys() - self._last.live.keys())
        self._index.look_ahead(scan, state, new, IndexRequest("", self._remembered, self._jobs))
        finder = PositionFinder(scan.target, [c.file for c in scan.candidates], self._remembered)
        for candidate in scan.candidates:
            if candidate.file.path in self._last.live:
                finder.look_ahead(candidate.file)
        if self._reaches_most and self._limits.allow(scan):
            files = [c.file for c in scan.candidates if c.file.path in new]
            read_keys_ahead(files, scan.target, scan.key_ids, self._remembered)

    def prepared(self, files: Sequence[WrittenFile]) -> tuple[Run, ...]:
        """Index files that are about to be added to the table; `adopt` the runs once they are.

        Any thread may call it. Raises TransientError.
        """
        scan = self._last
        return () if scan is None else self._index.prepared(scan, [_scan_file(file) for file in files])

    def adopt(self, runs: Sequence[Run]) -> None:
        """Use prepared runs, whose files are now in the table."""
        self._index.adopt(runs)

    def close(self) -> None:
        """Give the memory back, and remember nothing any more: the run has ended, and others need it."""
        self._last = None
        self._index.close()
        self._remembered.close()

    def _search(self, answer: IndexAnswer, name: str) -> tuple[WrittenFile, ...]:
        """Write deletes of what the index found, and of what is found in the files that it lacks."""
        scan, written = answer.rest, list(answer.files)
        with _all_or_none(scan, written):
            if self._limits.allow(scan):
                found = [*answer.found, *self._search_here(scan)]
                written += write_deletes(scan.place, found, name, self._remembered)
                return tuple(written)
            spark = self._jobs.session()
            written += write_deletes(scan.place, answer.found, name, self._remembered)
            for search in self._searches(scan, name):
                written += search_by_tasks(search, spark)
        return tuple(written)

    def _find(self, scan: KeyScan, known: Sequence[RowPositions], name: str) -> list[RowPositions]:
        """The known positions and those found in the candidates; a file may occur several times."""
        if self._limits.allow(scan):
            return [*known, *self._search_here(scan)]
        spark = self._jobs.session()
        return [*known, *(one for search in self._searches(scan, name) for one in find_by_tasks(search, spark))]

    def _search_here(self, scan: KeyScan) -> list[RowPositions]:
        finder = PositionFinder(scan.target, [c.file for c in scan.candidates], self._remembered)
        files = files_matching_keys(scan, finder) if scan.candidates else ()
        self._reaches_most = 2 * len(files) > len(scan.live)
        return search_here(files, finder)

    def _searches(self, scan: KeyScan, name: str) -> Iterator[Search]:
        for number, keys in enumerate(rounds(scan.keys, self._limits.round_keys)):
            files = tuple(file for c in scan.candidates if (file := _with_keys(c.file, keys)) is not None)
            yield Search(files, scan.target, scan.place, f"{name}/{number}")


def _scan_file(file: WrittenFile) -> ScanFile:
    return ScanFile(
        file.path, file.size, file.record_count, 0, file.split_offsets, spec_id=file.spec_id, partition=file.partition
    )


def propose_deletes(
    table: IcebergTable,
    scan: KeyScan,
    files: tuple[WrittenFile, ...],
    name: str,
    remembered: KeyMemory = FORGETFUL,
) -> ResolvedDeletes:
    """Write the manifests of delete files, ready to commit, and merge older delete files. Raises TransientError.

    `name` begins with the id of the commit.
    """
    if not files:
        return ResolvedDeletes()
    written = list(files)
    with _all_or_none(scan, written):
        merged = merge_deletes(scan.many_deletes, scan.place, scan.live.keys(), name, remembered)
        written += merged.files
        manifests = table.write_manifests(written, name.partition("/")[0])
    return ResolvedDeletes(
        manifests=manifests,
        totals=FileTotals.of(WriteResult(files, 0)),
        merged=FileTotals.of(WriteResult(merged.files, 0)),
        replaced=merged.replaced,
    )


def propose_vectors(
    table: IcebergTable, scan: KeyScan, found: Sequence[RowPositions], name: str, remembered: KeyMemory = FORGETFUL
) -> ResolvedDeletes:
    """Write vectors of the found rows and their manifests, ready to commit. Raises TransientError.

    `name` begins with the id of the commit.
    """
    vectors = replace_vectors((c.file for c in scan.candidates), scan.target, scan.place, found, name, remembered)
    if not vectors.files:
        return ResolvedDeletes()
    with _all_or_none(scan, vectors.files):
        manifests = table.write_manifests(vectors.files, name.partition("/")[0])
    written = FileTotals.of(WriteResult(vectors.files, 0))
    return ResolvedDeletes(
        manifests=manifests,
        totals=replace(written, position_deletes=written.position_deletes - vectors.known),
        merged=FileTotals(position_deletes=vectors.known),
        replaced=vectors.replaced,
    )


def propose_with_ids(
    state: TableState, scan: KeyScan, found: Sequence[RowPositions], writing: IdWriting, name: str
) -> ResolvedDeletes:
    """As `propose_vectors`; also write rows of the batch again that keep the ids of rows that they replace.

    Found rows of files of the batch itself are deleted in the new files, so these are written first. Otherwise another
    thread writes the vectors meanwhile.
    """
    own = {one.file.path for one in scan.added}
    vectors = partial(propose_vectors, writing.table, scan, name=name, remembered=writing.reading.remembered)
    if any(one.file.path in own for one in found):
        kept = keep_ids(state, scan, found, writing, name)
        return _with_ids(kept, lambda: vectors(found=kept.moved(found) if kept else found), writing.table)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(vectors, found=found)
        try:
            kept = keep_ids(state, scan, found, writing, name)
        except BaseException:
            if running.exception() is None and (made := running.result().manifests):
                writing.table.discard_deletes(made, "their lookup failed")
            raise
        return _with_ids(kept, running.result, writing.table)


def _with_ids(kept: KeptIds | None, vectors: Callable[[], ResolvedDeletes], table: IcebergTable) -> ResolvedDeletes:
    """Vectors and files with ids; none of them if the vectors could not be written."""
    try:
        proposed = vectors()
    except BaseException:
        if kept is not None:
            table.discard_files(kept.rows.new, "their lookup failed")
        raise
    return proposed if kept is None else replace(proposed, totals=proposed.totals.plus(kept.totals), rows=kept.rows)


@contextmanager
def _all_or_none(scan: KeyScan, written: Sequence[WrittenFile]) -> Iterator[None]:
    """If the lookup fails, remove the delete files that it has written: nothing refers to them yet."""
    try:
        yield
    except BaseException:
        remove_new([file.path for file in written], scan.place.io_properties, "their lookup failed")
        raise


def files_matching_keys(scan: KeyScan, finder: PositionFinder) -> tuple[ScanFile, ...]:
    """The files that may hold keys, by the bounds of every key column and by partitions. Raises TransientError."""
    with reading("keys of the batch"):
        ((_, keys),) = finder.keys_of(scan.candidates[0].file)
    within = [
        candidate.file
        for candidate in scan.candidates
        if all(bounds is None or keys.reaches(at, bounds) for at, bounds in enumerate(candidate.bounds))
    ]
    return scan.partitions.files_with_keys(within, keys.values, len(keys))


def rounds(keys: Sequence[DeleteFile], most: int) -> Iterator[frozenset[DeleteFile]]:
    """Group key files so that each group fits into memory; a file that does not fit is a group alone."""
    group: list[DeleteFile] = []
    for key in keys:
        if group and sum(k.rows for k in group) + key.rows > most:
            yield frozenset(group)
            group = []
        group.append(key)
    if group:
        yield frozenset(group)


def _with_keys(file: ScanFile, keys: frozenset[DeleteFile]) -> ScanFile | None:
    """A file with only those key files that apply to it; None if none does."""
    deletes = tuple(d for d in file.deletes if d.kind is not DeleteKind.EQUALITY or d in keys)
    return replace(file, deletes=deletes) if any(d.kind is DeleteKind.EQUALITY for d in deletes) else None
