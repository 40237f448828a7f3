"""Writes docs/errors.md from the code that raises errors: `python scripts/errors_page.py [--check]`.

Walks the syntax trees of `src/calve` and collects every construction of a class of `calve.errors` (or of a class that
derives from one), and every call of a function that takes the text of an error in a parameter `primary`. A text that
cannot be read from the code (it is passed on, or computed) belongs to one of those calls, or is counted by `unread`;
a test keeps that list short and known.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pages import finish

from calve import errors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
SOURCES = ROOT / "src" / "calve"
HEAD = """# Errors

Every error that calve raises, made out of the code. An error has up to three parts: what happened, the values, and
what to do. `…` and `<name>` stand for values. The class says what happens next, in Python (`except calve.CalveError`)
as well as on the command line:

| class | what happens next | exit code |
|---|---|---|
| [`TransientError`](#transienterror) | calve retries; `calve status` says `stalled` | 1, if it still fails |
| [`TerminalError`](#terminalerror) and the classes below it | the sink halts until a person acts | 1 |
| [`SourceChanged`](#sourcechanged) | `calve run` restarts the sink with the new columns; a Python query ends | 1 |
| [`FencedError`](#fencederror) | nothing: a newer run of the sink owns the table | 3 |
| [`InvalidInput`](#invalidinput) | nothing was started; correct the statement, the option or the call | 2 |

To find an error, search this page for a few of its words. What to do when a sink stops, by cause:
[failures](failures.md). `make docs` generates this page.
"""
ADVICE = {
    "TransientError": "Wait: calve retries with growing pauses, and nothing is lost meanwhile. If it lasts, remove the "
    "cause that the detail names.",
    "CommitConflict": "Nothing: the sink loads the table again and repeats its commit. A program that modifies a "
    "component of the metastore itself repeats the modification.",
    "CommitUnknown": "Nothing: the next attempt looks into the table and finds out whether the commit was applied. Its "
    "files are kept until that is known.",
    "TerminalError": "Remove the cause, then restart the sink: it continues where its table ends.",
    "BadRow": "Correct the record at its origin, or set `ON BAD ROW = 'dead letter'` ([bad rows](kafka.md#bad-rows)).",
    "UnreadableFile": "Repair or remove the file, or set `ON BAD ROW = 'dead letter'` "
    "([failures](failures.md#unreadable-files-as-dead-letters)).",
    "KeyViolation": "Add an `ORDER BY` that distinguishes the changes of a key, or correct the source.",
    "LateRow": "Set a longer `WATERMARK DELAY`, or `LATE ROWS = 'advance'` or `'drop'` ([time](time.md)).",
    "ForeignCommit": "Find out who wrote. To keep what they wrote: `ALTER SINK ... ACCEPT SNAPSHOT`. To restore the "
    "contents of the source: `SNAPSHOT = true`.",
    "TableRolledBack": "Roll the table forward again, or rebuild it with `SNAPSHOT = true`.",
    "TableRecreated": "Point the sink at the right table, or start over with `SNAPSHOT = true`.",
    "ProgressUnprovable": "See [backup and restore](backup.md): which parts were lost decides what is left to do.",
    "CheckpointGap": "Restore the state location, or rebuild the table with `SNAPSHOT = true`.",
    "SourceLost": "Restore the source, or rebuild the table from what it still has with `SNAPSHOT = true`.",
    "SourceChanged": "Nothing with `calve run`: the sink starts again with the new columns, as `ON SCHEMA CHANGE` "
    "says. In Python, start it again.",
    "FencedError": "Stop this process: the newer run continues the work. If the newer run is not wanted, stop that one "
    "and start this one again.",
    "InvalidInput": "Correct the statement, the option or the call. Nothing was changed.",
}
AREAS = {
    "sql": "Syntax of statements",
    "plan": "Definitions and options",
    "definitions": "Definitions and options",
    "statements": "Definitions and options",
    "view": "Views",
    "envelope": "Sources and envelopes",
    "source": "Sources and envelopes",
    "records": "Sources and envelopes",
    "infer": "Sources and envelopes",
    "catalog": "Catalogs, stores and connections",
    "storage": "Catalogs, stores and connections",
    "lake": "Catalogs, stores and connections",
    "iceberg": "Tables",
    "write": "Tables",
    "commit": "Running sinks",
    "pipeline": "Running sinks",
    "spark": "Running sinks",
    "keylookup": "Running sinks",
    "model": "Definitions and options",
    "calls": "Calls from Python",
    "reader": "Reading tables and changes",
    "changelog": "Reading tables and changes",
    "maintain": "Maintenance",
    "analyze": "The metastore",
    "metastore": "The metastore",
    "api": "The command line, the page and metrics",
    "cli": "The command line, the page and metrics",
    "web": "The command line, the page and metrics",
    "watch": "The command line, the page and metrics",
    "open_lineage": "The command line, the page and metrics",
    "otel": "The command line, the page and metrics",
    "metrics": "The command line, the page and metrics",
}
NOT_FOR_USERS = {"faults.py"}
"""Errors that tests inject."""


@dataclass(frozen=True, order=True)
class Entry:
    """One error: its class, its text and what to do."""

    kind: str
    area: str
    primary: str
    hint: str


@dataclass
class Found:
    """All errors of the code, and the places whose text could not be read."""

    entries: set[Entry] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Factory:
    """A function that takes the text of an error."""

    kind: str
    place: int
    """Of the parameter `primary`, without self."""
    hint: int = 99
    """Of the parameter `hint`, if it may be given by place."""


def error_bases() -> dict[str, str]:
    """Names of error classes -> the class of `calve.errors` that says what to do."""
    known = {name: name for name, value in vars(errors).items() if _is_error(value)}
    known["Malformed"] = "BadRow"  # in a task, where it becomes one
    definitions = [
        node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases
    ]
    while derived := [
        (d.name, base.id)
        for d in definitions
        for base in d.bases
        if isinstance(base, ast.Name) and base.id in known and d.name not in known
    ]:
        known |= {name: known[base] for name, base in derived}
    return known


@cache
def collect() -> Found:
    """Walk all modules."""
    classes, trees = error_bases(), _trees()
    factories: dict[str, list[Factory]] = {}
    for tree in trees.values():
        for name, factory in _factories(tree, classes):
            factories.setdefault(name, []).append(factory)
    found = Found()
    for path, tree in trees.items():
        area = AREAS.get(path.relative_to(SOURCES).parts[0].removesuffix(".py"), "")
        _Calls(classes, factories, area, str(path.relative_to(SOURCES)), found).visit(tree)
    return found


class _Calls(ast.NodeVisitor):
    """Visits the calls of a module, with the assignments of the functions around them."""

    def __init__(
        self, classes: dict[str, str], factories: dict[str, list[Factory]], area: str, where: str, found: Found
    ) -> None:
        self.classes, self.factories, self.area, self.where, self.found = classes, factories, area, where, found
        self.assigned: list[dict[str, ast.expr]] = []
        self.parameters: list[set[str]] = []
        self.functions: dict[str, ast.FunctionDef] = {}

    def visit_Module(self, node: ast.Module) -> None:
        self.functions = {inner.name: inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
        self._inside(node, set())

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node, {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)})

    def _inside(self, node: ast.Module | ast.FunctionDef, parameters: set[str]) -> None:
        values: dict[str, ast.expr] = {}
        for inner in node.body if isinstance(node, ast.Module) else ast.walk(node):
            match inner:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    values[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    values[name] = value
        self.assigned.append(values)
        self.parameters.append(parameters)
        self.generic_visit(node)
        self.assigned.pop()
        self.parameters.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _called(node.func)
        if name in self.classes:
            self._add(node, Factory(self.classes[name], 0, 1))
        elif name == "at" and isinstance(node.func, ast.Attribute) and _called(node.func.value) in self.classes:
            self._add(node, Factory(self.classes[_called(node.func.value)], 1))
        elif name in self.factories and not _is_logging(node.func):
            # functions of one name may take the text at different places
            chosen = [
                f for f in self.factories[name] if self._texts(_argument(node, "primary", f.place))
            ] or self.factories[name]
            self._add(node, chosen[0])

    def _add(self, node: ast.Call, factory: Factory) -> None:
        primary = _argument(node, "primary", factory.place)
        texts = self._texts(primary)
        if not texts:
            passed_on = isinstance(primary, ast.Name) and primary.id in self.parameters[-1]
            if primary is not None and not passed_on:
                self.found.unread.append(f"{self.where}: {ast.unparse(primary)}")
            return
        hints = self._texts(_argument(node, "hint", factory.hint)) or [""]
        for text in filter(None, texts):
            self.found.entries.add(Entry(factory.kind, self.area, text, " Or: ".join(h for h in hints if h)))

    def _texts(self, value: ast.expr | None) -> list[str]:
        """All texts that an expression can be; none if it is computed."""
        match value:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return ["".join(_part(part) for part in parts)]
            case ast.IfExp(body=body, orelse=orelse):
                return [*self._texts(body), *self._texts(orelse)]
            case ast.BoolOp(values=values):
                return [text for one in values for text in self._texts(one)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first, second = self._texts(left), self._texts(right)
                return [a + b for a in first for b in second]
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                returned = [n.value for n in ast.walk(self.functions[name]) if isinstance(n, ast.Return)]
                return [text for one in returned for text in self._texts(one)]
            case ast.Name(id=name):
                for known in reversed(self.assigned):
                    if name in known and known[name] is not value:
                        return self._texts(known[name])
        return []


def page() -> str:
    """The whole page."""
    entries = sorted(collect().entries)
    parts = [HEAD]
    for kind in _ordered(errors.CalveError):
        mine = [entry for entry in entries if entry.kind == kind]
        if mine:
            described = (getattr(errors, kind).__doc__ or "").partition(".")[0]
            parts.append(f"## {kind}\n\n{described}. {ADVICE[kind]}\n")
            parts.extend(_tables(mine))
    return "\n".join(parts)


def _tables(entries: list[Entry]) -> Iterator[str]:
    areas = sorted({entry.area for entry in entries}, key=[*dict.fromkeys(AREAS.values())].index)
    for area in areas:
        if len(areas) > 1:
            yield f"### {area}\n" if entries[0].kind == "InvalidInput" else f"{area}:\n"
        yield "| error | what to do |\n|---|---|"
        shown: dict[str, list[str]] = {}
        for entry in (e for e in entries if e.area == area):
            shown.setdefault(entry.primary, []).append(entry.hint)
        for primary, hints in sorted(shown.items(), key=lambda item: item[0].lower()):
            known = dict.fromkeys(hint for hint in hints if hint)
            yield f"| {_cell(primary, code=True)} | {' Or: '.join(_cell(hint) for hint in known) or 'as above'} |"
        yield ""


def _cell(text: str, *, code: bool = False) -> str:
    one_line = " ".join(text.split()).replace("|", "\\|")
    if code:
        fence = "``" if "`" in one_line else "`"
        return f"{fence}{one_line}{fence}"
    return re.sub(r"([<*_])", r"\\\1", one_line)


def _part(part: ast.expr) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value):
            return _placeholder(value)
    return "…"


def _placeholder(value: ast.expr) -> str:
    match value:
        case ast.Name(id=name):
            return f"<{name.strip('_')}>"
        case ast.Attribute(value=inner, attr="value" | "name" | "text" | "word" | "id" as attr):
            shown = _placeholder(inner)
            return f"<{attr}>" if shown == "<self>" else shown
        case ast.Attribute(attr=attr):
            return f"<{attr.strip('_')}>"
    return "…"


def _ordered(cls: type[errors.CalveError]) -> Iterator[str]:
    """The classes of `calve.errors`, as its tree shows them."""
    yield cls.__name__
    children = [c for c in cls.__subclasses__() if c.__module__ == errors.__name__]
    for child in sorted(children, key=lambda c: list(vars(errors)).index(c.__name__)):
        yield from _ordered(child)


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = (path for path in sorted(SOURCES.rglob("*.py")) if path.name not in NOT_FOR_USERS)
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _factories(tree: ast.Module, classes: dict[str, str]) -> Iterator[tuple[str, Factory]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        names = [a.arg for a in node.args.args if a.arg not in {"self", "cls"}]
        if "primary" in names and node.name not in {"build", "at"}:
            hint = names.index("hint") if "hint" in names else Factory.hint
            yield node.name, Factory(_kind(node, classes), names.index("primary"), hint)


def _kind(node: ast.FunctionDef, classes: dict[str, str]) -> str:
    """The class of the errors that a function makes: as it is annotated, else as it is constructed inside."""
    annotated = re.findall(r"\w+", ast.unparse(node.returns)) if node.returns else []
    inside = [_called(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    known = [classes[name] for name in (*annotated, *inside) if name in classes and classes[name] != "CalveError"]
    return known[0] if known else "TransientError"


def _argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    given = next((k.value for k in call.keywords if k.arg == name), None)
    return given or (call.args[place] if len(call.args) > place else None)


def _called(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
    return ""


def _is_logging(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and _called(func.value) in {"_log", "log", "logger"}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.CalveError)


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
