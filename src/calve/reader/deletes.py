"""The deletes of one task: loaded on first use, each file once, keys without duplicates."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.iceberg.files.store import open_input
from calve.iceberg.files.vectors import NOTHING, Positions, decode_vector
from calve.iceberg.schema.readable import ReadTarget
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.reader.key_sets import KeySet, distinct
from calve.reader.projection import Projection

_PATH, _POSITION = "file_path", "pos"
_LOADS = 8
"""Files loaded in parallel; matters for object stores only."""
_Group = tuple[tuple[int, ...], tuple[Any, ...] | None]
"""Equality deletes that are tested together: the same fields and the same scope."""


@dataclass(frozen=True)
class FileDeletes:
    """The deletes of one file."""

    positions: Positions
    """Ascending."""
    keys: tuple[tuple[tuple[int, ...], KeySet], ...]
    """Sets of keys with the ids of their fields."""
    sequence_number: int

    @property
    def key_ids(self) -> list[int]:
        """The compared fields, without duplicates."""
        return list(dict.fromkeys(number for ids, _ in self.keys for number in ids))

    def of(self, first: int, rows: int, read_keys: Callable[[], tuple[Projection, pa.Table]]) -> NDArray[np.bool_]:
        """Which of the `rows` rows from position `first` on are deleted. `read_keys` reads the compared columns."""
        deleted = np.zeros(rows, bool)
        low, high = np.searchsorted(self.positions, [first, first + rows])
        deleted[self.positions[low:high] - first] = True
        if self.keys and not deleted.all():
            projection, table = read_keys()
            columns = {number: projection.key(table, number) for number in self.key_ids}
            for ids, keys in self.keys:
                deleted |= keys.deleted([columns[number] for number in ids], self.sequence_number)
        return deleted


class TaskDeletes:
    """Deletes of the files of one task. Several threads may ask for positions: a file is loaded by one of them."""

    def __init__(self, target: ReadTarget, files: Sequence[ScanFile]) -> None:
        self._target = target
        self._paths = [file.path for file in files]
        self._members: dict[_Group, dict[DeleteFile, None]] = {}
        for file in files:
            for delete in file.deletes:
                if delete.kind is DeleteKind.EQUALITY:
                    self._members.setdefault(_group(delete), {})[delete] = None
        self._sets: dict[_Group, KeySet] = {}
        self._positions: dict[str, dict[str, Positions]] = {}
        self._loading: dict[str, Lock] = {}

    def of(self, file: ScanFile) -> FileDeletes:
        """The deletes of one of the files. Raises OSError, TerminalError."""
        positions = [self.positions_in(d, file.path) for d in file.deletes if d.kind is not DeleteKind.EQUALITY]
        return FileDeletes(
            positions=distinct(np.concatenate(positions)) if positions else NOTHING,
            keys=self.keys_of(file),
            sequence_number=file.sequence_number,
        )

    def keys_of(self, file: ScanFile) -> tuple[tuple[tuple[int, ...], KeySet], ...]:
        """The key deletes of one of the files: field ids, and their values. Raises OSError."""
        groups = dict.fromkeys(_group(delete) for delete in file.deletes if delete.kind is DeleteKind.EQUALITY)
        return tuple((group[0], self._set(group)) for group in groups)

    def key_columns_of(self, file: ScanFile, *more: int) -> list[pa.ChunkedArray]:
        """The key columns of the deletes of one of the files, if all have the same fields and scope. Raises OSError.

        `more` are other fields of the key files.
        """
        (group,) = {_group(delete) for delete in file.deletes if delete.kind is DeleteKind.EQUALITY}
        keys = self._read_keys((*group[0], *more), list(self._members[group]))
        return _joined(keys)

    def key_set(self, deletes: Sequence[DeleteFile]) -> KeySet:
        """The keys of some equality deletes, which have the same fields. Raises OSError."""
        return self._load(deletes[0].equality_ids, deletes)

    def _set(self, group: _Group) -> KeySet:
        known = self._sets.get(group)
        if known is None:
            known = self._sets[group] = self._load(group[0], list(self._members[group]))
        return known

    def _load(self, ids: tuple[int, ...], files: Sequence[DeleteFile]) -> KeySet:
        keys = self._read_keys(ids, files)
        sequence_numbers = np.repeat([file.sequence_number for file in files], [len(columns[0]) for columns in keys])
        return KeySet(_joined(keys), sequence_numbers)

    def _read_keys(self, ids: tuple[int, ...], files: Sequence[DeleteFile]) -> list[list[pa.ChunkedArray]]:
        """The columns of each file."""
        with ThreadPoolExecutor(min(_LOADS, len(files))) as pool:
            return list(pool.map(lambda file: self._keys_in(file, ids), files))

    def _keys_in(self, file: DeleteFile, ids: Sequence[int]) -> list[pa.ChunkedArray]:
        with _opened(file.path, self._target.io_properties) as parquet:
            projection = Projection(parquet.schema_arrow, self._target, constants={})
            table = parquet.read(projection.needed(self._target.keys[number].path[0] for number in ids))
        if table.num_columns == 0 and table.num_rows != file.rows:
            table = pa.table({"rows": pa.nulls(file.rows)})
        return [projection.key(table, number) for number in ids]

    def positions_in(self, delete: DeleteFile, path: str) -> Positions:
        """The positions that a delete file or vector deletes in one of the files. Raises OSError, TerminalError."""
        if delete.kind is DeleteKind.VECTOR:
            return decode_vector(self.vector_in(delete))
        known = self._positions.get(delete.path)
        if known is None:
            with self._loading.setdefault(delete.path, Lock()):
                known = self._positions.get(delete.path)
                if known is None:
                    known = self._positions[delete.path] = self._by_path(delete)
        return known.get(path, NOTHING)

    def vector_in(self, delete: DeleteFile) -> bytes:
        """The blob of a vector. Raises OSError."""
        with open_input(delete.path, self._target.io_properties) as source:
            blob: bytes = source.read_at(delete.length, delete.offset)
            return blob

    def _by_path(self, delete: DeleteFile) -> dict[str, Positions]:
        """The positions in a file, for the data files of this task."""
        return positions_by_path(delete.path, self._target.io_properties, self._paths)


def positions_by_path(
    location: str, io_properties: Mapping[str, str], wanted: Sequence[str] | None = None
) -> dict[str, Positions]:
    """The positions in a position delete file by data file, for `wanted` data files or all. Raises OSError."""
    with _opened(location, io_properties, read_dictionary=[_PATH]) as parquet:
        table = parquet.read([_PATH, _POSITION], use_threads=False)
    positions, paths = table.column(_POSITION).to_numpy(), table.column(_PATH)
    if wanted is None:
        wanted = list(dict.fromkeys(path for chunk in paths.chunks for path in chunk.dictionary.to_pylist()))
    numbers = _file_numbers(paths, wanted)
    if not len(numbers):
        return {}
    cuts = 1 + np.flatnonzero(np.diff(numbers))
    firsts = np.r_[0, cuts]
    if len(set(numbers[firsts].tolist())) < len(firsts):  # the deletes of a file do not follow each other
        by_file = np.argsort(numbers, kind="stable")
        positions, numbers = positions[by_file], numbers[by_file]
        cuts = 1 + np.flatnonzero(np.diff(numbers))
        firsts = np.r_[0, cuts]
    parts = zip(numbers[firsts].tolist(), np.split(positions, cuts), strict=True)
    return {wanted[number]: part for number, part in parts if number >= 0}


def paths_named(location: str, io_properties: Mapping[str, str]) -> frozenset[str]:
    """The data files that a position delete file refers to. Raises OSError."""
    with _opened(location, io_properties, read_dictionary=[_PATH]) as parquet:
        paths = parquet.read([_PATH]).column(_PATH)
    return frozenset(path for chunk in paths.chunks for path in chunk.dictionary.to_pylist())


def _file_numbers(paths: pa.ChunkedArray, wanted: Sequence[str]) -> NDArray[np.int32]:
    """The index of each path in `wanted`, -1 for others; each distinct path is looked up once."""
    known = pa.array(wanted, pa.string())
    chunks = [
        pc.index_in(chunk.dictionary.cast(pa.string()), value_set=known).fill_null(-1).take(chunk.indices)
        for chunk in paths.chunks
    ]
    numbers: NDArray[np.int32] = pa.chunked_array(chunks, pa.int32()).to_numpy()
    return numbers


@contextmanager
def _opened(
    path: str, io_properties: Mapping[str, str], read_dictionary: Iterable[str] = ()
) -> Iterator[pq.ParquetFile]:
    with (
        open_input(path, io_properties) as source,
        pq.ParquetFile(source, read_dictionary=list(read_dictionary), pre_buffer=True) as parquet,
    ):
        yield parquet


def _joined(keys: Sequence[Sequence[pa.ChunkedArray]]) -> list[pa.ChunkedArray]:
    """Concatenate the columns of several files."""
    return [
        pa.chunked_array([chunk for columns in keys for chunk in columns[at].chunks], type=first.type)
        for at, first in enumerate(keys[0])
    ]


def _group(delete: DeleteFile) -> _Group:
    return delete.equality_ids, delete.scope
