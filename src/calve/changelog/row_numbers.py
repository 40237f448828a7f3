"""Numbers rows so that equal rows, and only those, have the same number; compares pairs of rows.

Null equals null and NaN equals NaN; 0.0 and -0.0 differ, since a reader of the table can tell them apart. Lists and
maps are equal if their items are, in order. Every column is one vectorized pass; only lists and maps are visited one
by one.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_LARGE = 1 << 31
"""Texts of more bytes do not fit one array with short offsets."""
_SPARSE = 8
"""The most numbers for each row."""
_LARGEST = 1 << 62
_WORD_BITS = 64
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def row_numbers(columns: Sequence[pa.ChunkedArray], rows: int) -> Numbers:
    """For each row a number from 0 on, in the order of their first occurrence."""
    wholes = [_whole(column) for column in columns]
    if len(wholes) == 1:
        return value_numbers(wholes[0])
    return _numbered([word for whole in wholes for word in _words(whole)], rows)


def equal_rows(columns: Sequence[pa.ChunkedArray], left: Numbers, right: Numbers) -> Mask:
    """Whether each row of `left` equals the one of `right`, by places. Pairs that differ are not compared further."""
    agree = np.arange(len(left))
    for column in sorted(columns, key=lambda column: not _is_fixed(column.type)):
        if not len(agree):
            break
        both = _words(_whole(column.take(pa.array(np.concatenate([left[agree], right[agree]])))))
        agree = agree[np.logical_and.reduce([word[: len(agree)] == word[len(agree) :] for word in both])]
    found = np.zeros(len(left), bool)
    found[agree] = True
    return found


def paired(left: Numbers, right: Numbers) -> Numbers:
    """The numbers of the pairs: at most a few times as many as there are rows."""
    if not len(left):
        return left
    width = int(right.max()) + 1
    numbers = left * width + right
    return numbers if (int(left.max()) + 1) * width <= _SPARSE * len(left) else _dense(numbers)


def order_by(*columns: NDArray[Any]) -> Numbers:
    """The order of rows by columns of non-negative integers, the first one first; equal rows stay in their order."""
    rows = len(columns[0])
    widths = [int(column.max(initial=0)) + 1 for column in columns]
    if math.prod(widths) * max(1, rows) >= _LARGEST:
        return np.lexsort(columns[::-1])
    codes = np.zeros(rows, np.int64)
    for column, width in zip(columns, widths, strict=True):
        codes *= width
        codes += column
    codes *= rows
    codes += np.arange(rows)
    codes.sort()  # several times faster than to sort places
    codes %= max(1, rows)
    return codes


def _dense(numbers: Numbers) -> Numbers:
    found: Numbers = pa.array(numbers).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def _numbered(words: Sequence[Numbers], rows: int) -> Numbers:
    """Number rows of integers. They are sorted by a hash, and then compared: equal hashes prove nothing."""
    if not words or not rows:
        return np.zeros(rows, np.int64)
    index_bits = np.uint64(rows.bit_length())
    hashes = np.zeros(rows, np.uint64)
    for word in words:
        hashes = _mixed(hashes + word.view(np.uint64))
    codes = (hashes >> index_bits << index_bits) | np.arange(rows, dtype=np.uint64)
    codes.sort()
    order = (codes & ((np.uint64(1) << index_bits) - np.uint64(1))).astype(np.int64)
    differs = _differs(words, order)
    if (differs & (codes[1:] >> index_bits == codes[:-1] >> index_bits)).any():  # different rows with equal hashes
        order = np.lexsort(words)
        differs = _differs(words, order)
    group = np.zeros(rows, np.int64)
    np.cumsum(differs, out=group[1:])
    first = order[np.r_[True, differs]]  # the first row of each group, since the index decides between equal hashes
    is_first = np.zeros(rows, bool)
    is_first[first] = True
    numbers = np.empty(rows, np.int64)
    numbers[order] = (np.cumsum(is_first) - 1)[first][group]
    return numbers


def _differs(words: Sequence[Numbers], order: Numbers) -> NDArray[np.bool_]:
    """Whether each row but the first differs from the one before it."""
    found = np.zeros(len(order) - 1, bool)
    for word in words:
        ordered = word[order]
        found |= ordered[1:] != ordered[:-1]
    return found


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes of integers, which do not collide."""
    mixed = (words ^ (words >> np.uint64(31))) * _FACTOR
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(29))
    return found


def _words(values: pa.Array) -> list[Numbers]:
    """Columns of integers that are equal in two rows if, and only if, the values are."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _words(values.storage)
    if pa.types.is_struct(kind):
        return [_validity(values), *(word for child in values.flatten() for word in _words(child))]
    if pa.types.is_floating(kind):
        return [*_nulls(values), _bits(values)]
    if pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind):
        whole = values.view(pa.int64() if kind.bit_width == _WORD_BITS else pa.int32()) if _is_wide(kind) else values
        return [*_nulls(values), whole.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)]
    return [value_numbers(values)]


def _is_fixed(kind: pa.DataType) -> bool:
    """Whether values are compared without numbering them first."""
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_floating(kind))


def _is_wide(kind: pa.DataType) -> bool:
    return bool(kind.bit_width >= _WORD_BITS // 2)


def _nulls(values: pa.Array) -> list[Numbers]:
    return [_validity(values)] if values.null_count else []


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    if column.nbytes > _LARGE and (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        column = column.cast(pa.large_binary())
    return column.combine_chunks()


def value_numbers(values: pa.Array) -> Numbers:
    """For each value of a column a number from 0 on, in the order of their first occurrence."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return value_numbers(values.storage)
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pa.types.is_struct(kind) or pa.types.is_floating(kind):
        return _numbered(_words(values), len(values))
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_numbers(values)
    encoded = values.dictionary_encode(null_encoding="encode").indices
    found: Numbers = encoded.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _validity(values: pa.Array) -> Numbers:
    found: Numbers = values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _bits(values: pa.Array) -> Numbers:
    numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    numbers[np.isnan(numbers)] = np.nan  # there are many
    found: Numbers = numbers.view(np.int64)
    return found


def _list_numbers(values: pa.Array) -> Numbers:
    offsets = values.offsets.to_numpy(zero_copy_only=False)
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(values.type):
        keys, items = (value_numbers(part[first:last]) for part in (values.keys, values.items))
        inner = paired(keys, items)
    else:
        inner = value_numbers(values.values[first:last])
    valid = values.is_valid().to_pylist()
    texts = [
        inner[start - first : end - first].tobytes() if there else None
        for start, end, there in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]
    return value_numbers(pa.array(texts, pa.large_binary()))
