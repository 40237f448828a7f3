"""The start of a run: it loads the table, takes an epoch, claims the table, and takes over its predecessor's records.

Nothing computed before the claim is used after it.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import cache, partial

from calve import faults
from calve.commit.journal import RunRecords
from calve.commit.ports import ExistingRows
from calve.commit.run_state import MERGE_EVERY, SETTLE_SECONDS, RunState
from calve.commit.takeover import CanReread, RunPosition, adopt, can_reread_anywhere
from calve.commit.waiting import check_waiting
from calve.errors import CheckpointGap, TransientError
from calve.model.checkpoint import CheckpointEntry, Entry, RowKind
from calve.model.progress import Fence, Progress
from calve.model.table import TableState


class Claims:
    """Makes its run the only one that may commit. `can_reread` returns whether the source can start at some offsets."""

    def __init__(self, state: RunState, existing: ExistingRows, can_reread: CanReread) -> None:
        self._state = state
        self._spec, self._journal, self._attempts = state.spec, state.journal, state.attempts
        self._ids, self._monitor, self._waiter, self._windows = state.ids, state.monitor, state.waiter, state.windows
        self._existing = existing
        self._can_reread = can_reread
        self._claiming = state.waiter.lock()  # one claim at a time

    def boot(self) -> None:
        """Load the table and the records, and take an epoch. Nothing that matters is written before the claim."""
        state, progress = self._attempts.observe()
        if progress and progress.fence.version > self._spec.version:
            raise self._attempts.fenced_by(progress)
        epoch = 1 + max(progress.fence.epoch if progress else 0, self._journal.newest_epoch())
        self._attempts.fence = Fence(self._spec.version, epoch, self._ids.new_id())
        if progress and progress.is_sealed(self._spec.generation):
            self._resume_sealed(progress)
            return
        self._journal.take_epoch(self._state.fence)
        self._journal.remember_uuid(state.uuid)
        self._tidy_epochs()
        self._preview(progress)

    def _tidy_epochs(self) -> None:
        try:
            self._journal.forget_older_epochs(self._state.fence)
        except TransientError as error:  # the next start tries again
            self._monitor.warned("removal of old epochs", error)

    def recheck_table(self) -> None:
        """Load the table again: before the claim the predecessor may have continued.

        After the claim this detects a rollback or a lost fence.
        """
        with self._state.committing:
            _, progress = self._attempts.observe()
        if not self._state.claimed:
            self._preview(progress)
        elif progress and progress.fence.run_id != self._state.fence.run_id:
            raise self._attempts.fenced_by(progress)

    def claim(self) -> None:
        """Make this run the only one that may commit, and take over the records. Waits for the catalog if needed."""
        with self._claiming:
            if self._state.claimed:
                return
            progress = self._state.retry_until_stopped(self._claim_table)
            if progress.is_sealed(self._spec.generation):
                self._resume_sealed(progress)
                return
            position = self._state.retry_checking_fence(lambda: self._take_over(progress))
            if self._has_unchecked_rows(progress):
                position.committed = self._check_existing(progress)
            with self._state.memory:
                self._move_to(position)
                self._state.claimed = True
            self._monitor.running()

    def _has_unchecked_rows(self, progress: Progress) -> bool:
        """Whether the table has adopted rows that have not been checked, and this generation keeps them."""
        return progress.adopting is not None and progress.generation >= self._spec.generation

    def adopt_rows(self) -> None:
        """Claim the table at once if the sink adopts its rows: that has to happen before it reads anything."""
        committed = self._state.position.committed
        if self._spec.adopts if committed is None else committed.adopting is not None:
            self.claim()

    def between_batches(self, change: Callable[[TableState], None]) -> None:
        """Change the table's metadata between two commits, once no batch is ready, while this run holds the fence."""
        while not self._try_change(change):
            self._waiter.pause(SETTLE_SECONDS)

    def _try_change(self, change: Callable[[TableState], None]) -> bool:
        with self._state.committing:
            if not self._state.ready:
                self._state.retry_until_stopped(lambda: change(self._attempts.load_fenced()))
                return True
        return False

    def _claim_table(self) -> Progress:
        fresh = self._spec.adopts and self._state.position.committed is None
        begin = self._existing.begin() if fresh else None  # before the load, so that no later change is missed
        faults.reached("claim.before")
        state, progress = self._attempts.claim(begin)
        self._state.table_seen = True
        self._state.has_data = state.has_data or progress.adopting is not None or progress.adopted is not None
        self._state.merge_turn = progress.sequence_number // MERGE_EVERY
        return progress

    def _check_existing(self, claim: Progress) -> Progress:
        """Check the rows that the claim adopted; batches wait for it. After a failure the next start checks again."""
        faults.reached("rows.before")
        self._state.retry_until_stopped(lambda: self._existing.check(self._attempts.load_fenced(), claim.snapshot_id))
        faults.reached("rows.after")
        return self._state.retry_until_stopped(self._attempts.record_adopted)

    def _take_over(self, progress: Progress) -> RunPosition:
        records = self._journal.predecessor(self._state.fence.epoch)
        position = self._adopt(progress, records, self._can_reread)
        self._check_ahead(progress, position)
        faults.reached("adopt.before")
        self._journal.adopt(self._state.fence, position.to_adoption())
        faults.reached("adopt.after")
        return position

    def _check_ahead(self, progress: Progress, position: RunPosition) -> None:
        """Raise CheckpointGap if a checkpoint is partly in the table, and its other rows are gone."""
        if progress.ahead and not position.reaches(progress.ahead):
            raise CheckpointGap(
                "the state location no longer contains checkpoints that are partly committed",
                detail=f"Their rows below {progress.frontier} are in the table; the others were staged there.",
                hint="Restore the state location, or refill the table: WITH (SNAPSHOT = true).",
            )

    def _preview(self, progress: Progress | None) -> None:
        records = self._journal.predecessor(self._state.fence.epoch)
        position = self._adopt(progress, records, can_reread_anywhere)
        with self._state.memory:
            if not self._state.claimed:
                self._move_to(position)

    def _resume_sealed(self, progress: Progress) -> None:
        """Do nothing more, except what a run could not do that died right after the last commit."""
        with self._state.memory:
            self._state.position = self._adopt(progress, None, can_reread_anywhere)
        try:
            self._journal.forget_stages_up_to(progress.fence.epoch)
        except TransientError as error:
            self._monitor.warned("clean-up of a complete sink", error)

    def _move_to(self, position: RunPosition) -> None:
        if position.end != self._state.position.end:
            self._windows.reset_idle()  # the source was polled for other offsets
        self._state.position = position

    def _adopt(self, progress: Progress | None, records: RunRecords | None, can_reread: CanReread) -> RunPosition:
        spec = self._spec
        own_times = spec.times is not None
        missing = partial(self._missing, cache(self._journal.staged))
        found = adopt(
            progress,
            records,
            missing,
            can_reread,
            generation=spec.generation,
            own_times=own_times,
            occupied=self._state.occupied,
        )
        check_waiting(found.staged, RowKind.of(spec), spec.name)
        return found

    def _missing(self, there: Callable[[], AbstractSet[str]], entry: Entry) -> tuple[str, ...]:
        """Return the files of an entry that no longer exist; `there` lists all staged files and is cached."""
        if entry.committable:
            return self._attempts.missing(entry.committable)
        staged = entry.staged if isinstance(entry, CheckpointEntry) else None
        return tuple(name for name in staged.files if name not in there()) if staged else ()
