"""Converts the equality deletes of a table to position deletes, with a snapshot that changes no row.

Equality deletes make every reader compare every row; position deletes do not. Others may write to the table meanwhile:
their commits win, and the conversion is planned again on the new state.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from calve.catalog.connect import Catalog
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.conversion import ConversionPlan, commit_conversion, plan_conversion
from calve.keylookup.search import Search, search_by_tasks, search_here, write_deletes
from calve.model.files import WrittenFile
from calve.model.spec import TableName
from calve.reader.key_positions import KeyMemory, PositionFinder
from calve.retry import retry_on

ATTEMPTS = 5
HERE_ROWS = 30_000_000
"""Rows up to which this process searches by itself, without Spark."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConversionTools:
    """What a maintenance job depends on; Spark is started when it is needed."""

    session: Callable[[], SparkSession]
    clock: Clock
    ids: IdSource


@dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    snapshot_id: int
    equality_delete_files: int
    """Files that were removed from the table."""
    position_delete_files: int
    position_deletes: int


def convert_deletes(catalog: Catalog, name: TableName, tools: ConversionTools) -> Converted | None:
    """Convert all equality deletes of a table; None if it has none.

    Raises CommitConflict when other commits won every time, CommitUnknown, TransientError, InvalidInput.
    """

    def attempt() -> Converted | None:
        plan = plan_conversion(load_table(catalog, name))
        if plan is None:
            return None
        files = positions_of(plan, tools)
        snapshot_id = commit_conversion(plan, files, tools.clock, tools.ids)
        return Converted(snapshot_id, len(plan.equality), len(files), sum(f.record_count for f in files))

    return retry_on(
        CommitConflict,
        ATTEMPTS,
        attempt,
        lambda error: _log.info("planning the conversion of deletes of %s again: %s", name, error.primary),
    )


def positions_of(plan: ConversionPlan, tools: ConversionTools) -> tuple[WrittenFile, ...]:
    """Write position deletes of all rows that equality deletes hide."""
    if not plan.files:
        return ()
    search = Search(plan.files, plan.target, plan.place, tools.ids.new_id())
    if plan.rows > HERE_ROWS:
        return search_by_tasks(search, tools.session())
    found = search_here(search.files, PositionFinder(plan.target, plan.files, KeyMemory()))
    return write_deletes(search.place, found, search.name)
