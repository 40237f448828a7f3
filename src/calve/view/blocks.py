"""Pieces of totals in the store: a record with rows, or a record that names parts, in which rows are sorted by hash.

    record, a Parquet file:   the rows of the piece      or      one row per part: its name, range of hashes, checksum

    part:   block 0 │ block 1 │ ... │ rows after │ footer: first hash, offset, length and checksum of each block

Blocks have up to BLOCK_ROWS groups each, so a task that needs some groups reads the blocks that they are in. `rows
after` are the totals of the same groups after the checkpoint that wrote the part; only that checkpoint reads them.
Parts have names of their own and are put before the record: without it they do not count. A piece counts as lost if its
record or one of its parts is missing, truncated or changed.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.keylookup.index.parts import pages_between
from calve.keylookup.index.words import Words, bounds_of_range, mixed
from calve.storage.state import StateStore
from calve.view.sums import group_names

PARTS = "parts"
"""The folder of the parts."""
BLOCK_ROWS = 4096
_HASH = "_calve__hash"
_STATIC, _PARTED = b"calve.static", b"calve.parts"
_SEED, _NULL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_FOOTER_COLUMNS, _WORD = 4, 8
_TEXT_BYTES = 1 << 20
"""About how many bytes of texts are hashed at a time."""
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


class LostPiece(Exception):
    """A piece that cannot be read: the name of its record."""

    def __init__(self, record: str) -> None:
        super().__init__(record)
        self.record = record


class DamagedPart(Exception):
    """A part is missing, truncated or changed."""


# ---- hashes


def group_hashes(table: pa.Table) -> Words:
    """A hash of each group, the same in every process and version: parts are sorted by it."""
    hashes = np.full(len(table), _SEED)
    for name in group_names(table.schema):
        hashes = mixed(hashes ^ _words(table[name])) + _SEED
    return hashes


def _words(column: pa.ChunkedArray) -> Words:
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL)
    if pa.types.is_decimal128(kind):
        pairs = np.frombuffer(values.buffers()[1], np.uint64, 2 * len(values), 16 * values.offset).reshape(-1, 2)
        found: Words = mixed(pairs[:, 0]) ^ pairs[:, 1]
    elif pa.types.is_floating(kind):
        found = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_primitive(kind):
        if pa.types.is_boolean(kind):
            values = values.cast(pa.int8())
        elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
            values = values.cast(pa.int32())
        found = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    else:
        found = _words_of_bytes(values.cast(pa.large_binary()).fill_null(b""))
    return np.where(column.is_null().to_numpy(), _NULL, found)


def _words_of_bytes(values: pa.Array) -> Words:
    """Of each text the sum of its bytes, weighted by their places, and its length."""
    _, offsets_buffer, data = values.buffers()
    if not len(values):
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64, len(values) + 1, _WORD * values.offset)
    texts = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    starts = np.arange(int(offsets[0]), int(offsets[-1]), _TEXT_BYTES)
    cuts = np.unique([0, *np.searchsorted(offsets[1:], starts[1:]), len(values)])
    sums = [_weighted_sums(texts, offsets[low : high + 1]) for low, high in pairwise(cuts)]
    return mixed(np.concatenate(sums)) ^ np.diff(offsets).view(np.uint64)


def _weighted_sums(texts: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
    """Of each text between two offsets the sum of its bytes, weighted by their places. Needs 50 bytes for each."""
    first, last = int(offsets[0]), int(offsets[-1])
    places = np.arange(last - first) - np.repeat(offsets[:-1] - first, np.diff(offsets))
    weighted = (texts[first:last].astype(np.uint64) + np.uint64(1)) * mixed(places.view(np.uint64) + _SEED)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])
    found: Words = sums[offsets[1:] - first] - sums[offsets[:-1] - first]
    return found


@dataclass(frozen=True)
class HashSelection:
    """Hashes in ranges that do not overlap, ascending."""

    lows: Words
    highs: Words

    @classmethod
    def of(cls, hashes: Words) -> "HashSelection":
        """These hashes alone."""
        distinct = np.unique(hashes)
        return cls(distinct, distinct)

    @classmethod
    def of_range(cls, number: int, ranges: int) -> "HashSelection":
        """One of equal ranges of all hashes."""
        low, high = bounds_of_range(number, ranges)
        return cls(np.array([low], np.uint64), np.array([high], np.uint64))

    def of_rows(self, hashes: Words) -> NDArray[np.bool_]:
        """Which of these hashes are selected."""
        at = np.searchsorted(self.lows, hashes, "right") - 1
        found: NDArray[np.bool_] = (at >= 0) & (hashes <= self.highs[np.maximum(at, 0)])
        return found

    def within(self, low: int, high: int) -> "HashSelection":
        """Those ranges that overlap another."""
        which = slice(
            int(np.searchsorted(self.highs, np.uint64(low), "left")),
            int(np.searchsorted(self.lows, np.uint64(high), "right")),
        )
        return HashSelection(self.lows[which], self.highs[which])


# ---- parts


@dataclass(frozen=True)
class GroupPart:
    """The description of a part in its piece's record."""

    name: str
    rows: int
    size: int
    """Bytes of its rows in memory."""
    low: int
    high: int
    """The first and the last hash."""
    blocks: int
    end: int
    """Where the blocks end and the rows after begin."""
    after: int
    """Bytes of the rows after."""
    checksum: int
    """Of the footer."""
    after_checksum: int


def encoded_part(name: str, rows: pa.Table, after: pa.Table | None = None) -> tuple[GroupPart, bytes]:
    """Encode at least one row; returns the part and its bytes."""
    hashes = group_hashes(rows)
    order = np.argsort(hashes, kind="stable")
    hashes, sorted_rows = hashes[order], rows.take(pa.array(order)).append_column(_HASH, pa.array(hashes[order]))
    starts = range(0, len(rows), BLOCK_ROWS)
    blocks = [_encoded(sorted_rows.slice(at, BLOCK_ROWS)) for at in starts]
    lengths = np.array([len(block) for block in blocks], np.uint64)
    checksums = np.array([_checksum(name, block) for block in blocks], np.uint64)
    fences = hashes[np.array(starts)]
    footer = np.stack([fences, np.cumsum(lengths) - lengths, lengths, checksums]).astype("<u8").tobytes()
    behind = b"" if after is None else _encoded(after)
    part = GroupPart(
        name=name,
        rows=len(rows),
        size=rows.nbytes,
        low=int(hashes[0]),
        high=int(hashes[-1]),
        blocks=len(blocks),
        end=int(lengths.sum()),
        after=len(behind),
        checksum=_checksum(name, footer),
        after_checksum=_checksum(name, behind),
    )
    return part, b"".join([*blocks, behind, footer])


def rows_in_part(store: StateStore, part: GroupPart, selection: HashSelection | None = None) -> list[pa.Table]:
    """The selected rows of a part; all if nothing is selected. Raises DamagedPart, TransientError."""
    if selection is not None:
        selection = selection.within(part.low, part.high)
        if not len(selection.lows):
            return []
    footer = _read(store, part, part.end + part.after, part.blocks * _FOOTER_COLUMNS * _WORD, part.checksum)
    fences, offsets, lengths, checksums = np.frombuffer(footer, "<u8").astype(np.uint64).reshape(_FOOTER_COLUMNS, -1)
    numbers = np.arange(part.blocks) if selection is None else pages_between(fences, selection.lows, selection.highs)
    data = store.read_ranges(part.name, [(int(offsets[n]), int(lengths[n])) for n in numbers])
    if data is None or [_checksum(part.name, block) for block in data] != checksums[numbers].tolist():
        raise DamagedPart(part.name)
    found = [pa.ipc.open_stream(block).read_all() for block in data]
    if selection is not None:
        found = [table.filter(pa.array(selection.of_rows(table[_HASH].to_numpy()))) for table in found]
    return [table.drop_columns([_HASH]) for table in found]


def rows_after(store: StateStore, part: GroupPart) -> pa.Table:
    """The totals of the part's groups after its checkpoint. Raises DamagedPart, TransientError."""
    return pa.ipc.open_stream(_read(store, part, part.end, part.after, part.after_checksum)).read_all()


def _read(store: StateStore, part: GroupPart, offset: int, length: int, checksum: int) -> bytes:
    data = store.read_ranges(part.name, [(offset, length)])
    if data is None or len(data[0]) != length or _checksum(part.name, data[0]) != checksum:
        raise DamagedPart(part.name)
    return data[0]


def _checksum(name: str, data: bytes) -> int:
    """Depends on the name of the part, so that another part in its place is detected."""
    return zlib.crc32(data, zlib.crc32(name.encode()))


def _encoded(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=_ZSTD) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(out.getvalue().to_pybytes())


# ---- pieces


@dataclass(frozen=True)
class PieceContents:
    """What the record of a piece says: its parts, or that it has the rows itself."""

    record: str
    static: str
    """The fingerprint of the static tables that it was computed with."""
    rows: int
    size: int
    """Bytes of the rows in memory."""
    parts: tuple[GroupPart, ...] | None = None
    """None if the record has the rows."""

    @classmethod
    def of_rows(cls, record: str, rows: pa.Table, static: str) -> "PieceContents":
        """A piece whose record has the rows."""
        return cls(record, static, rows.num_rows, rows.nbytes)

    @classmethod
    def of_parts(cls, record: str, parts: Sequence[GroupPart], static: str) -> "PieceContents":
        """A piece whose record names parts."""
        rows, size = (sum(getattr(part, name) for part in parts) for name in ("rows", "size"))
        return cls(record, static, rows, size, tuple(parts))

    def encoded(self, rows: pa.Table | None = None) -> bytes:
        """The record; `rows` are those of a piece without parts."""
        metadata = {_STATIC: self.static.encode()}
        if self.parts is not None:
            # Without the columns of totals: an older version must not take this for a piece without rows.
            rows = pa.table(
                {"part": [json.dumps(astuple(part)) for part in self.parts]}, pa.schema([("part", "string")])
            )
            metadata[_PARTED] = str(len(self.parts)).encode()
        if rows is None:
            raise TypeError(self.record)
        out = pa.BufferOutputStream()
        pq.write_table(rows.replace_schema_metadata(metadata), out, compression="zstd", write_page_checksum=True)
        return bytes(out.getvalue().to_pybytes())

    def tables(self, store: StateStore, selection: HashSelection | None = None) -> list[pa.Table]:
        """The selected rows; all if nothing is selected. Raises LostPiece, TransientError."""
        if self.parts is None:
            _, rows = read_piece(store, self.record)
            if rows is None:  # it was replaced by parts
                raise LostPiece(self.record)
            return [rows if selection is None else rows.filter(pa.array(selection.of_rows(group_hashes(rows))))]
        try:
            return [table for part in self.parts for table in rows_in_part(store, part, selection)]
        except DamagedPart as error:
            raise LostPiece(self.record) from error


def read_piece(store: StateStore, record: str) -> tuple[PieceContents, pa.Table | None]:
    """The contents of a piece, and its rows if its record has them. Raises LostPiece, TransientError."""
    data = store.read(record)
    if data is None:
        raise LostPiece(record)
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        metadata = table.schema.metadata or {}
        static = metadata.get(_STATIC, b"").decode()
        if _PARTED not in metadata:
            return PieceContents.of_rows(record, table, static), table
        parts = [GroupPart(*json.loads(text)) for text in table["part"].to_pylist()]
    except (pa.ArrowException, OSError) as error:
        raise LostPiece(record) from error
    return PieceContents.of_parts(record, parts, static), None


def rows_of_parts(store: StateStore, parts: Sequence[GroupPart], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The totals after a checkpoint; columns that only `schema` has are null. Raises DamagedPart, TransientError."""
    for part in parts:
        found = rows_after(store, part)
        for name in schema.names[len(found.column_names) :]:
            found = found.append_column(name, pa.nulls(found.num_rows, schema.field(name).type))
        yield from found.cast(schema).to_batches()
