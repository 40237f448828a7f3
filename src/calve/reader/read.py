"""`calve.read`: a table as a DataFrame. `local.py` reads the same rows in this process, without Spark.

calve.read(spark, lake.table("shop.orders"), columns=["id", "amount"], where="amount > 100")
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from calve.calls import for_users
from calve.errors import InvalidInput
from calve.iceberg.planning.table_scan import Scan
from calve.lake import TableRef
from calve.model.scan import ScanPlan
from calve.reader.arguments import check_list, check_session_and_table
from calve.reader.conditions import Where
from calve.reader.frame import PlannedFrame, frame_of
from calve.reader.local import TimeTravel, scan_of
from calve.spark.executors import check_executors
from calve.spark.failures import told_as
from calve.spark.version import arrow_schema_of, quiet_analysis


@for_users
def read(
    spark: SparkSession,
    table: TableRef,
    *,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    **at: Unpack[TimeTravel],
) -> DataFrame:
    """Read the rows of a table, with deletes applied. No jar is needed.

        orders = calve.read(spark, lake.table("shop.orders"), columns=["id", "amount"], where="amount > 100")
        yesterday = calve.read(spark, lake.table("shop.orders"), as_of="2026-11-16")

    The snapshot is chosen now: the newest, or by `snapshot_id`, by `as_of` (the head of the table at that time), by
    `as_of_frontier` (the newest snapshot that holds only earlier times; `sink` selects the sink if several write to the
    table), or by `ref`, a branch or tag. Times are datetimes, ISO 8601 texts (UTC unless they have a zone) or
    milliseconds since 1970.
    Only `columns` are read. `where` is a condition of Spark SQL; files that cannot match it, by their partitions and
    column bounds, are skipped.
    """
    check_session_and_table("calve.read", spark, table)
    check_list("columns", columns)
    return _planned(spark, scan_of(table, at), columns, where).frame


@dataclass(frozen=True)
class FrameRead:
    """The rows of a frame, brought to this process on demand."""

    frame: DataFrame

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return arrow_schema_of(self.frame.schema)

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, partition by partition."""
        names = self.frame.columns
        by_place = self.frame.toDF(*[f"c{place}" for place in range(len(names))])  # names may have dots
        chosen = by_place if limit is None else by_place.limit(limit)
        with told_as("the rows could not be read"):
            for row in chosen.mapInArrow(_packed, "batch binary").toLocalIterator():
                with pa.ipc.open_stream(row.batch) as batches:
                    for batch in batches:
                        yield batch.rename_columns(names)


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["batch"])


@dataclass(frozen=True)
class FilteredRead(FrameRead):
    """The rows of a table that match a condition."""

    plan: ScanPlan


def read_filtered(spark: SparkSession, table: TableRef, where: Where, **at: Unpack[TimeTravel]) -> FilteredRead:
    """The rows of a table that match a condition of Spark SQL, with the scan plan. Raises InvalidInput."""
    check_executors(spark)
    planned = _planned(spark, scan_of(table, at), None, where)
    return FilteredRead(planned.frame, planned.plan)


def _planned(spark: SparkSession, scan: Scan, columns: Sequence[str] | None, where: Where | None) -> PlannedFrame:
    try:
        with quiet_analysis():
            return frame_of(spark, scan, columns, where)
    except PySparkException as error:
        if where is None:
            raise
        raise not_understood(error) from error


def not_understood(error: PySparkException) -> InvalidInput:
    """The error for a condition that Spark rejects."""
    return InvalidInput(
        "the condition is invalid",
        detail=str(error).strip().splitlines()[0],
        hint="Write a condition of Spark SQL over the columns of the table or the files.",
    )
