"""Reports what happens in a run: metrics, log lines, and a status that other processes can read.

The status is a small JSON file under the home folder, see `calve.watch`. No decision of a run depends on it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import ref

from calve import metrics
from calve.clock import Clock
from calve.commit.ports import Waiting
from calve.errors import CalveError, CommitConflict, CommitUnknown, FencedError, TransientError
from calve.maintain.compact import Compacted
from calve.maintain.removal import RemovalReport
from calve.model.files import Committable
from calve.model.health import (
    COMMITS_KEPT,
    PHASES,
    CommitReport,
    Health,
    MaintenanceReport,
    SourcePosition,
    Status,
    TableHealth,
)
from calve.model.progress import Progress, Receipt
from calve.model.spec import SinkSpec
from calve.watch.commits import announce
from calve.watch.reporter import StatusReporter, report
from calve.watch.status_files import append_commit, forget_status, read_status, shorten_commits, status_file

_log = logging.getLogger("calve")

RECENT_COMMITS = 100
MAINTENANCE_KEPT = 20
"""Maintenance runs that a status contains."""
RATE_SECONDS = 30.0
"""Time over which changes per second are averaged."""
_OF_RECORD = PHASES[: PHASES.index("load")]
"""Phases up to the record of a batch; the others belong to its commit."""


class RunMonitor:
    """Implements the port `Monitor`. Called by all threads of a run."""

    def __init__(
        self,
        spec: SinkSpec,
        clock: Clock,
        file: Path,
        on_record: Callable[[], None],
        *,
        counts: str = "rows",
        source: str = "",
    ) -> None:
        self._sink = spec.name
        self._clock = clock
        self._commits_file = file.with_suffix(".commits")
        self._on_record = on_record
        self._recent: deque[CommitReport] = deque(maxlen=RECENT_COMMITS)
        self._current_ms: int | None = None
        self._polled_ms: int | None = None
        self._position: SourcePosition | None = None
        self._rate = _Rate(clock)
        self._phases = threading.local()
        self._recorded: dict[str, tuple[float, dict[str, float]]] = {}
        """Batches of this run that are not committed yet: when they were recorded, and their phases until then."""
        self._attempts = self._conflicts = 0
        """Failed attempts since the last commit."""
        self._stop_reason = ""
        before = read_status(file, clock.now_ms())
        begun = Status.begun(spec.name, str(spec.table), before, clock.now_ms())
        self._reporter = StatusReporter(
            file, replace(begun, counts=counts, source_name=source), clock, refresh=self._refreshed
        )
        self._lock = self._reporter.lock
        if before is not None and before.health is Health.STALLED and before.process == self._reporter.known.process:
            self._reporter.enter(Health.STALLED, before.cause, before.hint)  # the same outage, in another attempt
        else:
            self._reporter.enter(Health.STARTING)
        self._reporter.begin_beating()
        self._key, reference = str(file), ref(self)
        metrics.LIVE.add(self._key, lambda: monitor.status if (monitor := reference()) else None)
        self._logged = shorten_commits(self._commits_file)

    @property
    def status(self) -> Status:
        """Current status of the sink."""
        return self._reporter.status

    @property
    def sink(self) -> str:
        """The sink's name."""
        return self._sink

    @property
    def commits(self) -> int:
        """Commits of this sink, those of earlier runs included."""
        return self._reporter.known.commits

    @property
    def run_commits(self) -> int:
        """Commits of this run, so that 0 means that it may not own the table yet."""
        return self._reporter.known.run_commits

    @property
    def behind(self) -> bool:
        """Whether the source had more than the last checkpoint took."""
        return bool(self._reporter.known.unread)

    @property
    def recent_commits(self) -> list[CommitReport]:
        """The last commits of this run, oldest first."""
        with self._lock:
            return list(self._recent)

    def _refreshed(self, status: Status) -> Status:
        lag = None if self._current_ms is None else max(0, status.updated_ms - self._current_ms)
        polled_ms = status.polled_ms if self._polled_ms is None else self._polled_ms
        rate = self._rate.per_second
        return replace(status, current_ms=self._current_ms, polled_ms=polled_ms, lag_ms=lag, rows_per_second=rate)

    # ---- the port

    def phase(self, name: str, seconds: float) -> None:
        metrics.PHASE_SECONDS.labels(self._sink, name).observe(seconds)
        mine = self._phases.__dict__
        mine[name] = mine.get(name, 0.0) + seconds

    def _take_phases(self, names: Sequence[str]) -> dict[str, float]:
        """Return the phases of this thread since the last call, and forget them."""
        mine = self._phases.__dict__
        return {name: mine.pop(name) for name in names if name in mine}

    def recorded(self, committable: Committable) -> None:
        metrics.CHECKPOINTS.labels(self._sink).inc()
        changes = committable.totals.changes
        with self._lock:
            self._rate.add(changes)
            self._recorded[committable.commit_id] = (self._clock.monotonic(), self._take_phases(_OF_RECORD))
            known = self._reporter.known
            self._reporter.update(rows=known.rows + changes, run_rows=known.run_rows + changes)
        self._on_record()

    def waiting(self, work: Waiting) -> None:
        with self._lock:
            before = self._reporter.known.staged
            self._reporter.update(
                pending=work.ready,
                pending_bytes=work.ready_bytes,
                pending_changes=work.ready_changes,
                staged=work.staged,
                staged_bytes=work.staged_bytes,
                staged_rows=work.staged_rows,
                input=work.input.to_json(),
                minted=work.minted.to_json(),
            )
            if work.staged != before:
                self._reporter.write()
        self._on_record()

    def lag(self, current_ms: int | None, polled_ms: int | None, unread: int | None) -> None:
        with self._lock:
            self._current_ms, self._polled_ms = current_ms, polled_ms
            if unread != self._reporter.known.unread:
                self._reporter.update(unread=unread)

    def source_read(self, position: SourcePosition) -> None:
        if position == self._position:
            return
        with self._lock:
            self._position = position
            self._reporter.change(lambda known: known.at_source(position))

    def late(self, rows: int) -> None:
        with self._lock:
            self._reporter.update(late=self._reporter.known.late + rows)
        _log.warning("%d rows of sink %s arrived late", rows, self._sink)

    def committed(self, receipt: Receipt, committable: Committable, seconds: float) -> None:
        totals, sink = committable.totals, self._sink
        metrics.COMMIT_ATTEMPTS.labels(sink, "committed").inc()
        metrics.COMMIT_SECONDS.labels(sink).observe(seconds)
        position_files = totals.position_delete_files + totals.vectors
        by_position = position_files > 0
        for content, files, rows, size in (
            ("data", totals.data_files, totals.data_rows, totals.data_bytes),
            (
                "position_deletes",
                position_files,
                totals.position_deletes,
                totals.delete_bytes if by_position else 0,
            ),
            (
                "equality_deletes",
                totals.equality_delete_files,
                totals.equality_deletes,
                0 if by_position else totals.delete_bytes,
            ),
        ):
            metrics.WRITTEN_FILES.labels(sink, content).inc(files)
            metrics.WRITTEN_ROWS.labels(sink, content).inc(rows)
            metrics.WRITTEN_BYTES.labels(sink, content).inc(size)
        now = self._clock.now_ms()
        with self._lock:
            recorded_at, phases = self._recorded.pop(committable.commit_id, (None, {}))
            phases = phases | self._take_phases(PHASES)
            report = CommitReport(
                snapshot_id=receipt.snapshot_id,
                frontier=receipt.frontier.to_json(),
                changes=totals.changes,
                rows=totals.data_rows,
                deletes=totals.equality_deletes + totals.position_deletes,
                files=totals.data_files + totals.equality_delete_files + position_files,
                bytes=totals.data_bytes + totals.delete_bytes,
                seconds=seconds,
                at_ms=now,
                epoch=self._reporter.known.epoch,
                attempts=self._attempts + 1,
                conflicts=self._conflicts,
                waited=0.0 if recorded_at is None else self._clock.monotonic() - recorded_at,
                phases=tuple((name, round(phases[name], 6)) for name in PHASES if name in phases),
            )
            self._attempts = self._conflicts = 0
            self._recent.append(report)
            known = self._reporter.known
            self._reporter.update(
                commits=known.commits + 1,
                run_commits=known.run_commits + 1,
                frontier=receipt.frontier.to_json(),
                last_snapshot_id=receipt.snapshot_id,
                last_commit_ms=now,
            )
            self._log_commit(report)
            announce(self._reporter.known, report)
        _log.info("sink %s committed snapshot %d up to %s", sink, receipt.snapshot_id, receipt.frontier)

    def _log_commit(self, report: CommitReport) -> None:
        append_commit(self._commits_file, report)
        self._logged += 1
        if self._logged >= 2 * COMMITS_KEPT:
            self._logged = shorten_commits(self._commits_file)

    def failed_attempt(self, error: BaseException) -> None:
        sink, conflict = self._sink, isinstance(error, CommitConflict)
        metrics.COMMIT_FAILURES.labels(sink, metrics.error_label(error)).inc()
        metrics.COMMIT_RETRIES.labels(sink).inc()
        outcome = "conflict" if conflict else "unknown" if isinstance(error, CommitUnknown) else "failed"
        metrics.COMMIT_ATTEMPTS.labels(sink, outcome).inc()
        with self._lock:
            self._attempts += 1
            self._conflicts += conflict
            known = self._reporter.known
            self._reporter.update(failed_attempts=known.failed_attempts + 1, conflicts=known.conflicts + int(conflict))
        _log.info("an attempt of sink %s failed: %s", sink, error)

    def stalled(self, cause: str) -> None:
        known = self._reporter.known
        text, hint = _cause_and_hint(cause)
        if known.health is Health.STALLED and (known.cause, known.hint) == (text, hint):
            return
        if self._reporter.enter(Health.STALLED, text, hint):
            metrics.STALLS.labels(self._sink).inc()
            _log.warning("sink %s is stalled: %s", self._sink, cause)

    def running(self) -> None:
        before = self._reporter.known.health
        if before in {Health.STARTING, Health.STALLED}:
            if before is Health.STALLED:
                _log.warning("sink %s is running again", self._sink)
            self._reporter.enter(Health.RUNNING)

    def warned(self, what: str, error: BaseException) -> None:
        _log.warning("%s of sink %s failed: %s", what, self._sink, error)

    # ---- the query

    def started(
        self, epoch: int, frontier: str, pending: Sequence[int] = (), committed: Progress | None = None
    ) -> None:
        """The run loaded its table; committables of its predecessor with so many changes are to be committed.

        Counters continue with those of the table where the status file was lost, or written before the last commit.
        """
        with self._lock:
            known = self._reporter.known
            kept: dict[str, object] = {}
            if committed is not None:
                kept = {
                    "commits": max(known.commits, committed.commits),
                    "rows": max(known.rows, committed.changes + sum(pending)),
                    "last_snapshot_id": known.last_snapshot_id or committed.snapshot_id or None,
                    "last_commit_ms": known.last_commit_ms or committed.committed_ms or None,
                }
            self._reporter.update(epoch=epoch, frontier=frontier, pending=len(pending), **kept)

    def wrote(self, seconds: float) -> None:
        """The files of a batch were written."""
        metrics.WRITE_SECONDS.labels(self._sink).observe(seconds)

    def compacted(self, done: Compacted) -> None:
        """A compaction was committed."""
        metrics.COMPACTED_FILES.labels(self._sink).inc(done.files_before)
        metrics.COMPACTED_ROWS.labels(self._sink).inc(done.rows_after)
        with self._lock:
            self._reporter.update(
                compactions=self._reporter.known.compactions + 1,
                last_compaction=str(done),
                last_compaction_ms=self._clock.now_ms(),
            )

    def maintaining(self, kind: str, next_run: str = "") -> None:
        """Maintenance of this kind is in progress; empty if none is. `next_run`: what follows, and when."""
        self._reporter.update(maintaining=kind, next_maintenance=next_run)

    def maintained(self, kind: str, outcome: str, seconds: float, summary: str = "") -> None:
        """A maintenance run has ended."""
        metrics.MAINTENANCE_RUNS.labels(self._sink, kind, outcome).inc()
        metrics.MAINTENANCE_SECONDS.labels(self._sink, kind).observe(seconds)
        if outcome == "nothing":
            self._reporter.update(maintaining="", next_maintenance=summary)
            return
        done = MaintenanceReport(kind, outcome, self._clock.now_ms(), round(seconds, 3), summary)
        with self._lock:
            kept = (*self._reporter.known.maintenance, done)[-MAINTENANCE_KEPT:]
            self._reporter.update(maintenance=kept, maintaining="")

    def table_looked_at(self, found: TableHealth) -> None:
        """Files and snapshots of the table were counted."""
        self._reporter.update(table_health=found)

    def sized(self, state: Mapping[str, int], home: Mapping[str, int]) -> None:
        """The state location and the home were measured, by kind of file."""
        self._reporter.update(state_sizes=tuple(sorted(state.items())), home_sizes=tuple(sorted(home.items())))

    def removed(self, report: RemovalReport) -> None:
        """Files of expired snapshots were removed, or may not be."""
        files, size = sum(report.files.values()), sum(report.bytes.values())
        note = f"snapshots do not expire: {report.refusal}" if report.refusal else ""
        with self._lock:
            self._reporter.update(
                removed_files=self._reporter.known.removed_files + files,
                removed_bytes=self._reporter.known.removed_bytes + size,
                waiting_removals=sum(len(entry.snapshots) for entry in report.waiting),
                retention_note=note,
            )
        if files:
            self.maintained("expire", "done", 0.0, f"{files:,} files of expired snapshots removed")

    def violated(self, keys: int, sample: str) -> None:
        """A checkpoint contains conflicting rows for some keys."""
        with self._lock:
            self._reporter.update(key_violations=self._reporter.known.key_violations + keys)
        _log.warning("%d keys of sink %s have different rows in one checkpoint: %s", keys, self._sink, sample)

    def dead_lettered(self, letters: int, first: CalveError) -> None:
        """Records of a checkpoint could not be converted and were added to the dead letter table."""
        with self._lock:
            self._reporter.update(dead_letters=self._reporter.known.dead_letters + letters)
        if letters:
            what = f"{first.primary} ({first.detail})"
            _log.warning("%d records of sink %s became dead letters, the first: %s", letters, self._sink, what)

    def stopping(self, why: str) -> None:
        """A stop was requested; the first reason counts."""
        self._stop_reason = self._stop_reason or why

    def not_started(self, failure: BaseException) -> None:
        """The run failed before it read or committed anything; the caller may try again."""
        if isinstance(failure, TransientError):
            self._reporter.enter(Health.STALLED, *cause_of(failure))
            self._reporter.end()
        else:
            self.ended(failure, sealed=False, pending=self._reporter.known.pending)

    def ended(self, failure: BaseException | None, *, sealed: bool, pending: int) -> None:
        """The run has ended."""
        cause, hint, more = self._stop_reason, "", {}
        if isinstance(failure, FencedError):
            metrics.FENCED.labels(self._sink).inc()
            metrics.COMMIT_ATTEMPTS.labels(self._sink, "fenced").inc()
            health = Health.FENCED
            more = {"fences": self._reporter.known.fences + 1}
        elif failure is not None:
            metrics.FAILURES.labels(self._sink, metrics.error_label(failure)).inc()
            health = Health.HALTED
        else:
            health = Health.SEALED if sealed else Health.STOPPED
            cause = "the input is complete and committed" if sealed else cause
        if failure is not None:
            cause, hint = cause_of(failure)
        self._reporter.enter(health, cause, hint, pending=pending, maintaining="", next_maintenance="", **more)
        self._reporter.end()
        last = self.status
        metrics.LIVE.add(self._key, lambda: last)


class _Rate:
    """Changes per second over the last moments."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since = clock, clock.monotonic()
        self._added: deque[tuple[float, int]] = deque()

    def add(self, changes: int) -> None:
        if changes:
            self._added.append((self._clock.monotonic(), changes))

    @property
    def per_second(self) -> float:
        now = self._clock.monotonic()
        while self._added and now - self._added[0][0] > RATE_SECONDS:
            self._added.popleft()
        window = max(1.0, min(RATE_SECONDS, now - self._since))
        return round(sum(changes for _, changes in self._added) / window, 3)


def report_start(home: Path, sink: str, health: Health, cause: str, hint: str = "") -> StatusReporter:
    """Report the state of a sink whose run did not start; the other fields of its last status are kept."""
    return report(status_file(home, sink), sink, health, cause, hint)


def report_paused(home: Path, sink: str) -> None:
    """Report that a sink is paused, unless that is known or a run of it is still active."""
    known = read_status(status_file(home, sink))
    if known is None or not (known.health.active or known.health is Health.PAUSED):
        report_start(home, sink, Health.PAUSED, "ALTER SINK ... PAUSE", "ALTER SINK ... RESUME")


def report_resumed(home: Path, sink: str) -> None:
    """Report that a sink is no longer paused; it runs as soon as a process runs it."""
    known = read_status(status_file(home, sink))
    if known is None or known.health is not Health.PAUSED:
        return
    if not known.table:  # it never ran
        forget_status(home, sink)
    else:
        report_start(home, sink, Health.STOPPED, "ALTER SINK ... RESUME; no process runs it yet", "calve run")


def cause_of(failure: BaseException) -> tuple[str, str]:
    """The cause of an end in words, and the hint: an error of calve explains itself, any other needs its type."""
    if isinstance(failure, CalveError):
        return "\n  ".join(filter(None, (failure.primary, failure.detail))), failure.hint
    return f"{type(failure).__name__}: {failure}", ""


def _cause_and_hint(text: str) -> tuple[str, str]:
    """Split the text of an error: its last line may be the hint."""
    cause, _, hint = text.partition("\n  hint: ")
    return cause, hint


def describe(failure: BaseException) -> str:
    """The cause of an end in words, with its hint."""
    return str(failure) if isinstance(failure, CalveError) else f"{type(failure).__name__}: {failure}"
