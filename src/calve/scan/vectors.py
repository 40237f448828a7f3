"""Deletion vectors: a blob of a Puffin file -> positions.

The blob is a length (big endian), a magic number, a roaring bitmap of 64 bits in its portable form (little endian), and
a checksum of the last two (big endian). The bitmap is a count of pieces, each with the upper 32 bits of its positions
and a roaring bitmap of 32 bits, whose containers have the upper 16 bits in common and hold the lower 16 as a sorted
array, as 65,536 bits, or as runs.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calve.errors import TerminalError

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
