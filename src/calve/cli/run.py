"""`calve run`: apply a pipeline file, then keep its sinks running."""

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

from rich.console import Console

from calve.cli.exports import Exports, serve_metrics, write_metrics
from calve.cli.live import end_line, progress
from calve.cli.options import PageOptions
from calve.cli.plan import apply_files
from calve.cli.serve import page_beside
from calve.cli.show import counted
from calve.definitions.workplace import workplace
from calve.errors import CalveError, InvalidInput
from calve.pipeline.supervisor import Ending, SinkResult, Supervisor
from calve.spark.on_demand import spark_on_demand
from calve.spark.session_log import rotate_log
from calve.sql.statements import ObjectKind

_RANK = {0: 0, 2: 1, 1: 2, 3: 3}
"""Severity by exit code."""


def run_pipeline(  # noqa: PLR0913 - those after the star are options by name
    console: Console,
    files: list[Path],
    home: Path,
    *,
    until_caught_up: bool,
    master: str,
    conf: Mapping[str, str],
    exports: Exports | None = None,
    page: PageOptions | None = None,
    prune: bool = False,
    yes: bool = False,
) -> int:
    """Apply the files and run every sink; returns the worst exit code."""
    place = workplace(home, spark_on_demand(home, master=master, conf=conf))
    if files:
        apply_files(console, place, files, prune=prune, yes=yes)
    if not place.definitions().of(ObjectKind.SINK):
        raise InvalidInput("there is no sink to run", detail=f"Home folder {place.home}.", hint="CREATE SINK ...")
    supervisor = Supervisor(place, until_caught_up=until_caught_up)
    with (
        _exported(exports or Exports(), console),
        page_beside(console, home, page),
        progress(console, supervisor.statuses) as say,
    ):
        say("starting Spark")
        with _hang_ups_ignored():  # by the JVM, too: it ends when this process does
            place.spark()
        with _stopped_by_signals(supervisor, console, home):
            results = supervisor.run()
    for result in results:
        _print_result(console, result)
    return max((r.exit_code for r in results), key=_RANK.__getitem__, default=0)


@contextmanager
def _hang_ups_ignored() -> Iterator[None]:
    """Ignore SIGHUP; processes that are started meanwhile always do."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def _stopped_by_signals(supervisor: Supervisor, console: Console, home: Path) -> Iterator[None]:
    """Stop the sinks gracefully at Ctrl-C or SIGTERM; a second signal ends the process at once.

    SIGHUP means that the terminal was closed, which stops the sinks as well. Without a terminal it rotates the logs.
    Installed after Spark starts, since PySpark installs its own handler, which would cancel the jobs.
    """
    asked = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.set()
        supervisor.ask_to_stop(f"the process received {signal.Signals(number).name}")
        if console.is_terminal and number != signal.SIGHUP:
            console.print("stopping after the current commit; repeat to stop at once")

    def hang_up(number: int, frame: FrameType | None) -> None:
        if sys.stdin is not None and sys.stdin.isatty():
            stop(number, frame)
        else:
            rotate_log(home, at_least=1)

    for number in numbers:
        if before[number] is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, hang_up if number == signal.SIGHUP else stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _exported(exports: Exports, console: Console) -> Iterator[None]:
    """Serve metrics, or write them to a file, while sinks run."""
    with ExitStack() as stack:
        if exports.port is not None:
            url = stack.enter_context(serve_metrics(exports.address, exports.port))
            console.print(f"metrics at {url}", soft_wrap=True)
        if exports.file is not None:
            stack.enter_context(write_metrics(exports.file))
        if exports.otel:
            stack.enter_context(import_module("calve.otel").export_otel())
        if exports.lineage:
            stack.enter_context(import_module("calve.open_lineage").emit_lineage())
        yield


def _print_result(console: Console, result: SinkResult) -> None:
    words = {Ending.DONE: "done", Ending.STOPPED: "stopped", Ending.FAILED: "halted", Ending.FENCED: "fenced"}
    how = words[result.ending]
    text = end_line(result.name, how, rows=result.rows, commits=result.commits, seconds=result.seconds)
    if result.pending:
        text += f", {counted(result.pending, 'batch')} pending"
    console.print(text, soft_wrap=True)
    if result.cause is not None:
        cause = result.cause.primary if result.logged and isinstance(result.cause, CalveError) else result.cause
        console.print(f"  {cause}", soft_wrap=True)
