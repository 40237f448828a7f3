"""All writers give the same table for the same changes."""

import datetime as dt
import random
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.types import PrimitiveType
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.clock import RandomIds
from calve.iceberg.files.partitions import partitioner_of
from calve.iceberg.schema.arrow import parse_schema
from calve.iceberg.schema.creation import iceberg_schema, partition_spec
from calve.model.change import BAD, DELETE, OP, UPSERT, table_columns
from calve.model.checkpoint import SizeHint
from calve.model.files import BloomFilter, FileOptions, WriteResult, WriteTarget
from calve.model.spec import PartitionBy
from calve.spark.version import constant_of
from calve.sql.parser import parse_partition_field as parse_field
from calve.write.changes import check_changes
from calve.write.driver_writer import DriverWriter
from calve.write.job import WriteJob, Writer, layout_of
from calve.write.native_writer import NativeWriter
from calve.write.task_writer import TaskWriter
from tests.integration.write.every_type import COLUMNS, random_rows
from tests.integration.write.frames import Row, changes_of_orders, expected, found, frame_of
from tests.support.combinations import diagonal
from tests.unit.write.sample import DATA_SPEC, DELETE_SPEC, ids_of, local, rows_of

ORDERS = "id BIGINT, status STRING, amount DOUBLE, customer INT"
WRITERS: dict[str, Writer] = {
    "driver": DriverWriter(max_rows=None),
    "driver sized by itself": DriverWriter(max_rows=10_000),
    "tasks": TaskWriter(partitions=2, batch_rows=97),  # batches that cut through the changes of a key
    "tasks sized by Spark": TaskWriter(partitions=None, batch_rows=97),
    "native": NativeWriter(partitions=2),
    "native sized by Spark": NativeWriter(partitions=None),
}
FAST = {name: WRITERS[name] for name in ("driver", "tasks", "native")}

PARTITIONING = {name: WRITERS[name] for name in ("driver", "tasks")}


def target_for(frame: DataFrame, key: list[str], folder: Path, **options: Any) -> WriteTarget:
    schema = iceberg_schema(frame.select(*[f"`{name}`" for name in table_columns(frame.columns)]).schema, key)
    by_name = {field.name: field.field_id for field in schema.fields}
    return WriteTarget(
        schema_json=schema.model_dump_json(),
        key_ids=tuple(by_name[name] for name in key),
        data_location=f"file://{folder}/data" if not set("#?") & set(str(folder)) else f"{folder}/data",
        data_spec_id=DATA_SPEC,
        delete_spec_id=DELETE_SPEC,
        options=FileOptions(**options),
    )


def write(writer: Writer, frame: DataFrame, target: WriteTarget, *, deletes: bool = True) -> WriteResult:
    layout = layout_of(frame.columns, target)
    return writer.write(
        WriteJob(check_changes(frame, layout), layout, target, deletes, SizeHint(), RandomIds().new_id())
    )


def check_files(result: WriteResult, target: WriteTarget, key: list[str]) -> None:
    """Ids, order, metrics and names, by the files themselves."""
    schema = parse_schema(target.schema_json)
    assert len({file.path for file in result.files}) == len(result.files)
    for file in result.files:
        assert file.path.startswith(f"{target.data_location}/calve-")
        assert file.size == local(file).stat().st_size
        table = pq.ParquetFile(local(file)).read()
        assert file.record_count == table.num_rows > 0
        assert table.column_names == (key if file.equality_ids else schema.column_names)
        for name, ids in ids_of(file).items():
            assert ids[-1] == schema.find_field(name).field_id
        for name in table.column_names:
            column = schema.find_field(name)
            assert isinstance(column.field_type, PrimitiveType)
            low, high = pc.min_max(table[name]).as_py().values()
            lower = file.metrics.lower_bounds.get(column.field_id)
            upper = file.metrics.upper_bounds.get(column.field_id)
            if isinstance(low, int):
                bounds: list[Any] = [from_bytes(column.field_type, raw or b"") for raw in (lower, upper)]
                assert bounds == [low, high]
            assert file.metrics.null_value_counts[column.field_id] == table[name].null_count
    for file in result.data_files:
        keys = [tuple(row[name] for name in key) for row in rows_of([file])]
        assert all(a < b for a, b in pairwise(keys)), "rows are not sorted by key"


@diagonal(writer=WRITERS, deletes=[True, False])
def test_every_writer_leaves_the_last_change_of_every_key(
    spark: SparkSession, tmp_path: Path, writer: str, *, deletes: bool
) -> None:
    rows = changes_of_orders(seed=len(writer), count=1500, keys=300)
    frame = frame_of(spark, ORDERS, rows)
    target = target_for(frame, ["id"], tmp_path)
    result = write(WRITERS[writer], frame, target, deletes=deletes)
    assert found(result, ["id"], table_columns(frame.columns)) == expected(frame, ["id"], deletes=deletes)
    assert result.changes == 1500
    check_files(result, target, ["id"])
    names = {path.name for path in (tmp_path / "data").iterdir()}
    assert names == {local(file).name for file in result.files}, "nothing else is left in the data location"


EVERY_TYPE = (
    "small SMALLINT, text STRING, price DECIMAL(9,2), total DECIMAL(18,4), huge DECIMAL(38,10), day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, yes BOOLEAN, ratio FLOAT, tiny TINYINT, `a.b c` INT"
)


def rows_of_every_type(count: int) -> list[Row]:
    rng = random.Random(7)

    def some(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    start = dt.datetime(1960, 3, 4, 5, 6, 7, 890123)  # noqa: DTZ001 - Spark's sessions of tests are in UTC
    rows: list[Row] = []
    for rank in range(count):
        at = start + dt.timedelta(days=rng.randrange(40_000), microseconds=rng.randrange(10**6))
        key = (rng.randrange(-9, 9), rng.choice(["", "a", "é", "😀"]), Decimal(rng.randrange(-3, 3)) / 4)
        day = (start.date() + dt.timedelta(days=rng.randrange(2)),)
        values = (
            some(Decimal(rng.randrange(-(10**17), 10**17)) / 10**4),
            some(Decimal(rng.randrange(-(10**37), 10**37)) / 10**10),
            *day,
            some(at.replace(tzinfo=dt.UTC)),
            some(at),
            some(bytes([rng.randrange(256)])),
            some(rng.random() < 0.5),
            some(rng.randrange(8) / 8),
            some(rng.randrange(-128, 128)),
            some(rank),
        )
        gone = rng.random() < 0.2
        rest = (None, None, *day, *[None] * 7) if gone else values
        rows.append((*key, *rest, DELETE if gone else UPSERT, rank, None))
    return rows


@pytest.mark.parametrize("writer", FAST)
def test_every_writer_keeps_every_type_and_a_key_of_several_columns(
    spark: SparkSession, tmp_path: Path, writer: str
) -> None:
    frame = frame_of(spark, EVERY_TYPE, rows_of_every_type(400))
    key = ["day", "text", "price", "small"]
    target = target_for(frame, key, tmp_path)
    result = write(FAST[writer], frame, target)
    # collect() gives naive datetimes of the session's zone
    want = expected(frame.withColumn("at", F.col("at")), key, deletes=True)
    got = found(result, key, table_columns(frame.columns))
    assert got.deleted == want.deleted
    assert {k: _naive(row) for k, row in got.rows.items()} == want.rows
    check_physical_types(result)


def _naive(row: Row) -> Row:
    return tuple(v.replace(tzinfo=None) if isinstance(v, dt.datetime) else v for v in row)


def check_physical_types(result: WriteResult) -> None:
    for file in result.data_files:
        schema = pq.ParquetFile(local(file)).schema
        kinds = {schema.column(i).name: schema.column(i).physical_type for i in range(len(schema.names))}
        assert kinds["small"] == kinds["tiny"] == "INT32"
        assert (kinds["price"], kinds["total"], kinds["huge"]) == ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
        assert kinds["at"] == kinds["local"] == "INT64"


@pytest.mark.parametrize("writer", FAST)
def test_every_writer_ends_files_at_the_target_size(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    frame = spark.range(30_000).selectExpr(
        "id",
        "uuid() AS noise",
        f"CAST({UPSERT} AS TINYINT) AS {OP}",
        "id AS _calve_order_0",
        f"CAST(NULL AS STRING) AS {BAD}",
    )
    target = target_for(frame, ["id"], tmp_path, target_file_size=200_000)
    result = write(FAST[writer], frame, target)
    assert len(result.data_files) > 2
    assert max(file.size for file in result.files) <= 200_000
    assert sorted(row["id"] for row in rows_of(result.data_files)) == list(range(30_000))
    assert sorted(row["id"] for row in rows_of(result.delete_files)) == list(range(30_000))
    check_files(result, target, ["id"])


@diagonal(keys=[2_000, 5], deletes=[True, False])
def test_spark_writes_upserts_without_a_window_and_still_leaves_the_last_one(
    spark: SparkSession, tmp_path: Path, keys: int, *, deletes: bool
) -> None:
    frame = spark.range(6_000).selectExpr(
        f"pmod(xxhash64(id), {keys}) AS id",
        "uuid() AS noise",
        f"CAST({UPSERT} AS TINYINT) AS {OP}",
        "pmod(id * 7919, 6000) AS _calve_order_0",
        f"CAST(NULL AS STRING) AS {BAD}",
    )
    stored = tmp_path / "changes"
    frame.write.parquet(str(stored))  # the noise stays the same
    frame = spark.read.parquet(str(stored)).withColumn(OP, F.lit(UPSERT).cast("byte"))
    assert constant_of(frame, OP) == UPSERT
    target = target_for(frame, ["id"], tmp_path, target_file_size=30_000)  # a key's rows may span files
    result = write(NativeWriter(2), frame, target, deletes=deletes)
    assert found(result, ["id"], table_columns(frame.columns)) == expected(frame, ["id"], deletes=deletes)
    assert result.changes == 6_000
    check_files(result, target, ["id"])


def test_an_operation_that_may_vary_is_not_taken_for_a_constant(spark: SparkSession) -> None:
    frame = spark.range(3).select("id", F.when(F.col("id") > 1, 1).otherwise(-1).alias("x"), F.lit(-1).alias("y"))
    assert [constant_of(frame, name) for name in frame.columns] == [None, None, -1]
    assert constant_of(frame_of(spark, ORDERS, [(1, "NEW", 1.0, 2, UPSERT, 0, None)]), OP) is None


@pytest.mark.parametrize("writer", [pytest.param(w, marks=[] if w in FAST else pytest.mark.soak) for w in WRITERS])
def test_every_writer_writes_no_file_without_changes(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    frame = frame_of(spark, ORDERS, [])
    assert write(WRITERS[writer], frame, target_for(frame, ["id"], tmp_path)) == WriteResult((), 0)


@pytest.mark.parametrize("writer", FAST)
def test_every_writer_writes_only_keys_for_deletes(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    frame = frame_of(spark, ORDERS, [(i, None, None, None, DELETE, i, None) for i in range(50)])
    target = target_for(frame, ["id"], tmp_path)
    result = write(FAST[writer], frame, target)
    assert result.data_files == ()
    assert {row["id"] for row in rows_of(result.delete_files)} == set(range(50))
    assert write(FAST[writer], frame, target, deletes=False) == WriteResult((), 50)


@diagonal(writer=FAST, name=["a b%20c [x]{y} ü", "a #1 q?m :"])
def test_every_writer_uses_a_location_verbatim(spark: SparkSession, tmp_path: Path, writer: str, name: str) -> None:
    frame = frame_of(spark, ORDERS, [(1, "NEW", 1.0, 2, UPSERT, 0, None)])
    target = target_for(frame, ["id"], tmp_path / name)
    result = write(FAST[writer], frame, target)
    assert [row["id"] for row in rows_of(result.files)] == [1, 1]


def test_nested_columns_have_ids_on_every_level(spark: SparkSession, tmp_path: Path) -> None:
    columns = "id BIGINT, tags ARRAY<STRING>, counts MAP<STRING, INT>, place STRUCT<city: STRING, codes: ARRAY<BIGINT>>"
    rows = [
        (1, ["a", None], {"x": 1, "y": None}, ("Ulm", [1, 2]), UPSERT, 0, None),
        (2, None, None, None, UPSERT, 1, None),
        (3, [], {}, (None, None), UPSERT, 2, None),
        (1, None, None, None, DELETE, 3, None),
        (4, ["b"], {"z": 3}, ("Bonn", []), UPSERT, 4, None),
    ]
    frame = frame_of(spark, columns, rows)
    target = target_for(frame, ["id"], tmp_path)
    by_path = {}
    for writer in (WRITERS["tasks"], WRITERS["driver"]):
        result = write(writer, frame, target)
        by_path = {path: ids for file in result.data_files for path, ids in ids_of(file).items()}
        found_rows = sorted(rows_of(result.data_files), key=lambda row: int(row["id"]))
        assert found_rows == [
            {"id": 2, "tags": None, "counts": None, "place": None},
            {"id": 3, "tags": [], "counts": [], "place": {"city": None, "codes": None}},
            {"id": 4, "tags": ["b"], "counts": [("z", 3)], "place": {"city": "Bonn", "codes": []}},
        ]
        schema = parse_schema(target.schema_json)
        for path, ids in by_path.items():
            assert ids[-1] == schema.find_field(path).field_id
    assert set(by_path) == {"id", "tags.element", "counts.key", "counts.value", "place.city", "place.codes.element"}


def test_the_session_of_the_user_is_left_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ORDERS, [(1, "NEW", 1.0, 2, UPSERT, 0, None)])
    before = spark.conf.getAll
    to_frame: Any = RDD.toDF
    for writer in FAST.values():
        write(writer, frame, target_for(frame, ["id"], tmp_path))
    assert spark.conf.getAll == before
    assert to_frame is RDD.toDF


def partitioned_target(frame: DataFrame, key: list[str], folder: Path, *fields: str, **options: Any) -> WriteTarget:
    target = target_for(frame, key, folder, **options)
    wanted = [
        PartitionBy(f.transform.value, tuple(map(str, f.column.parts)), f.width) for f in map(parse_field, fields)
    ]
    spec = partition_spec(parse_schema(target.schema_json), wanted)
    return replace(target, data_spec_json=spec.model_dump_json())


def check_partitions(result: WriteResult, target: WriteTarget) -> None:
    """Every row of a file is in the partition that the file says."""
    partitioner = partitioner_of(target.schema_json, target.data_spec_json)
    assert partitioner
    for file in result.data_files:
        runs = list(partitioner.runs(pq.ParquetFile(local(file)).read()))
        assert [repr(values) for values, _ in runs] == [repr(file.partition)]
    assert {file.partition for file in result.delete_files} <= {()}


@diagonal(fields=[["status"], ["bucket(4, id)"], ["truncate(10, customer)", "bucket(2, status)"]], writer=PARTITIONING)
def test_every_writer_puts_the_last_change_of_every_key_into_its_partition(
    spark: SparkSession, tmp_path: Path, writer: str, fields: list[str]
) -> None:
    rows = changes_of_orders(seed=len(writer), count=1500, keys=300)
    frame = frame_of(spark, ORDERS, rows)
    target = partitioned_target(frame, ["id"], tmp_path, *fields)
    result = write(PARTITIONING[writer], frame, target)
    assert found(result, ["id"], table_columns(frame.columns)) == expected(frame, ["id"], deletes=True)
    assert result.changes == 1500
    check_partitions(result, target)
    per_task = len({file.partition for file in result.data_files})
    assert len(result.data_files) <= 2 * per_task, "a task opens one file for each partition"
    for file in result.data_files:
        keys = [row["id"] for row in rows_of([file])]
        assert keys == sorted(keys)


@diagonal(writer=PARTITIONING, first=[0, 1])
def test_every_writer_partitions_every_type(spark: SparkSession, tmp_path: Path, writer: str, first: int) -> None:
    """Every other type; the other half of them by the other writer."""
    rows = [(*row, UPSERT, number, None) for number, row in enumerate(random_rows(random.Random(7), 60))]
    frame = frame_of(spark, COLUMNS, rows)
    for number, (column, _) in enumerate(frame.dtypes[1 + first : 16 : 2]):
        target = partitioned_target(frame, ["id"], tmp_path / str(number), column)
        result = write(PARTITIONING[writer], frame, target)
        assert sorted(row["id"] for row in rows_of(result.data_files)) == list(range(60))
        check_partitions(result, target)


@pytest.mark.parametrize("writer", FAST)
def test_every_writer_follows_the_layout_for_object_stores(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    frame = frame_of(spark, ORDERS, [(1, "NEW", 1.0, 2, UPSERT, 0, None)])
    target = replace(target_for(frame, ["id"], tmp_path), table_properties={"write.object-storage.enabled": "true"})
    result = write(FAST[writer], frame, target)
    assert [row["id"] for row in rows_of(result.files)] == [1, 1]
    folders = [file.path.removeprefix(f"{target.data_location}/").split("/")[:-1] for file in result.files]
    assert [[len(name) for name in folder] for folder in folders] == [[4, 4, 4, 8]] * 2


@pytest.mark.parametrize("writer", FAST)
def test_every_writer_writes_as_the_properties_of_the_table_say(
    spark: SparkSession, tmp_path: Path, writer: str
) -> None:
    frame = frame_of(spark, ORDERS, [(n, "NEW", 1.0, 2, UPSERT, n, None) for n in range(2000)])
    said = {"compression": "gzip", "bloom_filters": (BloomFilter("id"),), "row_group_rows": 500}
    result = write(FAST[writer], frame, target_for(frame, ["id"], tmp_path, **said))
    for file in result.data_files:
        footer = pq.ParquetFile(local(file)).metadata
        assert footer.num_row_groups > 1
        group = footer.row_group(0)
        assert {group.column(i).compression for i in range(4)} == {"GZIP"}
        assert [bool(group.column(i).bloom_filter_offset) for i in range(4)] == [True, False, False, False]
