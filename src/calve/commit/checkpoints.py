"""Checkpoints of a run: which are new, when more may be read, and the record that makes one durable."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from calve.commit.backpressure import Room, room_for_more, stage_full_error
from calve.commit.run_state import SETTLE_SECONDS, RunState
from calve.errors import TransientError
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, Offsets, Staged
from calve.model.files import Committable, FileTotals, Manifest
from calve.model.frontier import SEALED, BatchDescription, Frontier

FULL_SECONDS: Final = 10.0
"""Seconds that a stage stays full before the sink ends: a caller may ask to catch up meanwhile."""


class Decision(Enum):
    """What to do with a checkpoint that Spark hands over."""

    ACCEPT = auto()
    """It starts where the records end."""
    REPLAY = auto()
    """It is already recorded: nothing to do."""
    REPOSITION = auto()
    """It starts elsewhere: the source has to seek to `end` first."""
    SEALED = auto()
    """The sink is complete and accepts nothing more."""


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a batch, completely written, and the commit id they were written for."""

    commit_id: str
    manifests: tuple[Manifest, ...]
    totals: FileTotals
    keys: tuple[Manifest, ...] = ()


class Checkpoints:
    """Records what the feed brings."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._spec, self._journal, self._clock = state.spec, state.journal, state.clock
        self._monitor, self._waiter = state.monitor, state.waiter
        self._windows, self._lag = state.windows, state.lag
        self._catching_up = 0

    def decide(self, identity: CheckpointIdentity) -> Decision:
        """Decide whether a checkpoint is new, a replay, or does not start where the records end."""
        with self._state.memory:
            if self._state.position.knows(identity):
                return Decision.REPLAY
            if self._state.position.minted.sealed or self._state.position.final:
                return Decision.SEALED
            return Decision.ACCEPT if self._starts_at_end(identity) else Decision.REPOSITION

    def _starts_at_end(self, identity: CheckpointIdentity) -> bool:
        return identity.start == self._state.position.end

    def reads(self, identity: CheckpointIdentity, asked_ms: int, unread: int) -> None:
        """Note that a checkpoint is about to be read, which leaves `unread` of the source's data behind."""
        with self._state.memory:
            self._windows.reset_idle()
            self._lag.read(identity.end, asked_ms, unread)
        self._monitor.lag(self._lag.current_ms, self._lag.polled_ms, self._lag.unread)

    def found_nothing(self, end: Offsets, asked_ms: int) -> None:
        """Note that the source was polled at that time for what follows `end`, and had nothing.

        Ignored unless the records still end there: a claim may have taken over other checkpoints.
        """
        with self._state.memory:
            if end != self._state.position.end:
                return
            self._windows.found_nothing(asked_ms)
            self._lag.found_nothing(end, asked_ms, pending=bool(self._state.pending))
        self._monitor.lag(self._lag.current_ms, self._lag.polled_ms, self._lag.unread)

    def await_room(self) -> None:
        """Wait until more input may be read. Raises TerminalError if waiting does not help."""
        full_since: float | None = None
        while (room := self._room()) is not Room.FREE:
            self._state.reset_idle()
            now = self._clock.monotonic()
            full_since = None if room is Room.WAIT else now if full_since is None else full_since
            if full_since is not None and now - full_since >= FULL_SECONDS:
                with self._state.memory:
                    raise stage_full_error(self._spec, self._state.position)
            self._waiter.pause(SETTLE_SECONDS)

    def _room(self) -> Room:
        with self._state.memory:
            due, catching_up = self._windows.next_batch, self._catching_up > 0
            return room_for_more(self._spec, self._state.position, due, catching_up=catching_up)

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """Suspend the limits on staged data while a caller waits for everything that the source has now."""
        with self._state.memory:
            self._catching_up += 1
        try:
            yield
        finally:
            with self._state.memory:
                self._catching_up -= 1

    def record(self, identity: CheckpointIdentity, written: CheckpointFiles, time: int, *, final: bool = False) -> bool:
        """Make a checkpoint durable: close its batch and write the record. `final` seals the sink.

        Staged checkpoints have to be closed before. Returns False if its time was closed meanwhile.
        """
        with self._state.recording:
            self._state.check_nothing_staged()
            if time < self._state.next_time(time):
                return False
            committable = Committable(
                commit_id=written.commit_id,
                batch=BatchDescription(self._state.position.minted, SEALED if final else Frontier(time + 1)),
                query_id=identity.query_id,
                checkpoint=identity.batch_id,
                offsets=identity.end,
                manifests=written.manifests,
                totals=written.totals,
                generation=self._spec.generation,
                keys=written.keys,
                letters=identity.letters,
            )
            self._state.append(CheckpointEntry(identity, time, committable))
        self._monitor.recorded(committable)
        return True

    @property
    def stage_folder(self) -> str:
        """Folder in the state location where this run stages changes."""
        return self._journal.stage_folder(self._state.fence)

    def stage(self, identity: CheckpointIdentity, staged: Staged, batch_ms: int) -> bool:
        """Make a checkpoint durable whose changes are staged in the state location until their window closes.

        Returns False if rows of it became late meanwhile: it has to be staged again.
        """
        with self._state.recording:
            if staged.frontier is None:
                entry = CheckpointEntry(identity, self._state.next_time(batch_ms), None, staged, self._spec.generation)
            elif staged.rows and staged.low < self._state.closed:
                self._discard(staged)
                return False
            else:
                advanced = replace(staged, frontier=max(staged.frontier, self._state.position.input))
                entry = CheckpointEntry(identity, staged.high, None, advanced, self._spec.generation)
            self._state.append(entry)
            self._state.reset_idle()
        if staged.late:
            self._monitor.late(staged.late)
        return True

    def _discard(self, staged: Staged) -> None:
        """Remove staged changes that no record refers to. What cannot be removed goes with the records of this run."""
        try:
            self._journal.remove_staged([staged])
        except TransientError as error:
            self._monitor.warned("removal of rows that became late while they were staged", error)
