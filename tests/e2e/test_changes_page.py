"""docs/changes.md, from top to bottom: every block of Python and SHOW runs against a real table."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, LongType, NestedField
from pyspark.sql import DataFrame, SparkSession

import calve
from calve.sql.parser import parse
from calve.statements.answers import RowsAnswer
from calve.statements.execute import execute
from tests.support.foreign import NAME, ForeignTable
from tests.support.pipelines import Pipelines
from tests.support.readers import ROOT
from tests.support.snippets import run_python, snippets_of

WAIT_SECONDS = 300.0
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "amount", DecimalType(12, 2), required=False),
    identifier_field_ids=[1],
)


def orders(**amounts: int) -> list[dict[str, Any]]:
    """Rows by key: a1=5 is the order 1 of 5."""
    return [{"id": int(name[1:]), "amount": Decimal(amount)} for name, amount in amounts.items()]


def test_everything_on_the_page_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALVE_HOME", str(tmp_path))
    table = ForeignTable(tmp_path, COLUMNS)
    first = table.commit(table.data(orders(a1=50, a2=150)))
    table.commit(table.data(orders(a2=250, a3=300)), table.equality(["id"], [{"id": 2}]))
    table.table.manage_snapshots().create_tag(first, "audit").commit()
    here = {
        "shop.orders": NAME,
        "5521": str(first),
        "2026-01-31T12:00:00Z": "2001-01-31T12:00:00Z",
        "2026-02-01": "2101-02-01",
        "[1700000000000]": "[10]",
        '"out/': f'"{tmp_path}/out/',
    }
    page = (ROOT / "docs/changes.md").read_text()
    for there, substitute in here.items():
        assert there in page, "the page says something else now"
        page = page.replace(there, substitute)
    blocks = list(snippets_of("docs/changes.md", page))
    names: dict[str, Any] = {"calve": calve, "spark": spark}
    values = [value for block in blocks if block.language == "python" for value in run_python(block.text, names)]
    frames = [value for value in values if isinstance(value, DataFrame)]
    (copying,) = (value for value in values if isinstance(value, calve.Query))
    copying.await_caught_up(WAIT_SECONDS)
    copying.stop()
    assert [frame.count() for frame in frames] == [2, 3, 2, 3, 2], "each reads what its comment says"
    assert names["query"].awaitTermination(WAIT_SECONDS)
    large = spark.read.parquet(str(tmp_path / "out/large_orders")).collect()
    assert sorted((row["id"], row["amount"]) for row in large) == [(2, Decimal(150)), (3, Decimal(300))]
    lake = Pipelines(tmp_path, spark)
    assert lake.rows("shop.copy") == [(1, 50), (2, 250), (3, 300)]
    lake.apply("CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded')")
    lake.apply(f"CREATE SOURCE c FROM ICEBERG TABLE lake.{NAME}")
    (shown,) = (execute(lake.place, statement) for statement in parse("SHOW CONSUMERS"))
    assert isinstance(shown, RowsAnswer)
    assert sorted(row[0] for row in shown.rows) == ["alerts", "copy"]
    assert "(stream)" in {row[1] for row in shown.rows}
    table.close()
