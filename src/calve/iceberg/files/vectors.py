"""Deletion vectors of format version 3: the rows of one data file that are deleted, as a blob of a Puffin file.

A blob is a length (big endian), a magic number, a 64-bit roaring bitmap in its portable form (little endian), and a
checksum of the last two (big endian). A Puffin file is a magic number, its blobs, and a footer that describes them.

Every vector gets a file of its own, although the format allows several in one: DuckDB 1.5 reads vectors that are not
the first of their file wrong, and Iceberg's own expiry of snapshots removes a file as soon as one of its vectors left
the table.
"""

import json
import struct
import uuid
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from calve.errors import TerminalError
from calve.iceberg.files.names import own_name
from calve.iceberg.files.position_deletes import DeletePlace
from calve.iceberg.files.store import DataLocations, open_output, remove_new
from calve.model.files import ColumnMetrics, Content, Vector, WrittenFile
from calve.model.scan import ContentId, ScanFile

Positions = NDArray[np.int64]
NOTHING: Positions = np.empty(0, np.int64)

_MAGIC = bytes.fromhex("d1d33964")
_PUFFIN = b"PFA1"
VECTOR_OFFSET = len(_PUFFIN)
"""Where the only blob of a file begins."""
_POSITION_FIELD = 2147483645
"""Field id of the row position, which the footer names as the field that a vector was computed from."""
_MOST_BYTES = 2**31 - 1
_NAMESPACE = uuid.UUID("0c0d7f6e-6f0b-5a53-8d7a-766563746f72")


@dataclass(frozen=True)
class DeletedRows:
    """All rows of a data file that a vector deletes."""

    file: ScanFile
    rows: BitMap64
    before: frozenset[ContentId] = frozenset()
    """Deletes of the snapshot, whose rows these are,"""
    added: Positions = field(default_factory=lambda: NOTHING)
    """and these rows."""


def bitmap_of(positions: Positions) -> BitMap64:
    """Some positions as a bitmap. Only arrays of Python's own type are taken as a whole, not number by number."""
    numbers = array("Q")
    numbers.frombytes(positions.astype(np.uint64).tobytes())
    return BitMap64(numbers)


def encode_vector(rows: BitMap64) -> bytes:
    """The blob of some positions. Raises TerminalError if it would be larger than the format allows."""
    rows.run_optimize()
    content = _MAGIC + rows.serialize()
    if len(content) + 8 > _MOST_BYTES:
        raise TerminalError(
            "a data file has too many deleted rows for a deletion vector",
            detail=f"The vector of {len(rows):,} rows has {len(content):,} bytes.",
            hint="Compact the table.",
        )
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def decode_vector(blob: bytes) -> Positions:
    """The positions in a blob, ascending. Raises TerminalError if it is damaged."""
    return positions_of(decode_bitmap(blob))


def positions_of(rows: BitMap64) -> Positions:
    """The positions in a bitmap, ascending."""
    return np.frombuffer(rows.to_array(), np.uint64).astype(np.int64)


def decode_bitmap(blob: bytes) -> BitMap64:
    """The positions in a blob. Raises TerminalError if it is damaged."""
    if len(blob) < 20 or blob[4:8] != _MAGIC:
        raise _damaged("Its magic number is wrong.")
    (length,) = struct.unpack_from(">I", blob)
    if length + 8 != len(blob):
        raise _damaged(f"Got {len(blob)} bytes, expected {length + 8}.")
    if zlib.crc32(blob[4:-4]) != struct.unpack_from(">I", blob, len(blob) - 4)[0]:
        raise _damaged("Its checksum is wrong.")
    try:
        return BitMap64.deserialize(blob[8:-4])
    except ValueError as error:
        raise _damaged(f"{error}.") from error


def _damaged(detail: str) -> TerminalError:
    return TerminalError(
        "a deletion vector is damaged", detail=detail, hint="Restore its file, or go back to an earlier snapshot."
    )


def puffin_file(blob: bytes, data_file: str, cardinality: int) -> bytes:
    """The Puffin file of one vector, which begins at `VECTOR_OFFSET`."""
    described = {
        "type": "deletion-vector-v1",
        "fields": [_POSITION_FIELD],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": VECTOR_OFFSET,
        "length": len(blob),
        "properties": {"referenced-data-file": data_file, "cardinality": str(cardinality)},
    }
    footer = json.dumps({"blobs": [described], "properties": {"created-by": "calve"}}).encode()
    return b"".join((_PUFFIN, blob, _PUFFIN, footer, struct.pack("<i", len(footer)), bytes(4), _PUFFIN))


def write_vectors(
    place: DeletePlace,
    found: Iterable[DeletedRows],
    writer: str,
    wrote: Callable[[str, DeletedRows, int], None] | None = None,
) -> tuple[WrittenFile, ...]:
    """Write one vector for each data file, all or none; a data file must not occur twice.

    The positions must be all that are deleted in the data file, since a vector replaces its predecessor. Names are
    derived from `writer`, which must be unique. `wrote` gets location, rows and size of each. Raises OSError.
    """
    locations = DataLocations(place.data_location.rstrip("/"), place.table_properties)
    unique = uuid.uuid5(_NAMESPACE, writer)
    made: list[str] = []
    written: list[WrittenFile] = []
    try:
        for one in sorted(found, key=lambda f: f.file.path):
            if len(one.rows):
                made.append(locations.of(own_name(place.mark, f"{len(made):05d}-{unique}-deletes.puffin")))
                blob = encode_vector(one.rows)
                written.append(_write_vector(one, blob, made[-1], place))
                if wrote is not None:
                    wrote(made[-1], one, len(blob))
    except BaseException:
        remove_new(made, place.io_properties, "writing deletion vectors failed")
        raise
    return tuple(written)


def _write_vector(one: DeletedRows, blob: bytes, location: str, place: DeletePlace) -> WrittenFile:
    content = puffin_file(blob, one.file.path, len(one.rows))
    with open_output(location, place.io_properties) as sink:
        sink.write(content)
    return WrittenFile(
        content=Content.POSITION_DELETES,
        path=location,
        record_count=len(one.rows),
        size=len(content),
        spec_id=one.file.spec_id,
        partition=one.file.partition,
        metrics=ColumnMetrics(),
        split_offsets=(),
        vector=Vector(one.file.path, VECTOR_OFFSET, len(blob)),
    )
