"""What a sink says of itself."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """`stalled` recovers by itself; `halted` and `fenced` do not."""

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    SEALED = "sealed"
    STOPPED = "stopped"
    HALTED = "halted"
    FENCED = "fenced"


@dataclass(frozen=True)
class Status:
    """One look at a sink."""

    sink: str
    table: str
    health: Health
    cause: str
    frontier: str
    """Committed frontier as in the table."""
    epoch: int
    pending: int
    """Committables that are recorded and not in the table yet."""
    commits: int
    """Commits of this run."""
    last_snapshot_id: int | None
    last_commit_ms: int | None
    """Wall clock of the last receipt."""
    rows: int
    """Changes recorded by this run."""
    updated_ms: int
    staged: int = 0
    """Checkpoints that wait for their window to close."""
    key_violations: int = 0
    """Keys with more than one last row in a checkpoint, as far as this run looked for them."""
    input: str = ""
    """Frontier of the source as this run knows it: no smaller time is expected."""
    minted: str = ""
    """Frontier up to which batches are recorded."""
    late: int = 0
    """Rows of this run that came behind the closed frontier and were dropped or advanced."""
    dead_letters: int = 0
    """Records of this run that could not become changes and were kept in their own table."""

    compactions: int = 0
    """Compactions of this run."""
    last_compaction: str = ""
    """Files and rows before and after."""
    last_compaction_ms: int | None = None

    @classmethod
    def unknown(cls, sink: str, now_ms: int) -> "Status":
        """Of a sink that has not said anything yet."""
        return cls(sink, "", Health.STARTING, "", "", 0, 0, 0, None, None, 0, now_ms)


@dataclass(frozen=True)
class CommitReport:
    """One commit of a run, for people."""

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
