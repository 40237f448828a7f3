"""Kills before and after dead letters are committed: each bad record becomes one letter, each good one a row."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.harness import KILLED, WAIT_SECONDS, Command
from tests.faults.where import TABLE, Where
from tests.support.servers.kafka import Kafka, Message

PIPELINE = """
CREATE CONNECTION k TO KAFKA (BROKER = '{0}');
CREATE SOURCE o (id BIGINT NOT NULL, v INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM KAFKA CONNECTION k (TOPIC = '{1}', MAX OFFSETS PER CHECKPOINT = 10) FORMAT JSON ENVELOPE UPSERT;
"""
SHORT = ("deadletter.before=kill", "deadletter.after=kill", "")
LONG = (
    "deadletter.after=kill",
    "record.before=kill",
    "deadletter.after:2=kill",
    "commit.after=kill",
    "files.after=kill",
)


def messages(step: int) -> list[Message]:
    """Seven records, two of them bad."""
    found: list[Message] = [({"id": n}, {"id": n, "v": step}) for n in range(step, step + 5)]
    return [*found[:2], (b"bad", f"{step} a".encode()), *found[2:], (b"bad", f"{step} b".encode())]


def run(folder: Path, where: Where, faults: str) -> int:
    command = Command(folder, where)
    process = command.start("--until-caught-up", CALVE_FAULTS=faults)
    try:
        process.communicate(timeout=WAIT_SECONDS)
    finally:
        command.end()
    return process.returncode


@pytest.mark.parametrize("steps", [SHORT, pytest.param((*LONG, ""), marks=pytest.mark.slow)], ids=["short", "long"])
def test_letters_are_neither_lost_nor_doubled_by_kills(
    tmp_path: Path, where: Where, kafka: Kafka, steps: Sequence[str]
) -> None:
    topic = kafka.topic()
    pipeline = [where.connections, PIPELINE.format(kafka.brokers, topic)]
    (tmp_path / "p.sql").write_text("".join([*pipeline, where.sink("o", TABLE, "ON BAD ROW = 'dead letter'")]))
    for step, faults in enumerate(steps):
        kafka.send(topic, messages(step))  # what is read again has other bounds
        assert run(tmp_path, where, faults) == (KILLED if faults else 0), faults
    catalog = where.lake(tmp_path / "home").open()
    rows = {row["id"]: row["v"] for row in where.rows(catalog.load_table(TABLE).metadata_location)}
    assert rows == {n: min(n, len(steps) - 1) for n in range(len(steps) + 4)}
    letters = where.rows(catalog.load_table(f"{TABLE}_dead_letters").metadata_location)
    expected = [f"{step} {which}".encode() for step in range(len(steps)) for which in "ab"]
    assert sorted(row["value"] for row in letters) == expected
    assert sorted(row["offset"] for row in letters) == [7 * step + at for step in range(len(steps)) for at in (2, 6)]
