"""Statements and their canonical texts, or errors, as files: tests/cases/sql/*.txt (see `tests.support.golden`)."""

from pathlib import Path

import pytest

from calve.sql.errors import SqlSyntaxError
from calve.sql.options import HIDDEN
from calve.sql.parser import parse
from calve.sql.statements import Statement
from tests.support.golden import blocks, cases_of, check, error_lines

CASES = cases_of("sql")


def answer(text: str) -> list[str]:
    try:
        statements = parse(text)
    except SqlSyntaxError as error:
        return error_lines(error)
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
    check(path, answer)


def test_the_files_cover_150_statements_and_80_errors() -> None:
    expected = [block.expected[0] for path in CASES for block in blocks(path)]
    errors = sum(line.startswith("error: ") for line in expected)
    assert len(expected) - errors >= 150
    assert errors >= 80


def test_every_block_is_there_once() -> None:
    statements = [tuple(block.statement) for path in CASES for block in blocks(path)]
    assert len(statements) == len(set(statements))
