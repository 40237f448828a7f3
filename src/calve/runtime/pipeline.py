"""One sink from top to bottom: where all stages meet.

feed ──► take ──► envelope ──► view ─┬─► files ──► manifests ──► record        (the feed's thread)
                                     └─► stage ──► record        │
                                           │                     │
                   committer: a window is over ──► files ──► record, claim, commit, receipt   (its own thread)
"""

import threading
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.run import Decision, SinkRun, Written
from calve.errors import KeyViolation, TransientError
from calve.iceberg.schema import iceberg_schema
from calve.iceberg.table import IcebergTable
from calve.model.change import table_columns
from calve.model.checkpoint import Offsets, Staged
from calve.model.files import Totals
from calve.model.size import SizeHint
from calve.model.spec import Envelope, OnKeyViolation, SinkSpec
from calve.model.target import WriteTarget
from calve.runtime.feed import Checkpoint
from calve.runtime.monitor import RunMonitor
from calve.source.envelope import changes_of
from calve.source.violations import key_violations
from calve.state import StateStore
from calve.view.run import View
from calve.write.batch import write_batch
from calve.write.changes import quoted
from calve.write.staging import StageFolder, stage_batch, staged_changes


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


@dataclass(frozen=True)
class Around:
    """What a pipeline works with."""

    spark: SparkSession
    state: StateStore
    table: IcebergTable
    monitor: RunMonitor
    clock: Clock
    ids: IdSource


class Pipeline:
    """Makes checkpoints durable. Without windows every checkpoint closes its own batch; with windows it is staged."""

    def __init__(self, spec: SinkSpec, intake: Intake, run: SinkRun, around: Around) -> None:
        self._options, self._windows = spec.write, spec.window_ms is not None
        self._on_key_violation = spec.on_key_violation
        self._intake = intake
        self._run = run
        self._spark, self._state, self._table = around.spark, around.state, around.table
        self._monitor, self._clock, self._ids = around.monitor, around.clock, around.ids
        self._closing = threading.Lock()

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
        self._run.patiently(self._run.check_room)
        self._fit_the_table()
        if self._on_key_violation is not OnKeyViolation.IGNORE:
            self._look_for_violations(checkpoint)
        if self._windows:
            staged = self._run.patiently(lambda: self._stage(checkpoint))
            self._run.stage(checkpoint.identity, staged, checkpoint.batch_ms)
        else:
            while self._run.staged:  # of a run that had windows
                self.close_due()
            written = self._run.patiently(lambda: self._write(checkpoint))
            self._run.record(checkpoint.identity, written, checkpoint.batch_ms, final=checkpoint.final)
        try:
            self._intake.committed(self._run.committed_offsets)
        except TransientError as error:
            self._monitor.warned("clean-up after a checkpoint", error)
        return decision

    def _fit_the_table(self) -> None:
        """A table that lacks columns or partitions gets them between two batches: after all rows that came before."""
        if not self._table.behind:
            return
        while self._run.staged:
            self._run.flush()
            self.close_due()
        self._run.between_batches(self._table.evolve)

    def _look_for_violations(self, checkpoint: Checkpoint) -> None:
        found = key_violations(checkpoint.frame, self._intake.envelope, self._intake.key)
        if found is None:
            return
        self._monitor.violated(found.count, found.sample)
        if self._on_key_violation is OnKeyViolation.HALT:
            raise KeyViolation(
                "a key has different rows, and nothing tells which is the last",
                detail=f"{found.count} in one checkpoint, among them {found.sample}.",
                hint="Order the changes by a field that grows with each of them, or set ON KEY VIOLATION = 'warn'.",
            )

    def close_due(self) -> bool:
        """Make one batch of what was staged for windows that are over; False when there are none."""
        with self._closing:
            if self._run.due() is None:
                return False
            self._run.claim()
            batch = self._run.due()  # what was seen before the claim does not count
            if batch is None:
                return False
            staged = [e.staged for e in self._run.staged if e.staged and batch.holds(e.time)]
            written = self._run.suspiciously(lambda: self._merge(staged))
            self._run.close(batch, written)
            return True

    def _stage(self, checkpoint: Checkpoint) -> Staged:
        changes = self._intake.changes(checkpoint)
        target = self._table.write_target(self._options)
        faults.reached("stage.before")
        folder = StageFolder(self._state, self._run.stage_folder)
        staged = stage_batch(changes, target, folder, size=checkpoint.size)
        faults.reached("stage.after")
        return staged

    def _merge(self, staged: list[Staged]) -> Written:
        changes = staged_changes(self._spark, self._state, staged)
        if changes is None:
            return Written(self._ids.new_id(), (), Totals())
        columns = changes.select([quoted(name) for name in table_columns(changes.columns)]).schema
        target = self._table.write_target(self._options, iceberg_schema(columns))  # they may be older than the input's
        return self._written(changes, SizeHint(rows=sum(part.rows for part in staged)), target)

    def _write(self, checkpoint: Checkpoint) -> Written:
        return self._written(self._intake.changes(checkpoint), checkpoint.size, self._table.write_target(self._options))

    def _written(self, changes: DataFrame, size: SizeHint, target: WriteTarget) -> Written:
        started = self._clock.monotonic()
        faults.reached("files.before")
        result = write_batch(changes, target, deletes=self._run.needs_deletes, size=size, ids=self._ids)
        faults.reached("files.after")
        commit_id = self._ids.new_id()
        manifests = self._table.write_manifests(result.files, commit_id) if result.files else ()
        faults.reached("manifests.after")
        self._monitor.wrote(self._clock.monotonic() - started)
        return Written(commit_id, manifests, Totals.of(result))
