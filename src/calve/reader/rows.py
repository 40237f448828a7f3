"""Reads the rows of a part of a data file as a stream of record batches.

Of each row group, the columns that deletes compare are read first; the requested columns follow, in batches, only if
rows remain. So memory is bounded by the keys of one row group and, compressed, its columns.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.iceberg.files.store import open_input
from calve.iceberg.schema.readable import ReadTarget
from calve.model.scan import FileSplit, ScanFile
from calve.reader.deletes import FileDeletes, TaskDeletes
from calve.reader.projection import Projection, field_id
from calve.reader.row_groups import GroupTest

BATCH_BYTES = 16 << 20
"""The approximate decoded size of a batch."""
MAX_BATCH_ROWS = 65_536
MIN_BATCH_ROWS = 256
_THREADED_BYTES = 4 << 20
"""Columns of fewer decoded bytes are read by one thread: to hand them to others takes longer than to decode them."""
_LEAST_ROW_BYTES = 8
"""Of a few columns of a row; dictionaries make them smaller in files than in memory."""


def read_split(split: FileSplit, target: ReadTarget, deletes: TaskDeletes) -> Iterator[pa.RecordBatch]:
    """The live rows of a split, in file order. Raises OSError, TerminalError."""
    file_deletes = deletes.of(split.file)
    with (
        open_input(split.file.path, target.io_properties) as source,
        pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet,
    ):
        reader = _FileReader(parquet, target, split, file_deletes)
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if split.start <= group_offset(parquet.metadata.row_group(group)) < split.end and reader.may_match(group):
                yield from reader.group(group, first, rows)
            first += rows


@dataclass(frozen=True)
class LiveRows:
    """The live rows of a file."""

    positions: NDArray[np.int64]
    """Ascending."""
    rows: int
    """Rows of the file, including deleted ones."""
    row_bytes: int
    """The approximate size of one row in memory."""


def live_rows(file: ScanFile, target: ReadTarget, deletes: TaskDeletes) -> LiveRows:
    """The positions of the rows that `read_split` returns for the whole file. Raises OSError, TerminalError."""
    split = whole(file)
    file_deletes = deletes.of(file)
    with (
        open_input(file.path, target.io_properties) as source,
        pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet,
    ):
        reader = _FileReader(parquet, target, split, file_deletes)
        parts, first, size = [np.zeros(0, np.int64)], 0, 0
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            parts.append(first + np.flatnonzero(~reader.deleted(group, first, rows)))
            first += rows
            size += parquet.metadata.row_group(group).total_byte_size
    return LiveRows(np.concatenate(parts), first, size // max(1, first))


@dataclass(frozen=True)
class HeldRows:
    """The live rows of a file that was read at once."""

    live: LiveRows
    rows: pa.Table
    """The columns of the target."""
    keys: tuple[pa.ChunkedArray, ...]
    """The columns that were asked for, as keys are compared."""


def read_at_once(file: ScanFile, target: ReadTarget, deletes: FileDeletes, ids: Sequence[int]) -> HeldRows:
    """What `live_rows` and `read_split` return for a whole file, and the key columns `ids`, in one read.

    For small files: to open one takes longer than to read it. Raises OSError.
    """
    with (
        open_input(file.path, target.io_properties) as source,
        pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as parquet,
    ):
        return _FileReader(parquet, target, whole(file), deletes).everything(ids)


def whole(file: ScanFile) -> FileSplit:
    """A split that covers a whole file."""
    return FileSplit(file, 0, sys.maxsize)


class _FileReader:
    """Reads row groups of one open file."""

    def __init__(self, parquet: pq.ParquetFile, target: ReadTarget, split: FileSplit, deletes: FileDeletes) -> None:
        self._parquet, self._target = parquet, target
        self._projection = Projection(parquet.schema_arrow, target, dict(split.file.constants))
        self._columns = self._projection.needed(number for f in target.schema if (number := field_id(f)) is not None)
        self._key_columns = self._projection.needed(target.keys[number].path[0] for number in deletes.key_ids)
        self._deletes = deletes
        self.may_match = GroupTest(parquet, self._projection.sources, target.where).may_match

    def group(self, group: int, first: int, rows: int) -> Iterator[pa.RecordBatch]:
        deleted = self.deleted(group, first, rows)
        gone = int(deleted.sum())
        if gone == rows:
            return
        done = 0
        for batch in group_batches(self._parquet, group, self._columns):
            piece = deleted[done : done + batch.num_rows]
            done += batch.num_rows
            yield from self._left(self._projection.batch(batch), piece if gone else None)

    def everything(self, ids: Sequence[int]) -> HeldRows:
        ordering = self._projection.needed(self._target.keys[number].path[0] for number in ids)
        names = list(dict.fromkeys([*self._columns, *self._key_columns, *ordering]))
        metadata = self._parquet.metadata
        if names:
            table = self._parquet.read(names, use_threads=False)
        else:
            table = pa.Table.from_batches([rows_without_columns(metadata.num_rows)])
        deleted = self._deletes.of(0, table.num_rows, lambda: (self._projection, table))
        left = table.filter(pa.array(~deleted)) if deleted.any() else table
        batches = [self._projection.batch(batch) for batch in left.to_batches()]
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return HeldRows(
            LiveRows(np.flatnonzero(~deleted), table.num_rows, size // max(1, table.num_rows)),
            pa.Table.from_batches(batches, self._target.schema),
            tuple(self._projection.key(left, number) for number in ids),
        )

    def deleted(self, group: int, first: int, rows: int) -> NDArray[np.bool_]:
        """Which rows of a group are deleted; `first` is the position of the first one."""
        return self._deletes.of(first, rows, partial(self._keys, group, rows))

    def _left(self, batch: pa.RecordBatch, deleted: NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
        if deleted is not None and deleted.any():
            batch = batch.filter(pa.array(~deleted))
        if batch.num_rows:
            yield batch

    def _keys(self, group: int, rows: int) -> tuple[Projection, pa.Table]:
        if not self._key_columns:
            return self._projection, pa.Table.from_batches([rows_without_columns(rows)])
        return self._projection, self._parquet.read_row_group(group, columns=self._key_columns)


def group_batches(parquet: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns of a row group, by the file's names, in batches of bounded size. Raises OSError."""
    rows = parquet.metadata.row_group(group).num_rows
    if columns:
        size = _batch_rows(parquet.metadata.row_group(group), rows)
        yield from parquet.iter_batches(size, row_groups=[group], columns=columns)
        return
    for start in range(0, rows, MAX_BATCH_ROWS):  # only the length of the file is needed
        yield rows_without_columns(min(MAX_BATCH_ROWS, rows - start))


def first_rows(parquet: pq.ParquetFile, group: int, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The first rows of a row group, by the file's names, in as few batches of bounded size as possible.

    A row that nobody asked for costs little more than its decoding, so every batch counts. Raises OSError.
    """
    if not columns:
        yield rows_without_columns(rows)
        return
    row_bytes = _row_bytes(parquet.metadata.row_group(group), columns)
    most = max(MIN_BATCH_ROWS, BATCH_BYTES // row_bytes)
    size, done = -(-rows // -(-rows // most)), 0
    threads = len(columns) > 1 and rows * row_bytes >= _THREADED_BYTES
    for batch in parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=threads):
        yield batch
        done += batch.num_rows
        if done >= rows:
            return  # what follows is not decoded


def _row_bytes(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """The approximate decoded size of some columns of a row."""
    chunks = (group.column(place) for place in range(group.num_columns))
    size = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if any(chunk.path_in_schema == name or chunk.path_in_schema.startswith(f"{name}.") for name in columns)
    )
    return int(max(_LEAST_ROW_BYTES, size // max(1, group.num_rows)))


def rows_without_columns(rows: int) -> pa.RecordBatch:
    """Rows of a file that has none of the wanted columns."""
    return pa.RecordBatch.from_pydict({"rows": pa.nulls(rows)})


def _batch_rows(group: pq.RowGroupMetaData, rows: int) -> int:
    per_row = max(1, group.total_byte_size // max(1, rows))
    return int(min(MAX_BATCH_ROWS, max(MIN_BATCH_ROWS, BATCH_BYTES // per_row)))


def group_offset(group: pq.RowGroupMetaData) -> int:
    """The offset of a row group in its file."""
    first = group.column(0)
    offsets = [first.data_page_offset]
    if first.has_dictionary_page and first.dictionary_page_offset:
        offsets.append(first.dictionary_page_offset)
    return int(min(offsets))
