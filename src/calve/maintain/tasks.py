"""Groups of files written anew by Spark tasks, one group each: for tables that are too large for one process."""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from calve.iceberg.store import remove_new
from calve.maintain.rewrite import GroupWork, Rewritten, rewrite
from calve.spark.tasks import Tasks


def rewrite_by_tasks(works: Sequence[GroupWork], spark: SparkSession) -> tuple[Rewritten, ...]:
    """In the same order. What tasks wrote that were killed, or ran twice, is an orphan.

    Raises TransientError, TerminalError.
    """

    def discard(done: Rewritten) -> None:
        remove_new([file.path for file in done.files], works[0].target.io_properties, "another group failed")

    return tuple(Tasks("data files could not be rewritten", discard).run(spark, works, _rewrite))


def _rewrite(work: GroupWork, attempt: str) -> Rewritten:
    return rewrite(replace(work, name=f"{work.name}/{attempt}"), lambda: None)
