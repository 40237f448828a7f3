"""Reading a topic: by calve's own tasks and by Spark's connector, alone and into a table, beside the same in files.

    PYTHONPATH=. python benchmarks/topics.py [--records 400000]

A broker is started as in the tests (`make servers` fetches it, and the connector's jars). All is done by one session in
turns: reading alone (key, value, place); then the initial load, from the start of a sink to its last commit, of the
topic and of the same records, in order, as files of JSON. Its peer is what Spark itself does with the topic: the
connector, `from_json`, Parquet files; no key, no table. DuckDB compares every table with the last record of each key.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import Case, add_arguments, recording
from peer_reader import read_by_duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import calve
from calve.clock import SystemClock
from calve.lake import Lake
from calve.model.spec import NoEnvelope
from calve.records.frames import frame_of
from calve.source.kafka.brokers import BrokerAccess
from calve.source.kafka.definition import Kafka, KafkaSource
from calve.source.port import SourceDefinition
from calve.spark.session import embedded_session
from calve.storage.state import LocalState
from tests.support.servers import kafka as servers
from tests.support.servers.java import jars_of

PARTITIONS = 4
CONNECTOR = "Spark's connector"
PARQUET = "Spark's connector to Parquet"
TURNS = 3
COLUMNS = "id BIGINT NOT NULL, customer INT, amount DOUBLE, status STRING"
CHECK = "rows and sum, by DuckDB"


def records(count: int) -> list[tuple[dict[str, int], dict[str, Any]]]:
    """Upserts of keys that come four times each."""
    keys = max(count // 4, 1)
    return [
        ({"id": n % keys}, {"id": n % keys, "customer": n % 977, "amount": n / 4, "status": "PAID", "seq": n})
        for n in range(count)
    ]


def in_turns(actions: Mapping[str, Callable[[int], float]]) -> dict[str, list[float]]:
    """What actions return, which get the number of their turn."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(TURNS):
        for name, action in actions.items():
            found[name].append(action(turn))
    return found


def consumed(frame: DataFrame) -> float:
    """Seconds to compute every row and keep none."""
    started = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started


def written(frame: DataFrame, folder: Path) -> float:
    """Seconds of Spark's own write of the records of a topic."""
    started = time.monotonic()
    values = frame.select(F.from_json(frame["value"].cast("string"), COLUMNS).alias("record")).select("record.*")
    values.write.parquet(str(folder))
    return time.monotonic() - started


def by_calve(spark: SparkSession, brokers: str, topic: str, folder: Path) -> DataFrame:
    """All records, by calve's tasks."""
    definition = Kafka(BrokerAccess(brokers), topic, NoEnvelope())
    source: KafkaSource = definition.open(LocalState(folder), SystemClock())
    return frame_of(source.frame(spark, None, source.next_end(None, whole=True)))


def by_connector(spark: SparkSession, brokers: str, topic: str) -> DataFrame:
    """All records, by Spark's connector."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    return reader.load().select("key", "value", "topic", "partition", "offset")


def taken_in(lake: Lake, source: SourceDefinition, name: str, expected: tuple[int, float]) -> float:
    """Seconds to keep a table equal to a source, from the start of the sink to its last commit.

    Raises SystemExit if the table does not have the expected rows and sum.
    """
    started = time.monotonic()
    query = calve.sink(source, name=name, into=lake.table(f"b.{name}"), key=["id"]).start()
    query.await_caught_up(timeout=600)
    seconds = time.monotonic() - started
    query.stop()
    found = read_by_duckdb(lake.open().load_table(f"b.{name}").metadata_location)
    if found != expected:
        raise SystemExit(f"the table {name} is wrong: {found}, expected {expected}")
    return seconds


def main() -> None:
    """Measure, check and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    add_arguments(parser)
    given = parser.parse_args()
    count = given.records
    with (
        recording("topics", "Reading a topic", given) as results,
        tempfile.TemporaryDirectory(prefix="calve-bench-") as scratch,
    ):
        folder = Path(scratch)
        (folder / "kafka").mkdir()
        (folder / "in").mkdir()
        broker = servers.started(folder / "kafka")
        try:
            jars = ",".join(str(jar) for jar in jars_of("spark-kafka").glob("*.jar"))
            spark = embedded_session(folder / "home", master="local[2]", conf={"spark.jars": jars})
            made, topic = records(count), broker.topic(PARTITIONS)
            for number in range(PARTITIONS):
                broker.send(topic, (r for r in made if r[0]["id"] % PARTITIONS == number), number)
                part = made[count * number // PARTITIONS : count * (number + 1) // PARTITIONS]
                text = "\n".join(json.dumps(value) for _, value in part)
                (folder / "in" / f"{number}.json").write_text(text + "\n")
            readers: dict[str, Callable[[int], float]] = {
                "calve": lambda _: consumed(by_calve(spark, broker.brokers, topic, folder / "state")),
                CONNECTOR: lambda _: consumed(by_connector(spark, broker.brokers, topic)),
            }
            for name, values in in_turns(readers).items():
                results.add(Case(f"{count:,} records, read alone", "s", CONNECTOR), name, values)
            lake = calve.connect(home=folder / "home")
            last = {key["id"]: value["amount"] for key, value in made}
            expected = len(last), sum(last.values())
            kafka = calve.kafka(broker.brokers, topic, envelope=calve.Upsert(columns=COLUMNS))
            files = calve.files(folder / "in", format="json", envelope=calve.Upsert(order_by=("seq",), columns=COLUMNS))
            loads: dict[str, Callable[[int], float]] = {
                "calve, topic": lambda turn: taken_in(lake, kafka, f"topic{turn}", expected),
                "calve, files of JSON": lambda turn: taken_in(lake, files, f"files{turn}", expected),
                PARQUET: lambda turn: written(by_connector(spark, broker.brokers, topic), folder / f"written{turn}"),
            }
            for name, values in in_turns(loads).items():
                results.add(Case(f"{count:,} records, initial load", "s", PARQUET, CHECK), name, values)
            spark.stop()
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
