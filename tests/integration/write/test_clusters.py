"""Spark's clusters of rows and the table's partitions are the same, for every transform of every type."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType
from pyspark.sql import SparkSession

from calve.iceberg.files.partitions import Partitioner
from calve.iceberg.schema.creation import iceberg_schema
from calve.model.files import WriteTarget
from calve.spark.version import in_own_session
from calve.write.clusters import cluster_columns
from calve.write.task_writer import UTC
from tests.integration.write.every_type import COLUMNS, random_rows

TRANSFORMS = [
    "identity",
    "bucket[7]",
    "bucket[1000003]",
    "truncate[3]",
    "truncate[1000]",
    "year",
    "month",
    "day",
    "hour",
]


def specs(schema: Schema) -> list[PartitionField]:
    fields: list[PartitionField] = []
    for field in schema.fields:
        for transform in map(parse_transform, TRANSFORMS):
            if _applies(transform, field.field_type):
                fields.append(PartitionField(field.field_id, 1000 + len(fields), transform, f"p{len(fields)}"))
    return fields


def _applies(transform: Any, kind: IcebergType) -> bool:
    return bool(kind.is_primitive and transform.can_transform(kind))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_two_rows_are_in_one_cluster_if_and_only_if_they_are_in_one_partition(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    rows = random_rows(random.Random(zone), 600)
    frame = in_own_session(spark.createDataFrame(rows, COLUMNS).coalesce(1), {"spark.sql.session.timeZone": zone})
    schema = iceberg_schema(frame.schema, ["id"])
    fields = specs(schema)
    spec_json = PartitionSpec(*fields).model_dump_json()
    target = WriteTarget(schema.model_dump_json(), (1,), str(tmp_path), 0, 1, data_spec_json=spec_json)
    in_utc = in_own_session(frame, UTC)
    clusters = in_utc.select(*[c.alias(f"p{i}") for i, c in enumerate(cluster_columns(target))]).toArrow()
    table = in_utc.toArrow()
    assert len(fields) > 60
    for field in fields:
        wanted = [
            values for values, run in Partitioner(schema, PartitionSpec(field)).runs(table) for _ in range(len(run))
        ]
        found = map(repr, clusters[field.name].to_pylist())
        pairs = {(repr(a), b) for a, b in zip(wanted, found, strict=True)}
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs), (field, sorted(pairs)[:20])
