"""A table that Flink upserts into every second is kept readable: its equality deletes are converted while it writes."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.table import Table

import calve
from calve.maintain.compact import CompactionScope
from calve.maintain.jobs import Job, JobOptions, MaintainedTable, maintain
from calve.spark.java import find_java
from tests.support.readers import ROOT, duckdb_rows, spark_rest_rows
from tests.support.servers.java import jars_of
from tests.support.servers.lakehouse import Lakehouse, new_namespace

FLINK = ROOT / ".cache" / "flink"
KEYS, RATE = 2_000, 400
SECONDS = 60
CHECKED = 12
"""Snapshots that are compared with what Flink had written by then."""


@contextmanager
def flink_upserts(folder: Path, lakehouse: Lakehouse, table: str, changes: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run Flink's job in a process of its own; it has ended well at the end of the block."""
    jars = sorted((FLINK / "jars").glob("*.jar"))
    iceberg = [jar for jar in jars if "iceberg" in jar.name]
    given = {
        "catalog": {
            **{key: value for key, value in lakehouse.spark.items() if key != "type"},
            "catalog-type": "rest",
            "s3.chunked-encoding-enabled": "false",
        },
        "table": table,
        "keys": KEYS,
        "changes": changes,
        "rate": RATE,
        "jars": [str(jar) for jar in (*iceberg, *jars_of("rest-catalog").glob("iceberg-aws-bundle-*.jar"))],
    }
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "SPARK_HOME"}},
        "HADOOP_CLASSPATH": ":".join(str(jar) for jar in jars if jar not in iceberg),
        "JAVA_HOME": str(find_java(folder / "java", os.environ)),
    }
    log = folder / "flink.log"
    command = [
        str(FLINK / "venv" / "bin" / "python"),
        str(ROOT / "tests" / "support" / "flink_job.py"),
        json.dumps(given),
    ]
    with log.open("wb") as told:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=told, stderr=subprocess.STDOUT)
    try:
        yield process
        assert process.wait(120) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def equality_deletes(table: Table) -> int:
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    return int(head.summary.get("total-equality-deletes", 0) or 0)


def expected(rows: list[dict[str, int]]) -> list[tuple[int, int]]:
    """What a snapshot must have: every change up to the newest that it has."""
    newest = max(row["v"] for row in rows)
    return sorted((n % KEYS, n) for n in range(max(0, newest - KEYS + 1), newest + 1))


@pytest.mark.soak
@pytest.mark.skipif(not (FLINK / "complete").is_file(), reason="Flink is not there: see scripts/fetch_flink.py")
def test_deletes_are_converted_and_files_compacted_while_flink_commits_every_second(
    tmp_path: Path, lakehouse: Lakehouse
) -> None:
    namespace, changes = new_namespace(), RATE * SECONDS
    lake = calve.connect(home=tmp_path / "home", **lakehouse.properties)
    catalog = lake.open()
    catalog.create_namespace(namespace)
    name = f"{namespace}.orders"
    ref = lake.table(name)
    done: Counter[str] = Counter()
    seconds: list[float] = []
    falls: list[tuple[int, int]] = []
    with flink_upserts(tmp_path, lakehouse, name, changes) as flink:
        deadline = time.monotonic() + 90
        while not catalog.table_exists(name) or catalog.load_table(name).current_snapshot() is None:
            assert flink.poll() is None, (tmp_path / "flink.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "Flink commits nothing"
            time.sleep(0.2)
        while flink.poll() is None:
            before = equality_deletes(catalog.load_table(name))
            for job in (Job.CONVERT, Job.COMPACT):
                subject = MaintainedTable(ref, CompactionScope(ref.name))
                (report,) = maintain(subject, (job,), JobOptions())  # raises if others win every time
                if report.result != "nothing to do":
                    done[job] += 1
                    seconds.append(report.seconds)
            falls.append((before, equality_deletes(catalog.load_table(name))))
            time.sleep(1)
    table = catalog.load_table(name)
    by_flink = [one for one in table.snapshots() if one.summary and "flink.job-id" in one.summary.additional_properties]
    others = len(table.snapshots()) - len(by_flink)
    print(  # noqa: T201 - numbers for people
        f"{len(by_flink)} commits by Flink, {others} by calve ({dict(done)}), "
        f"jobs took {min(seconds):.1f} to {max(seconds):.1f} s; equality deletes before and after each round: {falls}",
        file=sys.stderr,
    )
    assert len(by_flink) > SECONDS // 3, "Flink went on committing"
    assert done[Job.CONVERT] >= 5
    assert done[Job.COMPACT] >= 3
    assert sum(after < before for before, after in falls) > len(falls) // 2
    snapshots = table.snapshots()
    for snapshot in [*snapshots[:: max(1, len(snapshots) // CHECKED)], snapshots[-1]]:
        rows = duckdb_rows(table.metadata_location, snapshot_id=snapshot.snapshot_id, s3=lakehouse.duckdb)
        assert sorted((row["id"], row["v"]) for row in rows) == expected(rows), snapshot
    calve.convert_deletes(ref)
    calve.compact(ref)
    table = catalog.load_table(name)
    assert equality_deletes(table) == 0
    final = sorted((n % KEYS, n) for n in range(changes - KEYS, changes))
    for rows in (
        duckdb_rows(table.metadata_location, s3=lakehouse.duckdb),
        spark_rest_rows(lakehouse.spark, name),
        table.scan().to_arrow().to_pylist(),
    ):
        assert sorted((row["id"], row["v"]) for row in rows) == final
