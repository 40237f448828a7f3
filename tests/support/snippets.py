"""Snippets of the documentation: blocks of code with their language, fenced or indented by four spaces."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.readers import ROOT

SQL = (
    *("CREATE", "ALTER", "DROP", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "VALIDATE", "ANALYZE", "SELECT"),
    *("OPTIMIZE", "EXPIRE", "REMOVE", "REWRITE", "CONVERT"),
)
SHELL = ("calve", "/opt/calve/bin/calve", "pip", "make", "python3", "export", "spark-submit")
_FENCE = re.compile(r"^( *)(`{3,})([a-z]*)$")
RUN = "<!-- run -->"


@dataclass(frozen=True)
class Snippet:
    """One block."""

    page: str
    line: int
    language: str
    text: str
    run: bool
    """Whether a test executes it: `<!-- run -->` stands above it."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """What is written by people, and what scripts make."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets() -> list[Snippet]:
    """All of them."""
    return [snippet for page in pages() for snippet in snippets_of(page.relative_to(ROOT).as_posix(), page.read_text())]


def snippets_of(name: str, text: str) -> Iterator[Snippet]:
    """The blocks of one page."""
    lines = text.splitlines()
    at, previous = 0, ""
    while at < len(lines):
        start = at
        if fence := _FENCE.match(lines[at]):
            indent, ticks, language = fence.groups()
            at += 1
            while at < len(lines) and lines[at] != indent + ticks:
                at += 1
            inside = "\n".join(line.removeprefix(indent) for line in lines[start + 1 : at])
            yield Snippet(name, start + 1, language, inside, previous == RUN)
        elif lines[at].startswith("    ") and not previous and not in_list(lines, at):
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or not lines[at + 1]):
                at += 1
            inside = "\n".join(line.removeprefix("    ") for line in lines[start : at + 1]).strip("\n")
            yield Snippet(name, start + 1, guessed(inside), inside, run=False)
        previous = lines[at].strip() if at < len(lines) else ""
        at += 1


def in_list(lines: list[str], at: int) -> bool:
    """Whether an indented line continues an item of a list: then eight spaces make it code."""
    for line in reversed(lines[:at]):
        if line.strip() and not line.startswith("  "):
            return bool(re.match(r"([-*]|\d+\.) ", line)) and not lines[at].startswith("        ")
    return False


def guessed(text: str) -> str:
    """The language of an indented block; empty if it is none of those that occur."""
    words = [line.split()[0] for line in text.splitlines() if line.strip() and not line.strip().startswith(("--", "#"))]
    first = words[0] if words else ""
    if first in SQL:
        return "sql"
    if first in SHELL:
        return "sh"
    if first.startswith(("calve.", "lake")):
        return "python"
    if first.startswith("{"):
        return "json"
    drawn = any(char in text for char in "─►│")
    output = text.startswith("error:")
    listing = all(re.search(r"\S {2,}\S|^\S+$|^<", line) for line in text.splitlines() if line.strip())
    return "text" if drawn or output or listing else ""


def shell_commands(text: str) -> Iterator[str]:
    """Commands with the heredocs that follow them: continued lines joined, comments left out."""
    lines = iter(re.sub(r"\\\n\s*", "", text).splitlines())
    for line in lines:
        command = re.sub(r"(^|\s)#.*$", "", line).strip()
        if heredoc := re.search(r"<<'(\w+)'", command):
            inside = iter(lambda: next(lines), heredoc[1])
            command = "\n".join([command, *inside, heredoc[1]])
        if command:
            yield command


def shell_lines(text: str) -> Iterator[str]:
    """Commands without heredocs; those of a pipe or a list apart."""
    for command in shell_commands(text):
        line = command.partition("\n")[0]
        yield from (part.strip() for part in re.split(r"\s+(?:&&|\|)\s+", line) if part.strip())


def statements(text: str) -> Iterator[str]:
    """Statements of a block without comments, as they are separated by semicolons at the ends of words."""
    plain = re.sub(r"--[^\n]*", "", text)
    yield from (part.strip() for part in plain.split(";") if part.strip())


def run_python(text: str, names: dict[str, Any]) -> list[Any]:
    """Run a block; the values of those of its statements that are expressions."""
    found = []
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Expr):
            found.append(eval(compile(ast.Expression(statement.value), "page", "eval"), names))  # noqa: S307 - our own
        else:
            exec(compile(ast.Module([statement], []), "page", "exec"), names)  # noqa: S102 - the same
    return found
