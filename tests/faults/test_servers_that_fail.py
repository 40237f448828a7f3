"""A catalog and a store behind a proxy that fails in all the ways networks do: no losses, no duplicates."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve.lake import Lake
from calve.pipeline.query import Query
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.faults.where import TABLE, Where
from tests.support.changes import at
from tests.support.pipelines import PATIENCE, eventually, until_stalled
from tests.support.servers.lakehouse import Lakehouse
from tests.support.servers.listening import Answer, Request
from tests.support.servers.logins import TokenServer, bearer
from tests.support.servers.proxy import (
    Fault,
    anything,
    commits,
    edited,
    lost,
    lost_with,
    refused,
    reset,
    slow,
    writes,
)

pytestmark = pytest.mark.remote
ORDERS = orders(rows=300, changes=700, per_checkpoint=200)
EXPECTED = expected_orders(ORDERS, 1000)


def started(lake: Lake, where: Where, maintenance: str = "auto") -> Query:
    sink = calve.sink(ORDERS, name="orders", into=lake.table(TABLE), key=["id"])
    options = sink.options(deletes=where.deletes, format_version=where.format_version, maintenance=maintenance)
    return options.start(state=where.state)


def check(lake: Lake, where: Where) -> None:
    table = lake.open().load_table(TABLE)
    assert rows_of(where.rows(table.metadata_location)) == EXPECTED
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary]
    progress = {(s["calve.offsets-digest"], s["calve.commit-id"]) for s in summaries if s.get("calve.commit-id")}
    assert len(progress) == len({digest for digest, _ in progress}), "no batch is committed twice"


def loads(request: Request) -> bool:
    return request.method == "GET" and "/tables/" in request.path


def reads(request: Request) -> bool:
    return request.method in {"GET", "HEAD"} and "/orders/" in request.path


def test_a_catalog_that_fails_in_every_way(lake: Lake, where: Where, lakehouse: Lakehouse) -> None:
    hit = [
        Fault(commits, lost_with(502), after=1),
        Fault(commits, lost, after=1),
        Fault(commits, refused(500), after=2),
        Fault(commits, reset, after=2),
        Fault(commits, refused(429), after=3),
        Fault(commits, refused(503, **{"Retry-After": "1"}), after=3),
        Fault(commits, slow(6), after=3),
        Fault(loads, refused(503, **{"Retry-After": "1"}), after=3, times=2),
        Fault(loads, reset, after=4),
        Fault(loads, slow(6), after=5),
    ]
    lakehouse.catalog_proxy.faults += hit
    impatient = where.lake(lake.home, **{"rest.client.socket-timeout-ms": "3000"})
    assert started(impatient, where).await_termination(180)
    assert [fault for fault in hit if fault.met <= fault.after] == []
    lakehouse.calm()
    check(lake, where)


def test_a_store_that_fails_in_every_way(lake: Lake, where: Where, lakehouse: Lakehouse) -> None:
    """More often in a row than pyarrow tries by itself."""
    hit = [
        Fault(writes, refused(503), after=6, times=4),
        Fault(writes, reset, after=12, times=4),
        Fault(writes, refused(500), after=18, times=4),
        Fault(writes, lost, after=24),
        Fault(writes, slow(4), after=25),
        Fault(reads, refused(500), after=2, times=4),
        Fault(reads, refused(503, **{"Retry-After": "1"}), after=4, times=4),
        Fault(reads, reset, after=6, times=4),
        Fault(anything, refused(429), after=30, times=4),
        Fault(anything, slow(1), after=40),
    ]
    lakehouse.store.proxy.faults += hit
    impatient = where.lake(lake.home, **{"s3.request-timeout": "2"})
    assert started(impatient, where).await_termination(120)
    assert [fault for fault in hit if fault.met <= fault.after] == []
    lakehouse.calm()
    check(lake, where)


def test_a_sink_says_that_its_catalog_is_not_available_and_goes_on_later(
    lake: Lake, where: Where, lakehouse: Lakehouse
) -> None:
    lakehouse.catalog_proxy.faults.append(Fault(commits, refused(503), after=4, times=10_000))
    query = started(lake, where)
    eventually(lambda: query.status().health == "stalled")
    assert "The catalog is not available. A running sink retries" in query.status().hint
    lakehouse.calm()
    assert query.await_termination(120)
    check(lake, where)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "The catalog does not accept the login"),
        (403, "The login is valid but not permitted to do this"),
        (429, "The catalog asks for fewer requests"),
    ],
)
def test_a_catalog_that_lets_nobody_in_for_a_while_stalls_the_sink_and_says_why(
    lake: Lake, where: Where, lakehouse: Lakehouse, status: int, said: str
) -> None:
    lakehouse.catalog_proxy.faults.append(Fault(commits, refused(status), after=4, times=10_000))
    query = started(lake, where)
    until_stalled(query, said)
    lakehouse.calm()
    assert query.await_termination(120)
    check(lake, where)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"expired": True}, "The session token has expired"),
        ({"secret": "rotated"}, "The secret key is wrong"),
        ({"skew": timedelta(hours=1)}, "The clock of this machine is wrong"),
    ],
    ids=["expired", "rotated", "skewed"],
)
def test_a_store_that_lets_nobody_in_for_a_while_stalls_the_sink_and_says_why(
    lake: Lake, where: Where, lakehouse: Lakehouse, change: dict[str, Any], said: str
) -> None:
    signatures = lakehouse.store.signatures
    before = {name: getattr(signatures, name) for name in change}
    at("files.before", 3, lambda: vars(signatures).update(change))
    query = started(lake, where)
    try:
        until_stalled(query, said)
    finally:
        vars(signatures).update(before)
    assert query.await_termination(120)
    check(lake, where)


def newest_alone(answer: dict[str, Any]) -> None:
    """As Nessie has it."""
    metadata = answer.get("metadata", {})
    current = metadata.get("current-snapshot-id")
    metadata["snapshots"] = [s for s in metadata.get("snapshots", []) if s["snapshot-id"] == current]
    metadata["snapshot-log"] = [e for e in metadata.get("snapshot-log", []) if e["snapshot-id"] == current]
    metadata["metadata-log"] = []


def test_a_catalog_that_shows_no_history_is_enough_to_go_on(
    lake: Lake, where: Where, lakehouse: Lakehouse, caplog: pytest.LogCaptureFixture
) -> None:
    lakehouse.catalog_proxy.faults += [
        Fault(commits, lost_with(502), after=2),
        Fault(lambda request: loads(request) or commits(request), edited(newest_alone), times=10_000),
    ]
    first = started(lake, where)
    eventually(lambda: first.status().commits >= 2)
    first.stop()
    assert started(lake, where).await_termination(120)
    assert "shows only its newest snapshot" in caplog.text
    lakehouse.calm()
    check(lake, where)


def test_tokens_that_expire_during_a_run_are_replaced(
    spark: SparkSession, tmp_path: Path, where: Where, lakehouse: Lakehouse
) -> None:
    del spark  # the active session
    tokens = TokenServer("client", "secret", "catalog", seconds=3600)
    door = lakehouse.guarded(bearer(tokens.valid))
    login = {"uri": door.uri, "credential": "client:secret", "oauth2-server-uri": tokens.uri}
    lake = calve.connect(home=tmp_path / "home", **{**where.properties, **login})
    at("commit.before", 3, tokens.revoke)
    assert started(lake, where, maintenance="off").await_termination(120)  # which has a client and a token of its own
    assert tokens.issued == 2
    check(lake, where)
    door.stop()
    tokens.stop()


@pytest.mark.positions
@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), pytest.param(405, "MethodNotAllowed", marks=pytest.mark.soak)]
)
def test_a_store_that_lets_nobody_delete_is_asked_once(
    lake: Lake, where: Where, lakehouse: Lakehouse, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    def deletions(request: Request) -> bool:
        return "/orders/" in request.path and (request.method == "DELETE" or request.path.endswith("?delete"))

    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    refusal = Answer(status, body, {"Content-Type": "application/xml"})
    lakehouse.store.proxy.faults.append(Fault(deletions, lambda _request, _forward: refusal, times=1_000_000))
    query = started(lake, where, maintenance="off")
    assert query.await_termination(PATIENCE)
    check(lake, where)
    asked = [request for request in lakehouse.store.proxy.seen if deletions(request)]
    assert 0 < len(asked) <= 3, "the client tries a request three times at most"
    assert caplog.text.count("refuses to delete key files") == 1
    assert "removal of keys after a commit" not in caplog.text
