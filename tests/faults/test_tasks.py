"""Spark tasks that fail, are retried, or run twice: their orphan files never become part of the table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.faults.where import Where
from tests.support.readers import ROOT

SCRIPT = """
import sys
from pathlib import Path
import calve
from calve.write import batch
from tests.faults.where import TABLE, Where
from tests.support.jvm import QUICK
batch.DRIVER_ROWS = 10          # everything goes to tasks
batch.CODECS = frozenset()      # and none of it to Spark's own writer

home, mode = sys.argv[1:]
where = Where.from_environment()
lake = where.lake(Path(home))
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
orders = calve.orders(rows=20_000, changes=20_000, per_checkpoint=20_000)
sink = calve.sink(orders, name="o", into=lake.table(TABLE), key=["id"]).options(deletes=where.deletes)
assert sink.start(state=where.state).await_termination(200)
print(lake.open().load_table(TABLE).metadata_location)
"""


@pytest.mark.parametrize("mode", ["retried", pytest.param("speculated", marks=pytest.mark.slow)])
def test_the_table_is_right_when_tasks_are(mode: str, where: Where, tmp_path: Path) -> None:
    environment = (
        {"CALVE_FAULTS": "task.write=once", "CALVE_FAULTS_GATE": str(tmp_path / "gate")} if mode == "retried" else {}
    )
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "home"), mode],
        cwd=ROOT,
        env={**os.environ, **where.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "gate").exists() == (mode == "retried"), "a task failed, and only then"
    expected = expected_orders(orders(rows=20_000, changes=20_000), 40_000)
    assert rows_of(where.rows(run.stdout.split()[-1])) == expected
