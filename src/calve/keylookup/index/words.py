"""Keys as rows of 64-bit words, the same for equal keys whatever file or batch they come from, and their hashes.

An integer, date or time is one word; a decimal or a uuid two; a string its length and its bytes, padded to the longest
string in the column. Rows with a null in the key are skipped: no change has such a key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]

MOST_WORDS = 32
"""The most words of a key; longer keys are not indexed."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class NotIndexable(Exception):
    """The keys are too long for the index, or of a type that it does not support."""


@dataclass(frozen=True)
class Keys:
    """The keys of some rows. `words[i]` are the words of the i-th key, column by column."""

    hashes: Words
    words: Words
    widths: tuple[int, ...]
    """The number of words of each column."""
    rows: Numbers
    """The rows that the keys belong to, ascending."""
    exact: bool
    """Whether hashes are unique per key."""

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> Self:
        """Encode the keys of rows. Raises NotIndexable."""
        rows = _complete_rows(columns)
        parts = [_Column.of(_combined(column, rows)) for column in columns]
        widths = tuple(len(part.words) for part in parts)
        if sum(widths) > MOST_WORDS:
            raise NotIndexable
        exact = widths == (1,) and parts[0].lengths is None
        hashes = mixed(parts[0].words[0]) if exact else _hashes(parts, len(rows))
        words = np.column_stack([word for part in parts for word in part.words])
        return cls(hashes, words, widths, rows, exact)


def is_short(kind: pa.DataType) -> bool:
    """Whether every value of a type needs at most two words."""
    return not (pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


@dataclass(frozen=True)
class _Column:
    """One column of keys: its words, and the length of each string in bytes."""

    words: tuple[Words, ...]
    lengths: Numbers | None = None

    @classmethod
    def of(cls, values: pa.Array) -> Self:
        kind = values.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return cls(*_words_of_texts(values))
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal128(kind):
            width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else 16
            raw = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width)
            padded = np.zeros((len(values), -(-width // 8) * 8), np.uint8)
            padded[:, :width] = raw.reshape(-1, width)
            return cls(tuple(np.ascontiguousarray(word) for word in padded.view(np.uint64).T))
        if pa.types.is_boolean(kind):
            values = values.cast(pa.int8())
        elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
            values = values.cast(pa.int32())
        elif not (pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_time64(kind)):
            raise NotIndexable
        return cls((values.cast(pa.int64()).to_numpy().view(np.uint64),))


def same(left: Words, left_widths: Sequence[int], right: Words, right_widths: Sequence[int]) -> NDArray[np.bool_]:
    """Which rows of two arrays of words are the same key. Widths may differ: the length of a string comes first."""
    found = np.ones(len(left), bool)
    at_left = at_right = 0
    for mine, theirs in zip(left_widths, right_widths, strict=True):
        for word in range(min(mine, theirs)):
            found &= left[:, at_left + word] == right[:, at_right + word]
        at_left, at_right = at_left + mine, at_right + theirs
    return found


def widened(words: Words, widths: Sequence[int], wanted: Sequence[int]) -> Words:
    """The same keys with more words for some columns."""
    if tuple(widths) == tuple(wanted):
        return words
    made = np.zeros((len(words), sum(wanted)), np.uint64)
    source = target = 0
    for have, want in zip(widths, wanted, strict=True):
        made[:, target : target + have] = words[:, source : source + have]
        source, target = source + have, target + want
    return made


def widest(widths: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The maximum of the widths, column by column."""
    return tuple(max(of_column) for of_column in zip(*widths, strict=True))


def _complete_rows(columns: Sequence[pa.ChunkedArray]) -> Numbers:
    if not any(column.null_count for column in columns):
        return np.arange(len(columns[0]))
    complete = np.ones(len(columns[0]), bool)
    for column in columns:
        complete &= column.is_valid().to_numpy()
    return np.flatnonzero(complete)


def _combined(column: pa.ChunkedArray, rows: Numbers) -> pa.Array:
    found = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(found, pa.ChunkedArray):  # empty, or too large for one array
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], column.type)
    return found if len(rows) == len(found) else found.take(pa.array(rows))


def _words_of_texts(values: pa.Array) -> tuple[tuple[Words, ...], Numbers]:
    """The length of each string, then its bytes, padded with zeros."""
    if not len(values):
        return (np.empty(0, np.uint64),), np.empty(0, np.int64)
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    lengths, first, last = np.diff(offsets), int(offsets[0]), int(offsets[-1])
    count = -(-int(lengths.max()) // 8)
    if count >= MOST_WORDS:
        raise NotIndexable
    around = np.zeros(last - first + 8 * count + 8, np.uint8)  # padded, to read eight bytes anywhere
    if last > first:
        around[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
    anywhere: Words = np.ndarray((len(around) - 7,), "<u8", around, strides=(1,))
    starts = offsets[:-1] - first
    words: list[Words] = [lengths.view(np.uint64)]
    for number in range(count):
        left = np.clip(lengths - 8 * number, 0, 8)
        kept = np.where(left == 0, np.uint64(0), _ALL >> ((8 - np.maximum(left, 1)) * 8).astype(np.uint64))
        words.append(anywhere[starts + 8 * number] & kept)
    return tuple(words), lengths


def _hashes(parts: Sequence[_Column], count: int) -> Words:
    """Hashes of keys. Padding is ignored: a string has the same hash beside longer ones."""
    hashes = np.full(count, _SEED)
    for part in parts:
        for number, word in enumerate(part.words):
            added = mixed(hashes ^ word) + _SEED
            if part.lengths is not None and number:
                added = np.where(part.lengths > 8 * (number - 1), added, hashes)
            hashes = added
    return hashes


def mixed(words: Words) -> Words:
    """A bijective mix: every bit of the result depends on all bits."""
    bits = (words ^ (words >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    result: Words = bits ^ (bits >> np.uint64(31))
    return result


def sorted_keys(columns: Sequence[pa.ChunkedArray]) -> Keys:
    """As `Keys.of`, sorted by hash."""
    keys = Keys.of(columns)
    order = np.argsort(keys.hashes)
    return Keys(keys.hashes[order], keys.words[order], keys.widths, keys.rows[order], keys.exact)


def range_of(hashes: Words, ranges: int) -> Numbers:
    """The range that each hash belongs to."""
    starts = np.array([number * (1 << 64) // ranges for number in range(ranges)], np.uint64)
    return np.searchsorted(starts, hashes, "right") - 1


def bounds_of_range(number: int, ranges: int) -> tuple[int, int]:
    """The first and the last hash of a range."""
    return number * (1 << 64) // ranges, (number + 1) * (1 << 64) // ranges - 1
