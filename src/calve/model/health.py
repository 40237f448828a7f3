"""The status that a sink reports."""

from dataclasses import dataclass, replace
from enum import StrEnum


class Health(StrEnum):
    """A `stalled` sink recovers by itself; a `halted` or `fenced` one does not. `unknown`: its status is unreadable."""

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    SEALED = "sealed"
    STOPPED = "stopped"
    HALTED = "halted"
    FENCED = "fenced"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Status:
    """The status of a sink at one moment."""

    sink: str
    table: str
    health: Health
    cause: str
    frontier: str
    """Committed frontier as in the table."""
    epoch: int
    pending: int
    """Committables that are recorded and not committed yet."""
    commits: int
    """Commits since the sink was created."""
    last_snapshot_id: int | None
    last_commit_ms: int | None
    """Wall clock of the last receipt."""
    rows: int
    """Changes recorded since the sink was created."""
    updated_ms: int
    staged: int = 0
    """Checkpoints that wait for their window to close."""
    key_violations: int = 0
    """Keys with more than one latest row in a checkpoint, as far as runs detected them."""
    input: str = ""
    """Frontier of the source as far as this run knows: no smaller time is expected."""
    minted: str = ""
    """Frontier up to which batches are recorded."""
    late: int = 0
    """Rows that were older than the closed frontier and were dropped or advanced."""
    dead_letters: int = 0
    """Records that could not be converted to changes and went to the dead letter table."""

    compactions: int = 0
    last_compaction: str = ""
    """Files and rows before and after."""
    last_compaction_ms: int | None = None
    lag_ms: int | None = None
    """The table shows the source as of this long before `updated_ms`; None if unknown."""
    unread: int | None = None
    """What the source had at the last check and was not read yet; None if unknown."""
    counts: str = "rows"
    """What `unread` counts: files, rows or offsets."""

    @classmethod
    def unknown(cls, sink: str, now_ms: int) -> "Status":
        """Status of a sink that has not reported anything yet."""
        return cls(sink, "", Health.STARTING, "", "", 0, 0, 0, None, None, 0, now_ms)

    @classmethod
    def begun(cls, sink: str, table: str, before: "Status | None", now_ms: int) -> "Status":
        """Status of a run that starts: its counters continue from the sink's last run."""
        fresh = replace(cls.unknown(sink, now_ms), table=table)
        if before is None or (before.sink, before.table) != (sink, table):
            return fresh
        return replace(fresh, **{name: getattr(before, name) for name in _KEPT})


_KEPT = (
    *("commits", "rows", "last_snapshot_id", "last_commit_ms", "frontier", "key_violations", "late", "dead_letters"),
    *("compactions", "last_compaction", "last_compaction_ms"),
)
"""Fields that remain valid after a run ends."""


@dataclass(frozen=True)
class CommitReport:
    """One commit of a run, for display."""

    snapshot_id: int
    frontier: str
    changes: int
    rows: int
    """Rows in new data files."""
    deletes: int
    """Keys or positions in new delete files."""
    files: int
    bytes: int
    seconds: float
