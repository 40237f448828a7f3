"""Finds the positions of live rows that have one of a set of keys.

The keys are those of a scan file's equality deletes, whether these are in the table or only about to be added. Only the
key columns are read, and only of row groups whose statistics the keys may meet. Rows that position deletes and vectors
already delete are skipped.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap64

from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.files.store import open_input
from calve.iceberg.files.vectors import NOTHING, DeletedRows, Positions, decode_bitmap, positions_of
from calve.iceberg.schema.readable import ROW_ID, ReadTarget
from calve.model.scan import ContentId, DeleteFile, DeleteKind, FileSplit, ScanFile
from calve.reader.deletes import TaskDeletes
from calve.reader.key_sets import KeySet, distinct
from calve.reader.projection import Projection
from calve.reader.resources import UNBOUNDED, MemoryBudget
from calve.reader.row_groups import GroupBounds
from calve.reader.rows import group_offset
from calve.spark.failures import own_file_failure

_Keys = tuple[tuple[tuple[int, ...], KeySet], ...]
_Columns = dict[int, pa.ChunkedArray]
_POSITION_BYTES = 8
_VALUE_BYTES = 16
"""Of a value of a key column, roughly."""
_FEW = 100
"""From one row in this many on, flags are set for a file as a whole."""


class RowFlags:
    """One flag for each row of a file, as a bit."""

    def __init__(self, rows: int, bits: NDArray[np.uint8] | None = None) -> None:
        self.rows = rows
        self.bits = np.zeros(-(-rows // 8), np.uint8) if bits is None else bits

    def set(self, positions: Positions) -> None:
        """Set the flags of some rows; positions behind the last row are ignored."""
        inside = positions[positions < self.rows]
        if len(inside) * _FEW < self.rows:
            np.bitwise_or.at(self.bits, inside >> 3, (1 << (inside & 7)).astype(np.uint8))
            return
        flags = np.zeros(self.rows, bool)
        flags[inside] = True
        self.bits |= np.packbits(flags, bitorder="little")

    def at(self, positions: Positions) -> NDArray[np.bool_]:
        """The flags of some rows."""
        return flags_at(self.bits, positions)

    def copy(self) -> "RowFlags":
        """The same flags, which do not change with these."""
        return RowFlags(self.rows, self.bits.copy())


def flags_at(bits: NDArray[np.uint8], positions: Positions) -> NDArray[np.bool_]:
    """The flags at some positions, eight in a byte."""
    found: NDArray[np.bool_] = (bits[positions >> 3] >> (positions & 7).astype(np.uint8)) & 1 == 1
    return found


@dataclass
class _Gone:
    """The deleted rows of one file, by the deletes that were applied so far."""

    rows: RowFlags
    applied: set[ContentId] = field(default_factory=set)
    """The applied deletes, which never change."""


@dataclass(frozen=True)
class _Group:
    """A row group: its offset in the file, its first row, its row count, and the bounds of its key columns."""

    offset: int
    first: int
    rows: int
    bounds: dict[int, tuple[Any, Any] | None]


@dataclass(frozen=True)
class _OwnVector:
    """A vector that this process wrote."""

    deleted: DeletedRows
    room: int
    """How many positions take as much memory."""


@dataclass
class _Known:
    """What is remembered about one file."""

    groups: tuple[_Group, ...] = ()
    columns: dict[tuple[int, tuple[int, ...]], _Columns] = field(default_factory=dict)
    """By row group and key."""
    gone: _Gone | None = None
    states_ids: bool | None = None
    """Whether the file has a column with the ids of its rows; None if that was not asked."""
    ids: Positions | None = None
    """The ids in that column, below 0 for rows without; None if it is not remembered as a whole."""

    @property
    def key_bytes(self) -> int:
        return sum(map(_size, self.columns.values())) + (0 if self.ids is None else self.ids.nbytes)


@dataclass(frozen=True)
class MemoryLimits:
    """How much `KeyMemory` may hold."""

    key_bytes: int = 0
    deleted_rows: int = 0
    positions: int = 0
    """Positions in delete files that this process wrote; vectors count by their size."""


NOTHING_KEPT = MemoryLimits()


class KeyMemory:
    """Caches what searches learn about data files, which never change. Several threads may use it.

    Key columns of the first files that fit are kept, and dropped only with their files: for a table larger than memory
    a constant part is better than whatever was read last. Position delete files and vectors never change either: those
    that this process wrote are not read back.
    """

    def __init__(self, limits: MemoryLimits = NOTHING_KEPT, memory: MemoryBudget = UNBOUNDED) -> None:
        self._limits = limits
        self._room = memory.share(self)
        self._known: dict[str, _Known] = {}
        self._written: dict[str, dict[str, Positions]] = {}
        """Positions by delete file and data file."""
        self._vectors: dict[str, _OwnVector] = {}
        """By file."""
        self._key_bytes = self._deleted_rows = self._positions = 0
        self._lock = Lock()

    def retain(self, paths: Collection[str], deletes: Collection[str]) -> None:
        """Forget all other data files and delete files."""
        with self._lock:
            for path in self._written.keys() - set(deletes):
                self._forget_positions(sum(map(len, self._written.pop(path).values())))
            for path in self._vectors.keys() - set(deletes):
                self._forget_positions(self._vectors.pop(path).room)
            for path in self._known.keys() - set(paths):
                known = self._known.pop(path)
                size = known.key_bytes
                self._key_bytes -= size
                self._room.give(size)
                self._forget_deleted(known.gone)

    def close(self) -> None:
        """Forget everything, and remember nothing any more."""
        with self._lock:
            self._room.close()
            self._limits = NOTHING_KEPT
            self._known, self._written, self._vectors = {}, {}, {}
            self._key_bytes = self._deleted_rows = self._positions = 0

    def of(self, path: str) -> _Known:
        """What is known of a file."""
        with self._lock:
            return _Known() if self._room.closed else self._known.setdefault(path, _Known())

    def wrote(self, path: str, contents: Sequence[RowPositions]) -> None:
        """Remember a position delete file that was just written, if there is room."""
        rows = sum(len(one.positions) for one in contents)
        found: dict[str, list[Positions]] = {}
        for one in contents:
            found.setdefault(one.file.path, []).append(one.positions)
        with self._lock:
            if self._positions + rows <= self._limits.positions and self._room.take(rows * _POSITION_BYTES):
                self._written[path] = {file: np.concatenate(parts) for file, parts in found.items()}
                self._positions += rows

    def written_in(self, path: str) -> Mapping[str, Positions] | None:
        """The positions in a delete file by data file, if they are remembered."""
        with self._lock:
            return self._written.get(path)

    def wrote_vector(self, path: str, deleted: DeletedRows, size: int) -> None:
        """Remember a deletion vector that was just written, of so many bytes, if there is room."""
        with self._lock:
            room = -(-size // _POSITION_BYTES) + len(deleted.added)
            if self._positions + room <= self._limits.positions and self._room.take(room * _POSITION_BYTES):
                self._vectors[path] = _OwnVector(deleted, room)
                self._positions += room

    def rows_in(self, vector: DeleteFile, deletes: TaskDeletes) -> BitMap64:
        """The rows that a vector deletes, remembered or read; not to be changed. Raises OSError, TerminalError."""
        own = self._own_vector(vector)
        return decode_bitmap(deletes.vector_in(vector)) if own is None else own.rows

    def _own_vector(self, vector: DeleteFile) -> DeletedRows | None:
        with self._lock:
            own = self._vectors.get(vector.path)
        return None if own is None else own.deleted

    def wrote_ids(self, path: str, ids: Positions) -> None:
        """Remember the ids in a data file that was just written, below 0 for rows without, if there is room."""
        known = self.of(path)
        known.states_ids = True
        with self._lock:
            fits = known.ids is None and self._key_bytes + ids.nbytes <= self._limits.key_bytes
            if fits and self._room.take(ids.nbytes):
                known.ids = ids
                self._key_bytes += ids.nbytes

    def knows_ids(self, path: str) -> bool:
        """Whether the ids of rows of a file are known without opening it."""
        known = self.of(path)
        return known.ids is not None or known.states_ids is False

    def has_room(self, values: int) -> bool:
        """Whether this many more values of key columns can be remembered, if they are not long."""
        with self._lock:
            return self._key_bytes + values * _VALUE_BYTES <= self._limits.key_bytes

    def keep_columns(self, known: _Known, name: tuple[int, tuple[int, ...]], columns: _Columns) -> None:
        """Remember the key columns of a row group if there is room."""
        size = _size(columns)
        with self._lock:
            fits = name not in known.columns and self._key_bytes + size <= self._limits.key_bytes
            if fits and self._room.take(size):
                known.columns[name] = columns
                self._key_bytes += size

    def deleted(self, file: ScanFile, deletes: TaskDeletes) -> RowFlags:
        """One flag for each row of a file: whether it is deleted by position. Raises OSError, TerminalError."""
        wanted = {d.id: d for d in file.deletes if d.kind is not DeleteKind.EQUALITY}
        known = self.of(file.path)
        with self._lock:
            gone, known.gone = known.gone, None  # taken out, so that no other thread changes it
            self._forget_deleted(gone)
        if gone is not None:
            for name, delete in wanted.items():
                own = self._own_vector(delete) if name not in gone.applied else None
                if own is not None and own.before == gone.applied:
                    gone.rows.set(own.added)
                    gone.applied = {name}
        if gone is None or not gone.applied <= wanted.keys():
            gone = _Gone(RowFlags(file.rows))
        for name, delete in wanted.items():
            if name not in gone.applied:
                gone.rows.set(self._positions_in(delete, file.path, deletes))
                gone.applied.add(name)
        self._keep_deleted(known, gone)
        return gone.rows

    def unread_deletes(self, files: Iterable[ScanFile]) -> int:
        """The rows of all position delete files that `deleted` would have to read for some files."""
        unread: dict[str, int] = {}
        with self._lock:
            for file in files:
                known = self._known.get(file.path)
                applied = known.gone.applied if known is not None and known.gone is not None else set[ContentId]()
                if not applied <= {d.id for d in file.deletes}:
                    applied = set()
                for delete in file.deletes:
                    is_known = delete.id in applied or delete.path in self._written
                    if delete.kind is DeleteKind.POSITION and not is_known:
                        unread[delete.path] = delete.rows
        return sum(unread.values())

    def _positions_in(self, delete: DeleteFile, path: str, deletes: TaskDeletes) -> Positions:
        if delete.kind is DeleteKind.VECTOR:
            return positions_of(self.rows_in(delete, deletes))
        own = self.written_in(delete.path)
        return deletes.positions_in(delete, path) if own is None else own.get(path, NOTHING)

    def _keep_deleted(self, known: _Known, gone: _Gone) -> None:
        with self._lock:
            fits = known.gone is None and self._deleted_rows + gone.rows.rows <= self._limits.deleted_rows
            if fits and self._room.take(gone.rows.bits.nbytes):
                known.gone = gone
                self._deleted_rows += gone.rows.rows

    def _forget_deleted(self, gone: _Gone | None) -> None:
        if gone is not None:
            self._deleted_rows -= gone.rows.rows
            self._room.give(gone.rows.bits.nbytes)

    def _forget_positions(self, count: int) -> None:
        self._positions -= count
        self._room.give(count * _POSITION_BYTES)


def _size(columns: _Columns) -> int:
    return sum(column.nbytes for column in columns.values())


class PositionFinder:
    """Searches the files of one task. Several threads may use it after `prepare`."""

    def __init__(self, target: ReadTarget, files: Sequence[ScanFile], remembered: KeyMemory) -> None:
        self._target = target
        self._deletes = TaskDeletes(target, files)
        self._remembered = remembered

    def keys_of(self, file: ScanFile) -> _Keys:
        """The keys to look for in a file; loaded on first use. Raises OSError."""
        return self._deletes.keys_of(file)

    def prepare(self, files: Iterable[ScanFile]) -> None:
        """Load everything that the files share. Raises OSError."""
        for file in files:
            self.keys_of(file)

    def key_columns_of(self, file: ScanFile, *more: int) -> list[pa.ChunkedArray]:
        """The key columns to look for, if they are the same for all files, and other fields of the key files.

        Raises TransientError.
        """
        with _searching(file):
            return self._deletes.key_columns_of(file, *more)

    def deleted(self, file: ScanFile) -> RowFlags:
        """One flag for each row of a file: whether it is deleted by position. Raises TransientError, TerminalError."""
        with _searching(file):
            return self._remembered.deleted(file, self._deletes)

    def look_ahead(self, file: ScanFile) -> None:
        """Update the remembered deletes of a file, if there are any. Raises TransientError, TerminalError."""
        if self._remembered.of(file.path).gone is not None:
            self.deleted(file)

    def find(self, splits: Iterable[FileSplit]) -> list[RowPositions]:
        """Live rows with the keys in splits, those of one split together. Raises TransientError, TerminalError."""
        found: list[tuple[FileSplit, list[Positions]]] = []
        comparisons: dict[int, _Comparison] = {}
        for split in splits:
            found.append((split, []))
            with _searching(split.file):
                self._compare(split, found[-1][1], comparisons)
        for comparison in comparisons.values():
            comparison.finish()
        return [RowPositions(split.file, self._live(split.file, parts)) for split, parts in found if parts]

    def _compare(self, split: FileSplit, found: list[Positions], comparisons: dict[int, "_Comparison"]) -> None:
        """Compare the rows of a split, or leave them to be compared with those of the next ones."""
        keys = self.keys_of(split.file)
        with ExitStack() as stack:
            groups = _FileGroups(self._target, split.file, [ids for ids, _ in keys], self._remembered, stack)
            for number, group in enumerate(groups.all()):
                if not split.start <= group.offset < split.end:
                    continue
                for ids, wanted in keys:
                    bounds = [group.bounds.get(field_id) for field_id in ids]
                    if all(ends is None or wanted.reaches(at, ends) for at, ends in enumerate(bounds)):
                        columns = groups.columns(number, ids)
                        comparison = comparisons.setdefault(id(wanted), _Comparison(wanted))
                        rows = _ComparedRows(
                            [columns[field_id] for field_id in ids], group, split.file.sequence_number, found
                        )
                        comparison.add(rows)

    def _live(self, file: ScanFile, parts: Sequence[Positions]) -> Positions:
        matching = parts[0] if len(parts) == 1 else distinct(np.concatenate(parts))
        with _searching(file):
            return matching[~self._remembered.deleted(file, self._deletes).at(matching)]


_COMPARED_ROWS = 100_000
"""From this many rows on, keys are compared: of many small files together, since each comparison has a price."""


@dataclass(frozen=True)
class _ComparedRows:
    """The key columns of a row group."""

    columns: Sequence[pa.ChunkedArray]
    group: _Group
    sequence_number: int
    found: list[Positions]
    """Gets the positions of rows with a key."""


class _Comparison:
    """Compares row groups of several files with the same keys."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys
        self._waiting: list[_ComparedRows] = []
        self._rows = 0

    def add(self, rows: _ComparedRows) -> None:
        """Compare the rows, at once or later."""
        self._waiting.append(rows)
        self._rows += rows.group.rows
        if self._rows >= _COMPARED_ROWS:
            self.finish()

    def finish(self) -> None:
        """Compare all rows that wait."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not waiting:
            return
        sizes = [one.group.rows for one in waiting]
        columns = [
            pa.chunked_array([chunk for one in waiting for chunk in one.columns[at].chunks], first.type)
            for at, first in enumerate(waiting[0].columns)
        ]
        written = np.repeat([one.sequence_number for one in waiting], sizes)
        matching = np.flatnonzero(self._keys.deleted(columns, written))
        ends = np.cumsum(sizes)
        cuts = np.searchsorted(matching, ends).tolist()
        begin = 0
        for one, first, end in zip(waiting, (ends - sizes).tolist(), cuts, strict=True):
            if begin < end:
                one.found.append(matching[begin:end] - (first - one.group.first))
            begin = end


@contextmanager
def _searching(file: ScanFile) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise own_file_failure(
            error, "a file of the table, or one of its deletes, could not be searched for keys", file.path
        ) from error


def key_columns(
    target: ReadTarget, file: ScanFile, ids: tuple[int, ...], remembered: KeyMemory
) -> Iterator[tuple[int, _Columns]]:
    """The columns of a key in each row group of a file, with the position of its first row. Raises OSError."""
    with ExitStack() as stack:
        groups = _FileGroups(target, file, [ids], remembered, stack)
        for number, group in enumerate(groups.all()):
            yield group.first, groups.columns(number, ids)


def key_columns_at(target: ReadTarget, found: RowPositions, ids: tuple[int, ...]) -> list[pa.ChunkedArray]:
    """The key columns at positions of a file, which are ascending. Raises TransientError."""
    with _searching(found.file), ExitStack() as stack:
        groups = _FileGroups(target, found.file, [ids], KeyMemory(), stack)
        parts = [_taken(groups, number, ids, places) for number, places in _by_group(groups, found.positions)]
    return [pa.chunked_array([chunk for part in parts for chunk in part[at].chunks]) for at in range(len(ids))]


def ids_at(target: ReadTarget, found: RowPositions, key: tuple[int, ...], remembered: KeyMemory) -> Positions:
    """The ids of rows at positions of a file, which are ascending, in a table with row ids. Raises TransientError."""
    with _searching(found.file), ExitStack() as stack:
        return _ids(_FileGroups(target, found.file, [key], remembered, stack), found)


def keys_and_ids_at(
    target: ReadTarget, found: RowPositions, key: tuple[int, ...], remembered: KeyMemory
) -> tuple[list[pa.ChunkedArray], Positions]:
    """As `ids_at`, with the key columns; there is at least one row. Raises TransientError."""
    with _searching(found.file), ExitStack() as stack:
        groups = _FileGroups(target, found.file, [key], remembered, stack)
        parts = [_taken(groups, number, key, places) for number, places in _by_group(groups, found.positions)]
        columns = [pa.chunked_array([chunk for part in parts for chunk in part[at].chunks]) for at in range(len(key))]
        return columns, _ids(groups, found)


def _ids(groups: "_FileGroups", found: RowPositions) -> Positions:
    """The ids of rows: as their file states them, else by their position."""
    ids = found.positions + (found.file.first_row_id or 0)
    if not groups.states_ids:
        return ids
    if groups.ids is not None:
        stated_ids = groups.ids[found.positions]
        return np.where(stated_ids < 0, ids, stated_ids)
    done = 0
    for number, places in _by_group(groups, found.positions):
        (stated,) = _taken(groups, number, (ROW_ID.field_id,), places)
        ids[done + np.flatnonzero(stated.is_valid().to_numpy())] = stated.drop_null().to_numpy()
        done += len(places)
    return ids


def _by_group(groups: "_FileGroups", positions: Positions) -> Iterator[tuple[int, pa.Array]]:
    """The row groups that have some of the positions, and these positions, relative to the row group."""
    for number, group in enumerate(groups.all()):
        start, end = np.searchsorted(positions, [group.first, group.first + group.rows])
        if start < end:
            yield number, pa.array(positions[start:end] - group.first)


def _taken(groups: "_FileGroups", number: int, ids: tuple[int, ...], places: pa.Array) -> list[pa.ChunkedArray]:
    columns = groups.columns(number, ids)
    return [columns[field_id].take(places) for field_id in ids]


class _FileGroups:
    """Row groups of one file and their key columns; opens the file only if something is not remembered."""

    def __init__(
        self,
        target: ReadTarget,
        file: ScanFile,
        keys: Sequence[tuple[int, ...]],
        remembered: KeyMemory,
        stack: ExitStack,
    ) -> None:
        self._target, self._file, self._keys, self._remembered, self._stack = target, file, keys, remembered, stack
        self._known = remembered.of(file.path)

    @cached_property
    def _parquet(self) -> pq.ParquetFile:
        source = self._stack.enter_context(open_input(self._file.path, self._target.io_properties))
        return self._stack.enter_context(pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us"))

    @cached_property
    def _projection(self) -> Projection:
        return Projection(self._parquet.schema_arrow, self._target, dict(self._file.constants))

    def all(self) -> tuple[_Group, ...]:
        """The row groups in order. Raises OSError."""
        if not self._known.groups:
            self._known.groups = tuple(self._groups())
        return self._known.groups

    def _groups(self) -> Iterator[_Group]:
        plain = [n for n in dict.fromkeys(chain.from_iterable(self._keys)) if self._target.keys[n].path == (n,)]
        bounds = GroupBounds(self._parquet, [self._projection.source(number) for number in plain])
        first = 0
        for number in range(self._parquet.metadata.num_row_groups):
            group = self._parquet.metadata.row_group(number)
            found = dict(zip(plain, bounds.of(number), strict=True))
            yield _Group(group_offset(group), first, group.num_rows, found)
            first += group.num_rows

    @property
    def states_ids(self) -> bool:
        """Whether the file has a column with the ids of its rows. Raises OSError."""
        if self._known.states_ids is None:
            self._known.states_ids = bool(self._projection.source(ROW_ID.field_id))
        return self._known.states_ids

    @property
    def ids(self) -> Positions | None:
        """The ids in that column, below 0 for rows without, if they are remembered."""
        return self._known.ids

    def columns(self, number: int, ids: tuple[int, ...]) -> _Columns:
        """The key columns of a row group. Raises OSError."""
        known = self._known.columns.get((number, ids))
        if known is not None and all(known[n].type == self._target.keys[n].kind for n in ids):
            return known
        names = self._projection.needed(dict.fromkeys(self._target.keys[n].path[0] for n in ids))
        if names:
            table = self._parquet.read_row_group(number, columns=names)
        else:
            table = pa.table({"rows": pa.nulls(self.all()[number].rows)})  # the file has none of the columns
        columns = {n: self._projection.key(table, n) for n in ids}
        self._remembered.keep_columns(self._known, (number, ids), columns)
        return columns
