"""The jobs of manual maintenance, each with its result: what was there before and after, and how long it took.

    compact ──► convert ──► manifests ──► expire ──► orphans        in this order, as far as they are asked for

`calve maintain` and the statements of SQL run the same jobs.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.clock import RandomIds, SystemClock
from calve.errors import InvalidInput
from calve.iceberg.loading import load_table
from calve.iceberg.planning.compaction_groups import BY_HAND, SORTING
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.snapshot.conversion import convertible_deletes
from calve.iceberg.snapshot.history import TableTotals, totals_of
from calve.lake import TableRef
from calve.maintain.compact import CompactionScope, compact, due
from calve.maintain.convert import ConversionTools, convert_deletes
from calve.maintain.expire import ExpiryReport, expire_snapshots
from calve.maintain.manifests import due_manifests, rewrite_manifests
from calve.maintain.orphans import FileTally, OrphanOptions, OrphanReport, remove_orphans
from calve.model.scan import AllOf, AnyOf, ComparisonOperator, Condition
from calve.model.spec import RetentionOptions, RowOrder
from calve.reader.conditions import understand, unread_frame
from calve.reader.read import not_understood
from calve.spark.executors import asked_first
from calve.spark.version import quiet_analysis

Say = Callable[[str], None]


class Job(StrEnum):
    """A job, in the order in which jobs run."""

    COMPACT = "compact"
    CONVERT = "convert"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "orphans"


USUAL = (Job.COMPACT, Job.CONVERT, Job.MANIFESTS)
"""The jobs that remove nothing that a reader of an older snapshot needs."""


@dataclass(frozen=True)
class MaintainedTable:
    """The table to maintain."""

    table: TableRef
    scope: CompactionScope
    state: str | None = None
    """The state location of the sink whose table it is; None: that of the home."""
    retention: RetentionOptions | None = None
    """The retention of that sink."""
    spark: Callable[[], SparkSession] | None = None
    """Starts Spark when it is needed; None: that of the lake."""

    @property
    def tools(self) -> ConversionTools:
        """What the jobs depend on."""
        return ConversionTools(asked_first(self.spark or self.table.lake.spark), SystemClock(), RandomIds())


@dataclass(frozen=True)
class JobOptions:
    """Options of the jobs; each takes those that concern it."""

    dry_run: bool = False
    older_than: timedelta | None = None
    grace: timedelta | None = None
    min_snapshots: int | None = None
    force: bool = False
    everything: bool = False
    """Orphans of other writers, too."""
    where: str = ""
    """A condition of Spark SQL: compact only files that may have matching rows."""
    order: RowOrder | None = None
    """Compact all files, to have their rows in this order; None: those that need it."""


@dataclass(frozen=True)
class JobReport:
    """What a job did or, in a dry run, would do."""

    job: Job
    result: str
    before: TableTotals | None = None
    """Of the current snapshot, or of all files for jobs that remove files; None if unknown."""
    after: TableTotals | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
    """What the user should know besides."""


def maintain(
    subject: MaintainedTable, jobs: Collection[Job], options: JobOptions, say: Say = lambda _: None
) -> Iterator[JobReport]:
    """Run jobs, and yield the report of each. `say` is told what happens. Raises TransientError, InvalidInput."""
    for job in Job:
        if job in jobs:
            began = time.monotonic()
            report = _RUNS[job](subject, options, lambda text, job=job: say(f"{job}: {text}"))  # type: ignore[misc]
            yield replace(report, seconds=time.monotonic() - began)


def _totals(subject: MaintainedTable) -> TableTotals:
    return totals_of(load_table(subject.table.lake.open(), subject.table.name), subject.scope.branch)


def _compact(subject: MaintainedTable, options: JobOptions, say: Say) -> JobReport:
    catalog, before, scope = subject.table.lake.open(), _totals(subject), subject.scope
    if options.where:
        scope = replace(scope, where=condition_of(subject, options.where))
    policy = BY_HAND
    if options.order is not None:
        scope, policy = replace(scope, order=options.order), SORTING
    if options.dry_run:
        groups = due(catalog, scope, subject.tools, policy)
        if groups is None:
            return JobReport(Job.COMPACT, "nothing to do", before, before)
        more = ", and more after that" if groups.more else ""
        text = f"{groups.files:,} files with {groups.rows:,} rows would be rewritten as {len(groups.groups):,}{more}"
        return JobReport(Job.COMPACT, text, before)
    done = compact(catalog, scope, subject.tools, policy, say)
    if done is None:
        return JobReport(Job.COMPACT, "nothing to do", before, before)
    text = (
        f"{done.files_before:,} files with {done.rows_before:,} rows became {done.files_after:,} with "
        f"{done.rows_after:,}, snapshot {done.snapshot_id}"
    )
    return JobReport(Job.COMPACT, text, before, _totals(subject))


def condition_of(subject: MaintainedTable, where: str) -> Condition:
    """The part of a condition by which files can be chosen. Raises InvalidInput if there is none."""
    scan = Scan.of(load_table(subject.table.lake.open(), subject.table.name), AsOf())
    try:
        with quiet_analysis():
            frame = unread_frame(subject.tools.session(), StructType.fromJson(scan.spark_schema))
            found = understand(frame, where).condition
    except PySparkException as error:
        raise not_understood(error) from error
    if not _tells_apart(found):
        raise InvalidInput(
            "the condition does not tell files apart",
            detail=f"Got {where}.",
            hint="Compare columns with values, as in: day >= '2026-01-01'.",
        )
    return found


def _tells_apart(condition: Condition) -> bool:
    """Whether a condition excludes files. Spark adds a test for null to every condition; that alone excludes none."""
    match condition:
        case AllOf(parts):
            return any(map(_tells_apart, parts))
        case AnyOf(parts):
            return all(map(_tells_apart, parts))
        case _:
            return condition.operator is not ComparisonOperator.NOT_NULL


def _convert(subject: MaintainedTable, options: JobOptions, say: Say) -> JobReport:
    catalog, before = subject.table.lake.open(), _totals(subject)
    if options.dry_run:
        files = convertible_deletes(load_table(catalog, subject.table.name), subject.scope.branch)
        text = f"{files:,} files of deletes would be converted" if files else "nothing to do"
        return JobReport(Job.CONVERT, text, before, None if files else before)
    done = convert_deletes(catalog, subject.table.name, subject.tools, branch=subject.scope.branch, say=say)
    if done is None:
        return JobReport(Job.CONVERT, "nothing to do", before, before)
    before_them = f"{done.equality_delete_files:,} files of equality deletes"
    if done.old_position_delete_files:
        before_them += f" and {done.old_position_delete_files:,} of position deletes"
    after_them = f"{done.position_delete_files:,} of {done.position_deletes:,} position deletes"
    if done.vectors:
        after_them = f"{done.vectors:,} deletion vectors of {done.position_deletes:,} rows"
    text = f"{before_them} became {after_them}, snapshot {done.snapshot_id}"
    return JobReport(Job.CONVERT, text, before, _totals(subject))


def _manifests(subject: MaintainedTable, options: JobOptions, say: Say) -> JobReport:
    catalog, name, branch = subject.table.lake.open(), subject.table.name, subject.scope.branch
    before = _totals(subject)
    if options.dry_run:
        plan = due_manifests(catalog, name, branch)
        if plan is None:
            return JobReport(Job.MANIFESTS, "nothing to do", before, before)
        text = f"{len(plan.replaced):,} manifests with {plan.entries:,} files would become {len(plan.groups):,}"
        return JobReport(Job.MANIFESTS, text, before)
    say("reading manifests")
    done = rewrite_manifests(catalog, name, subject.tools.clock, subject.tools.ids, branch)
    if done is None:
        return JobReport(Job.MANIFESTS, "nothing to do", before, before)
    text = f"{done.before:,} manifests became {done.after:,}, by partition, snapshot {done.snapshot_id}"
    return JobReport(Job.MANIFESTS, text, before, _totals(subject))


def _expire(subject: MaintainedTable, options: JobOptions, say: Say) -> JobReport:
    say("looking for expired snapshots")
    own = subject.retention
    age = None if own is None or own.max_age_ms is None else timedelta(milliseconds=own.max_age_ms)
    report = expire_snapshots(
        subject.table,
        older_than=age if options.older_than is None else options.older_than,
        min_snapshots=options.min_snapshots or (own.min_snapshots if own else None),
        grace=options.grace,
        dry_run=options.dry_run,
        force=options.force,
        branch=subject.scope.branch,
        thin=own is not None and own.thin and options.older_than is None,
        state=subject.table.lake.state_root(subject.state),
        spark=subject.spark,
    )
    return JobReport(Job.EXPIRE, _expiry_text(report, would=options.dry_run), notes=_expiry_notes(report))


def _expiry_text(report: ExpiryReport, *, would: bool) -> str:
    if report.refusal:
        return f"nothing was done: {report.refusal}"
    files, size = sum(c.files for c in report.removed.values()), sum(c.bytes for c in report.removed.values())
    if not (report.snapshots or report.refs or files):
        return "nothing to do"
    verb = "would expire" if would else "expired"
    removed = "would be removed" if would else "were removed"
    return f"{len(report.snapshots):,} snapshots {verb}; {files:,} files ({size_text(size)}) {removed}"


def _expiry_notes(report: ExpiryReport) -> tuple[str, ...]:
    waiting = sum(one.snapshots for one in report.waiting)
    later = (f"files of {waiting:,} expired snapshots wait for the end of their grace",) if waiting else ()
    return (*later, *report.warnings)


def _orphans(subject: MaintainedTable, options: JobOptions, say: Say) -> JobReport:
    wanted = OrphanOptions(options.older_than, options.everything, options.dry_run, options.force)
    states = () if subject.state is None else (subject.state,)
    report = remove_orphans(subject.table, wanted, states=states, say=say)
    if report.refusal:
        return JobReport(Job.ORPHANS, f"nothing was done: {report.refusal}")
    before = TableTotals(report.listed.files, report.listed.bytes, None)
    gone = report.removed
    after = None if options.dry_run else TableTotals(before.files - gone.files, before.bytes - gone.bytes, None)
    return JobReport(Job.ORPHANS, _orphan_text(report, would=options.dry_run), before, after, notes=_notes(report))


def _orphan_text(report: OrphanReport, *, would: bool) -> str:
    if not report.orphans.files:
        return "nothing to do"
    verb = "would be removed" if would else "were removed"
    return f"{_tally(report.removed)} of {_tally(report.orphans)} orphans {verb}"


def _notes(report: OrphanReport) -> tuple[str, ...]:
    notes = list(report.warnings)
    if report.waiting.files:
        notes.append(f"{_tally(report.waiting)} wait: a later run removes them, if they are still orphans then")
    if report.withheld.files:
        notes.append(f"{_tally(report.withheld)} stay while a sink or a compaction may refer to them")
    if report.others.files:
        names = report.some_others[:10]
        more = f", and {report.others.files - len(names):,} more" if report.others.files > len(names) else ""
        notes.append(f"{_tally(report.others)} are not named as calve names files: {', '.join(names)}{more}")
    return tuple(notes)


def size_text(size: int) -> str:
    """A size for people."""
    number, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.0f} B" if units[0] == "B" else f"{number:.1f} {units[0]}"


def _tally(tally: FileTally) -> str:
    return f"{tally.files:,} files ({size_text(tally.bytes)})"


_RUNS: dict[Job, Callable[[MaintainedTable, JobOptions, Say], JobReport]] = {
    Job.COMPACT: _compact,
    Job.CONVERT: _convert,
    Job.MANIFESTS: _manifests,
    Job.EXPIRE: _expire,
    Job.ORPHANS: _orphans,
}
