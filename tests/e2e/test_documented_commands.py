"""The commands of the pages are executed as they are written: each in a process, in the order of its page."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from calve.model.health import Health
from calve.model.progress import FRONTIER
from calve.watch.status_files import read_statuses
from tests.support.jvm import QUICK
from tests.support.pipelines import eventually
from tests.support.readers import ROOT
from tests.support.snippets import shell_commands, snippets_of
from tests.support.warm import WarmProcess

pytestmark = pytest.mark.embedded

NOT_RUN = {
    ("README.md", 0): "installs packages; the demo is a test of its own",
    ("CONTRIBUTING.md", 0): "the targets of make that run this test",
    ("docs/cluster.md", 0): "needs a cluster; tests/integration/spark/test_cluster.py starts one",
    ("docs/cluster.md", 1): "as above",
    ("docs/cluster.md", 2): "installs packages; tests/unit/spark/test_worker_packages.py prints their list",
    ("docs/cluster.md", 3): "needs a cluster",
    ("docs/debezium.md", 0): "needs a broker; tests/e2e/test_kafka.py has one",
    ("docs/engines.md", 0): "its engines are run by tests/unit/api/test_engines.py",
    ("docs/engines.md", 1): "as above",
    ("docs/infer.md", 1): "a synopsis; folders are in the block before, topics in tests/integration/source",
    ("docs/kubernetes.md", 0): "needs a cluster",
    ("docs/quickstart.md", 0): "installs packages",
}
"""Blocks whose commands are only parsed, each with the reason."""
LINES_NOT_RUN = ("pip ",)
"""Commands that install packages, in blocks that are executed."""
SHOP = [
    ("docs/schedulers.md", 0),
    ("docs/plan.md", 0),
    ("docs/backup.md", 0),
    ("docs/reading.md", 0),
    ("docs/changes.md", 0),
    ("docs/upgrade.md", 0),
    ("docs/backup.md", 1),
    ("docs/maintenance.md", 0),
    ("docs/kafka.md", 0),
    ("docs/web.md", 0),
]
"""Blocks about a home with sinks that have run, in an order in which they work."""
APART = {
    ("README.md", 1),
    ("docs/index.md", 0),
    ("docs/infer.md", 0),
    ("docs/operations.md", 0),
    *(("docs/quickstart.md", number) for number in range(1, 5)),
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
CREATE SINK orders_sink FROM orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "copies"
  WITH (ON BAD ROW = 'dead letter');
"""
WIDENED = "ALTER SOURCE orders SET COLUMNS (id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), items BIGINT)"


def blocks(page: str, language: str = "sh") -> list[str]:
    return [s.text for s in snippets_of(page, (ROOT / page).read_text()) if s.language == language]


@dataclass
class Terminal:
    """A folder in which commands are typed."""

    folder: Path
    start: type[WarmProcess]
    stand_ins: dict[str, str] = field(default_factory=dict)
    """What a reader puts for the ids and times of a page."""
    processes: list[WarmProcess] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / ".calve"

    def type_block(self, page: str, number: int, after: Mapping[str, Callable[[], None]] | None = None) -> str:
        """Execute the commands of a block; what they printed. `after` has what a reader does after some of them."""
        printed = []
        for command in shell_commands(blocks(page)[number]):
            if not command.startswith(LINES_NOT_RUN):
                printed.append(self.type(command))
            (after or {}).get(command, lambda: None)()
        return "\n".join(printed)

    def type(self, command: str, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Execute one command; those without an end are interrupted after `meanwhile`. What it printed."""
        if not command.startswith("calve "):
            shell = ["bash", "-ec", command]
            return subprocess.run(shell, cwd=self.folder, check=True, capture_output=True, text=True).stdout
        given = re.sub(r"\[(-[^]]*)\]", r"\1", command).replace("[SINK]", "orders")  # all that a reader may add
        words = [self.stand_ins.get(word, word) for word in shlex.split(given)[1:]]
        process = self._start(words)
        if words[0] == "serve" or (words[0] == "run" and "--until-caught-up" not in words):
            eventually(lambda: process.poll() is not None or self._works(process, words[0]))
            assert process.poll() is None, "".join(process.communicate())
            meanwhile()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{command}\n{out}{err}"
        return out

    def _start(self, words: list[str]) -> WarmProcess:
        if words[0] == "run":
            words += ["--master", "local[2]", *(part for item in QUICK.items() for part in ("--conf", "=".join(item)))]
        if words[0] == "serve":
            words += ["--port", "0"]
        process = self.start("calve.cli.main", words, {}, self.folder)
        self.processes.append(process)
        return process

    def _works(self, process: WarmProcess, command: str) -> bool:
        if command == "serve":
            return "http://" in process.printed_output()
        return any(status.health is Health.RUNNING for status in read_statuses(self.home))

    def end(self) -> None:
        """Nothing of it runs afterwards."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def terminal(tmp_path: Path, warm_process: type[WarmProcess]) -> Iterator[Terminal]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    opened = Terminal(tmp_path, warm_process)
    yield opened
    opened.end()


def add_orders(folder: Path, number: int, *orders: Mapping[str, object]) -> None:
    (folder / "in/orders").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"customer": "ada", "seq": number, **order}) for order in orders]
    (folder / f"in/orders/{number}.json").write_text("\n".join(lines))


def test_every_block_of_commands_is_executed_or_has_a_reason() -> None:
    pages = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    found = {(page, number) for page in pages for number in range(len(blocks(page)))}
    executed = {*SHOP, *APART}
    assert found == executed | NOT_RUN.keys()
    assert not executed & NOT_RUN.keys()


def test_the_commands_of_the_readme_work(terminal: Terminal) -> None:
    (pipeline,) = blocks("README.md", "sql")
    add_orders(terminal.folder, 1, {"id": 1, "amount": "60.00"})

    def edit() -> None:
        assert "CREATE SINK orders" in (terminal.folder / "pipeline.sql").read_text()
        (terminal.folder / "pipeline.sql").write_text(pipeline)

    printed = terminal.type_block("README.md", 1, {"calve init in/orders": edit})
    assert "big_orders: done" in printed


def test_the_quick_start_prints_what_it_shows(terminal: Terminal) -> None:
    page = "docs/quickstart.md"
    (terminal.folder / "orders.sql").write_text(blocks(page, "sql")[0])
    shown = [text for text in blocks(page, "text") if "19.99" in text]
    first, second = (re.findall(r"^\D*(\d+)\W+([a-z]+)\W+([\d.]+)", text, re.MULTILINE) for text in shown)
    terminal.type_block(page, 1)
    printed = terminal.type_block(page, 2)
    assert "\n".join(line.rstrip() for line in printed.splitlines()).endswith(shown[0]), printed
    assert len(first) == len(second) == 3
    terminal.type_block(page, 3)
    rows = terminal.type("calve read shop.orders --format csv").splitlines()
    assert rows[1:] == [",".join(row) for row in second]
    assert "iceberg_scan('" in terminal.type_block(page, 4)


def test_the_first_page_and_a_file_that_calve_wrote_run(terminal: Terminal) -> None:
    (terminal.folder / "orders.sql").write_text(blocks("docs/index.md", "sql")[0])
    add_orders(terminal.folder, 1, {"id": 1, "amount": "60.00"})
    terminal.type_block("docs/index.md", 0)
    shutil.rmtree(terminal.home)
    assert "orders: done, 7 changes" in terminal.type_block("docs/infer.md", 0)


def test_the_commands_about_a_home_work(terminal: Terminal) -> None:
    folder = terminal.folder
    (folder / "pipeline.sql").write_text(SINKS)
    add_orders(folder, 1, {"id": 1, "amount": "150.00", "items": 1}, {"id": 2, "amount": "5.00", "items": BIG})
    first, *others = SHOP
    terminal.type_block(*first)
    add_orders(folder, 2, {"id": 1, "amount": "160.00", "items": 2})
    terminal.type_block(*first)
    table = connect_embedded(terminal.home).load_table("shop.orders")
    earlier, later = (s for s in table.metadata.snapshots if s.summary and s.summary["added-records"])
    frontier = str(later.summary[FRONTIER]) if later.summary else ""
    moment = datetime.fromtimestamp(earlier.timestamp_ms / 1000 + 0.001, UTC)
    table.manage_snapshots().create_tag(earlier.snapshot_id, "audit").commit()
    terminal.stand_ins = {
        "5521": str(earlier.snapshot_id),
        "2026-01-31T12:00:00Z": moment.isoformat(),
        "2026-11-17 13:30": moment.isoformat(),
        "[1700000000000]": frontier,
        "1700000000000": frontier.strip("[]"),
    }
    terminal.type("calve run pipeline.sql", meanwhile=lambda: terminal.type_block("docs/operations.md", 0))
    for page, number in others:
        if page == "docs/kafka.md":
            (folder / "pipeline.sql").write_text(SINKS.replace("items INT", "items BIGINT"))
            terminal.type(f'calve sql "{WIDENED}"')
        printed = terminal.type_block(page, number)
        if page == "docs/changes.md":
            assert printed.count("160.00") >= 2, printed
        if page == "docs/kafka.md":
            assert str(BIG) in terminal.type("calve read shop.orders --format csv")
    assert (folder / "calve-home.tar.gz").stat().st_size
