"""What `calve run` shows while it works: a live table on a terminal, lines elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from calve.cli.repeating import repeating
from calve.cli.show import counted, format_age, health_text, pending_text, styled
from calve.clock import Clock, SystemClock
from calve.model.health import Health, Status

REFRESH_SECONDS = 0.5
LINE_SECONDS = 30.0
"""Seconds between two lines about a sink whose state does not change, where the output is not a terminal."""

Statuses = Callable[[], Sequence[Status]]


@contextmanager
def progress(
    console: Console, statuses: Statuses, clock: Clock | None = None, every: float = LINE_SECONDS
) -> Iterator[Callable[[str], None]]:
    """Show the sinks until the end of the block; yields a function that shows a text before they start."""
    clock = clock or SystemClock()
    if console.quiet:
        yield lambda _text: None
    elif console.is_terminal:
        with _live(console, statuses, clock) as say:
            yield say
    else:
        with _lines(console, statuses, clock, every):
            yield lambda _text: None


@contextmanager
def _live(console: Console, statuses: Statuses, clock: Clock) -> Iterator[Callable[[str], None]]:
    said = [""]

    def picture() -> Table | Text | Group:
        found = statuses()
        return live_table(found, clock.now_ms()) if found else Text(said[0])

    with Live(console=console, get_renderable=picture, refresh_per_second=1 / REFRESH_SECONDS, transient=True) as live:

        def say(text: str) -> None:
            said[0] = text
            live.refresh()

        yield say


def live_table(statuses: Sequence[Status], now_ms: int) -> Group:
    """The sinks of a run, and below why some of them do not run."""
    table = Table(box=None, pad_edge=False)
    for heading in ("sink", "health"):
        table.add_column(heading)
    for heading in ("rows/s", "changes", "commits", "last commit", "lag", "pending"):
        table.add_column(heading, justify="right")
    for status in statuses:
        table.add_row(
            status.sink,
            health_text(status, now_ms),
            f"{status.rows_per_second:,.0f}",
            f"{status.run_rows:,}",
            f"{status.run_commits:,}",
            _ago(status.since_commit_ms(now_ms)),
            _ago(status.lag_now_ms(now_ms)),
            pending_text(status),
        )
    causes = [
        styled((f"{status.sink}: ", "bold"), status.cause.splitlines()[0])
        for status in statuses
        if status.cause and status.health.wrong
    ]
    return Group(table, *causes)


@contextmanager
def _lines(console: Console, statuses: Statuses, clock: Clock, every: float) -> Iterator[None]:
    lines = StatusLines(clock, every)

    def show() -> None:
        for line in lines.due(statuses()):
            console.print(line, soft_wrap=True)

    with repeating(show, REFRESH_SECONDS, "calve-progress"):
        yield


class StatusLines:
    """Decides which sinks get a line: those whose state changed, and each of them at an interval."""

    def __init__(self, clock: Clock, every: float) -> None:
        self._clock, self._every = clock, every
        self._shown: dict[str, tuple[Health, float]] = {}

    def due(self, statuses: Sequence[Status]) -> list[str]:
        """Return the lines that are due now. How a sink ends is printed at the end of the run."""
        now, lines = self._clock.monotonic(), []
        for status in statuses:
            health, at = self._shown.get(status.sink, (Health.STARTING, now))
            over = now - at >= self._every
            if status.health.active and (status.health is not health or over):
                lines.append(line_of(status, self._clock.now_ms()))
                self._shown[status.sink] = (status.health, now)
            else:
                self._shown.setdefault(status.sink, (health, at))
        return lines


def line_of(status: Status, now_ms: int) -> str:
    """One line about a sink."""
    lag = status.lag_now_ms(now_ms)
    parts = [
        f"{status.sink} {status.health}",
        f"{counted(status.run_rows, 'change')} ({status.rows_per_second:,.0f}/s)",
        counted(status.run_commits, "commit"),
        "" if lag is None else f"lag {_ago(lag)}",
        f"{pending_text(status)} pending" if status.pending or status.staged else "",
        status.cause.splitlines()[0] if status.cause else "",
    ]
    return ", ".join(filter(None, parts))


def end_line(name: str, how: str, *, rows: int, commits: int, seconds: float) -> str:
    """How a sink ended: what it did, and in which time."""
    took = "1 second" if f"{seconds:.1f}" == "1.0" else f"{seconds:,.1f} seconds"
    return f"{name}: {how}, {counted(rows, 'change')} in {counted(commits, 'commit')}, {took}"


def _ago(millis: int | None) -> str:
    return "-" if millis is None else format_age(millis)
