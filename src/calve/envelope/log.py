"""Every change as a row of its own, for tables that keep a log: its columns, its multiplicity and its time.

A change record with a full image before becomes two rows: the old one is retracted, the new one inserted. Upserts do
not contain the row before: an upsert is an insertion, a delete is a retraction with the key alone.
"""

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.model.change import BAD, BEFORE, DELETE, DIFF, OP, TIME, UPSERT, table_columns
from calve.spark.sqltext import ident

_ROWS = "_calve__rows"

LOG_FIELDS = (T.StructField(DIFF, T.IntegerType(), nullable=False), T.StructField(TIME, T.LongType(), nullable=False))
"""Additional columns of a table that keeps a log."""


def log_of(changes: DataFrame) -> DataFrame:
    """The rows of a log. Without times of their own they have time 0: the time of their checkpoint is not known yet."""
    names = table_columns(changes.columns)
    kept = [TIME, BAD] if TIME in changes.columns else [BAD]
    time = TIME if TIME in changes.columns else f"cast(0 as bigint) as {TIME}"
    if DIFF in changes.columns:
        return changes
    if BEFORE not in changes.columns:
        rows = changes.selectExpr(*[ident(name) for name in names], f"cast({OP} as int) as {DIFF}", *kept)
    else:
        old = _row([(name, ident(BEFORE, name)) for name in names], DELETE)
        new = _row([(name, ident(name)) for name in names], UPSERT)
        goes, comes = f"{BEFORE} is not null", f"{OP} = {UPSERT} or {BAD} is not null"
        both = f"filter(array(if({goes}, {old}, null), if({comes}, {new}, null)), r -> r is not null)"
        rows = changes.selectExpr(f"explode({both}) as {_ROWS}", *kept)
        rows = rows.selectExpr(*[f"{ident(_ROWS, name)} as {ident(name)}" for name in (*names, DIFF)], *kept)
    return rows.selectExpr(*[ident(name) for name in (*names, DIFF)], time, BAD)


def _row(values: list[tuple[str, str]], diff: int) -> str:
    return f"struct({', '.join(f'{sql} as {ident(name)}' for name, sql in values)}, {diff} as {DIFF})"
