"""Envelopes: from records to changes.

    changes_of(frame, envelope, key)            the frame of changes, see `model.change`; with before=True each change
                                                brings the row as it was before (Debezium with full images only); with
                                                a time field that one comes first in the order, and is checked; rows
                                                that the table would not take, as `needs` says, are bad rows, too
    table_schema(schema, envelope, key)         the columns of the target table
    check_envelope(schema, envelope, key)       all that can be wrong before anything runs, as InvalidInput

All are pure: no action, no state, the same changes from the same records. They work on static and on streaming frames.

    NoEnvelope    every row of the frame is an upsert; among rows of one key the last to arrive wins
    Upsert        see `upsert`
    Debezium      see `debezium`
    Diff          see `diff`; DIFF, TIME and PROGRESS stand in place of operation and order

A record that cannot become a change stays in the frame as a bad row, with an encoded `BadRow` and nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.errors import InvalidInput
from calve.model.spec import Debezium, Diff, Envelope
from calve.model.target import NO_NEEDS, ColumnNeeds
from calve.source import debezium, diff, upsert
from calve.source.columns import with_needs
from calve.source.times import ordered_by_time
from calve.sparkversion import quiet_analysis


def changes_of(
    frame: DataFrame,
    envelope: Envelope,
    key: Sequence[str],
    *,
    before: bool = False,
    time: str | None = None,
    needs: ColumnNeeds = NO_NEEDS,
) -> DataFrame:
    """The changes in a frame of records: the table's columns, the operation, the order, the error."""
    checked = _plan(frame.schema, envelope if time is None else ordered_by_time(envelope, time), key, needs)
    timed = time is not None
    if isinstance(checked, debezium.DebeziumPlan):
        return debezium.changes_of_records(frame, checked, before=before, timed=timed)
    if isinstance(checked, diff.DiffPlan):
        return diff.changes_of_diffs(frame, checked)
    if before:
        raise InvalidInput("only change records tell what a row was before", hint="Use the envelope DEBEZIUM.")
    return upsert.changes_of_upserts(frame, checked, timed=timed)


def table_schema(frame_schema: StructType, envelope: Envelope, key: Sequence[str]) -> StructType:
    """The columns of the table that changes from such frames go to; key columns are not nullable."""
    return _plan(frame_schema, envelope, key).table


def check_envelope(frame_schema: StructType, envelope: Envelope, key: Sequence[str]) -> None:
    """Refuse an envelope that cannot work on frames of this schema."""
    try:
        with quiet_analysis():
            spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
            empty = spark.createDataFrame([], frame_schema)
            _ = changes_of(empty, envelope, key).schema
    except AnalysisException as error:
        raise InvalidInput(
            "the envelope does not fit the frame",
            detail=str(error).strip().splitlines()[0],
            hint="Compare the declared columns with those of the frame.",
        ) from error


_Plan = debezium.DebeziumPlan | upsert.UpsertPlan | diff.DiffPlan


def _plan(schema: StructType, envelope: Envelope, key: Sequence[str], needs: ColumnNeeds = NO_NEEDS) -> _Plan:
    plan = _planned(schema.json(), envelope, tuple(key))
    return plan if needs == NO_NEEDS else replace(plan, table=with_needs(plan.table, needs))


@lru_cache(maxsize=64)
def _planned(schema: str, envelope: Envelope, key: tuple[str, ...]) -> _Plan:
    """Checking asks Spark several questions, and the answers are the same for every micro-batch."""
    frame_schema = StructType.fromJson(json.loads(schema))
    if isinstance(envelope, Debezium):
        return debezium.plan(frame_schema, envelope, key)
    if isinstance(envelope, Diff):
        return diff.plan(frame_schema, envelope, key)
    return upsert.plan(frame_schema, envelope, key)
