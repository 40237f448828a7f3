"""Parquet files that the driver reads itself."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import types as T  # noqa: N812

from calve.model.checkpoint import SizeLimit
from calve.source.files.in_memory import read_parquet
from calve.spark.version import arrow_schema_of
from calve.storage.listing import KnownFile

LIMIT = SizeLimit(1000, 1 << 20)
RECORDS = T.StructType(
    [T.StructField("id", T.LongType()), T.StructField("name", T.StringType()), T.StructField("at", T.TimestampType())]
)
ROWS = arrow_schema_of(RECORDS)


def written(folder: Path, name: str, schema: pa.Schema, *rows: tuple[int, str, int]) -> KnownFile:
    path = folder / name
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)
    return KnownFile(path.stat().st_mtime_ns, str(path), path.stat().st_size)


@pytest.mark.parametrize(
    "field",
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.large_string()),
        pa.field("name", pa.dictionary(pa.int32(), pa.string())),
        pa.field("at", pa.timestamp("us", "Europe/Berlin")),
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"}),
    ],
    ids=["required", "large", "dictionary", "zone", "numbered"],
)
def test_files_of_several_writers_are_read_together(tmp_path: Path, field: pa.Field) -> None:
    other = ROWS.set(ROWS.get_field_index(field.name), field)
    files = [
        written(tmp_path, "a.parquet", ROWS, (1, "x", 10), (2, "y", 20)),
        written(tmp_path, "b.parquet", other, (3, "z", 30)),
        written(tmp_path, "c.parquet", ROWS, (4, "x", 40)),
    ]
    found = read_parquet(fs.LocalFileSystem(), files, RECORDS, LIMIT)
    assert found is not None
    assert found.schema.equals(ROWS, check_metadata=True)
    assert found["id"].to_pylist() == [1, 2, 3, 4]
    assert found["name"].to_pylist() == ["x", "y", "z", "x"]
    assert found["at"].cast(pa.int64()).to_pylist() == [10, 20, 30, 40]
