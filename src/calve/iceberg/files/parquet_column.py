"""Copies a Parquet file and adds a column, without decoding those that it has.

    source   PAR1  row groups, indexes, filters                   footer
    copy     PAR1  row groups, indexes, filters  chunks of ids    footer of the source, with one more column

Everything before the footer is copied byte by byte, so all offsets in it, also those that indexes contain, stay valid.
The new column is written by Arrow to a file in memory with the same row groups; its chunks follow the copied bytes, and
what that file's footer states about them is taken over with shifted offsets. The other parts of the footer, known or
not, are copied as they are.

Footers are structs in Thrift's compact protocol. A value is kept as its bytes, and only what changes is decoded. A
footer that would not be encoded to the same bytes again is refused, and the new footer is parsed by Arrow before it is
written.
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_PIECE_BYTES = 16 << 20
"""The most bytes that are read at once; a smaller file is one request to its store."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST = range(1, 10)
_STRUCT = 12
"""Types of Thrift; footers have neither sets nor maps."""
_LONG_LIST = 15
_FIXED = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}
"""Bytes of a value. Booleans have one in lists, and none in structs."""
_NUMBERS = frozenset({_I16, _I32, _I64})

_Fields = dict[int, tuple[int, bytes]]
"""The fields of a struct by id: type and encoded value."""

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
    footer = _decode(encoded)
    sizes = [_number(_decode(group), _GROUP_ROWS) for group in _elements(footer, _ROW_GROUPS)]
    if sum(sizes) != len(values) or _number(footer, _ROWS) != len(values):
        raise pa.ArrowInvalid(f"Invalid Parquet file: it has {sum(sizes):,} rows, expected {len(values):,}")
    column = _column_file(field, values, sizes, compression)
    column_start, column_footer = _footer_at_end(pa.BufferReader(column), column, len(column))
    extended = _with_column(footer, _decode(column_footer), field, shift=footer_start - len(_MAGIC))
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
        raise _damaged("it does not end with its magic number")
    (length,) = struct.unpack_from("<I", tail, len(tail) - 8)
    start = size - 8 - length
    if start < len(_MAGIC):
        raise _damaged("its footer is longer than the file")
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


def _with_column(footer: _Fields, column: _Fields, field: pa.Field, *, shift: int) -> bytes:
    """The footer of a file with the only column of another one, whose bytes are further back by `shift`."""
    root, *elements = _elements(footer, _SCHEMA)
    _, leaf = _elements(column, _SCHEMA)
    root = _encode(_plus(_decode(root), _CHILDREN, 1))
    pairs = zip(_elements(footer, _ROW_GROUPS), _elements(column, _ROW_GROUPS), strict=True)
    changed = {
        **footer,
        _SCHEMA: _list_of([root, *elements, leaf]),
        _ROW_GROUPS: _list_of([_extended_group(_decode(old), _decode(new), shift) for old, new in pairs]),
    }
    if _COLUMN_ORDERS in footer and _COLUMN_ORDERS in column:
        orders = [*_elements(footer, _COLUMN_ORDERS), *_elements(column, _COLUMN_ORDERS)]
        changed[_COLUMN_ORDERS] = _list_of(orders)
    else:
        changed.pop(_COLUMN_ORDERS, None)
    if _KEY_VALUES in footer:
        changed[_KEY_VALUES] = _list_of([_with_field(entry, field) for entry in _elements(footer, _KEY_VALUES)])
    return _encode(changed)


def _extended_group(group: _Fields, other: _Fields, shift: int) -> bytes:
    """A row group with the only column of another one."""
    (chunk,) = (_decode(one) for one in _elements(other, _CHUNKS))
    metadata = _decode(chunk[_CHUNK_METADATA][1])
    for place in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM_FILTER):
        metadata = _plus(metadata, place, shift)
    chunk = {**chunk, _CHUNK_METADATA: (_STRUCT, _encode(metadata))}
    if _number(chunk, _CHUNK_OFFSET):  # 0 if nothing repeats the metadata there
        chunk = _plus(chunk, _CHUNK_OFFSET, shift)
    for place in (_OFFSET_INDEX, _COLUMN_INDEX):
        chunk.pop(place, None)
        chunk.pop(place + 1, None)  # its length
    group = {**group, _CHUNKS: _list_of([*_elements(group, _CHUNKS), _encode(chunk)])}
    group = _plus(group, _GROUP_BYTES, _number(metadata, _UNCOMPRESSED))
    return _encode(_plus(group, _GROUP_COMPRESSED, _number(metadata, _COMPRESSED)))


def _with_field(entry: bytes, field: pa.Field) -> bytes:
    """An entry of the file's metadata; if it is Arrow's schema, it lists the new column, too."""
    fields = _decode(entry)
    if _binary(fields, _KEY) != _ARROW_SCHEMA:
        return entry
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(_binary(fields, _VALUE))))
    value = base64.b64encode(schema.append(field).serialize())
    return _encode({**fields, _VALUE: (_BINARY, _varint(len(value)) + value)})


def _check(footer: bytes, field: pa.Field, rows: int, groups: int) -> None:
    """Let Arrow parse a new footer."""
    found = pq.read_metadata(pa.BufferReader(b"".join((_MAGIC, footer, struct.pack("<I", len(footer)), _MAGIC))))
    last = found.schema.column(found.num_columns - 1).path
    if (found.num_rows, found.num_row_groups, last) != (rows, groups, field.name):
        raise _damaged(f"its footer cannot be extended by {field.name}")


def _damaged(detail: str) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"Invalid Parquet file: {detail}")


def _decode(data: bytes) -> _Fields:
    """The fields of a struct. Raises pa.ArrowInvalid unless they are encoded to the same bytes again."""
    try:
        fields, _ = _fields(data, 0)
    except IndexError as error:
        raise _damaged("its footer is truncated") from error
    if _encode(fields) != data:
        raise _damaged("its footer is encoded in an unknown way")
    return fields


def _fields(data: bytes, at: int) -> tuple[_Fields, int]:
    found: _Fields = {}
    number = 0
    while header := data[at]:
        number, kind, at = _field_header(data, at, header, number)
        end = at if kind in {_TRUE, _FALSE} else _end_of(kind, data, at)
        found[number] = (kind, data[at:end])
        at = end
    return found, at + 1


def _field_header(data: bytes, at: int, header: int, last: int) -> tuple[int, int, int]:
    """The id and type of a field, and where its value begins."""
    if header >> 4:
        return last + (header >> 4), header & 15, at + 1
    number, at = _read_varint(data, at + 1)
    return (number >> 1) ^ -(number & 1), header & 15, at


def _end_of(kind: int, data: bytes, at: int) -> int:
    """Where a value ends, unless it is a boolean of a struct."""
    if kind in _NUMBERS:
        while data[at] & 128:
            at += 1
        return at + 1
    if kind == _BINARY:
        length, at = _read_varint(data, at)
        return at + length
    if kind == _STRUCT:
        number = 0
        while header := data[at]:
            number, inner, at = _field_header(data, at, header, number)
            at = at if inner in {_TRUE, _FALSE} else _end_of(inner, data, at)
        return at + 1
    if kind == _LIST:
        inner, length, at = _list_header(data, at)
        for _ in range(length):
            at = _end_of(inner, data, at)
        return at
    if kind in _FIXED:
        return at + _FIXED[kind]
    raise _damaged("its footer has values of an unknown type")


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """The type and number of a list's elements, and where they begin."""
    header = data[at]
    if header >> 4 != _LONG_LIST:
        return header & 15, header >> 4, at + 1
    length, at = _read_varint(data, at + 1)
    return header & 15, length, at


def _encode(fields: _Fields) -> bytes:
    parts: list[bytes] = []
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        near = 0 < number - last <= 15
        parts += (
            bytes([(number - last) << 4 | kind]) if near else bytes([kind]) + _varint(number << 1),
            value,
        )
        last = number
    return b"".join((*parts, b"\0"))


def _elements(fields: _Fields, number: int) -> list[bytes]:
    """The structs of a list."""
    data = fields[number][1] if number in fields else b"\x0c"
    kind, length, at = _list_header(data, 0)
    found = []
    for _ in range(length):
        end = _end_of(kind, data, at)
        found.append(data[at:end])
        at = end
    return found


def _list_of(structs: Sequence[bytes]) -> tuple[int, bytes]:
    length = len(structs)
    short = length < _LONG_LIST
    header = bytes([length << 4 | _STRUCT]) if short else bytes([_LONG_LIST << 4 | _STRUCT]) + _varint(length)
    return _LIST, b"".join((header, *structs))


def _number(fields: _Fields, number: int) -> int:
    if number not in fields:
        return 0
    value, _ = _read_varint(fields[number][1], 0)
    return (value >> 1) ^ -(value & 1)


def _plus(fields: _Fields, number: int, more: int) -> _Fields:
    """The fields with a larger number, if they have it."""
    if number not in fields:
        return fields
    value = _number(fields, number) + more
    return {**fields, number: (fields[number][0], _varint(value << 1 if value >= 0 else ~(value << 1)))}


def _binary(fields: _Fields, number: int) -> bytes:
    data = fields[number][1] if number in fields else b"\0"
    length, at = _read_varint(data, 0)
    return data[at : at + length]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if not byte & 128:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
