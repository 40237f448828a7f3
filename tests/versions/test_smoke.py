"""Whole pipelines, few and of every kind, for versions of Spark that no other test runs with: `make versions`."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

import calve
from calve.catalog.connect import connect_embedded
from calve.errors import InvalidInput, UnreadableFile
from calve.reader.read import read
from calve.source.generator import expected_orders, orders
from calve.spark.failures import told_as
from tests.faults.harness import KILLED, Sink, rows_of
from tests.support.jvm import QUICK
from tests.support.readers import ROOT, duckdb_rows

pytestmark = pytest.mark.slow
ORDERS = orders(rows=2_000, changes=4_000, per_checkpoint=3_000)
EXPECTED = expected_orders(ORDERS, 6_000)
PIPELINE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE items (id BIGINT NOT NULL, kind STRING, price DECIMAL(9,2), tags ARRAY<STRING>, at TIMESTAMP, day DATE,
                     PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = 'in', FORMAT = 'json') ENVELOPE DEBEZIUM (ORDER BY source.lsn);
CREATE VIEW cheap AS SELECT id, upper(kind) AS kind, price, tags, at, day FROM items WHERE price < 100;
CREATE VIEW kinds AS SELECT kind, count(*) AS items, sum(price) AS total FROM items GROUP BY kind;
CREATE SINK cheap_items FROM cheap TO ICEBERG CATALOG lake NAMESPACE shop TABLE cheap PARTITION BY (bucket(4, id));
CREATE SINK kinds_of_items FROM kinds TO ICEBERG CATALOG lake NAMESPACE shop TABLE kinds;
"""
FIRST = {"id": 1, "kind": "a", "price": "10", "tags": ["x", "y"], "at": "2024-01-01T00:00:00Z", "day": "2024-01-01"}
SECOND = {"id": 2, "kind": "b", "price": "20.5", "tags": None, "at": None, "day": None}
THIRD = {"id": 3, "kind": "a", "price": "500", "tags": [], "at": None, "day": None}
CHANGED = {**FIRST, "kind": "b", "price": "11", "tags": ["z"]}


def test_the_version_is_the_one_that_was_asked_for(spark: SparkSession) -> None:
    assert spark.version == os.environ.get("CALVE_EXPECTED_SPARK", pyspark.__version__)


@pytest.mark.parametrize("feed", ["stream", "orders", "windows"])
def test_a_sink_that_dies_in_a_commit_goes_on(feed: str, tmp_path: Path) -> None:
    sink = Sink(tmp_path / "home", feed)
    if feed == "stream":
        sink.provide_files()
    commit = 1 if feed == "windows" else 3  # a fast machine reads all within one window
    assert sink.run(f"commit.after:{commit}=kill").code == KILLED
    ended = sink.run()
    assert ended.code == 0, ended
    sink.check(history=False)


@pytest.mark.parametrize("partitions", [(), ("bucket(4, id)", "month(updated_at)")])
@pytest.mark.parametrize("driver_rows", [10, 500_000])
def test_driver_tasks_and_sparks_own_writer_give_the_same_rows(
    partitions: tuple[str, ...], driver_rows: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.write.batch.DRIVER_ROWS", driver_rows)
    lake = calve.connect(home=tmp_path / "home")
    sink = calve.sink(ORDERS, name="orders", into=lake.table("shop.orders"), key=["id"]).partition_by(*partitions)
    assert sink.start().await_termination(200)
    assert rows_of(duckdb_rows(lake.open().load_table("shop.orders").metadata_location)) == EXPECTED
    found = read(spark, lake.table("shop.orders"), where="id >= 0")
    assert rows_of([row.asDict() for row in found.collect()]).keys() == EXPECTED.keys()


def test_changes_are_followed_by_queries_of_spark_4(spark: SparkSession, tmp_path: Path) -> None:
    lake = calve.connect(home=tmp_path / "home")
    table = lake.table("shop.orders")
    assert calve.sink(ORDERS, name="orders", into=table, key=["id"]).start().await_termination(200)
    if spark.version.startswith("3."):
        with pytest.raises(InvalidInput, match="needs Spark 4"):
            calve.stream_changes(spark, table)
        return

    def follow(*, once: bool) -> None:
        changes = calve.stream_changes(spark, table, start="earliest", max_rows_per_batch=3_000)
        writer = changes.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = (writer.trigger(availableNow=True) if once else writer).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    follow(once=False)
    found = lake.open().load_table("shop.orders")
    gone = sorted(EXPECTED)[:3]
    for once, key in zip((True, False, True), gone, strict=True):
        with pytest.warns(UserWarning, match="falling back to copy-on-write"):
            found.delete(f"id = {key}")
        follow(once=once)
    state = {}
    for row in spark.read.parquet(str(tmp_path / "out")).orderBy("_commit_version").collect():
        state[row["id"]] = row["_change_type"] != "delete"
    assert {key for key, there in state.items() if there} == EXPECTED.keys() - set(gone)


def test_a_bounded_frame_of_many_types_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1000).selectExpr(
        "id",
        "cast(id as decimal(20,3)) as amount",
        "named_struct('a', id, 'b', array(cast(id as string))) as nested",
        "map('k', id) as pairs",
        "timestamp_millis(id) as at",
        "cast(timestamp_millis(id) as timestamp_ntz) as naive",
        "cast(cast(id as string) as binary) as bytes",
    )
    lake = calve.connect(home=tmp_path / "home")
    assert calve.sink(frame, name="s", into=lake.table("a.b"), key=["id"]).start().await_termination(200)
    rows = sorted(duckdb_rows(lake.open().load_table("a.b").metadata_location), key=lambda row: row["id"])
    assert len(rows) == 1000
    assert (rows[7]["nested"], rows[7]["bytes"]) == ({"a": 7, "b": ["7"]}, b"7")


def test_pipelines_of_sql_follow_their_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "p.sql").write_text(PIPELINE)
    (tmp_path / "in" / "1.json").write_text(lines(("c", None, FIRST), ("c", None, SECOND), ("c", None, THIRD)))
    run(tmp_path)
    assert contents(tmp_path, "shop.kinds") == [("a", 2, "510.00"), ("b", 1, "20.50")]
    (tmp_path / "in" / "2.json").write_text(lines(("u", FIRST, CHANGED), ("d", SECOND, None), first=4))
    run(tmp_path)
    assert contents(tmp_path, "shop.kinds") == [("a", 1, "500.00"), ("b", 1, "11.00")]
    assert [row[:4] for row in contents(tmp_path, "shop.cheap")] == [(1, "B", "11.00", ["z"])]


Row = dict[str, Any] | None


def lines(*changes: tuple[str, Row, Row], first: int = 1) -> str:
    """Records of Debezium."""
    records = [
        {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}
        for lsn, (op, before, after) in enumerate(changes, first)
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def run(folder: Path) -> None:
    conf = [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "calve.cli.main", "run", "p.sql", "--until-caught-up", "--home", "home"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "--master", "local[2]", *conf],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def contents(folder: Path, table: str) -> list[tuple[Any, ...]]:
    rows = duckdb_rows(connect_embedded(folder / "home").load_table(table).metadata_location)
    plain = (str, int, list)
    return sorted(tuple(v if isinstance(v, plain) else str(v) for v in row.values()) for row in rows)


def test_damaged_files_are_told_from_what_may_go_away(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut in the middle")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    (tmp_path / "a.orc").write_bytes(b"not ORC at all, and long enough to be one")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["s", "S"]), tmp_path / "s.parquet")
    for name in ("a.parquet", "a.json.gz", "a.orc", "s.parquet"):
        form = "text" if name.endswith("gz") else name.partition(".")[2]
        reader = spark.read.format(form).schema("value STRING" if form == "text" else "s BIGINT")
        with pytest.raises(UnreadableFile), told_as("the files could not be read"):
            reader.load(str(tmp_path / name)).collect()
