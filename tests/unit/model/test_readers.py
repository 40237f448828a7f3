"""READERS: the format version that all of them read, from the one table of engines."""

import pytest

from calve.errors import InvalidInput
from calve.model.readers import READERS, Encoding, parse_readers
from calve.model.spec import Deletes, format_for


def chosen(
    text: str, deletes: Deletes = Deletes.POSITION, asked: int | None = None, *, append: bool = False
) -> int | None:
    return format_for(parse_readers(text), deletes, asked, append=append)


def test_readers_determine_the_format_version_where_they_read_only_one() -> None:
    assert chosen("athena, spark") == 2
    assert chosen("databricks, Snowflake") == 3
    assert chosen("trino 476, duckdb") == 2
    assert chosen("trino 480, databricks") == 3


def test_readers_of_both_leave_the_version_to_the_table_or_the_user() -> None:
    assert chosen("spark, duckdb, trino") is None
    assert chosen("spark, duckdb", asked=3) == 3
    assert chosen("spark", Deletes.VECTOR) == 3
    assert format_for((), Deletes.POSITION, 3, append=False) == 3


@pytest.mark.parametrize(
    ("text", "deletes", "asked", "reason"),
    [
        ("databricks, athena", Deletes.POSITION, None, "athena does not read deletion vectors (format version 3)"),
        ("athena", Deletes.POSITION, 3, "athena does not read deletion vectors"),
        ("databricks", Deletes.POSITION, 2, "databricks is not known to read position deletes (format version 2)"),
        ("pyiceberg, spark", Deletes.EQUALITY, None, "pyiceberg does not read equality deletes"),
        ("duckdb 1.4.2", Deletes.VECTOR, None, "duckdb 1.4.2 is older than 1.5, which reads deletion vectors"),
    ],
)
def test_a_table_that_a_reader_cannot_read_is_refused_with_the_reason(
    text: str, deletes: Deletes, asked: int | None, reason: str
) -> None:
    with pytest.raises(InvalidInput, match="could not be read by all of them") as caught:
        chosen(text, deletes, asked)
    assert reason in caught.value.detail


def test_a_table_that_keeps_every_row_is_read_by_those_who_read_no_deletes() -> None:
    assert chosen("databricks, athena", append=True) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparc", 'unknown reader "sparc"'),
        ("", 'unknown reader ""'),
        ("trino x", 'reader "trino" has an invalid version'),
        ("spark, Spark", 'reader "spark" is named twice'),
    ],
)
def test_readers_that_cannot_be_meant_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_readers(text)
    assert caught.value.primary == message


def test_every_engine_of_the_table_reads_something_and_has_a_source_for_what_was_not_tested() -> None:
    assert [one.name for one in READERS] == sorted({one.name for one in READERS})
    for one in READERS:
        supports = [one.support(encoding) for encoding in Encoding]
        assert any(support.reads for support in supports)
        assert all(support.source for support in supports if support.reads is False)
