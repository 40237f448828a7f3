"""Golden files that a person can read.

    # what the block shows
    the statement, or several
    ----
    the expected result

A blank line ends a block. `REWRITE=1 pytest ...` writes the current results; review the difference.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"
CASES = Path(__file__).parents[1] / "cases"


@dataclass(frozen=True)
class Block:
    line: int
    comment: list[str]
    statement: list[str]
    expected: list[str]

    def text(self, answer: list[str]) -> str:
        return "\n".join([*self.comment, *self.statement, SEPARATOR, *answer])


def cases_of(folder: str) -> list[Path]:
    return sorted((CASES / folder).glob("*.txt"))


def blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text(encoding="utf-8").split("\n")
    at = 0
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        start = at
        while lines[at].startswith("#"):
            at += 1
        middle = lines.index(SEPARATOR, at)
        end = lines.index("", middle)
        yield Block(start + 1, lines[start:at], lines[at:middle], lines[middle + 1 : end])
        at = end


def check(path: Path, answer: Callable[[str], list[str]]) -> None:
    """Check every block of a file against its expected result."""
    found = list(blocks(path))
    actual = "\n\n".join(block.text(answer("\n".join(block.statement))) for block in found) + "\n"
    if os.environ.get("REWRITE"):
        path.write_text(actual, encoding="utf-8")
    assert actual == "\n\n".join(block.text(block.expected) for block in found) + "\n"


def error_lines(error: Exception) -> list[str]:
    first, *rest = str(error).split("\n")
    return [f"error: {first}", *rest]
