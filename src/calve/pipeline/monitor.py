"""Reports what happens in a run: metrics, log lines, and a status that other processes can read.

The status is a small JSON file under the home folder, replaced atomically; `calve status` reads it. It is only a
report: no decision depends on it.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_type_hints

from calve import metrics
from calve.clock import Clock, SystemClock
from calve.commit.ports import Waiting
from calve.errors import CalveError, CommitConflict, FencedError
from calve.maintain.compact import Compacted
from calve.model.files import Committable
from calve.model.frontier import Frontier
from calve.model.health import CommitReport, Health, Status
from calve.model.names import name_of_segment, path_segment
from calve.model.progress import Receipt
from calve.model.spec import SinkSpec
from calve.storage.filesystems import make_private

_log = logging.getLogger("calve")

WRITE_EVERY_MS = 500
LAG_EVERY_MS = 10_000
"""Interval at which the lag of a sink is written while nothing else changes."""
RECENT_COMMITS = 100
_TYPES = {name: kind for name, kind in get_type_hints(Status).items() if name != "health"}
"""Types of a status's fields in JSON."""


class RunMonitor:
    """Implements the port `Monitor`. Called by both threads of a run."""

    def __init__(
        self, spec: SinkSpec, clock: Clock, file: Path, on_record: Callable[[], None], *, counts: str = "rows"
    ) -> None:
        self._sink = spec.name
        self._clock = clock
        self._file = file
        self._on_record = on_record
        self._lock = threading.RLock()
        self._written_ms = 0
        self._recent: deque[CommitReport] = deque(maxlen=RECENT_COMMITS)
        self._current_ms: int | None = None
        begun = Status.begun(spec.name, str(spec.table), read_status(file), clock.now_ms())
        self._status = replace(begun, counts=counts)

    @property
    def status(self) -> Status:
        """Current status of the sink."""
        with self._lock:
            return replace(self._status, lag_ms=self._lag_ms(self._clock.now_ms()))

    @property
    def sink(self) -> str:
        """The sink's name."""
        return self._sink

    @property
    def commits(self) -> int:
        """Commits of this sink, those of earlier runs included."""
        with self._lock:
            return self._status.commits

    @property
    def recent_commits(self) -> list[CommitReport]:
        """The last commits of this run, oldest first."""
        with self._lock:
            return list(self._recent)

    # ---- the port

    def recorded(self, committable: Committable) -> None:
        metrics.CHECKPOINTS.labels(self._sink).inc()
        metrics.CHANGES.labels(self._sink).inc(committable.totals.changes)
        with self._lock:
            self._set(rows=self._status.rows + committable.totals.changes)
        self._on_record()

    def waiting(self, work: Waiting) -> None:
        metrics.STAGED.labels(self._sink).set(work.staged)
        metrics.INPUT_FRONTIER.labels(self._sink).set(_number(work.input))
        metrics.MINTED_FRONTIER.labels(self._sink).set(_number(work.minted))
        with self._lock:
            before = self._status.staged
            self._set(pending=work.ready, staged=work.staged, input=work.input.to_json(), minted=work.minted.to_json())
            if work.staged != before:
                self._write()
        self._on_record()

    def lag(self, current_ms: int | None, unread: int | None) -> None:
        with self._lock:
            self._current_ms = current_ms
            changed = unread != self._status.unread
            now = self._clock.now_ms()
            if changed or now - self._written_ms >= LAG_EVERY_MS:
                self._set(unread=unread)

    def late(self, rows: int) -> None:
        metrics.LATE.labels(self._sink).inc(rows)
        with self._lock:
            self._set(late=self._status.late + rows)
        _log.warning("%d rows of sink %s arrived late", rows, self._sink)

    def committed(self, receipt: Receipt, committable: Committable, seconds: float) -> None:
        totals, sink = committable.totals, self._sink
        metrics.COMMITS.labels(sink).inc()
        metrics.COMMIT_SECONDS.labels(sink).observe(seconds)
        metrics.FRONTIER.labels(sink).set(_number(receipt.frontier))
        for content, files, rows, size in (
            ("data", totals.data_files, totals.data_rows, totals.data_bytes),
            (
                "deletes",
                totals.equality_delete_files + totals.position_delete_files,
                totals.equality_deletes + totals.position_deletes,
                totals.delete_bytes,
            ),
        ):
            metrics.WRITTEN_FILES.labels(sink, content).inc(files)
            metrics.WRITTEN_ROWS.labels(sink, content).inc(rows)
            metrics.WRITTEN_BYTES.labels(sink, content).inc(size)
        report = CommitReport(
            snapshot_id=receipt.snapshot_id,
            frontier=receipt.frontier.to_json(),
            changes=totals.changes,
            rows=totals.data_rows,
            deletes=totals.equality_deletes + totals.position_deletes,
            files=totals.data_files + totals.equality_delete_files + totals.position_delete_files,
            bytes=totals.data_bytes + totals.delete_bytes,
            seconds=seconds,
        )
        with self._lock:
            self._recent.append(report)
            self._set(
                commits=self._status.commits + 1,
                frontier=receipt.frontier.to_json(),
                last_snapshot_id=receipt.snapshot_id,
                last_commit_ms=self._clock.now_ms(),
            )
        _log.info("sink %s committed snapshot %d up to %s", sink, receipt.snapshot_id, receipt.frontier)

    def failed_attempt(self, error: BaseException) -> None:
        metrics.COMMIT_FAILURES.labels(self._sink, type(error).__name__).inc()
        metrics.COMMIT_RETRIES.labels(self._sink).inc()
        if isinstance(error, CommitConflict):
            metrics.COMMIT_CONFLICTS.labels(self._sink).inc()
        _log.info("an attempt of sink %s failed: %s", self._sink, error)

    def stalled(self, cause: str) -> None:
        metrics.STALLED.labels(self._sink).set(1)
        with self._lock:
            fresh = self._status.health is not Health.STALLED
            self._set(health=Health.STALLED, cause=cause)
        if fresh:
            _log.warning("sink %s is stalled: %s", self._sink, cause)

    def running(self) -> None:
        metrics.STALLED.labels(self._sink).set(0)
        with self._lock:
            if self._status.health in {Health.STARTING, Health.STALLED}:
                if self._status.health is Health.STALLED:
                    _log.warning("sink %s is running again", self._sink)
                self._set(health=Health.RUNNING, cause="")

    def warned(self, what: str, error: BaseException) -> None:
        _log.warning("%s of sink %s failed: %s", what, self._sink, error)

    # ---- the query

    def started(self, epoch: int, frontier: str, pending: int) -> None:
        """The run loaded its table; `pending` committables of its predecessor are to be committed."""
        with self._lock:
            self._set(epoch=epoch, frontier=frontier, pending=pending)

    def wrote(self, seconds: float) -> None:
        """The files of a batch were written."""
        metrics.WRITE_SECONDS.labels(self._sink).observe(seconds)

    def compacted(self, done: Compacted) -> None:
        """A compaction was committed."""
        metrics.COMPACTIONS.labels(self._sink).inc()
        metrics.COMPACTED_FILES.labels(self._sink).inc(done.files_before)
        metrics.COMPACTED_ROWS.labels(self._sink).inc(done.rows_after)
        summary = (
            f"{done.files_before:,} files with {done.rows_before:,} rows became "
            f"{done.files_after:,} with {done.rows_after:,}"
        )
        with self._lock:
            self._set(
                compactions=self._status.compactions + 1,
                last_compaction=summary,
                last_compaction_ms=self._clock.now_ms(),
            )

    def violated(self, keys: int, sample: str) -> None:
        """A checkpoint contains conflicting rows for some keys."""
        metrics.KEY_VIOLATIONS.labels(self._sink).inc(keys)
        with self._lock:
            self._set(key_violations=self._status.key_violations + keys)
        _log.warning("%d keys of sink %s have different rows in one checkpoint: %s", keys, self._sink, sample)

    def dead_lettered(self, letters: int, first: CalveError) -> None:
        """Records of a checkpoint could not be converted and were added to the dead letter table."""
        metrics.DEAD_LETTERS.labels(self._sink).inc(letters)
        with self._lock:
            self._set(dead_letters=self._status.dead_letters + letters)
        if letters:
            what = f"{first.primary} ({first.detail})"
            _log.warning("%d records of sink %s became dead letters, the first: %s", letters, self._sink, what)

    def ended(self, failure: BaseException | None, *, sealed: bool, pending: int) -> None:
        """The run has ended."""
        if isinstance(failure, FencedError):
            metrics.FENCED.labels(self._sink).inc()
            health = Health.FENCED
        elif failure is not None:
            metrics.FAILURES.labels(self._sink, type(failure).__name__).inc()
            health = Health.HALTED
        else:
            health = Health.SEALED if sealed else Health.STOPPED
        cause = "" if failure is None else describe(failure)
        with self._lock:
            self._set(health=health, cause=cause, pending=pending)
            self._write()

    def _set(self, **values: object) -> None:
        before = self._status.health
        now = self._clock.now_ms()
        self._status = replace(self._status, updated_ms=now, lag_ms=self._lag_ms(now), **values)  # type: ignore[arg-type]
        metrics.LAG.labels(self._sink).set(-1 if self._status.lag_ms is None else self._status.lag_ms / 1000)
        metrics.UNREAD.labels(self._sink).set(-1 if self._status.unread is None else self._status.unread)
        metrics.PENDING.labels(self._sink).set(self._status.pending)
        if before is not self._status.health or now - self._written_ms >= WRITE_EVERY_MS:
            self._write()

    def _lag_ms(self, now: int) -> int | None:
        """Age of the newest state of the source that the table shows completely."""
        return None if self._current_ms is None else max(0, now - self._current_ms)

    def _write(self) -> None:
        self._written_ms = self._clock.now_ms()
        write_status(self._file, self._status)


def report_start(home: Path, sink: str, health: Health, cause: str) -> None:
    """Report that a run did not start; the other fields of the sink's last status are kept."""
    file = status_file(home, sink)
    known = read_status(file)
    now = SystemClock().now_ms()
    before = Status.unknown(sink, now) if known is None or known.health is Health.UNKNOWN else known
    write_status(file, replace(before, health=health, cause=cause, updated_ms=now))


def write_status(file: Path, status: Status) -> None:
    """Replace the status of a sink."""
    part = file.with_suffix(".part")
    try:
        make_private(file.parent)
        part.write_text(json.dumps(asdict(status)))
        part.replace(file)
    except OSError as error:
        _log.warning("the status of sink %s could not be written: %s", status.sink, error)


def read_statuses(home: Path) -> list[Status]:
    """Return the last status of every sink of a home folder."""
    found = [read_status(file) for file in sorted((home / "status").glob("*.json"))]
    return [status for status in found if status is not None]


def read_status(file: Path) -> Status | None:
    """Return the last status of a sink, None without one. For an unreadable file its cause says so.

    Unknown fields, of another version of calve, are ignored; missing ones get their defaults.
    """
    sink = name_of_segment(file.stem)
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        known = {name: body[name] for name in _TYPES if name in body}
        wrong = [name for name, value in known.items() if not isinstance(value, _TYPES[name])]
        if wrong:
            raise ValueError(f"wrong type of {', '.join(wrong)}")  # noqa: TRY301 - as what json and Status raise
        blank = asdict(Status.unknown(sink, 0))
        return Status(**{**blank, **known, "health": Health(body["health"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        cause = f"its status in {file} cannot be read: {type(error).__name__}: {error}"
        return replace(Status.unknown(sink, 0), health=Health.UNKNOWN, cause=cause)


def forget_status(home: Path, sink: str) -> None:
    """Remove the status of a dropped sink."""
    try:
        status_file(home, sink).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the status of sink %s could not be removed: %s", sink, error)


def status_file(home: Path, sink: str) -> Path:
    """Return the path of a sink's status file."""
    return home / "status" / f"{path_segment(sink)}.json"


def _number(frontier: Frontier) -> int:
    return -1 if frontier.time is None else frontier.time


def describe(failure: BaseException) -> str:
    """The cause of an end in words: an error of calve explains itself, any other one needs its type."""
    return str(failure) if isinstance(failure, CalveError) else f"{type(failure).__name__}: {failure}"
