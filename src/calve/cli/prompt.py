"""The prompt of `calve sql`: history without secrets, and completion by context."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from rich.console import Console

from calve.cli.show import show_error
from calve.cli.sql import answer, show_outcome
from calve.definitions.store import Definitions
from calve.definitions.workplace import Workplace
from calve.errors import CalveError
from calve.model.engine import Engine
from calve.plan import catalogue
from calve.plan.settings import SettingGroup
from calve.sql.hiding import hidden_ranges
from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.names import is_plain, quoted_name
from calve.sql.parser import parse, split_complete
from calve.sql.statements import CreateSink, MaintenanceKind, ObjectKind, ShowKind
from calve.sql.text import SqlText

_LEAVE = frozenset({"exit", "quit", "\\q"})
_HELP = frozenset({"help", "?", "\\?", "\\h"})

HELP = """\
CREATE | ALTER | DROP   SECRET, CONNECTION, SOURCE, VIEW, SINK
SHOW                    SECRETS, CONNECTIONS, SOURCES, VIEWS, SINKS, TABLES, CONSUMERS, OPTIONS [LIKE 'pattern']
SHOW CREATE kind name   the statement that creates an object
SHOW SNAPSHOTS FROM t   the history of a table, with times and frontiers
DESCRIBE t              the columns of a table, source or view
SELECT ...              rows of tables of sinks, and INFORMATION_SCHEMA.TABLES, COLUMNS, PARTITIONS
EXPLAIN CREATE SINK     how a sink would run
VALIDATE CONNECTION c   whether a connection works
ANALYZE TABLE t         REFRESH METADATA or DROP METADATA
OPTIMIZE TABLE t        compacts files; also CONVERT DELETES t, REWRITE MANIFESTS t
EXPIRE SNAPSHOTS t      removes old snapshots with their files; also REMOVE ORPHAN FILES t
exit, quit, Ctrl-D      leave\
"""

_STARTS = ("ALTER", "ANALYZE TABLE", "CREATE", "DESCRIBE", "DROP", "EXPLAIN CREATE SINK", "SELECT", "SHOW")
_MAINTENANCE = {
    MaintenanceKind.OPTIMIZE: catalogue.OPTIMIZE,
    MaintenanceKind.CONVERT: catalogue.CONVERT,
    MaintenanceKind.MANIFESTS: catalogue.MANIFESTS,
    MaintenanceKind.EXPIRE: catalogue.EXPIRE,
    MaintenanceKind.ORPHANS: catalogue.ORPHANS,
}
_MAINTAINING = {kind.value.split()[0]: kind for kind in MaintenanceKind}
"""By their first words."""
_FIRST = (*_STARTS, *(kind.value for kind in MaintenanceKind), "VALIDATE CONNECTION", "WITH", "exit", "help", "quit")
_KINDS = tuple(kind.value for kind in ObjectKind)
_LISTS = (*(kind.value for kind in ShowKind), "COLUMNS FROM", "CREATE", "SNAPSHOTS FROM")
_REST = {
    "SECRET": ("AS", "FROM ENV", "FROM FILE"),
    "CONNECTION": ("TO AWS", "TO ICEBERG CATALOG", "TO KAFKA", "SET", "RESET", "WITH"),
    "SOURCE": (
        *("FROM FILES", "FROM ICEBERG TABLE", "FROM KAFKA CONNECTION", "FROM LOAD GENERATOR orders"),
        *("FORMAT JSON", "FORMAT AVRO", "FORMAT PROTOBUF"),
        *("ENVELOPE NONE", "ENVELOPE UPSERT", "ENVELOPE DEBEZIUM", "ENVELOPE DIFF", "ORDER BY", "DELETE WHEN"),
        *("PRIMARY KEY", "NOT ENFORCED", "INFER", "SET", "RESET"),
    ),
    "VIEW": ("AS SELECT", "FROM", "WHERE", "GROUP BY", "JOIN"),
    "SINK": (
        *("FROM", "INTO ICEBERG CATALOG CONNECTION", "TO ICEBERG CATALOG", "USING AWS CONNECTION", "NAMESPACE"),
        *("TABLE", "KEY", "MODE APPEND", "MODE UPSERT", "PARTITION BY", "WITH"),
        *("PAUSE", "RESUME", "SET", "SET FROM", "RESET", "ACCEPT SNAPSHOT"),
    ),
}
_QUERY = ("FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "INFORMATION_SCHEMA")
_INFORMATION = ("COLUMNS", "PARTITIONS", "TABLES")
_OPTIONS: tuple[tuple[tuple[str, ...], SettingGroup], ...] = (
    (("ICEBERG", "CATALOG"), catalogue.ICEBERG_CATALOG),
    (("TO", "AWS"), catalogue.AWS),
    (("TO", "KAFKA"), catalogue.KAFKA),
    (("FROM", "FILES"), catalogue.FILES),
    (("GENERATOR", "ORDERS"), catalogue.GENERATOR),
    (("KAFKA", "CONNECTION"), catalogue.KAFKA_SOURCE),
)
"""The words before a parenthesis: the options in it."""


def run_prompt(console: Console, place: Workplace, engine: Engine) -> int:
    """Read and execute statements until the user leaves."""
    console.print("Statements end with a semicolon. help lists them; exit or Ctrl-D leaves.", style="dim")
    history = _History(place.home / "history")
    session: PromptSession[str] = PromptSession(history=history)
    left = ""
    while True:
        try:
            completer = StatementCompleter(place.definitions(), left)
            line = session.prompt("    -> " if left else "calve> ", completer=completer, complete_while_typing=False)
        except KeyboardInterrupt:
            left = ""
            continue
        except EOFError:
            return 0
        word = line.strip().rstrip(";").strip().lower()
        if not left and word in _LEAVE:
            return 0
        if not left and word in _HELP:
            console.print(HELP)
            continue
        complete, left = split_complete(f"{left}\n{line}" if left else line)
        for text in complete:
            history.keep(text)
            _answer(console, place, text, engine)


def _answer(console: Console, place: Workplace, text: str, engine: Engine) -> None:
    try:
        for statement in parse(text):
            show_outcome(console, answer(place, statement, engine))
    except CalveError as error:
        show_error(console, error)
    except KeyboardInterrupt:
        console.print("interrupted")


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


# ---------------------------------------------------------------------------------------------------------- completion


class StatementCompleter(Completer):
    """Completes what fits at the cursor: keywords, names of objects and tables, options of the statement."""

    def __init__(self, definitions: Definitions, before: str = "") -> None:
        self._definitions = definitions
        self._before = before

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
        """For prompt_toolkit."""
        text = f"{self._before}\n{document.text_before_cursor}" if self._before else document.text_before_cursor
        typed, choices = self.choices(text)
        for choice in choices:
            if choice.lower().startswith(typed.lower()):
                yield Completion(choice, start_position=-len(typed))

    def choices(self, text: str) -> tuple[str, list[str]]:
        """The text of the word at the end, and the words that may stand there."""
        _, statement = split_complete(text)
        tokens = _tokens(statement)
        typed = ""
        if tokens and tokens[-1].end == len(statement) and tokens[-1].kind is TokenKind.WORD:
            typed = tokens.pop().value
        words = [token.value.upper() if token.kind is TokenKind.WORD else token.value for token in tokens]
        return typed, sorted(dict.fromkeys(self._after(words, tokens)))

    def _after(self, words: list[str], tokens: list[Token]) -> Iterable[str]:
        if not words:
            return _FIRST
        opened = _opened(tokens)
        if opened is not None:
            return self._inside(words[:opened])
        first, last = words[0], words[-1]
        if first == "SHOW":
            return self._show(words)
        if first in {"DESCRIBE", "DESC"}:
            return [*self._tables(), *self._names(ObjectKind.SOURCE, ObjectKind.VIEW)]
        if first in {"SELECT", "WITH"}:
            return self._query(words)
        if first == "VALIDATE":
            return self._names(ObjectKind.CONNECTION) if last == "CONNECTION" else ("CONNECTION",)
        if first == "ANALYZE":
            return self._tables() if last == "TABLE" else ("TABLE", "REFRESH METADATA", "DROP METADATA", "COLUMNS")
        maintaining = _MAINTAINING.get(first)
        defining = words[1:] if first == "EXPLAIN" else words
        return self._maintain(words, maintaining) if maintaining else self._define(defining)

    def _show(self, words: list[str]) -> Iterable[str]:
        if len(words) == 1:
            return _LISTS
        if words[1] == "CREATE":
            return _KINDS if len(words) == 2 else self._names(*_kinds(words[2]))
        if words[-1] == "FROM":
            return [
                *self._tables(),
                *(self._names(ObjectKind.SOURCE, ObjectKind.VIEW) if words[1] == "COLUMNS" else ()),
            ]
        return ("FROM",) if words[1] in {"COLUMNS", "SNAPSHOTS"} else ("LIKE",)

    def _query(self, words: list[str]) -> Iterable[str]:
        if words[-2:] == ["INFORMATION_SCHEMA", "."]:
            return _INFORMATION
        if words[-1] in {"FROM", "JOIN"}:
            return [*self._tables(), *(f"INFORMATION_SCHEMA.{name}" for name in _INFORMATION)]
        return _QUERY

    def _maintain(self, words: list[str], kind: MaintenanceKind) -> Iterable[str]:
        of_kind = kind.value.split()
        if len(words) < len(of_kind):
            return (" ".join(of_kind[len(words) :]),)
        if len(words) == len(of_kind):
            return self._tables()
        return ("WHERE", "WITH") if kind is MaintenanceKind.OPTIMIZE else ("WITH",)

    def _define(self, words: list[str]) -> Iterable[str]:
        """After CREATE, ALTER or DROP."""
        if len(words) == 1:
            return _KINDS
        kind, last = words[1], words[-1]
        if len(words) == 2 and words[0] in {"ALTER", "DROP"}:
            return [*self._names(*_kinds(kind)), "IF EXISTS"]
        if last == "FROM" and kind in {"SINK", "VIEW"}:
            return self._names(ObjectKind.SOURCE, ObjectKind.VIEW)
        if (last in {"CATALOG", "CONNECTION"} and kind != "CONNECTION") or words[-2:] == ["ICEBERG", "TABLE"]:
            return self._names(ObjectKind.CONNECTION)
        if words[0] == "DROP":
            return ("CASCADE",)
        return [*_REST.get(kind, ()), *(("IF NOT EXISTS",) if len(words) == 2 else ())]

    def _inside(self, before: list[str]) -> Iterable[str]:
        """In parentheses."""
        for words, group in _OPTIONS:
            if _ends_with(before, words):
                return [*(setting.name for setting in group.settings), *self._secrets()]
        if ("ICEBERG", "TABLE") in pairwise(before):
            return [setting.name for setting in catalogue.TABLE_SOURCE.settings]
        maintaining = _MAINTAINING.get(before[0]) if before else None
        if maintaining and before[-1] == "WITH":
            return [setting.name for setting in _MAINTENANCE[maintaining].settings]
        kind = before[1] if len(before) > 1 else ""
        if before[-1:] in (["WITH"], ["SET"], ["RESET"]):
            group = catalogue.SINK if kind == "SINK" else catalogue.ICEBERG_CATALOG
            return [*(setting.name for setting in group.settings), *self._secrets()]
        return [*self._names(ObjectKind.SOURCE, ObjectKind.VIEW), *_QUERY]

    def _names(self, *kinds: ObjectKind) -> list[str]:
        return [
            name if is_plain(name) else quoted_name(name) for name in (d.name for d in self._definitions.of(*kinds))
        ]

    def _secrets(self) -> list[str]:
        return [f"SECRET {name}" for name in self._names(ObjectKind.SECRET)]

    def _tables(self) -> list[str]:
        statements = [d.statement for d in self._definitions.of(ObjectKind.SINK)]
        targets = [s.target for s in statements if isinstance(s, CreateSink)]
        written = (".".join(n if is_plain(n) else quoted_name(n) for n in (*t.namespace, t.table)) for t in targets)
        return [*self._names(ObjectKind.SINK), *written]


def _tokens(text: str) -> list[Token]:
    lexer, found = Lexer(text), list[Token]()
    while (token := lexer.next()).kind not in {TokenKind.END, TokenKind.BROKEN}:
        found.append(token)
    return found


def _opened(tokens: list[Token]) -> int | None:
    """The place of the innermost parenthesis that is not closed."""
    places: list[int] = []
    for place, token in enumerate(tokens):
        if token.is_symbol("("):
            places.append(place)
        elif token.is_symbol(")") and places:
            places.pop()
    return places[-1] if places else None


def _ends_with(words: list[str], ending: tuple[str, ...]) -> bool:
    """Whether these are the last words, or stand before one name."""
    size = len(ending)
    return tuple(words[-size:]) == ending or (ending[-1] == "CONNECTION" and tuple(words[-size - 1 : -1]) == ending)


def _kinds(word: str) -> tuple[ObjectKind, ...]:
    return (ObjectKind(word),) if word in _KINDS else tuple(ObjectKind)
