"""A topic as a streaming DataFrame of Spark's own connector, in a session of the user's with the connector's jars."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from tests.support.jvm import QUICK
from tests.support.readers import ROOT, duckdb_rows
from tests.support.servers.java import jars_of
from tests.support.servers.kafka import Kafka

SCRIPT = """
import json, shutil, sys
from pathlib import Path
import calve
from calve.spark.session import embedded_session

home, brokers, topic, conf = Path(sys.argv[1]), *sys.argv[2:]
spark = embedded_session(home, master="local[2]", conf=json.loads(conf))
lake = calve.connect(home=home)
for _ in range(2):
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    frame = reader.option("startingOffsets", "earliest").load()
    envelope = calve.Upsert(columns="id BIGINT NOT NULL, value STRING")
    sink = calve.sink(frame, name="s", into=lake.table("x.t"), key=["id"], envelope=envelope)
    query = sink.options(on_bad_row="dead letter").start()
    query.await_caught_up(timeout=120)
    query.stop()
    shutil.rmtree(home / "spark")
    print("caught up", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_lost_checkpoint_of_spark_goes_on_at_the_offsets_in_the_table(tmp_path: Path, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    kafka.send(topic, [({"id": n}, {"id": n, "value": "a"}) for n in range(3)], partition=0)
    conf = {**QUICK, "spark.jars": ",".join(map(str, jars_of("spark-kafka").glob("*.jar")))}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), kafka.brokers, topic, json.dumps(conf)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "caught up\n"
        kafka.send(topic, [({"id": 1}, None), (b"k", b"{not json"), ({"id": 3}, {"id": 3, "value": "b"})], partition=0)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "caught up\n"
        process.stdin.close()
        assert process.wait(60) == 0
    catalog = connect_embedded(tmp_path)
    rows = duckdb_rows(catalog.load_table("x.t").metadata_location)
    assert sorted((row["id"], row["value"]) for row in rows) == [(0, "a"), (2, "a"), (3, "b")]
    letters = duckdb_rows(catalog.load_table("x.t_dead_letters").metadata_location)
    assert [(row["topic"], row["offset"], row["value"]) for row in letters] == [(topic, 4, b"{not json")]
