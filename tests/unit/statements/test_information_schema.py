"""INFORMATION_SCHEMA: rows out of the copy of a home folder equal those of the metastore, in every format."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from calve.cli.options import Format
from calve.cli.sql import show_outcome
from calve.definitions.workplace import Workplace, workplace
from calve.errors import TransientError
from calve.metastore import information_units
from calve.metastore.config import MetastoreConfig
from calve.metastore.information import FileLines, current_lines, last_copy
from calve.metastore.information_units import copy_lines
from calve.metastore.statistics import ColumnStatistics, Statistic, StatisticKind, StatisticsType
from calve.metastore.tables import DEFAULT_SEGMENT, MetadataType, TableUnit, open_tables
from calve.sql.parser import parse
from calve.statements import duckdb_query
from calve.statements.answers import PlainRows, QueryAnswer
from calve.statements.execute import execute
from calve.statements.information_schema import lines_of
from tests.support.answers import rows_of
from tests.unit.metastore.sample import GENERAL, SEGMENT, part, segment

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "struct", "fields": [{"name": "x", "type": "decimal(5,2)"}]}},
        {"name": "l", "type": {"type": "array", "elementType": "integer"}},
    ],
}
NATION = replace(
    GENERAL,
    schema=json.dumps(SCHEMA),
    columns_statistics={"id": ColumnStatistics(StatisticsType.WHOLE, 1, 9, -3, 12)},
    metadata_statistics=(
        Statistic(StatisticKind.ROWS, 10),
        Statistic(StatisticKind.BYTES, 2**40),
        Statistic(StatisticKind.LEVEL, "ROW_GROUP"),
    ),
    last_modified_time=1_700_000_000_123,
)
ODD = replace(GENERAL, table_name='it\'s, "odd" \\ é\n\u2028', schema=None, location=None, last_modified_time=None)
PARTITION = replace(
    part(MetadataType.PARTITION, "p1"), column="region", partition_values=("eu", "north"), last_modified_time=0
)

QUERIES = (
    "SELECT * FROM INFORMATION_SCHEMA.TABLES",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM INFORMATION_SCHEMA.PARTITIONS",
    "SELECT TABLE_NAME, NUM_ROWS FROM INFORMATION_SCHEMA.TABLES WHERE NUM_ROWS IS NOT NULL",
    "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES ORDER BY LAST_MODIFIED_TIME DESC NULLS LAST, 1 LIMIT 1",
    "SELECT count(*), sum(SIZE_BYTES), avg(NUM_ROWS), max(LAST_MODIFIED_TIME) FROM INFORMATION_SCHEMA.TABLES",
    "SELECT NUM_VALUES n FROM INFORMATION_SCHEMA.TABLES t JOIN INFORMATION_SCHEMA.COLUMNS c USING (TABLE_NAME)",
    "WITH x AS (SELECT * FROM INFORMATION_SCHEMA.COLUMNS) SELECT DATA_TYPE, count(*) n FROM x GROUP BY 1 ORDER BY 1",
    "SELECT NUM_ROWS / 3 AS third, NUM_ROWS * 1.50 AS more, NUM_ROWS > 5 AS much FROM INFORMATION_SCHEMA.TABLES",
    "SELECT list(COLUMN_NAME), {'n': count(*)}, MAP {1: 'x'} FROM INFORMATION_SCHEMA.COLUMNS",
    "SELECT LAST_MODIFIED_TIME::DATE d, epoch_ms(LAST_MODIFIED_TIME) ms FROM INFORMATION_SCHEMA.TABLES",
    "SELECT 1::HUGEINT h, 1.5::FLOAT f, 'nan'::DOUBLE n, 0.10::DECIMAL(4,2) d, true b, 'x'::BLOB x, INTERVAL 1 DAY i",
    "SELECT '12000-01-01'::TIMESTAMPTZ far, 'infinity'::TIMESTAMPTZ i, '9999-12-31'::TIMESTAMPTZ late, NULL AS nothing",
    "SELECT '' AS empty, 'a,\"b' AS quoted, 17::UBIGINT u, 3::TINYINT t",
    "SELECT * FROM range(10001)",
)


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    made = workplace(tmp_path / "home", no_spark, {})
    write(made, NATION, ODD, SEGMENT, PARTITION)
    return made


def write(place: Workplace, *units: TableUnit) -> None:
    with place.metastore() as metastore:
        open_tables(metastore).modify().overwrite(*units).execute()


def answer(place: Workplace, text: str) -> QueryAnswer:
    (statement,) = parse(text)
    found = execute(place, statement)
    assert isinstance(found, QueryAnswer)
    return found


def printed(place: Workplace, text: str, output: Format, monkeypatch: pytest.MonkeyPatch) -> str:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    show_outcome(Console(file=shown, width=200), answer(place, text), output)
    return shown.getvalue()


@pytest.mark.parametrize("text", QUERIES)
def test_results_with_and_without_arrow_are_printed_alike(
    place: Workplace, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for output in Format:
        with monkeypatch.context() as patched:
            plain = printed(place, text, output, patched)
            patched.setattr(duckdb_query, "_plain_rows", lambda _found: None)
            assert printed(place, text, output, patched) == plain
        assert plain.strip()


def test_only_results_that_need_arrow_get_it(place: Workplace) -> None:
    needs_arrow = {text for text in QUERIES if not isinstance(answer(place, text).found, PlainRows)}
    marks = ("list(", "::DATE", "::BLOB", "'infinity'", "10001")
    assert needs_arrow == {text for text in QUERIES if any(mark in text for mark in marks)}


def test_the_copy_shows_what_the_metastore_has(place: Workplace) -> None:
    config = MetastoreConfig.load(place.home, {})
    assert current_lines(place.home, config) is None
    fresh = lines_of(place, ["TABLES", "COLUMNS", "PARTITIONS"])
    assert [line[2] for line in fresh["TABLES"]] == [ODD.table_name, "nation"]
    assert [line[3:6] for line in fresh["COLUMNS"]] == [
        ("id", 1, "bigint"),
        ("at.x", 2, "decimal(5,2)"),
        ("l", 3, "array<int>"),
    ]
    assert [line[7] for line in fresh["PARTITIONS"]] == [None, "eu, north"]
    copied = current_lines(place.home, config)
    assert copied is not None
    assert {name: copied.of(name) for name in fresh} == fresh


def test_a_change_of_the_metastore_is_seen_at_once_and_only_its_files_are_read(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines_of(place, ["TABLES"])
    read: list[str | None] = []
    lines = information_units._lines

    def spy(units: list[TableUnit]) -> FileLines:
        read.extend(unit.table_name for unit in units)
        return lines(units)

    monkeypatch.setattr(information_units, "_lines", spy)
    write(place, replace(NATION, table_type="CSV"))
    text = "SELECT TABLE_SOURCE FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'nation'"
    assert rows_of(answer(place, text).found) == [("CSV",)]
    assert rows_of(answer(place, text).found) == [("CSV",)]
    assert read == ["nation"]
    with place.metastore() as metastore:
        open_tables(metastore).purge()
    assert rows_of(answer(place, "SELECT * FROM INFORMATION_SCHEMA.PARTITIONS").found) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 0}', b'{"format": 1, "metadata": "m", "files": []}'])
def test_a_damaged_copy_is_not_used(place: Workplace, damage: bytes) -> None:
    before = lines_of(place, ["TABLES"])
    (place.home / "information.copy").write_bytes(damage)
    assert last_copy(place.home) is None
    assert lines_of(place, ["TABLES"]) == before
    assert last_copy(place.home) is not None


def test_a_large_metastore_is_not_copied(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information_units, "MOST_UNITS", 4)
    write(place, segment("a"))
    assert len(lines_of(place, ["PARTITIONS"])["PARTITIONS"]) == 3
    assert last_copy(place.home) is None
    assert DEFAULT_SEGMENT in {line[3] for line in lines_of(place, ["PARTITIONS"])["PARTITIONS"]}


def test_a_metastore_elsewhere_is_asked_itself(tmp_path: Path) -> None:
    elsewhere = {"CALVE_METASTORE__CATALOG__TYPE": "sql", "CALVE_METASTORE__CATALOG__URI": f"sqlite:///{tmp_path}/c.db"}
    place = workplace(tmp_path / "home", no_spark, elsewhere)
    write(place, NATION)
    for source in ("PARQUET", "CSV"):
        write(place, replace(NATION, table_type=source))
        assert [line[4] for line in lines_of(place, ["TABLES"])["TABLES"]] == [source]


def test_a_new_home_has_no_tables_and_gets_no_metastore(tmp_path: Path) -> None:
    place = workplace(tmp_path / "home", no_spark, {})
    assert lines_of(place, ["TABLES", "COLUMNS"]) == {"TABLES": [], "COLUMNS": []}
    assert not (tmp_path / "home" / "metastore").exists()


def test_a_catalog_that_is_no_database_is_reported(place: Workplace) -> None:
    (place.home / "metastore" / "catalog.db").write_bytes(b"nothing of SQLite" * 100)
    with pytest.raises(TransientError, match="the metastore cannot be reached"):
        lines_of(place, ["TABLES"])


def test_who_changes_the_metastore_renews_the_copy(place: Workplace) -> None:
    with place.metastore() as metastore:
        copy_lines(open_tables(metastore), place.home)
    assert current_lines(place.home, MetastoreConfig.load(place.home, {})) is not None
