"""Statements and what becomes of them, as files that a person can read: tests/cases/sql/*.txt.

    # what the block shows
    the statement, or several
    ----
    its canonical text, or the error

A blank line ends a block. `REWRITE=1 pytest tests/unit/sql` writes what the parser gives now; read the difference.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from calve.sql.errors import SqlSyntaxError
from calve.sql.options import HIDDEN
from calve.sql.parser import parse
from calve.sql.statements import Statement

CASES = sorted((Path(__file__).parents[2] / "cases" / "sql").glob("*.txt"))
SEPARATOR = "----"


@dataclass(frozen=True)
class Block:
    line: int
    comment: list[str]
    statement: list[str]
    expected: list[str]

    def text(self, answer: list[str]) -> str:
        return "\n".join([*self.comment, *self.statement, SEPARATOR, *answer])


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


def answer(text: str) -> list[str]:
    try:
        statements = parse(text)
    except SqlSyntaxError as error:
        return ["error: " + str(error).split("\n")[0], *str(error).split("\n")[1:]]
    for statement in statements:
        check_round_trip(statement)
    lines = [f"{statement.to_sql()};" for statement in statements] or ["(nothing)"]
    return "\n".join(lines).split("\n")


def check_round_trip(statement: Statement) -> None:
    for text in (statement.to_sql(reveal=True), statement.pretty(reveal=True)):
        assert parse(text) == (statement,)
        assert parse(text)[0].to_sql(reveal=True) == statement.to_sql(reveal=True)
    hidden = statement.to_sql() != statement.to_sql(reveal=True)
    assert (HIDDEN in statement.to_sql()) == hidden
    if hidden:
        with pytest.raises(SqlSyntaxError, match="hidden in this text"):
            parse(statement.to_sql())


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_statements_become_what_the_file_says(path: Path) -> None:
    found = list(blocks(path))
    actual = "\n\n".join(block.text(answer("\n".join(block.statement))) for block in found) + "\n"
    if os.environ.get("REWRITE"):
        path.write_text(actual, encoding="utf-8")
    assert actual == "\n\n".join(block.text(block.expected) for block in found) + "\n"


def test_the_files_cover_150_statements_and_80_errors() -> None:
    expected = [block.expected[0] for path in CASES for block in blocks(path)]
    errors = sum(line.startswith("error: ") for line in expected)
    assert len(expected) - errors >= 150
    assert errors >= 80


def test_every_block_is_there_once() -> None:
    statements = [tuple(block.statement) for path in CASES for block in blocks(path)]
    assert len(statements) == len(set(statements))
