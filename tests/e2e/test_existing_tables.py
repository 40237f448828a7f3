"""Sinks into tables of others: columns by name and id, properties respected, differences reported beforehand."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)
from pyspark.sql import SparkSession

from calve.catalog.connect import connect_embedded
from calve.pipeline.supervisor import Ending
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows, spark_iceberg_rows

STATEMENTS = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE people (
    id INT NOT NULL, name STRING, home STRUCT<zip: STRING, City: STRING>, trips ARRAY<STRUCT<TO: STRING>>, score FLOAT,
    PRIMARY KEY (id) NOT ENFORCED
) FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
CREATE SINK s FROM people TO ICEBERG CATALOG lake NAMESPACE crm TABLE people {options};
"""


@pytest.fixture
def pipelines(spark: SparkSession, tmp_path: Path) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


def optional(number: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(number, name, kind, required=False)


def theirs(*more: NestedField) -> Schema:
    home = StructType(
        optional(21, "city", StringType()), optional(22, "country", StringType()), optional(23, "zip", StringType())
    )
    trips = ListType(24, StructType(optional(25, "to", StringType())), element_required=False)
    return Schema(
        optional(1, "dropped", StringType()),
        optional(2, "Score", DoubleType()),
        optional(3, "home", home),
        optional(4, "also dropped", LongType()),
        NestedField(5, "ID", LongType(), required=True),
        optional(6, "extra", StringType()),
        optional(7, "NAME", StringType()),
        optional(8, "trips", trips),
        *more,
    )


def make(pipelines: Pipelines, *more: NestedField, **properties: str) -> None:
    """A table whose ids have gaps."""
    catalog = connect_embedded(pipelines.home)
    catalog.create_namespace("crm")
    schema = theirs(*more)
    spec = PartitionSpec(PartitionField(5, 1000, BucketTransform(2), "ID_bucket"))
    table = catalog.create_table(("crm", "people"), schema, partition_spec=spec, properties=properties)
    with table.update_schema() as change:
        change.delete_column("dropped").delete_column("also dropped")
    catalog.close()


def person(key: int, seq: int, name: str | None) -> str:
    record: dict[str, Any] = {"id": key, "name": name, "seq": seq, "op": "u" if name else "d", "score": 0.5}
    record |= {"home": {"zip": f"z{key}", "City": "Ulm"}, "trips": [{"TO": "Rom"}]}
    return json.dumps(record)


def run(pipelines: Pipelines, folder: Path, options: str = "") -> list[Any]:
    folder.mkdir()
    (folder / "1.json").write_text("\n".join(person(n, n, f"n{n}") for n in range(1, 5)))
    first = pipelines.run(STATEMENTS.format(folder=folder, options=options))
    (folder / "2.json").write_text("\n".join([person(1, 11, None), person(2, 12, "new")]))
    return [*first, *pipelines.run()]


def test_columns_are_found_by_name_whatever_their_order_case_and_ids(pipelines: Pipelines, tmp_path: Path) -> None:
    make(pipelines)
    assert {result.ending for result in run(pipelines, tmp_path / "in")} == {Ending.DONE}
    wanted = [
        {
            "Score": 0.5,
            "home": {"city": "Ulm", "country": None, "zip": f"z{key}"},
            "ID": key,
            "extra": None,
            "NAME": name,
            "trips": [{"to": "Rom"}],
        }
        for key, name in ((2, "new"), (3, "n3"), (4, "n4"))
    ]
    at = pipelines.table("crm.people").metadata_location
    assert sorted(duckdb_rows(at), key=lambda row: row["ID"]) == wanted
    assert sorted(spark_iceberg_rows(at), key=lambda row: row["ID"]) == wanted


def test_a_table_that_does_not_fit_is_told_before_anything_is_written(pipelines: Pipelines, tmp_path: Path) -> None:
    make(pipelines, NestedField(30, "needed", StringType(), required=True))
    before = pipelines.metadata_files()
    (result,) = run(pipelines, tmp_path / "in")[:1]
    assert result.ending is not Ending.DONE
    assert 'column "needed": got none, expected a value for every row' in str(result.cause)
    assert pipelines.metadata_files() == before


def test_the_properties_of_the_table_are_honoured_and_the_sinks_options_win(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    make(
        pipelines,
        **{
            "write.data.path": f"file://{elsewhere}",
            "write.metadata.path": f"file://{tmp_path}/about",
            "write.object-storage.enabled": "true",
            "write.parquet.compression-codec": "gzip",
            "write.parquet.bloom-filter-enabled.column.ID": "true",
            "write.metadata.metrics.default": "none",
            "write.metadata.metrics.column.NAME": "counts",
        },
    )
    run(pipelines, tmp_path / "in", "WITH (COMPRESSION = 'snappy', ROW GROUP SIZE = '1MB', DELETES = 'equality')")
    table = pipelines.table("crm.people")
    files = [task.as_py() for task in table.inspect.data_files()["file_path"]]
    assert files
    assert all(path.startswith(f"file://{elsewhere}/") and "/ID_bucket=" in path for path in files)
    ids = {field.name: field.field_id for field in table.schema().fields}
    group = pq.ParquetFile(files[0].removeprefix("file://")).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"SNAPPY"}
    assert {name for name, column in columns.items() if column.bloom_filter_length} == {"ID"}
    metrics = table.inspect.data_files().to_pylist()[0]
    assert [entry[0] for entry in metrics["value_counts"]] == [ids["NAME"]]
    assert not metrics["lower_bounds"]
    assert list((tmp_path / "about").glob("*.avro"))
    assert len(duckdb_rows(table.metadata_location)) == len(spark_iceberg_rows(table.metadata_location)) == 3
