"""Converts the equality deletes of a table to position deletes, with snapshots that change no row.

Equality deletes make every reader compare every row; position deletes do not. Others may write to the table meanwhile:
the conversion works in portions, oldest data files first, and a commit that conflicts with another is retried on the
new state with the same position deletes.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from calve.catalog.connect import Catalog
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.conversion import CommittedPortion, ConversionPlan, Conversions, FoundDeletes
from calve.keylookup.search import Search, search_by_tasks, search_here, write_deletes
from calve.model.files import WrittenFile
from calve.model.spec import TableName
from calve.reader.key_positions import KeyMemory, PositionFinder
from calve.retry import retry_on

ATTEMPTS = 20
"""Attempts of a commit: each takes a moment."""
ROUNDS = 5
"""Portions in a row that others may invalidate before a conversion gives up."""
HERE_ROWS = 30_000_000
"""Rows of a portion up to which this process searches by itself, without Spark."""
PORTION_ROWS = 10_000_000
"""Rows of a portion, if this process searches them."""
TASKS_PORTION_ROWS = 200_000_000
"""Rows of a portion of a table that needs Spark."""

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
    """The last snapshot it committed."""
    equality_delete_files: int
    """Files that were removed from the table."""
    position_delete_files: int
    position_deletes: int
    snapshots: int = 1

    def plus(self, later: "Converted") -> "Converted":
        """Add a later result."""
        return Converted(
            later.snapshot_id,
            self.equality_delete_files + later.equality_delete_files,
            self.position_delete_files + later.position_delete_files,
            self.position_deletes + later.position_deletes,
            self.snapshots + later.snapshots,
        )


def convert_deletes(
    catalog: Catalog,
    name: TableName,
    tools: ConversionTools,
    *,
    branch: str = "main",
    portion_rows: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Converted | None:
    """Convert the equality deletes that a table has now; None if it has none.

    `portion_rows` limits the rows of a portion. Raises CommitConflict when other commits won every time,
    CommitUnknown, TransientError, InvalidInput.
    """
    conversions, done, failed = Conversions(tools.clock, tools.ids, branch), None, 0
    while (plan := _planned(conversions, catalog, name, portion_rows)) is not None:
        say(f"searching {plan.rows:,} rows, {plan.left:,} are left")
        found = FoundDeletes(plan, positions_of(plan, tools))
        try:
            portion = retry_on(
                CommitConflict,
                ATTEMPTS,
                lambda found=found: conversions.commit(found, load_table(catalog, name)),  # type: ignore[misc]
                lambda error: _log.info("committing a conversion of %s again: %s", name, error.primary),
            )
        except BaseException:
            found.discard("their conversion was not committed")
            raise
        if portion is None:
            found.discard("files that they refer to left the table")
            failed += 1
            if failed == ROUNDS:
                raise CommitConflict(f'other writers replaced files of "{name}" while its deletes were converted')
            continue
        failed = 0
        done = _added(done, portion, found.files)
        if not plan.left:
            break
    return done


def _planned(
    conversions: Conversions, catalog: Catalog, name: TableName, portion_rows: int | None
) -> ConversionPlan | None:
    if portion_rows is not None:
        return conversions.plan(load_table(catalog, name), portion_rows)
    plan = conversions.plan(load_table(catalog, name), PORTION_ROWS)
    if plan is None or plan.rows + plan.left <= HERE_ROWS:
        return plan
    return conversions.plan(load_table(catalog, name), TASKS_PORTION_ROWS)


def _added(done: Converted | None, portion: CommittedPortion, files: tuple[WrittenFile, ...]) -> Converted:
    deletes = sum(file.record_count for file in files)
    now = Converted(portion.snapshot_id, portion.equality_delete_files, len(files), deletes, portion.snapshots)
    return now if done is None else done.plus(now)


def positions_of(plan: ConversionPlan, tools: ConversionTools) -> tuple[WrittenFile, ...]:
    """Write position deletes of the rows of a portion that equality deletes hide."""
    if not plan.files:
        return ()
    search = Search(plan.files, plan.target, plan.place, tools.ids.new_id())
    if plan.rows > HERE_ROWS:
        return search_by_tasks(search, tools.session())
    found = search_here(search.files, PositionFinder(plan.target, plan.files, KeyMemory()))
    return write_deletes(search.place, found, search.name)
