"""OPTIMIZE TABLE, EXPIRE SNAPSHOTS, REMOVE ORPHAN FILES, REWRITE MANIFESTS, CONVERT DELETES.

sink                           the table and the branch of a sink, maintained with its options
namespace.table                a table that a sink writes to, otherwise one of the embedded catalog, of any writer
connection.namespace.table     a table of a connected catalog
"""

from dataclasses import replace

from calve.clock import RandomIds, SystemClock, sink_id_of
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.forgetting import forget_sink
from calve.iceberg.snapshot.history import TableTotals
from calve.lake import TableRef
from calve.maintain.compact import CompactionScope
from calve.maintain.jobs import Job, JobOptions, JobReport, MaintainedTable, maintain, size_text
from calve.model.progress import sinks_named
from calve.pipeline.build import sink_of
from calve.plan import catalogue as options
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink, row_order
from calve.sql import statements as st
from calve.sql.names import Identifier
from calve.statements.answers import Outcome, RowsAnswer
from calve.statements.tables import table_named

JOBS = {
    st.MaintenanceKind.OPTIMIZE: Job.COMPACT,
    st.MaintenanceKind.CONVERT: Job.CONVERT,
    st.MaintenanceKind.MANIFESTS: Job.MANIFESTS,
    st.MaintenanceKind.EXPIRE: Job.EXPIRE,
    st.MaintenanceKind.ORPHANS: Job.ORPHANS,
}
HEADINGS = ("job", "files before", "after", "size before", "after", "rows before", "after", "seconds", "result")


def maintain_table(place: Workplace, statement: st.MaintainTable) -> Outcome:
    """Run the job of a statement."""
    given = _options(statement)
    subject = _subject(place, statement)
    if statement.kind is st.MaintenanceKind.ORPHANS:
        checked = options.ORPHANS.check(statement.options, statement.where)
        forgotten = checked.get(options.OrphanFileOptions.FORGET)
        if forgotten and not given.dry_run:
            forget(place, subject, forgotten)
    return rows_of(list(maintain(subject, [JOBS[statement.kind]], given)))


def _options(statement: st.MaintainTable) -> JobOptions:
    match statement.kind:
        case st.MaintenanceKind.EXPIRE:
            expire = options.EXPIRE.check(statement.options, statement.where)
            return JobOptions(
                dry_run=expire.get(options.ExpireOptions.DRY_RUN, False),
                older_than=expire.get(options.ExpireOptions.OLDER_THAN),
                grace=expire.get(options.ExpireOptions.GRACE),
                min_snapshots=expire.get(options.ExpireOptions.MIN_SNAPSHOTS),
                force=expire.get(options.ExpireOptions.FORCE, False),
            )
        case st.MaintenanceKind.ORPHANS:
            orphans = options.ORPHANS.check(statement.options, statement.where)
            return JobOptions(
                dry_run=orphans.get(options.OrphanFileOptions.DRY_RUN, False),
                older_than=orphans.get(options.OrphanFileOptions.OLDER_THAN),
                force=orphans.get(options.OrphanFileOptions.FORCE, False),
                everything=orphans.get(options.OrphanFileOptions.ALL, False),
            )
        case st.MaintenanceKind.OPTIMIZE:
            optimize = options.OPTIMIZE.check(statement.options, statement.where)
            order = row_order(optimize, options.OptimizeOptions.SORT_BY)
            return JobOptions(
                dry_run=optimize.get(options.OptimizeOptions.DRY_RUN, False),
                where=statement.where_text,
                order=order if order.columns else None,
            )
        case st.MaintenanceKind.MANIFESTS:
            group, dry_run = options.MANIFESTS, options.ManifestOptions.DRY_RUN
        case _:
            group, dry_run = options.CONVERT, options.ConvertOptions.DRY_RUN
    checked = group.check(statement.options, statement.where)
    return JobOptions(dry_run=checked.get(dry_run, False))


def _subject(place: Workplace, statement: st.MaintainTable) -> MaintainedTable:
    if len(statement.target.parts) == 1:
        found = subject_of_sink(place, statement.target.parts[0])
    else:
        found = subject_of_table(table_named(place, statement.target).ref)
    return replace(found, spark=place.spark)


def subject_of_table(table: TableRef) -> MaintainedTable:
    """A table by name: files are written according to its properties."""
    return MaintainedTable(table, CompactionScope(table.name))


def subject_of_sink(place: Workplace, name: Identifier) -> MaintainedTable:
    """The table and branch of a sink: files are written with the options of the sink."""
    definitions = place.definitions()
    plan = plan_sink(required(definitions, name, st.ObjectKind.SINK), definitions)
    sink = sink_of(place.home, plan, definitions, place.vault)
    scope = CompactionScope(sink.spec.table, sink.spec.branch, sink.spec.write, order=sink.spec.compaction.order)
    return MaintainedTable(TableRef(sink.lake, sink.spec.table), scope, plan.state, sink.spec.retention)


def forget(place: Workplace, subject: MaintainedTable, sink: str) -> str:
    """Exclude a sink from a table for good, by its id, or by the name under which it was defined; returns its id.

    Raises InvalidInput if the table does not name it.
    """
    catalog, table = subject.table.lake.open(), subject.table
    defined = place.definitions().find(Identifier.exact(sink), st.ObjectKind.SINK)
    possible = [sink, sink_id_of(sink, str(table)), *([str(defined.uid)] if defined else [])]
    known = sinks_named(load_table(catalog, table.name).properties)
    sink_id = next((one for one in possible if one in known), None)
    if sink_id is None:
        raise InvalidInput(
            f'table "{table}" names no sink "{sink}"',
            hint=f"Its sinks are {', '.join(sorted(known))}." if known else "It names no sink at all.",
        )
    forget_sink(catalog, table.name, sink_id, SystemClock(), RandomIds())
    return sink_id


def rows_of(reports: list[JobReport]) -> RowsAnswer:
    """The reports as a table: one row for each job, and one for each note."""
    rows: list[tuple[str, ...]] = []
    for report in reports:
        sizes = [*_pair(report.before, report.after)]
        rows.append((str(report.job), *sizes, f"{report.seconds:.1f}", report.result))
        rows += [("", *([""] * 7), note) for note in report.notes]
    return RowsAnswer(HEADINGS, tuple(rows))


def _pair(before: TableTotals | None, after: TableTotals | None) -> tuple[str, ...]:
    def shown(totals: TableTotals | None) -> tuple[str, str, str]:
        if totals is None:
            return "-", "-", "-"
        rows = "-" if totals.rows is None else f"{totals.rows:,}"
        return f"{totals.files:,}", size_text(totals.bytes), rows

    first, second = shown(before), shown(after)
    return tuple(text for pair in zip(first, second, strict=True) for text in pair)
