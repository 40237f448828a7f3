"""Pipelines of tables: the changes of one calve table feed another."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.pipelines import Pipelines

CHAIN = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders (id BIGINT NOT NULL, customer INT, amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json', MAX FILES PER CHECKPOINT = 1)
  ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
CREATE SINK raw FROM orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "raw";

CREATE SOURCE raw_changes FROM ICEBERG TABLE lake.shop.raw (CONSUMER = 'cleaning');
CREATE VIEW cleaned AS SELECT id, customer, amount FROM raw_changes WHERE amount > 0;
CREATE SINK cleaned FROM cleaned TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "cleaned";

CREATE SOURCE cleaned_changes FROM ICEBERG TABLE lake.shop.cleaned (START = 'earliest');
CREATE VIEW totals AS SELECT customer, count(*) AS orders, sum(amount) AS amount FROM cleaned_changes GROUP BY customer;
CREATE SINK totals FROM totals TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "totals";
CREATE SINK copy FROM cleaned_changes TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "copy";
"""


def write(folder: Path, name: str, *rows: tuple[int, int, str, str]) -> None:
    """Write a file of orders: id, customer, amount, operation."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    lines = [
        json.dumps({"id": i, "customer": c, "amount": a, "op": op, "seq": number * 1000 + n})
        for n, (i, c, a, op) in enumerate(rows)
    ]
    (folder / f"{name}.json").write_text("\n".join(lines))


def test_a_chain_of_tables_follows_its_source_from_one_file(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1", (1, 7, "10.00", "u"), (2, 7, "5.00", "u"), (3, 8, "-1.00", "u"))
    lake = Pipelines(tmp_path / "home", spark)
    assert [result.exit_code for result in lake.run(CHAIN.format(folder=folder))] == [0] * 4
    assert [tuple(map(str, row)) for row in lake.rows("shop.totals")] == [("7", "2", "15.00")]
    write(folder, "2", (1, 8, "11.00", "u"), (2, 7, "5.00", "d"), (3, 8, "4.00", "u"))
    write(folder, "3", (4, 9, "1.00", "u"), (1, 9, "12.00", "u"))
    assert [result.exit_code for result in lake.run()] == [0] * 4
    assert [tuple(map(str, row)) for row in lake.rows("shop.cleaned")] == [
        ("1", "9", "12.00"),
        ("3", "8", "4.00"),
        ("4", "9", "1.00"),
    ]
    assert [tuple(map(str, row)) for row in lake.rows("shop.totals")] == [("8", "1", "4.00"), ("9", "2", "13.00")]
    assert lake.rows("shop.copy") == lake.rows("shop.cleaned")
    before = {name: lake.table(f"shop.{name}").metadata.current_snapshot_id for name in ("cleaned", "totals", "copy")}
    assert [result.exit_code for result in lake.run()] == [0] * 4
    after = {name: lake.table(f"shop.{name}").metadata.current_snapshot_id for name in ("cleaned", "totals", "copy")}
    assert before == after, "nothing new, so nothing is committed"
