"""`calve sql`: statements from the command line, from a file, or at a prompt."""

import sys
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from rich.console import Console
from rich.table import Table

from calve.cli.show import show_error
from calve.definitions.workplace import Workplace, workplace
from calve.errors import CalveError, InvalidInput
from calve.plan import catalogue
from calve.spark.session import embedded_session
from calve.sql.hiding import hidden_ranges
from calve.sql.parser import parse, split_complete
from calve.sql.statements import ConnectionKind, ObjectKind, ShowKind
from calve.sql.text import SqlText
from calve.statements.answers import Outcome, RowsAnswer, TextAnswer
from calve.statements.execute import execute

_WORDS = (
    *("CREATE", "ALTER", "DROP", "SHOW", "SHOW CREATE", "EXPLAIN CREATE SINK", "VALIDATE CONNECTION", "IF NOT EXISTS"),
    *("FROM", "TO", "INTO", "WITH", "KEY", "MODE UPSERT", "MODE APPEND", "NAMESPACE", "TABLE", "PARTITION BY"),
    *(
        "ENVELOPE NONE",
        "ENVELOPE UPSERT",
        "ENVELOPE DEBEZIUM",
        "ORDER BY",
        "DELETE WHEN",
        "PRIMARY KEY",
        "NOT ENFORCED",
    ),
    *("ANALYZE TABLE", "REFRESH METADATA", "DROP METADATA", "SELECT", "INFORMATION_SCHEMA"),
    *("FILES", "KAFKA CONNECTION", "LOAD GENERATOR", "FORMAT JSON", "PAUSE", "RESUME", "SET", "RESET", "CASCADE"),
)


def run_sql(console: Console, home: Path, *, text: str | None, file: Path | None) -> int:
    """Execute statements and print their results."""
    place = workplace(home, lambda: embedded_session(home))
    if text is not None and file is not None:
        raise InvalidInput("statements and --file exclude each other")
    if text is None and file is None and sys.stdin.isatty():
        return _prompt(console, place)
    for statement in parse(text if text is not None else _read(file)):
        show_outcome(console, execute(place, statement))
    return 0


def _read(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'cannot read "{file}"', detail=f"{error}.") from error


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Print the result of a statement."""
    match outcome:
        case TextAnswer(text):
            console.print(text, soft_wrap=True)
        case RowsAnswer(headings, rows):
            table = Table(box=None, pad_edge=False)
            for heading in headings:
                table.add_column(heading)
            for row in rows:
                table.add_row(*row)
            console.print(table)


class _History(FileHistory):
    """The history of complete statements, without those that contain secrets.

    Single lines are not recorded: a line in the middle of a private key does not look like a secret. Only the user can
    read the file.
    """

    def __init__(self, file: Path) -> None:
        file.touch(mode=0o600)
        file.chmod(0o600)
        super().__init__(str(file))

    def append_string(self, string: str) -> None:
        """Called for every line: record nothing."""

    def keep(self, statement: str) -> None:
        """Record a complete statement."""
        if not hidden_ranges(SqlText(statement), len(statement)):
            super().append_string(f"{statement};")


def _prompt(console: Console, place: Workplace) -> int:
    console.print("Statements end with a semicolon. Press Ctrl-D to leave.", style="dim")
    history = _History(place.home / "history")
    session: PromptSession[str] = PromptSession(history=history)
    left = ""
    while True:
        try:
            completer = WordCompleter(_words(place), ignore_case=True, sentence=False)
            line = session.prompt("    -> " if left else "calve> ", completer=completer, complete_while_typing=False)
        except KeyboardInterrupt:
            left = ""
            continue
        except EOFError:
            return 0
        complete, left = split_complete(f"{left}\n{line}" if left else line)
        for text in complete:
            history.keep(text)
            _answer(console, lambda text=text: _execute_all(console, place, text))  # type: ignore[misc]


def _execute_all(console: Console, place: Workplace, text: str) -> None:
    for statement in parse(text):
        show_outcome(console, execute(place, statement))


def _answer(console: Console, action: Callable[[], None]) -> None:
    try:
        action()
    except CalveError as error:
        show_error(console, error)


def _words(place: Workplace) -> list[str]:
    words = [*_WORDS, *(kind.value for kind in (*ObjectKind, *ConnectionKind, *ShowKind))]
    words += [setting.name for group in catalogue.GROUPS for setting in group.settings]
    return sorted({*words, *(definition.statement.name.to_sql() for definition in place.definitions())})
