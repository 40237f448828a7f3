"""Numbers rows so that equal rows, and only those, have the same number.

Null equals null and NaN equals NaN; 0.0 and -0.0 differ, since a reader of the table can tell them apart. Lists and
maps are equal if their items are, in order. Every column is one vectorized pass; only lists and maps are visited one
by one.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_LARGE = 1 << 31
"""Texts of more bytes do not fit one array with short offsets."""


def row_numbers(columns: Sequence[pa.ChunkedArray], rows: int) -> Numbers:
    """For each row a number from 0 on."""
    numbers = np.zeros(rows, np.int64)
    for column in columns:
        numbers = paired(numbers, value_numbers(_whole(column)))
    return numbers


def paired(left: Numbers, right: Numbers) -> Numbers:
    """The numbers of the pairs."""
    if not len(left):
        return left
    return _dense(left * (int(right.max()) + 1) + right)


def _dense(numbers: Numbers) -> Numbers:
    found: Numbers = pa.array(numbers).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    if column.nbytes > _LARGE and (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        column = column.cast(pa.large_binary())
    return column.combine_chunks()


def value_numbers(values: pa.Array) -> Numbers:
    """For each value of a column a number from 0 on."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return value_numbers(values.storage)
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pa.types.is_struct(kind):
        numbers = _validity(values)
        for child in values.flatten():
            numbers = paired(numbers, value_numbers(child))
        return numbers
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_numbers(values)
    if pa.types.is_floating(kind):
        return paired(_validity(values), _dense(_bits(values)))
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
