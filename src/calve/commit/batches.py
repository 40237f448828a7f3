"""Batches of a run: which one is due, the record that closes it, and batches without rows.

A batch without rows is a heartbeat, seals the table, or empties it.
"""

from calve.commit.checkpoints import CheckpointFiles
from calve.commit.claims import Claims
from calve.commit.run_state import RunState
from calve.model.checkpoint import CheckpointEntry, FrontierEntry
from calve.model.files import Committable
from calve.model.frontier import SEALED, BatchDescription, Frontier


class Batches:
    """Closes batches, so that they can be committed."""

    def __init__(self, state: RunState, claims: Claims) -> None:
        self._state, self._claims = state, claims
        self._spec, self._clock, self._ids = state.spec, state.clock, state.ids
        self._monitor, self._windows = state.monitor, state.windows

    def flush(self, *, seal: bool = False) -> None:
        """Close what is staged without waiting for its window. `seal`: the source has ended."""
        with self._state.memory:
            known = not self._windows.flush(seal=seal)
        if not known:
            self._state.waiter.wake()  # the committer sleeps until the window ends

    def reading_failed(self) -> None:
        """Flush, since nothing more is read. Rows with event times stay staged until their times are complete."""
        if self._spec.times is None:
            self.flush()

    @property
    def committable(self) -> bool:
        """Whether something can be committed or closed without reading more."""
        with self._state.memory:
            return self._state.ready > 0 or self._windows.next_batch(self._state.position) is not None

    def due(self) -> BatchDescription | None:
        """Return the batch that is due, if there is one. From now on no checkpoint gets a time below its end."""
        with self._state.recording, self._state.memory:
            position = self._state.position
            batch = self._windows.next_batch(position)
            if batch:
                self._exclude(batch)
            self._windows.end_flush(position)
            return batch

    def _exclude(self, batch: BatchDescription) -> None:
        """Let no later checkpoint get a time of the batch."""
        if batch.upper.time is not None:
            self._state.position.last_time = max(self._state.position.last_time, batch.upper.time - 1)

    def until_due(self) -> float | None:
        """Return the seconds until a batch may become due; None if waiting alone does not make it due."""
        with self._state.memory:
            return self._windows.until_due(self._state.position)

    def close(self, batch: BatchDescription, written: CheckpointFiles) -> None:
        """Record the files that were written from everything staged for a batch.

        Its offsets are those of the last checkpoint such that it, and all before it, have no rows above the batch.
        """
        with self._state.recording:
            position = self._state.position
            whole, committed = self._completed_by(batch), position.committed
            last = whole[-1].identity if whole else None
            committable = Committable(
                commit_id=written.commit_id,
                batch=batch,
                query_id=last.query_id if last else committed.query_id if committed else "",
                checkpoint=last.batch_id if last else committed.checkpoint if committed else -1,
                offsets=last.end if last else self._state.committed_offsets,
                manifests=written.manifests,
                totals=written.totals,
                generation=self._spec.generation,
                keys=written.keys,
                ahead=position.ahead_of(batch.upper),
                letters=next((e.identity.letters for e in reversed(whole) if e.identity.letters), ""),
            )
            time = position.last_time if batch.upper.time is None else batch.upper.time - 1
            self._state.append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)

    def _completed_by(self, batch: BatchDescription) -> list[CheckpointEntry]:
        """Return the leading checkpoints that have no rows above a batch."""
        return self._state.position.whole_below(batch.upper)

    def record_heartbeat(self) -> bool:
        """Record an empty batch that advances the frontier, if nothing was committed for long; False if not due."""
        if self.until_heartbeat > 0 or not self._heartbeat_possible(self._heartbeat_time):
            return False
        return self._append_heartbeat()

    def _append_heartbeat(self) -> bool:
        self._claims.claim()
        with self._state.recording:
            time = self._heartbeat_time
            if not self._heartbeat_possible(time):
                return False
            committable = self._without_rows(Frontier(time + 1))
            self._state.append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)
        return True

    @property
    def until_heartbeat(self) -> float:
        """Seconds until an idle sink commits a heartbeat."""
        return self._spec.heartbeat_ms / 1000 - (self._clock.monotonic() - self._state.committed_at)

    @property
    def _heartbeat_time(self) -> int:
        return (
            self._state.next_time(self._clock.now_ms())
            if self._spec.times is None
            else self._windows.input(self._state.position) - 1
        )

    def _heartbeat_possible(self, time: int) -> bool:
        return not self._state.pending and self._state.position.minted < Frontier(time + 1)

    def read_through(self) -> None:
        """Note that the source had nothing more: a sink that adopted rows has now read past what they may contain."""
        with self._state.memory:
            committed = self._state.position.committed
            if committed is None or not committed.catching_up:
                return
            if self._state.overlap is None:
                self._state.overlap = list(self._state.position.entries)
        if self._heartbeat_possible(self._heartbeat_time):
            self._append_heartbeat()

    def seal(self) -> None:
        """Record the seal, since the input is complete and recorded: the next frontier is []."""
        self._claims.claim()
        with self._state.recording:
            if self._state.position.minted.sealed:
                return
            committable = self._without_rows(SEALED)
            self._state.append(FrontierEntry(self._state.position.last_time, committable))
        self._monitor.recorded(committable)

    def empty_table(self, now_ms: int) -> None:
        """Record a batch that empties the table, since the source of a new generation is empty."""
        self._claims.claim()
        with self._state.recording:
            if not self._state.starts_over or self._state.position.minted.sealed:
                return
            time = self._state.next_time(now_ms)
            committable = self._without_rows(Frontier(time + 1))
            self._state.append(FrontierEntry(time, committable))
        self._monitor.recorded(committable)

    def _without_rows(self, upper: Frontier) -> Committable:
        self._state.check_nothing_staged()
        position = self._state.position
        return Committable(
            commit_id=self._ids.new_id(),
            batch=BatchDescription(position.minted, upper),
            query_id=self._state.last_query_id,
            checkpoint=position.checkpoint,
            offsets=position.end,
            generation=self._spec.generation,
        )
