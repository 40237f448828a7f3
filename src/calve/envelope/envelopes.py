"""Envelopes: from records to changes.

    changes_of(records, envelope, key)          the frame of changes, see `model.change`; with before=True each change
                                                carries the row as it was before (Debezium with images, and tables);
                                                a time field comes first in the order, and is checked; rows that
                                                violate the constraints of the table, as `needs` says, are bad rows
    table_schema(schema, envelope, key)         the columns of the target table
    check_envelope(schema, envelope, key)       checks everything that can be checked before anything runs

All are pure: no action, no state, the same changes from the same records. They work on static and on streaming frames.

    NoEnvelope    every row of the frame is an upsert; among rows of one key the last to arrive wins
    Upsert        see `upsert`
    Debezium      see `debezium`
    Diff          see `diff`; DIFF, TIME and PROGRESS stand in place of operation and order
    ChangeRows    see `change_rows`

A record that cannot become a change stays in the frame as a bad row, with an encoded `BadRow` and nothing else.

`key_violations` detects conflicting rows for one key in a checkpoint: different rows whose order does not decide which
is the last.

    NONE        every row is an insert: two different rows of a key, whatever their order of arrival
    UPSERT      two different changes of a key with the same values of ORDER BY
    DEBEZIUM    the same
    of tables   two different rows of a key that one snapshot adds
    from Kafka, without ORDER BY: never, since offsets order all changes
    DIFF        never: rows of one key add up

Equal rows do not conflict: whichever is kept, the table is the same. Whether an inserted key exists in the table, or a
deleted one does not, is not checked: that would take a lookup in the table for every change.

The check costs a pass over the checkpoint, and a shuffle by key.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from calve.envelope import change_rows, debezium, diff, upsert
from calve.envelope.arrow_changes import ArrowConversion, arrow_change_records, arrow_change_rows, arrow_upserts
from calve.envelope.fields import ordered_by_time
from calve.envelope.order import own_order
from calve.errors import InvalidInput
from calve.model.change import BAD, OP, table_columns
from calve.model.files import NO_NEEDS, ColumnNeeds
from calve.model.spec import ChangeRows, Debezium, Diff, Envelope, NoEnvelope
from calve.records import frames
from calve.records.columns import with_needs
from calve.records.frames import Records
from calve.spark.failures import told_as
from calve.spark.sqltext import ident
from calve.spark.version import quiet_analysis


def changes_of(
    records: Records,
    envelope: Envelope,
    key: Sequence[str],
    *,
    before: bool = False,
    time: str | None = None,
    needs: ColumnNeeds = NO_NEEDS,
) -> DataFrame:
    """The changes in records: the table's columns, the operation, the order, the error."""
    checked = _plan(records.schema, envelope if time is None else ordered_by_time(envelope, time), key, needs)
    timed = time is not None
    if isinstance(checked, debezium.DebeziumPlan):
        return debezium.changes_of_records(records, checked, before=before, timed=timed)
    if isinstance(checked, diff.DiffPlan):
        return diff.changes_of_diffs(frames.frame_of(records), checked)
    if isinstance(checked, change_rows.ChangeRowsPlan):
        return change_rows.changes_of_rows(frames.frame_of(records), checked, before=before)
    if before:
        raise InvalidInput("only change records contain the row before a change", hint="Use the envelope DEBEZIUM.")
    return upsert.changes_of_upserts(records, checked, timed=timed)


def arrow_conversion(
    schema: StructType,
    envelope: Envelope,
    key: Sequence[str],
    spark: SparkSession,
    *,
    needs: ColumnNeeds = NO_NEEDS,
    stores_order: bool = False,
) -> ArrowConversion | None:
    """The same changes for records in memory; None if that is not supported. See `arrow_changes`."""
    checked = _plan(schema, envelope, key, needs)
    if isinstance(checked, upsert.UpsertPlan):
        return arrow_upserts(checked, spark, stores_order=stores_order)
    if isinstance(checked, debezium.DebeziumPlan):
        return arrow_change_records(checked, spark, stores_order=stores_order)
    if isinstance(checked, change_rows.ChangeRowsPlan):
        return arrow_change_rows(checked, stores_order=stores_order)
    return None


def table_schema(frame_schema: StructType, envelope: Envelope, key: Sequence[str]) -> StructType:
    """The columns of the target table for records of this schema; key columns are NOT NULL."""
    return _plan(frame_schema, envelope, key).table


def check_envelope(frame_schema: StructType, envelope: Envelope, key: Sequence[str]) -> None:
    """Reject an envelope that cannot work on records of this schema. Raises InvalidInput."""
    try:
        with quiet_analysis():
            spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
            empty = spark.createDataFrame([], frame_schema)
            _ = changes_of(empty, envelope, key).schema
    except AnalysisException as error:
        raise InvalidInput(
            "the envelope does not match the frame",
            detail=str(error).strip().splitlines()[0],
            hint="Compare the declared columns with those of the frame.",
        ) from error


_Plan = debezium.DebeziumPlan | upsert.UpsertPlan | diff.DiffPlan | change_rows.ChangeRowsPlan


def _plan(schema: StructType, envelope: Envelope, key: Sequence[str], needs: ColumnNeeds = NO_NEEDS) -> _Plan:
    plan = _planned(schema.json(), envelope, tuple(key))
    return plan if needs == NO_NEEDS else replace(plan, table=with_needs(plan.table, needs))


@lru_cache(maxsize=64)
def _planned(schema: str, envelope: Envelope, key: tuple[str, ...]) -> _Plan:
    """Cached: checking takes several calls to Spark, with the same result for every micro-batch."""
    frame_schema = StructType.fromJson(json.loads(schema))
    if isinstance(envelope, Debezium):
        return debezium.plan(frame_schema, envelope, key)
    if isinstance(envelope, Diff):
        return diff.plan(frame_schema, envelope, key)
    if isinstance(envelope, ChangeRows):
        return change_rows.plan(frame_schema, key)
    return upsert.plan(frame_schema, envelope, key)


MOST = 1000
"""Keys that are counted at most in one checkpoint."""
_SAMPLE = 3
_ROWS = "_calve_rows"


@dataclass(frozen=True)
class Violations:
    """Keys with conflicting rows in a checkpoint."""

    count: int
    sample: str
    """Some of them, for messages."""


def key_violations(
    records: Records, envelope: Envelope, key: Sequence[str], *, time: str | None = None
) -> Violations | None:
    """Find keys with conflicting rows; None without any."""
    if not key or isinstance(envelope, Diff):
        return None
    changes = changes_of(records, envelope, key, time=time)
    own = _own_order(records.schema, envelope, changes)
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
    """The order columns of the envelope itself, without those of arrival; None where arrival decides correctly."""
    own = own_order(changes, schema)
    by_offset = frames.is_kafka(schema) and not own
    return None if by_offset and not isinstance(envelope, NoEnvelope) else own


def _words(key: Sequence[str], row: Sequence[object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(key, row, strict=True))
