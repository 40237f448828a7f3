"""The order of steps that make a checkpoint durable and close a batch, without knowing how rows are written.

    take        decide ► claim ► decide ► room ► evolve the table ► stage or write ► check the input ► record
    close_due   due ► claim ► due ► write what is staged ► record

Rows and files are behind the port `BatchWork`: a pipeline implements it with Spark, the simulation with dictionaries.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from calve.commit.checkpoints import CheckpointFiles, Decision
from calve.commit.run import SinkRun
from calve.errors import SourceLost, UnreadableFile
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, Staged
from calve.model.frontier import BatchDescription
from calve.model.spec import SinkSpec
from calve.model.table import TableState


class OfferedCheckpoint(Protocol):
    """A checkpoint that a feed delivers."""

    @property
    def identity(self) -> CheckpointIdentity:
        """Which part of the input it is."""
        ...

    @property
    def batch_ms(self) -> int:
        """When it was planned."""
        ...

    @property
    def final(self) -> bool:
        """True for the last one of a bounded input."""
        ...

    @property
    def unread(self) -> int:
        """How much the source had beyond it."""
        ...


C = TypeVar("C", bound=OfferedCheckpoint)


class WrittenBatch(Protocol):
    """The files of a batch that is not recorded yet."""

    @property
    def written(self) -> CheckpointFiles:
        """What its record says."""
        ...

    def remove(self) -> None:
        """Remove its files; no record refers to them."""
        ...


class BatchWork(Protocol[C]):
    """Reads and writes rows. Each call may raise TransientError and is then repeated."""

    @property
    def table_behind(self) -> bool:
        """Whether the table lacks columns or partition fields of the input, or has an older format version."""
        ...

    def evolve_table(self, state: TableState) -> None:
        """Change one of that; staged rows keep their columns."""
        ...

    def refuse_rows(self, checkpoint: C) -> None:
        """Raise TerminalError if a checkpoint that follows the end of the input has rows."""
        ...

    def check_keys(self, checkpoint: C) -> None:
        """Look for key violations, if the sink does that."""
        ...

    def stage(self, checkpoint: C) -> Staged:
        """Write its changes to the state location."""
        ...

    def discard_staged(self, staged: Staged) -> None:
        """Remove staged changes that no record refers to."""
        ...

    def write(self, checkpoint: C, time: int) -> WrittenBatch:
        """Write its changes as a batch of the table."""
        ...

    def check_input(self, checkpoint: C) -> None:
        """Raise SourceLost if the input has changed since it was read."""
        ...

    def release(self) -> None:
        """Drop what the current checkpoint holds in memory."""
        ...

    def leave_out(self, checkpoint: C, error: UnreadableFile) -> C:
        """Return the checkpoint without an unreadable file, or raise the error."""
        ...

    def merge(self, entries: Sequence[CheckpointEntry], batch: BatchDescription) -> CheckpointFiles:
        """Write the batch of what is staged in `entries`."""
        ...


class Choreography(Generic[C]):
    """Makes checkpoints durable: stages them, or records each as its own batch."""

    def __init__(self, spec: SinkSpec, run: SinkRun, work: BatchWork[C]) -> None:
        self._spec, self._run, self._work = spec, run, work
        self._closing = run.state.waiter.lock()

    def take(self, checkpoint: C) -> Decision:
        """Make one checkpoint durable, unless it is a replay or does not start where the records end.

        This decides before the claim, so that a replay claims nothing, and again after it, since the claim may have
        taken over records that were not visible before.
        """
        run = self._run
        decision = run.checkpoints.decide(checkpoint.identity)
        if decision is Decision.ACCEPT and not run.state.claimed:
            run.claims.claim()
            decision = run.checkpoints.decide(checkpoint.identity)
        if decision is Decision.SEALED:
            self._work.refuse_rows(checkpoint)
        if decision is not Decision.ACCEPT:
            return decision
        run.checkpoints.reads(checkpoint.identity, checkpoint.batch_ms, checkpoint.unread)
        run.checkpoints.await_room()
        while self._work.table_behind:
            run.claims.between_batches(self._work.evolve_table)
        while True:
            try:
                self._make_durable(checkpoint)
            except UnreadableFile as error:
                checkpoint = self._work.leave_out(checkpoint, error)
            else:
                return decision

    def _make_durable(self, checkpoint: C) -> None:
        self._run.state.retry_until_stopped(lambda: self._work.check_keys(checkpoint))
        make = self._stage if self._spec.stages else self._record
        try:
            while not make(checkpoint):
                continue  # its time was closed meanwhile
        finally:
            self._work.release()

    def _stage(self, checkpoint: C) -> bool:
        staged = self._run.state.retry_checking_fence(lambda: self._work.stage(checkpoint))
        try:
            self._run.state.retry_until_stopped(lambda: self._work.check_input(checkpoint))
        except SourceLost:
            self._work.discard_staged(staged)
            raise
        return self._run.checkpoints.stage(checkpoint.identity, staged, checkpoint.batch_ms)

    def _record(self, checkpoint: C) -> bool:
        while self._run.state.staged:  # by a predecessor with another definition
            self.close_due()
        time = self._run.state.next_time(checkpoint.batch_ms)
        batch = self._run.state.retry_checking_fence(lambda: self._work.write(checkpoint, time))
        try:
            self._run.state.retry_until_stopped(lambda: self._work.check_input(checkpoint))
        except SourceLost:
            batch.remove()
            raise
        if self._run.checkpoints.record(checkpoint.identity, batch.written, time, final=checkpoint.final):
            return True
        batch.remove()  # not recorded: it is written again with another time
        return False

    def close_due(self) -> bool:
        """Close a batch of what was staged for windows that are over; False if there are none."""
        run = self._run
        with self._closing:
            if run.batches.due() is None:
                return self._seal_if_final()
            run.claims.claim()
            batch = run.batches.due()  # again: the claim may have replaced the position
            if batch is None:
                return False
            entries = [entry for entry in run.state.staged if entry.reaches_into(batch)]
            written = run.state.retry_checking_fence(lambda: self._work.merge(entries, batch))
            run.batches.close(batch, written)
            return True

    def _seal_if_final(self) -> bool:
        """Seal the sink if the input is complete and all of it is closed."""
        state = self._run.state
        if not state.final or state.staged or state.sealed:
            return False
        self._run.batches.seal()
        return True
