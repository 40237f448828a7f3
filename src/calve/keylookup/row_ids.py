"""The ids that the rows of a batch keep, in tables whose rows have ids (format version 3).

A row keeps the id of the row that it replaces: of the live row with its key in exactly the snapshot that the commit
builds on or, if there are several, the smallest of their ids. Every other row gets a new id, so an id is never on two
live rows: the commit deletes all rows whose ids it keeps. That does not depend on when the batch was written, on
batches before it, or on other writers.

The files of a batch are written before the snapshot is known. So those with rows that keep an id are written again, in
the attempt, with the column `_row_id` and the encoded pages that they have; the others are committed as they are. The
sequence number of the last change is never written: rows inherit that of their snapshot.

The driver computes the ids. It holds one number for each row of the batch, and at most `ROUND_ROWS` keys at a time.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.planning.key_scan import AddedFile, KeyScan
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.search import reading
from calve.model.files import FileTotals, RowsWithIds, WrittenFile
from calve.model.table import TableState
from calve.reader.deletes import TaskDeletes
from calve.reader.key_positions import KeyMemory, ids_at, key_columns_at, keys_and_ids_at
from calve.reader.key_sets import KeyRows, KeySet
from calve.reader.resources import THREADS
from calve.reader.rows import live_rows

ROUND_ROWS = 5_000_000
"""The most replaced rows whose keys are in memory; every round reads the keys of the batch again."""

_NEW = np.iinfo(np.int64).max
"""Stands for a new id."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class FileIds:
    """A data file of a batch, and the id of each of its rows; null for a new one. Pickled to tasks."""

    file: WrittenFile
    ids: pa.Array


class RowWriter(Protocol):
    """Writes files again, with ids."""

    def write(self, state: TableState, files: Sequence[FileIds], name: str) -> tuple[WrittenFile, ...]:
        """Write every file again, with the same rows at the same positions, or none. Raises TransientError.

        `name` is unique.
        """
        ...


@dataclass(frozen=True)
class KeptIds:
    """The files of a batch with the ids that their rows keep."""

    rows: RowsWithIds
    files: dict[str, WrittenFile]
    """The new files by the location of the file that they replace."""
    totals: FileTotals
    """What they add to the totals of the batch: they are larger than the files that they replace."""

    def moved(self, found: Sequence[RowPositions]) -> list[RowPositions]:
        """The same rows, at the same positions of the new files."""
        return [
            replace(one, file=replace(one.file, path=self.files[one.file.path].path))
            if one.file.path in self.files
            else one
            for one in found
        ]


@dataclass(frozen=True)
class AddedKeys:
    """Where the keys of new rows are among the keys of their batch."""

    count: int
    """The number of keys."""
    rows: dict[str, Numbers]
    """By data file: the row of each row's key, or -1."""


class AddedKeysAhead:
    """Computes `AddedKeys` in another thread, while the keys are looked up."""

    def __init__(self, scan: KeyScan) -> None:
        self._scan = scan
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[AddedKeys | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def begin(self, keys: Sequence[pa.ChunkedArray]) -> None:
        """Begin, with the key columns of the batch."""
        self._running = self._pool.submit(self._compute, keys)

    def result(self) -> AddedKeys | None:
        """None for keys that are not numbers, or without `begin`. Raises TransientError."""
        return None if self._running is None else self._running.result()

    def _compute(self, keys: Sequence[pa.ChunkedArray]) -> AddedKeys | None:
        places = KeyRows.of(keys)
        if places is None:
            return None
        return AddedKeys(
            len(places),
            {one.file.path: places.rows_of(_key_columns(self._scan, one)[0]) for one in self._scan.added},
        )


@dataclass(frozen=True)
class IdReading:
    """How to get the keys and ids of rows."""

    remembered: KeyMemory
    keys: tuple[pa.ChunkedArray, ...] = ()
    """The key columns of the batch, if the key index found some of the rows: then their own need not be read."""
    added: AddedKeysAhead | None = None


@dataclass(frozen=True)
class IdWriting:
    """What writing files with ids needs besides the lookup itself."""

    table: IcebergTable
    writer: RowWriter
    reading: IdReading


def keep_ids(
    state: TableState, scan: KeyScan, found: Sequence[RowPositions], writing: IdWriting, name: str
) -> KeptIds | None:
    """Write the rows of a batch again that replace `found`; None if no row keeps an id.

    `name` is unique and begins with the id of the commit. Raises TransientError.
    """
    works = list(kept_ids(scan, found, writing.reading))
    if not works:
        return None
    written = writing.writer.write(state, works, f"{name}/ids")
    files = {work.file.path: file for work, file in zip(works, written, strict=True)}
    commit_id, others = name.partition("/")[0], [a.written for a in scan.added if a.file.path not in files]
    made = [file.path for file in written]
    try:
        manifests = writing.table.write_manifests(written, commit_id)
        made += [manifest.path for manifest in manifests]
        if others:
            kept = writing.table.write_manifests(others, commit_id)
            made += [manifest.path for manifest in kept]
            manifests += kept
    except BaseException:
        writing.table.discard_files(made, "their lookup failed")
        raise
    for work, file in zip(works, written, strict=True):
        writing.reading.remembered.wrote_ids(file.path, work.ids.fill_null(-1).to_numpy())
    growth = sum(file.size - work.file.size for work, file in zip(works, written, strict=True))
    rows = RowsWithIds(manifests, tuple(made), (*files, *scan.added_manifests))
    return KeptIds(rows, files, FileTotals(data_bytes=growth))


def kept_ids(
    scan: KeyScan, found: Sequence[RowPositions], how: IdReading, round_rows: int = ROUND_ROWS
) -> Iterator[FileIds]:
    """The files of a batch with rows that replace some of the found rows. Raises TransientError."""
    replaced = [one for one in _live(scan, found) if one.file.first_row_id is not None and len(one.positions)]
    added = {one.file.path: one for one in scan.added} if replaced else {}
    ids: dict[str, Numbers] = {}
    for part in _ids_by_key(scan, replaced, how, round_rows):
        for path, one in added.items():
            if part.may_hold(one):
                of_rows = part.ids_of(one)
                ids[path] = np.minimum(ids[path], of_rows) if path in ids else of_rows
    for path, of_rows in ids.items():
        new = of_rows == _NEW
        if not new.all():
            yield FileIds(added[path].written, pa.array(of_rows, pa.int64(), mask=new))


def _key_columns(scan: KeyScan, added: AddedFile) -> list[pa.ChunkedArray]:
    """The key columns of a file of the batch. Raises TransientError."""
    return key_columns_at(scan.target, RowPositions(added.file, np.arange(added.file.rows)), scan.key_ids)


def _live(scan: KeyScan, found: Sequence[RowPositions]) -> Iterator[RowPositions]:
    """The found rows of the snapshot without those that its equality deletes delete."""
    added = {one.file.path for one in scan.added}
    for one in found:
        erasing = scan.erasing.get(one.file.path)
        if one.file.path in added:
            continue
        if erasing is None:
            yield one
            continue
        file = replace(one.file, deletes=erasing)
        with reading("equality deletes of the table"):
            left = live_rows(file, scan.target, TaskDeletes(scan.target, [file])).positions
        yield one.taken(np.flatnonzero(np.isin(one.positions, left)))


def _rounds(found: Sequence[RowPositions], most: int) -> Iterator[list[RowPositions]]:
    """Groups of at most `most` rows."""
    group: list[RowPositions] = []
    room = most
    for one in found:
        start = 0
        while start < len(one.positions):
            piece = one.taken(slice(start, start + room))
            group.append(piece)
            start, room = start + len(piece.positions), room - len(piece.positions)
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


class _IdsByKey(Protocol):
    """The smallest ids of some rows by their keys."""

    def may_hold(self, added: AddedFile) -> bool:
        """Whether a file may have rows with these keys."""
        ...

    def ids_of(self, added: AddedFile) -> Numbers:
        """The id of each row of a file, `_NEW` for those without one. Raises TransientError."""
        ...


def _ids_by_key(
    scan: KeyScan, replaced: Sequence[RowPositions], how: IdReading, round_rows: int
) -> Iterator[_IdsByKey]:
    """All replaced rows, in parts. The keys of those that the key index found are rows of the batch's own keys."""
    added = how.added.result() if how.added is not None else None
    if added is not None:
        known = [(one, one.keys) for one in replaced if one.keys is not None]
        replaced = [one for one in replaced if one.keys is None]
        if known:
            yield _IdsOfBatch(scan, known, how.remembered, added)
    for part in _rounds(replaced, round_rows):
        yield _IdsOfRows(scan, part, how)


class _IdsOfBatch:
    """Ids by the keys of the batch."""

    def __init__(
        self, scan: KeyScan, found: Sequence[tuple[RowPositions, Numbers]], remembered: KeyMemory, added: AddedKeys
    ) -> None:
        self._added = added
        self._smallest = np.full(added.count + 1, _NEW, np.int64)
        """By row of the keys; the last one stands for unknown keys."""
        unknown = sum(not remembered.knows_ids(one.file.path) for one, _ in found)
        with ThreadPoolExecutor(THREADS) if unknown > 1 else nullcontext() as pool:
            ids = (pool.map if pool else map)(lambda one: ids_at(scan.target, one[0], scan.key_ids, remembered), found)
            for (_, keys), of_rows in zip(found, ids, strict=True):
                self._smallest[keys] = np.minimum(self._smallest[keys], of_rows)
                if np.any(self._smallest[keys] > of_rows):  # a file with several live rows of one key
                    np.minimum.at(self._smallest, keys, of_rows)

    def may_hold(self, _added: AddedFile) -> bool:
        """Every file of a batch has some of its keys."""
        return True

    def ids_of(self, added: AddedFile) -> Numbers:
        found: Numbers = self._smallest[self._added.rows[added.file.path]]
        return found


class _IdsOfRows:
    """Ids by the keys of the replaced rows themselves."""

    def __init__(self, scan: KeyScan, found: Sequence[RowPositions], how: IdReading) -> None:
        self._scan = scan

        def read(one: RowPositions) -> tuple[list[pa.ChunkedArray], Numbers]:
            if one.keys is None:
                return keys_and_ids_at(scan.target, one, scan.key_ids, how.remembered)
            keys = [column.take(pa.array(one.keys)) for column in how.keys]
            return keys, ids_at(scan.target, one, scan.key_ids, how.remembered)

        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(read, found))
        width = len(scan.key_ids)
        columns = [pa.chunked_array([chunk for part, _ in parts for chunk in part[at].chunks]) for at in range(width)]
        self._keys = KeySet(columns, _NEW - 1 - np.concatenate([of_rows for _, of_rows in parts]))
        """Their sequence numbers are larger for smaller ids."""

    def may_hold(self, added: AddedFile) -> bool:
        return all(bounds is None or self._keys.reaches(at, bounds) for at, bounds in enumerate(added.bounds))

    def ids_of(self, added: AddedFile) -> Numbers:
        return _NEW - 1 - self._keys.newest(self._keys.numbers(_key_columns(self._scan, added)))
