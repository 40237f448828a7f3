"""A broker that is killed in the middle of a checkpoint and comes back: every record is a row, once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.model.health import Status
from tests.support.changes import at
from tests.support.pipelines import Pipelines, Running, eventually
from tests.support.servers import kafka as brokers
from tests.support.servers.kafka import Kafka

PIPELINE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE CONNECTION k TO KAFKA (BROKER = '{0}');
CREATE SOURCE o (id BIGINT NOT NULL)
  FROM KAFKA CONNECTION k (TOPIC = '{1}', MAX OFFSETS PER CHECKPOINT = 10) FORMAT JSON ENVELOPE NONE;
CREATE SINK s FROM o TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "t" MODE APPEND;
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Kafka]:
    """A broker that no other test uses."""
    (tmp_path / "broker").mkdir()
    running = brokers.started(tmp_path / "broker")
    yield running
    running.stop()


def status(running: Running) -> Status | None:
    query = next((runner.query for runner in running.supervisor.runners), None)
    return query.status() if query else None


@pytest.mark.slow
@pytest.mark.parametrize("point", ["files.before", "record.after"])
def test_a_broker_that_is_away_for_a_while_stalls_the_sink_and_nothing_is_lost_or_twice(
    point: str, broker: Kafka, tmp_path: Path, spark: SparkSession
) -> None:
    """It goes before the records of a checkpoint are read, or after them."""
    pipelines, topic = Pipelines(tmp_path / "home", spark), broker.topic(partitions=2)
    for partition in (0, 1):
        broker.send(topic, [(None, {"id": n}) for n in range(partition, 60, 2)], partition)
    pipelines.apply(PIPELINE.format(broker.brokers, topic))
    at(point, 3, broker.kill)
    with pipelines.started() as running:
        eventually(lambda: (found := status(running)) is not None and found.health == "stalled")
        stalled = status(running)
        assert stalled is not None
        assert broker.brokers in stalled.cause, stalled.cause
        landed = [row for (row,) in pipelines.rows("x.t", "id")]
        assert 0 < len(landed) < 60
        assert len(set(landed)) == len(landed)
        broker.come_back()
        broker.send(topic, [(None, {"id": n}) for n in range(60, 90)])
        eventually(lambda: len(pipelines.rows("x.t")) >= 90)
        eventually(lambda: (found := status(running)) is not None and found.health == "running")
    assert [result.cause for result in running.results] == [None]
    assert [row for (row,) in pipelines.rows("x.t", "id")] == list(range(90))
