"""Tables and texts on a terminal."""

from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calve.errors import CalveError
from calve.model.health import Health, Status
from calve.runtime.verifying import Differences

_COLOURS = {
    Health.RUNNING: "green",
    Health.SEALED: "green",
    Health.STALLED: "yellow",
    Health.STARTING: "yellow",
    Health.HALTED: "red",
    Health.FENCED: "red",
}


_PLAIN_WIDTH = 200
"""Columns of output that is no terminal: wide enough that no cell is broken into lines."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Where a command prints."""
    made = Console(stderr=stderr, quiet=quiet)
    return made if made.is_terminal else Console(stderr=stderr, quiet=quiet, width=_PLAIN_WIDTH)


def show_error(console: Console, error: CalveError) -> None:
    """What happened, the values, what to do."""
    console.print(f"[bold red]error:[/] {escape(error.primary)}", highlight=False, soft_wrap=True)
    for line in error.detail.splitlines():
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    if error.hint:
        console.print(f"  [dim]hint:[/] {escape(error.hint)}", highlight=False, soft_wrap=True)


def show_statuses(console: Console, statuses: list[Status], home: Path) -> None:
    """One row per sink, causes below."""
    if not statuses:
        console.print(f"No sink has run in {home} yet.", highlight=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("sink", "health", "table", "committed up to", "pending", "commits", "changes", "last commit"):
        table.add_column(heading)
    for status in statuses:
        table.add_row(
            status.sink,
            f"[{_COLOURS.get(status.health, 'white')}]{status.health}[/]",
            status.table,
            _frontier(status.frontier),
            str(status.pending),
            str(status.commits),
            f"{status.rows:,}",
            "-" if status.last_commit_ms is None else _instant(status.last_commit_ms),
        )
    console.print(table)
    for status in statuses:
        if status.cause:
            console.print(f"\n{status.sink}: {escape(status.cause)}", highlight=False, soft_wrap=True)
        if status.last_compaction_ms is not None:
            words = f"{status.compactions:,} compactions; the last, {_instant(status.last_compaction_ms)}: "
            console.print(f"\n{status.sink}: {words}{status.last_compaction}", highlight=False, soft_wrap=True)
        if status.key_violations:
            words = f"{status.key_violations:,} keys had different rows in one checkpoint; see the log"
            console.print(f"\n{status.sink}: {words}", highlight=False, soft_wrap=True)
        if status.dead_letters:
            words = f"{status.dead_letters:,} records could not become changes and are dead letters"
            console.print(f"\n{status.sink}: {words}", highlight=False, soft_wrap=True)


def show_differences(console: Console, sink: str, found: Differences) -> None:
    """What a comparison of a table with its source found."""
    if found.none:
        console.print(f"{sink}: the table is right, {found.rows:,} rows", highlight=False)
        return
    console.print(
        f"{sink}: of {found.rows:,} rows {found.missing:,} are missing and {found.different:,} differ; "
        f"{found.unexpected:,} are unexpected, {found.repeated:,} keys are there more than once",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "by the source", "in the table"):
        table.add_column(heading)
    for sample in found.samples:
        table.add_row(*(escape(text) for text in sample))
    if found.samples:
        console.print(table)


def _frontier(text: str) -> str:
    if text in {"", "[0]"}:
        return "-"
    return "complete" if text == "[]" else _instant(int(text.strip("[]")))


def _instant(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
