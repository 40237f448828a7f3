"""Reduces changes to the last one per key.

Rows with multiplicities (DIFF) become changes in Spark: within one time equal rows cancel, and retractions apply before
insertions. In a table with one row per key, a key has at most one row at any time. How many rows it had before a batch
is unknown here; if neither zero nor one is consistent with the batch, the rows conflict (BadRow).

On Arrow data, `last_places` sorts a table in memory; `last_of_runs` takes batches that are already sorted by key and
order, and holds back at most one row, so that it recognizes a key whose changes span batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import BadRow
from calve.model.change import BAD, DELETE, DIFF, OP, ORDER_PREFIX, TIME, UPSERT, table_columns
from calve.spark.sqltext import quoted

_LEFT, _MOST, _LEAST = "_calve__left", "_calve__most", "_calve__least"


def log_rows(frame: DataFrame) -> DataFrame:
    """Each row once per time, with its multiplicity. Keeps the order of the columns."""
    columns = [quoted(name) for name in table_columns(frame.columns, log=True)]
    net = _net_rows(frame).withColumn(DIFF, F.col(DIFF).cast("int"))
    return net.select(*columns, F.lit(None).cast("string").alias(BAD))


def last_rows(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """A frame of changes: for each key and time, its retraction and then its insertion."""
    inserted = F.col(DIFF) > 0
    columns = [quoted(name) for name in key]
    by_key = Window.partitionBy(*columns)
    so_far = by_key.orderBy(TIME, inserted).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = _net_rows(frame).withColumn(_LEFT, F.sum(DIFF).over(so_far))
    counted = counted.withColumn(_MOST, F.max(_LEFT).over(by_key)).withColumn(_LEAST, F.min(_LEFT).over(by_key))
    several = F.greatest(_MOST, F.lit(0)) - F.least(_LEAST, F.lit(0)) > 1
    return counted.select(
        *[quoted(name) for name in table_columns(frame.columns)],
        F.when(inserted, UPSERT).otherwise(DELETE).cast("tinyint").alias(OP),
        F.col(TIME).alias(f"{ORDER_PREFIX}0"),
        inserted.alias(f"{ORDER_PREFIX}1"),
        F.when(several, F.lit(_violation(key).encode())).alias(BAD),
    )


def _net_rows(frame: DataFrame) -> DataFrame:
    columns = [quoted(name) for name in table_columns(frame.columns)]
    net = frame.groupBy(*columns, TIME).agg(F.sum(F.col(DIFF).cast("bigint")).alias(DIFF))
    return net.where(F.col(DIFF) != 0).select(*columns, DIFF, TIME)


def _violation(key: tuple[str, ...]) -> BadRow:
    return BadRow(
        f"conflicting rows for the key ({', '.join(key)})",
        detail="At some time several rows have the same key, or a row is retracted that did not exist.",
        hint="Choose a key that is unique in the source, or MODE APPEND, which needs no key.",
    )


def last_places(table: pa.Table, key: Sequence[str], order: Sequence[str]) -> pa.Array:
    """The places of the rows with the greatest order per key, sorted by key. Ties go to the later row of the table."""
    if table.num_rows == 0:
        return pa.array([], pa.uint64())
    by = key if _ascends(table, order) else (*key, *order)  # sorting is stable
    ranked = pc.sort_indices(table.select(by), sort_keys=[(name, "ascending") for name in by])
    sorted_keys = table.select(list(key)).take(ranked).combine_chunks()
    last = pa.concat_arrays([_differs(sorted_keys, sorted_keys.slice(1)), pa.array([True])])
    return ranked.filter(last)


def _ascends(table: pa.Table, order: Sequence[str]) -> bool:
    """Whether the rows are known to be in their order: those of a log mostly are."""
    if not order or not pa.types.is_integer(table.schema.field(order[0]).type) or table[order[0]].null_count:
        return not order
    values = table[order[0]].to_numpy()
    return bool((values[1:] > values[:-1]).all()) or (len(order) == 1 and bool((values[1:] >= values[:-1]).all()))


def last_of_runs(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The last row of every run of equal keys."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = batch.select(list(key))
        if held is not None and _differs(held.select(list(key)), keys)[0].as_py():
            yield held
        kept = _filter(batch.slice(0, batch.num_rows - 1), _differs(keys, keys.slice(1)))
        if kept.num_rows:
            yield kept
        held = batch.take([batch.num_rows - 1])  # a copy: a slice would keep the whole batch in memory
    if held is not None:
        yield held


def upserts(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """The rows that are upserts; all rows if there is no operation."""
    return _filter(batch, pc.equal(batch[OP], UPSERT)) if OP in batch.schema.names else batch


def _filter(batch: pa.RecordBatch | pa.Table, mask: pa.Array) -> pa.RecordBatch | pa.Table:
    """Filter, without copying a batch that keeps every row, as most do."""
    return batch if pc.all(mask, min_count=0).as_py() else batch.filter(mask)


def _differs(left: pa.RecordBatch | pa.Table, right: pa.RecordBatch | pa.Table) -> pa.Array:
    """For each position that both tables have, whether the keys there differ."""
    rows = min(left.num_rows, right.num_rows)
    pairs = zip(left.slice(0, rows).columns, right.slice(0, rows).columns, strict=True)
    differs = reduce(pc.or_, (pc.not_equal(a, b) for a, b in pairs))
    return differs.combine_chunks() if isinstance(differs, pa.ChunkedArray) else differs
