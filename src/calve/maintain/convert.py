"""Equality deletes of a table -> position deletes, in one snapshot that changes no row.

Equality deletes make every reader compare every row; after this none has to. The table may be written to meanwhile: the
stream wins, and the conversion is planned again on what it finds then.
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
from calve.keylookup.search import Search, search_by_tasks, search_here, written
from calve.model.files import WrittenFile
from calve.model.spec import TableName
from calve.reader.key_positions import KeyMemory, PositionFinder

ATTEMPTS = 5
HERE_ROWS = 30_000_000
"""Rows that this process searches by itself."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConversionTools:
    """What a job works with; Spark is started when it is needed."""

    session: Callable[[], SparkSession]
    clock: Clock
    ids: IdSource


@dataclass(frozen=True)
class Converted:
    """What was done."""

    snapshot_id: int
    equality_delete_files: int
    """That left the table."""
    position_delete_files: int
    position_deletes: int


def convert_deletes(catalog: Catalog, name: TableName, tools: ConversionTools) -> Converted | None:
    """Convert all equality deletes of a table; None when it has none.

    Raises CommitConflict when others committed again and again meanwhile, CommitUnknown, TransientError, InvalidInput.
    """
    attempt = 1
    while True:
        plan = plan_conversion(load_table(catalog, name))
        if plan is None:
            return None
        files = positions_of(plan, tools)
        try:
            snapshot_id = commit_conversion(plan, files, tools.clock, tools.ids)
        except CommitConflict as error:
            if attempt == ATTEMPTS:
                raise
            attempt += 1
            _log.info("the conversion of deletes of %s is planned again: %s", name, error.primary)
        else:
            return Converted(snapshot_id, len(plan.equality), len(files), sum(f.record_count for f in files))


def positions_of(plan: ConversionPlan, tools: ConversionTools) -> tuple[WrittenFile, ...]:
    """Files of position deletes of all rows that equality deletes hide."""
    if not plan.files:
        return ()
    search = Search(plan.files, plan.target, plan.place, tools.ids.new_id())
    if plan.rows > HERE_ROWS:
        return search_by_tasks(search, tools.session())
    found = search_here(search.files, PositionFinder(plan.target, plan.files, KeyMemory()))
    return written(search.place, found, search.name)
