"""Which writer for which batch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, TimestampNanoType
from pyspark import SparkContext

from calve.errors import InvalidInput
from calve.model.change import BAD, OP, ORDER_PREFIX
from calve.model.checkpoint import UNKNOWN, SizeHint, SizeLimit
from calve.model.files import WriteTarget
from calve.write.batch import (
    DRIVER_BYTES,
    DRIVER_ROWS,
    PROBE_ROWS,
    TRUSTED_BYTES,
    fits_the_driver,
    largest_batch,
    largest_share,
    share_of_driver,
    writers_for,
)
from calve.write.driver_writer import DriverWriter
from calve.write.job import ChangeColumns, Writer, layout_of
from calve.write.native_writer import NativeWriter
from calve.write.task_writer import TaskWriter
from tests.unit.write.sample import FLAT, NESTED, target_in

RESERVED = [OP, f"{ORDER_PREFIX}0", BAD]
LARGE = SizeHint(rows=50_000_000)


def layout(schema: Schema = FLAT) -> ChangeColumns:
    target = target_in(Path("/somewhere"), schema)
    return layout_of([*[field.name for field in schema.fields], *RESERVED], target)


def chosen(size: SizeHint, schema: Schema = FLAT, cores: int = 2, **target: Any) -> tuple[Writer, ...]:
    values = vars(target_in(Path("/somewhere"), schema)) | target
    return writers_for(layout(schema), WriteTarget(**values), size, cores)


def test_a_small_batch_goes_to_the_driver_first() -> None:
    assert chosen(SizeHint(rows=DRIVER_ROWS)) == (DriverWriter(None), NativeWriter(1))
    assert chosen(SizeHint(bytes=1000)) == (DriverWriter(None), NativeWriter(1))


def test_a_large_flat_batch_is_written_by_spark() -> None:
    (writer,) = chosen(LARGE)
    assert isinstance(writer, NativeWriter)


def test_few_rows_of_many_bytes_do_not_go_to_the_driver() -> None:
    assert isinstance(chosen(SizeHint(rows=10, bytes=DRIVER_BYTES + 1))[0], NativeWriter)


def test_few_rows_of_many_stored_bytes_do_not_go_to_the_driver() -> None:
    many, few = (SizeHint(rows=10, stored=stored) for stored in (TRUSTED_BYTES + 1, TRUSTED_BYTES))
    assert not fits_the_driver(many)
    assert isinstance(chosen(many)[0], NativeWriter)
    assert fits_the_driver(few)
    assert isinstance(chosen(few)[0], DriverWriter)


def test_as_many_tasks_as_stored_bytes_need_write_few_rows() -> None:
    assert chosen(SizeHint(rows=10, stored=4 << 30), cores=2) == (NativeWriter(8),)


def test_nested_columns_are_written_by_tasks() -> None:
    (writer,) = chosen(LARGE, NESTED)
    assert isinstance(writer, TaskWriter)


def test_partitions_are_written_by_tasks() -> None:
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket")).model_dump_json()
    assert [type(writer) for writer in chosen(LARGE, data_spec_json=spec)] == [TaskWriter]
    assert isinstance(chosen(SizeHint(rows=10), data_spec_json=spec)[0], DriverWriter)


def test_a_store_that_spark_does_not_reach_is_written_by_tasks() -> None:
    assert isinstance(chosen(LARGE, data_location="s3://bucket/table/data")[0], TaskWriter)
    assert isinstance(chosen(LARGE, data_location="/plain/path")[0], NativeWriter)


def test_a_batch_of_unknown_size_is_tried_on_the_driver_and_then_sized_by_spark() -> None:
    assert chosen(UNKNOWN) == (DriverWriter(PROBE_ROWS), NativeWriter(None))
    assert chosen(SizeHint(bytes=DRIVER_BYTES)) == (DriverWriter(PROBE_ROWS), NativeWriter(2))


def test_bytes_say_how_many_tasks_there_are_and_cores_how_many_are_enough() -> None:
    assert chosen(SizeHint(rows=DRIVER_ROWS + 1), cores=64) == (NativeWriter(1),)
    assert chosen(SizeHint(bytes=DRIVER_BYTES + 1), cores=64) == (NativeWriter(3),)
    assert chosen(SizeHint(bytes=4 << 30), cores=64) == (NativeWriter(64),)
    assert chosen(SizeHint(bytes=4 << 30), cores=2) == (NativeWriter(8),)
    assert chosen(SizeHint(bytes=100 << 30), cores=2) == (NativeWriter(200),)


def test_a_frame_with_other_columns_than_the_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match="do not have the table's columns") as caught:
        layout_of(["id", "other", *RESERVED], target_in(Path("/somewhere")))
    assert caught.value.detail == "The table has id, status, amount, updated; the changes have id, other."


def test_a_column_whose_type_spark_lacks_is_refused_by_name() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "u", TimestampNanoType(), required=False)
    )
    with pytest.raises(InvalidInput, match='column "u" of the table has a type that Spark does not support'):
        layout_of(["id", "u", *RESERVED], target_in(Path("/somewhere"), schema))


def test_a_large_batch_may_be_in_the_memory_of_a_local_driver_one_at_a_time() -> None:
    local, cluster = (cast("SparkContext", SimpleNamespace(master=master)) for master in ("local[2]", "spark://a:7077"))
    usual, large = SizeLimit(DRIVER_ROWS, DRIVER_BYTES), SizeHint(bytes=DRIVER_BYTES + 1)
    known = SizeHint(rows=DRIVER_ROWS, bytes=DRIVER_BYTES)
    for size, context in ((known, local), (large, cluster), (SizeHint(rows=10), local), (SizeHint(bytes=1000), local)):
        with share_of_driver(size, context) as share:
            assert share == usual
    with share_of_driver(large, local) as first, share_of_driver(large, local) as second:
        assert first.rows > DRIVER_ROWS
        assert first.bytes > DRIVER_BYTES
        assert second == usual
    with pytest.raises(RuntimeError), share_of_driver(large, local):
        raise RuntimeError
    with share_of_driver(large, local) as share:
        assert share == first, "a failed batch returns its share"


def test_a_batch_of_few_bytes_and_unknown_rows_may_be_a_large_one() -> None:
    local = cast("SparkContext", SimpleNamespace(master="local[2]"))
    with share_of_driver(SizeHint(bytes=44 << 20), local) as share:  # a million narrow rows, for example
        assert share.rows > DRIVER_ROWS


def test_a_backlog_is_cut_by_what_the_driver_may_take_or_else_by_what_tasks_handle_well() -> None:
    local, cluster = (
        cast("SparkContext", SimpleNamespace(master=master, defaultParallelism=cores))
        for master, cores in (("local[2]", 2), ("spark://a:7077", 64))
    )
    share = largest_share(local)
    assert share is not None
    assert largest_batch(local, for_driver=True) == share.bytes
    assert largest_batch(local, for_driver=False) == 4 << 30
    assert largest_batch(cluster, for_driver=True) == largest_batch(cluster, for_driver=False) == 128 << 30


def test_a_window_whose_stored_bytes_may_be_many_in_memory_is_a_large_one() -> None:
    local = cast("SparkContext", SimpleNamespace(master="local[2]"))
    large, small = SizeHint(rows=10, stored=TRUSTED_BYTES), SizeHint(rows=10, stored=1 << 20)
    with share_of_driver(large, local) as first, share_of_driver(large, local) as second:
        assert first.bytes > second.bytes
    with share_of_driver(small, local) as share:
        assert share == SizeLimit(DRIVER_ROWS, DRIVER_BYTES)
