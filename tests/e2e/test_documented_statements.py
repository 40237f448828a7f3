"""The SQL of the pages that a newcomer follows is executed: it creates, runs, alters, asks and drops."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.catalog.connect import connect_embedded
from calve.errors import CalveError
from calve.sql.parser import parse_one
from calve.sql.statements import Create
from calve.statements.execute import execute
from tests.support.pipelines import Pipelines
from tests.support.readers import ROOT
from tests.support.snippets import snippets_of, statements

pytestmark = pytest.mark.embedded

ENVIRONMENT = dict.fromkeys(("LAKE_PASSWORD", "ICEBERG_PASSWORD", "KAFKA_PASSWORD", "STORE_SECRET_KEY"), "hidden")
LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
COLUMNS = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), updated_at TIMESTAMP"
SOURCE = f"({COLUMNS}, PRIMARY KEY (id) NOT ENFORCED) FROM FILES (PATH = 'in/orders', FORMAT = 'json')"
ORDERS = f"CREATE SOURCE orders {SOURCE} ENVELOPE UPSERT (ORDER BY seq);"
CHANGES = f"CREATE SOURCE changes {SOURCE} ENVELOPE UPSERT (ORDER BY seq);"
LOGGED = f"CREATE SOURCE orders {SOURCE} ENVELOPE DEBEZIUM (ORDER BY ts_ms);"
SINK = 'CREATE SINK orders FROM orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "orders";'
BEFORE = {
    ("README.md", 0): "",
    ("docs/index.md", 0): "",
    ("docs/backup.md", 0): LAKE + ORDERS + SINK,
    ("docs/debezium.md", 0): "",
    ("docs/infer.md", 0): "",
    ("docs/kafka.md", 0): "",
    ("docs/sql.md", 0): "",
    ("docs/time.md", 0): LAKE + ORDERS,
    ("docs/time.md", 1): "",
    ("docs/quickstart.md", 0): "",
    ("docs/from-merge.md", 0): LAKE + ORDERS,
    ("docs/from-merge.md", 1): LAKE,
    ("docs/views.md", 0): LOGGED,
    ("docs/tables.md", 0): LAKE + ORDERS,
    ("docs/tables.md", 1): LAKE + CHANGES,
    ("docs/tables.md", 2): LAKE + ORDERS,
}
"""Blocks of other pages, by page and number, with the statements that the text before them takes for granted."""
NOT_RUN = {
    ("docs/catalogs.md", 0): "its catalog and its store are servers",
    ("docs/sql.md", 1): "an overview of statements that docs/statements.md executes",
    ("docs/tables.md", 3): "upgrades a table that has rows: tests/faults/test_upgrade.py",
    ("docs/time.md", 2): "a query for any engine that reads the log",
    ("docs/metastore.md", 0): "the statements of docs/statements.md, with other tables",
    ("docs/metastore.md", 1): "as above",
}
"""Blocks that are only parsed, each with the reason."""
ELSEWHERE = {
    "docs/changes.md": "tests/e2e/test_changes_page.py",
    "docs/engines.md": "tests/unit/api/test_engines.py",
    "docs/statements.md": "this file, in the order of the page",
}
ROWS = [
    '{"id": 1, "customer": "ada", "amount": "19.99", "updated_at": "2026-01-31T12:00:00Z", "seq": 1}',
    '{"id": 2, "customer": "bob", "amount": "5.00", "updated_at": "2026-01-31T12:00:01Z", "seq": 1}',
    '{"id": 2, "seq": 2, "op": "d"}',
]


def blocks(page: str) -> list[str]:
    return [s.text for s in snippets_of(page, (ROOT / page).read_text()) if s.language == "sql"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file of orders."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in/orders").mkdir(parents=True)
    (tmp_path / "in/orders/1.json").write_text("\n".join(ROWS) + "\n")
    return tmp_path


def executed(pipelines: Pipelines, text: str) -> list[str]:
    """Execute statements one by one; return those that fail, with their errors."""
    failed = []
    for statement in statements(text):
        try:
            found = parse_one(_unvalidated(statement))
            if isinstance(found, Create):
                pipelines.apply(f"{_unvalidated(statement)};")
            else:
                execute(pipelines.place, found)
        except CalveError as error:
            failed.append(f"{statement}\n  {error}")
    return failed


def load_orders(home: Path) -> None:
    """The table that another tool filled."""
    catalog = connect_embedded(home)
    catalog.create_namespace("shop")
    row = {"id": 1, "customer": "ada", "amount": Decimal("19.99")}
    columns = [pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.decimal128(12, 2))]
    rows = pa.Table.from_pylist([row], schema=pa.schema(columns))
    catalog.create_table("shop.orders", rows.schema).append(rows)


def _unvalidated(statement: str) -> str:
    """Connections to systems that are not there are created without asking them."""
    away = statement.startswith("CREATE CONNECTION") and "'embedded'" not in statement
    return f"{statement} WITH (VALIDATE = false)" if away else statement


def test_every_block_of_sql_is_executed_or_has_a_reason() -> None:
    pages = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    found = {(page, number) for page in pages if page not in ELSEWHERE for number in range(len(blocks(page)))}
    assert found == BEFORE.keys() | NOT_RUN.keys()
    assert not BEFORE.keys() & NOT_RUN.keys()


def test_the_blocks_of_the_pages_create_what_they_show(folder: Path, spark: SparkSession) -> None:
    (folder / "examples/data").mkdir(parents=True)
    (folder / "examples/data/orders").symlink_to(folder / "in/orders")
    (folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    customers = folder / "data/customers"
    spark.createDataFrame([(1, "ada")], "id INT, name STRING").write.parquet(str(customers))
    failed = []
    for number, ((page, block), before) in enumerate(BEFORE.items()):
        pipelines = Pipelines(folder / f"home-{number}", spark, ENVIRONMENT)
        if "ADOPT" in blocks(page)[block]:
            load_orders(pipelines.home)
        text = blocks(page)[block].replace("data/customers", str(customers))  # Spark started in another folder
        failed += [f"{page}: {problem}" for problem in executed(pipelines, before + text)]
    assert not failed, "\n".join(failed)


def test_every_statement_of_its_page_works_in_the_order_of_the_page(folder: Path, spark: SparkSession) -> None:
    pipelines = Pipelines(folder / "home", spark, ENVIRONMENT)
    failed = []
    for block in blocks("docs/statements.md"):
        failed += executed(pipelines, block)
        if "CREATE SINK by_day" in block:
            failed += [f"{one.name}: {one.cause}" for one in pipelines.run() if one.exit_code]
            assert pipelines.rows("shop.orders", "id", "customer") == [(1, "ada")]
    assert not failed, "\n".join(failed)
