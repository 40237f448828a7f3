"""SIGKILL at each step of `ALTER SINK ... SET (FORMAT VERSION = 3)`: the table is upgraded once, and no row is lost."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from calve.catalog.row_lineage import next_row_id
from tests.faults.harness import Command
from tests.faults.where import TABLE, Where
from tests.support.lineage import lineage_of

SOURCE = """
CREATE SOURCE people (id INT NOT NULL, age INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
"""
STEPS = ["claim.after", "upgrade.before", "upgrade.after", "resolve.after", "manifest-list.after:2", "commit.after:2"]
"""In each of these runs the claim comes first, then the upgrade, if it is not there yet, then the batch."""
WAIT_SECONDS = 300


@pytest.fixture
def command(tmp_path: Path, where: Where) -> Iterator[Command]:
    made = Command(tmp_path, where)
    yield made
    made.end()


def run(command: Command, faults: str = "") -> int:
    process = command.start("--until-caught-up", CALVE_FAULTS=faults)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert "Traceback" not in err, out + err
    return process.returncode


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.positions
@pytest.mark.version_2
def test_killed_at_each_step_of_an_upgrade_a_sink_upgrades_its_table_once(command: Command) -> None:
    def add(number: int, *records: dict[str, Any]) -> None:
        lines = [json.dumps({"seq": n, **record}) for n, record in enumerate(records)]
        (files / f"{number}.json").write_text("\n".join(lines))

    files = command.folder / "in"
    files.mkdir()
    add(1, *({"id": n, "age": n} for n in range(1, 6)))
    command.write(command.where.connections, SOURCE.format(folder=files), command.where.sink("people", TABLE))
    assert run(command) == 0
    add(2, {"id": 2, "age": 20}, {"id": 6, "age": 60})
    assert run(command) == 0
    add(3, {"id": 1, "age": 10}, {"id": 3, "op": "d"}, {"id": 7, "age": 70})
    command.write("ALTER SINK s SET (FORMAT VERSION = 3);")
    for step in STEPS:
        assert run(command, f"{step}=kill") == -signal.SIGKILL, f"{step} was not reached"
    assert run(command) == 0
    table = command.table()
    upgrades = [s for s in table.snapshots() if s.summary and s.summary.operation is Operation.REPLACE]
    assert (table.format_version, len(upgrades)) == (3, 1)
    wanted = {1: 10, 2: 20, 4: 4, 5: 5, 6: 60, 7: 70}
    assert {row["id"]: row["age"] for row in command.rows()} == wanted
    rows = lineage_of(table)
    assert {key: row.values["age"] for key, row in rows.items()} == wanted
    given = next_row_id(table.metadata)
    assert given is not None
    assert rows[7].row_id >= 7, "seven rows had ids before it"
    assert rows[1].row_id < 7, "it kept its id"
    assert all(row.row_id < given for row in rows.values())
