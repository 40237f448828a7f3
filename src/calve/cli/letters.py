"""`calve letters`: prints dead letters, and what became of those that were replayed."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calve.api.letters import letters_of
from calve.cli.options import Format
from calve.cli.read import ArrowRows
from calve.cli.rows import print_rows
from calve.cli.show import counted
from calve.cli.visible import visible
from calve.definitions.workplace import Workplace
from calve.model.instants import datetime_of
from calve.model.letters import LetterChoice, ReplayReport


def show_letters(  # noqa: PLR0913 - the options of the command
    place: Workplace,
    sink: str,
    console: Console,
    *,
    reason: str,
    since: str | None,
    output: Format,
    limit: int | None,
) -> None:
    """Print the dead letters of a sink. Raises CalveError."""
    moment = None if since is None else datetime_of(since)
    found = letters_of(place, sink, LetterChoice(reason, moment))
    print_rows(ArrowRows(found), output, limit, console)
    if found.unfinished and output is Format.TABLE:
        console.print(
            f"A replay was interrupted, so some of them may be in the table already: calve letters {sink} --replay "
            "finishes it.",
            soft_wrap=True,
        )


def show_replay(report: ReplayReport, console: Console) -> None:
    """Print what a replay did: numbers first, then why letters stay."""
    if report.finished:
        console.print(
            f"{counted(report.finished, 'letter')} had been applied by a replay that was interrupted; now removed",
            soft_wrap=True,
        )
    done = "can be applied" if report.dry_run else "applied"
    where = f", in snapshot {', '.join(map(str, report.snapshots))}" if report.snapshots else ""
    console.print(f"{counted(report.applied, 'letter')} {done}{where}", soft_wrap=True)
    if not report.left:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("left", justify="right")
    table.add_column("because")
    for heading, rows in (("still bad", report.failed), ("no record", report.skipped)):
        for why, count in rows:
            table.add_row(f"{count:,}", Text(visible(f"{heading}: {why}")))
    console.print(table)
