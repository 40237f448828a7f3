"""Every metric of calve: name, help, labels. All are labelled with the sink's name."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
"""calve's own registry: importing calve adds nothing to the process-wide one."""

_SINK = ("sink",)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

CHANGES = Counter("calve_changes", "Changes recorded by checkpoints.", _SINK, registry=REGISTRY)
CHECKPOINTS = Counter("calve_checkpoints", "Checkpoints recorded.", _SINK, registry=REGISTRY)
WRITE_SECONDS = Histogram(
    "calve_write_seconds", "Time to write the files of a checkpoint.", _SINK, buckets=_SECONDS, registry=REGISTRY
)
WRITTEN_BYTES = Counter(
    "calve_written_bytes", "Bytes of committed files by content.", (*_SINK, "content"), registry=REGISTRY
)
WRITTEN_ROWS = Counter(
    "calve_written_rows", "Rows of committed files by content.", (*_SINK, "content"), registry=REGISTRY
)
WRITTEN_FILES = Counter("calve_written_files", "Committed files by content.", (*_SINK, "content"), registry=REGISTRY)
COMMITS = Counter("calve_commits", "Commits in the table.", _SINK, registry=REGISTRY)
COMMIT_SECONDS = Histogram(
    "calve_commit_seconds", "Time of the successful commit attempt.", _SINK, buckets=_SECONDS, registry=REGISTRY
)
COMMIT_FAILURES = Counter(
    "calve_commit_failures",
    "Failed attempts to commit or claim by type of error.",
    (*_SINK, "error"),
    registry=REGISTRY,
)
COMMIT_CONFLICTS = Counter(
    "calve_commit_conflicts", "Attempts that conflicted with another change of the table.", _SINK, registry=REGISTRY
)
COMMIT_RETRIES = Counter("calve_commit_retries", "Attempts after the first.", _SINK, registry=REGISTRY)
FENCED = Counter("calve_fenced", "Times a run was fenced by a newer one.", _SINK, registry=REGISTRY)
FAILURES = Counter(
    "calve_failures", "Runs that ended with an error, by its type.", (*_SINK, "error"), registry=REGISTRY
)
KEY_VIOLATIONS = Counter(
    "calve_key_violations",
    "Keys with different rows in one checkpoint, where they are detected.",
    _SINK,
    registry=REGISTRY,
)
PENDING = Gauge("calve_pending_commits", "Recorded batches that are not committed yet.", _SINK, registry=REGISTRY)
STAGED = Gauge("calve_staged_checkpoints", "Checkpoints that wait for their window.", _SINK, registry=REGISTRY)
FRONTIER = Gauge("calve_frontier_ms", "Committed frontier; -1 when sealed.", _SINK, registry=REGISTRY)
MINTED_FRONTIER = Gauge(
    "calve_minted_frontier_ms", "Frontier up to which batches are recorded; -1 when sealed.", _SINK, registry=REGISTRY
)
INPUT_FRONTIER = Gauge(
    "calve_input_frontier_ms", "No smaller time is expected from the source.", _SINK, registry=REGISTRY
)
LAG = Gauge(
    "calve_lag_seconds", "Age of the state of the source that the table shows; -1: unknown.", _SINK, registry=REGISTRY
)
UNREAD = Gauge("calve_unread", "Files, rows or offsets of the source that are not read yet.", _SINK, registry=REGISTRY)
LATE = Counter("calve_late_rows", "Rows older than the closed frontier.", _SINK, registry=REGISTRY)
DEAD_LETTERS = Counter(
    "calve_dead_letters",
    "Records that could not be converted to changes, kept in the dead letter table.",
    _SINK,
    registry=REGISTRY,
)
COMPACTIONS = Counter("calve_compactions", "Compactions in the table.", _SINK, registry=REGISTRY)
COMPACTED_FILES = Counter("calve_compacted_files", "Data files that compactions replaced.", _SINK, registry=REGISTRY)
COMPACTED_ROWS = Counter("calve_compacted_rows", "Rows that compactions rewrote.", _SINK, registry=REGISTRY)
STALLED = Gauge("calve_stalled", "1 while work waits for an external system.", _SINK, registry=REGISTRY)
