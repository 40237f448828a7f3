"""The blocks of Python of README.md and docs/ run as they are written, against real tables; those that do not say why.

Names that a block takes for granted (`spark`, `lake`, `changes`) are given, and values that no table has
(`snapshot_id=5521`) are replaced by those of the table that the block reads.
"""

import ast
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, LongType, NestedField
from pyspark.sql import DataFrame, SparkSession

import calve
from tests.e2e.test_documented_statements import ROWS, load_orders
from tests.support.foreign import NAME, ForeignTable
from tests.support.pipelines import Pipelines
from tests.support.readers import ROOT
from tests.support.snippets import Snippet, run_python, snippets

pytestmark = pytest.mark.embedded

WAIT_SECONDS = 300.0
Block = tuple[str, int]
"""A page, and the number of the block among those of Python that can be parsed: signatures and doctests cannot."""

STARTING: dict[Block, str] = {
    ("README.md", 0): "",
    ("docs/from-merge.md", 1): "",
    ("docs/python.md", 0): "id, customer, amount",
    ("docs/tables.md", 0): "id, customer, amount, updated_at",
    ("docs/tables.md", 1): "id, customer, amount",
}
"""Blocks that start the sink `orders`, and the columns of `changes` where the block takes them for granted."""
READING: tuple[Block, ...] = (
    ("docs/maintenance.md", 0),
    ("docs/python.md", 1),
    ("docs/python.md", 2),
    ("docs/python.md", 3),
    ("docs/reading.md", 0),
)
"""Blocks about a table that exists."""
COUNTS: dict[Block, list[int]] = {("docs/reading.md", 0): [2, 2, 2, 2, 2], ("docs/python.md", 2): [1]}
"""Rows of the frames that a block makes."""
ELSEWHERE: dict[str, str] = {
    "docs/changes.md": "tests/e2e/test_changes_page.py",
    "docs/engines.md": "tests/unit/api/test_engines.py",
    "docs/metastore.md": "tests/unit/metastore/test_documented.py",
}
"""Pages whose blocks are run by tests of their own."""
NOT_RUN: dict[Block, str] = {
    ("docs/cluster.md", 0): "its catalog and its state are on servers: tests/faults/test_cluster.py runs such a sink",
    ("docs/from-merge.md", 0): "what is replaced: MERGE INTO needs the Iceberg runtime, benchmarks/upserts.py runs it",
    ("docs/schedulers.md", 0): "needs Airflow, whose packages conflict with those of the tests",
    ("docs/schedulers.md", 1): "needs Dagster, which is not a package of the tests",
}
"""Blocks that are only checked for names that exist (tests/unit/docs/test_snippets.py), each with the reason."""


def parsed(snippet: Snippet) -> bool:
    try:
        ast.parse(snippet.text)
    except SyntaxError:
        assert snippet.page == "docs/python.md", f"{snippet} is not Python"
        return False
    return True


def blocks() -> dict[Block, str]:
    """All blocks that can be parsed."""
    count = Counter[str]()
    found: dict[Block, str] = {}
    for snippet in snippets():
        if snippet.language == "python" and parsed(snippet):
            found[snippet.page, count[snippet.page]] = snippet.text
            count[snippet.page] += 1
    return found


ALL = blocks()


def test_every_block_is_run_or_has_a_reason() -> None:
    listed = [*STARTING, *READING, *NOT_RUN]
    assert len(listed) == len(set(listed))
    assert {block for block in ALL if block[0] not in ELSEWHERE} == set(listed)
    assert {page for page, _ in ALL} >= set(ELSEWHERE)
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text() or Path(page).stem in test, f"{test} does not read {page}"


@pytest.fixture
def names(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What blocks take for granted, in a working folder with a file of orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALVE_HOME", str(tmp_path / "home"))
    (tmp_path / "in/orders").mkdir(parents=True)
    (tmp_path / "in/orders/1.json").write_text("\n".join(ROWS) + "\n")
    return {"calve": calve, "spark": spark, "lake": calve.connect(), "notify": lambda _rows, _number: None}


@pytest.mark.parametrize("block", STARTING, ids=str)
def test_a_sink_starts_as_the_block_says(
    block: Block, names: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    text = ALL[block].replace('"in/orders"', f'"{tmp_path}/in/orders"')  # Spark started in another folder
    if "adopt=True" in text:
        load_orders(tmp_path / "home")
    names["changes"] = calve.files(
        "in/orders",
        format="json",
        schema="id BIGINT, customer STRING, amount DECIMAL(12,2), updated_at TIMESTAMP, op STRING, seq BIGINT",
        envelope=calve.Upsert(order_by=("seq",), delete_when="op = 'd'", columns=STARTING[block]),
    )
    values = run_python(text, names)
    query = names.get("query") or next(value for value in values if isinstance(value, calve.Query))
    if query.active:
        query.await_caught_up(WAIT_SECONDS)
        query.stop()
    assert [row[0] for row in Pipelines(tmp_path / "home", spark).rows("shop.orders", "id")] == [1]
    assert all(value.count() for value in values if isinstance(value, DataFrame)), "what it reads is there"


@pytest.fixture
def table(names: dict[str, Any], tmp_path: Path) -> ForeignTable:
    del names
    columns = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "amount", DecimalType(12, 2), required=False),
        NestedField(3, "lat", DoubleType(), required=False),
        NestedField(4, "lon", DoubleType(), required=False),
        identifier_field_ids=[1],
    )
    made = ForeignTable(tmp_path / "home", columns)
    first = made.commit(made.data([{"id": n, "amount": Decimal(n * 100), "lat": 1.0, "lon": 2.0} for n in (1, 2)]))
    made.commit(made.data([{"id": 3, "amount": Decimal(300)}]), made.equality(["id"], [{"id": 1}]))
    made.table.manage_snapshots().create_tag(first, "audit").commit()
    return made


@pytest.mark.parametrize("block", READING, ids=str)
def test_a_table_is_read_and_maintained_as_the_block_says(
    block: Block, names: dict[str, Any], table: ForeignTable, tmp_path: Path
) -> None:
    head, first = table.table.current_snapshot(), table.table.snapshot_by_name("audit")
    assert head is not None
    assert first is not None
    now = datetime.fromtimestamp(head.timestamp_ms / 1000 + 1, UTC).isoformat()
    here = {
        "shop.orders": NAME,
        "5521": str(first.snapshot_id),
        "1_700_000_000_000": "10",
        "2026-11-17 13:30": now,
        'as_of="2026-11-16"': f'as_of="{now}"',
        'since="2026-11-16"': f"since={first.snapshot_id}",
        "out/checkpoint": f"{tmp_path}/out/checkpoint",
    }
    text = ALL[block]
    for there, substitute in here.items():
        text = text.replace(there, substitute)
    values = run_python(text, names)
    frames = [value for value in values if isinstance(value, DataFrame)]
    streams = [value for value in values if hasattr(value, "processAllAvailable")]
    for stream in streams:
        stream.processAllAvailable()
        stream.stop()
    assert [frame.count() for frame in frames] == COUNTS.get(block, [])
    assert streams or frames or values or "orders" in names
    if block[0] == "docs/maintenance.md":
        assert values[0] is not None, "there was something to compact"
    table.close()
