"""Every statement prints as text that reads as the same statement."""

from hypothesis import given, settings
from hypothesis import strategies as st

from calve.sql.parser import parse, split_complete
from calve.sql.statements import Statement
from tests.unit.sql.strategies import any_statement


@settings(max_examples=150, deadline=None)
@given(any_statement)
def test_the_canonical_text_reads_as_the_statement(statement: Statement) -> None:
    text = statement.to_sql(reveal=True)
    found = parse(f"-- before\n {text} ; -- after")
    assert found == (statement,)
    assert repr(found[0]) == repr(statement)  # tells true from 1, which are equal to each other
    assert parse(statement.pretty(reveal=True)) == (statement,)
    assert found[0].where is not None
    assert (found[0].where.text, found[0].where.position.line) == (text, 2)


@settings(max_examples=25, deadline=None)
@given(st.lists(any_statement, max_size=3))
def test_a_script_reads_as_its_statements(script: list[Statement]) -> None:
    text = "".join(f"{statement.to_sql(reveal=True)};\n" for statement in script)
    assert parse(text) == tuple(script)
    complete, rest = split_complete(text + "SHOW SINKS")
    assert [parse(piece) for piece in complete] == [(statement,) for statement in script]
    assert rest.strip() == "SHOW SINKS"
