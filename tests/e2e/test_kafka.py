"""Topics of a real broker into tables, read back by DuckDB."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.errors import CalveError
from calve.runtime.supervisor import Ending, SinkResult
from tests.support.pipelines import Pipelines
from tests.support.servers.kafka import Kafka, Message

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
COLUMNS = "id BIGINT NOT NULL, value STRING, PRIMARY KEY (id) NOT ENFORCED"
SINK = """CREATE SINK s FROM o TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "t" """


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


def source(kafka: Kafka, topic: str, rest: str, columns: str = COLUMNS, options: str = "") -> str:
    """Statements of a source, with all that it needs."""
    connection = f"CREATE CONNECTION k TO KAFKA (BROKER = '{kafka.brokers}');"
    return (
        f"{LAKE} {connection} CREATE SOURCE o ({columns}) FROM KAFKA CONNECTION k (TOPIC = '{topic}'{options}) {rest};"
    )


def upsert(key: int, value: Any) -> Message:
    return {"id": key}, None if value is None else {"id": key, "value": value}


def done(results: list[SinkResult]) -> None:
    assert [(r.ending, r.cause) for r in results] == [(Ending.DONE, None)]


def cause_of(results: list[SinkResult]) -> CalveError:
    (result,) = results
    assert isinstance(result.cause, CalveError)
    return result.cause


def test_upserts_of_several_partitions_follow_their_offsets_and_null_values_delete(
    pipelines: Pipelines, kafka: Kafka
) -> None:
    topic = kafka.topic(partitions=2)
    kafka.send(topic, [upsert(1, "a"), upsert(2, "b"), upsert(1, "c"), upsert(2, None)], partition=0)
    kafka.send(topic, [upsert(11, "x"), upsert(12, "y"), upsert(12, "aborted")], partition=1)
    statements = source(kafka, topic, "FORMAT JSON ENVELOPE UPSERT", options=", MAX OFFSETS PER CHECKPOINT = 3") + SINK
    done(pipelines.run(statements))
    assert pipelines.rows("x.t") == [(1, "c"), (11, "x"), (12, "aborted")]
    kafka.send(topic, [upsert(12, "gone")], partition=1, transaction="abort")
    kafka.send(topic, [upsert(12, None), upsert(2, "again")], partition=1, transaction="commit")
    done(pipelines.run())
    assert pipelines.rows("x.t") == [(1, "c"), (2, "again"), (11, "x")]
    snapshots = len(pipelines.table("x.t").snapshots())
    done(pipelines.run())
    assert len(pipelines.table("x.t").snapshots()) == snapshots, "nothing new, nothing committed"


LETTERS = ("topic", "partition", "offset", "key", "value", "reason")


def test_bad_rows_stop_the_sink_or_become_letters_and_are_never_there_twice(pipelines: Pipelines, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, [upsert(1, "a"), (b"k", b"{not json"), upsert(2, "b"), ({"id": 3}, {"id": "x"}), (b"?", None)])
    statements = source(kafka, topic, "FORMAT JSON ENVELOPE UPSERT") + SINK
    halted = cause_of(pipelines.run(statements))
    assert f"topic {topic} partition 0 offset" in halted.detail
    done(pipelines.run("ALTER SINK s SET (ON BAD ROW = 'dead letter')"))
    assert pipelines.rows("x.t") == [(1, "a"), (2, "b")]
    letters = pipelines.rows("x.t_dead_letters", *LETTERS)
    assert [row[:5] for row in letters] == [
        (topic, 0, 1, b"k", b"{not json"),
        (topic, 0, 3, b'{"id": 3}', b'{"id": "x"}'),
        (topic, 0, 4, b"?", None),
    ]
    assert 'column "id" is "x", which is not BIGINT' in letters[1][5]
