"""Commits of a run: the oldest pending batch goes into the table, and what it no longer needs is removed."""

from itertools import takewhile
from typing import Final

from calve import faults
from calve.commit.claims import Claims
from calve.commit.run_state import MERGE_EVERY, RunState
from calve.commit.takeover import KNOWN_KEPT, is_staged
from calve.errors import TransientError
from calve.model.files import Committable
from calve.model.progress import Progress, Receipt
from calve.retry import Backoff

ATTEMPTS: Final = 5
"""Attempts to commit one committable before the committer backs off; it stays pending."""


class Commits:
    """Commits pending batches in order."""

    def __init__(self, state: RunState, claims: Claims) -> None:
        self._state, self._claims = state, claims
        self._journal, self._attempts = state.journal, state.attempts
        self._clock, self._ids = state.clock, state.ids
        self._monitor, self._waiter, self._lag = state.monitor, state.waiter, state.lag
        self._has_predecessors = True
        """Whether records or staged files of older runs may exist."""

    def commit_next(self) -> Receipt | None:
        """Commit the oldest pending committable; None if all attempts failed and it is still pending."""
        if not self._state.pending:
            return None
        self._claims.claim()
        committable = self._oldest()  # after the claim: it may have replaced the position
        if committable is None:
            return None
        with self._state.committing:
            return self._commit(committable)

    def _commit(self, committable: Committable) -> Receipt | None:
        backoff = Backoff(0.05, 2.0)
        for attempt in range(1, ATTEMPTS + 1):
            started = self._clock.monotonic()
            try:
                landed = self._attempts.commit(committable, catching_up=self._overlaps(committable))
            except TransientError as error:
                self._monitor.failed_attempt(error)
                if attempt == ATTEMPTS:
                    self._state.reset_idle()
                    self._monitor.stalled(str(error))
                    return None
                self._waiter.pause(backoff.next() * self._ids.jitter())
            else:
                return self._acknowledge(landed, committable, self._clock.monotonic() - started)
        return None

    def _oldest(self) -> Committable | None:
        with self._state.memory:
            return next((e.committable for e in self._state.position.entries if e.committable), None)

    def _overlaps(self, committable: Committable) -> bool:
        """Whether later batches may contain changes that the adopted rows already reflect."""
        with self._state.memory:
            if self._state.overlap is None or committable.batch.upper.sealed:
                return not committable.batch.upper.sealed
            done = {id(e) for e in self._state.position.whole_below(committable.batch.upper)}
            left = [e for e in self._state.position.entries if id(e) not in done and e.committable is not committable]
            return any(entry in self._state.overlap for entry in left)

    def _acknowledge(self, landed: Progress, committable: Committable, seconds: float) -> Receipt:
        """Advance progress, since the table contains the committable. Nothing else advances it."""
        receipt = Receipt(
            committable.commit_id,
            committable.batch.upper,
            committable.offsets,
            landed.snapshot_id,
            landed.sequence_number,
        )
        faults.reached("receipt.before")
        with self._state.memory:
            self._state.position.committed = landed.with_offsets(committable.offsets)
            self._state.position.frontier = receipt.frontier
            consumed = self._state.position.drop_committed(committable)
            self._lag.committed(committable.offsets)
            self._state.has_data = self._state.has_data or committable.totals.data_rows > 0
            self._state.committed_at = self._clock.monotonic()
        self._monitor.running()
        self._monitor.lag(self._lag.current_ms, self._lag.polled_ms, self._lag.unread)
        self._monitor.committed(receipt, self._attempts.with_delete_totals(committable), seconds)
        self._state.report_waiting()
        with self._state.timed("tidy"):
            try:
                self._journal.remove_staged(entry.staged for entry in consumed if entry.staged)
                self._tidy(receipt)
            except TransientError as error:
                self._monitor.warned("clean-up after a commit", error)
            self._remove_keys(committable)
        faults.reached("receipt.after")
        return receipt

    def _remove_keys(self, committable: Committable) -> None:
        with self._state.memory:
            spent, self._state.position.spent = [*self._state.position.spent, committable], []
        try:
            for one in spent:
                self._attempts.remove_keys(one)
        except TransientError as error:
            self._monitor.warned("removal of keys after a commit", error)

    def _tidy(self, receipt: Receipt) -> None:
        """Remove records that are no longer needed, and merge manifests. A failure here is harmless."""
        with self._state.memory:
            waiting = {id(e) for e in self._state.position.entries}
            waiting_entries = [e for e in self._state.position.entries if is_staged(e)]
            done = [n for n, _ in takewhile(lambda record: id(record[1]) not in waiting, self._state.records)]
            old = done[:-KNOWN_KEPT]
            keep = KNOWN_KEPT + len(self._state.position.entries)
            self._state.position.known = dict.fromkeys(list(self._state.position.known)[-keep:])
        self._journal.forget(self._state.fence, old)
        with self._state.memory:  # after the removal: a record that remains has to go before later ones
            del self._state.records[: len(old)]
        if self._has_predecessors:
            self._journal.forget_predecessors(self._state.fence)
            self._journal.forget_stages(self._state.fence, [e.staged for e in waiting_entries if e.staged])
            self._has_predecessors = False
        turn = receipt.sequence_number // MERGE_EVERY
        if turn > self._state.merge_turn:
            self._state.merge_turn = turn
            self._attempts.merge_manifests()
