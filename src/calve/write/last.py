"""The last change per key, on Arrow data. Pure.

`last_per_key` sorts a table in memory; `last_of_runs` takes batches that are sorted by key and order already and holds
back one row at most, so that a key whose changes span batches is seen as one.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from calve.model.change import OP, UPSERT


def last_per_key(table: pa.Table, key: Sequence[str], order: Sequence[str]) -> pa.Table:
    """One row per key, the one with the greatest order, sorted by key. Of equal ones the latest in the table stays.

    Without a key every row stays.
    """
    if table.num_rows == 0 or not key:
        return table
    ranked = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in (*key, *order)])
    sorted_keys = table.select(list(key)).take(ranked).combine_chunks()
    last = pa.concat_arrays([_differs(sorted_keys, sorted_keys.slice(1)), pa.array([True])])
    return table.take(ranked.filter(last))


def last_of_runs(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The last row of every run of equal keys."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = batch.select(list(key))
        if held is not None and _differs(held.select(list(key)), keys)[0].as_py():
            yield held
        kept = _filtered(batch.slice(0, batch.num_rows - 1), _differs(keys, keys.slice(1)))
        if kept.num_rows:
            yield kept
        held = batch.take([batch.num_rows - 1])  # a copy: a slice would keep the whole batch in memory
    if held is not None:
        yield held


def upserts(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """The rows that the table gets."""
    return _filtered(batch, pc.equal(batch[OP], UPSERT)) if OP in batch.schema.names else batch


def _filtered(batch: pa.RecordBatch | pa.Table, mask: pa.Array) -> pa.RecordBatch | pa.Table:
    """Most batches keep every row: those are not copied."""
    return batch if pc.all(mask, min_count=0).as_py() else batch.filter(mask)


def _differs(left: pa.RecordBatch | pa.Table, right: pa.RecordBatch | pa.Table) -> pa.Array:
    """For each row that both have, whether the keys at its position differ."""
    rows = min(left.num_rows, right.num_rows)
    pairs = zip(left.slice(0, rows).columns, right.slice(0, rows).columns, strict=True)
    differs = reduce(pc.or_, (pc.not_equal(a, b) for a, b in pairs))
    return differs.combine_chunks() if isinstance(differs, pa.ChunkedArray) else differs
