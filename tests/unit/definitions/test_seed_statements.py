"""The statements of the design, pasted as they are apart from addresses, are planned; so is today's spelling."""

from pathlib import Path
from typing import NoReturn

import pytest

from calve.definitions.objects import Definition
from calve.definitions.workplace import Workplace, workplace
from calve.errors import TransientError
from calve.model.connection import AwsConnection, CatalogType, Login
from calve.plan.sinks import plan_sink
from calve.sql.parser import parse
from calve.sql.statements import CreateSink, ObjectKind
from calve.statements.execute import execute

SEED = """
CREATE CONNECTION iceberg_s3_conn TO AWS (
    ACCESS KEY ID = "ABC123",
    SECRET ACCESS KEY = "....",
    REGION = "eu-west-1",
);
CREATE CONNECTION iceberg_catalog_connection TO ICEBERG CATALOG (
    TYPE = 'rest', -- technically these are both REST, but the authentication schemes are different
    URI = 'http://127.0.0.1:1/api/catalog', -- REST
    USER  = 'materialize', -- REST
    PASSWORD SECRET = iceberg_pass, -- REST
) WITH (VALIDATE = false);
CREATE CONNECTION s3_tables TO ICEBERG CATALOG (
    TYPE = 's3table',
    AWS CONNECTION = "iceberg_s3_conn", -- S3Table
    WAREHOUSE = 'arn:aws:s3tables:eu-west-1:1:bucket/b', --- S3Table, this would be the table ARN
) WITH (VALIDATE = false);
"""
SINK = """
CREATE SINK iceberg_sink
FROM my_favorite_materialized_view
TO ICEBERG CATALOG iceberg_catalog_connection
USING AWS CONNECTION iceberg_s3_conn
NAMESPACE "namespace_name" TABLE "table_name"
WITH (
    COMMIT INTERVAL = '20m', -- commit data to the iceberg table every 20 minutes of MZ time, optional.
);
"""
TODAY = """
CREATE SINK today FROM my_favorite_materialized_view
INTO ICEBERG CATALOG CONNECTION iceberg_catalog_connection (NAMESPACE = 'namespace_name', TABLE = 'table_name')
USING AWS CONNECTION iceberg_s3_conn
KEY (id) NOT ENFORCED
MODE UPSERT
WITH (COMMIT INTERVAL = '1m');
"""


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    made = workplace(tmp_path, no_spark, {"PW": "x"})
    source = "CREATE SOURCE my_favorite_materialized_view FROM LOAD GENERATOR orders;"
    for statement in parse(f"CREATE SECRET iceberg_pass FROM ENV 'PW'; {source}{SEED}"):
        execute(made, statement)
    return made


@pytest.mark.parametrize(("text", "minutes"), [(SINK, 20), (TODAY, 1)], ids=["seed", "today"])
def test_the_sink_of_the_design_is_planned(place: Workplace, text: str, minutes: int) -> None:
    (statement,) = parse(text)
    assert isinstance(statement, CreateSink)
    plan = plan_sink(Definition("uid", 1, statement), place.definitions())
    assert str(plan.spec.table) == "namespace_name.table_name"
    assert plan.spec.key == ("id",)
    assert plan.commit_every is not None
    assert plan.commit_every.total_seconds() == 60 * minutes
    assert (plan.catalog.type, plan.catalog.user, plan.catalog.login) == (CatalogType.REST, "materialize", Login.BASIC)
    assert isinstance(plan.store, AwsConnection)
    assert (plan.store.access_key_id, plan.store.region) == ("ABC123", "eu-west-1")


def test_a_catalog_that_is_out_of_reach_stops_the_sink_and_shows_no_password(place: Workplace) -> None:
    (statement,) = parse(SINK)
    with pytest.raises(TransientError) as caught:
        execute(place, statement)
    assert "127.0.0.1:1" in str(caught.value)
    assert place.definitions().of(ObjectKind.SINK) == []
