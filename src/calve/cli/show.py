"""Prints tables and texts on a terminal."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calve.cli.visible import visible
from calve.errors import CalveError, InvalidInput
from calve.model.health import Health, Status
from calve.model.instants import instant_text
from calve.sql.values import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calve.api.engines import Recipe
    from calve.api.verify import Differences

_COLOURS = {
    Health.RUNNING: "green",
    Health.SEALED: "green",
    Health.STALLED: "yellow",
    Health.STARTING: "yellow",
    Health.PAUSED: "cyan",
    Health.GONE: "red",
    Health.HALTED: "red",
    Health.FENCED: "red",
    Health.UNKNOWN: "red",
}
_PLAIN_WIDTH = 200
"""Columns of output other than a terminal: wide enough that no cell wraps."""


class PlainConsole(Console):
    """Prints texts verbatim: without markup, emoji codes or control sequences.

    Styles are applied with `rich.text.Text` (`styled`), which separates texts from their styles.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Escape every text on its way to the screen, including cells of tables."""
        return super().render_str(visible(text), **settings)


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """The console of a command."""
    made = PlainConsole(stderr=stderr, quiet=quiet)
    return made if made.is_terminal else PlainConsole(stderr=stderr, quiet=quiet, width=_PLAIN_WIDTH)


def styled(*parts: tuple[str, str] | str) -> Text:
    """A text whose parts may have styles."""
    return Text.assemble(*(visible(p) if isinstance(p, str) else (visible(p[0]), p[1]) for p in parts))


def show_error(console: Console, error: CalveError) -> None:
    """Print an error with its detail and hint."""
    console.print(styled(("error:", "bold red"), f" {error.primary}"), soft_wrap=True)
    for line in error.detail.splitlines():
        console.print(f"  {line}", soft_wrap=True)
    if error.hint:
        console.print(styled(("  hint:", "dim"), f" {error.hint}"), soft_wrap=True)


def show_statuses(console: Console, statuses: list[Status], home: Path, now_ms: int) -> None:
    """Print one row per sink, and causes below."""
    if not statuses:
        console.print(f"No sink has run in {home} yet.", soft_wrap=True)
        return
    console.print(status_table(statuses, now_ms))
    for status in statuses:
        for line in _notes(status, now_ms):
            console.print(f"\n{status.sink}: {line}", soft_wrap=True)
    newest = max(statuses, key=lambda status: status.updated_ms)
    if newest.home_sizes:
        console.print(f"\nIn {home} besides tables and state: {_sizes(newest.home_sizes)}", soft_wrap=True)


def _sizes(sizes: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{kind} {format_bytes(size)}" for kind, size in sizes)


def status_table(statuses: list[Status], now_ms: int) -> Table:
    """One row per sink."""
    table = Table(box=None, pad_edge=False)
    for heading in ("sink", "health", "table", "committed up to", "lag", "rows/s", "pending", "commits", "changes"):
        table.add_column(heading)
    table.add_column("last commit")
    for status in statuses:
        table.add_row(
            status.sink,
            health_text(status, now_ms),
            status.table,
            _frontier(status.frontier),
            _lag(status, now_ms),
            f"{status.rows_per_second:,.0f}" if status.health.active else "-",
            pending_text(status),
            f"{status.commits:,}",
            f"{status.rows:,}",
            "-" if status.last_commit_ms is None else instant_text(status.last_commit_ms),
        )
    return table


def health_text(status: Status, now_ms: int) -> Text:
    """The state, and since when if it is a bad one."""
    since = f" {format_age(max(0, now_ms - status.since_ms))}" if status.health.wrong and status.since_ms else ""
    return styled((f"{status.health}{since}", _COLOURS.get(status.health, "white")))


def _notes(status: Status, now_ms: int) -> list[str]:
    """What the table has no column for."""
    notes = []
    if status.cause:
        notes.append(status.cause + (f"\n  hint: {status.hint}" if status.hint else ""))
    notes += _source_notes(status, now_ms)
    if status.last_compaction_ms is not None:
        words = f"{counted(status.compactions, 'compaction')}; the last, {instant_text(status.last_compaction_ms)}: "
        notes.append(words + status.last_compaction)
    if status.table_health is not None and status.table_health.data_files:
        found = status.table_health
        small = f" ({found.small_files:,} small)" if found.small_files else ""
        size = format_bytes(found.data_bytes + found.delete_bytes)
        notes.append(
            f"{counted(found.data_files, 'data file')}{small}, {counted(found.delete_files, 'delete file')}, {size}, "
            f"{found.deleted_share:.1%} of rows deleted, {counted(found.snapshots, 'snapshot')}"
        )
    if status.removed_files:
        size = format_bytes(status.removed_bytes)
        notes.append(f"{counted(status.removed_files, 'file')} of expired snapshots removed, {size}")
    if status.retention_note:
        notes.append(status.retention_note)
    if status.state_bytes is not None:
        notes.append(f"{format_bytes(status.state_bytes)} in its state location ({_sizes(status.state_sizes)})")
    if status.key_violations:
        keys = counted(status.key_violations, "key")
        notes.append(f"{keys} had different rows in one checkpoint; see the log")
    if status.late:
        notes.append(f"{counted(status.late, 'row')} arrived late")
    if status.dead_letters:
        records = counted(status.dead_letters, "record")
        notes.append(f"{records} could not be converted to changes and became dead letters")
    return notes


def _source_notes(status: Status, now_ms: int) -> list[str]:
    """How uneven the partitions are, when the source removes what was not read, and what is known if no run asks it."""
    left, left_ms = status.retention_left, status.retention_left_ms(now_ms)
    polled = status.since_poll_ms(now_ms)
    notes = []
    if status.ended_caught_up and polled is not None:
        notes.append(f"it had caught up when its source was last polled, {format_age(polled)} ago")
    if not status.unread:
        return notes
    if status.source_parts > 1 and status.unread_most:
        furthest = max(status.source, key=lambda part: part.unread or 0).name
        notes.append(f"partition {furthest} has {status.unread_most:,} of the unread {status.counts}")
    if left is not None:
        time = "" if left_ms is None else f", at the earliest in {format_age(left_ms)}"
        notes.append(f"the source removes unread {status.counts} after {left:,} more{time}")
    return notes


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 row, 2 rows, 1 batch, 2 batches."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def format_bytes(size: int) -> str:
    """A size in decimal units with one digit: 1.2 MB."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(amount) < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def pending_text(status: Status) -> str:
    """Batches that wait for the catalog, and checkpoints that wait for their window."""
    return f"{status.pending:,}" + (f" + {status.staged:,} staged" if status.staged else "")


def format_age(millis: int) -> str:
    """A duration to the second; a number that is none is shown as it is."""
    try:
        return f"{millis} ms" if millis < 0 else format_duration(timedelta(seconds=millis // 1000))
    except (OverflowError, InvalidInput):
        return f"{millis} ms"


def show_differences(console: Console, sink: str, found: "Differences") -> None:
    """Print the result of a comparison of a table with its source."""
    if found.none:
        console.print(f"{sink}: the table is correct, {counted(found.rows, 'row')}")
        return
    console.print(
        f"{sink}: of {found.rows:,} rows {found.missing:,} are missing and {found.different:,} differ; "
        f"{found.unexpected:,} are unexpected, {found.repeated:,} keys are duplicated",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "in the source", "in the table"):
        table.add_column(heading)
    for sample in found.samples:
        table.add_row(*sample)
    if found.samples:
        console.print(table)


def show_recipes(console: Console, recipes: "Iterable[Recipe]") -> None:
    """Print how engines read a table."""
    for recipe in recipes:
        console.print(styled((f"-- {recipe.engine.value}", "bold")))
        if recipe.note:
            console.print(styled((recipe.note, "dim")), soft_wrap=True)
        console.print(recipe.text, soft_wrap=True)


def _lag(status: Status, now_ms: int) -> str:
    """How far the table lags behind, and what of the source is unread."""
    lag_ms = status.lag_now_ms(now_ms)
    age = "-" if lag_ms is None else format_age(lag_ms)
    return f"{age}, {status.unread:,} {status.counts} unread" if status.unread else age


def _frontier(text: str) -> str:
    if text in {"", "[0]"}:
        return "-"
    if text == "[]":
        return "complete"
    try:
        return instant_text(int(text.strip("[]")))
    except ValueError:  # written by another version
        return text
