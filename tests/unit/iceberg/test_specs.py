"""Specs of new tables, and partitions of rows, without Spark."""

import math
import random

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    DoubleType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from calve.errors import InvalidInput
from calve.iceberg.files.partitions import Partitioner, same_partition
from calve.iceberg.schema.creation import partition_spec
from calve.model.spec import PartitionBy

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "id_bucket", StringType(), required=False),
    NestedField(3, "At", TimestamptzType(), required=False),
    NestedField(4, "place", StructType(NestedField(6, "city", StringType(), required=False)), required=False),
    NestedField(5, "ratio", DoubleType(), required=False),
    NestedField(7, "tags", ListType(8, StringType(), element_required=False), required=False),
)


def by(transform: str, column: str, width: int | None = None) -> PartitionBy:
    return PartitionBy(transform, tuple(column.split(".")), width)


def test_fields_are_named_as_other_engines_name_them_unless_the_name_is_taken() -> None:
    fields = [
        by("bucket", "id", 4),
        by("bucket", "id", 8),
        by("day", "at"),
        by("truncate", "place.city", 1),
        by("void", "id"),
    ]
    spec = partition_spec(SCHEMA, [*fields, by("identity", "ratio")])
    names = ["id_bucket_4", "id_bucket_8", "At_day", "place.city_trunc", "id_null", "ratio"]
    assert [field.name for field in spec.fields] == names
    assert [field.source_id for field in spec.fields] == [1, 1, 3, 6, 1, 5]
    assert [field.field_id for field in spec.fields] == [1000, 1001, 1002, 1003, 1004, 1005]


@pytest.mark.parametrize(
    ("fields", "primary"),
    [
        ([by("identity", "elsewhere")], 'partition column "elsewhere" does not exist'),
        ([by("identity", "place.zip")], 'partition column "place.zip" does not exist'),
        ([by("identity", "id.x")], 'partition column "id.x" does not exist'),
        ([by("bucket", "ratio", 4)], "the table cannot be partitioned by bucket(4, ratio)"),
        ([by("identity", "place")], "the table cannot be partitioned by place"),
        ([by("identity", "tags")], "the table cannot be partitioned by tags"),
        ([by("day", "at"), by("year", "At")], "partition fields day(at) and year(At) are redundant"),
        ([by("identity", "id"), by("identity", "ID")], "partition field ID is listed twice"),
    ],
)
def test_what_cannot_be_a_spec_is_refused(fields: list[PartitionBy], primary: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        partition_spec(SCHEMA, fields)
    assert raised.value.primary == primary


def test_a_refusal_names_the_type_of_the_column() -> None:
    with pytest.raises(InvalidInput) as raised:
        partition_spec(SCHEMA, [by("hour", "ratio")])
    assert raised.value.detail == 'Column "ratio" has type double.'


def test_zeros_of_either_sign_are_two_partitions_and_all_nan_are_one() -> None:
    partitioner = Partitioner(SCHEMA, PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "ratio")))
    rows = pa.table({"ratio": [0.0, -0.0, math.nan, None, -math.nan, 0.0]})
    runs = list(partitioner.runs(partitioner.clustered(rows)))
    assert sorted(repr(values) for values, _ in runs) == ["(-0.0,)", "(0.0,)", "(None,)", "(nan,)"]
    assert sorted(run.num_rows for _, run in runs) == [1, 1, 2, 2]
    assert not same_partition((0.0,), (-0.0,))
    assert same_partition((math.nan, None, 1), (math.nan, None, 1))


def test_a_field_whose_column_the_rows_do_not_have_is_null() -> None:
    spec = PartitionSpec(PartitionField(99, 1000, TruncateTransform(3), "gone"))
    partitioner = Partitioner(SCHEMA, spec)
    ((values, rows),) = partitioner.runs(pa.table({"id": [1, 2]}))
    assert (values, rows.num_rows, partitioner.folder(values)) == ((None,), 2, "gone=null")


def test_rows_of_one_partition_come_together_in_their_order() -> None:
    spec = PartitionSpec(
        PartitionField(6, 1000, IdentityTransform(), "city"), PartitionField(1, 1001, TruncateTransform(10), "t")
    )
    rows = pa.table({"id": [1, 2, 11, 3, 12], "place": [{"city": c} for c in "abaaa"]})
    partitioner = Partitioner(SCHEMA, spec)
    runs = {values: run["id"].to_pylist() for values, run in partitioner.runs(partitioner.clustered(rows))}
    assert runs == {("a", 0): [1, 3], ("b", 0): [2], ("a", 10): [11, 12]}
    assert partitioner.folder(("ü/x", 10)) == "city=%C3%BC%2Fx/t=10"


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_all_rows_in_order_and_cut_between_partitions(seed: int) -> None:
    rng = random.Random(seed)
    partitioner = Partitioner(SCHEMA, PartitionSpec(PartitionField(1, 1000, TruncateTransform(10), "t")))
    rows = pa.table({"id": [rng.randrange(rng.choice([5, 90])) for _ in range(rng.choice([0, 1, 50]))]})
    clustered = partitioner.clustered(rows)
    least, most = rng.randrange(1, 5), rng.randrange(1, 9)
    pieces = partitioner.pieces(clustered, least, most)
    assert [number for piece in pieces for number in piece["id"].to_pylist()] == clustered["id"].to_pylist()
    partitions = [{values for values, _ in partitioner.runs(piece)} for piece in pieces]
    assert sum(map(len, partitions)) == len(set().union(*partitions))
    assert len(pieces) == 1 or (len(pieces) <= most and min(map(len, partitions)) >= least)
