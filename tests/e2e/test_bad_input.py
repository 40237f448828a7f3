"""Bad input, bad tables, bad disks: a clear error, no losses, and the sink continues once the cause is removed."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.errors import BadRow, CalveError, InvalidInput, ProgressUnprovable
from calve.lake import Lake
from calve.model.spec import Debezium, Envelope, NoEnvelope, Upsert
from calve.pipeline.query import Query, exit_code
from calve.source.generator import expected_orders, orders
from tests.faults.harness import rows_of
from tests.support.changes import Batches, at
from tests.support.combinations import diagonal
from tests.support.pipelines import eventually, until_stalled
from tests.support.readers import duckdb_rows

KAFKA = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"
UPSERT = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, value")
RECORDS = Debezium(columns="id BIGINT, value STRING")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    del spark  # the active session
    return calve.connect(home=tmp_path / "home")


def start(lake: Lake, batches: list[list[tuple[Any, ...]]], ddl: str, envelope: Envelope, key: str = "id") -> Query:
    source = Batches(batches, ddl, envelope)
    return calve.sink(source, name="s", into=lake.table("x.t"), key=[key]).start()


def rows(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["value"]) for r in duckdb_rows(lake.open().load_table("x.t").metadata_location))


@pytest.mark.parametrize(
    ("ddl", "key", "words"),
    [
        ("a BIGINT, value STRING", "id", "id"),
        ("id DOUBLE, value STRING", "id", "double"),
        ("id FLOAT, value STRING", "id", "float"),
        ("id STRUCT<a: INT>, value STRING", "id", "struct"),
        ("id BIGINT, _calve_op INT", "id", "_calve_"),
        ("id BIGINT, value ARRAY<VARIANT>", "id", "value"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_before_anything_is_made(lake: Lake, ddl: str, key: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        start(lake, [[]], ddl, NoEnvelope(), key)
    assert refused.value.exit_code == 2
    assert not lake.open().namespace_exists("x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "id"}, "list of columns"),
        ({"envelope": "avro"}, "unknown envelope"),
        ({"name": "no/slash"}, "not a valid name"),
    ],
)
def test_a_call_that_cannot_work_is_refused(lake: Lake, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        calve.sink(calve.orders(rows=1), **{"name": "s", "into": lake.table("x.t"), "key": ["id"], **options})


@pytest.mark.parametrize(
    ("batch", "ddl", "envelope", "words"),
    [
        ([(None, "x", "u", 1)], "id BIGINT, value STRING, op STRING, seq BIGINT", UPSERT, "id"),
        pytest.param(
            [(1, "x", "u", None)],
            "id BIGINT, value STRING, op STRING, seq BIGINT",
            UPSERT,
            "seq",
            marks=pytest.mark.soak,
        ),
        ([('{"id":1}', "{not json", "t", 0, 7)], KAFKA, RECORDS, "7"),
        pytest.param([('{"id":1}', '{"op":"x"}', "t", 0, 8)], KAFKA, RECORDS, "8", marks=pytest.mark.soak),
        pytest.param(
            [('{"id":1}', '{"op":"c","after":{"id":"abc","value":"v"}}', "t", 0, 9)],
            KAFKA,
            RECORDS,
            "abc",
            marks=pytest.mark.soak,
        ),
        ([('{"id":1}', '{"op":"t"}', "t", 0, 10)], KAFKA, RECORDS, "truncate"),
    ],
    ids=["null-key", "null-order", "not-json", "unknown-op", "wrong-type", "truncate"],
)
def test_a_bad_record_halts_the_sink_after_the_good_batches_before_it(
    lake: Lake, batch: list[tuple[Any, ...]], ddl: str, envelope: Envelope, words: str
) -> None:
    good = (
        [(5, "good", "u", 0)]
        if envelope is UPSERT
        else [('{"id":5}', '{"op":"c","after":{"id":5,"value":"good"}}', "t", 0, 0)]
    )
    query = start(lake, [good, batch], ddl, envelope)
    with pytest.raises(BadRow, match=words):
        query.await_termination(120)
    assert (query.status().health, exit_code(query)) == ("halted", 1)
    assert rows(lake) == [(5, "good")]
    mended = (
        [(1, "mended", "u", 1)]
        if envelope is UPSERT
        else [('{"id":1}', '{"op":"c","after":{"id":1,"value":"mended"}}', "t", 0, 7)]
    )
    assert start(lake, [good, mended], ddl, envelope).await_termination(120)
    assert rows(lake) == [(1, "mended"), (5, "good")]


def test_a_table_with_rows_of_somebody_else_is_refused(lake: Lake) -> None:
    catalog = lake.open()
    catalog.create_namespace("x")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
    catalog.create_table("x.t", schema).append(pa.Table.from_pylist([{"id": 1, "value": "theirs"}], schema=schema))
    with pytest.raises(ProgressUnprovable, match="none of this sink"):
        start(lake, [[(1, "ours")]], "id BIGINT, value STRING", NoEnvelope())
    assert rows(lake) == [(1, "theirs")]


def test_a_table_with_other_columns_is_refused_with_the_difference(lake: Lake) -> None:
    catalog = lake.open()
    catalog.create_namespace("x")
    catalog.create_table("x.t", pa.schema([pa.field("id", pa.string(), nullable=False)]))
    with pytest.raises(InvalidInput, match="does not fit") as refused:
        start(lake, [[]], "id BIGINT, value STRING", NoEnvelope())
    assert '"id"' in refused.value.detail


# ---- disks

ORDERS = orders(rows=300, changes=700, per_checkpoint=200)


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Path]:
    """A warehouse on a filesystem of its own, which can be filled and made read-only."""
    folder = tmp_path / "home" / "warehouse"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=True)
    yield folder
    faults.install(None)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))


def remount(folder: Path, mode: str) -> None:
    """Mount the folder again. It cannot be made read-only while another thread of the sink has a file open to write."""
    command = ["mount", "-o", f"remount,{mode}", str(folder)]
    eventually(lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0)


TROUBLES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "No space left": (fill, lambda folder: (folder / "ballast").unlink()),
    "Read-only file system": (lambda folder: remount(folder, "ro"), lambda folder: remount(folder, "rw")),
}


@diagonal(trouble=TROUBLES, point=["files.before", "manifest-list.before"])
def test_a_disk_in_trouble_stalls_the_sink_until_it_is_mended(
    lake: Lake, warehouse: Path, trouble: str, point: str
) -> None:
    harm, mend = TROUBLES[trouble]
    at(point, 3, lambda: harm(warehouse))
    query = calve.sink(ORDERS, name="orders", into=lake.table("x.orders"), key=["id"]).start()
    until_stalled(query, trouble)
    mend(warehouse)
    assert query.await_termination(120)
    location = lake.open().load_table("x.orders").metadata_location
    assert rows_of(duckdb_rows(location)) == expected_orders(ORDERS, 1000)


def test_errors_say_what_happened_and_what_to_do(lake: Lake) -> None:
    with pytest.raises(CalveError) as refused:
        start(lake, [[]], "id DOUBLE", NoEnvelope())
    assert refused.value.primary
    assert refused.value.detail or refused.value.hint
