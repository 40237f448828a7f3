"""A chain of three sinks, each fed by the changes of the table before it, and each killed at several points."""

from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve.api.verify import verify, verify_changes
from calve.iceberg.snapshot.consumers import consumers_of
from calve.pipeline.build import sink_of
from calve.pipeline.query import Query
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink
from calve.source.generator import expected_orders, orders
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind
from tests.faults.harness import WAIT_SECONDS, Command
from tests.faults.where import Where
from tests.support.changes import until_done
from tests.support.pipelines import Pipelines

ROWS, CHANGES, STEP = 60, 180, 40
CHAIN = f"""
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE generated
  FROM LOAD GENERATOR orders (ROWS = {ROWS}, UPDATES = {CHANGES}, MAX ROWS PER CHECKPOINT = {STEP});
CREATE SINK raw FROM generated TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "raw";
CREATE SOURCE raw_changes FROM ICEBERG TABLE lake.shop.raw (CONSUMER = 'cleaning', MAX ROWS PER CHECKPOINT = 50);
CREATE VIEW cleaned AS SELECT id, status, amount FROM raw_changes WHERE status <> 'returned';
CREATE SINK cleaned FROM cleaned TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "cleaned";
CREATE SOURCE cleaned_changes FROM ICEBERG TABLE lake.shop.cleaned (START = 'earliest', MAX ROWS PER CHECKPOINT = 50);
CREATE VIEW totals AS SELECT status, count(*) AS orders, sum(amount) AS amount FROM cleaned_changes GROUP BY status;
CREATE SINK totals FROM totals TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "totals";
"""


def expected_totals() -> list[tuple[str, int, Decimal]]:
    definition = orders(rows=ROWS, changes=CHANGES)
    counts: Counter[str] = Counter()
    sums: dict[str, Decimal] = {}
    for _, _, amount, status, _ in expected_orders(definition, ROWS + CHANGES).values():
        if status != "returned":
            counts[status] += 1
            sums[status] = sums.get(status, Decimal(0)) + amount
    return sorted((status, counts[status], sums[status]) for status in counts)


def check(lake: Pipelines) -> None:
    """Every table of the chain equals what the generator's changes add up to."""
    expected = expected_orders(orders(rows=ROWS, changes=CHANGES), ROWS + CHANGES)
    assert [row[0] for row in lake.rows("shop.raw")] == sorted(expected)
    kept = sorted((i, status, amount) for i, _, amount, status, _ in expected.values() if status != "returned")
    assert lake.rows("shop.cleaned", "id", "status", "amount") == kept
    assert lake.rows("shop.totals", "status", "orders", "amount") == expected_totals()


def test_a_chain_of_three_sinks_is_exact_whichever_of_them_dies(spark: SparkSession, tmp_path: Path) -> None:
    lake = Pipelines(tmp_path, spark)
    lake.apply(CHAIN)

    def start(name: str) -> Query:
        definitions = lake.place.definitions()
        plan = plan_sink(required(definitions, Identifier.exact(name), ObjectKind.SINK), definitions)
        return sink_of(lake.home, plan, definitions, lake.place.vault).start(state=plan.state)

    until_done(lambda: start("raw"), [("receipt.before", 3)], bounded=False)
    until_done(lambda: start("cleaned"), [("record.before", 1), ("receipt.before", 1)], bounded=False)
    until_done(lambda: start("totals"), [("files.after", 1), ("receipt.before", 2)], bounded=False)
    until_done(lambda: start("raw"), [("record.after", 1)])
    calve.compact(calve.connect(home=tmp_path).table("shop.raw"))
    until_done(lambda: start("cleaned"), [("claim.after", 1), ("record.after", 1)], bounded=False)
    until_done(lambda: start("totals"), [("record.after", 1), ("manifest-list.after", 1)], bounded=False)
    check(lake)
    for name in ("cleaned", "totals"):
        assert verify(lake.place, name) == verify_changes(lake.place, name)
        assert verify(lake.place, name).none
    (held,) = consumers_of(lake.table("shop.raw"))
    assert held.name == "cleaning"
    assert held.behind is not None


@pytest.mark.slow
def test_a_chain_of_three_sinks_is_exact_after_kills(spark: SparkSession, tmp_path: Path) -> None:
    """All three in one process, which SIGKILL ends at several points; the last run catches up."""
    command = Command(tmp_path, Where())
    (tmp_path / "p.sql").write_text(CHAIN)
    for plan in ("record.after:2=kill", "receipt.before:4=kill", "files.after:6=kill", "commit.before:5=kill"):
        command.start("--until-caught-up", CALVE_FAULTS=plan).communicate(WAIT_SECONDS)
    last = command.start("--until-caught-up")
    last.communicate(WAIT_SECONDS)
    assert last.returncode == 0
    check(Pipelines(command.home, spark))
