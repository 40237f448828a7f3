"""Dates that Python does not have: Spark's and Iceberg's years go beyond 0001 to 9999."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, YearTransform
from pyiceberg.types import DateType, NestedField

from calve.cli.read import values_of
from calve.iceberg.schema.arrow import arrow_schema, parse_schema
from calve.model.spec import WriteOptions
from calve.reader.local import read_here
from calve.write.data_files import FileNames, data_files, key_files
from tests.support.keyed import KeyedTable

SCHEMA = Schema(NestedField(1, "day", DateType(), required=True), NestedField(2, "other", DateType(), required=False))
DAYS = [-800_000, 0, 2_932_896, 2_932_897, 5_000_000]
"""A day before year 1, one of 1970, the last one of 9999, the next one, and one of the year 15659."""
SPECS = {
    "unpartitioned": UNPARTITIONED_PARTITION_SPEC,
    "by day": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day")),
    "by year": PartitionSpec(PartitionField(1, 1000, YearTransform(), "year")),
}


@pytest.mark.parametrize("spec", SPECS)
def test_far_dates_are_written_found_by_key_and_read(tmp_path: Path, spec: str) -> None:
    table = KeyedTable(tmp_path, SCHEMA, ["day"], SPECS[spec])
    target = table.iceberg.write_target(WriteOptions())
    days = pa.array(DAYS, pa.int32()).view(pa.date32())
    rows = pa.Table.from_arrays([days, days], schema=arrow_schema(parse_schema(target.schema_json)))
    names = FileNames(target, "commit", "writer")
    written = {}
    for kind, out in {"data": data_files(target, names), "keys": key_files(target, names)}.items():
        with out:
            out.write(rows)
        written[kind] = out.files
    table.apply(written["data"], [])
    keys = table.iceberg.write_manifests(written["keys"], "keys")
    found = table.resolver.resolve(table.iceberg.load(), keys, "commit")
    assert found.totals.position_deletes == len(DAYS)
    read = pa.Table.from_batches(read_here(table.ref).rows()).combine_chunks()
    for column in ("day", "other"):
        assert sorted(read[column].chunk(0).view(pa.int32()).to_pylist()) == DAYS
        assert "15659-07-15" in map(str, values_of(read[column].chunk(0)))
    table.close()
