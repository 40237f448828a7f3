"""Columns with default values, and of types that only format version 3 has, which other tools add to tables."""

import datetime as dt
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    GeometryType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)

import calve
from calve.errors import InvalidInput
from calve.iceberg.schema.fitting import fit
from calve.model.spec import OnForeignCommit
from calve.reader.local import read_here
from tests.support.lineage import lineage_of
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.support.version_3_columns import add_defaults, add_row

ARROW_KNOWS_UUIDS = tuple(map(int, pa.__version__.split(".")[:2])) >= (24, 0)
"""pyiceberg passes a default value of type UUID to Arrow as it is, which the lowest version does not convert."""


def rows_by_duckdb(run: Run) -> dict[int, dict[str, Any]]:
    found = {row.pop("id"): row for row in duckdb_rows(run.now.metadata_location)}
    return {key: {**row, "mark": UUID(row["mark"]), "at": row["at"].astimezone(dt.UTC)} for key, row in found.items()}


def rows_by_pyiceberg(run: Run) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in run.now.scan().to_arrow().to_pylist()}


def rows_by_calve(run: Run) -> dict[int, dict[str, Any]]:
    read = read_here(calve.connect(home=run.home).table(str(NAME)))
    found = {row.pop("id"): row for batch in read.rows() for row in batch.to_pylist()}
    return {key: {**row, "mark": UUID(row["mark"])} for key, row in found.items()}


def check(run: Run, wanted: dict[int, dict[str, Any]]) -> None:
    assert rows_by_duckdb(run) == wanted
    if ARROW_KNOWS_UUIDS:
        assert rows_by_pyiceberg(run) == wanted
    assert rows_by_calve(run) == wanted


@pytest.mark.parametrize("write_default", [7, None])
def test_rows_have_the_defaults_of_their_time_in_every_reader(tmp_path: Path, write_default: int | None) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a", 2: "b", 3: "c"})
    others = add_defaults(run, 5, write_default)
    run.commit({2: "d", 4: "e"})
    wanted: dict[int, dict[str, Any]] = {
        1: {"v": "a", "n": 5, **others},
        2: {"v": "d", "n": write_default, **others},
        3: {"v": "c", "n": 5, **others},
        4: {"v": "e", "n": write_default, **others},
    }
    check(run, wanted)
    ids = {key: row.row_id for key, row in lineage_of(run.now).items()}
    assert calve.compact(calve.connect(home=tmp_path).table(str(NAME)))
    check(run, wanted)
    assert {key: row.row_id for key, row in lineage_of(run.now).items()} == ids


def test_rows_are_in_the_partition_of_a_default_that_the_input_lacks(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a"})
    with run.now.update_schema() as update:
        update.add_column("region", StringType(), default_value="eu")
    with run.now.update_spec() as partitions:
        partitions.add_field("region", IdentityTransform())
    run.table.load()
    run.commit({1: "b", 2: "c"})
    wanted = [{"id": 1, "v": "b", "region": "eu"}, {"id": 2, "v": "c", "region": "eu"}]
    assert sorted(duckdb_rows(run.now.metadata_location), key=str) == wanted
    assert sorted(run.now.scan(row_filter="region = 'eu'").to_arrow().to_pylist(), key=str) == wanted
    assert {"eu"} == {task.file.partition[0] for task in run.now.scan().plan_files() if len(task.file.partition)}


def test_a_required_column_with_a_default_need_not_be_in_the_input(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a"})
    with run.now.update_schema() as update:
        update.add_column("n", LongType(), required=True, default_value=5)
    run.table.load()
    assert not run.table.behind
    run.commit({2: "b"})
    assert {row["id"]: row["n"] for row in duckdb_rows(run.now.metadata_location)} == {1: 5, 2: 5}
    assert run.now.schema().find_field("n").required


def test_a_nested_field_with_a_default_must_be_in_the_input(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    with run.now.update_schema() as update:
        update.add_column("s", StructType(NestedField(10, "x", LongType())))
    given = run.now.schema()
    with run.now.update_schema() as update:
        update.add_column(("s", "y"), LongType(), default_value=5)
    found = fit(run.now.metadata, given)
    assert not found.mendable
    assert found.text == 'column "s.y": got none, expected a value, since the field has a default.'
    assert not fit(run.now.metadata, run.now.schema()).differences
    assert not fit(run.now.metadata, Schema(*given.fields[:2])).differences, "rows without the struct have none"


@pytest.mark.parametrize("kind", [TimestampNanoType(), TimestamptzNanoType(), UnknownType(), GeometryType()], ids=str)
def test_columns_of_types_that_no_input_has_stay_as_they_are(tmp_path: Path, kind: IcebergType) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3, on_foreign_commit=OnForeignCommit.ACCEPT))
    run.commit({1: "a", 2: "b"})
    with run.now.update_schema() as update:
        update.add_column("c", kind)
    run.table.load()
    run.commit({2: "c"})
    value = {"unknown": None, "geometry": b"\x01"}.get(str(kind), 1_709_200_000_000_000_001)
    add_row(run, 9, "x", value)
    before = read_here(calve.connect(home=tmp_path).table(str(NAME)))
    wanted = sorted(str(row) for batch in before.rows() for row in batch.to_pylist())
    assert len(wanted) == 3
    assert calve.compact(calve.connect(home=tmp_path).table(str(NAME)))
    after = read_here(calve.connect(home=tmp_path).table(str(NAME)))
    assert sorted(str(row) for batch in after.rows() for row in batch.to_pylist()) == wanted
    run.commit({1: "d"})
    assert len([*read_here(calve.connect(home=tmp_path).table(str(NAME)), columns=["id"]).rows()]) == 2
    if isinstance(kind, TimestampNanoType):
        assert {row["c"] for row in duckdb_rows(run.now.metadata_location)} == {None, pd.Timestamp(value)}
    elif not isinstance(kind, GeometryType):
        with pytest.raises(duckdb.Error, match=f"Unrecognized primitive type: {kind}"):
            duckdb_rows(run.now.metadata_location, ["id"])
    if not isinstance(kind, GeometryType):
        zone = "UTC" if isinstance(kind, TimestamptzNanoType) else None
        known = {None} if value is None else {None, pd.Timestamp(value, tz=zone)}
        assert {row["c"] for row in run.now.scan().to_arrow().to_pylist()} == known


def test_files_leave_out_fields_of_structs_whose_type_is_unknown(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3, on_foreign_commit=OnForeignCommit.ACCEPT))
    run.commit({1: "a", 2: "b"})
    pair = StructType(NestedField(11, "u", UnknownType()), NestedField(12, "x", LongType()))
    with run.now.update_schema() as update:
        update.add_column("c", pair)
        update.add_column("many", ListType(13, pair, element_required=False))
    run.table.load()
    add_row(run, 9, "x", {"x": 5}, [{"x": 6}, None])
    run.commit({2: "c"})
    wanted: dict[int, dict[str, Any]] = {
        1: {"v": "a", "c": None, "many": None},
        2: {"v": "c", "c": None, "many": None},
        9: {"v": "x", "c": {"u": None, "x": 5}, "many": [{"u": None, "x": 6}, None]},
    }
    for _ in range(2):
        read = read_here(calve.connect(home=tmp_path).table(str(NAME)))
        assert {row.pop("id"): row for batch in read.rows() for row in batch.to_pylist()} == wanted
        flat = run.now.scan(selected_fields=("id", "c")).to_arrow().to_pylist()  # it fails on fields that lists lack
        assert {row["id"]: row["c"] for row in flat} == {key: row["c"] for key, row in wanted.items()}
        calve.compact(calve.connect(home=tmp_path).table(str(NAME)))
    (task,) = run.now.scan().plan_files()
    assert str(pq.read_schema(task.file.file_path.removeprefix("file://")).field("c").type) == "struct<x: int64>"


@pytest.mark.parametrize(
    "kind",
    [
        ListType(10, UnknownType(), element_required=False),
        MapType(10, StringType(), 11, UnknownType(), value_required=False),
        StructType(NestedField(10, "u", UnknownType())),
    ],
    ids=str,
)
def test_columns_that_no_file_can_contain_are_refused(tmp_path: Path, kind: IcebergType) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a"})
    with run.now.update_schema() as update:
        update.add_column("c", kind)
    ref = calve.connect(home=tmp_path).table(str(NAME))
    assert [row for batch in read_here(ref).rows() for row in batch.to_pylist()] == [{"id": 1, "v": "a", "c": None}]
    with pytest.raises(InvalidInput, match='column "c" has a type that no data file can contain') as no:
        Run(tmp_path, spec_of("s", format_version=3))
    assert "Files omit what is unknown" in no.value.detail
    run.table.load()
    with pytest.raises(InvalidInput, match="no data file can contain"):
        run.commit({1: "b"})


@pytest.mark.parametrize(
    ("kind", "default"),
    [("variant", None), ("timestamp_ns", "2024-02-29T10:11:12.000000001")],
)
def test_metadata_that_cannot_be_read_is_refused(tmp_path: Path, kind: str, default: str | None) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3))
    run.commit({1: "a"})
    metadata = Path(run.now.metadata_location.removeprefix("file://"))
    changed = json.loads(metadata.read_text())
    column = {"id": 50, "name": "c", "type": kind, "required": False, "initial-default": default}
    changed["schemas"][0]["fields"].append({name: value for name, value in column.items() if value is not None})
    metadata.write_text(json.dumps(changed))
    with pytest.raises(InvalidInput, match=r'loading table "shop\.orders" failed: its metadata is not supported') as no:
        read_here(calve.connect(home=tmp_path).table(str(NAME)))
    assert kind in no.value.detail
