"""`calve.stream_changes` in Spark's own queries: exactly once with Spark's checkpoint, across restarts."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import StringType
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import calve
from calve.errors import InvalidInput
from calve.iceberg.snapshot.consumers import consumers_of
from calve.lake import TableRef
from calve.model.changelog import CHANGE_COLUMNS
from tests.integration.reader.tables import rows_of
from tests.support.change_feed import apply_by_key, check_versions, states
from tests.support.fake_query import ordered
from tests.support.foreign import Row
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows
from tests.unit.changelog.test_random_changes import EvolvingTable, compact, snapshots
from tests.unit.keylookup.test_random import SCHEMA, files_of, random_row

WAIT_SECONDS = 600


def run(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Write what there is now to a folder of files, whose own log makes it exactly once."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_SECONDS)
    return query


def table_rows(ref: TableRef) -> list[str]:
    """The rows of a table, read by DuckDB."""
    return sorted(map(repr, duckdb_rows(ref.lake.open().load_table(ref.name.identifier).metadata_location)))


def written(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    return ordered(rows_of(spark.read.parquet(str(folder / "out"))))


class RandomTable:
    """A table of a sink: upserts and deletes by key, compacted now and then."""

    def __init__(self, home: Path, rng: random.Random) -> None:
        keyed = Schema(*SCHEMA.fields, identifier_field_ids=[1])
        self.table, self.rng = KeyedTable(home, keyed, ["id"], UNPARTITIONED_PARTITION_SPEC), rng

    def batch(self) -> None:
        changes = {row["id"]: row for row in (random_row(self.rng) for _ in range(self.rng.choice([1, 5, 20])))}
        gone = [row for row in changes.values() if self.rng.random() < 0.3]
        kept: list[Row] = [row for row in changes.values() if row not in gone]
        equality = self.rng.random() < 0.5
        self.table.apply(files_of(self.table, kept, self.rng), kept, gone, equality=equality)


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_changes_applied_to_the_start_give_the_table_that_duckdb_reads(
    rounds: int, spark: SparkSession, tmp_path: Path
) -> None:
    made = RandomTable(tmp_path, random.Random(rounds))
    ref = made.table.ref
    for _ in range(3):
        made.batch()
    earlier = snapshots(made.table.table)[1]
    streams: dict[str, dict[str, Any]] = {
        "rows": {"start": "earliest", "before": True, "consumer": "rows"},
        "later": {"start": earlier, "where": "v = 1"},
    }
    for number in range(rounds + 1):
        for name, how in streams.items():
            frame = calve.stream_changes(spark, ref, **how)
            assert frame.isStreaming
            assert frame.columns == [*(f.name for f in SCHEMA.fields), *CHANGE_COLUMNS]
            run(frame, tmp_path / name)
        if number < rounds:
            made.batch()
            compact(made.table, made.rng)
            made.batch()
    found = written(spark, tmp_path / "rows")
    check_versions(found)
    reached = apply_by_key([], found, ["id"], before=True)
    assert sorted(map(repr, reached)) == table_rows(ref)
    first, last = states(ref, earlier)
    kept = [row for row in first if row["v"] == 1]
    reached = apply_by_key(kept, written(spark, tmp_path / "later"), ["id"], before=False)
    assert sorted(map(repr, reached)) == sorted(repr(row) for row in last if row["v"] == 1)
    (held,) = consumers_of(made.table.table)
    assert held.name == "rows"
    # Other columns end the query, and the next one continues with them. A changed history ends it for good.
    frame = calve.stream_changes(spark, ref, start="earliest", before=True)
    with made.table.table.update_schema() as update:
        update.add_column("more", StringType())
    made.batch()
    with pytest.raises(StreamingQueryException, match="the columns of table"):
        run(frame, tmp_path / "rows")
    again = calve.stream_changes(spark, ref, start="earliest", before=True)
    run(again.drop("more"), tmp_path / "rows")
    reached = apply_by_key([], written(spark, tmp_path / "rows"), ["id"], before=True)
    assert len(reached) == len(table_rows(ref))
    made.table.table.manage_snapshots().set_current_snapshot(earlier).commit()
    with pytest.raises(StreamingQueryException, match="another checkpoint location"):
        run(calve.stream_changes(spark, ref), tmp_path / "rows")
    made.table.close()


def test_a_query_that_runs_follows_the_table(spark: SparkSession, tmp_path: Path) -> None:
    made = EvolvingTable(tmp_path, random.Random(12))
    made.batch()
    frame = calve.stream_changes(spark, made.table.ref, start="latest", before=True, max_rows_per_batch=5)
    counted = frame.groupBy("_change_type").count()  # any query of Spark's, with its state
    writer = counted.writeStream.format("memory").queryName("followed").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        start = snapshots(made.table.table)[-1]
        for _ in range(2):
            made.batch()
            query.processAllAvailable()
    finally:
        query.stop()
    expected: dict[str, int] = {}
    for row in calve.changes(spark, made.table.ref, since=start, net=False, before=True).collect():
        expected[row["_change_type"]] = expected.get(row["_change_type"], 0) + 1
    assert {row["_change_type"]: row["count"] for row in spark.table("followed").collect()} == expected
    made.table.close()


def test_what_cannot_be_followed_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = calve.connect(home=tmp_path)
    with pytest.raises(InvalidInput, match="takes a Spark session and a table"):
        calve.stream_changes(spark, "shop.orders")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidInput, match="does not exist"):
        calve.stream_changes(spark, lake.table("shop.orders"))
