"""Starts of sinks: what is retried, and what is reported instead of silently doing nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.errors import InvalidInput, TransientError
from calve.model.health import Health
from calve.pipeline import sink as sinks
from calve.pipeline.sink import START_TRIES, Sink
from calve.watch.status_files import read_statuses
from tests.support.readers import ROOT, duckdb_rows


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "FIRST_WAIT", 0.01)


def sink(spark: SparkSession, home: Path, name: str = "r", first: int = 0) -> Sink:
    return calve.sink(spark.range(first, first + 5), name=name, into=calve.connect(home=home).table("x.t"), key=["id"])


def keys(home: Path) -> list[int]:
    return sorted(row["id"] for row in duckdb_rows(calve.connect(home=home).open().load_table("x.t").metadata_location))


def fail_loads(count: int) -> list[str]:
    """The first loads of the table fail; all of them are in the list."""
    loads: list[str] = []

    def hook(point: str) -> None:
        if point == "load":
            loads.append(point)
            if len(loads) <= count:
                raise TransientError("the table could not be loaded", detail="ReadTimeout.")

    faults.install(hook)
    return loads


def test_a_start_outlives_requests_that_fail(spark: SparkSession, tmp_path: Path) -> None:
    loads = fail_loads(START_TRIES - 1)
    try:
        assert sink(spark, tmp_path).start().await_termination(120)
    finally:
        faults.install(None)
    assert len(loads) > START_TRIES
    assert keys(tmp_path) == [0, 1, 2, 3, 4]


def test_a_start_that_was_given_up_says_so(spark: SparkSession, tmp_path: Path) -> None:
    loads = fail_loads(1000)
    try:
        with pytest.raises(TransientError, match='sink "r" was not started: the table could not be loaded') as failed:
            sink(spark, tmp_path).start()
    finally:
        faults.install(None)
    assert len(loads) == START_TRIES
    assert failed.value.detail == f"ReadTimeout. Tried {START_TRIES} times."
    assert failed.value.hint == "The sink is not running: call start() again."


def test_a_second_bounded_frame_is_refused_and_the_remedy_works(spark: SparkSession, tmp_path: Path) -> None:
    assert sink(spark, tmp_path).start().await_termination(120)
    with pytest.raises(InvalidInput, match='sink "r" is complete') as refused:
        sink(spark, tmp_path, first=3).start()
    assert "another name and options(adopt=True)" in refused.value.hint
    assert sink(spark, tmp_path, "another", 3).options(adopt=True).start().await_termination(120)
    assert keys(tmp_path) == [0, 1, 2, 3, 4, 5, 6, 7]


ENDS_AT_ONCE = """
import sys, time
import calve
from tests.support.jvm import QUICK

lake = calve.connect(home=sys.argv[1])
lake.spark(master="local[1]", conf=QUICK)
endless = calve.orders(rows=50, changes=10**9, per_checkpoint=20)
query = calve.sink(endless, name="r", into=lake.table("x.t"), key=["id"]).start()
while not query.recent_commits():
    time.sleep(0.05)
sys.exit(7)
"""


def test_a_program_that_ends_stops_its_sinks_first(tmp_path: Path) -> None:
    """Its exit code is preserved, and the status does not report a sink as running that is not."""
    command = [sys.executable, "-c", ENDS_AT_ONCE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, "Fatal Python error" in done.stderr) == (7, False), done.stderr
    assert [status.health for status in read_statuses(tmp_path)] == [Health.STOPPED]
    assert keys(tmp_path)
