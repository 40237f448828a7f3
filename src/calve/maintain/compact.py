"""Small data files, and files with many deleted rows -> fewer and larger ones, in one snapshot that changes no row.

    plan ──► rewrite ──► commit        `plan` and `rewrite` take their time, `commit` a moment

The table may be written to meanwhile. Files that others replaced are left to them; rows that were deleted since the
plan are deleted in the new files, by the same snapshot. A commit that meets another one is tried again on what it
finds: so there is no lock that a crash could leave behind, and two compactions at a time are a waste and no danger.

From `rewrite` until `commit` or `abandon` a hold (`iceberg/snapshot/holds.py`) keeps the history of the branch since
the plan, however many commits come meanwhile: without it the commit could not prove that it builds on the plan.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from calve.catalog.connect import Catalog
from calve.catalog.discard import discard
from calve.errors import CommitConflict, InvalidInput, TransientError
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.loading import load_table
from calve.iceberg.planning.compaction_groups import BY_HAND, Groups, Policy
from calve.iceberg.snapshot.compaction import CompactionBase, CompactionOwner, CompactionPlan, Compactions, Exchange
from calve.iceberg.snapshot.holds import Hold, HoldPlace
from calve.keylookup.search import reading, written
from calve.maintain.convert import ConversionTools
from calve.maintain.rewrite import GroupWork, Rewritten, rewrite, rewrite_by_tasks
from calve.model.files import WrittenFile
from calve.model.scan import DeleteKind
from calve.model.spec import TableName, WriteOptions
from calve.reader.deletes import TaskDeletes, paths_named
from calve.reader.key_sets import distinct

ATTEMPTS = 20
"""Of a commit: each takes a moment."""
HERE_ROWS = 20_000_000
"""Rows that this process writes anew by itself."""
ROUNDS = 5
"""Plans in a row that come to nothing before they are given up."""

RENEW_SECONDS = 60.0
"""Between two moves of a hold: history before it may go."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compacted:
    """What was done."""

    snapshot_id: int
    """The last one."""
    files_before: int
    files_after: int
    rows_before: int
    """Deleted ones included."""
    rows_after: int

    def plus(self, later: "Compacted") -> "Compacted":
        """Both together."""
        return Compacted(
            later.snapshot_id,
            self.files_before + later.files_before,
            self.files_after + later.files_after,
            self.rows_before + later.rows_before,
            self.rows_after + later.rows_after,
        )


@dataclass(frozen=True)
class CompactionScope:
    """What is compacted, and how its new files are written."""

    name: TableName
    branch: str = "main"
    options: WriteOptions = field(default_factory=WriteOptions)


@dataclass
class RewrittenFiles:
    """New files that wait to be committed."""

    plan: CompactionPlan
    groups: tuple[Rewritten, ...]
    hold: Hold
    unknown: bool = False
    """Whether a commit of them ended in any other way than by a conflict: then they may be in the table."""


class Compactor:
    """Compacts one branch of one table, again and again. Not for two threads at a time."""

    def __init__(
        self,
        catalog: Catalog,
        scope: CompactionScope,
        tools: ConversionTools,
        *,
        owner: CompactionOwner | None = None,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self._catalog, self._scope, self._tools = catalog, scope, tools
        self._owner, self._renew_seconds = owner, renew_seconds
        self._compactions = Compactions(tools.clock, tools.ids, scope.branch, scope.options, owner)

    def plan(self, policy: Policy) -> CompactionPlan | None:
        """What is due; None for nothing. Raises TransientError, InvalidInput, FencedError."""
        return self._compactions.plan(load_table(self._catalog, self._scope.name), policy)

    def rewrite(self, plan: CompactionPlan, check: Callable[[], None], here_rows: int = HERE_ROWS) -> RewrittenFiles:
        """Write new files; more rows than `here_rows` by Spark tasks. `check` raises to end what is done here.

        Raises TransientError, TerminalError.
        """
        done: list[Rewritten] = []
        works = [
            GroupWork(inputs, plan.reading, plan.sort_ids, plan.target(inputs[0].spec_id), self._tools.ids.new_id())
            for inputs in plan.groups.groups
        ]
        with self._held(plan) as hold:
            if plan.groups.rows > here_rows and len(works) > 1:
                return RewrittenFiles(plan, rewrite_by_tasks(works, self._tools.session()), hold)
            try:
                for work in works:
                    check()
                    done.append(rewrite(work, check))
            except BaseException:
                _forget(plan, done, "the compaction ended before it was complete")
                raise
            return RewrittenFiles(plan, tuple(done), hold)

    def commit(self, ready: RewrittenFiles, attempts: int = ATTEMPTS) -> Compacted | None:
        """Bring new files into the table; None when what they were made of is not in it any more.

        Raises CommitConflict when others commit again and again, CommitUnknown, TransientError, FencedError.
        """
        for attempt in range(1, attempts + 1):
            table = load_table(self._catalog, self._scope.name)
            head = self._compactions.head(ready.plan, table, ready.hold.snapshot_id)
            if head is None:
                return None
            self._leave_stale(ready, head)
            if not ready.groups and ready.plan.groups.groups:
                return None
            try:
                return self._attempt(ready, head)
            except CommitConflict as error:
                _log.info("attempt %d to commit a compaction of %s: %s", attempt, self._scope.name, error.primary)
                if attempt == attempts:
                    raise
        return None

    @contextmanager
    def _held(self, plan: CompactionPlan) -> Iterator[Hold]:
        """Hold what was planned on, and move the hold along while the work goes on. A failure ends it."""
        sink_id = self._owner.sink_id if self._owner else ""
        place = HoldPlace(self._catalog, self._scope.name, self._tools.clock, self._scope.branch, sink_id)
        hold = Hold(place, self._tools.ids.new_id(), plan.table, plan.snapshot_id)
        done = threading.Event()
        thread = threading.Thread(target=self._renew, args=(hold, done), name="calve-hold", daemon=True)
        thread.start()
        try:
            yield hold
        except BaseException:
            _end(thread, done)
            hold.release()
            raise
        _end(thread, done)

    def _renew(self, hold: Hold, done: threading.Event) -> None:
        """The catalog is this thread's alone meanwhile: writing new files does not ask it."""
        while not done.wait(self._renew_seconds):
            try:
                hold.renew()
            except (TransientError, InvalidInput) as error:  # the commit tells whether that did any harm
                _log.info("tag %s of %s was not moved: %s", hold.tag, self._scope.name, error)

    def abandon(self, ready: RewrittenFiles) -> None:
        """Remove new files that were not committed, and end their hold."""
        ready.hold.release()
        if not ready.unknown:
            _forget(ready.plan, ready.groups, "the compaction that made them was given up")

    def _leave_stale(self, ready: RewrittenFiles, head: CompactionBase) -> None:
        """Files that others replaced meanwhile need no new ones."""
        stale = [group for group in ready.groups if not head.has(group.inputs)]
        ready.groups = tuple(group for group in ready.groups if group not in stale)
        if stale and not ready.unknown:
            _forget(ready.plan, stale, "others replaced the files that they were made of")

    def _attempt(self, ready: RewrittenFiles, head: CompactionBase) -> Compacted:
        inputs = tuple(file for group in ready.groups for file in group.inputs)
        files = tuple(file for group in ready.groups for file in group.files)
        exchange = Exchange(inputs, files, *self._later(ready, head))
        before, ready.unknown = ready.unknown, True
        try:
            snapshot_id = self._compactions.commit(ready.plan, head, exchange, ready.hold)
        except CommitConflict:
            ready.unknown = before
            raise
        done = Compacted(
            snapshot_id, len(inputs), len(files), sum(f.rows for f in inputs), sum(f.record_count for f in files)
        )
        _log.info(
            "compacted %d files of %s with %d rows to %d with %d",
            *(done.files_before, self._scope.name, done.rows_before, done.files_after, done.rows_after),
        )
        return done

    def _later(
        self, ready: RewrittenFiles, head: CompactionBase
    ) -> tuple[tuple[WrittenFile, ...], dict[str, frozenset[str]]]:
        """Deletes of rows in new files that were deleted in old ones since the plan; and what all deletes are about."""
        found: list[RowPositions] = []
        named = {path: about for group in ready.groups for path, about in group.named.items()}
        properties = ready.plan.reading.io_properties
        for group in ready.groups:
            since = {file.path: later for file in group.inputs if (later := head.later(file))}
            deletes = TaskDeletes(ready.plan.reading, [file for file in group.inputs if file.path in since])
            for number, file in enumerate(group.inputs):
                with reading("deletes that came during a compaction"):
                    for delete in since.get(file.path, ()):
                        found += group.moved(number, deletes.positions_in(delete, file.path))
                        if delete.kind is DeleteKind.POSITION and delete.path not in named:
                            named[delete.path] = paths_named(delete.path, properties)
        return written(ready.plan.place, _joined(found), self._tools.ids.new_id()), named


def compact(
    catalog: Catalog, scope: CompactionScope, tools: ConversionTools, policy: Policy = BY_HAND
) -> Compacted | None:
    """Write everything anew that is due; None when nothing was.

    Raises CommitConflict when others replaced the same files again and again; CommitUnknown, TransientError,
    InvalidInput.
    """
    compactor, done, failed = Compactor(catalog, scope, tools), None, 0
    while (plan := compactor.plan(policy)) is not None:
        ready = compactor.rewrite(plan, lambda: None)
        try:
            committed = compactor.commit(ready)
        except BaseException:
            compactor.abandon(ready)
            raise
        if committed is None:
            compactor.abandon(ready)
            failed += 1
            if failed == ROUNDS:
                raise CommitConflict(f'files of "{scope.name}" were replaced by others while they were compacted')
            _log.info("the compaction of %s is planned again", scope.name)
            continue
        done = committed if done is None else done.plus(committed)
        if not plan.groups.more:
            break
    return done


def due(catalog: Catalog, scope: CompactionScope, tools: ConversionTools, policy: Policy = BY_HAND) -> Groups | None:
    """What `compact` would write anew in its first round; None for nothing."""
    plan = Compactor(catalog, scope, tools).plan(policy)
    return None if plan is None else plan.groups


def _end(thread: threading.Thread, done: threading.Event) -> None:
    done.set()
    thread.join()


def _forget(plan: CompactionPlan, groups: Sequence[Rewritten], why: str) -> None:
    discard(plan.table.io, [file.path for group in groups for file in group.files], why)


def _joined(found: Sequence[RowPositions]) -> list[RowPositions]:
    """Deletes of each new file together: its rows may come from several old ones."""
    by_path: dict[str, list[RowPositions]] = {}
    for one in found:
        by_path.setdefault(one.file.path, []).append(one)
    return [
        RowPositions(members[0].file, distinct(np.concatenate([one.positions for one in members])))
        for members in by_path.values()
    ]
