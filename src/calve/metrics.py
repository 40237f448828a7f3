"""Every metric of calve: name, help, labels. All have the label `sink`.

There are two kinds. Events are counted where they happen: counters and histograms of prometheus_client. States are
read from a sink's `Status` when somebody asks, so they cost nothing until then, and any process that can read statuses
can export them: `calve run` those of its own sinks, `calve serve` those of all sinks of a home.

Labels are bounded: besides the names of sinks every label has a fixed set of values (`LABELS`), and `docs/metrics.md`
lists all metrics.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from calve import errors
from calve.clock import SystemClock
from calve.model.health import PHASES, SIZE_BOUNDS, Health, Status, TableHealth
from calve.model.numbers import whole_number

REGISTRY = CollectorRegistry()
"""calve's own registry: importing calve adds nothing to the process-wide one."""

CONTENTS = ("data", "position_deletes", "equality_deletes")
OUTCOMES = ("committed", "conflict", "unknown", "fenced", "failed")
"""Outcomes of an attempt to commit; `unknown` if nobody can say whether it was applied."""
MAINTENANCE_KINDS = ("compact", "convert", "expire", "orphans", "manifests")
MAINTENANCE_OUTCOMES = ("done", "nothing", "conflict", "failed")
UNEXPECTED = "unexpected"
"""Label of errors that are not calve's own."""


def _names_of(kind: type[errors.CalveError]) -> set[str]:
    return {kind.__name__}.union(*(_names_of(sub) for sub in kind.__subclasses__()))


_OWN_ERRORS = {name for name in _names_of(errors.CalveError) if hasattr(errors, name)} - {"CalveError"}
ERRORS = (*sorted(_OWN_ERRORS), UNEXPECTED)

LABELS = {
    "content": CONTENTS,
    "phase": PHASES,
    "outcome": tuple(dict.fromkeys((*OUTCOMES, *MAINTENANCE_OUTCOMES))),
    "error": ERRORS,
    "state": tuple(health.value for health in Health),
    "kind": MAINTENANCE_KINDS,
    "up_to": (*map(str, SIZE_BOUNDS), "inf"),
}
"""All values of every label but `sink`."""

_SINK = ("sink",)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

# ---- events

CHECKPOINTS = Counter("calve_checkpoints", "Batches recorded.", _SINK, registry=REGISTRY)
WRITE_SECONDS = Histogram(
    "calve_write_seconds", "Time to write the files of a batch.", _SINK, buckets=_SECONDS, registry=REGISTRY
)
WRITTEN_BYTES = Counter(
    "calve_written_bytes", "Bytes of committed files by content.", (*_SINK, "content"), registry=REGISTRY
)
WRITTEN_ROWS = Counter(
    "calve_written_rows", "Rows of committed files by content.", (*_SINK, "content"), registry=REGISTRY
)
WRITTEN_FILES = Counter("calve_written_files", "Committed files by content.", (*_SINK, "content"), registry=REGISTRY)
COMMIT_SECONDS = Histogram(
    "calve_commit_seconds", "Time of the successful commit attempt.", _SINK, buckets=_SECONDS, registry=REGISTRY
)
PHASE_SECONDS = Histogram(
    "calve_phase_seconds", "Time by phase of a batch.", (*_SINK, "phase"), buckets=_SECONDS, registry=REGISTRY
)
COMMIT_ATTEMPTS = Counter(
    "calve_commit_attempts", "Attempts to commit a batch, by outcome.", (*_SINK, "outcome"), registry=REGISTRY
)
COMMIT_FAILURES = Counter(
    "calve_commit_failures",
    "Failed attempts to commit, claim or record by type of error.",
    (*_SINK, "error"),
    registry=REGISTRY,
)
COMMIT_RETRIES = Counter("calve_commit_retries", "Attempts after the first.", _SINK, registry=REGISTRY)
FENCED = Counter("calve_fenced", "Runs of this process that were fenced by a newer one.", _SINK, registry=REGISTRY)
FAILURES = Counter(
    "calve_failures", "Runs that ended with an error, by its type.", (*_SINK, "error"), registry=REGISTRY
)
STALLS = Counter("calve_stalls", "Times the sink began to wait for an external system.", _SINK, registry=REGISTRY)
COMPACTED_FILES = Counter("calve_compacted_files", "Data files that compactions replaced.", _SINK, registry=REGISTRY)
COMPACTED_ROWS = Counter("calve_compacted_rows", "Rows that compactions rewrote.", _SINK, registry=REGISTRY)
MAINTENANCE_RUNS = Counter(
    "calve_maintenance_runs",
    "Maintenance runs beside the sink, by kind and outcome.",
    (*_SINK, "kind", "outcome"),
    registry=REGISTRY,
)
MAINTENANCE_SECONDS = Histogram(
    "calve_maintenance_seconds",
    "Time of maintenance runs by kind.",
    (*_SINK, "kind"),
    buckets=_SECONDS,
    registry=REGISTRY,
)

EVENTS = (
    *(CHECKPOINTS, WRITE_SECONDS, WRITTEN_BYTES, WRITTEN_ROWS, WRITTEN_FILES, COMMIT_SECONDS, PHASE_SECONDS),
    *(COMMIT_ATTEMPTS, COMMIT_FAILURES, COMMIT_RETRIES, FENCED, FAILURES, STALLS, COMPACTED_FILES, COMPACTED_ROWS),
    *(MAINTENANCE_RUNS, MAINTENANCE_SECONDS),
)


def error_label(error: BaseException) -> str:
    """The label of an error: its type if it is one of calve's, else `unexpected`."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS), UNEXPECTED)


# ---- states

Value = float | None
Values = Iterable[tuple[tuple[str, ...], Value]]


@dataclass(frozen=True)
class StateMetric:
    """A metric that is read from a status at some time in milliseconds. A value of None is left out: unknown."""

    name: str
    help: str
    read: Callable[[Status, int], Values]
    labels: tuple[str, ...] = ()
    counter: bool = False

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        """An empty family of prometheus_client."""
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.help, labels=(*_SINK, *self.labels))


def _gauge(name: str, text: str, read: Callable[[Status, int], Value]) -> StateMetric:
    return StateMetric(name, text, lambda status, now: [((), read(status, now))])


def _counter(name: str, text: str, read: Callable[[Status], Value]) -> StateMetric:
    return StateMetric(name, text, lambda status, _now: [((), read(status))], counter=True)


def _table(name: str, text: str, read: Callable[[TableHealth], Value]) -> StateMetric:
    return _gauge(name, text, lambda status, _now: None if status.table_health is None else read(status.table_health))


def _frontier(text: str) -> Value:
    """Milliseconds of a frontier in JSON; None if it is sealed or unknown."""
    inside = text.strip("[]")
    return None if whole_number(inside.removeprefix("-")) is None else float(inside)


def _states(status: Status, _now: int) -> Values:
    return [((health.value,), float(status.health is health)) for health in Health]


def _sizes(status: Status, _now: int) -> Values:
    found = status.table_health
    return [((str(bound) if bound else "inf",), count) for bound, count in found.sizes] if found else []


def _seconds(millis: int | None) -> Value:
    return None if millis is None else millis / 1000


STATES = (
    StateMetric("calve_health", "1 for the state that the sink is in, 0 for all others.", _states, ("state",)),
    _gauge(
        "calve_up",
        "1 while the sink's process runs, is not stalled and has not failed.",
        lambda s, _: float(s.health in {Health.STARTING, Health.RUNNING}),
    ),
    _gauge(
        "calve_heartbeat_age_seconds",
        "Seconds since the last sign of life of an active sink.",
        lambda s, now: _seconds(s.heartbeat_age_ms(now)),
    ),
    _gauge(
        "calve_state_since_seconds",
        "Seconds since the sink entered its state.",
        lambda s, now: _seconds(max(0, now - s.since_ms)) if s.since_ms else None,
    ),
    _gauge(
        "calve_seconds_since_commit",
        "Seconds since the last successful commit.",
        lambda s, now: _seconds(s.since_commit_ms(now)),
    ),
    _gauge(
        "calve_lag_seconds",
        "How far the table is behind its source; 0 for a sink that had caught up when it ended.",
        lambda s, now: _seconds(s.lag_now_ms(now)),
    ),
    _gauge(
        "calve_seconds_since_poll",
        "Seconds since the source was last polled.",
        lambda s, now: _seconds(s.since_poll_ms(now)),
    ),
    _gauge("calve_unread", "Files, rows or offsets of the source that are not read yet.", lambda s, _: s.unread),
    _gauge(
        "calve_unread_most",
        "The same of the partition that has the most: a single one may be behind.",
        lambda s, _: s.unread_most,
    ),
    _gauge(
        "calve_retention_left",
        "Offsets that the source may remove before it removes unread ones, in the partition that has the fewest; "
        "absent if everything is read.",
        lambda s, _: s.retention_left,
    ),
    _gauge(
        "calve_retention_left_seconds",
        "Seconds until the source removes unread records, by its retention time.",
        lambda s, now: _seconds(s.retention_left_ms(now)),
    ),
    _gauge("calve_source_partitions", "Partitions of the source.", lambda s, _: s.source_parts or None),
    _gauge("calve_rows_per_second", "Changes recorded per second, lately.", lambda s, _: s.rows_per_second),
    _gauge("calve_pending_commits", "Recorded batches that are not committed yet.", lambda s, _: s.pending),
    _gauge(
        "calve_pending_bytes", "Bytes of recorded batches that are not committed yet.", lambda s, _: s.pending_bytes
    ),
    _gauge("calve_pending_changes", "Changes of batches that are not committed yet.", lambda s, _: s.pending_changes),
    _gauge("calve_staged_checkpoints", "Checkpoints that wait for their window.", lambda s, _: s.staged),
    _gauge("calve_staged_rows", "Rows that wait for their window.", lambda s, _: s.staged_rows),
    _gauge("calve_staged_bytes", "Bytes of checkpoints that wait for their window.", lambda s, _: s.staged_bytes),
    _gauge(
        "calve_frontier_ms",
        "Low watermark: the committed frontier; absent once sealed.",
        lambda s, _: _frontier(s.frontier),
    ),
    _gauge(
        "calve_minted_frontier_ms",
        "Frontier up to which batches are recorded; absent once sealed.",
        lambda s, _: _frontier(s.minted),
    ),
    _gauge(
        "calve_input_frontier_ms",
        "High watermark: no smaller time is expected from the source.",
        lambda s, _: _frontier(s.input),
    ),
    _gauge("calve_epoch", "Epoch of the newest run.", lambda s, _: s.epoch),
    _counter("calve_changes", "Changes recorded.", lambda s: s.rows),
    _counter("calve_commits", "Commits in the table.", lambda s: s.commits),
    _counter("calve_failed_attempts", "Failed attempts to commit, claim or record.", lambda s: s.failed_attempts),
    _counter(
        "calve_commit_conflicts", "Attempts that conflicted with another change of the table.", lambda s: s.conflicts
    ),
    _counter("calve_late_rows", "Rows older than the closed frontier.", lambda s: s.late),
    _counter(
        "calve_dead_letters",
        "Records that could not be converted to changes, kept in the dead letter table.",
        lambda s: s.dead_letters,
    ),
    _counter(
        "calve_key_violations",
        "Keys with different rows in one checkpoint, where they are detected.",
        lambda s: s.key_violations,
    ),
    _counter("calve_compactions", "Compactions in the table.", lambda s: s.compactions),
    _counter("calve_removed_files", "Files of expired snapshots that were removed.", lambda s: s.removed_files),
    _counter(
        "calve_removed_bytes", "Bytes of files of expired snapshots that were removed.", lambda s: s.removed_bytes
    ),
    _gauge("calve_maintaining", "1 while maintenance is in progress.", lambda s, _: float(bool(s.maintaining))),
    _table("calve_table_snapshots", "Snapshots of the table.", lambda t: t.snapshots),
    _table("calve_table_rows", "Rows in data files, deleted ones included.", lambda t: t.rows),
    _table("calve_table_data_files", "Data files of the newest snapshot.", lambda t: t.data_files),
    _table(
        "calve_table_small_files",
        "Data files that compaction would merge because of their size.",
        lambda t: t.small_files,
    ),
    _table("calve_table_delete_files", "Delete files of the newest snapshot.", lambda t: t.delete_files),
    _table(
        "calve_table_bytes",
        "Bytes of data and delete files of the newest snapshot.",
        lambda t: t.data_bytes + t.delete_bytes,
    ),
    _table(
        "calve_table_deleted_share",
        "Share of rows in data files that are deleted by position.",
        lambda t: t.deleted_share,
    ),
    StateMetric(
        "calve_table_files_by_size",
        "Data files by size class: up to so many bytes and above the class before.",
        _sizes,
        ("up_to",),
    ),
    _gauge("calve_state_bytes", "Bytes in the state location.", lambda s, _: s.state_bytes),
)


class StatusCollector(Collector):
    """Exports statuses, for a registry of prometheus_client."""

    def __init__(self, statuses: Callable[[], Iterable[Status]], now_ms: Callable[[], int]) -> None:
        self._statuses, self._now_ms = statuses, now_ms

    def describe(self) -> list[Metric]:
        """The metrics without values: a registry does not have to read statuses to know their names."""
        return [metric.family() for metric in STATES]

    def collect(self) -> Iterator[Metric]:
        statuses, now_ms = list(self._statuses()), self._now_ms()
        for metric in STATES:
            family = metric.family()
            for status in statuses:
                for labels, value in metric.read(status, now_ms):
                    if value is not None:
                        family.add_metric((status.sink, *labels), value)
            yield family


class LiveStatuses:
    """The statuses of this process's sinks, by status file: a new run of a sink replaces the former one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, Callable[[], Status | None]] = {}

    def add(self, key: str, read: Callable[[], Status | None]) -> None:
        """Add a sink, or replace its former run. None: it no longer exists."""
        with self._lock:
            self._read[key] = read

    def remove(self, key: str) -> None:
        """Forget a sink: it was dropped."""
        with self._lock:
            self._read.pop(key, None)

    def __call__(self) -> list[Status]:
        with self._lock:
            found = list(self._read.values())
        by_sink = {status.sink: status for status in (read() for read in found) if status is not None}
        return list(by_sink.values())


LIVE = LiveStatuses()
REGISTRY.register(StatusCollector(LIVE, SystemClock().now_ms))


def labels_of(metric: Counter | Histogram) -> tuple[str, ...]:
    """The labels of an event."""
    return tuple(metric._labelnames)  # noqa: SLF001 - there is no public way to ask
