"""Killed before and after letters are committed: each bad record is a letter once, each good one a row."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from tests.faults.harness import KILLED, WAIT_SECONDS
from tests.support.jvm import QUICK
from tests.support.readers import ROOT, duckdb_rows
from tests.support.servers.kafka import Kafka, Message

PIPELINE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE CONNECTION k TO KAFKA (BROKER = '{0}');
CREATE SOURCE o (id BIGINT NOT NULL, v INT, PRIMARY KEY (id) NOT ENFORCED)
  FROM KAFKA CONNECTION k (TOPIC = '{1}', MAX OFFSETS PER CHECKPOINT = 10) FORMAT JSON ENVELOPE UPSERT;
CREATE SINK s FROM o TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "t" WITH (ON BAD ROW = 'dead letter');
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


def run(folder: Path, faults: str) -> int:
    conf = [part for key, value in QUICK.items() for part in ("--conf", f"{key}={value}")]
    command = [sys.executable, "-m", "calve.cli.main", "run", str(folder / "p.sql"), "--until-caught-up"]
    return subprocess.run(
        [*command, "--home", str(folder / "home"), "--master", "local[2]", *conf],
        cwd=ROOT,
        env={**os.environ, "CALVE_FAULTS": faults},
        timeout=WAIT_SECONDS,
        check=False,
        capture_output=True,
    ).returncode


@pytest.mark.parametrize("steps", [SHORT, pytest.param((*LONG, ""), marks=pytest.mark.slow)], ids=["short", "long"])
def test_letters_are_neither_lost_nor_doubled_by_kills(tmp_path: Path, kafka: Kafka, steps: Sequence[str]) -> None:
    topic = kafka.topic()
    (tmp_path / "p.sql").write_text(PIPELINE.format(kafka.brokers, topic))
    for step, faults in enumerate(steps):
        kafka.send(topic, messages(step))  # what is read again has other bounds
        assert run(tmp_path, faults) == (KILLED if faults else 0), faults
    catalog = connect_embedded(tmp_path / "home")
    rows = {row["id"]: row["v"] for row in duckdb_rows(catalog.load_table("x.t").metadata_location)}
    assert rows == {n: min(n, len(steps) - 1) for n in range(len(steps) + 4)}
    letters = duckdb_rows(catalog.load_table("x.t_dead_letters").metadata_location)
    expected = [f"{step} {which}".encode() for step in range(len(steps)) for which in "ab"]
    assert sorted(row["value"] for row in letters) == expected
    assert sorted(row["offset"] for row in letters) == [7 * step + at for step in range(len(steps)) for at in (2, 6)]
