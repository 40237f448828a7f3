"""Expires snapshots by hand, and removes the files that only they refer to.

    expire_snapshots ──► journal entry ──► commit that removes the snapshots        now
    expire_snapshots ──► removal of the files of entries whose grace is over        at least `grace` later

Both happen in one call: entries of earlier calls, and of sinks with the same state location, that are due are
completed; the files of snapshots that expire now are removed by a later call, or by the sink.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import SparkSession

from calve.clock import Clock, IdSource, RandomIds, SystemClock
from calve.commit.journal import Journal
from calve.errors import CalveError, CommitConflict, InvalidInput
from calve.iceberg.snapshot.expired_files import IcebergFiles, TableNames, load_whole
from calve.iceberg.snapshot.expiry import expire, expiry_of, refusal_of, retention_warning
from calve.iceberg.snapshot.history import NamedSink
from calve.iceberg.snapshot.removal_journal import RemovalJournal
from calve.iceberg.snapshot.retention import Expired, ExpiryPolicy
from calve.keylookup.search import MAINTENANCE_POOL, SparkJobs
from calve.lake import TableRef
from calve.maintain.removal import InFlight, Removal
from calve.maintain.removal_tasks import TASK_BYTES, SparkComparison
from calve.model.spec import GRACE_MS, LEAST_GRACE_MS, LEAST_RETENTION_MS, RetentionOptions
from calve.retry import retry_on
from calve.spark.executors import asked_first
from calve.storage.state import StateFolder, StateStore

ATTEMPTS = 20
"""Attempts of a commit: any change of a branch or tag meanwhile is a conflict."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileCount:
    """Files of one kind."""

    files: int = 0
    bytes: int = 0
    """Zero where a size is unknown."""


@dataclass(frozen=True)
class WaitingRemoval:
    """Files of expired snapshots that are not removed yet."""

    snapshots: int
    due_ms: int
    """When they may be removed; zero if that is unknown, because the commit has not been seen in the table."""


@dataclass(frozen=True)
class ExpiryReport:
    """What an expiry did; with `dry_run`, what it would do."""

    snapshots: tuple[int, ...] = ()
    """Ids of the snapshots that expired."""
    refs: tuple[str, ...] = ()
    """Tags and branches past their age, which were removed."""
    removed: dict[str, FileCount] = field(default_factory=dict)
    """Files that were removed, by kind: data, deletes, statistics, manifests, manifest lists."""
    waiting: tuple[WaitingRemoval, ...] = ()
    refusal: str = ""
    """Why nothing expires in this table, or why files are not removed; empty if neither applies."""
    warnings: tuple[str, ...] = ()
    """Ages that were raised to their minimum."""


def expire_snapshots(  # noqa: PLR0913 - those after the star are options by name
    table: TableRef,
    *,
    older_than: timedelta | None = None,
    min_snapshots: int | None = None,
    grace: timedelta | None = None,
    dry_run: bool = False,
    force: bool = False,
    branch: str = "main",
    thin: bool = False,
    state: StateStore | None = None,
    clock: Clock | None = None,
    spark: Callable[[], SparkSession] | None = None,
    task_bytes: int = TASK_BYTES,
) -> ExpiryReport:
    """Expire the snapshots of a table, and remove the files of snapshots that expired at least `grace` ago.

    Settings of the table and its branches (`history.expire.*`) take precedence over `older_than` and `min_snapshots`,
    unless `force` is set. `force` also permits ages and a grace below one hour. `branch` and `thin` are for the table
    of a sink: with `thin`, one snapshot per hour stays of those that are not among the newest. `state` is the root of
    the state location that holds the journal, by default that of the lake's home. Manifests of `task_bytes` and more
    are compared by tasks of `spark`, by default that of the lake. Raises TransientError, CommitConflict, InvalidInput.
    """
    _check(older_than, min_snapshots, grace)
    now, catalog = clock or SystemClock(), table.lake.open()
    store = state or table.lake.state_root(None)
    options = RetentionOptions(_millis(older_than), min_snapshots, thin, _grace_ms(grace, force=force))
    policy = ExpiryPolicy(options, branch, now.now_ms(), batch=1, force=force)
    journal = RemovalJournal(store)
    warnings = [] if force else _warnings(older_than, grace)

    def attempt() -> tuple[Expired, str]:
        loaded = load_whole(catalog, table.name)
        if loaded is None:
            raise InvalidInput(f'table "{table.name}" does not exist')
        if refusal := refusal_of(loaded):
            return Expired(), refusal
        if not (force or warnings) and (text := retention_warning(loaded, branch, options)):
            warnings.append(text)
        if dry_run:
            found = expiry_of(loaded, policy)
            return (found.expired if found else Expired()), ""
        done = expire(loaded, policy, journal, _ids())
        return (done[1] if done else Expired()), ""

    expired, refusal = retry_on(
        CommitConflict,
        ATTEMPTS,
        attempt,
        lambda error: _log.info("expiring snapshots of %s again: %s", table.name, error.primary),
    )
    if refusal:
        return ExpiryReport(refusal=refusal, warnings=tuple(warnings))
    work, files = work_in(store, table.lake.state_root), IcebergFiles(catalog, table.name)
    jobs = SparkJobs(asked_first(spark or table.lake.spark), MAINTENANCE_POOL)
    tasks = SparkComparison(files, jobs, from_bytes=task_bytes)
    removal = Removal(files, journal, work, now, grace_ms=options.grace_ms, tasks=tasks)
    found = removal.run(dry_run=dry_run)
    return ExpiryReport(
        expired.snapshots,
        expired.refs,
        {kind: FileCount(count, found.bytes[kind]) for kind, count in found.files.items()},
        tuple(
            WaitingRemoval(len(one.snapshots), 0 if one.seen_ms is None else one.seen_ms + options.grace_ms)
            for one in found.waiting
        ),
        found.refusal,
        tuple(warnings),
    )


def work_in(
    root: StateStore, reach: Callable[[str], StateStore], files: Callable[[], frozenset[str]] = frozenset
) -> Callable[[TableNames], InFlight]:
    """How to find the uncommitted work of a table's sinks; `files` are those of this process.

    Records are where the table states, which `reach` opens, or else in `root`.
    """

    def find(names: TableNames) -> InFlight:
        manifests: set[str] = set()
        unknown: set[str] = set()
        own = files()
        for sink in names.sinks:
            try:
                found = _manifests_of(sink, names.uuid, root, reach)
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("records of sink %s cannot be read: %s", sink.sink_id, error)
                found = None
            if found is None:
                unknown.add(sink.sink_id)
            else:
                manifests |= found
        return InFlight(frozenset(manifests), own, frozenset(unknown))

    return find


def _manifests_of(
    sink: NamedSink, table_uuid: str, root: StateStore, reach: Callable[[str], StateStore]
) -> frozenset[str] | None:
    """The manifests that records of a sink name; None if its records are out of reach.

    Raises TransientError if `root` cannot be read; ValueError, KeyError or TypeError if a record is damaged.
    """
    if sink.state_location is not None:
        try:
            journal = Journal(StateFolder(reach(sink.state_location), sink.sink_id))
            if journal.is_of(table_uuid, sink.epoch):
                return journal.named_manifests()
        except (CalveError, OSError) as error:
            _log.info("the state of sink %s in %s is out of reach: %s", sink.sink_id, sink.state_location, error)
    journal = Journal(StateFolder(root, sink.sink_id))  # nothing was stated, or the folder was moved
    return journal.named_manifests() if journal.is_of(table_uuid, sink.epoch) else None


def _ids() -> IdSource:
    return RandomIds()


def _check(older_than: timedelta | None, min_snapshots: int | None, grace: timedelta | None) -> None:
    for name, age in (("older_than", older_than), ("grace", grace)):
        if age is not None and age < timedelta(0):
            raise InvalidInput(f"{name} is negative", detail=f"Got {age}.")
    if min_snapshots is not None and min_snapshots < 1:
        raise InvalidInput("min_snapshots must be at least 1", detail=f"Got {min_snapshots}.")


def _millis(age: timedelta | None) -> int | None:
    return None if age is None else round(age.total_seconds() * 1000)


def _grace_ms(grace: timedelta | None, *, force: bool) -> int:
    given = _millis(grace)
    if given is None:
        return GRACE_MS
    return given if force else max(given, LEAST_GRACE_MS)


def _warnings(older_than: timedelta | None, grace: timedelta | None) -> list[str]:
    texts = []
    if older_than is not None and (_millis(older_than) or 0) < LEAST_RETENTION_MS:
        texts.append("snapshots are kept for at least an hour; --force permits less")
    if grace is not None and (_millis(grace) or 0) < LEAST_GRACE_MS:
        texts.append("files are removed an hour after their snapshots expired at the earliest; --force permits less")
    return texts
