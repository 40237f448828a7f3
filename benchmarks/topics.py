"""Reading a topic: by calve's own tasks, by Spark's connector, and as part of a sink, compared with the same in files.

    PYTHONPATH=. python benchmarks/topics.py [--records 400000]

A broker is started as in the tests (`make servers` fetches it, and the connector's jars). All is done by one session in
turns, the best of three counts. The first ratio is that of reading alone (key, value, place), the second that of
keeping a table equal to the records: to the same records, in order, as files of JSON.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import Case, add_arguments, recording
from pyspark.sql import DataFrame, SparkSession

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
TURNS = 3
COLUMNS = "id BIGINT NOT NULL, customer INT, amount DOUBLE, status STRING"


def records(count: int) -> list[tuple[dict[str, int], dict[str, object]]]:
    """Upserts of keys that come four times each."""
    keys = max(count // 4, 1)
    return [
        ({"id": n % keys}, {"id": n % keys, "customer": n % 977, "amount": n / 4, "status": "PAID", "seq": n})
        for n in range(count)
    ]


def turns(action: Callable[[], object]) -> list[float]:
    """Seconds of some turns."""
    found = []
    for _ in range(TURNS):
        started = time.monotonic()
        action()
        found.append(time.monotonic() - started)
    return found


def consumed(frame: DataFrame) -> None:
    """Compute every row, keep none."""
    frame.write.format("noop").mode("overwrite").save()


def by_calve(spark: SparkSession, brokers: str, topic: str, folder: Path) -> DataFrame:
    """All records, by calve's tasks."""
    definition = Kafka(BrokerAccess(brokers), topic, NoEnvelope())
    source: KafkaSource = definition.open(LocalState(folder), SystemClock())
    return frame_of(source.frame(spark, None, source.next_end(None, whole=True)))


def by_connector(spark: SparkSession, brokers: str, topic: str) -> DataFrame:
    """All records, by Spark's connector."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    return reader.load().select("key", "value", "topic", "partition", "offset")


def taken_in(lake: Lake, source: SourceDefinition, name: str) -> float:
    """Seconds to keep a table equal to a source, from the start of the sink to its last commit."""
    started = time.monotonic()
    query = calve.sink(source, name=name, into=lake.table(f"b.{name}"), key=["id"]).start()
    query.await_caught_up(timeout=600)
    seconds = time.monotonic() - started
    query.stop()
    return seconds


def main() -> None:
    """Measure and print."""
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
            reading = Case(f"{count:,} records, read alone", "s", CONNECTOR)
            results.add(
                reading, "calve", turns(lambda: consumed(by_calve(spark, broker.brokers, topic, folder / "state")))
            )
            results.add(reading, CONNECTOR, turns(lambda: consumed(by_connector(spark, broker.brokers, topic))))
            ours, theirs = (min(one["values"]) for one in results.results)
            print(f"reading alone: {count / ours:,.0f} records/s, Spark's connector {count / theirs:,.0f}: ", end="")
            print(f"{theirs / ours:.2f} times its speed")
            lake = calve.connect(home=folder / "home")
            envelope = calve.Upsert(order_by=("seq",), columns=COLUMNS)
            times: dict[str, list[float]] = {"topic": [], "files": []}
            for turn in range(TURNS):
                sources: dict[str, SourceDefinition] = {
                    "topic": calve.kafka(broker.brokers, topic, envelope=calve.Upsert(columns=COLUMNS)),
                    "files": calve.files(folder / "in", format="json", envelope=envelope),
                }
                for name, source in sources.items():
                    times[name].append(taken_in(lake, source, f"{name}{turn}"))
            table = Case(f"{count:,} records, into a table", "s", "the same in files of JSON")
            results.add(table, "calve, topic", times["topic"])
            results.add(table, table.peer, times["files"])
            whole, files = min(times["topic"]), min(times["files"])
            print(f"into a table: {count / whole:,.0f} records/s, from files {count / files:,.0f}: ", end="")
            print(f"{files / whole:.2f} times their speed")
            spark.stop()
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
