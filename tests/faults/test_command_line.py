"""`calve run` as a process: signals, kills at random moments, exit codes, log lines."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calve.model.health import Health
from calve.source.generator import expected_orders, orders
from calve.watch.status_files import read_statuses
from tests.faults.harness import Command
from tests.faults.where import TABLE, Where
from tests.support.pipelines import eventually
from tests.support.warm import WarmProcess

ROWS, CHANGES, STEP = 20_000, 500, 250
SOURCE = f"""
CREATE SECRET unused AS 'wolfram-carbide';
CREATE SOURCE orders
  FROM LOAD GENERATOR orders (ROWS = {ROWS}, UPDATES = {CHANGES}, MAX ROWS PER CHECKPOINT = {STEP});
"""
WAIT_SECONDS = 300


@pytest.fixture
def command(tmp_path: Path, where: Where) -> Iterator[Command]:
    made = Command(tmp_path, where)
    made.write(where.connections, SOURCE, where.sink("orders", TABLE))
    yield made
    made.end()


def test_sigterm_during_a_commit_lets_it_finish_and_a_restart_goes_on(command: Command) -> None:
    gate = command.folder / "gate"
    gate.touch()
    process = command.start("--log-format", "json", CALVE_FAULTS="commit.before:3=pause", CALVE_FAULTS_GATE=str(gate))
    eventually(lambda: command.snapshots() >= 3)
    process.send_signal(signal.SIGHUP)  # without a terminal it rotates logs
    process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping after the current commits" in process.printed_errors())
    gate.unlink()
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert out.splitlines()[-1].startswith("s: stopped, ")
    (ended,) = read_statuses(command.home)
    assert (ended.health, ended.cause) == (Health.STOPPED, "the process received SIGTERM")
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line for line in lines if "committed snapshot" in line["message"]], err
    assert "wolfram" not in out + err
    landed = command.orders()
    assert landed
    assert len(landed) < len(expected_orders(orders(rows=ROWS, changes=CHANGES), ROWS + CHANGES))
    done = command.start("--until-caught-up")
    done.communicate(timeout=WAIT_SECONDS)
    assert done.returncode == 0
    assert command.orders() == expected_orders(orders(rows=ROWS, changes=CHANGES), ROWS + CHANGES)


@pytest.mark.slow
def test_killed_at_random_moments_the_table_is_right_in_the_end(command: Command) -> None:
    chance = random.Random(20261116)
    for _ in range(2):
        process = command.start("--until-caught-up")
        snapshots = command.snapshots() + chance.randrange(1, 5)

        def far_enough(process: WarmProcess = process, snapshots: int = snapshots) -> bool:
            return process.poll() is not None or command.snapshots() >= snapshots

        eventually(far_enough)
        process.kill()
        process.communicate()
    last = command.start("--until-caught-up")
    out, err = last.communicate(timeout=WAIT_SECONDS)
    assert last.returncode == 0, out + err
    assert command.orders() == expected_orders(orders(rows=ROWS, changes=CHANGES), ROWS + CHANGES)


@pytest.mark.embedded
@pytest.mark.positions
def test_a_mistake_in_the_file_is_shown_with_its_place_and_exits_2(command: Command) -> None:
    command.write(command.where.connections, SOURCE, command.where.sink("ordres", TABLE))
    process = command.start()
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 2
    assert out == ""
    assert 'there is no source or view "ordres"' in err
    assert 'Did you mean "orders"?' in err


PEOPLE = """
CREATE SOURCE people (id INT NOT NULL, age INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
"""


def test_killed_after_a_change_of_columns_the_table_and_its_rows_agree_in_the_end(command: Command) -> None:
    def add(number: int, *records: dict[str, Any]) -> None:
        lines = [json.dumps({"seq": n, **record}) for n, record in enumerate(records)]
        (files / f"{number}.json").write_text("\n".join(lines))

    def run(faults: str = "") -> int:
        process = command.start("--until-caught-up", CALVE_FAULTS=faults)
        process.communicate(timeout=WAIT_SECONDS)
        return process.returncode

    files = command.folder / "in"
    files.mkdir()
    add(1, *({"id": n, "age": n} for n in (1, 2, 3)))
    command.write(command.where.connections, PEOPLE.format(folder=files), command.where.sink("people", TABLE))
    assert run() == 0
    add(2, {"id": 1, "age": 2**40, "mail": "a@b"}, {"id": 2, "op": "d"})
    command.write("ALTER SOURCE people SET COLUMNS (id INT NOT NULL, age BIGINT, mail STRING)")
    assert [run("schema.after=kill"), run()] == [-signal.SIGKILL, 0]
    assert sorted(command.rows(), key=lambda row: int(row["id"])) == [
        {"id": 1, "age": 2**40, "mail": "a@b"},
        {"id": 3, "age": 3, "mail": None},
    ]
