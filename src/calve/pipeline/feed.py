"""Feeds deliver checkpoints to a sink, from Spark's streaming engine or from a source that calve drives itself.

Both deliver the same: an identity, a static frame, a time. A feed never decides whether a checkpoint is accepted; it
calls `take` and continues where the run's records end.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.clock import Clock
from calve.commit.checkpoints import Decision
from calve.commit.committer import Signals
from calve.commit.ports import Stopped
from calve.commit.run import SinkRun
from calve.model.checkpoint import CheckpointIdentity, Offsets, SizeHint, SizeLimit
from calve.model.spec import Pace
from calve.records.frames import Records
from calve.source.files.definition import FileSource
from calve.source.port import ReadsArrow, Source
from calve.source.table import TableSource


@dataclass(frozen=True)
class CheckpointRecords:
    """The records of a checkpoint, which are read when they are needed: as a frame or, if they are few, in memory."""

    make: Callable[[], Records]
    schema: StructType | None = None
    """Set if `in_memory` can be asked."""
    in_memory: Callable[[StructType, SizeLimit], pa.Table | None] | None = None
    """Reads some columns; None if Spark has to read the records (see `source.port.ReadsArrow`)."""

    @cached_property
    def frame(self) -> Records:
        """The records as a frame. Raises what the source raises."""
        return self.make()

    @classmethod
    def of(cls, frame: Records) -> "CheckpointRecords":
        """Records that are a frame already."""
        return cls(lambda: frame)


@dataclass(frozen=True)
class Checkpoint:
    """One micro-batch on its way to a record. `final` is True for the last one of a bounded input."""

    identity: CheckpointIdentity
    records: CheckpointRecords
    batch_ms: int
    size: SizeHint
    final: bool = False
    unread: int = 0
    """How much the source had beyond this checkpoint."""
    files: "FilesToRead | None" = None
    """Set if the records come from files."""


class FilesToRead(Protocol):
    """The files of one checkpoint."""

    def check_unchanged(self) -> None:
        """Raise SourceLost if one of them has changed since the frame was created."""
        ...

    def without(self, spark_path: str) -> tuple[str, Checkpoint] | None:
        """Return the file's path and the checkpoint without its records; None for an unknown file."""
        ...


Take = Callable[[Checkpoint], Decision]


class Feed(Protocol):
    """A thread that reads."""

    def can_reread(self, offsets: Offsets) -> bool:
        """Whether reading can start at these offsets."""
        ...

    def start(self, run: SinkRun, take: Take) -> None:
        """Start reading where the records end."""
        ...

    def stop(self) -> None:
        """Finish the checkpoint in hand, then end."""
        ...

    @property
    def alive(self) -> bool:
        """True while it reads."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why it ended, None after a stop or the end of a bounded input."""
        ...

    def ask(self) -> int:
        """Request everything that the source has now; returns the number of the request."""
        ...

    def await_idle(self, asked: int, timeout: float) -> bool:
        """Wait until everything that the source had at request `asked` has been delivered.

        Returns False if time ran out or the feed ended before. A request stays open until it is fulfilled, so a caller
        may wait for it repeatedly in short intervals, however long a poll of the source takes.
        """
        ...


@dataclass(frozen=True)
class FilesRead:
    """A checkpoint of a file source, possibly without some of its files."""

    source: FileSource
    spark: SparkSession
    checkpoint: Checkpoint
    left_out: frozenset[str] = frozenset()

    @property
    def whole(self) -> Checkpoint:
        """The checkpoint, with a reference to its files."""
        return replace(self.checkpoint, files=self)

    def check_unchanged(self) -> None:
        identity = self.checkpoint.identity
        self.source.check_unchanged(identity.start, identity.end)

    def without(self, spark_path: str) -> tuple[str, Checkpoint] | None:
        bounds = self.checkpoint.identity.start, self.checkpoint.identity.end
        path = self.source.path_of(*bounds, spark_path)
        if path is None or path in self.left_out:
            return None
        left_out = self.left_out | {path}
        records = CheckpointRecords(partial(self.source.frame_without, self.spark, *bounds, left_out))
        return path, replace(self, checkpoint=replace(self.checkpoint, records=records), left_out=left_out).whole


@dataclass(frozen=True)
class SnapshotsRead:
    """A checkpoint of a table's changes: its files belong to snapshots, which others may expire."""

    source: TableSource
    identity: CheckpointIdentity

    def check_unchanged(self) -> None:
        self.source.check_unchanged(self.identity.start, self.identity.end)

    def without(self, spark_path: str) -> None:
        """Nothing can be left out: every file of a table counts."""
        del spark_path


def use_pool(spark: SparkSession, sink_id: str) -> None:
    """Run this thread's jobs in the sink's scheduler pool, so that sinks share the cluster fairly."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", sink_id)


class FeedThread(ABC):
    """The thread of a feed, which runs `_loop` until it returns, is stopped or fails."""

    def __init__(self, spark: SparkSession, signals: Signals, clock: Clock, pace: Pace) -> None:
        self._spark = spark
        self._signals = signals
        self._clock = clock
        self._pace = pace
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        """Set when nothing more is delivered."""

    def start(self, run: SinkRun, take: Take) -> None:
        self._thread = threading.Thread(target=self._main, args=(run, take), name="calve-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread:
            self._thread.join()

    @property
    def alive(self) -> bool:
        return bool(self._thread and self._thread.is_alive())

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    @property
    def is_over(self) -> bool:
        """Whether nothing more is delivered: its thread has done its work, if it was started at all.

        A thread is alive for a moment longer than it works, so that is not enough to wait for.
        """
        return self._over.is_set() or not self.alive

    @abstractmethod
    def _loop(self, run: SinkRun, take: Take) -> None:
        """Deliver checkpoints. Raises Stopped, and whatever fails the run."""

    @property
    @abstractmethod
    def _hurried(self) -> bool:
        """Whether the next checkpoint must not wait until it is due."""

    def _main(self, run: SinkRun, take: Take) -> None:
        try:
            use_pool(self._spark, run.state.sink_id)
            self._loop(run, take)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the thread's last resort: the query reports it
            self._failure = error
        finally:
            self._over.set()
            self._signals.wake()

    def _rest(self, run: SinkRun, started: float, *, least: float = 0.0) -> None:
        """Wait until the next checkpoint is due, unless it is wanted earlier."""
        now = self._clock.monotonic()
        until = now + max(least, self._pace.rest(started, now, self._clock.now_ms()))
        while not (self._signals.stopping or run.state.sealed or self._hurried):
            calls, rest = self._signals.calls, until - self._clock.monotonic()
            if rest <= 0:
                return
            self._signals.await_call(calls, rest)


class SourceFeed(FeedThread):
    """Drives one of calve's own sources: polls it, and delivers what is new checkpoint by checkpoint."""

    def __init__(self, spark: SparkSession, source: Source, signals: Signals, clock: Clock, pace: Pace) -> None:
        super().__init__(spark, signals, clock, pace)
        self._source = source
        self._idle = threading.Condition()
        self._asked = self._answered = 0
        self._told: Offsets = None

    def can_reread(self, offsets: Offsets) -> bool:
        """These sources can go back to any offsets that they have reached."""
        del offsets
        return True

    def ask(self) -> int:
        with self._idle:
            self._asked += 1
            asked = self._asked
        self._signals.wake()
        return asked

    def await_idle(self, asked: int, timeout: float) -> bool:
        with self._idle:
            over = self._idle.wait_for(lambda: self._answered >= asked or self.is_over, timeout)
            return over and self._failure is None

    @property
    def _hurried(self) -> bool:
        """True while a request is open."""
        return self._answered < self._asked

    def _main(self, run: SinkRun, take: Take) -> None:
        try:
            super()._main(run, take)
        finally:
            with self._idle:
                self._idle.notify_all()

    def _loop(self, run: SinkRun, take: Take) -> None:
        run.claims.adopt_rows()
        while not self._signals.stopping and not run.state.sealed:
            calls, asked, started = self._signals.calls, self._asked, self._clock.monotonic()
            start, asked_ms = run.state.end, self._clock.now_ms()
            self._tell_committed(run)
            if self._source.ended(start):
                if run.state.staged:
                    run.batches.flush(seal=True)
                    self._signals.await_call(calls, 0.1)
                else:
                    run.batches.seal()
                continue
            end = run.state.retry_until_stopped(partial(self._source.next_end, start, whole=run.state.starts_over))
            self._report(run, start)
            if end is None and run.state.starts_over:
                run.batches.empty_table(self._clock.now_ms())
                continue
            if end is None:
                run.checkpoints.found_nothing(start, asked_ms)
                run.batches.read_through()
                self._answer(asked)
                self._rest(run, started, least=self._source.least_poll)
                continue
            complete, unread = self._source.took_all, self._source.unread
            checkpoint = run.state.retry_until_stopped(partial(self._checkpoint, run, start, end))
            run.state.monitor.phase("read", self._clock.monotonic() - started)
            take(checkpoint)
            self._report(run, run.state.end)
            if complete:
                run.batches.read_through()
                self._answer(asked)
            self._tell_committed(run)
            if not (unread or self._source.ended(run.state.end)):
                self._rest(run, started)

    def _report(self, run: SinkRun, at: Offsets) -> None:
        run.state.monitor.source_read(self._source.position(at))

    def _checkpoint(self, run: SinkRun, start: Offsets, end: Offsets) -> Checkpoint:
        identity = CheckpointIdentity(self._source.name, run.state.next_checkpoint, start, end)
        source, now_ms = self._source, self._clock.now_ms()
        size, final = source.size(start, end), source.ended(end)
        found = Checkpoint(identity, self._records(start, end), now_ms, size, final=final, unread=source.unread)
        if isinstance(source, TableSource):
            return replace(found, files=SnapshotsRead(source, identity))
        return FilesRead(source, self._spark, found).whole if isinstance(source, FileSource) else found

    def _records(self, start: Offsets, end: Offsets) -> CheckpointRecords:
        source = self._source
        make = partial(source.frame, self._spark, start, end)
        if not isinstance(source, ReadsArrow):
            return CheckpointRecords(make)
        return CheckpointRecords(
            make, source.schema(self._spark), partial(source.arrow_records, self._spark, start, end)
        )

    def _tell_committed(self, run: SinkRun) -> None:
        """Tell the source what is committed, if that has changed."""
        offsets = run.state.committed_offsets
        if offsets != self._told:
            self._source.committed(offsets)
            self._told = offsets

    def _answer(self, asked: int) -> None:
        with self._idle:
            self._answered = asked
            self._idle.notify_all()
