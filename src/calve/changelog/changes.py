"""`calve.changes`: what changed in a table, as a DataFrame; and the same rows in this process, without Spark.

calve.changes(spark, lake.table("shop.orders"), since=5521, columns=["id", "amount"])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from calve.calls import for_users
from calve.changelog.frame import changes_frame
from calve.changelog.local import LocalChanges
from calve.changelog.request import ChangeRequest
from calve.iceberg.loading import load_table
from calve.iceberg.planning.change_range import ChangeRange, Point
from calve.lake import TableRef
from calve.model.changelog import ChangeScanPlan
from calve.reader.arguments import check_list, check_session_and_table
from calve.reader.conditions import Where
from calve.reader.read import FrameRead, not_understood
from calve.spark.executors import check_executors
from calve.spark.version import quiet_analysis


class ChangeOptions(TypedDict, total=False):
    """Which changes are read, and how they are shown."""

    since: Point | None
    until: Point | None
    net: bool
    before: bool
    columns: Sequence[str] | None
    key: Sequence[str] | None
    sink: str | None


@for_users
def changes(
    spark: SparkSession, table: TableRef, *, where: Where | None = None, **options: Unpack[ChangeOptions]
) -> DataFrame:
    """Read what changed in a table after `since`, up to and including `until`. No jar is needed.

        calve.changes(spark, lake.table("shop.orders"), since="2026-11-16").where("_change_type = 'delete'")

    Both are a snapshot id, a time (a datetime, or text; UTC unless it has a zone), a frontier (`Frontier`, or text like
    `[1700000000000]`), or the name of a branch or tag. Without `since`, the changes start with the table; without
    `until`, they end with its newest snapshot.

    Rows have the columns of the table and `_change_type`, `_commit_version`, `_commit_timestamp`, `_calve_frontier`.
    Net changes have one row for each key that differs, unless `before` adds the former row of updates; `net=False`
    returns the changes of every snapshot. Without `before`, deleted rows have their key only, and an update that
    writes the same values again is an update.

    `columns` are read besides the key. `where` filters the table, not its changes: a row that leaves the condition is a
    delete. `key` is that of the table by default; without one, rows are inserted and deleted, and never updated.
    """
    check_session_and_table("calve.changes", spark, table, ", since=...")
    return changes_frame(spark, _request(table, options), where).frame


def _request(table: TableRef, options: ChangeOptions) -> ChangeRequest:
    check_list("columns", options.get("columns"))
    check_list("key", options.get("key"))
    net = options.get("net", True)
    found = ChangeRange.of(
        load_table(table.lake.open(), table.name),
        options.get("since"),
        options.get("until"),
        sink=options.get("sink"),
        net=net,
    )
    return ChangeRequest.of(
        found,
        key=options.get("key"),
        columns=options.get("columns"),
        net=net,
        before=options.get("before", False),
    )


def changes_here(table: TableRef, **options: Unpack[ChangeOptions]) -> LocalChanges:
    """The same changes as `changes`, without Spark."""
    request = _request(table, options)
    return LocalChanges(request, request.range.plan())


@dataclass(frozen=True)
class FilteredChanges(FrameRead):
    """The changes of the rows that match a condition."""

    plan: ChangeScanPlan


def changes_filtered(
    spark: SparkSession, table: TableRef, where: Where, **options: Unpack[ChangeOptions]
) -> FilteredChanges:
    """The changes of the rows that match a condition of Spark SQL, with the plan. Raises InvalidInput."""
    check_executors(spark)
    try:
        with quiet_analysis():
            planned = changes_frame(spark, _request(table, options), where)
    except PySparkException as error:
        raise not_understood(error) from error
    return FilteredChanges(planned.frame, planned.plan)
