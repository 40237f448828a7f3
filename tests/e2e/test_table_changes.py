"""Pipelines of tables: the changes of one calve table feed another."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

import calve
from calve.api.verify import verify
from calve.errors import SourceChanged
from calve.pipeline.sink import Sink
from calve.reader.local import read_here
from calve.sql.parser import parse
from calve.statements.answers import RowsAnswer
from calve.statements.execute import execute
from tests.support.pipelines import Pipelines
from tests.unit.changelog.test_random_changes import EvolvingTable

SINKS = ("raw", "cleaned", "totals", "copy")

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
CREATE SINK copy FROM raw_changes TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "copy";
"""


def write(folder: Path, name: str, *rows: tuple[int, int, str, str], **more: str) -> None:
    """Write a file of orders: id, customer, amount, operation."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    lines = [
        json.dumps({"id": i, "customer": c, "amount": a, "op": op, "seq": number * 1000 + n, **more})
        for n, (i, c, a, op) in enumerate(rows)
    ]
    (folder / f"{name}.json").write_text("\n".join(lines))


def texts(rows: list[tuple[object, ...]]) -> list[tuple[str, ...]]:
    return [tuple(map(str, row)) for row in rows]


def test_a_chain_of_tables_follows_its_source_from_one_file(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1", (1, 7, "10.00", "u"), (2, 7, "5.00", "u"), (3, 8, "-1.00", "u"))
    lake = Pipelines(tmp_path / "home", spark)
    results = lake.run(CHAIN.format(folder=folder))
    assert {result.name: result.exit_code for result in results} == dict.fromkeys(SINKS, 0)
    assert texts(lake.rows("shop.totals")) == [("7", "2", "15.00")]
    # Another column arrives in the first table, and in the copy of it; updates move orders between groups.
    lake.apply("ALTER SOURCE orders SET COLUMNS (id BIGINT NOT NULL, customer INT, amount DECIMAL(12,2), note STRING)")
    write(folder, "2", (1, 8, "11.00", "u"), (2, 7, "5.00", "d"), (3, 8, "4.00", "u"))
    write(folder, "3", (4, 9, "1.00", "u"), (1, 9, "12.00", "u"), note="late")
    assert {result.name: result.exit_code for result in lake.run()} == dict.fromkeys(SINKS, 0)
    cleaned = [("1", "9", "12.00"), ("3", "8", "4.00"), ("4", "9", "1.00")]
    assert texts(lake.rows("shop.cleaned")) == cleaned
    assert texts(lake.rows("shop.totals")) == [("8", "1", "4.00"), ("9", "2", "13.00")]
    assert lake.rows("shop.copy", "id", "note") == [(1, "late"), (3, None), (4, "late")]
    assert lake.rows("shop.copy") == lake.rows("shop.raw")
    before = {name: lake.table(f"shop.{name}").metadata.current_snapshot_id for name in SINKS}
    assert {result.name: result.exit_code for result in lake.run()} == dict.fromkeys(SINKS, 0)
    after = {name: lake.table(f"shop.{name}").metadata.current_snapshot_id for name in SINKS}
    assert before == after, "nothing new, so nothing is committed"
    (shown,) = (execute(lake.place, statement) for statement in parse("SHOW CONSUMERS"))
    assert isinstance(shown, RowsAnswer)
    assert {row[:3] for row in shown.rows} == {("cleaning", name, "shop.raw") for name in ("cleaned", "copy")}
    assert {row[4] for row in shown.rows} == {"0"}, "the tags are where the sinks are"


LOG = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE visits (page STRING, seconds INT) FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE NONE;
CREATE SINK log FROM visits TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "log" MODE APPEND
  WITH (ON FOREIGN COMMIT = 'accept');

CREATE SOURCE logged FROM ICEBERG TABLE lake.shop.log;
CREATE SINK copy FROM logged TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "copy" MODE APPEND;
CREATE VIEW totals AS SELECT page, count(*) AS visits, sum(seconds) AS seconds FROM logged
  WHERE calve_diff > 0 GROUP BY page;
CREATE SINK totals FROM totals TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "totals";
"""


def test_a_log_feeds_another_log_and_totals(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lake = Pipelines(tmp_path / "home", spark)

    def visit(name: str, *visits: tuple[str, int]) -> None:
        rows = [json.dumps({"page": page, "seconds": seconds}) for page, seconds in visits]
        (folder / f"{name}.json").write_text("\n".join(rows))

    visit("1", ("a", 1), ("a", 1), ("b", 5))
    ended = {result.name: result.exit_code for result in lake.run(LOG.format(folder=folder))}
    assert ended == dict.fromkeys(("log", "copy", "totals"), 0)
    visit("2", ("a", 7), ("c", 2))
    assert {result.exit_code for result in lake.run()} == {0}
    assert lake.rows("shop.totals") == [("a", 3, 9), ("b", 1, 5), ("c", 1, 2)]
    log = sorted(lake.rows("shop.log"))
    assert sorted(lake.rows("shop.copy", "page", "seconds", "calve_diff", "calve_time")) == log
    assert {row[0] for row in lake.rows("shop.copy", "_calve_diff")} == {1}
    # Somebody else deletes old rows of the log: a copy that keeps every change keeps that, too.
    with pytest.warns(UserWarning, match="falling back to copy-on-write"):
        lake.table("shop.log").delete("page = 'a'")
    assert {result.exit_code for result in lake.run()} == {0}
    assert lake.rows("shop.totals") == [("b", 1, 5), ("c", 1, 2)]
    retracted = [row[0] for row in lake.rows("shop.copy", "page", "_calve_diff") if row[1] < 0]
    assert retracted == ["a"] * 3
    assert verify(lake.place, "copy").none, "what its rows add up to is what its source has"


@pytest.mark.usefixtures("spark")
def test_a_copy_follows_the_columns_rewrites_and_deletes_of_another_writer(tmp_path: Path) -> None:
    made = EvolvingTable(tmp_path, random.Random(2))
    made.batch()
    lake = calve.connect(home=tmp_path)
    source = calve.table_changes(made.table.ref, start="earliest", max_rows_per_checkpoint=10)
    sinks = {
        "copy": calve.sink(source, name="copy", into=lake.table("shop.copy"), key=["id"]),
        "log": calve.sink(source, name="log", into=lake.table("shop.log"), mode="append"),
    }
    changed = 0

    def caught_up(sink: Sink) -> None:
        """Start the sink until it has read everything: again if columns change while it runs."""
        nonlocal changed
        query = sink.start()
        try:
            query.await_caught_up(120)
            made.batch()
            with made.table.table.update_schema() as update:
                update.add_column(f"more{changed}", StringType())
            made.batch()
            query.await_termination(120)
        except SourceChanged:
            changed += 1
        finally:
            query.stop()

    for sink in sinks.values():
        caught_up(sink)
    assert changed == len(sinks), "each was told to start again"
    for _ in range(3):
        made.batch()
        made.rewrite()
    for sink in sinks.values():
        query = sink.start()
        query.await_caught_up(120)
        query.stop()
    names = [field.name for field in made.table.table.schema().fields]
    expected = sorted(map(repr, made.table.rows()))
    copied = read_here(lake.table("shop.copy"), columns=names).rows()
    assert sorted(repr(row) for batch in copied for row in batch.to_pylist()) == expected
    logged = read_here(lake.table("shop.log"), columns=[*names, "_calve_diff"]).rows()
    total: Counter[str] = Counter()
    for row in (row for batch in logged for row in batch.to_pylist()):
        diff = row.pop("_calve_diff")
        total[repr(row)] += diff
    assert sum(total.values()) == len(expected)
    assert min(total.values()) >= 0, "retracted rows are those that were there, with the columns that they had"
    made.table.close()
