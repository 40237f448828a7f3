"""Partition transforms on Arrow arrays, as the Iceberg specification defines them.

Results have the form that manifests use: days, months, years and hours since 1970, and identities of dates and
timestamps, are integers; everything else is unchanged. Null in, null out. pyiceberg's own transforms of Arrow arrays
need a Rust package; its transforms of single values are used where nothing can be vectorized.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.errors import TerminalError

_HOUR_MICROS = 3_600_000_000
_DAY_MICROS = 24 * _HOUR_MICROS
_INT_MAX = np.uint32(0x7FFF_FFFF)
_LONG_DIGITS = 18
"""Decimals of at most this many digits fit into 64 bits."""

Longs = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_hash_bytes: Callable[[bytes], int] = BucketTransform(1).transform(BinaryType(), bucket=False)  # type: ignore[assignment]


def transformed(values: pa.Array, kind: IcebergType, transform: Transform[Any, Any]) -> pa.Array:
    """The partition value of each value of a column of type `kind`.

    Raises TypeError if the type has none, and TerminalError if a value has none.
    """
    match transform:
        case VoidTransform():
            return pa.nulls(len(values))
        case IdentityTransform():
            return _physical(values, kind)
        case BucketTransform():
            return _masked((_hashes(values, kind) & _INT_MAX) % np.uint32(transform.num_buckets), values, pa.int32())
        case TruncateTransform():
            return _truncated(values, kind, transform.width)
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return _masked(_time_units(values, kind, transform), values, pa.int32())
        case _:
            raise TypeError(f"unknown transform: {transform}")


def _physical(values: pa.Array, kind: IcebergType) -> pa.Array:
    match kind:
        case DateType():
            return values.view(pa.int32())
        case TimestampType() | TimestamptzType() | TimeType():
            return values.view(pa.int64())
        case _:
            return values


def _masked(found: npt.NDArray[Any], values: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array that is null where `values` is null."""
    out = pa.array(found.astype(kind.to_pandas_dtype()), kind)
    return pc.if_else(values.is_valid(), out, pa.scalar(None, kind)) if values.null_count else out


def _longs(values: pa.Array, kind: IcebergType) -> Longs:
    """The integers that represent the values, 0 for nulls."""
    physical = _physical(values, kind)
    if physical.null_count:
        physical = pc.fill_null(physical, 0)
    return np.asarray(physical.to_numpy(zero_copy_only=False), np.int64)


# ---- bucket


def _hashes(values: pa.Array, kind: IcebergType) -> Hashes:
    """The 32-bit Murmur3 hash of each value; arbitrary for nulls."""
    match kind:
        case IntegerType() | LongType() | DateType() | TimeType() | TimestampType() | TimestamptzType():
            return _murmur_of_longs(_longs(values, kind))
        case StringType() | BinaryType() | FixedType() | UUIDType():
            return _hashes_of_distinct(values.cast(pa.large_binary()) if _is_text(values) else values, bytes)
        case DecimalType():
            return _hashes_of_distinct(values, lambda value: _shortest(_unscaled(value, kind.scale)))
        case _:
            raise TypeError(f"cannot be bucketed: {kind}")


def _is_text(values: pa.Array) -> bool:
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def _hashes_of_distinct(values: pa.Array, encoded: Callable[[Any], bytes]) -> Hashes:
    found = values.dictionary_encode(null_encoding="encode")
    by_code = [0 if value is None else _hash_bytes(encoded(value)) for value in found.dictionary.to_pylist()]
    codes: Longs = found.indices.to_numpy(zero_copy_only=False)
    return np.array(by_code, np.int64).astype(np.uint32)[codes]


def _shortest(value: int) -> bytes:
    """Two's complement, big endian, in the fewest possible bytes."""
    bits = (~value if value < 0 else value).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)


def _unscaled(value: Any, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (scale + exponent)
    return -number if sign else number


def _murmur_of_longs(values: Longs) -> Hashes:
    words = np.ascontiguousarray(values).view(np.uint32).reshape(-1, 2)  # the low word first
    found = np.zeros(len(values), np.uint32)
    for word in (words[:, 0], words[:, 1]):
        found ^= _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        found = _rotated(found, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= np.uint32(8)  # the length
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return found ^ (found >> np.uint32(16))


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


# ---- truncate


def _truncated(values: pa.Array, kind: IcebergType, width: int) -> pa.Array:
    match kind:
        case IntegerType() | LongType():
            bits: Any = np.int32 if isinstance(kind, IntegerType) else np.int64
            return _masked(_floored(_longs(values, kind), width).astype(bits), values, values.type)
        case StringType():
            return pc.utf8_slice_codeunits(values, 0, width)  # counts code points, despite its name
        case BinaryType():
            return pc.binary_slice(values, 0, width)
        case DecimalType():
            return _truncated_decimals(values, kind, width)
        case _:
            raise TypeError(f"cannot be truncated: {kind}")


def _floored(values: Longs, width: int) -> Longs:
    """The largest multiple of `width` at or below each value; wraps around at the minimum, as in Java."""
    return values - np.mod(values, np.int64(width))


def _truncated_decimals(values: pa.Array, kind: DecimalType, width: int) -> pa.Array:
    if kind.precision > _LONG_DIGITS:
        found = values.dictionary_encode()
        cut = [_cut(value, kind.scale, width) for value in found.dictionary.to_pylist()]
        _check_digits(min(cut, default=0), kind, width)
        return _decimals([v % (1 << 128) for v in cut], values.type).take(found.indices)
    words = np.frombuffer(values.buffers()[1], np.int64, 2 * len(values), 16 * values.offset)
    low = _floored(_longs_of(words, values), width)
    _check_digits(int(low.min(initial=0)), kind, width)
    both = np.stack([low, low >> np.int64(63)], axis=1)
    out = pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(both.tobytes())])
    return pc.if_else(values.is_valid(), out, pa.scalar(None, values.type)) if values.null_count else out


def _longs_of(words: Longs, values: pa.Array) -> Longs:
    """The lower halves of decimals; 0 for nulls, whose words are arbitrary."""
    return np.where(np.asarray(values.is_valid()), words[::2], 0) if values.null_count else words[::2]


def _check_digits(least: int, kind: DecimalType, width: int) -> None:
    """Refuse a value whose multiple below has more digits than its type: no table can have such a partition."""
    if least <= -(10**kind.precision):
        raise TerminalError(
            "a row belongs to no partition of the table",
            detail=f"truncate({width}) of its value needs more digits than {kind} has.",
            hint="Partition by something else, ALTER SINK ... SET PARTITION BY, or declare more digits.",
        )


def _cut(value: Any, scale: int, width: int) -> int:
    unscaled = _unscaled(value, scale)
    return unscaled - unscaled % width


def _decimals(unsigned: list[int], kind: pa.DataType) -> pa.Array:
    raw = b"".join(value.to_bytes(16, "little") for value in unsigned)
    return pa.Array.from_buffers(kind, len(unsigned), [None, pa.py_buffer(raw)])


# ---- time


def _time_units(values: pa.Array, kind: IcebergType, transform: Transform[Any, Any]) -> Longs:
    longs = _longs(values, kind)
    is_date = isinstance(kind, DateType)
    match transform:
        case DayTransform():
            return longs if is_date else longs // _DAY_MICROS
        case HourTransform() if not is_date:
            return longs // _HOUR_MICROS
        case YearTransform() | MonthTransform():
            unit = "datetime64[Y]" if isinstance(transform, YearTransform) else "datetime64[M]"
            return longs.view("datetime64[D]" if is_date else "datetime64[us]").astype(unit).astype(np.int64)
        case _:
            raise TypeError(f"{transform} does not apply to {kind}")
