"""Feeds a sink from a streaming DataFrame through Spark's `foreachBatch`.

Spark's checkpoint lives in numbered folders on the driver's disk; the file `current` names the one in use. If it is not
where the run's records end (lost, rewound, restored, foreign, or ahead), the feed starts a new folder there if the
source's offsets allow it; otherwise the sink stops with the reason. calve never changes a folder once Spark uses it.

Spark ends a query as soon as its source or its checkpoint folder fails. If the failure is transient, the feed restarts
the query where the records end, with growing delays; it counts as running once it has delivered a batch or waits for
data.
"""

import logging
import queue
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.checkpoints import Decision
from calve.commit.committer import Signals
from calve.commit.ports import Stopped
from calve.commit.run import SinkRun
from calve.errors import CalveError, SourceLost, TransientError
from calve.model.checkpoint import UNKNOWN, CheckpointIdentity, Offsets, SizeHint
from calve.model.numbers import whole_number
from calve.model.spec import Pace
from calve.pipeline.feed import Checkpoint, CheckpointRecords, FeedThread, Take
from calve.pipeline.spark_log import (
    DamagedLog,
    SparkLog,
    SparkPosition,
    behind,
    checkpoint_failure,
    position_of,
    self_describing,
    unread_of,
    waits_for_data,
)
from calve.spark.failures import CAUGHT, failure_of
from calve.storage import durable
from calve.storage.local_folders import make_private

_log = logging.getLogger(__name__)

_STATISTICS_LIMIT = 1 << 50
"""Spark reports huge sizes for plans of unknown size."""


POLL_MS: Final = 100
"""Interval at which Spark polls a source that has nothing."""

LOOK_SECONDS: Final = 1
"""Interval at which the feed checks whether Spark waits for data."""

_DATA_LOSS = ("some data may have been missed", "failOnDataLoss", "KAFKA_DATA_LOSS")
"""Messages of the Kafka connector about offsets that a topic no longer has."""


class _Repositioned(Exception):
    """Ends a query whose position is wrong, so that it is restarted elsewhere."""


class SparkFeed(FeedThread):
    """Feeds one streaming DataFrame. Its thread starts Spark's query, and restarts it where the records end."""

    def __init__(
        self, frame: DataFrame, folder: Path, signals: Signals, clock: Clock, ids: IdSource, pace: Pace
    ) -> None:
        super().__init__(frame.sparkSession, signals, clock, pace)
        self._frame = frame
        self._folder = folder
        self._ids = ids
        self._query: StreamingQuery | None = None
        self._log = SparkLog(folder)
        self._read_to: Offsets = None
        """End of the last delivered batch: Spark polls the source from there."""
        self._broken: TransientError | None = None
        """Why Spark ended the last query, until it is reported."""
        self._called = False
        """Whether the query has delivered a batch."""
        self._moved = False
        self._stopping = False
        self._state = threading.Condition()
        self._busy = False
        self._awaited = 0

    def can_reread(self, offsets: Offsets) -> bool:
        return self_describing(offsets)

    def stop(self) -> None:
        with self._state:
            self._stopping = True
            self._state.wait_for(lambda: not self._busy)  # Spark does not wait for a Python callback
        try:
            if self._query is not None and self._query.isActive:
                self._query.stop()
        except CAUGHT as error:  # the JVM is gone, and the query with it; or the thread tries again
            _log.info("Spark's query could not be stopped: %s", type(error).__name__)
        super().stop()

    def ask(self) -> int:
        return 0  # `await_idle` asks Spark itself

    def await_idle(self, asked: int, timeout: float) -> bool:
        del asked
        with self._state:
            self._awaited += 1
        self._signals.wake()
        try:
            return self._await_all(timeout)
        finally:
            with self._state:
                self._awaited -= 1

    def _await_all(self, timeout: float) -> bool:
        deadline = self._clock.monotonic() + timeout
        while self.alive and self._clock.monotonic() < deadline:
            query = self._query
            if query is None or not query.isActive:
                self._signals.await_call(self._signals.calls, 0.05)
                continue
            if _processes_all(query, deadline - self._clock.monotonic()) and query is self._query and not self._moved:
                return True
        return False

    # ---- the thread

    @property
    def _hurried(self) -> bool:
        """True while a caller waits for everything that is there, and after a stop."""
        return self._stopping or self._awaited > 0

    def _loop(self, run: SinkRun, take: Take) -> None:
        while not self._signals.stopping and not self._stopping and not run.state.sealed:
            query = run.state.retry_until_stopped(partial(self._start_query, run, take))
            try:
                self._watch(run, query)
            except TransientError as error:
                self._broken = error

    def _start_query(self, run: SinkRun, take: Take) -> StreamingQuery:
        """Start a query, and return it once it works or has ended. Raises TransientError if it failed before that."""
        broken, self._broken = self._broken, None
        if broken is not None:  # the last one had worked: report and delay its failure like that of any other source
            raise broken
        try:
            self._log = self._folder_for(run)
        except OSError as error:
            raise checkpoint_failure(self._folder, error) from error
        self._moved = self._called = False

        def on_batch(frame: DataFrame, batch_id: int) -> None:
            self._on_batch(frame, batch_id, run, take)

        writer = self._frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", self._log.folder.as_uri())
        if self._pace.every > 0:  # the callback does the pacing: a slower trigger would also slow down a backlog
            writer = writer.trigger(processingTime=f"{POLL_MS} milliseconds")
        self._read_to = run.state.end
        query = self._query = writer.start()
        while not (self._called or self._has_ended(run, query)):
            if waits_for_data(query.status):
                break
        return query

    def _watch(self, run: SinkRun, query: StreamingQuery) -> None:
        asked_ms: int | None = None
        while not self._has_ended(run, query):
            asked_ms = self._notice_idle(run, query, asked_ms)

    def _has_ended(self, run: SinkRun, query: StreamingQuery) -> bool:
        """Wait until the next check, and return whether the query has ended. Raises its failure."""
        if self._stopping and query.isActive:  # it may have been started after the stop
            query.stop()
        try:
            return bool(query.awaitTermination(LOOK_SECONDS))
        except PySparkException as error:
            if self._stopping or self._moved or run.state.sealed:
                return True
            own, self._failure = self._failure, None  # one that is transient is over with the next query
            raise own or _query_failure(error) from error

    def _notice_idle(self, run: SinkRun, query: StreamingQuery, asked_ms: int | None) -> int | None:
        """Report that Spark polled the source and it had nothing; returns the time of this check, None if it had.

        Spark polls at least once between two checks, so only the time of the first check is certain.
        """
        if self._busy or not waits_for_data(query.status):
            return None
        if asked_ms is not None:
            run.checkpoints.found_nothing(self._read_to, asked_ms)
            run.state.monitor.source_read(position_of(self._read_to, self._sources()))
        return self._clock.now_ms()

    def _on_batch(self, frame: DataFrame, batch_id: int, run: SinkRun, take: Take) -> None:
        started, unread = self._clock.monotonic(), self._unread()
        with self._state:
            if self._stopping:
                raise Stopped
            self._busy = self._called = True
        try:
            batch = run.state.retry_until_stopped(partial(self._log.batch, batch_id))
            self._check_forward(batch.identity)
            run.state.retry_until_stopped(self._log.sync)  # the record of this batch relies on Spark's log
            records, size = CheckpointRecords.of(frame), _size_of(frame)
            decision = take(Checkpoint(batch.identity, records, batch.batch_ms, size, unread=unread or 0))
        except Stopped:
            raise
        except Exception as error:
            self._failure = error  # only its text survives the way through the JVM
            raise
        finally:
            with self._state:
                self._busy = False
                self._state.notify_all()
        if decision in {Decision.REPOSITION, Decision.SEALED}:
            self._moved = True
            raise _Repositioned
        self._read_to = batch.identity.end
        run.state.monitor.source_read(position_of(self._read_to, self._sources()))
        faults.reached("spark-commit.before")
        if not unread and (unread == 0 or self._pace.required):
            self._rest(run, started)

    def _unread(self) -> int | None:
        """Return how much the source had beyond the previous batch when that was planned; None if unknown."""
        sources = self._sources()
        return unread_of(sources) if sources else None

    def _sources(self) -> list[dict[str, Any]]:
        """What Spark reported of its sources when it planned the previous batch; empty before the first one."""
        progress = self._query.lastProgress if self._query is not None else None
        return [] if progress is None else progress["sources"]

    # ---- where to continue

    def _folder_for(self, run: SinkRun) -> SparkLog:
        current = self._current()
        problem, position = "it is lost", None
        if current is not None:
            try:
                position = SparkLog(current).position()
                problem = "it is empty" if position is None else "it is not where the records end"
            except DamagedLog as error:
                problem = error.detail
        if current is not None and self._fits(position, run):
            return SparkLog(current)
        if not run.state.claimed:  # the predecessor may have continued since this run loaded the table
            run.claims.recheck_table()
            if current is not None and self._fits(position, run):
                return SparkLog(current)
        fresh = run.state.end is None and position is None
        if not fresh and not self.can_reread(run.state.end):
            raise self._lost_error(problem, run.state.end)
        return self._new_folder(run.state.end)

    def _fits(self, position: SparkPosition | None, run: SinkRun) -> bool:
        """Whether Spark's next batch is already recorded, or starts where the records end."""
        if position is None:
            return False
        if position.planned and run.state.knows(position.planned.identity):
            return True
        same_query = position.query_id == run.state.last_query_id or not run.state.last_query_id
        return position.committed == run.state.end and (same_query or self_describing(run.state.end))

    def _current(self) -> Path | None:
        try:
            folder = self._folder / (self._folder / "current").read_text().strip()
        except FileNotFoundError:
            return None
        return folder if folder.is_dir() else None

    def _new_folder(self, offsets: Offsets) -> SparkLog:
        make_private(self._folder)
        used = [whole_number(p.name) or 0 for p in self._folder.iterdir()]
        log = SparkLog(self._folder / str(max(used, default=0) + 1))
        try:
            log.start_at(offsets, self._ids.new_id(), self._clock.now_ms())
        except (OSError, TransientError):  # every attempt would leave one
            shutil.rmtree(log.folder, ignore_errors=True)
            raise
        part = self._folder / f"current.{self._ids.new_id()}"
        with durable.DurableFile(part) as out:
            out.write(log.folder.name.encode())
        part.replace(self._folder / "current")
        durable.sync_folder(self._folder)
        return log

    def _check_forward(self, identity: CheckpointIdentity) -> None:
        """Raise SourceLost if offsets go backwards: the source was recreated."""
        gone = behind(identity.start, identity.end)
        if gone:
            raise _source_lost(gone)

    def _lost_error(self, problem: str, offsets: Offsets) -> SourceLost:
        return SourceLost(
            "Spark's checkpoint cannot be continued, and its source cannot start at the recorded offsets",
            detail=f"{self._folder}: {problem}; the records end at {offsets}.",
            hint="Restore the newest checkpoint directory, or use calve.files(), which keeps its own position.",
        )


def _size_of(frame: DataFrame) -> SizeHint:
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - statistics have no Python API
    size = int(str(plan.stats().sizeInBytes()))
    return SizeHint(bytes=size) if 0 < size < _STATISTICS_LIMIT else UNKNOWN


def _source_lost(detail: str) -> SourceLost:
    return SourceLost(
        "the source no longer has the records that were read last, or the next ones",
        detail=f"{detail}.",
        hint="It was recreated, or removed records before they were read. To start over: a new sink into a new table.",
    )


def _query_failure(error: PySparkException) -> CalveError:
    """Translate the failure of a query; a TransientError if it can be restarted."""
    lines = str(error).strip().splitlines()
    lost = next((line for line in lines if any(words in line for words in _DATA_LOSS)), None)
    if lost:
        return _source_lost(lost.strip().rstrip("."))
    return failure_of(error, "the streaming query failed")


def _processes_all(query: StreamingQuery, seconds: float) -> bool:
    """Wait until a query has processed what its source has now; False if it ended before, or time ran out.

    Spark's own call has no time limit: a thread of its own makes it, and is left behind until the query ends.
    """
    processed = queue.SimpleQueue[bool]()

    def wait() -> None:
        try:
            query.processAllAvailable()
        except CAUGHT:
            processed.put(item=False)  # the query ended: for good, or to be restarted elsewhere
        else:
            processed.put(item=True)

    threading.Thread(target=wait, name="calve-await-all", daemon=True).start()
    try:
        return processed.get(timeout=max(0.0, seconds))
    except queue.Empty:
        return False
