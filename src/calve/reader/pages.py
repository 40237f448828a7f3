"""Reads some rows of a row group: only the pages that they are in are decompressed and decoded.

    column chunk   dictionary   page   page   page   page   page        all bytes are read, as Arrow does
    file           PAR1   dictionary   page   page   footer             in memory, decoded by Arrow

Arrow decodes a row group from its first row on. For a few neighboring rows that is almost all of the work. So the pages
of each column that contain wanted rows, with the dictionary, become a Parquet file of their own, whose footer is that
of the source with one column, one row group and other numbers.

Columns are flat: of nested ones the pages do not tell how many rows they have. Whatever cannot be read in this way
(nested columns, a large footer, few pages that could be skipped) is left to the caller.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.iceberg.files.thrift import (
    I64,
    STRUCT,
    Fields,
    changed,
    damaged,
    decode,
    elements,
    encode,
    list_of,
    number_of,
    struct_at,
    varint,
)

_MAGIC = b"PAR1"
_PAGE_ROWS = 20_000
"""The most rows of a page, as usual writers make them."""
_SKIPPED = 4
"""Rows are read by pages if these have at most one of so many rows that would be decoded otherwise."""
_MOST_BYTES = 64 << 20
"""Of the pages of a column; larger ones are read in batches."""
_MOST_FOOTER = 64 << 10
"""Of the footer, which is decoded here, once for each row group."""

_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 3, 4, 5, 7
"""Fields of a footer."""
_OF_ALL_COLUMNS = frozenset({_KEY_VALUES, _COLUMN_ORDERS})
_CHILDREN = 5
"""Field of an element of the schema."""
_CHUNKS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
"""Fields of a row group."""
_CHUNK_OFFSET, _CHUNK_METADATA = 2, 3
"""Fields of a column chunk; all others are about indexes and encryption."""
_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE = 5, 6, 7, 9, 11
_KEPT = frozenset({1, 2, 3, 4, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE})
"""Fields of the metadata of a column chunk: type, encodings, path and codec, and what changes."""
_PAGE_TYPE, _PAGE_UNCOMPRESSED, _PAGE_COMPRESSED, _PAGE_V1, _PAGE_V2 = 1, 2, 3, 5, 8
"""Fields of the header of a page."""
_PAGE_VALUES = 1
"""Field of both headers of data pages."""
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
"""Types of pages."""


def rows_in_pages(
    parquet: pq.ParquetFile, source: pa.NativeFile, group: int, columns: Sequence[str], rows: NDArray[np.int64]
) -> pa.RecordBatch | None:
    """Some rows of a row group, in ascending order, by the file's names of columns; rows may be there twice.

    None if another way of reading them is at least as good, or the only one. Raises OSError.
    """
    if not columns or not _skips_most(rows):
        return None
    places = _leaves(parquet, columns)
    if places is None or parquet.metadata.serialized_size > _MOST_FOOTER:
        return None
    types = [parquet.schema_arrow.field(name).type for name in columns]
    try:
        read = _GroupPages(source, _footer(parquet.metadata), group)
        arrays = [_as_known(read.rows_of(place, rows), kind) for place, kind in zip(places, types, strict=True)]
    except (LookupError, pa.ArrowException):
        return None  # Arrow reads the file itself, or says what is wrong with it
    if any(found is None for found in arrays):
        return None
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _as_known(values: pa.Array | None, kind: pa.DataType) -> pa.Array | None:
    """Values in the type that Arrow reads, which a schema of its own in the file may change; None in other types."""
    if values is not None and (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        values = values.cast(kind)
    return values if values is not None and values.type == kind else None


def _skips_most(rows: NDArray[np.int64]) -> bool:
    pages = 1 + int(np.count_nonzero(np.diff(rows // _PAGE_ROWS)))
    return pages * _PAGE_ROWS * _SKIPPED <= int(rows[-1]) + 1


def _leaves(parquet: pq.ParquetFile, columns: Sequence[str]) -> list[int] | None:
    """The places of columns; None if one of them is nested. The name of a column may look like the path to a field."""
    flat = {
        column.path: place
        for place in range(len(parquet.schema))
        if (column := parquet.schema.column(place)).max_repetition_level == 0 and column.path == column.name
    }
    found = [flat.get(name) for name in columns]
    return [place for place in found if place is not None] if None not in found else None


def _footer(metadata: pq.FileMetaData) -> Fields:
    out = pa.BufferOutputStream()
    metadata.write_metadata_file(out)
    encoded = out.getvalue().to_pybytes()
    return struct_at(encoded, len(_MAGIC))[0]


@dataclass(frozen=True)
class _Page:
    """A data page: its bytes with the header, and its rows."""

    start: int
    end: int
    first: int
    rows: int
    decoded_bytes: int


class _GroupPages:
    """The columns of one row group."""

    def __init__(self, source: pa.NativeFile, footer: Fields, group: int) -> None:
        self._source, self._footer = source, footer
        self._group, _ = struct_at(elements(footer, _ROW_GROUPS)[group], 0)
        self._chunks = elements(self._group, _CHUNKS)
        root, *others = elements(footer, _SCHEMA)
        self._root = encode(changed(decode(root), _CHILDREN, 1))
        self._leaves = [element for element in others if not number_of(struct_at(element, 0)[0], _CHILDREN)]

    def rows_of(self, place: int, rows: NDArray[np.int64]) -> pa.Array | None:
        """The values of one column in some rows; None if their pages are too large.

        Raises LookupError, pa.ArrowException, OSError.
        """
        chunk, _ = struct_at(self._chunks[place], 0)
        metadata, _ = struct_at(chunk[_CHUNK_METADATA][1], 0)
        first_page = number_of(metadata, _DATA_PAGE)
        start = min(number_of(metadata, _DICTIONARY_PAGE) or first_page, first_page)
        data = self._source.read_at(number_of(metadata, _COMPRESSED), start)
        dictionary, pages = _pages(data, int(rows[-1]))
        firsts = np.array([page.first for page in pages])
        of_row = np.searchsorted(firsts, rows, side="right") - 1
        chosen = np.flatnonzero(np.bincount(of_row, minlength=len(pages)))
        picked = [pages[number] for number in chosen]
        if sum(page.decoded_bytes for page in picked) > _MOST_BYTES:
            return None
        body = [dictionary, *(data[page.start : page.end] for page in picked)]
        file = self._file(place, metadata, body, sum(page.rows for page in picked))
        with pq.ParquetFile(pa.BufferReader(file), coerce_int96_timestamp_unit="us") as part:
            values = part.read(use_threads=False).column(0).combine_chunks()
        before = np.zeros(len(pages), np.int64)  # rows of chosen pages before each one
        before[chosen[1:]] = np.cumsum([page.rows for page in picked[:-1]])
        return values.take(pa.array(rows - firsts[of_row] + before[of_row]))

    def _file(self, place: int, metadata: Fields, body: Sequence[bytes], rows: int) -> bytes:
        """A Parquet file of one column: the dictionary, which may be empty, and some pages."""
        metadata = {number: field for number, field in metadata.items() if number in _KEPT}
        numbers = {_VALUES: rows, _COMPRESSED: sum(map(len, body)), _DATA_PAGE: len(_MAGIC) + len(body[0])}
        for number, value in numbers.items():
            metadata = changed(metadata, number, value)
        metadata = changed(metadata, _DICTIONARY_PAGE, len(_MAGIC))
        if not body[0]:
            metadata.pop(_DICTIONARY_PAGE, None)
        chunk = {_CHUNK_OFFSET: (I64, varint(0)), _CHUNK_METADATA: (STRUCT, encode(metadata))}
        group = {number: self._group[number] for number in (_GROUP_BYTES, _GROUP_ROWS)}
        group = {**changed(group, _GROUP_ROWS, rows), _CHUNKS: list_of([encode(chunk)])}
        footer = {number: field for number, field in self._footer.items() if number not in _OF_ALL_COLUMNS}
        footer |= {_SCHEMA: list_of([self._root, self._leaves[place]]), _ROW_GROUPS: list_of([encode(group)])}
        encoded = encode(changed(footer, _ROWS, rows))
        return b"".join((_MAGIC, *body, encoded, struct.pack("<I", len(encoded)), _MAGIC))


def _pages(data: bytes, last_row: int) -> tuple[bytes, list[_Page]]:
    """The dictionary of a column chunk, empty without one, and its data pages up to that of a row.

    Raises LookupError, pa.ArrowInvalid for damaged chunks.
    """
    dictionary, pages = b"", list[_Page]()
    at = first = 0
    while first <= last_row:
        header, body = struct_at(data, at)
        end = body + number_of(header, _PAGE_COMPRESSED)
        kind = number_of(header, _PAGE_TYPE)
        if not body <= end <= len(data):
            raise damaged("a page is not within its column chunk")
        if kind == _DICTIONARY:
            dictionary = data[at:end]
        elif kind in {_DATA, _DATA_V2}:
            known, _ = struct_at(header[_PAGE_V1 if kind == _DATA else _PAGE_V2][1], 0)
            rows = number_of(known, _PAGE_VALUES)
            pages.append(_Page(at, end, first, rows, number_of(header, _PAGE_UNCOMPRESSED)))
            first += rows
        at = end
    return dictionary, pages
