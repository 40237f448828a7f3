"""The commands of the pages are executed as they are written: each in a process, in the order of its page."""

import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from calve.model.progress import FRONTIER
from calve.watch.status_files import read_statuses
from tests.support.pipelines import eventually
from tests.support.readers import ROOT, in_duckdb
from tests.support.servers.kafka import Kafka
from tests.support.servers.registry import PASSWORD, USER, SchemaRegistry
from tests.support.snippets import snippets_of, statements
from tests.support.terminal import Terminal
from tests.support.warm import WarmProcess

pytestmark = pytest.mark.embedded

NOT_RUN = {
    ("CONTRIBUTING.md", 0): "the targets of make that run this test",
    ("docs/cluster.md", 0): "needs a cluster: tests/faults/test_cluster.py runs a pipeline on one",
    ("docs/cluster.md", 1): "as above",
    ("docs/cluster.md", 3): "needs a cluster: tests/faults/test_cluster.py submits a script to one",
    (
        "docs/engines.md",
        1,
    ): "downloads packages, for servers that are not there; tests/unit/api/test_engines.py checks its form",
    ("docs/kubernetes.md", 0): "needs Kubernetes",
}
"""Blocks whose commands are only parsed (tests/unit/docs/test_snippets.py), each with the reason."""
LINES_NOT_RUN = ("pip ", "python3 -m venv ", ". .venv/", "env/bin/", "PYSPARK_PYTHON=./env/")
"""Commands that install packages, and those in the environment that they fill."""
SHOP = [
    ("docs/schedulers.md", 0),
    ("docs/plan.md", 0),
    ("docs/backup.md", 0),
    ("docs/reading.md", 0),
    ("docs/changes.md", 0),
    ("docs/engines.md", 0),
    ("docs/upgrade.md", 0),
    ("docs/backup.md", 1),
    ("docs/maintenance.md", 0),
    ("docs/kafka.md", 0),
    ("docs/web.md", 0),
    ("docs/web.md", 1),
]
"""Blocks about a home with sinks that have run, in an order in which they work."""
APART = {
    ("README.md", 0),
    ("README.md", 1),
    ("docs/cluster.md", 2),
    ("docs/debezium.md", 0),
    ("docs/index.md", 0),
    ("docs/infer.md", 0),
    ("docs/infer.md", 1),
    ("docs/operations.md", 0),
    *(("docs/quickstart.md", number) for number in range(5)),
}
"""Blocks that tests name."""
BIG = 3_000_000_000
SINKS = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders (id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), items INT,
    PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = 'in/orders', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq GLOBAL, DELETE WHEN op = 'd');
CREATE SINK orders FROM orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "orders"
  WITH (ON BAD ROW = 'dead letter');
"""
SHOP_CLAIMS = {
    "calve status --check [SINK] [--max-lag 5m] [--max-commit-age 2h] "
    "[--max-poll-age 6h] [--running] [--json]": '"orders": "running"',
    "calve plan pipeline.sql": "Nothing to do",
    "calve run pipeline.sql": "orders: stopped",
    "calve run pipeline.sql --yes": "orders: stopped",
    "calve plan pipeline.sql --prune": "Nothing to do",
    "calve status --check": "1 sink is healthy",
    "calve read shop.orders": "160.00",
    "calve read shop.orders --limit 5 --format json": '{"id": 1, "customer": "ada", "amount": "160.00"',
    "calve read shop.orders --as-of '2026-11-17 13:30'": "150.00",
    "calve read shop.orders --as-of-frontier 1700000000000": "160.00",
    "calve read shop.orders --snapshot 5521": "150.00",
    "calve read shop.orders --explain": "2 of 2 files",
    'calve read shop.orders --where "amount > 100"': "1 row",
    'calve read in/orders --where "amount > 100" --explain': "2 of 2 files",
    "calve read shop.orders --changes --since 5521": "update_postimage",
    "calve read shop.orders --changes --since 2026-01-31T12:00:00Z --until '[1700000000000]' --every-step --before": (
        "update_preimage"
    ),
    "calve read shop.orders --changes --since audit --format json": '"_change_type": "update_postimage"',
    "calve read shop.orders --changes --since 5521 --explain": "2 of 2 snapshots may change rows",
    "calve connect-info shop.orders --engine duckdb | duckdb": "(1, 'ada', Decimal('160.00')",
    "calve status": "1 record could not be converted to changes and became dead letters",
    "calve run --until-caught-up": "orders: done, 0 changes",
    "calve verify orders": "orders: the table is correct, 1 row",
    "calve maintain shop.orders --dry-run": "compact: nothing to do",
    "calve maintain shop.orders": "2 files with 2 rows became 1 with 1",
    "calve maintain orders_sink": "compact: nothing to do",
    "calve maintain shop.orders --only expire --older-than 2d": "expire: nothing to do",
    "calve maintain shop.orders --only orphans": "orphans: nothing to do",
    "calve letters orders --replay --dry-run": "1 letter can be applied",
    "calve letters orders --replay": "1 letter applied",
    "calve letters orders --replay --force": "0 letters applied",
    "calve serve": '"name": "orders"',
    "calve run pipeline.sql --serve 8080": '"name": "orders"',
    "calve serve --host 0.0.0.0": '"name": "orders"',
}
"""What is in the output of each."""
PLANNED = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders (id BIGINT NOT NULL, amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = 'in/orders', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
CREATE SINK orders FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders WITH (SNAPSHOT RETENTION = '7d');
"""
"""What the page of plans has before its file is edited."""
WIDENED = "ALTER SOURCE orders SET COLUMNS (id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), items BIGINT)"


def blocks(page: str, language: str = "sh") -> list[str]:
    return [s.text for s in snippets_of(page, (ROOT / page).read_text()) if s.language == language]


@pytest.fixture
def terminal(tmp_path: Path, warm_process: type[WarmProcess]) -> Iterator[Terminal]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    opened = Terminal(tmp_path, warm_process, programs={"duckdb": lambda text: str(in_duckdb(text))})
    yield opened
    opened.end()


def add_orders(folder: Path, number: int, *orders: Mapping[str, object]) -> None:
    (folder / "in/orders").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"customer": "ada", "seq": number, **order}) for order in orders]
    (folder / f"in/orders/{number}.json").write_text("\n".join(lines))


def unfulfilled(claims: Mapping[str, str], printed: Mapping[str, str]) -> list[str]:
    """Commands whose output does not contain what it should, with the output."""
    return [
        f"{command}: {text!r} is not in\n{printed[command]}"
        for command, text in claims.items()
        if text not in printed[command]
    ]


def rows_in(text: str) -> list[tuple[str, ...]]:
    """The orders of a printed table."""
    return re.findall(r"^\D*(\d+)\W+([a-z]+)\W+([\d.]+)", text, re.MULTILINE)


def without_space(text: str) -> list[str]:
    """Lines, however wide their columns are."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_every_block_of_commands_is_executed_or_has_a_reason() -> None:
    pages = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    found = {(page, number) for page in pages for number in range(len(blocks(page)))}
    executed = {*SHOP, *APART}
    assert found == executed | NOT_RUN.keys()
    assert not executed & NOT_RUN.keys()
    named = [name for reason in NOT_RUN.values() for name in re.findall(r"tests/\S+\.py", reason)]
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_demo_prints_what_the_readme_shows(terminal: Terminal) -> None:
    assert "-m calve.cli.main demo\n" in (ROOT / "Makefile").read_text()
    terminal.stand_ins = {"make demo": "calve demo"}
    (printed,) = terminal.type_block(blocks("README.md")[0], LINES_NOT_RUN).values()
    (shown,) = (text for text in blocks("README.md", "") if text.startswith("calve demo"))
    lines, measured = without_space(printed), re.compile(r"^\d{15,} (.*) \d+$")  # ids and times differ
    found = [measured.sub(r"\1", line) for line in lines]
    assert [line for line in without_space(shown) if line != "..." and measured.sub(r"\1", line) not in found] == []


def test_the_commands_of_the_readme_work(terminal: Terminal) -> None:
    (pipeline,) = blocks("README.md", "sql")
    add_orders(terminal.folder, 1, {"id": 1, "amount": "60.00"})

    def edit() -> None:
        assert "CREATE SINK orders" in (terminal.folder / "pipeline.sql").read_text()
        (terminal.folder / "pipeline.sql").write_text(pipeline)

    printed = terminal.type_block(blocks("README.md")[1], then={"calve init in/orders": edit})
    claims = {
        "calve init in/orders": "wrote pipeline.sql from 1 file",
        "calve plan pipeline.sql": "4 changes, not dangerous.",
        "calve run pipeline.sql": "big_orders: stopped",
        "calve run pipeline.sql --until-caught-up": "big_orders: done",
        "calve status --check [--max-lag 5m]": "1 sink is healthy",
        'calve sql "SELECT count(*) FROM shop.big_orders"': "\n            2 \n",
        "calve read shop.big_orders": "2 rows",
        "calve connect-info shop.big_orders": "-- duckdb",
        "calve verify big_orders": "the table is correct, 2 rows",
        "calve maintain shop.big_orders": "compact",
    }
    assert unfulfilled(claims, printed) == []
    found = re.findall(r"^-- (\w+)$", printed["calve connect-info shop.big_orders"], re.MULTILINE)
    assert f"statements for {', '.join(found)}".lower() in (ROOT / "README.md").read_text().lower()


def test_the_quick_start_prints_what_it_shows(terminal: Terminal) -> None:
    page = "docs/quickstart.md"
    commands, outputs = blocks(page), blocks(page, "text")
    (terminal.folder / "orders.sql").write_text(blocks(page, "sql")[0])
    first, second = (text for text in outputs if "19.99" in text)
    terminal.type_block(commands[0], LINES_NOT_RUN)
    terminal.type_block(commands[1])
    run, query = terminal.type_block(commands[2]).values()
    assert "orders: done, 3 changes in 1 commit" in run
    assert "\n".join(line.rstrip() for line in query.splitlines()).strip("\n") == first
    printed = terminal.type_block(commands[3])
    claims = {
        "calve run orders.sql --until-caught-up": "orders: done, 3 changes in 1 commit",
        "calve read shop.orders": "3 rows",
        'calve sql "SHOW SNAPSHOTS FROM shop.orders"': "committed (UTC)",
        "calve status": "orders: caught up",
    }
    assert unfulfilled(claims, printed) == []
    assert sorted(rows_in(printed["calve read shop.orders"])) == rows_in(second)
    (pasted,) = terminal.type_block(commands[4]).values()
    assert pasted.strip() == outputs[-2].replace("/home/you", str(terminal.folder))
    assert sorted((str(i), name, str(amount)) for i, name, amount in in_duckdb(pasted)) == rows_in(second)


def test_the_first_page_and_files_that_calve_wrote_run(terminal: Terminal) -> None:
    (terminal.folder / "orders.sql").write_text(blocks("docs/index.md", "sql")[0])
    add_orders(terminal.folder, 1, {"id": 1, "amount": "60.00"})
    (first,) = terminal.type_block(blocks("docs/index.md")[0]).values()
    assert "created sink orders" in first
    shutil.rmtree(terminal.home)
    proposed, done = terminal.type_block(blocks("docs/infer.md")[0]).values()
    assert proposed.startswith("wrote pipeline.sql from 2 files, 7 records")
    assert "orders: done, 7 changes" in done


def test_the_packages_of_workers_are_written_to_a_file(terminal: Terminal) -> None:
    terminal.type_block(blocks("docs/cluster.md")[2], LINES_NOT_RUN)
    written = (terminal.folder / "workers.txt").read_text().splitlines()
    assert {"pyarrow", "confluent-kafka"} <= {line.partition("==")[0] for line in written}


def test_the_page_of_debezium_and_files_for_topics_work(terminal: Terminal, kafka: Kafka) -> None:
    topic = kafka.topic(name="shop.public.customers")
    after = {"id": 1, "name": "ada", "tier": "gold"}
    kafka.send(topic, [({"id": 1}, {"op": "c", "before": None, "after": after})])
    text = blocks("docs/debezium.md", "sql")[0].replace("localhost:9092", kafka.brokers)
    (terminal.folder / "customers.sql").write_text(text.replace("'1m'", "'1s'"))
    run = "calve run customers.sql"
    meanwhile = {run: lambda: eventually(lambda: read_statuses(terminal.home)[0].commits > 0)}
    printed = terminal.type_block(blocks("docs/debezium.md")[0], LINES_NOT_RUN, meanwhile=meanwhile)
    claims = {
        run: "customers: stopped, 1 change in 1 commit",
        "calve status customers": "crm.customers",
        "calve letters customers": "0 rows",
        "calve verify customers": "customers: the table is correct, 1 row",
    }
    assert unfulfilled(claims, printed) == []
    registry = SchemaRegistry()
    terminal.stand_ins = {
        "FOLDER": "examples/data/orders",
        "TOPIC": topic,
        "host:9092": kafka.brokers,
        "URL": registry.uri,
        "USER": USER,
    }
    terminal.environment = {"CALVE_REGISTRY_PASSWORD": PASSWORD}
    try:
        for command in blocks("docs/infer.md")[1].splitlines():
            (terminal.folder / "pipeline.sql").unlink(missing_ok=True)
            terminal.type_block(command)
            assert "CREATE SINK" in (terminal.folder / "pipeline.sql").read_text()
    finally:
        registry.stop()


def test_the_commands_about_a_home_work(terminal: Terminal) -> None:
    folder = terminal.folder
    (folder / "pipeline.sql").write_text(SINKS)
    add_orders(folder, 1, {"id": 1, "amount": "150.00", "items": 1}, {"id": 2, "amount": "5.00", "items": BIG})
    (page, number), *others = SHOP
    terminal.type_block(blocks(page)[number])
    add_orders(folder, 2, {"id": 1, "amount": "160.00", "items": 2})
    (again,) = terminal.type_block(blocks(page)[number]).values()
    assert "orders: done, 1 change in 1 commit" in again
    table = connect_embedded(terminal.home).load_table("shop.orders")
    earlier, later = (s for s in table.metadata.snapshots if s.summary and s.summary["added-records"])
    frontier = str(later.summary[FRONTIER]) if later.summary else ""
    moment = datetime.fromtimestamp(earlier.timestamp_ms / 1000 + 0.001, UTC).isoformat()
    table.manage_snapshots().create_tag(earlier.snapshot_id, "audit").commit()
    terminal.stand_ins = {
        "SINK": "orders",
        "5521": str(earlier.snapshot_id),
        "2026-01-31T12:00:00Z": moment,
        "2026-11-17 13:30": moment,
        "[1700000000000]": frontier,
        "1700000000000": frontier.strip("[]"),
        "8080": "0",
        "calve serve": "calve serve --port 0",
        "calve serve --host 0.0.0.0": "calve serve --host 0.0.0.0 --port 0",
        "orders_sink": "orders",
    }
    printed: dict[str, str] = {}
    run = "calve run pipeline.sql"
    terminal.type(run, lambda: printed.update(terminal.type_block(blocks("docs/operations.md")[0])))
    for page, number in others:
        if page == "docs/kafka.md":
            (folder / "pipeline.sql").write_text(SINKS.replace("items INT", "items BIGINT"))
            terminal.type(f'calve sql "{WIDENED}"')
        printed |= terminal.type_block(blocks(page)[number], LINES_NOT_RUN)
    assert unfulfilled(SHOP_CLAIMS, printed) == []
    assert str(BIG) in terminal.type("calve read shop.orders --format csv")
    with tarfile.open(folder / "calve-home.tar.gz") as backup:
        assert ".calve/catalog.db" in backup.getnames()


def test_a_plan_is_printed_as_its_page_shows(terminal: Terminal) -> None:
    (shown,) = (text for text in blocks("docs/plan.md", "text") if text.startswith("$ calve plan"))
    for statement in statements(PLANNED):
        terminal.type(f'calve sql "{" ".join(statement.split())}"')
    edited = PLANNED.replace("(12,2)", "(12,2), note STRING").replace("'7d'", "'1d'")
    (terminal.folder / "pipeline.sql").write_text(edited)
    assert terminal.type("calve plan pipeline.sql").strip() == shown.partition("\n")[2]
