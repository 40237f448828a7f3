"""Roles of AWS: assumed by the driver, renewed before they expire, handed to tasks without the keys behind them."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve.errors import TransientError
from calve.pipeline.lakes import connected_lake
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.logins import Signatures
from tests.support.servers.proxy import Proxy
from tests.support.servers.roles import RoleServer
from tests.support.servers.store import REGION

ROLE = "arn:aws:iam::123456789012:role/writer"
HOLDER = Signatures("holder-key", "wolfram-holder-secret", REGION, "sts")
TOLD, GOOD = timedelta(minutes=15, seconds=2), timedelta(seconds=6)
"""Clients ask again a quarter of an hour before the end that they are told: two seconds after they got credentials."""


@pytest.fixture
def roles(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[RoleServer]:
    server = RoleServer(HOLDER, ROLE, TOLD, GOOD, lakehouse.store.signatures.issued)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.uri)
    yield server
    server.stop()


@pytest.fixture
def door(lakehouse: Lakehouse, roles: RoleServer) -> Iterator[Proxy]:
    """The catalog, for those who sign with credentials of the role."""
    proxy = lakehouse.guarded(Signatures("nobody", "", REGION, "execute-api", issued=roles.issued).in_json)
    yield proxy
    proxy.stop()


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


def aws(lakehouse: Lakehouse, *, secret: str = HOLDER.secret, role: str = ROLE) -> str:
    keys = f"ACCESS KEY ID = '{HOLDER.key}', SECRET ACCESS KEY = '{secret}', REGION = '{REGION}'"
    taken = f"ASSUME ROLE ARN = '{role}', ASSUME ROLE SESSION NAME = 'nightly'"
    return f"CREATE CONNECTION aws TO AWS ({keys}, {taken}, ENDPOINT = '{lakehouse.store.uri}');"


@pytest.mark.slow
def test_credentials_of_a_role_are_renewed_before_they_expire_and_tasks_have_no_others(
    pipelines: Pipelines, lakehouse: Lakehouse, roles: RoleServer, door: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.write.batch.DRIVER_ROWS", 10)  # all is written by tasks, which do not find the server
    namespace = new_namespace()
    (ended,) = pipelines.run(f"""
        {aws(lakehouse)}
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'rest', URI = '{door.uri}', AWS CONNECTION = aws);
        CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 400, UPDATES = 2000, MAX ROWS PER CHECKPOINT = 100);
        CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE {namespace} TABLE orders
          WITH (STATE LOCATION = 's3://{BUCKET}/state/{namespace}');
    """)
    assert ended.cause is None
    table = connected_lake(pipelines.home, "lake").open().load_table(f"{namespace}.orders")
    expected = expected_orders(orders(rows=400, changes=2_000), 2_400)
    assert rows_of(duckdb_rows(table.metadata_location, s3=lakehouse.duckdb)) == expected
    assert len(roles.sessions) > 2, "they were renewed"
    assert set(roles.sessions) == {"nightly"}
    seen = [*lakehouse.store.proxy.seen, *door.seen]
    assert not [request for request in seen if HOLDER.key in request.header("Authorization")]
    puts = [request for request in seen if request.method == "PUT" and "/data/" in request.path]
    assert len({request.header("X-Amz-Security-Token") for request in puts}) > 2


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"secret": "tantalum"}, "The secret key is wrong"),
        ({"role": f"{ROLE}s"}, "These credentials may not assume the role"),
    ],
)
def test_a_role_that_cannot_be_assumed_says_why(
    wrong: dict[str, str], hint: str, pipelines: Pipelines, lakehouse: Lakehouse, roles: RoleServer
) -> None:
    with pytest.raises(TransientError) as raised:
        pipelines.apply(f"{aws(lakehouse, **wrong)} VALIDATE CONNECTION aws")
    assert raised.value.hint.startswith(hint)
    assert "tantalum" not in str(raised.value)
    assert not roles.sessions
