"""One sink from top to bottom: where all stages meet.

feed ──► take ──► envelope ──► view ──► files ──► manifests ──► record           (the feed's thread)
                                                          │
                                          committer: claim, commit, receipt   (its own thread)
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.run import Decision, SinkRun, Written
from calve.errors import TransientError
from calve.iceberg.table import IcebergTable
from calve.model.checkpoint import Offsets
from calve.model.files import Totals
from calve.model.spec import Envelope, WriteOptions
from calve.runtime.feed import Checkpoint
from calve.runtime.monitor import RunMonitor
from calve.source.envelope import changes_of
from calve.view.run import View
from calve.write.batch import write_batch


@dataclass(frozen=True)
class Intake:
    """From records to changes of the table: the envelope, and the view above it if there is one."""

    envelope: Envelope
    key: tuple[str, ...]
    """Of the records; the view may have another."""
    view: View | None = None

    def changes(self, checkpoint: Checkpoint) -> DataFrame:
        """The changes of one checkpoint."""
        if self.view is None:
            return changes_of(checkpoint.frame, self.envelope, self.key)
        changes = changes_of(checkpoint.frame, self.envelope, self.key, before=self.view.plan.needs_before)
        return self.view.changes(changes, checkpoint.identity)

    def committed(self, offsets: Offsets) -> None:
        """What lies before these offsets is in the table."""
        if self.view is not None:
            self.view.committed(offsets)


class Pipeline:
    """Makes checkpoints durable: every checkpoint closes its own batch."""

    def __init__(
        self,
        intake: Intake,
        options: WriteOptions,
        run: SinkRun,
        table: IcebergTable,
        monitor: RunMonitor,
        outside: tuple[Clock, IdSource],
    ) -> None:
        self._intake = intake
        self._options = options
        self._run = run
        self._table = table
        self._monitor = monitor
        self._clock, self._ids = outside

    def take(self, checkpoint: Checkpoint) -> Decision:
        """Record one checkpoint, unless it is a replay or not where the records end.

        Identity and position are looked at before the claim, so that a replay claims nothing, and again after it, since
        the claim may have taken over records that were not seen before.
        """
        decision = self._run.decide(checkpoint.identity)
        if decision is Decision.ACCEPT and not self._run.claimed:
            self._run.claim()
            decision = self._run.decide(checkpoint.identity)
        if decision is not Decision.ACCEPT:
            return decision
        written = self._run.patiently(lambda: self._write(checkpoint))
        self._run.record(checkpoint.identity, written, checkpoint.batch_ms, final=checkpoint.final)
        try:
            self._intake.committed(self._run.committed_offsets)
        except TransientError as error:
            self._monitor.warned("clean-up after a checkpoint", error)
        return decision

    def _write(self, checkpoint: Checkpoint) -> Written:
        started = self._clock.monotonic()
        changes = self._intake.changes(checkpoint)
        target = self._table.write_target(self._options)
        faults.reached("files.before")
        result = write_batch(changes, target, deletes=self._run.needs_deletes, size=checkpoint.size, ids=self._ids)
        faults.reached("files.after")
        commit_id = self._ids.new_id()
        manifests = self._table.write_manifests(result.files, commit_id) if result.files else ()
        faults.reached("manifests.after")
        self._monitor.wrote(self._clock.monotonic() - started)
        return Written(commit_id, manifests, Totals.of(result))
