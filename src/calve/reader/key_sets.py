"""Sets of deleted keys: any number of columns of any type that can be a key; null equals null.

Every value is replaced by its number among the deleted values of its column; the numbers of two columns become the
number of their pair, and so on to the last column. Each step is one vectorized pass, and values that no delete has drop
out on the way. The newest delete of a key counts: it deletes rows with a lower sequence number.

Integers, dates and timestamps are looked up in a sorted array behind a hash filter, which is built once. Strings have
such a filter in front of Arrow's lookup, which supports every type and is several times slower.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_MISSING = -1
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MAX_FILTER_BITS = 24
_MOST_PLACES = 2**31 - 1

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Columns = Sequence[pa.ChunkedArray]


class KeySet:
    """The keys of deletes. `sequence_numbers` has one number for each row of `columns`."""

    def __init__(self, columns: Columns, sequence_numbers: Numbers) -> None:
        if not columns:
            raise ValueError("a key has at least one column")
        self._values = [_values_of(column) for column in columns]
        self._pairs: list[Numbers] = []
        """From the second column on: the distinct pairs of (number so far, number in this column), sorted."""
        numbers = self._values[0].places(columns[0])
        for column, values in zip(columns[1:], self._values[1:], strict=True):
            joined = numbers * len(values) + values.places(column)
            self._pairs.append(distinct(joined))
            numbers = _places(self._pairs[-1], joined)
        self._newest = np.full(int(numbers.max(initial=_MISSING)) + 1, _MISSING, np.int64)
        np.maximum.at(self._newest, numbers, sequence_numbers)

    def __len__(self) -> int:
        return len(self._newest)

    def deleted(self, columns: Columns, sequence_number: int | Numbers) -> NDArray[np.bool_]:
        """Which rows of a file with this sequence number are deleted; or of several files, with one for each row."""
        numbers = self.numbers(columns)
        deleted: NDArray[np.bool_] = numbers != _MISSING
        written = np.broadcast_to(sequence_number, numbers.shape)[deleted]
        deleted[deleted] = self._newest[numbers[deleted]] > written
        return deleted

    def numbers(self, columns: Columns) -> Numbers:
        """For each row the number of its key, from 0 to len(self) - 1; -1 for unknown keys."""
        if not len(self):
            return np.full(len(columns[0]), _MISSING, np.int64)
        numbers = self._values[0].places(columns[0])
        for column, values, pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            own = values.places(column)
            known = np.flatnonzero((numbers != _MISSING) & (own != _MISSING))
            found = np.full(len(numbers), _MISSING, np.int64)
            found[known] = _places(pairs, numbers[known] * len(values) + own[known])
            numbers = found
        return numbers

    def newest(self, numbers: Numbers) -> Numbers:
        """The largest sequence number of each of these keys, by their numbers; -1 for unknown keys."""
        known: Numbers = np.append(self._newest, _MISSING)[numbers]
        return known

    def values(self, place: int) -> pa.Array:
        """The distinct values of the column at `place`, in its type."""
        return self._values[place].distinct()

    def reaches(self, place: int, bounds: tuple[Any, Any]) -> bool:
        """False if no key has a value within the bounds in its column at `place`; dates and times are integers."""
        try:
            return bool(len(self)) and self._values[place].reaches(*bounds)
        except TypeError:
            return True  # the column had a different type when the file was written


class _Values(Protocol):
    """The distinct values of one column of deletes."""

    def __len__(self) -> int: ...

    def distinct(self) -> pa.Array:
        """The distinct values, unordered."""
        ...

    def reaches(self, low: Any, high: Any) -> bool:
        """False if all values are outside of [low, high]."""
        ...

    def places(self, column: pa.ChunkedArray) -> Numbers:
        """The number of each value, null included; -1 for unknown values."""
        ...


def _values_of(column: pa.ChunkedArray) -> _Values:
    kind = column.type
    if _is_integer(kind):
        return _Integers(column)
    return _Texts(column) if pa.types.is_string(kind) or pa.types.is_binary(kind) else _AnyValues(column)


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


class _AnyValues:
    """Values in Arrow's hash table."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._values = pc.unique(column)

    def __len__(self) -> int:
        return len(self._values)

    def distinct(self) -> pa.Array:
        return self._values

    @cached_property
    def _range(self) -> tuple[Any, Any] | None:
        try:
            ends = pc.min_max(self._values).as_py()
        except pa.ArrowNotImplementedError:
            return None
        return ends["min"], ends["max"]

    def reaches(self, low: Any, high: Any) -> bool:
        if self._range is None or self._values.null_count:
            return True
        return bool(self._range[0] <= high and low <= self._range[1])

    def places(self, column: pa.ChunkedArray) -> Numbers:
        found = pc.index_in(column, value_set=self._values).fill_null(_MISSING)
        numbers: Numbers = found.to_numpy().astype(np.int64)
        return numbers


class _Filter:
    """Rejects most unknown hashes; a table of about eight flags per hash."""

    def __init__(self, hashes: Hashes) -> None:
        bits = min(_MAX_FILTER_BITS, max(6, len(hashes).bit_length() + 3))
        self._shift = np.uint64(64 - bits)
        self._bits = np.zeros(1 << bits, bool)
        self._bits[hashes >> self._shift] = True

    def may_hold(self, hashes: Hashes) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._bits[hashes >> self._shift]
        return found


class _Texts(_AnyValues):
    """Strings and bytes behind a filter of their ends and lengths; Arrow's hash table decides on what passes."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        super().__init__(column)
        self._filter = _Filter(_hashes_of_ends(self._values))

    def places(self, column: pa.ChunkedArray) -> Numbers:
        found = np.full(len(column), _MISSING, np.int64)
        done = 0
        for chunk in column.chunks:
            possible = self._filter.may_hold(_hashes_of_ends(chunk))
            if chunk.null_count and self._values.null_count:
                possible |= chunk.is_null().to_numpy(zero_copy_only=False)
            candidates = np.flatnonzero(possible)
            found[candidates + done] = super().places(pa.chunked_array([chunk.take(pa.array(candidates))]))
            done += len(chunk)
        return found


class _Integers:
    """Sorted integers behind a filter that rejects most unknown values. Null, if present, has the last number."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._kind = column.type
        numbers, nulls = _integers(column)
        self._sorted = distinct(numbers if nulls is None else numbers[~nulls])
        self._null_place = _MISSING if nulls is None else len(self._sorted)
        self._filter = _Filter(_spread(self._sorted))

    def __len__(self) -> int:
        return len(self._sorted) + (self._null_place != _MISSING)

    def distinct(self) -> pa.Array:
        numbers = pa.array(self._sorted)
        nulls = pa.nulls(int(self._null_place != _MISSING), pa.int64())
        return _as(self._kind, pa.concat_arrays([numbers, nulls]))

    def reaches(self, low: Any, high: Any) -> bool:
        if not isinstance(low, int) or not isinstance(high, int):
            raise TypeError("bounds of integers must be integers")
        at = int(np.searchsorted(self._sorted, low))
        return self._null_place != _MISSING or (at < len(self._sorted) and bool(self._sorted[at] <= high))

    def places(self, column: pa.ChunkedArray) -> Numbers:
        numbers, nulls = _integers(column)
        found = np.full(len(numbers), _MISSING, np.int64)
        likely = np.flatnonzero(self._filter.may_hold(_spread(numbers)))
        found[likely] = _places(self._sorted, numbers[likely])
        if nulls is not None:
            found[nulls] = self._null_place
        return found


class KeyRows:
    """The rows of a table of keys by key: one column of integers, no key twice, no null.

    The hash table has a place for each hash; keys that find theirs taken are looked up in a sorted array.
    """

    def __init__(self, numbers: Numbers) -> None:
        bits = min(_MAX_FILTER_BITS, max(6, len(numbers).bit_length() + 2))
        self._shift = np.uint64(64 - bits)
        self._numbers = numbers
        self._table = np.zeros(1 << bits, np.int32)
        hashes, rows = _spread(numbers) >> self._shift, np.arange(len(numbers), dtype=np.int32)
        self._table[hashes] = rows
        self._others = np.flatnonzero(self._table[hashes] != rows)
        self._others = self._others[np.argsort(numbers[self._others])]
        self._other_numbers = numbers[self._others]

    @classmethod
    def of(cls, columns: Columns) -> Self | None:
        """None for other keys."""
        if len(columns) != 1 or not _is_integer(columns[0].type) or columns[0].null_count:
            return None
        if not 0 < len(columns[0]) <= _MOST_PLACES:
            return None
        found = cls(_integers(columns[0])[0])
        return found if found._distinct() else None

    def __len__(self) -> int:
        return len(self._numbers)

    def _distinct(self) -> bool:
        others = self._other_numbers
        first = self._numbers[self._table[_spread(others) >> self._shift]]
        return not (np.any(first == others) or np.any(others[1:] == others[:-1]))

    def rows_of(self, column: pa.ChunkedArray) -> Numbers:
        """The row of each of these keys; -1 for unknown ones."""
        wanted, nulls = _integers(column)
        rows: Numbers = self._table[_spread(wanted) >> self._shift].astype(np.int64)
        left = np.flatnonzero(self._numbers[rows] != wanted)
        rows[left] = np.append(self._others, _MISSING)[_places(self._other_numbers, wanted[left])]
        if nulls is not None:
            rows[nulls] = _MISSING
        return rows


def _spread(numbers: Numbers) -> Hashes:
    """A hash whose upper bits depend on all bits."""
    return numbers.view(np.uint64) * _SPREAD


def _hashes_of_ends(values: pa.Array) -> Hashes:
    """Hashes of the first eight bytes, the last eight bytes and the length; arbitrary for nulls."""
    if not len(values):
        return np.empty(0, np.uint64)
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    bytes_of_all = np.zeros(last - first + 16, np.uint8)  # padded, to read eight bytes anywhere
    if last > first:
        bytes_of_all[8:-8] = np.frombuffer(data, np.uint8, last - first, first)
    words: Hashes = np.ndarray((len(bytes_of_all) - 7,), "<u8", bytes_of_all, strides=(1,))
    starts, ends = offsets[:-1] - first + 8, offsets[1:] - first
    lengths = np.diff(offsets)
    missing = (np.maximum(8 - lengths, 0) * 8).astype(np.uint64)  # bits of neighbors; a shift by 64 gives zero
    heads, tails = words[starts] & (_ALL >> missing), words[ends] >> missing
    hashes: Hashes = (heads * _SPREAD ^ tails ^ lengths.view(np.uint64) << np.uint64(48)) * _SPREAD
    return hashes


def _integers(column: pa.ChunkedArray) -> tuple[Numbers, NDArray[np.bool_] | None]:
    """The values as 64-bit integers, and which of them are null (None if there are no nulls)."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    whole = column.cast(pa.int64())
    nulls = None if not whole.null_count else whole.is_null().to_numpy()
    numbers: Numbers = (whole if nulls is None else whole.fill_null(0)).to_numpy()
    return numbers, nulls


def _as(kind: pa.DataType, numbers: pa.Array) -> pa.Array:
    """The inverse of `_integers`."""
    return (numbers.cast(pa.int32()) if pa.types.is_date32(kind) else numbers).cast(kind)


def distinct(numbers: Numbers) -> Numbers:
    """Sort and remove duplicates. `np.unique` hashes integers, which is many times slower than sorting."""
    ascending = np.sort(numbers)
    first = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]


def _places(sorted_values: Numbers, wanted: Numbers) -> Numbers:
    if not len(sorted_values):
        return np.full(len(wanted), _MISSING, np.int64)
    at = np.searchsorted(sorted_values, wanted)
    at[at == len(sorted_values)] = 0
    return np.where(sorted_values[at] == wanted, at, _MISSING)
