"""Rows with multiplicities -> changes: within one time equal rows cancel, and what goes comes before what comes.

For a table with one row per key, a key has no or one row at every time. How many it had before a batch is not known
here; but if neither none nor one would do, the rows break the promise of the key.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import BadRow
from calve.model.change import BAD, DELETE, DIFF, OP, ORDER_PREFIX, TIME, UPSERT, table_columns
from calve.write.changes import quoted

_LEFT, _MOST, _LEAST = "_calve__left", "_calve__most", "_calve__least"


def log_rows(frame: DataFrame) -> DataFrame:
    """Each row once for every time, with its multiplicity. The columns stay in their order."""
    columns = [quoted(name) for name in table_columns(frame.columns, log=True)]
    netted = _netted(frame).withColumn(DIFF, F.col(DIFF).cast("int"))
    return netted.select(*columns, F.lit(None).cast("string").alias(BAD))


def last_rows(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """A frame of changes: of a key, what goes at a time and then what comes at it."""
    comes = F.col(DIFF) > 0
    columns = [quoted(name) for name in key]
    by_key = Window.partitionBy(*columns)
    so_far = by_key.orderBy(TIME, comes).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = _netted(frame).withColumn(_LEFT, F.sum(DIFF).over(so_far))
    counted = counted.withColumn(_MOST, F.max(_LEFT).over(by_key)).withColumn(_LEAST, F.min(_LEFT).over(by_key))
    several = F.greatest(_MOST, F.lit(0)) - F.least(_LEAST, F.lit(0)) > 1
    return counted.select(
        *[quoted(name) for name in table_columns(frame.columns)],
        F.when(comes, UPSERT).otherwise(DELETE).cast("tinyint").alias(OP),
        F.col(TIME).alias(f"{ORDER_PREFIX}0"),
        comes.alias(f"{ORDER_PREFIX}1"),
        F.when(several, F.lit(_violation(key).encode())).alias(BAD),
    )


def _netted(frame: DataFrame) -> DataFrame:
    columns = [quoted(name) for name in table_columns(frame.columns)]
    net = frame.groupBy(*columns, TIME).agg(F.sum(F.col(DIFF).cast("bigint")).alias(DIFF))
    return net.where(F.col(DIFF) != 0).select(*columns, DIFF, TIME)


def _violation(key: tuple[str, ...]) -> BadRow:
    return BadRow(
        f"the key ({', '.join(key)}) does not hold",
        detail="At some time, several rows have one key, or a row goes that cannot have been there.",
        hint="Choose a key that is unique in the source, or MODE APPEND, which needs none.",
    )
