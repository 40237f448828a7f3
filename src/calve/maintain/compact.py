"""Compacts small data files, and files with many deleted rows, with a snapshot that changes no row.

    plan ──► rewrite ─┬─► a part ──► commit        `plan` and `rewrite` take long, `commit` a moment
                      └─► a part ──► commit        while other parts are still being rewritten

A part is a bundle of groups (`rewrite.py`). Each is committed on its own, so a part that fails, or a process that dies,
loses nothing that was committed before. Others may write to the table meanwhile. Files that they replaced are left
out; rows that they deleted since the plan are deleted in the new files, by the same snapshot. A commit that conflicts
with another is retried on the new state. Every attempt checks that the new files are still there: a removal of orphans
may take those of a process that was suspended for days, whose hold has ended. So there is no lock that a crash could
leave behind, and concurrent compactions are wasteful but harmless.

From `rewrite` until `commit` or `abandon` of the last part a hold (`iceberg/snapshot/holds.py`) preserves the history
of the branch since the plan, however many commits follow: without it a commit could not prove that it builds on the
plan.
"""

import logging
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from calve.catalog.connect import Catalog
from calve.catalog.discard import discard
from calve.catalog.failures import trying
from calve.errors import CalveError, CommitConflict, InvalidInput, TransientError
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.files.store import absent, io_properties_of
from calve.iceberg.loading import LoadedTable, load_table
from calve.iceberg.planning.compaction_groups import BY_HAND, CompactionPolicy, Groups
from calve.iceberg.snapshot.compaction import CompactionBase, CompactionOwner, CompactionPlan, Compactions, Exchange
from calve.iceberg.snapshot.holds import Hold, HoldPlace
from calve.keylookup.search import MAINTENANCE_POOL, SparkJobs, reading, write_deletes_of_new
from calve.maintain.beside import NICENESS, PROCESSES
from calve.maintain.convert import ConversionTools
from calve.maintain.rewrite import (
    BUNDLE_ROWS,
    Bundle,
    GroupWork,
    Outcome,
    Rewritten,
    bundles_of,
    rewrite_by_tasks,
    rewrite_here,
    spark_cores,
)
from calve.model.files import WrittenFile
from calve.model.scan import EVERYTHING, Condition, ContentId, DeleteKind
from calve.model.spec import RowOrder, TableName, WriteOptions
from calve.reader.deletes import TaskDeletes, paths_named
from calve.reader.key_sets import distinct
from calve.retry import retry_on

ATTEMPTS = 20
"""Attempts of a commit: each takes a moment."""
ROUNDS = 5
"""Plans that others may invalidate before a compaction gives up."""

RENEW_SECONDS = 60.0
"""Interval at which a hold is moved forward: history before it may expire."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction."""

    snapshot_id: int
    """The last snapshot it committed."""
    files_before: int
    files_after: int
    rows_before: int
    """Including deleted rows."""
    rows_after: int

    def __str__(self) -> str:
        return (
            f"{self.files_before:,} files with {self.rows_before:,} rows became "
            f"{self.files_after:,} with {self.rows_after:,}"
        )

    def plus(self, later: "Compacted") -> "Compacted":
        """Add a later result."""
        return Compacted(
            later.snapshot_id,
            self.files_before + later.files_before,
            self.files_after + later.files_after,
            self.rows_before + later.rows_before,
            self.rows_after + later.rows_after,
        )


@dataclass(frozen=True)
class CompactionScope:
    """What to compact, and how to write the new files."""

    name: TableName
    branch: str = "main"
    options: WriteOptions = field(default_factory=WriteOptions)
    where: Condition = EVERYTHING
    """Only files that may have rows for which this is true."""
    order: RowOrder = field(default_factory=RowOrder)
    """The order of rows in new files."""


@dataclass(frozen=True)
class RewriteRoom:
    """Where files are rewritten, and what that may take from other work."""

    here_rows: int
    """Rows of a plan up to which this process rewrites its files itself, without Spark."""
    core_share: float = 1.0
    """Share of Spark's cores that may rewrite files at the same time; at least one does. Of processes beside, too."""
    pool: str = MAINTENANCE_POOL
    """Pool of Spark's FAIR scheduler."""
    bundle_rows: int = BUNDLE_ROWS
    """Rows from which on groups are a part of their own."""
    beside: bool = False
    """Whether processes of low priority take the place of Spark's tasks where driver and executors are one process."""


MANUAL_ROOM = RewriteRoom(here_rows=20_000_000)
"""For a process that does nothing else: starting Spark takes longer than rewriting some files."""


class HeldPlan:
    """The hold of a plan: it moves forward while files are rewritten, and ends with the last part. Thread-safe."""

    def __init__(self, hold: Hold, renew: Callable[[], None], renew_seconds: float) -> None:
        self.hold = hold
        self._renew, self._seconds = renew, renew_seconds
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._parts, self._open = 0, True
        self._thread = threading.Thread(target=self._main, name="calve-hold", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        while not self._ended.wait(self._seconds):
            self._renew()

    def add_part(self) -> None:
        """A part is ready: it must be ended."""
        with self._lock:
            self._parts += 1

    @property
    def ends_with_next(self) -> bool:
        """Whether the commit of one more part ends the hold."""
        with self._lock:
            return not self._open and self._parts == 1

    def close(self) -> None:
        """No more parts will come; the hold is not moved any more."""
        self._ended.set()
        self._thread.join()  # a hold that is moved after its end would start again
        with self._lock:
            ends = self._open and not self._parts
            self._open = False
        if ends:
            self.hold.release()

    def end_part(self, *, released: bool) -> None:
        """A part was committed or abandoned; `released`: the commit ended the hold."""
        with self._lock:
            self._parts -= 1
            ends = not self._open and not self._parts
        if ends and not released:
            self.hold.release()


@dataclass
class RewrittenFiles:
    """New files that are not committed yet: one part of a plan."""

    plan: CompactionPlan
    groups: tuple[Rewritten, ...]
    held: HeldPlan
    unknown: bool = False
    """Whether a commit of them failed without a conflict: then they may be in the table."""

    @property
    def hold(self) -> Hold:
        """The hold that it shares with the other parts."""
        return self.held.hold


class Compactor:
    """Compacts one branch of one table, one plan after another.

    One thread may rewrite files while another commits the parts that are ready.
    """

    def __init__(
        self,
        catalog: Catalog,
        scope: CompactionScope,
        tools: ConversionTools,
        *,
        owner: CompactionOwner | None = None,
        room: RewriteRoom = MANUAL_ROOM,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self._catalog, self._scope, self._tools, self._room = catalog, scope, tools, room
        self._owner, self._renew_seconds = owner, renew_seconds
        self._requests = threading.Lock()
        """Clients of catalogs are not thread-safe; writing files needs none."""
        self._compactions = Compactions(tools.clock, tools.ids, scope.branch, scope.options, owner, scope.order)
        self._everything = False
        """Whether the last plan rewrites all files."""
        self._written: set[str] = set()
        """Files that were committed for such plans, which later ones leave alone. Others would only add up: a sink
        compacts for months."""

    def plan(self, policy: CompactionPolicy) -> CompactionPlan | None:
        """Plan what is due; None if nothing is. Raises TransientError, InvalidInput, FencedError."""
        self._everything = policy.everything
        return self._compactions.plan(self._load(), policy, self._scope.where, self._written)

    def _load(self) -> LoadedTable:
        """Load the table. Raises TransientError, InvalidInput.

        If it cannot be loaded, the commits of its sink decide what that means; to the owner it is a failure that may
        end, as for a replica that is behind.
        """
        try:
            return load_table(self._catalog, self._scope.name)
        except InvalidInput as error:
            if self._owner is None:
                raise
            raise TransientError(error.primary, detail=error.detail, hint=error.hint) from error

    def rewrite(self, plan: CompactionPlan, check: Callable[[], None]) -> Generator[RewrittenFiles, None, None]:
        """Write new files; yields each part as soon as it is complete, to be committed or abandoned.

        `check` raises to cancel. If some parts fail, the first failure is raised after all others were yielded. Raises
        TransientError, TerminalError.
        """
        works = [
            GroupWork(inputs, plan.reading, plan.order, plan.target(inputs[0].spec_id), self._tools.ids.new_id())
            for inputs in plan.groups.groups
        ]
        bundles = bundles_of(works, self._room.bundle_rows)
        held, failures, left = self._hold(plan), list[CalveError](), len(bundles)
        try:
            if not bundles:
                yield self._part(plan, (), held, last=True)
                return
            with closing(self._outcomes(plan, bundles, check)) as outcomes:
                for outcome in outcomes:
                    left -= 1
                    if isinstance(outcome, CalveError):
                        failures.append(outcome)
                    else:
                        yield self._part(plan, outcome, held, last=not left)
        finally:
            held.close()
        if failures:
            _log.info("%d of %d parts of a compaction of %s failed", len(failures), len(bundles), self._scope.name)
            raise next((one for one in failures if not isinstance(one, TransientError)), failures[0])

    def _outcomes(
        self, plan: CompactionPlan, bundles: Sequence[Bundle], check: Callable[[], None]
    ) -> Generator[Outcome, None, None]:
        if plan.groups.rows <= self._room.here_rows:
            return rewrite_here(bundles, check)
        jobs = SparkJobs(self._tools.session, self._room.pool)
        cores = spark_cores(jobs, self._room.core_share)
        if self._room.beside and cores.local and sys.executable:
            return PROCESSES.rewrite(bundles, cores.most, check, 0 if plan.groups.overdue else NICENESS)
        return rewrite_by_tasks(bundles, jobs, cores.most, f"calve-compaction-{self._tools.ids.new_id()}", check)

    def _part(
        self, plan: CompactionPlan, groups: tuple[Rewritten, ...], held: HeldPlan, *, last: bool
    ) -> RewrittenFiles:
        held.add_part()
        if last:
            held.close()  # so that its commit ends the hold
        return RewrittenFiles(plan, groups, held)

    def commit(self, ready: RewrittenFiles, attempts: int = ATTEMPTS) -> Compacted | None:
        """Commit the new files; None if some are gone, or if the table no longer has the files that they replace.

        Raises CommitConflict when other commits win every time, CommitUnknown, TransientError, FencedError.
        """

        def attempt() -> Compacted | None:
            with self._requests:
                head = self._compactions.head(ready.plan, self._load(), ready.hold.snapshot_id)
                if head is None:
                    return None
                self._drop_stale(ready, head)
                if (not ready.groups and ready.plan.groups.groups) or self._lacks_files(ready, head):
                    return None
                return self._attempt(ready, head)

        return retry_on(
            CommitConflict,
            attempts,
            attempt,
            lambda error: _log.info("committing a compaction of %s again: %s", self._scope.name, error.primary),
        )

    def _hold(self, plan: CompactionPlan) -> HeldPlan:
        """Hold the planned snapshot, and move the hold forward during the work."""
        sink_id = self._owner.sink_id if self._owner else ""
        place = HoldPlace(self._catalog, self._scope.name, self._tools.clock, self._scope.branch, sink_id)
        hold = Hold(place, self._tools.ids.new_id(), plan.table, plan.snapshot_id)

        def renew() -> None:
            try:
                with self._requests:
                    hold.renew()
            except (TransientError, InvalidInput) as error:  # the commit detects whether that did any harm
                _log.info("tag %s of %s was not moved: %s", hold.tag, self._scope.name, error)

        return HeldPlan(hold, renew, self._renew_seconds)

    def abandon(self, ready: RewrittenFiles) -> None:
        """Remove new files that were not committed; with the last part, release the hold."""
        ready.held.end_part(released=False)
        if not ready.unknown:
            _discard_files(ready.plan, ready.groups, "their compaction was abandoned")

    def _drop_stale(self, ready: RewrittenFiles, head: CompactionBase) -> None:
        """Drop groups whose input files others have replaced meanwhile."""
        stale = [group for group in ready.groups if not head.has(group.inputs)]
        ready.groups = tuple(group for group in ready.groups if group not in stale)
        if stale and not ready.unknown:
            _discard_files(ready.plan, stale, "other writers replaced their input files")

    def _lacks_files(self, ready: RewrittenFiles, head: CompactionBase) -> bool:
        """Whether new files are gone, so that a snapshot with them could not be read. Raises TransientError."""
        paths = [file.path for group in ready.groups for file in group.files]
        with trying(f'looking for new files of "{self._scope.name}"'):
            gone = absent(paths, io_properties_of(head.table.io.properties))
        if gone:
            text = "a compaction of %s is abandoned: %d of its %d new files are gone, including %s"
            _log.warning(text, self._scope.name, len(gone), len(paths), gone[0])
        return bool(gone)

    def _attempt(self, ready: RewrittenFiles, head: CompactionBase) -> Compacted:
        inputs = tuple(file for group in ready.groups for file in group.inputs)
        files = tuple(file for group in ready.groups for file in group.files)
        exchange = Exchange(inputs, files, *self._carry_over_deletes(ready, head))
        ends = ready.held.ends_with_next
        change = self._compactions.prepare(ready.plan, head, exchange, ready.hold if ends else None)
        before, ready.unknown = ready.unknown, True
        try:
            snapshot_id = self._compactions.commit(change)
        except CommitConflict:
            ready.unknown = before
            raise
        ready.held.end_part(released=ends)
        if self._everything:
            self._written.update(file.path for file in files)
        done = Compacted(
            snapshot_id, len(inputs), len(files), sum(f.rows for f in inputs), sum(f.record_count for f in files)
        )
        _log.info(
            "compacted %d files of %s with %d rows to %d files with %d rows",
            *(done.files_before, self._scope.name, done.rows_before, done.files_after, done.rows_after),
        )
        return done

    def _carry_over_deletes(
        self, ready: RewrittenFiles, head: CompactionBase
    ) -> tuple[tuple[WrittenFile, ...], dict[ContentId, frozenset[str]]]:
        """Write deletes for rows of new files that were deleted in the old ones since the plan.

        Also returns the data files that each position delete file of the inputs refers to.
        """
        found: list[RowPositions] = []
        named = {known: about for group in ready.groups for known, about in group.named.items()}
        properties = ready.plan.reading.io_properties
        for group in ready.groups:
            since = {file.path: later for file in group.inputs if (later := head.later(file))}
            deletes = TaskDeletes(ready.plan.reading, [file for file in group.inputs if file.path in since])
            for number, file in enumerate(group.inputs):
                with reading("deletes that arrived during a compaction"):
                    for delete in since.get(file.path, ()):
                        found += group.moved(number, deletes.positions_in(delete, file.path))
                        if delete.kind is DeleteKind.POSITION and delete.id not in named:
                            named[delete.id] = paths_named(delete.path, properties)
        return write_deletes_of_new(ready.plan.place, _joined(found), self._tools.ids.new_id()), named


def compact(
    catalog: Catalog,
    scope: CompactionScope,
    tools: ConversionTools,
    policy: CompactionPolicy = BY_HAND,
    say: Callable[[str], None] = lambda _: None,
) -> Compacted | None:
    """Compact everything that is due; None if nothing is. `say` is told what happens.

    Raises CommitConflict when others replaced the same files every time; CommitUnknown, TransientError, InvalidInput.
    """
    compactor, done, failed = Compactor(catalog, scope, tools), None, 0
    while (plan := compactor.plan(policy)) is not None:
        say(f"rewriting {plan.groups.files:,} files with {plan.groups.rows:,} rows")
        replaced = False
        with closing(compactor.rewrite(plan, lambda: None)) as parts:
            for ready in parts:
                committed = _commit_or_abandon(compactor, ready)
                if committed is None:
                    replaced = True
                else:
                    done = committed if done is None else done.plus(committed)
                    say(f"{done}")
        if replaced:
            failed += 1
            if failed == ROUNDS:
                raise CommitConflict(f'other writers replaced files of "{scope.name}" while they were compacted')
            _log.info("planning the compaction of %s again: its files were replaced", scope.name)
        elif not plan.groups.more:
            break
    return done


def _commit_or_abandon(compactor: Compactor, ready: RewrittenFiles) -> Compacted | None:
    try:
        committed = compactor.commit(ready)
    except BaseException:
        compactor.abandon(ready)
        raise
    if committed is None:
        compactor.abandon(ready)
    return committed


def due(
    catalog: Catalog, scope: CompactionScope, tools: ConversionTools, policy: CompactionPolicy = BY_HAND
) -> Groups | None:
    """Return the groups that `compact` would rewrite in its first round; None if nothing is due."""
    plan = Compactor(catalog, scope, tools).plan(policy)
    return None if plan is None else plan.groups


def _discard_files(plan: CompactionPlan, groups: Sequence[Rewritten], why: str) -> None:
    discard(plan.table.io, [file.path for group in groups for file in group.files], why)


def _joined(found: Sequence[RowPositions]) -> list[RowPositions]:
    """Join the deletes of each new file: its rows may come from several old ones."""
    by_path: dict[str, list[RowPositions]] = {}
    for one in found:
        by_path.setdefault(one.file.path, []).append(one)
    return [
        RowPositions(members[0].file, distinct(np.concatenate([one.positions for one in members])))
        for members in by_path.values()
    ]
