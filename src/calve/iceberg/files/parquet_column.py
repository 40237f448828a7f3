"""Copies a Parquet file and adds a column, without decoding those that it has.

    source   PAR1  row groups, indexes, filters                   footer
    copy     PAR1  row groups, indexes, filters  chunks of ids    footer of the source, with one more column

Everything before the footer is copied byte by byte, so all offsets in it, also those that indexes contain, stay valid.
The new column is written by Arrow to a file in memory with the same row groups; its chunks follow the copied bytes, and
what that file's footer states about them is taken over with shifted offsets. The other parts of the footer, known or
not, are copied as they are.

A footer (`thrift.py`) that would not be encoded to the same bytes again is refused, and the new footer is parsed by
Arrow before it is written.
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from calve.iceberg.files.thrift import (
    BINARY,
    STRUCT,
    Fields,
    binary_of,
    damaged,
    decode,
    elements,
    encode,
    list_of,
    number_of,
    plus,
    varint,
)

_MAGIC = b"PAR1"
_PIECE_BYTES = 16 << 20
"""The most bytes that are read at once; a smaller file is one request to its store."""

_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 3, 4, 5, 7
"""Fields of a footer."""
_CHILDREN = 5
"""Field of an element of the schema."""
_CHUNKS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_COMPRESSED = 1, 2, 3, 6
"""Fields of a row group."""
_CHUNK_OFFSET, _CHUNK_METADATA, _OFFSET_INDEX, _COLUMN_INDEX = 2, 3, 4, 6
"""Fields of a column chunk."""
_UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM_FILTER = 6, 7, 9, 10, 11, 14
"""Fields of the metadata of a column chunk."""
_KEY, _VALUE = 1, 2
"""Fields of an entry of the file's metadata."""
_ARROW_SCHEMA = b"ARROW:schema"


@dataclass(frozen=True)
class Compression:
    """How the pages of a column are compressed."""

    codec: str
    level: int | None = None


def copy_with_column(
    source: pa.NativeFile, out: pa.NativeFile, field: pa.Field, values: pa.Array, compression: Compression
) -> int:
    """Write the source and the column to `out`, which stays open; returns the size.

    There is one value for each row. Raises pa.ArrowInvalid if the file is damaged or has another number of rows,
    OSError.
    """
    size = int(source.size())
    tail_start = max(0, size - _PIECE_BYTES)
    tail = source.read_at(size - tail_start, tail_start)
    footer_start, encoded = _footer_at_end(source, tail, size)
    footer = decode(encoded)
    sizes = [number_of(decode(group), _GROUP_ROWS) for group in elements(footer, _ROW_GROUPS)]
    if sum(sizes) != len(values) or number_of(footer, _ROWS) != len(values):
        raise pa.ArrowInvalid(f"Invalid Parquet file: it has {sum(sizes):,} rows, expected {len(values):,}")
    column = _column_file(field, values, sizes, compression)
    column_start, column_footer = _footer_at_end(pa.BufferReader(column), column, len(column))
    extended = _with_column(footer, decode(column_footer), field, shift=footer_start - len(_MAGIC))
    _check(extended, field, len(values), len(sizes))
    for piece in (
        *_pieces(source, min(tail_start, footer_start)),
        memoryview(tail)[: max(0, footer_start - tail_start)],
        memoryview(column)[len(_MAGIC) : column_start],
        extended,
        struct.pack("<I", len(extended)) + _MAGIC,
    ):
        out.write(piece)
    return footer_start + column_start - len(_MAGIC) + len(extended) + 8


def _footer_at_end(source: pa.NativeFile, tail: bytes, size: int) -> tuple[int, bytes]:
    """Where the footer of a file begins, and the footer; `tail` are the last bytes of the file."""
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise damaged("it does not end with its magic number")
    (length,) = struct.unpack_from("<I", tail, len(tail) - 8)
    start = size - 8 - length
    if start < len(_MAGIC):
        raise damaged("its footer is longer than the file")
    if length + 8 <= len(tail):
        return start, bytes(tail[len(tail) - 8 - length : len(tail) - 8])
    return start, source.read_at(length, start)


def _pieces(source: pa.NativeFile, end: int) -> Iterator[bytes]:
    for start in range(0, end, _PIECE_BYTES):
        yield source.read_at(min(_PIECE_BYTES, end - start), start)


def _column_file(field: pa.Field, values: pa.Array, sizes: Sequence[int], compression: Compression) -> pa.Buffer:
    """A file of the column alone, with these row groups."""
    out = pa.BufferOutputStream()
    schema = pa.schema([field])
    with pq.ParquetWriter(
        out,
        schema,
        use_dictionary=False,
        compression=compression.codec,
        compression_level=compression.level,
        store_schema=False,
    ) as writer:
        done = 0
        for rows in sizes:
            writer.write_table(
                pa.Table.from_arrays([values.slice(done, rows)], schema=schema), row_group_size=max(1, rows)
            )
            done += rows
    return out.getvalue()


def _with_column(footer: Fields, column: Fields, field: pa.Field, *, shift: int) -> bytes:
    """The footer of a file with the only column of another one, whose bytes are further back by `shift`."""
    root, *others = elements(footer, _SCHEMA)
    _, leaf = elements(column, _SCHEMA)
    root = encode(plus(decode(root), _CHILDREN, 1))
    pairs = zip(elements(footer, _ROW_GROUPS), elements(column, _ROW_GROUPS), strict=True)
    changed = {
        **footer,
        _SCHEMA: list_of([root, *others, leaf]),
        _ROW_GROUPS: list_of([_extended_group(decode(old), decode(new), shift) for old, new in pairs]),
    }
    if _COLUMN_ORDERS in footer and _COLUMN_ORDERS in column:
        orders = [*elements(footer, _COLUMN_ORDERS), *elements(column, _COLUMN_ORDERS)]
        changed[_COLUMN_ORDERS] = list_of(orders)
    else:
        changed.pop(_COLUMN_ORDERS, None)
    if _KEY_VALUES in footer:
        changed[_KEY_VALUES] = list_of([_with_field(entry, field) for entry in elements(footer, _KEY_VALUES)])
    return encode(changed)


def _extended_group(group: Fields, other: Fields, shift: int) -> bytes:
    """A row group with the only column of another one."""
    (chunk,) = (decode(one) for one in elements(other, _CHUNKS))
    metadata = decode(chunk[_CHUNK_METADATA][1])
    for place in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM_FILTER):
        metadata = plus(metadata, place, shift)
    chunk = {**chunk, _CHUNK_METADATA: (STRUCT, encode(metadata))}
    if number_of(chunk, _CHUNK_OFFSET):  # 0 if nothing repeats the metadata there
        chunk = plus(chunk, _CHUNK_OFFSET, shift)
    for place in (_OFFSET_INDEX, _COLUMN_INDEX):
        chunk.pop(place, None)
        chunk.pop(place + 1, None)  # its length
    group = {**group, _CHUNKS: list_of([*elements(group, _CHUNKS), encode(chunk)])}
    group = plus(group, _GROUP_BYTES, number_of(metadata, _UNCOMPRESSED))
    return encode(plus(group, _GROUP_COMPRESSED, number_of(metadata, _COMPRESSED)))


def _with_field(entry: bytes, field: pa.Field) -> bytes:
    """An entry of the file's metadata; if it is Arrow's schema, it lists the new column, too."""
    fields = decode(entry)
    if binary_of(fields, _KEY) != _ARROW_SCHEMA:
        return entry
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(binary_of(fields, _VALUE))))
    value = base64.b64encode(schema.append(field).serialize())
    return encode({**fields, _VALUE: (BINARY, varint(len(value)) + value)})


def _check(footer: bytes, field: pa.Field, rows: int, groups: int) -> None:
    """Let Arrow parse a new footer."""
    found = pq.read_metadata(pa.BufferReader(b"".join((_MAGIC, footer, struct.pack("<I", len(footer)), _MAGIC))))
    last = found.schema.column(found.num_columns - 1).path
    if (found.num_rows, found.num_row_groups, last) != (rows, groups, field.name):
        raise damaged(f"its footer cannot be extended by {field.name}")
