"""The page in a real browser."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from pyspark.sql import SparkSession
from selenium.webdriver.common.keys import Keys

from calve.clock import SystemClock
from calve.errors import BadRow
from calve.model.change import Letter, Origin
from calve.model.health import CommitReport, Health
from calve.pipeline.lakes import connected_lake
from calve.watch.status_files import append_commit, commits_file
from calve.web.access import PageAccess
from tests.support.browser import Browser
from tests.support.homes import MINUTE, Served, add_letters, served, sinks_in_many_states, status_of, write
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.support.servers.lakehouse import BUCKET, Lakehouse, new_namespace
from tests.support.servers.proxy import Proxy
from tests.support.servers.store import KEY, REGION, SECRET

TOKEN = "a-long-random-text-4711"  # noqa: S105 - of a page that exists in this test alone

pytestmark = pytest.mark.embedded


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser; afterwards its console has to be empty, and nobody else may have been asked."""
    chromium.look()
    chromium.driver.delete_all_cookies()
    yield chromium
    errors, hosts = chromium.console(), {urlsplit(url).hostname for url in chromium.requests()}
    chromium.leave()
    assert errors == []
    assert hosts == {"127.0.0.1"}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Run]]:
    """Five sinks in different states; nobody writes to this home."""
    home = tmp_path_factory.mktemp("page") / "home"
    run = sinks_in_many_states(home)
    with served(home) as page:
        yield page, run


def number(text: str) -> int:
    return int(text.replace(",", ""))


# ---- views


def test_a_sink_that_had_caught_up_when_it_stopped_has_no_lag(browser: Browser, tmp_path: Path) -> None:
    then = SystemClock().now_ms() - 20 * MINUTE
    done = {"lag_ms": 0, "current_ms": then, "polled_ms": then, "updated_ms": then}
    late = done | {"polled_ms": then + 1}
    write(tmp_path, status_of("done", Health.STOPPED, **done), status_of("late", Health.STOPPED, **late))
    with served(tmp_path) as page:
        browser.open(f"{page.url}#/sinks/done")
        browser.await_text("when last polled, 20 min")
        browser.open(f"{page.url}#/sinks/late")
        browser.await_text("behind the source")
        assert "20 min" in browser.text('[data-key="figures"]')


def test_sinks_that_need_attention_come_first_with_cause_and_hint(browser: Browser, stub: tuple[Served, Run]) -> None:
    browser.open(stub[0].url)
    browser.await_text("2 sinks need attention")
    names = [element.text for element in browser.all(".sinks tbody th a")]
    assert names == ["refunds", "payments", "orders", "stock", "customers"]
    shown = browser.text()
    assert "5 sinks · 1 halted · 1 stalled · 2 running · 1 sealed" in shown
    assert 'the value of "amount" is not a DECIMAL(12,2)' in shown
    assert re.search(r"What to do\s*Mend the record, or set ON BAD ROW = 'dead letter'.", shown)
    payments = browser.text('tr[data-key="sink payments"]')
    assert "stalled" in payments
    assert "4 min 11 s" in payments  # the lag
    assert "6 batches" in payments
    assert "2 wrong" in browser.driver.title


def test_the_numbers_of_a_table_equal_what_another_engine_reads(browser: Browser, stub: tuple[Served, Run]) -> None:
    page, run = stub
    browser.open(f"{page.url}#/sinks/orders")
    live = number(browser.find("#live-rows").text)
    table = run.now
    assert live == len(duckdb_rows(table.metadata_location))
    files = table.inspect.files().to_pylist()
    assert number(browser.text("#data-files")) == sum(file["content"] == 0 for file in files)
    assert number(browser.text("#delete-files")) == sum(file["content"] != 0 for file in files)
    assert number(browser.text("#snapshots")) == len(table.metadata.snapshots)
    assert str(table.metadata.current_snapshot_id) in browser.text("#table")


def test_a_sink_shows_its_pipeline_commits_table_maintenance_errors_and_source_in_this_order(
    browser: Browser, stub: tuple[Served, Run]
) -> None:
    browser.open(f"{stub[0].url}#/sinks/orders")
    browser.find("#chart-rows canvas")
    titles = [element.text for element in browser.all("main h2")]
    assert titles == ["Pipeline", "Commits", "Table", "Maintenance", "Errors and dead letters", "Source"]
    drawing = str(browser.run("return document.querySelector('.pipeline').getAttribute('aria-label')"))
    assert re.search(
        r"changes: 1,800 recorded; staged: 12.4K rows \(3 checkpoints\); pending: 310 changes \(1 batch, 18.4 kB\); "
        r"commits: 30 .*; table: 1,220 rows",
        drawing,
    )
    assert [e.text for e in browser.all("#pipeline dl.pairs dt")] == ["committed", "recorded", "source"]
    assert len(browser.all(".timeline .mark.batch")) == 30
    assert len(browser.all(".timeline .conflict")) == 1
    assert {e.get_attribute("class") for e in browser.all(".timeline .band")} >= {"band running", "band stalled"}
    newest = browser.text("#commits table")
    assert "3 attempts" in newest
    assert "1 conflict" in newest
    assert len(browser.all("#commits .phases rect.write")) == 19  # and a claim
    assert "A compaction of 30 files with 1,800 rows: 30 files can be merged." in browser.text("#maintenance")
    assert "Dead letters" in browser.text("#errors")
    assert "connection refused" in browser.text("#errors")
    partitions = [row.text.split() for row in browser.all("#source tbody tr")]
    assert [row[2:] for row in partitions] == [  # read, end, unread, oldest, retention left
        ["120,000", "120,000", "0", "20,000", "all", "read"],
        ["120,011", "120,442", "431", "20,000", "100,011"],
        ["120,022", "120,022", "0", "20,000", "all", "read"],
    ]
    assert "unread records are removed in 6 d 23 h at the earliest" in browser.text("#source")
    letters = browser.text("#errors .letters")
    assert letters.index('Got "n/a".') < letters.index('Got "12,50".')
    assert "topic orders partition 0 offset 119871" in letters
    assert browser.text("#errors").count("Mend the record, and send it again.") == 1


def test_every_state_is_a_word_and_every_drawing_has_a_text(browser: Browser, stub: tuple[Served, Run]) -> None:
    for address in (stub[0].url, f"{stub[0].url}#/sinks/orders"):
        browser.open(address)
        browser.find("main svg")
        assert (
            browser.run(
                "return [...document.querySelectorAll('svg')].filter((e) => !e.getAttribute('aria-label')).length"
            )
            == 0
        )
        assert all(element.text.split() for element in browser.all(".badge"))
        for landmark in ("header", "main", "footer"):
            assert len(browser.all(f"body > {landmark}")) == 1
        assert len(browser.all("h1")) == 1
        unnamed = "!e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')"
        assert (
            browser.run(f"return [...document.querySelectorAll('nav, section')].filter((e) => {unnamed}).length") == 0
        )
        assert browser.run("return [...document.querySelectorAll('th')].filter((e) => !e.scope).length") == 0


def test_the_page_can_be_used_with_the_keyboard_alone(browser: Browser, stub: tuple[Served, Run]) -> None:
    browser.open(stub[0].url)
    browser.await_text("orders")
    browser.press(Keys.TAB)
    assert browser.focused() == "a Skip to content"
    browser.press(Keys.ENTER)
    assert browser.focused().startswith("main ")
    browser.tab_to("a orders")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.focused() == "h1 orders", "focus on the title")
    browser.find("#source-title")
    browser.tab_to("a Commits")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.focused() == "h2 Commits", "focus on the section")
    browser.run("history.back(); history.back()")
    browser.await_text("2 sinks need attention")
    browser.tab_to("button Theme: auto")
    browser.press(Keys.ENTER)
    assert browser.run("return document.documentElement.dataset.theme") == "light"
    browser.press(Keys.ENTER, Keys.ENTER)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_screen_reader_finds_the_table_of_sinks_at_any_width(
    browser: Browser, stub: tuple[Served, Run], width: int
) -> None:
    browser.look(width=width)
    browser.open(stub[0].url)
    browser.find('tr[data-key="sink orders"]')
    roles = browser.roles()
    assert roles["table"] == 1
    assert roles["rowheader"] == 5
    assert roles["cell"] == 5 * 6 + 2, "and two problems"
    assert roles["status"] == 2, "the connection, and announcements"


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_cut_off_at_any_width(browser: Browser, stub: tuple[Served, Run], width: int) -> None:
    browser.look(width=width, dark=width == 768)
    for address in (stub[0].url, f"{stub[0].url}#/sinks/orders", f"{stub[0].url}#/sinks/refunds"):
        browser.open(address)
        browser.find("main h1")
        browser.find('tr[data-key="sink orders"]' if address == stub[0].url else "#source")
        assert (
            browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth") is True
        )


def test_a_home_without_sinks_says_how_to_get_one(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "home") as page:
        browser.open(page.url)
        assert "calve run pipeline.sql" in browser.await_text("No sinks yet")
        write(page.home, status_of("first", Health.STARTING))
        browser.await_text("first")
        browser.leave()


def test_names_and_causes_are_text_whatever_they_contain(browser: Browser, tmp_path: Path) -> None:
    name, cause = "<img src=x onerror=alert(1)>", "<script>alert(2)</script>"
    write(tmp_path, status_of(name, Health.HALTED, cause=cause))
    with served(tmp_path) as page:
        browser.open(page.url)
        assert cause in browser.await_text(name)
        browser.find(".sinks tbody th a").click()
        browser.await_text(cause, ".panel.wrong")
        assert browser.all("main img, main script") == []
        browser.leave()


def test_dead_letters_are_text_whatever_they_contain(browser: Browser, tmp_path: Path) -> None:
    run, evil = Run(tmp_path, spec_of("[/x]")), "<img src=x onerror=alert(1)>[/x]"
    receipt = run.commit({1: "a"})
    assert receipt is not None
    add_letters(run, [Letter(Origin(file=evil), BadRow(evil, detail=evil * 99, hint=evil))])
    last = receipt.snapshot_id
    write(tmp_path, status_of("[/x]", Health.RUNNING, dead_letters=1, last_snapshot_id=last, table=str(NAME)))
    with served(tmp_path) as page:
        browser.open(f"{page.url}#/sinks/%5B%2Fx%5D")
        shown = browser.await_text(evil, "#errors .letters")
        assert len(shown) < 1_000
        assert browser.all("main img, main script") == []
        browser.leave()


def test_sinks_whose_names_look_like_those_of_rows_are_kept_apart(browser: Browser, tmp_path: Path) -> None:
    names = ["a", "a/problem", "problem a", "__proto__", "title"]
    write(tmp_path, *(status_of(name, Health.HALTED, cause=f"cause of {name}") for name in names))
    with served(tmp_path) as page:
        browser.open(page.url)
        browser.await_text("5 sinks need attention")
        write(tmp_path, status_of("a", Health.RUNNING))
        browser.await_text("4 sinks need attention")
        shown = [element.text for element in browser.all(".sinks tbody th a")]
        assert sorted(shown) == sorted(names)
        assert len(browser.all(".sinks tr.why")) == 4
        browser.leave()


def test_times_that_no_clock_has_are_shown_as_unknown(browser: Browser, tmp_path: Path) -> None:
    write(
        tmp_path, replace(status_of("odd", Health.RUNNING), last_commit_ms=10**18, since_ms=10**18, updated_ms=10**18)
    )
    with served(tmp_path) as page:
        browser.open(f"{page.url}#/sinks/odd")
        browser.find("#source")
        assert "Last commit\n–" in browser.text(".figures")
        browser.leave()


@pytest.mark.parametrize("address", ["#/sinks/%E0%A4%A", "#/sinks/nothing", "#/sinks/", "#nothing"])
def test_an_address_of_nothing_says_so_and_leads_back(browser: Browser, stub: tuple[Served, Run], address: str) -> None:
    browser.open(stub[0].url + address)
    browser.until(lambda: browser.text("h1") in {"No such sink", "2 sinks need attention"}, "a title")
    browser.run("location.hash = '#/'")
    browser.await_text("2 sinks need attention")


# ---- live


def test_the_page_follows_a_server_that_is_restarted(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path, status_of("orders", Health.RUNNING))
    with served(tmp_path) as page:
        browser.open(page.url)
        browser.await_text("All is well")
        browser.await_text("live", "#live")
        write(tmp_path, status_of("orders", Health.STALLED, cause="the catalog is away"))
        browser.await_text("1 sink needs attention")
        assert browser.text("#announcements") == "orders is stalled."
    browser.await_text("reconnecting", "#live")
    browser.leave()
    browser.console()  # that the server is gone is an error, and expected


def test_new_commits_of_a_sink_are_added_to_those_that_are_shown(browser: Browser, tmp_path: Path) -> None:
    log, shown = commits_file(tmp_path, "orders"), ".timeline .mark.batch"

    def commit(number: int) -> None:
        at = SystemClock().now_ms()
        append_commit(log, CommitReport(number, f"[{number}]", 7, 7, 0, 1, 100, 0.5, at_ms=at))
        write(tmp_path, status_of("orders", Health.RUNNING, last_snapshot_id=number, commits=number))

    with served(tmp_path) as page:
        for number in (1, 2):
            commit(number)
        browser.open(f"{page.url}#/sinks/orders")
        browser.until(lambda: len(browser.all(shown)) == 2, "two commits")
        for number in (3, 4):
            commit(number)
            browser.until(lambda n=number: len(browser.all(shown)) == n, "another commit")  # type: ignore[misc]
        ids = [cell.text for cell in browser.all("#commits td.id")]
        fetched = str(browser.run("return performance.getEntriesByType('resource').map((one) => one.name).join(' ')"))
        browser.leave()
    assert ids == ["4", "3", "2", "1"]
    everything, *changes = [url for url in fetched.split() if "/api/sinks/orders" in url]
    assert "?since=" not in everything
    assert len(changes) >= 2
    assert all("?since=" in url for url in changes)


def test_a_tab_that_nobody_looks_at_does_not_listen_and_stays_current(browser: Browser, tmp_path: Path) -> None:
    hide = "Object.defineProperty(document, 'hidden', { value: arguments[0] === 'hidden', configurable: true });"
    tell = "document.dispatchEvent(new Event('visibilitychange'));"
    hurry = "const real = setTimeout; window.setTimeout = (action, ms) => real(action, Math.min(ms, 300));"
    write(tmp_path, status_of("orders", Health.RUNNING))
    with served(tmp_path) as page:
        browser.open(page.url)
        browser.await_text("All is well")
        assert page.app.listeners == 1
        browser.run(hurry + hide + tell, "hidden")
        browser.until(lambda: page.app.listeners == 0, "no listener")
        write(tmp_path, status_of("orders", Health.STALLED, cause="the catalog is away"))
        browser.until(lambda: browser.driver.title == "1 wrong · calve", "the title")
        assert page.app.listeners == 0
        browser.run(hide + tell, "visible")
        browser.until(lambda: page.app.listeners == 1, "a listener")
        browser.leave()


def test_a_wrong_token_is_refused_and_the_right_one_opens_the_page(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path, status_of("orders", Health.RUNNING))
    with served(tmp_path, PageAccess("127.0.0.1", TOKEN)) as page:
        browser.open(page.url)
        browser.find("#token").send_keys("wrong", Keys.ENTER)
        assert "orders" not in browser.await_text("not the one that the server was started with", "body")
        browser.console()  # that it is refused is an error, and expected
        browser.find("#token").send_keys(TOKEN, Keys.ENTER)
        browser.await_text("orders")
        assert TOKEN not in str(browser.run("return document.cookie + location.href"))
        browser.leave()


# ---- a real sink


def test_a_sink_runs_stalls_and_runs_again_while_its_catalog_is_stopped_and_started(
    browser: Browser, lakehouse: Lakehouse, spark: SparkSession, tmp_path: Path
) -> None:
    door, namespace = Proxy(lakehouse.catalog.uri), new_namespace()
    folder = tmp_path / "in"
    folder.mkdir()

    def put(file: str, ids: range) -> None:
        part = folder / ".part"
        part.write_text("".join(json.dumps({"id": i, "v": file, "seq": i, "op": "u"}) + "\n" for i in ids))
        part.rename(folder / f"{file}.json")

    pipelines = Pipelines(tmp_path / "home", spark)
    pipelines.apply(f"""
        CREATE CONNECTION aws TO AWS (ACCESS KEY ID = '{KEY}', SECRET ACCESS KEY = '{SECRET}', REGION = '{REGION}',
          ENDPOINT = '{lakehouse.store.uri}');
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'rest', URI = '{door.uri}');
        CREATE SOURCE items (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
        CREATE SINK items FROM items TO ICEBERG CATALOG lake USING AWS CONNECTION aws
          NAMESPACE {namespace} TABLE items WITH (STATE LOCATION = 's3://{BUCKET}/state/{namespace}');
    """)
    put("first", range(70))
    try:
        with pipelines.started(), served(pipelines.home) as page:
            browser.open(f"{page.url}#/sinks/items")
            browser.await_text("running", ".title", patience=90)
            browser.until(lambda: browser.text("#live-rows") == "70", "the first rows", 60)
            assert requests.get(page.url + "healthz", timeout=10).status_code == 200
            door.stop()
            put("second", range(50, 130))
            browser.await_text("stalled", ".title", patience=90)
            assert "Nothing answers at that address" in browser.text(".panel.wrong")
            assert requests.get(page.url + "healthz", timeout=10).status_code == 503
            assert browser.text("#live-rows") == "70"  # as it was
            door.start_again()
            browser.await_text("running", ".title", patience=90)
            browser.until(lambda: browser.text("#live-rows") == "130", "all rows", 90)
            shown = {name: number(browser.text(name)) for name in ("#data-files", "#delete-files", "#snapshots")}
            assert "stalled" in browser.text("#errors")
            assert [cell.text for cell in browser.all("#source tbody tr > *")] == ["files", "2", "2", "0"]
            source = requests.get(page.url + "api/sinks/items", timeout=10).text
            browser.leave()
        table = connected_lake(pipelines.home, "lake").open().load_table(f"{namespace}.items")
        assert len(duckdb_rows(table.metadata_location, s3=lakehouse.duckdb)) == 130
        files = table.inspect.files().to_pylist()
        assert shown["#data-files"] == sum(file["content"] == 0 for file in files)
        assert shown["#delete-files"] == sum(file["content"] != 0 for file in files)
        assert shown["#snapshots"] == len(table.metadata.snapshots)
        assert SECRET not in source
        assert KEY not in source
    finally:
        door.stop()
