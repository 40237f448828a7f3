"""What a sink reports about itself: its status, the history of its states, its commits, its table.

A run writes these values to the status folder of its home; `calve.watch.status_files` reads and writes them, and
decides whether the process that wrote a status still runs. They are reports only: no decision of a sink depends on
them. New fields get a default, so that files of older versions stay readable.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from calve.model.instants import datetime_at
from calve.model.numbers import whole_number
from calve.values import value

_LAST_INSTANT = datetime.max.replace(tzinfo=UTC)


def _instant(millis: int) -> datetime:
    """A moment in UTC; the last one that Python has for later ones."""
    return datetime_at(millis) or _LAST_INSTANT


class Health(StrEnum):
    """The state of a sink.

    `starting`, `running` and `stalled` need a living process. A `stalled` sink recovers by itself; a `halted` or
    `fenced` one does not. `stopped`: its run ended as requested. `gone`: its process died without saying why.
    `unknown`: its status is unreadable, or was written by a newer version.
    """

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    SEALED = "sealed"
    PAUSED = "paused"
    STOPPED = "stopped"
    HALTED = "halted"
    FENCED = "fenced"
    GONE = "gone"
    UNKNOWN = "unknown"

    @property
    def active(self) -> bool:
        """Whether a process has to be alive for this state to be true."""
        return self in _ACTIVE

    @property
    def wrong(self) -> bool:
        """Whether someone should look: monitors raise an alarm for these."""
        return self in _WRONG


_ACTIVE = frozenset({Health.STARTING, Health.RUNNING, Health.STALLED})
_WRONG = frozenset({Health.STALLED, Health.HALTED, Health.FENCED, Health.GONE, Health.UNKNOWN})

STATES_KEPT = 50
"""Changes of state that a status contains."""
SIZE_BOUNDS = tuple(1 << bits for bits in (20, 23, 25, 27, 29))
"""Upper bounds of the classes of file sizes in bytes: 1, 8, 32, 128 and 512 MiB; the last class has none."""
PARTS_KEPT = 100
"""Partitions of a source that a status contains."""
COMMITS_KEPT = 500
"""Commits that are kept for display, at least; at most twice as many."""


@value
class ProcessIdentity:
    """A process, such that another one that gets the same number later is not taken for it."""

    host: str
    """Name of the machine or container."""
    machine: str
    """Identifies the boot and the process namespace; processes can be looked up only where it is the same."""
    pid: int
    started: str
    """When the process started, in units of the machine; empty where it cannot be determined."""


@value
class StateChange:
    """A sink entered a state."""

    health: Health
    at_ms: int
    cause: str = ""
    hint: str = ""
    run: str = ""
    """Id of the run that reported it."""


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
    """Time of the attempt that succeeded."""
    at_ms: int = 0
    epoch: int = 0
    attempts: int = 1
    """Attempts until it was committed, the successful one included."""
    conflicts: int = 0
    """Attempts that conflicted with another change of the table."""
    waited: float = 0.0
    """Seconds from the record of the batch to its commit; 0 for a batch of an earlier run."""
    phases: tuple[tuple[str, float], ...] = ()
    """Seconds by phase: those of `PHASES` that took part, in that order."""


PHASES = (
    *("read", "stage", "collect", "write", "record"),
    *("load", "check", "plan", "index", "lookup", "commit", "tidy", "ahead"),
)
"""Phases of a batch, in order. None contains another one, so their sum is the time that a batch took.

`read`: the source is polled. `stage`: changes are staged until their window closes. `collect`: the records of a small
batch are read and converted to changes, by the driver or by Spark, which hands them over. `write`: data and key files
and their manifests; of a large batch all that Spark does. `record`: the durable record. `load`: the table is loaded
from the catalog. `check`: fence, frontier and files. `plan`: which files may have the keys of the batch. `index`: the
key index is queried and extended. `lookup`: other searches for keys, and the deletes of what was found. `commit`:
manifest list and catalog request. `tidy`: removal of what the commit before made unnecessary. `ahead`: what the next
commit needs of the table.
"""


@value
class MaintenanceReport:
    """One maintenance run: `kind` is compact, convert, expire, orphans or manifests."""

    kind: str
    outcome: str
    """done, nothing (to do), conflict or failed."""
    at_ms: int
    seconds: float = 0.0
    summary: str = ""


@value
class TableHealth:
    """Files and snapshots of the table at one snapshot."""

    snapshot_id: int | None
    at_ms: int
    snapshots: int = 0
    rows: int = 0
    """Rows in data files, deleted ones included."""
    data_files: int = 0
    data_bytes: int = 0
    small_files: int = 0
    """Data files below the size from which compaction leaves a file alone."""
    delete_files: int = 0
    delete_bytes: int = 0
    position_deletes: int = 0
    equality_deletes: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    """Upper bound of a file size in bytes, and number of data files up to it and above the bound before; the last
    bound is 0 and means no bound."""

    @property
    def deleted_share(self) -> float:
        """Share of rows in data files that are deleted by position."""
        return min(1.0, self.position_deletes / self.rows) if self.rows else 0.0


@value
class SourcePart:
    """Position in one partition of a source (or in its only one). None: not reported by the source."""

    name: str
    read: int | None = None
    """Everything below is recorded."""
    end: int | None = None
    """Where the source ended at the last check."""
    oldest: int | None = None
    """The oldest position that the source still has."""

    @property
    def unread(self) -> int | None:
        """What lies between the position and the end."""
        return None if self.read is None or self.end is None else max(0, self.end - self.read)

    @property
    def retention_left(self) -> int | None:
        """How many positions the source may remove before it removes one that was not read; None if all are read."""
        if self.read is None or self.oldest is None or self.unread == 0:
            return None
        return max(0, self.read - self.oldest)


@value
class SourcePosition:
    """Where a sink is in its source."""

    parts: tuple[SourcePart, ...] = ()
    keeps_ms: int | None = None
    """How long the source keeps a record; None if that is unknown, or for ever."""


@dataclass(frozen=True)
class Status:
    """The status of a sink at one moment. Counters count since the sink was created, unless they say otherwise.

    Times are datetimes in UTC, durations are timedeltas. As text, and in a notebook, it is a summary:

    >>> status = Status.unknown("orders", now_ms=1_700_000_000_000)
    >>> print(status)
    orders: starting, commits 0
    >>> status.updated.isoformat(), status.last_commit, status.health.value
    ('2023-11-14T22:13:20+00:00', None, 'starting')
    """

    sink: str
    table: str
    health: Health
    cause: str
    """Why it is in this state: of a stall, a halt, a stop."""
    frontier: str
    """Committed frontier as in the table."""
    epoch: int
    pending: int
    """Committables that are recorded and not committed yet."""
    commits: int
    last_snapshot_id: int | None
    last_commit_ms: int | None
    """Wall clock of the last receipt."""
    rows: int
    """Changes recorded."""
    updated_ms: int
    """Wall clock of the last change of this status."""
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
    removed_files: int = 0
    """Files of expired snapshots that were removed."""
    removed_bytes: int = 0
    waiting_removals: int = 0
    """Expired snapshots whose files are not removed yet."""
    retention_note: str = ""
    """Why snapshots of the table do not expire; empty if they do."""
    lag_ms: int | None = None
    """The table shows the source as of this long before `updated_ms`; None if unknown."""
    current_ms: int | None = None
    """The table shows everything that the source had at this time; None if unknown."""
    polled_ms: int | None = None
    """When the source was last polled; None if unknown."""
    unread: int | None = None
    """What the source had at the last check and was not read yet; None if unknown."""
    counts: str = "rows"
    """What `unread` counts: files, rows or offsets."""

    hint: str = ""
    """What to do about the cause."""
    since_ms: int = 0
    """When the sink entered this state; 0 if unknown."""
    heartbeat_ms: int = 0
    """Wall clock of the last sign of life of the process; 0 in files of versions without one."""
    heartbeat_every_ms: int = 0
    process: ProcessIdentity | None = None
    """The process that wrote this."""
    run: str = ""
    """Id of the run that wrote this."""
    started_ms: int = 0
    """When that run started."""
    run_rows: int = 0
    """Changes recorded by this run."""
    run_commits: int = 0
    """Commits of this run."""
    rows_per_second: float = 0.0
    """Changes recorded per second, lately."""
    pending_bytes: int = 0
    pending_changes: int = 0
    staged_bytes: int = 0
    staged_rows: int = 0
    failed_attempts: int = 0
    conflicts: int = 0
    fences: int = 0
    """Runs of this home that were fenced."""
    states: tuple[StateChange, ...] = ()
    """The last changes of state, oldest first, those of earlier runs included."""
    maintaining: str = ""
    """Kind of maintenance in progress; empty if there is none."""
    next_maintenance: str = ""
    """What will be done next, and why or when; empty if unknown."""
    maintenance: tuple[MaintenanceReport, ...] = ()
    """The last maintenance runs, oldest first."""
    table_health: TableHealth | None = None
    source: tuple[SourcePart, ...] = ()
    """Partitions of the source, at most `PARTS_KEPT`: those with the most unread."""
    source_name: str = ""
    source_parts: int = 0
    """Number of partitions, those that `source` lacks included."""
    source_keeps_ms: int | None = None
    """How long the source keeps a record; None if that is unknown, or for ever."""
    unread_most: int | None = None
    """What is unread of the partition that has the most; None if unknown."""
    retention_left: int | None = None
    """The least `SourcePart.retention_left` of all partitions; None if unknown, or if everything is read."""
    state_sizes: tuple[tuple[str, int], ...] = ()
    """Bytes in the state location by kind of file; empty if unknown."""
    home_sizes: tuple[tuple[str, int], ...] = ()
    """Bytes in the folders of the home besides tables and state; empty if unknown."""

    @classmethod
    def unknown(cls, sink: str, now_ms: int) -> "Status":
        """Status of a sink that has not reported anything yet."""
        return cls(sink, "", Health.STARTING, "", "", 0, 0, 0, None, None, 0, now_ms)

    @classmethod
    def begun(cls, sink: str, table: str, before: "Status | None", now_ms: int) -> "Status":
        """Status of a run that starts: counters, history and the last commit continue from the sink's last run."""
        fresh = replace(cls.unknown(sink, now_ms), table=table, since_ms=now_ms, started_ms=now_ms)
        if before is None or (before.sink, before.table) != (sink, table):
            return fresh
        return replace(fresh, **{name: getattr(before, name) for name in _KEPT})

    def entered(self, health: Health, now_ms: int, cause: str = "", hint: str = "") -> "Status":
        """This status after a change of state; the same state with another cause does not change the history."""
        if self.states and self.states[-1].health is health is self.health:
            return replace(self, cause=cause, hint=hint, updated_ms=now_ms)
        change = StateChange(health, now_ms, cause, hint, self.run)
        states = (*self.states, change)[-STATES_KEPT:]
        return replace(self, health=health, cause=cause, hint=hint, since_ms=now_ms, updated_ms=now_ms, states=states)

    def __str__(self) -> str:
        """The sink, its state and its progress in a line: `orders: running, table shop.orders, commits 3`."""
        return f"{self.sink}: {', '.join(f'{name} {value}'.strip() for name, value in self._facts())}"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from html import escape  # noqa: PLC0415 - all commands import this module, and only notebooks need it

        facts = [("sink", self.sink), *self._facts()]
        rows = "".join(f"<tr><th>{escape(n) or 'health'}</th><td>{escape(v)}</td></tr>" for n, v in facts)
        return f"<table>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        """What matters most, by name; the first one is the health."""
        facts = [("", self.health.value)]
        facts += [("table", self.table)] if self.table else []
        facts.append(("commits", f"{self.commits:,}"))
        if self.complete:
            facts.append(("input", "complete"))
        elif self.committed_up_to is not None:
            facts.append(("committed up to", f"{self.committed_up_to:%Y-%m-%d %H:%M:%S} UTC"))
        if self.pending:
            facts.append(("pending", f"{self.pending:,}"))
        if self.dead_letters:
            facts.append(("dead letters", f"{self.dead_letters:,}"))
        if self.cause:
            facts.append(("cause", self.cause))
        return facts

    @property
    def updated(self) -> datetime:
        """When this status changed last."""
        return _instant(self.updated_ms)

    @property
    def since(self) -> datetime | None:
        """When the sink entered this state; None if unknown."""
        return _instant(self.since_ms) if self.since_ms else None

    @property
    def started(self) -> datetime | None:
        """When the run started; None if unknown."""
        return _instant(self.started_ms) if self.started_ms else None

    @property
    def last_commit(self) -> datetime | None:
        """When the sink committed last; None if it never did."""
        return None if self.last_commit_ms is None else _instant(self.last_commit_ms)

    @property
    def lag(self) -> timedelta | None:
        """How old the state of the source is that the table shows; None if unknown."""
        return None if self.lag_ms is None else timedelta(milliseconds=self.lag_ms)

    @property
    def committed_up_to(self) -> datetime | None:
        """The committed frontier as a time; None before the first commit, and once the input is complete."""
        number = whole_number(self.frontier.strip("[]"))
        return _instant(number) if number else None

    @property
    def complete(self) -> bool:
        """Whether the whole input is committed, and no more will come."""
        return self.frontier == "[]"

    @property
    def state_bytes(self) -> int | None:
        """Bytes in the state location; None if unknown."""
        return sum(size for _, size in self.state_sizes) if self.state_sizes else None

    def since_commit_ms(self, now_ms: int) -> int | None:
        """Milliseconds since the last successful commit; None if there was none."""
        return None if self.last_commit_ms is None else max(0, now_ms - self.last_commit_ms)

    @property
    def ended_caught_up(self) -> bool:
        """Whether the sink ended with a table that showed everything its source had at the last poll."""
        ended = not (self.health.active or self.health is Health.SEALED)
        return ended and self.current_ms is not None and self.current_ms == self.polled_ms

    def since_poll_ms(self, now_ms: int) -> int | None:
        """Milliseconds since the source was last polled; None if unknown."""
        return None if self.polled_ms is None else max(0, now_ms - self.polled_ms)

    def lag_now_ms(self, now_ms: int) -> int | None:
        """How far the table is behind its source; None if unknown, or if the input is complete.

        A sink that had caught up when it ended is not behind anything that it knows of: `since_poll_ms` grows instead.
        """
        return 0 if self.ended_caught_up else self._state_age_ms(now_ms)

    def _state_age_ms(self, now_ms: int) -> int | None:
        """Age of the state of the source that the table shows; None if unknown, or if the input is complete."""
        if self.lag_ms is None or self.health is Health.SEALED:
            return None
        if self.current_ms is not None:
            return max(0, now_ms - self.current_ms)
        return self.lag_ms + max(0, now_ms - self.updated_ms)

    def retention_left_ms(self, now_ms: int) -> int | None:
        """Milliseconds until the source removes records that were not read, at the earliest; None if unknown.

        What was not read is at most as old as what the table lacks.
        """
        age = self._state_age_ms(now_ms)
        return None if self.source_keeps_ms is None or age is None else max(0, self.source_keeps_ms - age)

    def at_source(self, position: SourcePosition) -> "Status":
        """This status with another position in the source."""
        unread = [part.unread for part in position.parts if part.unread is not None]
        left = [part.retention_left for part in position.parts if part.retention_left is not None]
        furthest = sorted(position.parts, key=lambda part: -(part.unread or 0))[:PARTS_KEPT]
        kept = {part.name for part in furthest}
        return replace(
            self,
            source=tuple(part for part in position.parts if part.name in kept),
            source_parts=len(position.parts),
            source_keeps_ms=position.keeps_ms,
            unread_most=max(unread, default=None),
            retention_left=min(left, default=None),
        )

    def heartbeat_age_ms(self, now_ms: int) -> int | None:
        """Milliseconds since the last sign of life; None for a sink without an active run."""
        return max(0, now_ms - self.heartbeat_ms) if self.heartbeat_ms and self.health.active else None


_KEPT = (
    *("commits", "rows", "last_snapshot_id", "last_commit_ms", "frontier", "key_violations", "late", "dead_letters"),
    *("compactions", "last_compaction", "last_compaction_ms", "removed_files", "removed_bytes", "failed_attempts"),
    *("conflicts", "fences", "states", "maintenance", "table_health", "state_sizes", "home_sizes", "epoch"),
    *("source", "source_parts", "source_keeps_ms", "unread_most", "retention_left"),
    "polled_ms",
)
"""Fields that remain valid after a run ends."""
