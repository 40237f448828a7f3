"""`calve run`: apply a pipeline file, then keep its sinks running."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from calve.cli.show import visible
from calve.definitions.workplace import Workplace, workplace
from calve.errors import CalveError, InvalidInput
from calve.pipeline.supervisor import Ending, SinkResult, Supervisor
from calve.spark.session import embedded_session
from calve.sql.parser import parse
from calve.sql.statements import Create, ObjectKind
from calve.statements.create import apply
from calve.statements.execute import execute

_RANK = {0: 0, 2: 1, 1: 2, 3: 3}
"""Severity by exit code."""
_SHOW_EVERY = 0.25


def run_pipeline(
    console: Console, files: list[Path], home: Path, *, until_caught_up: bool, master: str, conf: Mapping[str, str]
) -> int:
    """Apply the statements and run every sink; returns the worst exit code."""
    place = workplace(home, lambda: embedded_session(home, master=master, conf=conf))
    for file in files:
        apply_file(place, file)
    if not place.definitions().of(ObjectKind.SINK):
        raise InvalidInput("there is no sink to run", detail=f"Home folder {place.home}.", hint="CREATE SINK ...")
    supervisor = Supervisor(place, until_caught_up=until_caught_up)
    with _progress(console, supervisor) as say:
        say("starting Spark")
        place.spark()
        with _stopped_by_signals(supervisor, console):
            results = supervisor.run()
    for result in results:
        _print_result(console, result)
    return max((r.exit_code for r in results), key=_RANK.__getitem__, default=0)


def apply_file(place: Workplace, file: Path) -> None:
    """Apply the statements of a file; existing objects with the same definition are left alone."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'cannot read "{file}"', detail=f"{error}.") from error
    for statement in parse(text):
        if isinstance(statement, Create):
            apply(place, statement)
        else:
            execute(place, statement)


@contextmanager
def _stopped_by_signals(supervisor: Supervisor, console: Console) -> Iterator[None]:
    """Stop the sinks gracefully at Ctrl-C or SIGTERM; a second signal ends the process at once.

    Installed after Spark starts, since PySpark installs its own handler, which would cancel the jobs.
    """
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.set()
        supervisor.ask_to_stop()
        if console.is_terminal:
            console.print("stopping after the current commit; repeat to stop at once")

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(console: Console, supervisor: Supervisor) -> "Iterator[_ProgressLine]":
    """Show a progress line, on a terminal only."""
    if not console.is_terminal or console.quiet:
        yield _ProgressLine(None)
        return
    ended = threading.Event()
    with console.status("") as status:

        def show() -> None:
            while not ended.wait(_SHOW_EVERY):
                line = _line(supervisor)
                if line:
                    status.update(Text(visible(line)))

        thread = threading.Thread(target=show, name="calve-progress", daemon=True)
        thread.start()
        try:
            yield _ProgressLine(status)
        finally:
            ended.set()
            thread.join()


class _ProgressLine:
    """Shows a text in the progress line, if there is one."""

    def __init__(self, status: "object | None") -> None:
        self._status = status

    def __call__(self, text: str) -> None:
        update = getattr(self._status, "update", None)
        if update is not None:
            update(Text(text))


def _line(supervisor: Supervisor) -> str:
    parts = []
    for runner in supervisor.runners:
        query = runner.query
        if query is not None:
            status = query.status()
            pending = f", {status.pending} pending" if status.pending else ""
            parts.append(f"{status.sink} {status.health}: {status.rows:,} changes, {status.commits} commits{pending}")
    return "   ".join(parts)


def _print_result(console: Console, result: SinkResult) -> None:
    words = {Ending.DONE: "done", Ending.STOPPED: "stopped", Ending.FAILED: "halted", Ending.FENCED: "fenced"}
    text = f"{result.name}: {words[result.ending]}"
    if result.pending:
        text += f", {result.pending} batches pending"
    console.print(text, soft_wrap=True)
    if result.cause is not None:
        cause = result.cause.primary if result.logged and isinstance(result.cause, CalveError) else result.cause
        console.print(f"  {cause}", soft_wrap=True)
