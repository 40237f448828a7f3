"""Writes docs/engines.md from the recipes of `calve connect-info`: `python scripts/engines_page.py [--check]`."""

import sys
from pathlib import Path

from pages import finish

from calve.api.engines import ReadableTable, Recipe, recipes
from calve.model.connection import AwsConnection, CatalogConnection, CatalogType, SecretRef
from calve.model.engine import ReadingEngine
from calve.model.spec import TableName

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
HEAD = """# Other engines

Tables of calve are Iceberg tables: any engine reads them. `calve connect-info TABLE|SINK` prints the statements for the
very catalog, to be pasted; `--engine duckdb` prints those of one engine and nothing else:

    calve connect-info shop.orders --engine duckdb | duckdb

Secrets are not printed: `<secret name>` stands where their values go. The tests run the recipes of DuckDB, pyiceberg,
Polars and Spark on a table of the embedded catalog. `make docs` generates this page.

What to know:

- Deletes by position, calve's default, are read by all of these engines. Equality deletes (`DELETES = 'equality'`) are
  not read by pyiceberg and Polars; `calve maintain TABLE --only convert` replaces them.
- The embedded catalog is a SQLite file in the home folder. calve keeps a `version-hint.text` beside the metadata files
  of its tables, so that DuckDB finds the newest snapshot in the table's folder. Tables of other catalogs get none:
  others may commit there, and would leave it behind.
- A SQL catalog stores the name of the catalog with each table, and shows only tables under its own name: `calve`,
  unless the connection says `CATALOG NAME = '...'`. Give other tools the same name.
"""
NAMES = {
    ReadingEngine.DUCKDB: "DuckDB",
    ReadingEngine.SPARK: "Spark",
    ReadingEngine.TRINO: "Trino",
    ReadingEngine.PYICEBERG: "pyiceberg",
    ReadingEngine.POLARS: "Polars",
    ReadingEngine.CLICKHOUSE: "ClickHouse",
}
LOGIN, KEY = SecretRef("1", "login"), SecretRef("2", "s3_key")
STORE = AwsConnection("AKIA...", KEY, region="eu-west-1")
EMBEDDED = ReadableTable(
    TableName(("shop",), "orders"),
    CatalogConnection(CatalogType.EMBEDDED),
    None,
    Path("/data/calve"),
    "file:///data/calve/warehouse/shop/orders",
    "file:///data/calve/warehouse/shop/orders/metadata/00003-5f0c.metadata.json",
)
REST = ReadableTable(
    TableName(("shop",), "orders"),
    CatalogConnection(CatalogType.REST, "https://catalog.example/api", "lake", credential=LOGIN, aws=STORE),
    None,
    Path("/data/calve"),
    "s3://lake/shop/orders",
    "s3://lake/shop/orders/metadata/00003-5f0c.metadata.json",
)


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            "## A table of the embedded catalog\n",
            *(_section(one) for one in recipes(EMBEDDED)),
            "## A table of a REST catalog, with files in S3\n",
            *(_section(one) for one in recipes(REST)),
        ]
    )


def _section(recipe: Recipe) -> str:
    note = [f"{recipe.note}\n"] if recipe.note else []
    return "\n".join([f"### {NAMES[recipe.engine]}\n", *note, f"```{recipe.language}\n{recipe.text}```\n"])


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
