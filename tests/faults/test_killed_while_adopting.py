"""SIGKILL while a sink adopts a table with rows, with changes from a real topic: as if nothing had happened.

pyiceberg writes the bulk load; a producer continues between the kills.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.faults.harness import KILLED, Command
from tests.faults.where import NAMESPACE, TABLE, Where
from tests.support.servers.kafka import Kafka, Message

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "v", StringType(), required=False))
PIPELINE = """
CREATE CONNECTION k TO KAFKA (BROKER = '{brokers}');
CREATE SOURCE changes (id BIGINT NOT NULL, v STRING{key})
  FROM KAFKA CONNECTION k (TOPIC = '{topic}', START OFFSETS = '{start}', MAX OFFSETS PER CHECKPOINT = 40)
  FORMAT JSON ENVELOPE {envelope};
"""
SHORT = ["claim.after", "commit.after:2"]
LONG = ["claim.after", "rows.after", "commit.after:2", "commit.after:2"]
"""The second commit of a run says that the rows are right, if they were not checked before; else it is a batch."""
PARTITIONS = (0, 1)


@pytest.fixture
def command(tmp_path: Path, where: Where) -> Iterator[Command]:
    made = Command(tmp_path, where)
    yield made
    made.end()


def load(command: Command, rows: dict[int, str]) -> None:
    """Append rows, as any other tool does."""
    catalog = command.where.lake(command.home).open()
    catalog.create_namespace_if_not_exists(NAMESPACE)
    table = catalog.create_table_if_not_exists(TABLE, SCHEMA, properties={"format-version": "2"})
    found = [{"id": n, "v": v} for n, v in rows.items()]
    table.append(pa.Table.from_pylist(found, schema=SCHEMA.as_arrow()))


def run(command: Command, faults: str = "") -> int:
    process = command.start("--until-caught-up", CALVE_FAULTS=faults)
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    assert process.returncode in {0, KILLED}, out + err
    return process.returncode


def survives(command: Command, steps: list[str]) -> Iterator[str]:
    """Die at each step, and say so; then run to the end."""
    for step in steps:
        assert run(command, f"{step}=kill") == KILLED, f"{step} was not reached"
        yield step
    assert run(command) == 0


def committed_once(command: Command) -> list[str]:
    """Commit ids of the batches, each of which is there once."""
    summaries = [s.summary.additional_properties for s in command.table().snapshots() if s.summary]
    ids = [s["calve.commit-id"] for s in summaries if "calve.commit-id" in s and s.get("added-records", "0") != "0"]
    assert len(set(ids)) == len(ids)
    return ids


def changes(chance: random.Random, rows: dict[int, str], number: int) -> list[Message]:
    """Changes of some rows, new rows and deletes; `rows` become what they are afterwards."""
    made: list[Message] = []
    for n in range(number):
        key, value = chance.randrange(60), f"{chance.random():.4f} {n}"
        if chance.random() < 0.25:
            rows.pop(key, None)
            made.append(({"id": key}, None))
        else:
            rows[key] = value
            made.append(({"id": key}, {"id": key, "v": value}))
    return made


@pytest.mark.positions
@pytest.mark.version_2  # pyiceberg, the other writer, does not write version 3
@pytest.mark.parametrize("steps", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"])
def test_a_sink_that_takes_over_a_table_survives_kills_and_begins_where_it_first_claimed(
    command: Command, kafka: Kafka, steps: list[str]
) -> None:
    chance, topic = random.Random(17), kafka.topic(partitions=2)
    rows = dict.fromkeys(range(40), "loaded")
    for partition in PARTITIONS:
        kafka.send(topic, [({"id": n}, {"id": n, "v": "before the load"}) for n in range(partition, 60, 2)], partition)
    load(command, rows)

    def more() -> None:
        for key, value in changes(chance, rows, 60):
            kafka.send(topic, [(key, value)], partition=key["id"] % 2)

    source = PIPELINE.format(
        brokers=kafka.brokers, topic=topic, start="latest", key=", PRIMARY KEY (id) NOT ENFORCED", envelope="UPSERT"
    )
    command.write(command.where.connections, source, command.where.sink("changes", TABLE, "ADOPT = true"))
    for _ in survives(command, steps):  # from the claim on nothing is passed over
        more()
    assert {row["id"]: row["v"] for row in command.rows()} == rows
    assert len(command.rows()) == len(rows), "no key is there twice"
    assert len(committed_once(command)) > 1
