"""SELECT over tables in DuckDB, without Spark; SHOW SNAPSHOTS and SHOW COLUMNS of the same tables."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pytest

from calve.definitions.workplace import Workplace, workplace
from calve.errors import CalveError, InvalidInput, TransientError
from calve.reader.local import LocalRead
from calve.sql.parser import parse
from calve.statements.answers import QueryAnswer, RowsAnswer
from calve.statements.execute import execute
from tests.support.answers import names_of, rows_of
from tests.unit.iceberg.sample import Sample

DEFINED = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE things (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '/in/things', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
"""
SINK = "CREATE SINK orders_sink FROM things TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders WITH (RESUME = true)"


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path)
    table.commit({1: "a", 2: "b", 3: "c"})
    table.clock.now += 60_000
    table.commit({2: "bb", 4: "d"}, [1, 2])
    yield table
    table.close()


@pytest.fixture
def place(sample: Sample) -> Workplace:
    made = workplace(sample.home, no_spark, {})
    for statement in parse(DEFINED):
        execute(made, statement)
    return made


def answer(place: Workplace, text: str) -> QueryAnswer:
    (statement,) = parse(text)
    found = execute(place, statement)
    assert isinstance(found, QueryAnswer)
    return found


def rows(place: Workplace, text: str) -> list[tuple[Any, ...]]:
    return rows_of(answer(place, text).found)


def refused(place: Workplace, text: str) -> CalveError:
    with pytest.raises(CalveError) as error:
        rows(place, text)
    return error.value


def listed(place: Workplace, text: str) -> RowsAnswer:
    (statement,) = parse(text)
    found = execute(place, statement)
    assert isinstance(found, RowsAnswer)
    return found


def test_deleted_rows_are_not_there_and_names_may_have_two_or_three_parts(place: Workplace) -> None:
    wanted = [(2, "bb"), (3, "c"), (4, "d")]
    assert rows(place, "SELECT id, v FROM shop.orders ORDER BY id") == wanted
    assert rows(place, "SELECT id, v FROM lake.shop.orders ORDER BY id") == wanted
    assert rows(place, 'SELECT o.id, `o`.v FROM "lake"."shop"."orders" o ORDER BY o.id') == wanted
    assert rows(place, "SELECT count(*) FROM shop.orders") == [(3,)]


def test_two_tables_are_joined_and_expressions_and_ctes_work(place: Workplace, sample: Sample) -> None:
    del sample
    joined = "SELECT a.id, b.v FROM shop.orders a JOIN lake.shop.orders b ON a.id = b.id WHERE b.v > 'bz' ORDER BY 1"
    assert rows(place, joined) == [(3, "c"), (4, "d")]
    with_cte = "WITH big AS (SELECT * FROM shop.orders WHERE id >= 3) SELECT sum(id), max(v) FROM big"
    assert rows(place, with_cte) == [(Decimal(7), "d")]
    assert rows(place, "SELECT 1 AS one, 'x''y' AS text, NULL AS nothing") == [(1, "x'y", None)]


def test_only_the_columns_of_the_query_are_read_and_conditions_filter_exactly(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    select = LocalRead.select

    def spy(self: LocalRead, columns: list[str]) -> LocalRead:
        asked.append(list(columns))
        return select(self, columns)

    monkeypatch.setattr(LocalRead, "select", spy)
    assert rows(place, "SELECT v FROM shop.orders WHERE v IN ('c', 'd') ORDER BY v") == [("c",), ("d",)]
    assert asked == [["v"]]
    asked.clear()
    assert rows(place, "SELECT count(*) FROM shop.orders WHERE id > 2 AND id <= 4 OR id IS NULL") == [(2,)]
    assert asked == [["id"]]
    assert rows(place, "SELECT v FROM shop.orders WHERE id = 4") == [("d",)]


def test_a_sink_is_a_name_of_its_table(place: Workplace) -> None:
    (statement,) = parse(SINK)
    execute(place, statement)
    assert rows(place, "SELECT id FROM orders_sink ORDER BY id") == [(2,), (3,), (4,)]
    assert [row[0] for row in listed(place, "SHOW COLUMNS FROM orders_sink").rows] == ["id", "v"]


def test_wrong_names_say_what_there_is(place: Workplace) -> None:
    assert refused(place, "SELECT * FROM things").primary == 'source "things" is not a table'
    assert "there is no table or sink" in refused(place, "SELECT * FROM order_sink").primary
    missing = refused(place, "SELECT * FROM shop.order")
    assert 'table "shop.order" does not exist' in missing.primary
    assert "shop.orders" in missing.hint
    assert "INFORMATION_SCHEMA has no table" in refused(place, "SELECT * FROM INFORMATION_SCHEMA.FILES").primary


@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM shop.orders WHERE nothing = 1", "SELECT FROM", "SELECT * FROM read_csv('/etc/passwd')"],
)
def test_what_duckdb_refuses_is_invalid_input(place: Workplace, text: str) -> None:
    error = refused(place, text)
    assert isinstance(error, InvalidInput)
    assert error.primary == "DuckDB refuses the query"


def test_a_lost_file_is_reported_as_by_a_read(place: Workplace, sample: Sample) -> None:
    for file in sample.table.inspect.files().to_pylist():
        Path(file["file_path"].removeprefix("file://")).unlink()
    error = refused(place, "SELECT sum(id) FROM shop.orders")
    assert isinstance(error, TransientError)
    assert "could not be read" in error.primary


def test_information_schema_is_there_without_spark(place: Workplace) -> None:
    assert rows(place, "SELECT TABLE_NAME, NUM_ROWS FROM INFORMATION_SCHEMA.TABLES") == []
    found = answer(place, "SELECT * FROM information_schema.columns").found
    assert names_of(found)[:4] == ["TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "COLUMN_NAME"]


def test_rows_are_counted_without_columns(place: Workplace) -> None:
    assert rows(place, "SELECT 1 FROM shop.orders") == [(1,), (1,), (1,)]


def test_snapshots_are_listed_with_times_operations_rows_and_frontiers(place: Workplace, sample: Sample) -> None:
    found = listed(place, "SHOW SNAPSHOTS FROM shop.orders")
    assert found.headings[:2] == ("snapshot", "committed (UTC)")
    by_name = [dict(zip(found.headings, row, strict=True)) for row in found.rows]
    assert [row["frontier"] for row in by_name] == ["20", "10"]
    assert [row["rows added"] for row in by_name] == ["2", "3"]
    assert [row["deletes"] for row in by_name] == ["2", "0"]
    assert ["main" in row["ref"] for row in by_name] == [True, False]
    head = sample.table.refresh().current_snapshot()
    assert head is not None
    assert by_name[0]["snapshot"] == str(head.snapshot_id)
    committed = dt.datetime.fromisoformat(by_name[0]["committed (UTC)"]).replace(tzinfo=dt.UTC)
    assert int(committed.timestamp() * 1000) == head.timestamp_ms


def test_columns_of_tables_and_sources_are_listed(place: Workplace) -> None:
    assert listed(place, "DESCRIBE shop.orders").rows == (
        ("id", "BIGINT", "no", "key", ""),
        ("v", "STRING", "yes", "", ""),
    )
    assert [row[:4] for row in listed(place, "SHOW COLUMNS FROM things").rows] == [
        ("id", "BIGINT", "no", "key"),
        ("v", "STRING", "yes", ""),
    ]


def test_a_query_reads_tables_as_of_times_snapshots_and_refs(place: Workplace) -> None:
    snapshots = listed(place, "SHOW SNAPSHOTS FROM shop.orders").rows
    newest, oldest = snapshots[0], snapshots[-1]
    first = [(1, "a"), (2, "b"), (3, "c")]
    for moment in (
        f"FOR VERSION AS OF {oldest[0]}",
        f"for system_version as of {oldest[0]}",
        f"AT (VERSION => {oldest[0]})",
        f"FOR TIMESTAMP AS OF '{oldest[1]}Z'",
        f"FOR SYSTEM_TIME AS OF TIMESTAMP '{oldest[1]}Z'",
        f"AT (TIMESTAMP => '{oldest[1]}Z')",
    ):
        assert rows(place, f"SELECT orders.id, v FROM shop.orders {moment} ORDER BY id") == first
        assert rows(place, f"SELECT o.id, o.v FROM lake.shop.orders {moment} AS o WHERE o.id < 9 ORDER BY 1") == first
    changed = (
        "SELECT now.id, old.v AS before, now.v FROM shop.orders now "
        f"JOIN shop.orders FOR VERSION AS OF {oldest[0]} old USING (id) WHERE now.v <> old.v"
    )
    assert rows(place, changed) == [(2, "b", "bb")]
    assert rows(place, "SELECT count(*) FROM shop.orders FOR VERSION AS OF 'main'") == [(3,)]
    assert rows(place, f"SELECT count(*) FROM shop.orders FOR VERSION AS OF {newest[0]}") == [(3,)]


def test_a_moment_that_the_table_does_not_have_is_refused(place: Workplace) -> None:
    assert "has no snapshot 17" in refused(place, "SELECT * FROM shop.orders FOR VERSION AS OF 17").primary
    assert "had no snapshot at" in refused(place, "SELECT * FROM shop.orders FOR TIMESTAMP AS OF '1999-01-01'").primary
    assert "takes a time in quotes" in refused(place, "SELECT * FROM shop.orders FOR TIMESTAMP AS OF 17").primary
    assert "takes the id" in refused(place, "SELECT * FROM shop.orders FOR VERSION AS OF now").primary


def test_tables_may_be_joined_by_columns_of_the_same_name(place: Workplace) -> None:
    for join in ("JOIN lake.shop.orders b USING (id)", "NATURAL JOIN lake.shop.orders b"):
        text = f"WITH x AS (SELECT 2 AS id) SELECT a.id, b.v FROM shop.orders a {join} JOIN x USING (id)"
        assert rows(place, text) == [(2, "bb")]
    assert "Referenced column" in refused(place, "SELECT nope FROM shop.orders a JOIN shop.orders b USING (id)").detail
