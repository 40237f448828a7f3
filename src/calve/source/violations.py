"""Keys that are none: different rows of one key in a checkpoint, in an order that does not tell which is the last.

    NONE        every row is an insert: two different rows of a key, whatever their order of arrival
    UPSERT      two different changes of a key with the same values of ORDER BY
    DEBEZIUM    the same
    from Kafka, without ORDER BY: never, for offsets order all changes
    DIFF        never: rows of one key add up

Equal rows are no violation: whichever stays, the table is the same. Whether an inserted key is in the table already, or
a deleted one is not, would take a look at the table for every change: that is not asked.

The question costs a pass over the checkpoint, and a shuffle by key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from calve.model.change import BAD, OP, table_columns
from calve.model.spec import Diff, Envelope, NoEnvelope
from calve.source import frames
from calve.source.envelope import changes_of
from calve.source.global_order import own_order
from calve.spark.failures import told_as
from calve.sparktext import ident

MOST = 1000
"""Keys that are counted in one checkpoint; there may be more."""
_SAMPLE = 3
_ROWS = "_calve_rows"


@dataclass(frozen=True)
class Violations:
    """Keys with more than one last row in a checkpoint."""

    count: int
    sample: str
    """Some of them, in words."""


def key_violations(
    frame: DataFrame, envelope: Envelope, key: Sequence[str], *, time: str | None = None
) -> Violations | None:
    """Those of a frame of records; None without any."""
    if not key or isinstance(envelope, Diff):
        return None
    changes = changes_of(frame, envelope, key, time=time)
    own = _own_order(frame.schema, envelope, changes)
    if own is None:
        return None
    names = [F.col(ident(name)) for name in key]
    row = F.xxhash64(F.to_json(F.struct(*(F.col(ident(n)) for n in table_columns(changes.columns)), F.col(OP))))
    grouped = changes.where(F.col(BAD).isNull()).groupBy(*names, *own)
    repeated = grouped.agg(F.count_distinct(row).alias(_ROWS)).where(F.col(_ROWS) > 1).select(*names).limit(MOST)
    with told_as("changes could not be searched for conflicting rows"):
        found = repeated.collect()
    if not found:
        return None
    return Violations(len(found), "; ".join(_words(key, row) for row in found[:_SAMPLE]))


def _own_order(schema: StructType, envelope: Envelope, changes: DataFrame) -> list[str] | None:
    """The order columns of the envelope itself, without those of arrival; None where arrival alone decides rightly."""
    own = own_order(changes, schema)
    by_offset = frames.is_kafka(schema) and not own
    return None if by_offset and not isinstance(envelope, NoEnvelope) else own


def _words(key: Sequence[str], row: Sequence[object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(key, row, strict=True))
