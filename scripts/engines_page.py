"""Writes docs/engines.md from the recipes of `calve connect-info`: `python scripts/engines_page.py [--check]`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import finish

from calve.api.engines import ReadableTable, Recipe, recipes
from calve.model.connection import AwsConnection, CatalogConnection, CatalogType, SecretRef
from calve.model.engine import ReadingEngine
from calve.model.readers import READERS, Encoding, Support
from calve.model.spec import TableName

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
HEAD = """# Other engines

Tables of calve are Iceberg tables: any engine reads them. `calve connect-info TABLE|SINK` prints the statements for the
table's own catalog, ready to paste; `--engine duckdb` prints only those for one engine:

    calve connect-info shop.orders --engine duckdb | duckdb

Secrets are not printed: `<secret name>` stands where their values go. The tests run the recipes of DuckDB, pyiceberg,
Polars and Spark on a table of the embedded catalog. `make docs` generates this page.

What to know:

- Deletes by position, calve's default, are read by all of these engines, and [by others](#what-each-engine-reads).
  Equality deletes (`DELETES = 'equality'`) are not read by pyiceberg and Polars; `calve maintain TABLE --only convert`
  replaces them.
- The embedded catalog is a SQLite file in the home folder. calve keeps a `version-hint.text` beside the metadata files
  of its tables, so that DuckDB finds the newest snapshot in the table's folder. Tables of other catalogs get none:
  others may commit there, and would leave it behind.
- A SQL catalog stores the name of the catalog with each table, and shows only tables under its own name: `calve`,
  unless the connection says `CATALOG NAME = '...'`. Give other tools the same name.
"""
MATRIX = """## What each engine reads

No encoding of deletes is read everywhere. Tables of format version 2 have position deletes, or equality deletes
(`DELETES = 'equality'`), those of [version 3](tables.md#format-version-3) deletion vectors. `READERS` says who reads
the table, with a version if it is not a current one:

    CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE a WITH (READERS = 'databricks, snowflake');
    CREATE SINK t FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE b WITH (READERS = 'athena, trino 476');

The first table gets version 3, the second one version 2. If all readers read both, an existing table keeps its version,
and a new one gets version 2. If they read neither, or not what `FORMAT VERSION` and `DELETES` ask for, the statement is
refused, and says who does not read what; `EXPLAIN CREATE SINK` shows what each of them reads. An existing table is
checked, too, and never upgraded because of `READERS`: `ALTER SINK s SET (FORMAT VERSION = 3)`
[does that](tables.md#upgrading-a-table).

*tested* means: read in calve's tests, with DuckDB 1.5.5, Spark 4.1 and the Iceberg runtime 1.12.0, pyiceberg 0.12.0,
Polars and, in `make soak`, Trino. Others are what the linked pages state; they were not tried. An empty field means
that nothing is known, which counts as not read.

"""
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "encodings.json"
READS = """## What reads cost

Seconds for a count and a sum after {batches} batches of {changes:,} changes (90 % updates of random rows, 5 % inserts,
5 % deletes) to a table of {rows:,} rows without [maintenance](maintenance.md), and how many times as long as for the
same rows written at once (*fresh*), in the same engine. Each engine also returned all rows, which were compared with
the last change of every key: a number of seconds means that all of them were right. Each was given up to
{limit:.0f} seconds for an answer. Measured by `python benchmarks/encodings.py` ({machine}; local files).

"""
BUSY = 2
"""The load per core from which on a machine did something else at the same time."""
BESIDES = """This machine had much else to do at the same time (load average {load:.0f}): take the seconds as rough.

"""
TABLES = {
    "fresh": "fresh",
    "positions": Encoding.POSITION,
    "vectors": Encoding.VECTOR,
    "equality": Encoding.EQUALITY,
}
"""Columns of that table by the names of the benchmark."""
ENGINES = {
    "spark": "Spark",
    "calve": "`calve.read`",
    "duckdb": "DuckDB",
    "pyiceberg": "pyiceberg",
    "polars": "Polars",
    "datafusion": "DataFusion",
    "clickhouse": "ClickHouse",
}
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
            MATRIX + _matrix(),
            _reads(json.loads(RESULT.read_text(encoding="utf-8"))),
            "## A table of the embedded catalog\n",
            *(_section(one) for one in recipes(EMBEDDED)),
            "## A table of a REST catalog, with files in S3\n",
            *(_section(one) for one in recipes(REST)),
        ]
    )


def _matrix() -> str:
    """The table of engines, out of the one that `READERS` decides by."""
    head = ["in `READERS`", "engine", *(encoding.value for encoding in Encoding)]
    rows = [[f"`{one.name}`", one.title, *(_support(one.support(e)) for e in Encoding)] for one in READERS]
    return _table(head, rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _reads(result: Mapping[str, Any]) -> str:
    """What `benchmarks/encodings.py` measured."""
    cells = {(cell["engine"], cell["table"]): cell for cell in result["cells"]}
    engines = [name for name in ENGINES if (name, "fresh") in cells]
    rows = [
        [f"{ENGINES[name]} {result['versions'][name]}", *(_cell(cells[name, t], cells[name, "fresh"]) for t in TABLES)]
        for name in engines
    ]
    shapes = {one["name"]: one for one in result["tables"]}
    sizes = [f"files: {shapes[t]['files']:,}, deletes: {shapes[t]['deletes']:,}" for t in TABLES]
    reasons = [
        f"- {ENGINES[name]}, {TABLES[t]}: `{cells[name, t]['error']}`\n"
        for name in engines
        for t in TABLES
        if cells[name, t]["error"]
    ]
    refused = ["\nWhy reads failed:\n\n", *reasons] if reasons else []
    text = READS.format(**result["workload"], machine=result["machine"])
    if result["load"] > BUSY * result["cores"]:
        text += BESIDES.format(load=result["load"])
    return text + _table(["", *TABLES.values()], [["", *sizes], *rows]) + "".join(refused)


def _cell(cell: Mapping[str, Any], fresh: Mapping[str, Any]) -> str:
    if cell["error"]:
        return "failed"
    if wrong := {kind: cell[kind] for kind in ("missing", "extra", "wrong") if cell[kind]}:
        return "**wrong rows**: " + ", ".join(f"{count:,} {kind}" for kind, count in wrong.items())
    if cell["seconds"] is None:
        return f"over {cell['over']:.0f} s"
    ratio = f" ({cell['seconds'] / fresh['seconds']:.2f}x)" if fresh["seconds"] and cell is not fresh else ""
    return f"{cell['seconds']:.2f} s{ratio}"


def _support(support: Support) -> str:
    if support.reads is None:
        return ""
    since = f" since {support.since}" if support.since else ""
    text = f"yes{since}" if support.reads else "no"
    return f"[{text}]({support.source})" if support.source else f"{text}, tested"


def _section(recipe: Recipe) -> str:
    note = [f"{recipe.note}\n"] if recipe.note else []
    return "\n".join([f"### {NAMES[recipe.engine]}\n", *note, f"```{recipe.language}\n{recipe.text}```\n"])


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
