"""Checkpoints that the driver converts itself: no Spark job runs, and the table is the same."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import calve
from calve.model.checkpoint import SizeHint, SizeLimit
from calve.model.spec import Debezium, Upsert
from calve.pipeline import pipeline
from calve.write import batch
from tests.support.jobs import jobs_counted
from tests.support.readers import duckdb_rows

COLUMNS = "id BIGINT, v STRING"


def put(folder: Path, form: str, number: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f".{number}.{form}"
    if form == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        schema = pa.schema({"id": pa.int64(), "v": pa.string(), "op": pa.string(), "seq": pa.int64()})
        pq.write_table(pa.Table.from_pylist(rows, schema), path, store_schema=False)
    path.rename(folder / f"{number}.{form}")  # complete at once: a sink may be reading


def upsert(number: int, op: str, seq: int) -> dict[str, Any]:
    return {"id": number, "v": f"{seq}", "op": op, "seq": seq}


def debezium(number: int, op: str, seq: int) -> dict[str, Any]:
    row = {"id": number, "v": f"{seq}"}
    return {"before": row, "after": None if op == "d" else row, "op": op, "source": {"lsn": seq}}


@pytest.mark.parametrize("interval", [None, "1s"], ids=["each", "windows"])
@pytest.mark.parametrize(
    ("form", "options", "record"),
    [
        ("parquet", {"schema": f"{COLUMNS}, op STRING, seq BIGINT"}, upsert),
        ("json", {}, upsert),
        ("json", {}, debezium),
    ],
    ids=["parquet", "json", "debezium"],
)
def test_a_small_checkpoint_needs_no_spark_job(
    spark: SparkSession, tmp_path: Path, form: str, options: dict[str, Any], record: Any, interval: str | None
) -> None:
    envelope = (
        Upsert(("seq",), "op = 'd'", "id, v" if form == "parquet" else COLUMNS)
        if record is upsert
        else Debezium(order_by=("source.lsn",), columns=COLUMNS)
    )
    folder = tmp_path / "in"
    put(folder, form, 0, [record(1, "c", 0), record(2, "c", 1), record(3, "c", 2)])
    lake = calve.connect(home=tmp_path / "home")
    source = calve.files(folder, format=form, envelope=envelope, **options)
    query = calve.sink(source, name="s", into=lake.table("x.t"), key=["id"]).start(commit_interval=interval)
    try:
        query.await_caught_up(60)
        with jobs_counted(spark) as jobs:
            put(folder, form, 1, [record(1, "u", 3), record(2, "d", 4), record(4, "c", 5), record(4, "u", 6)])
            query.await_caught_up(60)
        assert jobs == [0]
    finally:
        query.stop()
    rows = duckdb_rows(lake.open().load_table("x.t").metadata_location)
    assert {row["id"]: row["v"] for row in rows} == {1: "3", 3: "2", 4: "6"}


def test_a_checkpoint_with_a_bad_record_is_left_to_spark_which_names_it(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "json", 0, [upsert(1, "c", 0)])
    lake = calve.connect(home=tmp_path / "home")
    source = calve.files(folder, format="json", envelope=Upsert(("seq",), "op = 'd'", COLUMNS))
    sink = calve.sink(source, name="s", into=lake.table("x.t"), key=["id"]).options(on_bad_row="dead letter")
    query = sink.start()
    try:
        query.await_caught_up(60)
        put(folder, "json", 1, [upsert(2, "c", 1), {"id": "x", "seq": 2}])
        query.await_caught_up(60)
        with jobs_counted(spark) as jobs:
            put(folder, "json", 2, [upsert(3, "c", 3)])
            query.await_caught_up(60)
        assert jobs == [0]
    finally:
        query.stop()
    rows = duckdb_rows(lake.open().load_table("x.t").metadata_location)
    assert {row["id"] for row in rows} == {1, 2, 3}
    letters = duckdb_rows(lake.open().load_table("x.t_dead_letters").metadata_location)
    assert len(letters) == 1


def test_a_window_takes_a_share_of_the_driver_or_is_left_to_spark_if_it_has_many_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[SizeHint] = []

    def noted(size: SizeHint, context: SparkContext) -> AbstractContextManager[SizeLimit]:
        shared.append(size)
        return batch.share_of_driver(size, context)

    monkeypatch.setattr(pipeline, "share_of_driver", noted)
    folder = tmp_path / "in"
    put(folder, "json", 0, [upsert(1, "c", 0), upsert(2, "c", 1)])
    lake = calve.connect(home=tmp_path / "home")
    source = calve.files(folder, format="json", envelope=Upsert(("seq",), "op = 'd'", COLUMNS))
    query = calve.sink(source, name="s", into=lake.table("x.t"), key=["id"]).start(commit_interval="1s")
    try:
        query.await_caught_up(60)
        assert [size.rows for size in shared if size.stored] == [2]
        shared.clear()
        monkeypatch.setattr(batch, "TRUSTED_BYTES", 100)
        with jobs_counted(spark) as jobs:
            put(folder, "json", 1, [upsert(2, "d", 2), upsert(3, "c", 3)])
            query.await_caught_up(60)
        assert jobs[0] > 0
        assert not [size for size in shared if size.stored]
    finally:
        query.stop()
    rows = duckdb_rows(lake.open().load_table("x.t").metadata_location)
    assert {row["id"] for row in rows} == {1, 3}
