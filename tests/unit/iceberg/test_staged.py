"""Columns of rows that were staged before the table changed: found by field id, inside of other columns, too."""

from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.schema.staged import columns_of_any, staged_columns, staged_names
from calve.reader.projection import Projection


def column(number: int, name: str, kind: Any, *, required: bool = False) -> NestedField:
    return NestedField(number, name, kind, required=required)


def turned(file: pa.Table, staged: Schema, now: Schema) -> list[dict[str, Any]]:
    """Rows of a file as they are read when the table has the columns `now`."""
    target = ReadTarget(staged_columns(now.model_dump_json()).arrow, names=staged_names(staged.model_dump_json()))
    projection = Projection(file.schema, target, {})
    rows: list[dict[str, Any]] = pa.Table.from_batches([projection.batch(b) for b in file.to_batches()]).to_pylist()
    return rows


FLOOR = StructType(column(6, "n", IntegerType()))
STAGED = Schema(
    column(1, "id", IntegerType(), required=True),
    column(2, "v", StringType()),
    column(3, "n", IntegerType()),
    column(4, "home", StructType(column(5, "floors", ListType(7, FLOOR, element_required=False)))),
    column(8, "rates", MapType(9, StringType(), 10, FloatType(), value_required=False)),
    column(11, "price", DecimalType(5, 2)),
)
ROW = {
    "id": 1, "v": "a", "n": 7, "home": {"floors": [{"n": 1}, None]}, "rates": [("x", 0.5)], "price": None
}  # fmt: skip


def file_of(*rows: dict[str, Any]) -> pa.Table:
    columns = staged_columns(STAGED.model_dump_json()).arrow
    plain = pa.schema([pa.field(f.name, _without_ids(f.type)) for f in columns])
    return pa.Table.from_pylist(list(rows), schema=plain)


def _without_ids(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _without_ids(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_ids(kind.key_type), _without_ids(kind.item_type))
    return pa.list_(_without_ids(kind.value_type)) if pa.types.is_list(kind) else kind


def test_renamed_and_widened_columns_keep_their_values_at_every_depth() -> None:
    floor = StructType(column(6, "number", LongType()), column(12, "name", StringType()))
    now = Schema(
        column(11, "price", DecimalType(12, 2)),
        column(1, "id", IntegerType(), required=True),
        column(2, "called", StringType()),
        column(3, "n", LongType()),
        column(4, "place", StructType(column(5, "levels", ListType(7, floor, element_required=False)))),
        column(8, "rates", MapType(9, StringType(), 10, DoubleType(), value_required=False)),
    )
    (found,) = turned(file_of(ROW), STAGED, now)
    assert found == {
        "price": None,
        "id": 1,
        "called": "a",
        "n": 7,
        "place": {"levels": [{"number": 1, "name": None}, None]},
        "rates": [("x", 0.5)],
    }


def test_a_column_with_the_name_of_one_that_left_the_table_is_another_one() -> None:
    now = Schema(
        column(1, "id", IntegerType(), required=True), column(13, "n", StringType()), column(2, "v", StringType())
    )
    assert turned(file_of(ROW), STAGED, now) == [{"id": 1, "n": None, "v": "a"}]


def test_a_batch_has_the_columns_of_all_its_rows_as_the_table_has_them_now_and_no_others() -> None:
    theirs = Schema(
        column(1, "id", IntegerType(), required=True),
        column(2, "called", StringType()),
        column(4, "home", StructType(column(5, "floors", ListType(7, FLOOR)), column(14, "zip", StringType()))),
        column(15, "extra", LongType()),
        column(16, "theirs", StringType()),
    )
    wider = Schema(column(1, "id", IntegerType(), required=True), column(15, "extra", IntegerType()))
    found = columns_of_any(theirs, [STAGED, wider])
    assert [(f.field_id, f.name) for f in found.fields] == [(1, "id"), (2, "called"), (4, "home"), (15, "extra")]
    assert found.find_type("extra") == LongType()
    assert 14 not in found.field_ids, "nobody has the field"
    assert columns_of_any(theirs, [wider]).column_names == ["id", "extra"]


def test_a_struct_whose_known_fields_left_the_table_stays_a_struct() -> None:
    theirs = Schema(column(4, "home", StructType(column(20, "zip", StringType()))))
    found = columns_of_any(theirs, [STAGED])
    assert found.find_type("home") == theirs.find_type("home")
    assert turned(file_of(ROW, {**ROW, "home": None}), STAGED, found) == [{"home": {"zip": None}}, {"home": None}]


def test_uuids_are_bytes_and_nothing_is_required_since_deletes_have_keys_alone() -> None:
    inner = StructType(column(3, "x", IntegerType(), required=True))
    schema = Schema(column(1, "id", UUIDType(), required=True), column(2, "s", inner, required=True))
    columns = staged_columns(schema.model_dump_json())
    assert columns.arrow.field("id").type == pa.binary()
    assert columns.spark["fields"][0]["type"] == "binary"
    assert all(f["nullable"] for f in columns.spark["fields"])
    assert columns.spark["fields"][1]["type"]["fields"][0]["nullable"]
