"""Intervals have the same meaning for streaming DataFrames as for calve's own sources."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve.lake import TableRef
from calve.pipeline.sink import Sink
from tests.support.pipelines import eventually
from tests.support.readers import duckdb_rows

FILES = 5


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> TableRef:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}, "v": "a"}}\n')
    del spark  # in this session, which is the active one
    return calve.connect(home=tmp_path / "home").table("shop.t")


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path, table: TableRef) -> Sink:
    reader = spark.readStream.schema("id BIGINT, v STRING").option("maxFilesPerTrigger", "1")
    return calve.sink(reader.json(str(tmp_path / "in")), name="s", into=table, key=["id"])


def ids(table: TableRef) -> list[int]:
    location = table.lake.open().load_table(table.name.identifier).metadata_location
    return sorted(row["id"] for row in duckdb_rows(location))


def test_a_backlog_of_a_streaming_query_is_read_at_once_and_becomes_one_snapshot(sink: Sink, table: TableRef) -> None:
    query = sink.start(commit_interval="24h")
    eventually(lambda: query.status().staged == FILES)
    assert query.status().commits == 0
    query.await_caught_up(120)
    assert [commit.changes for commit in query.recent_commits()] == [FILES]
    query.stop()
    assert ids(table) == list(range(FILES))


def test_a_streaming_query_rests_for_its_checkpoint_interval_until_somebody_waits_for_all(
    sink: Sink, table: TableRef
) -> None:
    query = sink.start(commit_interval="24h", checkpoint_interval="12h")
    eventually(lambda: query.status().staged == 1)
    query.await_caught_up(120)
    query.stop()
    assert ids(table) == list(range(FILES))


def test_an_idle_streaming_query_lets_time_follow_the_clock(sink: Sink, table: TableRef) -> None:
    query = sink.times("id", watermark_delay="1h", idle_timeout="1s").start()
    eventually(lambda: sum(commit.changes for commit in query.recent_commits()) == FILES)
    query.stop()
    assert ids(table) == list(range(FILES))
