import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from calve.errors import TerminalError
from calve.iceberg.files.vectors import decode_vector

MAGIC = bytes.fromhex("d1d33964")

clusters = st.lists(
    st.tuples(st.sampled_from([0, 60_000, 1 << 20, (1 << 32) - 5, 5 << 32]), st.integers(1, 9_000), st.integers(1, 3)),
    max_size=4,
)
"""Where positions begin, how many there are, and how far apart: sparse, dense and running containers."""


def blob_of(bitmap: bytes) -> bytes:
    body = MAGIC + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def serialized(positions: set[int], *, runs: bool) -> bytes:
    """By another implementation; a 64-bit bitmap is a list of 32-bit ones."""
    pieces: dict[int, BitMap] = {}
    for position in positions:
        pieces.setdefault(position >> 32, BitMap()).add(position & 0xFFFFFFFF)
    out = struct.pack("<Q", len(pieces))
    for high, piece in sorted(pieces.items()):
        if runs:
            piece.run_optimize()
        out += struct.pack("<I", high) + piece.serialize()
    return out


@given(clusters, st.booleans())
def test_positions_are_those_of_another_implementation(parts: list[tuple[int, int, int]], runs: bool) -> None:  # noqa: FBT001
    positions = {start + i * step for start, count, step in parts for i in range(count)}
    found = decode_vector(blob_of(serialized(positions, runs=runs)))
    assert found.tolist() == sorted(positions)
    assert found.dtype == np.int64


def test_a_bitmap_of_64_bits_is_read_whole() -> None:
    positions = [0, 7, 1 << 33, (1 << 33) + 70_000]
    assert decode_vector(blob_of(BitMap64(positions).serialize())).tolist() == positions


def test_a_vector_with_a_flipped_bit_is_refused() -> None:
    blob = bytearray(blob_of(serialized({1, 2, 3}, runs=False)))
    blob[-6] ^= 1
    with pytest.raises(TerminalError, match="damaged") as refused:
        decode_vector(bytes(blob))
    assert refused.value.detail == "Its checksum is wrong."


def test_a_vector_that_was_cut_is_refused() -> None:
    blob = blob_of(serialized({1, 2, 3}, runs=False))
    with pytest.raises(TerminalError) as refused:
        decode_vector(blob[:-1])
    assert refused.value.detail == f"Got {len(blob) - 1} bytes, expected {len(blob)}."


@pytest.mark.parametrize("blob", [b"", b"PFA1" * 6])
def test_what_is_no_vector_is_refused(blob: bytes) -> None:
    with pytest.raises(TerminalError) as refused:
        decode_vector(blob)
    assert refused.value.detail == "Its magic number is wrong."


@pytest.mark.parametrize("bitmap", [struct.pack("<QII", 1, 0, 99), struct.pack("<QIII", 1, 0, 12346, 500)])
def test_a_bitmap_that_makes_no_sense_is_refused(bitmap: bytes) -> None:
    with pytest.raises(TerminalError, match="damaged"):
        decode_vector(blob_of(bitmap))
