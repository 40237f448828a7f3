"""A sink compacts its table while it commits, and no reader sees a different row."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import calve
from calve import faults
from calve.cli.main import app
from calve.errors import InvalidInput, TransientError
from calve.iceberg.files.names import own_name, table_mark
from calve.lake import TableRef
from calve.model.spec import Upsert
from calve.pipeline.query import Query
from tests.support.changes import Batches
from tests.support.readers import datafusion_rows, duckdb_rows, spark_iceberg_rows

UPSERT = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, day, value")
DDL = "id BIGINT, day INT, value STRING, op STRING, seq BIGINT"


class Stream:
    """Random changes of few keys, and what they come to."""

    def __init__(self, seed: int, batches: int) -> None:
        rng = random.Random(seed)
        self.contents: dict[int, str] = {}
        rows: list[list[tuple[Any, ...]]] = []
        for number in range(batches):
            batch: list[tuple[Any, ...]] = []
            for key in rng.sample(range(200), 40):
                gone = rng.random() < 0.2
                value = f"{number}-{key}"
                batch.append((key, rng.randrange(2), value, "d" if gone else "u", number))
                self.contents.pop(key, None) if gone else self.contents.update({key: value})
            rows.append(batch)
        self.source = Batches(rows, DDL, UPSERT)


@pytest.fixture
def ref(spark: SparkSession, tmp_path: Path) -> TableRef:
    del spark  # the active session
    return calve.connect(home=str(tmp_path / "home")).table("x.t")


def run(ref: TableRef, stream: Stream, *partitions: str, **options: Any) -> Query:
    sink = calve.sink(stream.source, name="s", into=ref, key=["id"]).options(**options).partition_by(*partitions)
    query = sink.start()
    assert query.await_termination(200)
    return query


def replaced(ref: TableRef) -> int:
    snapshots = ref.lake.open().load_table(ref.name.identifier).snapshots()
    return sum(s.summary is not None and s.summary.operation.value == "replace" for s in snapshots)


@pytest.mark.parametrize(
    ("deletes", "key_index", "partitions"), [("position", "on", ()), ("equality", "auto", ("day",))], ids=str
)
def test_a_sink_that_never_rests_has_few_files_and_the_right_rows(
    ref: TableRef, deletes: str, key_index: str, partitions: tuple[str, ...]
) -> None:
    stream = Stream(7, batches=18)
    query = run(ref, stream, *partitions, deletes=deletes, key_index=key_index, small_files=8)
    table = ref.lake.open().load_table(ref.name.identifier)
    readers = [duckdb_rows, spark_iceberg_rows, *([datafusion_rows] if deletes == "position" else [])]
    for reader in readers:
        rows = reader(table.metadata_location)
        assert {row["id"]: row["value"] for row in rows} == stream.contents
        assert len(rows) == len(stream.contents), "no key is there twice"
    assert query.status().compactions == replaced(ref) >= 1
    assert " files with " in query.status().last_compaction
    assert len(table.inspect.data_files()) < 18 * max(1, 2 * len(partitions)), "or nothing was joined"


@pytest.mark.soak
def test_compactions_of_a_sink_sort_rows_as_the_user_wants_and_batches_by_the_key(ref: TableRef) -> None:
    stream = Stream(10, batches=13)
    query = run(ref, stream, small_files=8, sort_by="day, value")
    assert query.status().compactions == 1
    table = ref.lake.open().load_table(ref.name.identifier)
    assert {row["id"]: row["value"] for row in duckdb_rows(table.metadata_location)} == stream.contents
    merged, batches = list[bool](), list[bool]()
    """Of each file, whether its rows have the order that they should have."""
    replacing = {s.snapshot_id for s in table.snapshots() if s.summary and s.summary.operation.value == "replace"}
    for entry in table.inspect.entries().to_pylist():
        if entry["data_file"]["content"] == 0 and entry["status"] != 2:
            with table.io.new_input(entry["data_file"]["file_path"]).open() as file:
                rows = pq.read_table(file).to_pylist()
            if entry["snapshot_id"] in replacing:
                merged.append(rows == sorted(rows, key=lambda row: (row["day"], row["value"])))
            else:
                batches.append(rows == sorted(rows, key=lambda row: row["id"]))
    assert merged == [True]
    assert len(batches) >= 3
    assert all(batches)


def test_maintenance_that_fails_is_no_failure_of_the_sink(ref: TableRef) -> None:
    def hook(point: str) -> None:
        if point == "maintain.after":
            raise TransientError("the answer was lost")

    faults.install(hook)
    stream = Stream(8, batches=12)
    run(ref, stream, small_files=8)
    faults.install(None)
    rows = duckdb_rows(ref.lake.open().load_table(ref.name.identifier).metadata_location)
    assert {row["id"]: row["value"] for row in rows} == stream.contents, "what may be in the table was not removed"
    assert replaced(ref) == 1


def test_a_sink_without_maintenance_leaves_its_files_alone(ref: TableRef) -> None:
    query = run(ref, Stream(9, batches=12), maintenance="off")
    assert (query.status().compactions, replaced(ref)) == (0, 0)


def maintain(ref: TableRef, *arguments: str) -> list[str]:
    command = ["maintain", str(ref), "--home", str(ref.lake.home), "--quiet", *arguments]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout.splitlines()


def test_every_job_of_the_command_line_keeps_every_row(ref: TableRef) -> None:
    """With the state of a real sink, one job after another, read by two other engines."""
    stream = Stream(5, 6)
    run(ref, stream, "day", deletes="equality", maintenance="off")

    def table() -> Table:
        return ref.lake.open().load_table(ref.name.identifier)

    def check() -> None:
        for reader in (duckdb_rows, spark_iceberg_rows):
            assert {row["id"]: row["value"] for row in reader(table().metadata_location)} == stream.contents

    def files_by_day() -> dict[int, int]:
        found = table().inspect.data_files().to_pylist()
        return Counter(file["partition"]["day"] for file in found)

    before = files_by_day()
    assert set(before) == {0, 1}
    maintain(ref, "--only", "compact", "--where", "day = 1")
    after = files_by_day()
    assert (after[0], after[1]) == (before[0], 1), "the other partition is as it was"
    with pytest.raises(InvalidInput, match="does not tell files apart"):
        maintain(ref, "--only", "compact", "--where", "length(value) > 3")
    check()
    assert maintain(ref, "--only", "convert")[0].startswith("convert: 5 files of equality deletes became ")
    maintain(ref, "--only", "manifests")
    check()
    left = Path(table().location().removeprefix("file://")) / "data"
    left /= own_name(table_mark(table().metadata.table_uuid), "00000-left.parquet")
    left.write_bytes(b"left behind")
    ages = ("--older-than", "0s", "--grace", "0s", "--force")
    assert " snapshots expired; " in maintain(ref, "--only", "expire,orphans", *ages)[0]
    lines = maintain(ref, "--only", "expire,orphans", *ages)
    assert "orphans: 1 files (11 B) of 1 files (11 B) orphans were removed" in lines
    assert not left.exists()
    check()
