"""The page over HTTP, with a real server on a loopback port."""

import json
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import requests
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import SparkSession

from calve.clock import SystemClock
from calve.definitions.workplace import workplace
from calve.errors import InvalidInput, TransientError
from calve.metrics import StatusCollector
from calve.model.health import CommitReport, Health, ProcessIdentity
from calve.sql.parser import parse
from calve.statements.execute import execute
from calve.watch.status_files import append_commit, commits_file, status_file
from calve.web import app, server
from calve.web import events as web_events
from calve.web.access import PageAccess
from calve.web.app import page_app
from calve.web.home import HomeView
from calve.web.server import PageServer
from tests.support.homes import Served, served, sinks_in_many_states, status_of, write
from tests.support.pipelines import eventually
from tests.support.readers import duckdb_rows

TOKEN = "a-long-random-text-4711"  # noqa: S105 - of a page that exists in this test alone
STATIC = Path(app.__file__).parent / "static"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as running:
        yield running


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    write(tmp_path / "home", status_of("orders", Health.RUNNING))
    with served(tmp_path / "home", PageAccess("127.0.0.1", TOKEN)) as running:
        yield running


def get(url: str, path: str, **headers: str) -> requests.Response:
    return requests.get(url + path, headers=headers, timeout=10, allow_redirects=False)


def no_spark() -> SparkSession:
    raise AssertionError("nothing here needs Spark")


def state_of(page: Served) -> dict[str, dict[str, object]]:
    return {sink["name"]: sink for sink in get(page.url, "api/state").json()["sinks"]}


# ---- what it shows


def test_a_home_that_does_not_exist_has_no_sinks_and_is_not_created(page: Served) -> None:
    assert get(page.url, "api/state").json()["sinks"] == []
    assert get(page.url, "healthz").status_code == 200
    assert not page.home.exists()


def test_a_sink_is_shown_with_its_status_although_nothing_says_where_its_table_is(page: Served) -> None:
    write(page.home, status_of("orders", Health.RUNNING, rows=7, last_snapshot_id=2**62 + 1))
    shown = get(page.url, "api/sinks/orders").json()
    assert (shown["health"], shown["rows"], shown["table"]) == ("running", 7, "shop.orders")
    assert shown["last_snapshot_id"] == str(2**62 + 1)
    assert shown["details"]["found"] is False
    assert [change["health"] for change in shown["states"]] == ["starting", "running"]


@pytest.mark.parametrize("name", ["a/b c", "ü?x=1#y", "<script>alert(1)</script>", '"quoted"'])
def test_sinks_with_odd_names_are_found(page: Served, name: str) -> None:
    write(page.home, status_of(name, Health.RUNNING))
    assert get(page.url, f"api/sinks/{quote(name, safe='')}").json()["name"] == name


def test_an_unknown_sink_and_an_unknown_page_are_not_found(page: Served) -> None:
    assert get(page.url, "api/sinks/nothing").status_code == 404
    for path in ("static/../app.py", "static/%2e%2e/app.py", "static/", "nothing", "status/orders.json"):
        assert get(page.url, path).status_code == 404


def test_health_is_503_while_something_is_wrong(page: Served) -> None:
    write(page.home, status_of("a", Health.RUNNING), status_of("b", Health.SEALED))
    assert get(page.url, "healthz").json() == {"status": "ok", "sinks": 2, "wrong": {}}
    for health in (Health.STALLED, Health.HALTED, Health.FENCED):
        write(page.home, status_of("b", health, cause="so it is"))
        found = get(page.url, "healthz")
        assert (found.status_code, found.json()["wrong"]) == (503, {"b": health.value})


def test_a_process_that_was_killed_is_gone(page: Served) -> None:
    dead = ProcessIdentity("elsewhere", "x", 1, "1")
    write(page.home, replace(status_of("a", Health.RUNNING), process=dead, heartbeat_ms=1, heartbeat_every_ms=1000))
    assert get(page.url, "healthz").json()["wrong"] == {"a": "gone"}
    assert "no heartbeat" in str(state_of(page)["a"]["cause"])


def test_a_damaged_status_hides_no_other_sink(page: Served) -> None:
    write(page.home, status_of("a", Health.RUNNING), status_of("b", Health.RUNNING))
    status_file(page.home, "b").write_text('{"sink": ')
    assert {name: sink["health"] for name, sink in state_of(page).items()} == {"a": "running", "b": "unknown"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_none_hides_no_other_sink(page: Served, number: str) -> None:
    write(page.home, status_of("a", Health.RUNNING), status_of("b", Health.RUNNING, rows_per_second=4711.5))
    file = status_file(page.home, "b")
    file.write_text(file.read_text().replace("4711.5", number))
    assert {name: sink["health"] for name, sink in state_of(page).items()} == {"a": "running", "b": "unknown"}


def test_texts_that_utf_8_does_not_have_and_endless_ones_are_shown(page: Served) -> None:
    odd = "file \udcff.json " + "x" * 100_000
    write(page.home, status_of("a", Health.HALTED, cause=odd, hint=odd))
    (page.home / "status" / os.fsdecode(b"\xff.json")).write_text("{")
    shown = state_of(page)
    assert {name: sink["health"] for name, sink in shown.items()} == {"a": "halted", "?": "unknown"}
    assert str(shown["a"]["cause"]).startswith("file \udcff.json x")
    assert len(get(page.url, "api/sinks/a").text) < 40_000
    registry = CollectorRegistry()
    registry.register(StatusCollector(page.view.statuses, SystemClock().now_ms))
    assert 'sink="?"' in generate_latest(registry).decode()


def test_metrics_are_text_for_prometheus(page: Served) -> None:
    found = get(page.url, "metrics")
    assert found.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert found.text == "calve_up 1\n"


# ---- the table


def test_the_details_of_a_table_equal_what_another_engine_reads(page: Served) -> None:
    run = sinks_in_many_states(page.home)
    eventually(lambda: bool(state_of(page) and get(page.url, "api/sinks/orders").json()["details"]["found"]))
    shown = get(page.url, "api/sinks/orders").json()
    table, details = run.now, shown["details"]
    rows = duckdb_rows(table.metadata_location)
    assert details["live_rows"] == len(rows) == 1220
    assert details["files"]["exact"] is True
    assert details["rows"] == 1800
    assert details["files"]["deleted_rows"] == 580
    assert details["snapshots"] == len(table.metadata.snapshots)
    entries = table.inspect.files().to_pylist()
    assert (
        details["data_files"]
        == sum(entry["content"] == 0 for entry in entries)
        == sum(n for _, n in details["files"]["sizes"])
    )
    assert details["delete_files"] == sum(entry["content"] != 0 for entry in entries)
    assert details["bytes"] == sum(entry["file_size_in_bytes"] for entry in entries)
    scan = details["files"]["scan"]
    assert (scan["data_files"], scan["rows"]) == (details["data_files"], 1800)
    assert scan["weight"] == (scan["data_files"] + scan["delete_files"]) * scan["open_file_cost"]
    assert scan["compacted_weight"] == scan["open_file_cost"]
    assert shown["upkeep"]["due"]["files"] == details["data_files"]


def test_commits_are_those_of_the_log_and_those_that_only_the_table_has(page: Served) -> None:
    run = sinks_in_many_states(page.home)
    receipt = run.commit({9_999: "late"})  # not in the log
    assert receipt is not None
    write(page.home, status_of("orders", Health.RUNNING, last_snapshot_id=receipt.snapshot_id))
    eventually(lambda: bool(state_of(page) and get(page.url, "api/sinks/orders").json()["details"]["found"]))
    commits = {commit["snapshot"]: commit for commit in get(page.url, "api/sinks/orders").json()["commit_log"]}
    assert len(commits) == len(run.now.metadata.snapshots) == 32
    assert commits[str(receipt.snapshot_id)]["rows"] == 1
    assert sum(len(commit.get("phases", [])) > 0 for commit in commits.values()) == 30
    assert [commit["kind"] for commit in commits.values()].count("claim") == 1


def test_sinks_that_are_only_pending_edits_are_shown_and_stay_pending(page: Served) -> None:
    for statement in parse(
        """CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE s (id BIGINT, PRIMARY KEY (id) NOT ENFORCED) FROM FILES (PATH = '/in', FORMAT = 'json')
          ENVELOPE UPSERT (ORDER BY id);
        CREATE SINK orders FROM s TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "orders" MODE UPSERT;"""
    ):
        execute(workplace(page.home, no_spark, {}), statement)
    shown = get(page.url, "api/sinks/orders").json()
    assert (shown["health"], shown["definition"]["version"]) == ("never run", 1)
    with closing(sqlite3.connect(next(page.home.glob("metastore/**/catalog.db")))) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert "iceberg_tables" not in tables
        assert database.execute("SELECT count(*) FROM calve_edits").fetchone() == (3,)


def test_a_table_of_the_same_name_in_the_embedded_catalog_is_not_shown_for_another_sink(page: Served) -> None:
    sinks_in_many_states(page.home)
    now = SystemClock().now_ms()
    write(page.home, status_of("orders", Health.RUNNING, last_snapshot_id=5, started_ms=now))
    loaded = [state_of(page)]
    eventually(lambda: get(page.url, "api/sinks/orders").json()["details"]["loaded_ms"] is not None)
    assert loaded
    assert get(page.url, "api/sinks/orders").json()["details"]["found"] is False


# ---- who may see it


def test_every_response_forbids_scripts_and_resources_from_elsewhere(guarded: Served) -> None:
    for path in ("", "login", "api/state", "nothing", "static/page.js", "metrics", "events"):
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}, {"Host": "evil.example.com"}):
            with requests.get(
                guarded.url + path, headers=headers, timeout=10, allow_redirects=False, stream=True
            ) as found:
                policy = found.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert found.headers["X-Content-Type-Options"] == "nosniff"
                assert found.headers["Referrer-Policy"] == "no-referrer"
                assert "Server" not in found.headers


def test_requests_for_other_hosts_are_refused(page: Served) -> None:
    write(page.home, status_of("orders", Health.RUNNING))
    for path in ("", "api/state", "metrics", "healthz", "events", "login"):
        found = get(page.url, path, Host="rebound.example.com")
        assert found.status_code == 421
        assert "orders" not in found.text


def test_without_the_token_nothing_is_told(guarded: Served) -> None:
    for path in ("api/state", "api/sinks/orders", "metrics", "healthz", "events", "static/page.js"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Cookie": "calve_page=wrong"},
            {"Cookie": f"calve_page={TOKEN}"},
        ):
            found = get(guarded.url, path, **headers)
            assert found.status_code == 401
            assert "orders" not in found.text
    assert get(guarded.url, "").headers["Location"] == "/login"


def test_the_token_as_bearer_opens_everything(guarded: Served) -> None:
    for path in ("", "api/state", "metrics", "healthz", "static/page.js"):
        assert get(guarded.url, path, Authorization=f"Bearer {TOKEN}").status_code == 200


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_do_not_get(guarded: Served) -> None:
    with requests.Session() as session:
        refused = session.post(guarded.url + "login", data={"token": "wrong"}, timeout=10)
        assert (refused.status_code, session.cookies.get_dict()) == (403, {})
        assert "not the one" in refused.text
        accepted = session.post(guarded.url + "login", data={"token": TOKEN}, timeout=10, allow_redirects=False)
        assert (accepted.status_code, accepted.headers["Location"]) == (303, "/")
        cookie = accepted.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert session.get(guarded.url + "api/state", timeout=10).status_code == 200
    link = get(guarded.url, f"login?token={TOKEN}")
    assert (link.status_code, link.headers["Location"]) == (303, "/")
    assert get(guarded.url, "login?token=wrong").status_code == 403


def test_nothing_can_be_changed(page: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("", "api/state", "api/sinks/x", "metrics"):
            assert requests.request(method, page.url + path, timeout=10).status_code == 405
    assert requests.post(page.url + "login", data={"token": "x" * 10_000}, timeout=10).status_code == 413


def test_a_port_that_is_taken_is_an_error_with_a_hint(page: Served) -> None:
    access = PageAccess("127.0.0.1")
    with pytest.raises(TransientError, match="could not listen") as refused:
        PageServer(page_app(page.view, str, access), access, int(page.url.rpartition(":")[2].strip("/")))
    assert "--port" in refused.value.hint


def test_a_name_of_another_address_needs_a_token(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]
    monkeypatch.setattr("calve.web.server.socket.getaddrinfo", lambda *_args, **_more: there)
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.7, which needs a token"):
        PageServer(page_app(page.view, str, PageAccess("localhost")), PageAccess("localhost"), 0)


# ---- events


def events(url: str, most: int, ready: threading.Event | None = None) -> list[dict[str, object]]:
    """The first states of a stream."""
    found: list[dict[str, object]] = []
    with requests.get(url + "events", stream=True, timeout=10) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
                if ready is not None:
                    ready.set()
                if len(found) == most:
                    break
    return found


def test_a_change_of_state_is_pushed(page: Served) -> None:
    write(page.home, status_of("orders", Health.RUNNING))
    ready, seen = threading.Event(), []
    thread = threading.Thread(target=lambda: seen.extend(events(page.url, 2, ready)))
    thread.start()
    assert ready.wait(10)
    write(page.home, status_of("orders", Health.STALLED, cause="the catalog is away"))
    thread.join(10)
    assert [state["sinks"][0]["health"] for state in seen] == ["running", "stalled"]  # type: ignore[index]


@pytest.mark.long
def test_one_state_a_second_serves_all_clients_and_none_is_computed_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many listen; those that get nothing new get nothing."""
    home = tmp_path / "home"
    write(home, status_of("orders", Health.RUNNING))
    counted: list[float] = []
    clock = SystemClock()
    real = HomeView.state

    def state(view: HomeView) -> dict[str, object]:
        counted.append(clock.monotonic())
        return real(view)

    monkeypatch.setattr(HomeView, "state", state)
    with served(home) as page:
        with ExitStack() as open_streams:
            began = clock.monotonic()
            lines = [
                open_streams.enter_context(requests.get(page.url + "events", stream=True, timeout=10)).iter_lines()
                for _ in range(20)
            ]  # a stream whose iterator is dropped is closed
            for stream in lines:
                assert next(line for line in stream if line.startswith(b"data: "))
            assert page.app.listeners == 20
            eventually(lambda: len(counted) >= 4)
            passed = clock.monotonic() - began
            assert len(counted) <= passed + 2
        eventually(lambda: page.app.listeners == 0)
        settled = len(counted)
        assert not threading.Event().wait(2.5)  # longer than two intervals
        assert len(counted) <= settled + 1  # one that was on its way


def test_a_server_ends_although_clients_listen(tmp_path: Path) -> None:
    clock = SystemClock()
    with ExitStack() as streams:
        with served(tmp_path) as page:
            stream = streams.enter_context(requests.get(page.url + "events", stream=True, timeout=10))
            assert next(stream.iter_lines())
            ending = clock.monotonic()
        assert clock.monotonic() - ending < 2


# ---- clients that misbehave


def raw(page: Served, text: str, receive_buffer: int | None = None) -> socket.socket:
    """A connection that has sent this much."""
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(20)
    client.connect(("127.0.0.1", int(page.url.rpartition(":")[2].strip("/"))))
    client.sendall(text.encode())
    return client


def ended(client: socket.socket) -> bool:
    """Whether the server ends the connection before this test ends it."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("requests_before", [0, 1])
@pytest.mark.parametrize("sent", ["G", "GET / HTTP/1.1\r\nHost: local"])
def test_a_client_that_does_not_complete_its_request_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str, requests_before: int
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    with served(tmp_path) as page, raw(page, "") as client:
        for _ in range(requests_before):
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(sent.encode())
        assert ended(client)
        assert get(page.url, "healthz").status_code == 200


def test_many_clients_that_send_nothing_do_not_keep_out_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    with served(tmp_path) as page, ExitStack() as idle:
        for _ in range(8):
            idle.enter_context(raw(page, ""))
        eventually(lambda: get(page.url, "healthz").status_code == 200)


def test_a_form_that_does_not_arrive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FORM_SECONDS", 0.3)
    text = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\ntoken="
    with served(tmp_path, PageAccess("127.0.0.1", TOKEN)) as page, raw(page, text) as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_does_not_read_its_events_loses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.3)
    monkeypatch.setattr(web_events, "EVERY_SECONDS", 0.02)
    for number in range(50):
        write(tmp_path, status_of(f"sink {number}", Health.HALTED, cause="x" * 20_000))
    request = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(tmp_path) as page, raw(page, request, receive_buffer=4096):
        eventually(lambda: page.app.listeners == 1)
        for number in range(1_000):
            write(tmp_path, status_of("sink 0", Health.HALTED, cause=str(number)))
            if page.app.listeners == 0:
                break
        eventually(lambda: page.app.listeners == 0)


def test_asking_for_the_headers_of_the_events_listens_to_none(page: Served) -> None:
    found = requests.head(page.url + "events", timeout=10)
    assert (found.status_code, found.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert page.app.listeners == 0


def test_there_is_an_end_to_how_many_listen(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_events, "MOST_LISTENERS", 2)
    with ExitStack() as streams:
        lines = [
            streams.enter_context(requests.get(page.url + "events", stream=True, timeout=10)).iter_lines()
            for _ in range(2)
        ]
        assert all(next(stream) for stream in lines)
        found = get(page.url, "events")
        assert (found.status_code, found.headers["Retry-After"]) == (503, "30")
        assert get(page.url, "api/state").status_code == 200


# ---- the files


def test_all_files_are_served_and_no_other_ones() -> None:
    there = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert there == {*app.PARTS, "index.html", "login.html"}


def test_the_page_has_no_inline_script_or_style_and_names_no_other_host() -> None:
    for path in [*STATIC.glob("*.html"), *STATIC.glob("*.js"), *STATIC.glob("*.css"), *STATIC.glob("*.svg")]:
        text = path.read_text()
        hosts = set(re.findall(r"https?://[^\s\"'/]+", text))
        assert hosts <= {"http://www.w3.org"}, path  # names of XML, which nobody requests
        assert "innerHTML" not in text
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>|<style|\sstyle=|\son\w+=", text), path


def test_the_licence_of_what_is_vendored_is_there() -> None:
    assert "MIT" in (STATIC / "vendor/uplot/LICENSE").read_text()


def test_a_log_of_commits_with_damaged_lines_is_shown(page: Served) -> None:
    write(page.home, status_of("orders", Health.RUNNING))
    append_commit(commits_file(page.home, "orders"), CommitReport(1, "[5]", 2, 2, 0, 1, 100, 0.5, at_ms=5))
    with (page.home / "status" / "orders.commits").open("a") as log:
        log.write('{"snapshot_id": \n')
    append_commit(commits_file(page.home, "orders"), CommitReport(2, "[6]", 2, 2, 0, 1, 100, 0.5, at_ms=6))
    assert state_of(page)
    assert [commit["snapshot"] for commit in get(page.url, "api/sinks/orders").json()["commit_log"]] == ["1", "2"]


def test_rows_of_recent_commits_come_from_their_log_where_the_table_is_not_known(page: Served) -> None:
    write(page.home, status_of("orders", Health.RUNNING))
    log = commits_file(page.home, "orders")
    for number in range(100):
        append_commit(log, CommitReport(number + 1, "[5]", number, number, 0, 1, 100, 0.5, at_ms=5))
    assert state_of(page)["orders"]["recent"] == list(range(60, 100))
    append_commit(log, CommitReport(101, "[5]", 7, 7, 0, 1, 100, 0.5, at_ms=5))
    assert state_of(page)["orders"]["recent"] == [*range(61, 100), 7]
    log.unlink()
    assert state_of(page)["orders"]["recent"] == []
