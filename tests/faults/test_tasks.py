"""Spark tasks that fail, are tried again, or run twice: their loose files are never part of the table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.support.readers import ROOT, duckdb_rows

SCRIPT = """
import sys
import calve
from calve.write import choose
from tests.support.jvm import QUICK
choose.DRIVER_ROWS = 10          # everything goes to tasks
choose.CODECS = frozenset()      # and none of it to Spark's own writer

home, mode = sys.argv[1:]
lake = calve.connect(home=home)
conf = dict(QUICK)
if mode == "speculated":
    conf |= {
        "spark.speculation": "true",
        "spark.speculation.interval": "10ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "1ms",
    }
lake.spark(master="local[2,4]", conf=conf)
query = calve.sink(
    calve.orders(rows=20_000, changes=20_000, per_checkpoint=20_000), name="o", into=lake.table("x.o"), key=["id"]
).start()
assert query.await_termination(200)
print(lake.open().load_table("x.o").metadata_location)
"""


@pytest.mark.parametrize("mode", ["retried", pytest.param("speculated", marks=pytest.mark.slow)])
def test_the_table_is_right_when_tasks_are(mode: str, tmp_path: Path) -> None:
    environment = (
        {"CALVE_FAULTS": "task.write=once", "CALVE_FAULTS_GATE": str(tmp_path / "gate")} if mode == "retried" else {}
    )
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "home"), mode],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "gate").exists() == (mode == "retried"), "a task failed, and only then"
    expected = expected_orders(orders(rows=20_000, changes=20_000), 40_000)
    assert rows_of(duckdb_rows(run.stdout.split()[-1])) == expected
