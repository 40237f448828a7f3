"""One sink from top to bottom: where all stages meet.

feed ──► take ──► envelope ──► view ─┬─► files ──► manifests ──► record        (the feed's thread)
                                     └─► stage ──► record        │
                                           │                     │
                   committer: a window closes ──► files ──► record, claim, commit, receipt    (its own thread)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.checkpoints import CheckpointFiles, Decision
from calve.commit.choreography import Choreography
from calve.commit.run import SinkRun
from calve.envelope.envelopes import arrow_conversion, changes_of, key_violations
from calve.envelope.fields import with_time
from calve.envelope.log import log_of
from calve.envelope.order import with_order
from calve.errors import KeyViolation, TerminalError, TransientError, UnreadableFile
from calve.iceberg.files.store import remove_new
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.sink_table import IcebergTable
from calve.model.change import TIME, table_columns
from calve.model.checkpoint import (
    UNKNOWN,
    CheckpointEntry,
    CheckpointIdentity,
    Offsets,
    RowKind,
    SizeHint,
    SizeLimit,
    Staged,
)
from calve.model.files import NO_NEEDS, ColumnNeeds, FileTotals, Manifest, WriteResult, WriteTarget, WrittenFile
from calve.model.frontier import BatchDescription
from calve.model.spec import ChangeRows, Debezium, Deletes, Diff, Envelope, OnKeyViolation, SinkSpec
from calve.model.table import TableState
from calve.pipeline.dead_letters import DeadLetters
from calve.pipeline.feed import Checkpoint, CheckpointRecords
from calve.pipeline.monitor import RunMonitor
from calve.records import notices
from calve.records.frames import Records, frame_of
from calve.storage.state import StateStore
from calve.view.run import View
from calve.write.batch import fits_the_driver, share_of_driver, write_batch
from calve.write.changes import ArrowChanges
from calve.write.consolidate import last_rows, log_rows
from calve.write.job import key_names
from calve.write.staging import (
    StagedBatch,
    StagedRows,
    StageFolder,
    discard_staged,
    schema_of,
    size_of,
    stage_batch,
)
from calve.write.timed import TimeRule


@dataclass(frozen=True)
class Intake:
    """Converts records to changes of the table: the envelope, then the view if there is one."""

    envelope: Envelope
    key: tuple[str, ...]
    """Key of the records; that of the view may differ."""
    view: View | None = None
    time_field: str | None = None
    """Field of the records that is their event time, if any."""
    log: bool = False
    """Whether every change becomes a row."""
    ordered_globally: bool = False
    """Whether the table stores the order of its rows."""

    def changes(
        self,
        frame: Records,
        identity: CheckpointIdentity,
        letters: DeadLetters | None = None,
        *,
        size: SizeHint = UNKNOWN,
        epoch: int = 0,
        needs: ColumnNeeds = NO_NEEDS,
    ) -> DataFrame:
        """Return the changes of one checkpoint; with `letters`, bad rows go to the dead letter table.

        `size` is that of its records. `needs` are the table's requirements on its columns. They do not apply to the
        records if there is a view.
        """
        changes = self.of_records(frame, needs)
        if letters is not None:
            changes = letters.sift(changes, identity)
        if self.view is not None:
            changes = self.view.changes(changes, identity, size=size, epoch=epoch)
            if letters is not None and self.view.plan.may_lack_keys:
                changes = letters.sift(changes, identity)
        elif self.ordered_globally:
            changes = with_order(changes, frame.schema)
        if self.time_field:
            changes = with_time(changes, self.time_field)
        return log_of(changes) if self.log else changes

    def arrow_changes(
        self, records: CheckpointRecords, limit: SizeLimit, spark: SparkSession, needs: ColumnNeeds
    ) -> ArrowChanges | None:
        """Return the changes of one checkpoint without a Spark job; None if they need Spark, or a record is bad."""
        if records.schema is None or records.in_memory is None or self.view or self.log or self.time_field:
            return None
        conversion = arrow_conversion(
            records.schema, self.envelope, self.key, spark, needs=needs, stores_order=self.ordered_globally
        )
        if conversion is None:
            return None
        found = records.in_memory(conversion.records, limit)
        changes = None if found is None else conversion.changes(found)
        return None if changes is None else ArrowChanges(changes, conversion.table, conversion.beside)

    def of_records(self, frame: Records, needs: ColumnNeeds = NO_NEEDS) -> DataFrame:
        """Return the changes of records, before the view is applied; bad rows are among them."""
        before = (
            self.view.plan.needs_before if self.view else self.log and isinstance(self.envelope, Debezium | ChangeRows)
        )
        own = NO_NEEDS if self.view else needs
        return changes_of(frame, self.envelope, self.key, before=before, time=self.time_field, needs=own)

    def committed(self, offsets: Offsets, *, epoch: int) -> None:
        """Let the view clean up: everything before these offsets is committed."""
        if self.view is not None:
            self.view.committed(offsets, epoch=epoch)


@dataclass(frozen=True)
class PipelineParts:
    """What a pipeline depends on."""

    spark: SparkSession
    state: StateStore
    table: IcebergTable
    monitor: RunMonitor
    clock: Clock
    ids: IdSource
    letters: DeadLetters | None = None


@dataclass(frozen=True)
class _WrittenBatch:
    """The files of a batch that is not recorded yet."""

    written: CheckpointFiles
    files: tuple[str, ...]
    target: WriteTarget

    def remove(self) -> None:
        """Remove its files; no record refers to them."""
        remove_new(self.files, self.target.io_properties, "their batch was not recorded")


class Pipeline:
    """The work of a sink with Spark, in the order of steps that `Choreography` has."""

    def __init__(self, spec: SinkSpec, intake: Intake, run: SinkRun, parts: PipelineParts) -> None:
        self._spec = spec
        self._intake = intake
        self._run = run
        self._spark, self._state, self._table = parts.spark, parts.state, parts.table
        self._monitor, self._clock, self._ids = parts.monitor, parts.clock, parts.ids
        self._letters = parts.letters
        self._steps = Choreography(spec, run, self)

    @property
    def table_behind(self) -> bool:
        return self._table.behind

    def evolve_table(self, state: TableState) -> None:
        self._table.evolve(state)

    def refuse_rows(self, checkpoint: Checkpoint) -> None:
        if not frame_of(checkpoint.records.frame).isEmpty():
            raise TerminalError(
                "rows arrived after the end of the input",
                detail=f"Checkpoint {checkpoint.identity} follows a progress row that ended it.",
                hint="To continue with other contents: ALTER SINK ... SET FROM ... WITH (SNAPSHOT = true).",
            )

    def take(self, checkpoint: Checkpoint) -> Decision:
        """Make one checkpoint durable, see `Choreography.take`; then let the view clean up."""
        decision = self._steps.take(checkpoint)
        if decision is Decision.ACCEPT:
            try:
                self._intake.committed(self._run.state.committed_offsets, epoch=self._run.state.fence.epoch)
            except TransientError as error:
                self._monitor.warned("clean-up after a checkpoint", error)
        return decision

    def close_due(self) -> bool:
        """Close a batch of what was staged for windows that are over; False if there are none."""
        return self._steps.close_due()

    @contextmanager
    def _converted(self, checkpoint: Checkpoint, target: WriteTarget) -> Iterator[ArrowChanges | DataFrame]:
        """The changes of a checkpoint: computed by the driver if it may and can, otherwise by Spark jobs."""
        with share_of_driver(checkpoint.size, self._spark.sparkContext) as limit:
            in_memory = self._arrow_changes(checkpoint, target, limit)
            if in_memory is not None:
                yield in_memory
                return
        changes = self._changes(checkpoint)
        with self._input_checked(checkpoint):
            yield changes

    def _changes(self, checkpoint: Checkpoint) -> DataFrame:
        epoch = self._run.state.fence.epoch
        if self._letters is not None:
            self._letters.release()  # from a failed attempt
        needs = self._table.needs
        return self._intake.changes(
            checkpoint.records.frame,
            checkpoint.identity,
            self._letters,
            size=checkpoint.size,
            epoch=epoch,
            needs=needs,
        )

    def _arrow_changes(self, checkpoint: Checkpoint, target: WriteTarget, limit: SizeLimit) -> ArrowChanges | None:
        """Return the changes of a checkpoint in the types of the table; None if Spark has to compute them."""
        if self._letters is not None and not self._letters.settled:
            return None
        with self._run.state.timed("collect"), notices.of_sink(self._run.state.sink_id, self._spark.sparkContext):
            changes = self._intake.arrow_changes(checkpoint.records, limit, self._spark, self._table.needs)
            return changes if changes is not None and changes.fits(target) else None

    def leave_out(self, checkpoint: Checkpoint, error: UnreadableFile) -> Checkpoint:
        """ON BAD ROW = 'dead letter': add a dead letter for an unreadable file, and leave out all of its rows.

        Nothing of the checkpoint is recorded yet, so it is computed again without the file. The letter is added first.
        """
        letters, files = self._letters, checkpoint.files
        found = files.without(error.file) if letters and files and error.file else None
        if letters is None or found is None:
            raise error
        path, rest = found
        self._run.state.retry_until_stopped(lambda: letters.add_file(path, error, checkpoint.identity))
        return rest

    def check_input(self, checkpoint: Checkpoint) -> None:
        if checkpoint.files is not None:
            checkpoint.files.check_unchanged()

    @contextmanager
    def _input_checked(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Do not retry for ever what fails because the input is gone. Raises SourceLost."""
        try:
            yield
        except TransientError:
            self.check_input(checkpoint)
            raise

    def discard_staged(self, staged: Staged) -> None:
        discard_staged(self._state, staged)

    def release(self) -> None:
        if self._letters is not None:
            self._letters.release()

    def check_keys(self, checkpoint: Checkpoint) -> None:
        if self._spec.on_key_violation is not OnKeyViolation.IGNORE:
            self._check_key_violations(checkpoint)

    def _check_key_violations(self, checkpoint: Checkpoint) -> None:
        intake = self._intake
        found = key_violations(checkpoint.records.frame, intake.envelope, intake.key, time=intake.time_field)
        if found is None:
            return
        self._monitor.violated(found.count, found.sample)
        if self._spec.on_key_violation is OnKeyViolation.HALT:
            raise KeyViolation(
                "conflicting rows for one key: their order is not known",
                detail=f"{found.count} in one checkpoint, including {found.sample}.",
                hint="Order the changes by a field that increases with every change, or set ON KEY VIOLATION = 'warn'.",
            )

    def stage(self, checkpoint: Checkpoint) -> Staged:
        target = self._table.write_target(self._spec.write)
        faults.reached("stage.before")
        times = self._spec.times
        rule = TimeRule(times, self._run.state.closed, coalesce=self._spec.coalesce) if times else None
        folder = StageFolder(self._state, self._run.checkpoints.stage_folder, rule)
        with self._converted(checkpoint, target) as changes, self._run.state.timed("stage"):
            staged = stage_batch(changes, target, folder, RowKind.of(self._spec), size=checkpoint.size)
        faults.reached("stage.after")
        return staged

    def merge(self, entries: Sequence[CheckpointEntry], batch: BatchDescription) -> CheckpointFiles:
        rows = [StagedRows(e, self._kind_of(e.staged)) for e in entries if e.staged and e.staged.files]
        if not rows:
            return CheckpointFiles(self._ids.new_id(), (), FileTotals())
        kinds = list(dict.fromkeys(part.kind for part in rows))
        target = self._table.write_target(self._spec.write, kinds)  # their columns may be older than the input's
        staged = StagedBatch(self._state, rows, target, batch)
        faults.reached("files.before")
        size = size_of([entry.staged for entry in entries if entry.staged])
        if kinds[-1].envelope == Diff.__name__:
            frame = staged.frame(self._spark)
            changes = log_rows(frame) if self._spec.append else last_rows(frame, key_names(target))
            return self._write_files(changes, size, target).written
        if fits_the_driver(size):
            with share_of_driver(size, self._spark.sparkContext) as limit:
                with self._run.state.timed("collect"):
                    in_memory = staged.in_memory(limit.bytes)
                if in_memory is None:
                    size = replace(size, bytes=limit.bytes + 1)  # at least
                elif in_memory.fits(target):
                    return self._write_files(in_memory, size, target).written
        return self._write_files(staged.frame(self._spark), size, target).written

    def _kind_of(self, staged: Staged) -> RowKind:
        """Return the kind of staged rows; for records of older versions, derive it from the columns of their files."""
        if staged.kind is not None:
            return staged.kind
        found = schema_of(self._state, staged.files[0])
        names = table_columns(found.names, log=self._spec.append)
        columns = self._table.columns_named(iceberg_schema(StructType([found[name] for name in names])))
        beside = StructType([field for field in found.fields if field.name not in names])
        return RowKind.of(self._spec, columns, beside.json())

    def write(self, checkpoint: Checkpoint, time: int) -> "_WrittenBatch":
        faults.reached("files.before")
        target = self._table.write_target(self._spec.write)
        with self._converted(checkpoint, target) as changes:
            if self._spec.append and isinstance(changes, DataFrame):
                changes = changes.withColumn(TIME, F.lit(time).cast("bigint"))  # noqa: PLW2901
            return self._write_files(changes, checkpoint.size, target)

    def _write_files(self, changes: DataFrame | ArrowChanges, size: SizeHint, target: WriteTarget) -> "_WrittenBatch":
        started, timed = self._clock.monotonic(), self._run.state.timed
        with timed("write"):
            result = write_batch(
                changes, target, deletes=self._run.state.needs_deletes, size=size, ids=self._ids, timed=timed
            )
            files = [file.path for file in result.files]
            try:
                faults.reached("files.after")
                written = self._write_manifests(result, self._ids.new_id(), files)
                faults.reached("manifests.after")
            except BaseException:
                remove_new(files, target.io_properties, "their batch was not recorded")
                raise
        self._monitor.wrote(self._clock.monotonic() - started)
        return _WrittenBatch(written, tuple(files), target)

    def _write_manifests(self, result: WriteResult, commit_id: str, made: list[str]) -> CheckpointFiles:
        """Write the manifests of a batch. Key files are equality deletes as they are, or are resolved at commit."""

        def manifests_of(files: tuple[WrittenFile, ...], stem: str) -> tuple[Manifest, ...]:
            manifests = self._table.write_manifests(files, stem) if files else ()
            made.extend(manifest.path for manifest in manifests)
            return manifests

        if self._spec.deletes is Deletes.EQUALITY:
            return CheckpointFiles(commit_id, manifests_of(result.files, commit_id), FileTotals.of(result))
        data, keys = result.data_files, result.delete_files
        return CheckpointFiles(
            commit_id,
            manifests_of(data, commit_id),
            FileTotals.of(replace(result, files=data)),
            manifests_of(keys, f"{commit_id}-keys"),
        )
