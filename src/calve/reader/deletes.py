"""The deletes of one task: loaded when first needed, each file once, keys without repetition.

Deletion vectors: a blob of a Puffin file -> positions.

The blob is a length (big endian), a magic number, a roaring bitmap of 64 bits in its portable form (little endian), and
a checksum of the last two (big endian). The bitmap is a count of pieces, each with the upper 32 bits of its positions
and a roaring bitmap of 32 bits, whose containers have the upper 16 bits in common and hold the lower 16 as a sorted
array, as 65,536 bits, or as runs.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.errors import TerminalError
from calve.iceberg.files.store import open_input
from calve.iceberg.schema.readable import ReadTarget
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.reader.key_sets import KeySet, distinct
from calve.reader.projection import Projection

Positions = NDArray[np.int64]

_MAGIC = bytes.fromhex("d1d33964")
_WITH_RUNS, _WITHOUT_RUNS = 12347, 12346
_ARRAY_LIMIT = 4096
"""A container with more values than this is a bit set."""
_NO_OFFSETS_BELOW = 4
"""Bitmaps with runs and fewer containers than this have no offsets."""

NOTHING: Positions = np.empty(0, np.int64)


def positions_of_vector(blob: bytes) -> Positions:
    """The positions in a blob, ascending. Raises TerminalError for one that is not whole."""
    if len(blob) < 20 or blob[4:8] != _MAGIC:
        raise _damaged("It does not begin like one.")
    (length,) = struct.unpack_from(">I", blob)
    if length + 8 != len(blob):
        raise _damaged(f"It says that it has {length + 8} bytes; got {len(blob)}.")
    if zlib.crc32(blob[4:-4]) != struct.unpack_from(">I", blob, len(blob) - 4)[0]:
        raise _damaged("Its checksum is wrong.")
    try:
        return _bitmap64(_Bytes(blob[8:-4]))
    except (struct.error, ValueError) as error:
        raise _damaged(f"{error}.") from error


def _damaged(detail: str) -> TerminalError:
    return TerminalError(
        "a deletion vector is damaged", detail=detail, hint="Restore its file, or go back to an earlier snapshot."
    )


@dataclass
class _Bytes:
    """A buffer that is read from front to back."""

    content: bytes
    at: int = 0

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self.content, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def numbers(self, form: str, count: int) -> NDArray[np.int64]:
        found = np.frombuffer(self.content, form, count, self.at)
        self.at += found.nbytes
        return found.astype(np.int64)


def _bitmap64(source: _Bytes) -> Positions:
    pieces = []
    for _ in range(source.number("<Q")):
        high = source.number("<I")
        pieces.append(_bitmap32(source) + (high << 32))
    return np.concatenate(pieces) if pieces else NOTHING


def _bitmap32(source: _Bytes) -> Positions:
    cookie = source.number("<I")
    if cookie & 0xFFFF == _WITH_RUNS:
        containers = (cookie >> 16) + 1
        flags = np.frombuffer(source.content, np.uint8, (containers + 7) // 8, source.at)
        source.at += flags.nbytes
        runs = np.unpackbits(flags, bitorder="little")[:containers].astype(bool)
        offsets = containers >= _NO_OFFSETS_BELOW
    elif cookie == _WITHOUT_RUNS:
        containers = source.number("<I")
        runs = np.zeros(containers, bool)
        offsets = True
    else:
        raise ValueError(f"A bitmap begins with {cookie}")
    header = source.numbers("<u2", 2 * containers)
    keys, counts = header[::2], header[1::2] + 1
    source.at += 4 * containers if offsets else 0
    found = [
        _container(source, int(count), is_runs=bool(run)) + (int(key) << 16)
        for key, count, run in zip(keys, counts, runs, strict=True)
    ]
    return np.concatenate(found) if found else NOTHING


def _container(source: _Bytes, count: int, *, is_runs: bool) -> Positions:
    if is_runs:
        pairs = source.numbers("<u2", 2 * source.number("<H"))
        return np.concatenate([np.arange(first, first + more + 1) for first, more in pairs.reshape(-1, 2)])
    if count <= _ARRAY_LIMIT:
        return source.numbers("<u2", count)
    bits = np.frombuffer(source.content, np.uint8, 8192, source.at)
    source.at += bits.nbytes
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.int64)


_PATH, _POSITION = "file_path", "pos"
_LOADS = 8
"""Files that are loaded at a time; matters for object stores only."""
_Group = tuple[tuple[int, ...], tuple[Any, ...] | None]
"""Equality deletes that are tested together: the same fields, the same reach."""


@dataclass(frozen=True)
class FileDeletes:
    """What is deleted of one file."""

    positions: Positions
    """Ascending."""
    keys: tuple[tuple[tuple[int, ...], KeySet], ...]
    """Sets of keys with the ids of their fields."""
    sequence_number: int

    @property
    def key_ids(self) -> list[int]:
        """Fields that are compared, each once."""
        return list(dict.fromkeys(number for ids, _ in self.keys for number in ids))

    def of(self, first: int, rows: int, read_keys: Callable[[], tuple[Projection, pa.Table]]) -> NDArray[np.bool_]:
        """Which of `rows` rows from position `first` on are deleted. `read_keys` reads the compared columns."""
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
    """Deletes of the files of one task."""

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

    def of(self, file: ScanFile) -> FileDeletes:
        """The deletes of one of the files. Raises OSError, TerminalError."""
        positions = [self.positions_in(d, file.path) for d in file.deletes if d.kind is not DeleteKind.EQUALITY]
        return FileDeletes(
            positions=distinct(np.concatenate(positions)) if positions else NOTHING,
            keys=self.keys_of(file),
            sequence_number=file.sequence_number,
        )

    def keys_of(self, file: ScanFile) -> tuple[tuple[tuple[int, ...], KeySet], ...]:
        """The deletes of one of the files by key: ids of fields, and their values. Raises OSError."""
        groups = dict.fromkeys(_group(delete) for delete in file.deletes if delete.kind is DeleteKind.EQUALITY)
        return tuple((group[0], self._set(group)) for group in groups)

    def key_columns_of(self, file: ScanFile, *more: int) -> list[pa.ChunkedArray]:
        """The deletes of one of the files by key, where all have the same fields and reach. Raises OSError.

        `more` are other fields that the files of keys have.
        """
        (group,) = {_group(delete) for delete in file.deletes if delete.kind is DeleteKind.EQUALITY}
        keys = self._read_keys((*group[0], *more), list(self._members[group]))
        return _joined(keys)

    def _set(self, group: _Group) -> KeySet:
        known = self._sets.get(group)
        if known is None:
            known = self._sets[group] = self._loaded(group[0], list(self._members[group]))
        return known

    def _loaded(self, ids: tuple[int, ...], files: Sequence[DeleteFile]) -> KeySet:
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
        """What a file of position deletes, or a vector, deletes of one of the files. Raises OSError, TerminalError."""
        if delete.kind is DeleteKind.VECTOR:
            with open_input(delete.path, self._target.io_properties) as source:
                return positions_of_vector(source.read_at(delete.length, delete.offset))
        known = self._positions.get(delete.path)
        if known is None:
            known = self._positions[delete.path] = self._by_path(delete)
        return known.get(path, NOTHING)

    def _by_path(self, delete: DeleteFile) -> dict[str, Positions]:
        """The positions in a file, for the data files of this task."""
        return positions_by_path(delete.path, self._target.io_properties, self._paths)


def positions_by_path(
    location: str, io_properties: Mapping[str, str], wanted: Sequence[str] | None = None
) -> dict[str, Positions]:
    """The positions in a file of position deletes by data file, for some of these or for all. Raises OSError."""
    with _opened(location, io_properties, read_dictionary=[_PATH]) as parquet:
        table = parquet.read([_PATH, _POSITION])
    positions, paths = table.column(_POSITION).to_numpy(), table.column(_PATH)
    if wanted is None:
        wanted = list(dict.fromkeys(path for chunk in paths.chunks for path in chunk.dictionary.to_pylist()))
    numbers = _file_numbers(paths, wanted)
    return {wanted[n]: positions[numbers == n] for n in distinct(numbers) if n >= 0}


def paths_named(location: str, io_properties: Mapping[str, str]) -> frozenset[str]:
    """The data files that a file of position deletes is about. Raises OSError."""
    with _opened(location, io_properties, read_dictionary=[_PATH]) as parquet:
        paths = parquet.read([_PATH]).column(_PATH)
    return frozenset(path for chunk in paths.chunks for path in chunk.dictionary.to_pylist())


def _file_numbers(paths: pa.ChunkedArray, wanted: Sequence[str]) -> NDArray[np.int64]:
    """The place of each path among the wanted ones, -1 for others; looked up once for each path."""
    known = pa.array(wanted, pa.string())
    chunks = [
        pc.index_in(chunk.dictionary.cast(pa.string()), value_set=known).fill_null(-1).take(chunk.indices)
        for chunk in paths.chunks
    ]
    numbers: NDArray[np.int64] = pa.chunked_array(chunks, pa.int32()).to_numpy().astype(np.int64)
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
    """Columns of several files as one."""
    return [
        pa.chunked_array([chunk for columns in keys for chunk in columns[at].chunks], type=first.type)
        for at, first in enumerate(keys[0])
    ]


def _group(delete: DeleteFile) -> _Group:
    return delete.equality_ids, delete.scope
