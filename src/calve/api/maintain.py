"""`calve.convert_deletes`, `calve.compact`, `calve maintain`: manual maintenance."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from calve.clock import RandomIds, SystemClock
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.iceberg.loading import load_table
from calve.iceberg.snapshot.conversion import plan_conversion
from calve.lake import Lake, TableRef
from calve.maintain.compact import Compacted, CompactionScope
from calve.maintain.compact import compact as compact_files
from calve.maintain.compact import due as due_files
from calve.maintain.convert import ConversionTools, Converted
from calve.maintain.convert import convert_deletes as convert
from calve.pipeline.build import sink_of
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink
from calve.spark.executors import asked_first
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind


def convert_deletes(table: TableRef) -> Converted | None:
    """Replace the equality deletes of a table, of any writer, with position deletes; None if there are none.

    Commits one `replace` snapshot that does not change rows. Other writers may continue: on a conflict they win.
    """
    return convert(table.lake.open(), table.name, _tools(table.lake))


def compact(table: TableRef, *, branch: str = "main") -> Compacted | None:
    """Merge small data files of a table, and rewrite files with deleted rows; None if there are none.

    Commits `replace` snapshots that do not change rows. Other writers may continue: on a conflict they win.
    """
    return compact_files(table.lake.open(), CompactionScope(table.name, branch), _tools(table.lake))


class Job(StrEnum):
    """The jobs of `calve maintain`, in order."""

    COMPACT = "compact"
    CONVERT = "convert"


@dataclass(frozen=True)
class MaintainedTable:
    """The table to maintain."""

    lake: Lake
    scope: CompactionScope


def subject_of_table(table: TableRef) -> MaintainedTable:
    """A table by name: files are written according to its properties."""
    return MaintainedTable(table.lake, CompactionScope(table.name))


def subject_of_sink(place: Workplace, name: str) -> MaintainedTable:
    """The table and branch of a sink: files are written with the options of the sink."""
    definitions = place.definitions()
    definition = required(definitions, Identifier.exact(name), ObjectKind.SINK)
    sink = sink_of(place.home, plan_sink(definition, definitions), definitions, place.vault)
    return MaintainedTable(sink.lake, CompactionScope(sink.spec.table, sink.spec.branch, sink.spec.write))


def maintain(subject: MaintainedTable, jobs: Collection[Job], *, dry_run: bool = False) -> Iterator[str]:
    """Run the jobs, or describe what they would do; yields a line for each. Raises TransientError, InvalidInput."""
    on_main = subject.scope.branch == "main"
    if Job.CONVERT in jobs and Job.COMPACT not in jobs and not on_main:
        raise InvalidInput("deletes can only be converted on main", detail=f'The branch is "{subject.scope.branch}".')
    if Job.COMPACT in jobs:
        yield f"compact: {_preview_compaction(subject) if dry_run else _run_compaction(subject)}"
    if Job.CONVERT in jobs and on_main:
        yield f"convert: {_preview_conversion(subject) if dry_run else _run_conversion(subject)}"


def _run_compaction(subject: MaintainedTable) -> str:
    done = compact_files(subject.lake.open(), subject.scope, _tools(subject.lake))
    if done is None:
        return "nothing to do"
    return (
        f"{done.files_before:,} files with {done.rows_before:,} rows became {done.files_after:,} with "
        f"{done.rows_after:,}, snapshot {done.snapshot_id}"
    )


def _preview_compaction(subject: MaintainedTable) -> str:
    groups = due_files(subject.lake.open(), subject.scope, _tools(subject.lake))
    if groups is None:
        return "nothing to do"
    more = ", and more after that" if groups.more else ""
    return f"{groups.files:,} files with {groups.rows:,} rows would be rewritten as {len(groups.groups):,}{more}"


def _run_conversion(subject: MaintainedTable) -> str:
    done = convert(subject.lake.open(), subject.scope.name, _tools(subject.lake))
    if done is None:
        return "nothing to do"
    return (
        f"{done.equality_delete_files:,} files of equality deletes became {done.position_delete_files:,} of "
        f"{done.position_deletes:,} position deletes, snapshot {done.snapshot_id}"
    )


def _preview_conversion(subject: MaintainedTable) -> str:
    plan = plan_conversion(load_table(subject.lake.open(), subject.scope.name))
    return "nothing to do" if plan is None else f"{len(plan.equality):,} files of equality deletes would be converted"


def _tools(lake: Lake) -> ConversionTools:
    return ConversionTools(asked_first(lake.spark), SystemClock(), RandomIds())
