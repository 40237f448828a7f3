"""Converts the equality deletes of a table to deletes by position, with snapshots that change no row.

Equality deletes make every reader compare every row; deletes by position do not. In tables of format version 3 these
are deletion vectors, which also replace older position delete files. Others may write to the table meanwhile:
the conversion works in portions, oldest data files first, and a commit that conflicts with another is retried on the
new state with the same position deletes.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from calve.catalog.connect import Catalog
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.conversion import (
    CommittedPortion,
    ConversionPlan,
    Conversions,
    FoundDeletes,
    NewVectors,
)
from calve.keylookup.search import (
    Search,
    find_by_tasks,
    reading,
    replace_vectors,
    search_by_tasks,
    search_here,
    write_deletes,
)
from calve.model.scan import DeleteKind, ScanFile
from calve.model.spec import TableName
from calve.reader.deletes import TaskDeletes
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
    """Files that were added; none in tables of format version 3."""
    position_deletes: int
    """Rows that the added files, or vectors, delete."""
    snapshots: int = 1
    vectors: int = 0
    """Deletion vectors that were added."""
    old_position_delete_files: int = 0
    """Files of position deletes that vectors replaced."""

    def plus(self, later: "Converted") -> "Converted":
        """Add a later result."""
        return Converted(
            later.snapshot_id,
            self.equality_delete_files + later.equality_delete_files,
            self.position_delete_files + later.position_delete_files,
            self.position_deletes + later.position_deletes,
            self.snapshots + later.snapshots,
            self.vectors + later.vectors,
            self.old_position_delete_files + later.old_position_delete_files,
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
    """Convert the deletes that a table has now; None if there are none to convert.

    `portion_rows` limits the rows of a portion. Raises CommitConflict when other commits won every time,
    CommitUnknown, TransientError, InvalidInput.
    """
    conversions, done, failed = Conversions(tools.clock, tools.ids, branch), None, 0
    while (plan := _planned(conversions, catalog, name, portion_rows)) is not None:
        say(f"searching {plan.rows:,} rows, {plan.left:,} are left")
        found = found_deletes(plan, tools)
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
        done = _added(done, portion)
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


def _added(done: Converted | None, portion: CommittedPortion) -> Converted:
    vectors = sum(file.vector is not None for file in portion.files)
    now = Converted(
        portion.snapshot_id,
        portion.equality_delete_files,
        len(portion.files) - vectors,
        sum(file.record_count for file in portion.files),
        portion.snapshots,
        vectors,
        portion.position_delete_files,
    )
    return now if done is None else done.plus(now)


def found_deletes(plan: ConversionPlan, tools: ConversionTools) -> FoundDeletes:
    """Find the rows of a portion that deletes hide. Position deletes of them are written, vectors with each commit."""
    searched = tuple(file for file in plan.files if any(d.kind is DeleteKind.EQUALITY for d in file.deletes))
    search = Search(searched, plan.target, plan.place, tools.ids.new_id())
    by_tasks = plan.rows > HERE_ROWS
    if not plan.place.vectors and by_tasks:
        return FoundDeletes(plan, search_by_tasks(search, tools.session()))
    if by_tasks and searched:
        found = find_by_tasks(search, tools.session())
    else:
        found = search_here(searched, PositionFinder(plan.target, searched, KeyMemory())) if searched else []
    if not plan.place.vectors:
        return FoundDeletes(plan, write_deletes(search.place, found, search.name) if found else ())
    found += _old_positions(plan)
    return FoundDeletes(plan, vectors=partial(_vectors, plan, found))


def _old_positions(plan: ConversionPlan) -> list[RowPositions]:
    """The rows of a portion that position delete files delete."""
    deletes = TaskDeletes(plan.target, plan.files)
    with reading("older position deletes"):
        return [
            RowPositions(file, deletes.positions_in(delete, file.path))
            for file in plan.files
            for delete in file.deletes
            if delete.kind is DeleteKind.POSITION
        ]


def _vectors(plan: ConversionPlan, found: Sequence[RowPositions], files: Sequence[ScanFile], name: str) -> NewVectors:
    written = replace_vectors(files, plan.target, plan.place, found, name)
    return NewVectors(written.files, written.replaced)
