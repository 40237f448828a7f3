"""A pipeline on a cluster of two machines, with everything in a REST catalog and S3: machines and drivers die."""

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import calve
from calve.source.generator import OrderRow, expected_orders, orders
from tests.faults.harness import KILLED, rows_of
from tests.support.jvm import QUICK
from tests.support.readers import ROOT, duckdb_rows, spark_rest_rows
from tests.support.servers import cluster as clusters
from tests.support.servers.cluster import SparkCluster
from tests.support.servers.java import free_port
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.listening import Answer, Request
from tests.support.servers.logins import basic
from tests.support.servers.proxy import Fault, Proxy
from tests.support.servers.store import KEY, REGION, SECRET

USER, PASSWORD = "calve", "wolfram-cluster-password"
WAIT_SECONDS = 240


@dataclass(frozen=True)
class Input:
    """Where the changes come from, and what the table is in the end."""

    source: str
    expected: dict[int, OrderRow]


GENERATED = Input(
    "CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 400, UPDATES = 1200, MAX ROWS PER CHECKPOINT = 200);",
    expected_orders(orders(rows=400, changes=1200), 1600),
)


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

    def run(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """A driver."""
        command = [sys.executable, "-m", "tests.faults.on_cluster", "run", *arguments, "--master", self.spark.url]
        conf = [part for name, value in self.settings.items() for part in ("--conf", f"{name}={value}")]
        return self.spawn([*command, "--home", str(self.folder / "home"), *conf], **environment)

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


def pipeline(given: Input, lakehouse: Lakehouse, door: Proxy, namespace: str) -> str:
    return f"""
        CREATE SECRET k FROM ENV 'STORE_SECRET';
        CREATE SECRET p FROM ENV 'LAKE_PASSWORD';
        CREATE CONNECTION aws TO AWS (
          ACCESS KEY ID = '{KEY}', SECRET ACCESS KEY = SECRET k, REGION = '{REGION}',
          ENDPOINT = '{lakehouse.store.uri}');
        CREATE CONNECTION lake TO ICEBERG CATALOG (
          TYPE = 'rest', URI = '{door.uri}', USER = '{USER}', PASSWORD = SECRET p);
        {given.source}
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


def test_a_machine_and_then_the_driver_die_and_every_row_is_there_once(
    machines: Machines, lakehouse: Lakehouse, door: Proxy
) -> None:
    namespace, page, told = new_namespace(), free_port(), list[str]()
    (machines.folder / "p.sql").write_text(pipeline(GENERATED, lakehouse, door, namespace))
    events = machines.folder / "events"
    events.mkdir()
    shown = ["spark.ui.enabled=true", f"spark.ui.port={page}", "spark.eventLog.enabled=true"]
    shown += [f"spark.eventLog.dir={events.as_uri()}", "spark.eventLog.compress=false"]
    secrets = {"STORE_SECRET": SECRET, "LAKE_PASSWORD": PASSWORD}
    arguments = ["p.sql", "--until-caught-up", *(part for text in shown for part in ("--conf", text))]

    def machine_dies() -> None:
        told.append(environment_page(page))
        machines.spark.workers[0].kill()

    in_the_middle = Together(machine_dies)
    lakehouse.store.proxy.faults.append(Fault(is_data_file, in_the_middle, times=2))
    first = machines.run(*arguments, CALVE_FAULTS="commit.after:3=kill", **secrets)
    told += first.communicate(timeout=WAIT_SECONDS)
    assert first.returncode == KILLED, told[-1]
    assert in_the_middle.happened
    machines.spark.await_workers(1)

    second = machines.run(*arguments, **secrets)
    told += second.communicate(timeout=WAIT_SECONDS)
    assert second.returncode == 0, told[-1]
    table = calve.connect(**lakehouse.properties).open().load_table(f"{namespace}.orders")
    assert rows_of(duckdb_rows(table.metadata_location, s3=lakehouse.duckdb)) == GENERATED.expected
    assert rows_of(spark_rest_rows(lakehouse.spark, f"{namespace}.orders")) == GENERATED.expected
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary]
    told_by = {(s["calve.offsets-digest"], s["calve.commit-id"]) for s in summaries if s.get("calve.commit-id")}
    assert len({digest for digest, _ in told_by}) == len(told_by), "no batch is committed twice"

    kept = [*machines.spark.logs, *machines.folder.glob("events/**/*"), *machines.folder.glob("home/logs/*")]
    told += [path.read_bytes().decode(errors="replace") for path in kept if path.is_file()]
    assert any("SparkListenerEnvironmentUpdate" in text for text in told)
    assert [secret for secret in (SECRET, PASSWORD) if any(secret in text for text in told)] == []


def environment_page(port: int) -> str:
    """What Spark's page tells everybody about a driver."""
    base = f"http://127.0.0.1:{port}/api/v1/applications"
    with urllib.request.urlopen(base, timeout=10) as answer:
        application = answer.read().decode().split('"id" : "')[1].split('"')[0]
    with urllib.request.urlopen(f"{base}/{application}/environment", timeout=10) as answer:  # noqa: S310 - the same
        return str(answer.read().decode())
