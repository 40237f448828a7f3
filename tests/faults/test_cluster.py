"""Kafka into a REST catalog and S3, on a cluster of two machines: machines and drivers die."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

import calve
from calve.source.generator import expected_changes, expected_orders, orders
from calve.spark.java import find_java
from tests.faults.harness import KILLED, rows_of
from tests.support.jvm import QUICK
from tests.support.readers import ROOT, Rows, duckdb_rows, spark_rest_rows
from tests.support.servers import cluster as clusters
from tests.support.servers.cluster import SPARK_HOME, SparkCluster
from tests.support.servers.java import free_port
from tests.support.servers.kafka import PASSWORD as BROKER_PASSWORD
from tests.support.servers.kafka import USER as BROKER_USER
from tests.support.servers.kafka import Kafka, Message
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.listening import Answer, Request
from tests.support.servers.logins import basic
from tests.support.servers.proxy import Fault, Proxy
from tests.support.servers.store import KEY, REGION, SECRET
from tests.support.servers.trino import Trino

USER, PASSWORD = "calve", "wolfram-cluster-password"
WAIT_SECONDS = 240


ORDERS = orders(rows=300, changes=700)
EXPECTED = expected_orders(ORDERS, 1000)
COLUMNS = "id BIGINT NOT NULL, customer INT, amount DECIMAL(12,2), status STRING, updated_at TIMESTAMP"
GENERATED = "CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 300, UPDATES = 700);"


class Topic:
    """The generator's changes as Debezium writes them, with tombstones, in two partitions."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka, self._topic = kafka, kafka.topic(partitions=2)
        self._rows: dict[int, dict[str, Any]] = {}

    @property
    def source(self) -> str:
        """The statements of it."""
        login = f"SASL MECHANISM = 'PLAIN', SASL USERNAME = '{BROKER_USER}', SASL PASSWORD = SECRET b"
        place = f"TOPIC = '{self._topic}', MAX OFFSETS PER CHECKPOINT = 200"
        return f"""
            CREATE SECRET b FROM ENV 'BROKER_PASSWORD';
            CREATE CONNECTION k TO KAFKA (
              BROKER = '{self._kafka.guarded}', SECURITY PROTOCOL = 'sasl_plaintext', {login});
            CREATE SOURCE orders ({COLUMNS}, PRIMARY KEY (id) NOT ENFORCED)
              FROM KAFKA CONNECTION k ({place}) FORMAT JSON ENVELOPE DEBEZIUM;
        """

    def send(self, first: int, last: int) -> None:
        """Changes at these positions."""
        messages: dict[int, list[Message]] = {0: [], 1: []}
        for _, order, row in expected_changes(ORDERS, first, last):
            before = self._rows.pop(order, None)
            if row is not None:
                plain = {"id": row[0], "customer": row[1], "status": row[3]}
                self._rows[order] = {**plain, "amount": str(row[2]), "updated_at": row[4].isoformat()}
            op, after = "d" if row is None else "u" if before else "c", self._rows.get(order)
            found = messages[order % 2]
            found.append(({"id": order}, {"op": op, "before": before, "after": after}))
            found += [({"id": order}, None)] if row is None else []
        for partition, records in messages.items():
            self._kafka.send(self._topic, records, partition)


@dataclass
class Machines:
    """The cluster, and the folder of the driver, which the workers do not see."""

    spark: SparkCluster
    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str]:
        """As a user gives them."""
        quick = {
            name.replace("driver", kind): value for name, value in QUICK.items() for kind in ("driver", "executor")
        }
        return quick | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(ROOT / "src"),  # the preinstalled calve is that of this checkout
            "spark.sql.shuffle.partitions": "2",
        }

    @property
    def options(self) -> list[str]:
        """Of `calve run` and `spark-submit` alike."""
        conf = [part for name, value in self.settings.items() for part in ("--conf", f"{name}={value}")]
        return ["--master", self.spark.url, *conf]

    def run(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """A driver."""
        command = [sys.executable, "-m", "tests.faults.on_cluster", "run", "--home", str(self.folder / "home")]
        return self.spawn([*command, *self.options, *arguments], **environment)

    def spawn(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **paths, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("driver")
    cluster = clusters.started(tmp_path_factory.mktemp("cluster"), folder)
    found = Machines(cluster, folder)
    yield found
    for process in found.processes:
        process.kill()
        process.communicate()
    cluster.stop()


@pytest.fixture
def door(lakehouse: Lakehouse) -> Iterator[Proxy]:
    proxy = lakehouse.guarded(basic(USER, PASSWORD))
    yield proxy
    proxy.stop()


def pipeline(source: str, lakehouse: Lakehouse, door: Proxy, namespace: str) -> str:
    return f"""
        CREATE SECRET k FROM ENV 'STORE_SECRET';
        CREATE SECRET p FROM ENV 'LAKE_PASSWORD';
        CREATE CONNECTION aws TO AWS (
          ACCESS KEY ID = '{KEY}', SECRET ACCESS KEY = SECRET k, REGION = '{REGION}',
          ENDPOINT = '{lakehouse.store.uri}');
        CREATE CONNECTION lake TO ICEBERG CATALOG (
          TYPE = 'rest', URI = '{door.uri}', USER = '{USER}', PASSWORD = SECRET p);
        {source}
        CREATE SINK s FROM orders TO ICEBERG CATALOG lake USING AWS CONNECTION aws NAMESPACE {namespace} TABLE orders
          WITH (STATE LOCATION = 's3://{BUCKET}/state/{namespace}',
                COMMIT INTERVAL = '2s', CHECKPOINT INTERVAL = '1s');
    """


def is_data_file(request: Request) -> bool:
    return request.method == "PUT" and "/orders/data/" in request.path


class Together:
    """Holds uploads of two tasks until both are there, then does something, once."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._both = threading.Barrier(2, action=then)
        self.happened = False

    def __call__(self, request: Request, forward: Callable[[Request], Answer]) -> Answer:
        self._both.wait(WAIT_SECONDS)
        self.happened = True
        return forward(request)


def by_duckdb(lakehouse: Lakehouse, table: Table) -> Rows:
    return duckdb_rows(table.metadata_location, s3=lakehouse.duckdb)


def by_spark(lakehouse: Lakehouse, table: Table) -> Rows:
    return spark_rest_rows(lakehouse.spark, ".".join(table.name()))


@pytest.fixture(params=["duckdb and spark", pytest.param("trino as well", marks=pytest.mark.slow)])
def readers(request: pytest.FixtureRequest) -> list[Callable[[Lakehouse, Table], Rows]]:
    if request.param == "duckdb and spark":
        return [by_duckdb, by_spark]
    trino: Trino = request.getfixturevalue("trino")
    return [by_duckdb, by_spark, lambda _, table: trino.table_rows(".".join(table.name()))]


def test_a_machine_and_then_the_driver_die_and_every_row_is_there_once(
    machines: Machines,
    lakehouse: Lakehouse,
    door: Proxy,
    kafka: Kafka,
    readers: list[Callable[[Lakehouse, Table], Rows]],
) -> None:
    namespace, page, told = new_namespace(), free_port(), list[str]()
    machines.spark.whole(2)
    topic = Topic(kafka)
    topic.send(0, 700)
    (machines.folder / "p.sql").write_text(pipeline(topic.source, lakehouse, door, namespace))
    place = machines.folder / namespace
    events = place / "events"
    events.mkdir(parents=True)
    shown = ["spark.ui.enabled=true", f"spark.ui.port={page}", "spark.eventLog.enabled=true"]
    shown += [f"spark.eventLog.dir={events.as_uri()}", "spark.eventLog.compress=false"]
    secrets = {"STORE_SECRET": SECRET, "LAKE_PASSWORD": PASSWORD, "BROKER_PASSWORD": BROKER_PASSWORD}
    arguments = [
        "p.sql",
        "--until-caught-up",
        "--home",
        str(place / "home"),
        *(part for text in shown for part in ("--conf", text)),
    ]

    def machine_dies() -> None:
        told.append(environment_page(page))
        machines.spark.workers.pop(0).kill()

    in_the_middle = Together(machine_dies)
    lakehouse.store.proxy.faults.append(Fault(is_data_file, in_the_middle, times=2))
    first = machines.run(*arguments, CALVE_FAULTS="commit.after:3=kill", **secrets)
    told += first.communicate(timeout=WAIT_SECONDS)
    assert first.returncode == KILLED, told[-1]
    assert in_the_middle.happened
    machines.spark.await_workers(1)

    topic.send(700, 1000)
    second = machines.run(*arguments, **secrets)
    told += second.communicate(timeout=WAIT_SECONDS)
    assert second.returncode == 0, told[-1]
    table = calve.connect(**lakehouse.properties).open().load_table(f"{namespace}.orders")
    for rows in readers:
        assert rows_of(rows(lakehouse, table)) == EXPECTED
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary]
    told_by = {(s["calve.offsets-digest"], s["calve.commit-id"]) for s in summaries if s.get("calve.commit-id")}
    assert len({digest for digest, _ in told_by}) == len(told_by), "no batch is committed twice"

    kept = [*machines.spark.logs, *place.glob("events/**/*"), *place.glob("home/logs/*")]
    told += [path.read_bytes().decode(errors="replace") for path in kept if path.is_file()]
    assert any("SparkListenerEnvironmentUpdate" in text for text in told)
    assert [secret for secret in secrets.values() if any(secret in text for text in told)] == []


def environment_page(port: int) -> str:
    """What Spark's page tells everybody about a driver."""
    base = f"http://127.0.0.1:{port}/api/v1/applications"
    with urllib.request.urlopen(base, timeout=10) as answer:
        application = answer.read().decode().split('"id" : "')[1].split('"')[0]
    with urllib.request.urlopen(f"{base}/{application}/environment", timeout=10) as answer:  # noqa: S310 - the same
        return str(answer.read().decode())


OWN_SCRIPT = """
import json
import sys
from pyspark.sql import SparkSession
import calve

home, properties, table, state, own = sys.argv[1:]
settings = json.loads(own)
if settings:
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    source = spark.range(1000).withColumnRenamed("id", "key")
else:
    source = calve.orders(rows=100, changes=900)
lake = calve.connect(home=home, **json.loads(properties))
query = calve.sink(source, name="s", into=lake.table(table), key=["key" if settings else "id"]).start(state=state)
query.await_termination(200)
print(json.dumps([lake.spark().sparkContext.master, query.status().rows]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("submitted", [True, False])
def test_a_script_uses_the_session_that_it_was_submitted_with_or_that_it_made_itself(
    machines: Machines, lakehouse: Lakehouse, *, submitted: bool
) -> None:
    script = machines.folder / "script.py"
    script.write_text(OWN_SCRIPT)
    namespace = new_namespace()
    own = {} if submitted else {"spark.master": machines.spark.url, **machines.settings}
    place = [f"{namespace}.s", f"s3://{BUCKET}/state/{namespace}"]
    arguments = [str(machines.folder / "home"), json.dumps(lakehouse.properties), *place, json.dumps(own)]
    java = {"JAVA_HOME": str(find_java(machines.folder / "java", os.environ)), "SPARK_HOME": str(SPARK_HOME)}
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), *machines.options] if submitted else [sys.executable]
    driver = machines.spawn([*submit, str(script), *arguments], PYSPARK_PYTHON=sys.executable, **java)
    out, err = driver.communicate(timeout=WAIT_SECONDS)
    assert driver.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == [machines.spark.url, 1000]


@pytest.mark.slow
def test_executors_without_calve_are_an_error_that_says_so(
    machines: Machines, lakehouse: Lakehouse, door: Proxy, tmp_path: Path
) -> None:
    venv.create(tmp_path / "empty")
    (machines.folder / "p.sql").write_text(pipeline(GENERATED, lakehouse, door, new_namespace()))
    without = {"spark.executorEnv.PYTHONPATH": "", "spark.pyspark.python": f"{tmp_path}/empty/bin/python"}
    options = [part for name, value in without.items() for part in ("--conf", f"{name}={value}")]
    arguments = ["p.sql", "--until-caught-up", "--home", str(tmp_path / "home"), *options]
    driver = machines.run(*arguments, STORE_SECRET=SECRET, LAKE_PASSWORD=PASSWORD)
    out, err = driver.communicate(timeout=WAIT_SECONDS)
    assert driver.returncode == 1
    assert 'Spark\'s executors cannot import the package "calve"' in out
    assert "docs/cluster.md" in err
