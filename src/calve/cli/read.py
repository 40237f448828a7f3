"""`calve read`: prints rows of a table or a folder as a table, JSON or CSV, or the plan to read them.

A table is read in this process, without Spark: one stream of rows to one output gains nothing from a cluster.
Conditions are in Spark's language, and folders contain files of various formats: both start Spark.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console

from calve.cli.options import ChangeSpan, ReadOptions
from calve.cli.rows import PrintedColumn, plain_json, plain_text, print_rows
from calve.lake import TableRef
from calve.model.instants import instant_text
from calve.model.scan import DeleteKind, ScanPlan
from calve.reader.local import LocalRead, TimeTravel, read_here
from calve.statements.answers import TypedRows

if TYPE_CHECKING:
    from calve.api.folders import FolderRead
    from calve.changelog.changes import ChangeOptions, FilteredChanges
    from calve.changelog.local import LocalChanges
    from calve.definitions.workplace import Workplace
    from calve.model.changelog import ChangeScanPlan
    from calve.reader.read import FilteredRead


def run_read(table: TableRef, at: TimeTravel, options: ReadOptions, console: Console) -> None:
    """Print rows of a table, or with `explain` the plan to read them."""
    if options.where is None:
        reading: LocalRead | FilteredRead = read_here(table, **at)
    else:
        from calve.reader.read import read_filtered

        reading = read_filtered(table.lake.spark(), table, options.where, **at)
    _show(reading, describe_scan(reading.plan, str(table)) if options.explain else [], options, console)


def run_read_changes(table: TableRef, span: ChangeSpan, options: ReadOptions, console: Console) -> None:
    """Print what changed in a table, or with `explain` the plan to read it."""
    from calve.changelog.changes import changes_filtered, changes_here

    asked: ChangeOptions = {
        "since": span.since,
        "until": span.until,
        "net": not span.every_step,
        "before": span.before,
        "sink": span.sink,
    }
    if options.where is None:
        reading: LocalChanges | FilteredChanges = changes_here(table, **asked)
    else:
        reading = changes_filtered(table.lake.spark(), table, options.where, **asked)
    _show(reading, describe_changes(reading.plan, str(table)) if options.explain else [], options, console)


def run_read_folder(place: "Workplace", location: str, options: ReadOptions, console: Console) -> None:
    """Print rows of a folder, or with `explain` the plan to read them."""
    from calve.api.folders import read_folder

    reading = read_folder(place, location, options.where)
    _show(reading, describe_folder(reading) if options.explain else [], options, console)


def _show(reading: TypedRows, explanation: list[str], options: ReadOptions, console: Console) -> None:
    if options.explain:
        for line in explanation:
            console.print(line, soft_wrap=True)
    else:
        print_rows(ArrowRows(reading), options.output, options.limit, console)


@dataclass(frozen=True)
class ArrowRows:
    """Rows of Arrow, with how to print them."""

    reading: TypedRows

    @property
    def columns(self) -> list[PrintedColumn]:
        """The columns, in order."""
        return [
            PrintedColumn(
                field.name,
                _is_number(field.type),
                partial(text_of, kind=field.type),
                partial(json_value, kind=field.type),
            )
            for field in self.reading.schema
        ]

    def values(self, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows, at most `limit`."""
        for batch in self.reading.rows(limit):
            yield from zip(*[values_of(column) for column in batch.columns], strict=True)


def values_of(column: pa.Array) -> list[Any]:
    """Python values; texts where Python has no such value: nanoseconds, and years after 9999."""
    in_nanoseconds = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    try:
        values: list[Any] = column.cast(pa.string()).to_pylist() if in_nanoseconds else column.to_pylist()
    except (OverflowError, ValueError):
        values = column.cast(pa.string()).to_pylist()
    return values


def json_value(value: Any, kind: pa.DataType) -> Any:
    """A value for JSON: decimals as text, since a number would be rounded; binary in base64."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: json_value(value[f.name], f.type) for f in kind}
    if pa.types.is_map(kind):
        return {text_of(k, kind.key_type): json_value(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind):
        return [json_value(item, kind.value_type) for item in value]
    return plain_json(value)


def text_of(value: Any, kind: pa.DataType) -> str:
    """A value as text: as a plain value, or JSON for nested values."""
    if pa.types.is_nested(kind):
        return json.dumps(json_value(value, kind), ensure_ascii=False)
    return plain_text(value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


# ---------------------------------------------------------------------------------------------------------- explain


_THINGS = {
    DeleteKind.EQUALITY: "files of equality deletes",
    DeleteKind.POSITION: "files of position deletes",
    DeleteKind.VECTOR: "deletion vectors",
}


def describe_scan(plan: ScanPlan, name: str) -> list[str]:
    """The lines that describe the plan of a scan."""
    if plan.snapshot_id is None:
        return [f"{name} has no snapshot: nothing is read."]
    lines = [
        f"{'table':<12}{name}",
        f"{'snapshot':<12}{plan.snapshot_id}, committed {instant_text(plan.timestamp_ms or 0, ' UTC')}",
    ]
    if plan.frontier is not None:
        lines.append(f"{'frontier':<12}{plan.frontier}")
    lines.append(
        f"{'data':<12}{len(plan.files):,} of {plan.data_files:,} files, {plan.rows:,} rows, {_size(plan.bytes)}"
    )
    for kind in DeleteKind:
        deletes = plan.deletes(kind)
        if deletes:
            size = sum(delete.length or delete.size for delete in deletes)
            rows = sum(delete.rows for delete in deletes)
            lines.append(f"{'deletes':<12}{len(deletes):,} {_THINGS[kind]}, {rows:,} rows, {_size(size)}")
    if not any(file.deletes for file in plan.files):
        lines.append(f"{'deletes':<12}none")
    pruned = plan.pruned
    lines.append(
        f"{'skipped':<12}{pruned.manifests} of {plan.manifests} manifests; {pruned.files_by_partition} files by "
        f"partition, {pruned.files_by_bounds} by bounds"
    )
    return lines


def describe_changes(plan: "ChangeScanPlan", name: str) -> list[str]:
    """The lines that describe the plan to read changes."""
    if plan.until_id is None:
        return [f"{name} has no snapshot: nothing is read."]
    whole = [changed for changed in plan.files if changed.is_read_whole]
    partly = [changed for changed in plan.files if not changed.is_read_whole]
    lines = [
        f"{'table':<12}{name}",
        f"{'since':<12}{'the start of the table' if plan.since_id is None else f'snapshot {plan.since_id}'}",
        f"{'until':<12}snapshot {plan.until_id}",
    ]
    if plan.gap:
        lines.append(f"{'steps':<12}unknown, the two ends are compared. {plan.gap}")
    else:
        lines.append(f"{'steps':<12}{len(plan.steps):,} of {plan.snapshots:,} snapshots may change rows")
    lines.append(
        f"{'data':<12}{len(whole):,} files that enter or leave the table, {_size(sum(c.file.size for c in whole))}; "
        f"{len(partly):,} in which rows are deleted"
    )
    for kind in DeleteKind:
        deletes = plan.deletes(kind)
        if deletes:
            lines.append(f"{'deletes':<12}{len(deletes):,} {_THINGS[kind]}, {sum(d.rows for d in deletes):,} rows")
    return lines


def describe_folder(reading: "FolderRead") -> list[str]:
    """The lines that describe the plan to read a folder."""
    chosen, folder = reading.chosen, reading.folder
    if reading.problem:
        metadata = f"not used: {reading.problem}"
    elif chosen.level is None:
        metadata = "none: run ANALYZE TABLE '...' REFRESH METADATA to create it"
    else:
        metadata = (
            f"level {chosen.level.value}, {chosen.listed - chosen.outdated:,} of {chosen.listed:,} files as analyzed"
        )
    lines = [
        f"{'folder':<12}{folder.location}, {folder.reading.format}",
        f"{'metadata':<12}{metadata}",
        f"{'data':<12}{len(chosen.files):,} of {chosen.listed:,} files, {_size(chosen.bytes)}",
    ]
    if chosen.level is not None and chosen.outdated:
        lines.append(f"{'outdated':<12}{chosen.outdated:,} files are new or changed since then, and are read")
    lines.append(
        f"{'skipped':<12}{chosen.by_segment:,} files in {chosen.segments:,} segments; {chosen.by_file:,} files by "
        f"their bounds, {chosen.by_row_groups:,} by those of their row groups"
    )
    if chosen.row_groups:
        lines.append(f"{'':<12}{chosen.row_groups:,} row groups of files that are read")
    return lines


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
