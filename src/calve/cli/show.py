"""Prints tables and texts on a terminal."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calve.api.verify import Differences
from calve.errors import CalveError, InvalidInput
from calve.model.health import Health, Status
from calve.sql.values import format_duration

_COLOURS = {
    Health.RUNNING: "green",
    Health.SEALED: "green",
    Health.STALLED: "yellow",
    Health.STARTING: "yellow",
    Health.HALTED: "red",
    Health.FENCED: "red",
    Health.UNKNOWN: "red",
}
_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of characters that are not text: control characters, surrogates, line and paragraph separators."""
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Reverse the direction of text, which can make it read as something else."""
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


def visible(text: str) -> str:
    """Escape characters that control a terminal or cannot be encoded."""
    if text.isprintable() and _TURNING.isdisjoint(text):
        return text
    hidden = (c not in "\n\t" and (category(c) in _CONTROL or c in _TURNING) for c in text)
    return "".join(ascii(c)[1:-1] if hide else c for c, hide in zip(text, hidden, strict=True))


def show_error(console: Console, error: CalveError) -> None:
    """Print an error with its detail and hint."""
    console.print(styled(("error:", "bold red"), f" {error.primary}"), soft_wrap=True)
    for line in error.detail.splitlines():
        console.print(f"  {line}", soft_wrap=True)
    if error.hint:
        console.print(styled(("  hint:", "dim"), f" {error.hint}"), soft_wrap=True)


def show_statuses(console: Console, statuses: list[Status], home: Path) -> None:
    """Print one row per sink, and causes below."""
    if not statuses:
        console.print(f"No sink has run in {home} yet.", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    headings = ("sink", "health", "table", "committed up to", "lag", "pending", "commits", "changes", "last commit")
    for heading in headings:
        table.add_column(heading)
    for status in statuses:
        table.add_row(
            status.sink,
            styled((status.health, _COLOURS.get(status.health, "white"))),
            status.table,
            _frontier(status.frontier),
            _lag(status),
            str(status.pending),
            str(status.commits),
            f"{status.rows:,}",
            "-" if status.last_commit_ms is None else format_instant(status.last_commit_ms),
        )
    console.print(table)
    for status in statuses:
        if status.cause:
            console.print(f"\n{status.sink}: {status.cause}", soft_wrap=True)
        if status.last_compaction_ms is not None:
            words = f"{status.compactions:,} compactions; the last, {format_instant(status.last_compaction_ms)}: "
            console.print(f"\n{status.sink}: {words}{status.last_compaction}", soft_wrap=True)
        if status.key_violations:
            words = f"{status.key_violations:,} keys had different rows in one checkpoint; see the log"
            console.print(f"\n{status.sink}: {words}", soft_wrap=True)
        if status.dead_letters:
            words = f"{status.dead_letters:,} records could not be converted to changes and are dead letters"
            console.print(f"\n{status.sink}: {words}", soft_wrap=True)


def show_differences(console: Console, sink: str, found: Differences) -> None:
    """Print the result of a comparison of a table with its source."""
    if found.none:
        console.print(f"{sink}: the table is correct, {found.rows:,} rows")
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


def _lag(status: Status) -> str:
    """How far the table lags behind, and what of the source is unread."""
    try:
        age = "-" if status.lag_ms is None else format_duration(timedelta(seconds=status.lag_ms // 1000))
    except (OverflowError, InvalidInput):
        age = f"{status.lag_ms} ms"
    return f"{age}, {status.unread:,} {status.counts} unread" if status.unread else age


def _frontier(text: str) -> str:
    if text in {"", "[0]"}:
        return "-"
    if text == "[]":
        return "complete"
    try:
        return format_instant(int(text.strip("[]")))
    except ValueError:  # written by another version
        return text


def format_instant(millis: int) -> str:
    """An instant in UTC, to the second."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # times beyond the year 9999, where Python's end
        return f"{millis} ms"
