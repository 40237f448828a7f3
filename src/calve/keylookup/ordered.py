"""Decides which of two rows of a key stays, if changes are ordered across checkpoints.

The rows of a batch are already in files when they are compared with the table, and only a commit attempt knows the
table's state. So a row that is older than the table's row is deleted by position in the commit that adds it, and the
table's row stays. An older delete does not affect the table's row. If both are equal, the batch wins, because it came
later.

A deleted key is forgotten: an older change that arrives after the delete restores its row.

The driver does all of this; it holds the keys and orders of the batch and of the matching rows in memory.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calve.clock import IdSource
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.planning.key_scan import KeyScan
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.index.manifest import Run
from calve.keylookup.resolver import files_matching_keys, propose_deletes, propose_with_ids
from calve.keylookup.row_ids import IdReading, IdWriting, RowWriter
from calve.keylookup.search import search_here, write_deletes
from calve.model.files import Manifest, ResolvedDeletes, WrittenFile
from calve.model.table import TableState
from calve.reader.key_positions import KeyMemory, PositionFinder, key_columns_at
from calve.reader.key_sets import KeySet, Numbers

Columns = Sequence[pa.ChunkedArray]


class OrderedResolver:
    """Resolves keys of one sink whose changes are ordered across checkpoints. Only its committer thread calls it."""

    def __init__(self, table: IcebergTable, ids: IdSource, rows: RowWriter) -> None:
        self._table, self._ids, self._rows = table, ids, rows

    def resolve(
        self, state: TableState, keys: Sequence[Manifest], commit_id: str, added: Sequence[Manifest]
    ) -> ResolvedDeletes:
        scan = self._table.plan_keys(state, keys, added, ordered=True)
        if not scan.candidates:
            return ResolvedDeletes()
        finder = PositionFinder(scan.target, [c.file for c in scan.candidates], KeyMemory())
        found = last_in_order(scan, search_here(files_matching_keys(scan, finder), finder), finder)
        name = f"{commit_id}/{self._ids.new_id()}"
        if scan.place.vectors:
            writing = IdWriting(self._table, self._rows, IdReading(KeyMemory()))
            return propose_with_ids(state, scan, found, writing, name)
        return propose_deletes(self._table, scan, write_deletes(scan.place, found, name), name)

    def look_ahead(self) -> None:
        """Does nothing: nothing is remembered between batches."""

    def prepared(self, _files: Sequence[WrittenFile]) -> tuple[Run, ...]:
        """Does nothing, for the same reason."""
        return ()

    def adopt(self, _runs: Sequence[Run]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def last_in_order(scan: KeyScan, found: Sequence[RowPositions], finder: PositionFinder) -> list[RowPositions]:
    """The rows to delete, given the rows that have the keys of a batch. Raises TransientError."""
    if not found:
        return []
    comparison = _Comparison(scan, finder)
    older, beaten = comparison.decide(found)
    return [*older, *comparison.rows_of(beaten)]


class _Comparison:
    def __init__(self, scan: KeyScan, finder: PositionFinder) -> None:
        self._scan, self._width = scan, len(scan.key_ids)
        columns = finder.key_columns_of(scan.candidates[0].file, *scan.order_ids)
        self._orders = columns[self._width :]
        self._keys = KeySet(columns[: self._width], np.zeros(len(columns[0]), np.int64))
        self._place = np.zeros(len(self._keys), np.int64)
        """The index of each key's order."""
        self._place[self._keys.numbers(columns[: self._width])] = np.arange(len(columns[0]))

    def decide(self, found: Sequence[RowPositions]) -> tuple[list[RowPositions], Numbers]:
        """The rows that are not newer than the batch, and the numbers of the keys that have a newer row."""
        ids = (*self._scan.key_ids, *self._scan.order_ids)
        there = [key_columns_at(self._scan.target, part, ids) for part in found]
        numbers = [self._keys.numbers(columns[: self._width]) for columns in there]
        ranks = _ranks([self._orders, *(columns[self._width :] for columns in there)])
        newer = [rank > ranks[0][self._place[number]] for rank, number in zip(ranks[1:], numbers, strict=True)]
        older = [RowPositions(part.file, part.positions[~flags]) for part, flags in zip(found, newer, strict=True)]
        beaten = np.unique(np.concatenate([n[flags] for n, flags in zip(numbers, newer, strict=True)]))
        return [part for part in older if len(part.positions)], beaten

    def rows_of(self, beaten: Numbers) -> Iterator[RowPositions]:
        """The batch's rows with these keys, in the files that are about to be added."""
        for file in (one.file for one in self._scan.added) if len(beaten) else ():
            everywhere = RowPositions(file, np.arange(file.rows))
            numbers = self._keys.numbers(key_columns_at(self._scan.target, everywhere, self._scan.key_ids))
            positions = np.flatnonzero(np.isin(numbers, beaten))
            if len(positions):
                yield RowPositions(file, positions)


def _ranks(parts: Sequence[Columns]) -> list[NDArray[np.int64]]:
    """For each row of each part its rank among all rows; equal rows have the same rank, nulls come first, NaN last."""
    joined = [pa.chunked_array([chunk for part in parts for chunk in part[at].chunks]) for at in range(len(parts[0]))]
    compared = [column for values in joined for column in _comparable(values)]
    table = pa.table(compared, names=[str(at) for at in range(len(compared))])
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    ascending = table.take(order)
    differs = np.zeros(len(table), bool)
    for column in ascending.columns:
        differs[1:] |= (
            pc.not_equal(column.slice(1), column.slice(0, len(table) - 1)).fill_null(fill_value=False).to_numpy()
        )
    ranks = np.empty(len(table), np.int64)
    ranks[order.to_numpy()] = np.cumsum(differs)
    ends = np.cumsum([len(part[0]) for part in parts])
    return np.split(ranks, ends[:-1])


def _comparable(values: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Columns that compare as an order does: NaN equals itself, and is above all other numbers."""
    yield values.is_valid()
    if pa.types.is_floating(values.type):
        unordered = pc.is_nan(values)
        yield unordered
        values = pc.if_else(unordered, pa.scalar(0.0, values.type), values)
    yield values
