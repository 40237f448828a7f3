"""Whatever is written: statements, or an error that points at a place. Never anything else, and never a secret."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calve.sql.errors import SqlSyntaxError
from calve.sql.parser import parse, split_complete
from calve.sql.statements import AlterSecret, CreateSecret, Statement
from tests.support.golden import blocks, cases_of
from tests.unit.sql.strategies import KEYWORDS

GOLDEN = ["\n".join(block.statement) for path in cases_of("sql") for block in blocks(path)]
PIECES = [
    *(
        "CREATE",
        "ALTER",
        "DROP",
        "SHOW",
        "EXPLAIN",
        "VALIDATE",
        "ANALYZE",
        "SELECT",
        "WITH",
        "SECRET",
        "SINK",
        "SOURCE",
        "VIEW",
    ),
    *(
        "FROM",
        "TO",
        "INTO",
        "ICEBERG",
        "AS",
        "IF",
        "NOT",
        "NULL",
        "INT",
        "STRUCT",
        "ARRAY",
        "OR",
        "REPLACE",
        "UPSERT",
        "JSON",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "<",
        ">",
        ",",
        ";",
        ".",
        "=",
        "-",
        "'",
        '"',
        "`",
        "''",
        '""',
        "--",
        "/*",
        "*/",
        "\\",
        "\n",
        "|",
    ),
    *("'text'", '"name"', "`tick`", "5", "1.5", "1e9", "5m", "<hidden>", "ü", "\u200b", "\ufeff", "\x00", "\u2018"),
    *KEYWORDS,
]


def outcome(text: str) -> tuple[Statement, ...] | SqlSyntaxError:
    try:
        return parse(text)
    except SqlSyntaxError as error:
        return error


def read(text: str) -> None:
    """Statements that print and read as themselves, or an error with a place in the text."""
    complete, rest = split_complete(text)
    assert all(piece in text for piece in (*complete, rest))
    found = outcome(text)
    if not isinstance(found, SqlSyntaxError):
        assert all(parse(statement.to_sql(reveal=True)) == (statement,) for statement in found)
        return
    assert found.primary
    assert found.position is not None
    assert 0 <= found.position.offset <= len(text)
    shown, carets = found.detail.split("\n")
    assert shown.startswith(f"line {found.position.line}: ")
    assert set(carets) <= {" ", "^"}


@settings(max_examples=200, deadline=None)
@given(st.text())
@example("\x00")
@example("SELECT")
@example("CREATE VIEW v AS SELECT 1 -- \\\n ; SHOW SINKS")
def test_any_text_is_read_or_refused(text: str) -> None:
    read(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25), st.sampled_from([" ", ""]))
def test_any_words_are_read_or_refused(pieces: list[str], space: str) -> None:
    read(space.join(pieces))


@pytest.mark.parametrize("seed", range(3))
def test_statements_with_mistakes_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for text in GOLDEN:
        low, high = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        other = chance.choice(GOLDEN)
        cut = chance.randrange(len(other) + 1)
        read(text[:low] + text[high:])
        read(text[:low] + chance.choice(PIECES) + text[low:])
        read(text[:low] + other[cut:])
        read(text[:high])


WITH_SECRETS = [
    "CREATE SECRET s AS 'hunter2'",
    "ALTER SECRET IF EXISTS s AS 'hunter2'",
    "CREATE CONNECTION c TO KAFKA ( BROKER = 'b' , SASL PASSWORD = 'hunter2' , X = 1 )",
    'CREATE CONNECTION c TO AWS ( SECRET ACCESS KEY "hunter2" ) WITH ( VALIDATE = false )',
    "ALTER CONNECTION c SET ( TOKEN = 'hunter2' , URI = 'u' )",
    "SHOW SINKS LIKE 'a' ; CREATE SECRET s AS 'hunter2' ; SHOW SINKS",
    "CREATE CONNECTION c TO AWS ( REGION = 'r' ,\n SECRET ACCESS KEY = 'hunter2' ,\n ENDPOINT = 'e' )",
]


@pytest.mark.parametrize("text", WITH_SECRETS)
def test_errors_around_a_secret_do_not_show_it(text: str) -> None:
    words = text.split(" ")
    for place in range(len(words) + 1):
        for piece in [*PIECES, None]:
            if piece is None and "hunter2" in "".join(words[place : place + 1]):
                continue
            changed = words[:place] + ([] if piece is None else [piece]) + words[place + (piece is None) :]
            _refuse_silently(" ".join(changed))


def _refuse_silently(text: str) -> None:
    found = outcome(text)
    if isinstance(found, SqlSyntaxError):
        assert "hunter2" not in str(found), text
    else:
        secrets = [statement for statement in found if isinstance(statement, CreateSecret | AlterSecret)]
        assert "hunter2" not in "".join(repr(statement) + statement.to_sql() for statement in secrets), text
