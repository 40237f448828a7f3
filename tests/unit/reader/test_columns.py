"""Columns of old files as the table has them now."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.errors import InvalidInput
from calve.iceberg.schema.readable import read_target
from calve.reader.projection import Projection
from tests.support.foreign import ForeignTable, in_order

POINT = StructType(
    NestedField(11, "x", IntegerType(), required=False), NestedField(12, "y", FloatType(), required=False)
)
NESTED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "point", POINT, required=False),
    NestedField(
        3,
        "points",
        ListType(
            13,
            StructType(
                NestedField(14, "x", IntegerType(), required=False),
                NestedField(15, "gone", StringType(), required=False),
            ),
            element_required=False,
        ),
        required=False,
    ),
    NestedField(
        4,
        "by_name",
        MapType(
            16, StringType(), 17, StructType(NestedField(18, "x", IntegerType(), required=False)), value_required=False
        ),
        required=False,
    ),
)


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[ForeignTable]:
    table = ForeignTable(tmp_path, NESTED)
    yield table
    table.close()


def wide(number: int) -> dict[str, Any]:
    if number % 4 == 0:
        return {"id": number, "point": None, "points": None, "by_name": None}
    return {
        "id": number,
        "point": {"x": number, "y": number / 2} if number % 3 else {"x": None, "y": None},
        "points": [{"x": i, "gone": "g"} if i % 2 else None for i in range(number % 5)],
        "by_name": [(str(i), {"x": i} if i % 2 else None) for i in range(number % 3)],
    }


def test_columns_keep_their_values_through_every_change_of_the_schema(nested: ForeignTable) -> None:
    nested.commit(nested.data([wide(n) for n in range(40)], row_group_size=9))
    with nested.table.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("id", "number")
        update.update_column(("point", "x"), field_type=LongType())
        update.update_column(("point", "y"), field_type=DoubleType())
        update.rename_column("points.element.x", "across")
        update.delete_column("points.element.gone")
        update.add_column(("points", "element", "new"), StringType())
        update.add_column(("by_name", "value", "new"), ListType(99, IntegerType(), element_required=False))
        update.add_column("last", DateType())
    found = {row["number"]: row for row in nested.rows()}
    for n in range(40):
        old = wide(n)
        points, by_name = old["points"], old["by_name"]
        assert found[n] == {
            "number": n,
            "point": old["point"],
            "points": points and [p and {"across": p["x"], "new": None} for p in points],
            "by_name": by_name and [(k, v and {"x": v["x"], "new": None}) for k, v in by_name],
            "last": None,
        } | ({"points": []} if points == [] else {}) | ({"by_name": []} if by_name == [] else {})


def test_columns_come_in_the_order_that_is_asked_for(nested: ForeignTable) -> None:
    nested.commit(nested.data([wide(1)]))
    assert [list(row) for row in nested.rows(columns=["points", "ID"])] == [["points", "id"]]


def test_a_column_that_was_dropped_and_added_again_is_empty(tmp_path: Path) -> None:
    table = ForeignTable(
        tmp_path,
        Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "b", LongType(), required=False)),
    )
    table.commit(table.data([{"a": 1, "b": 2}]))
    with table.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("b")
    with table.table.update_schema() as update:
        update.add_column("b", LongType())
    assert table.rows() == [{"a": 1, "b": None}]
    assert table.rows(columns=["b"]) == [{"b": None}]
    table.close()


def test_types_widen(tmp_path: Path) -> None:
    table = ForeignTable(
        tmp_path,
        Schema(
            NestedField(1, "i", IntegerType(), required=False),
            NestedField(2, "f", FloatType(), required=False),
            NestedField(3, "d", DecimalType(5, 2), required=False),
        ),
    )
    table.commit(table.data([{"i": 1, "f": 0.5, "d": Decimal("1.25")}, {"i": None, "f": None, "d": None}]))
    with table.table.update_schema() as update:
        update.update_column("i", field_type=LongType())
        update.update_column("f", field_type=DoubleType())
        update.update_column("d", field_type=DecimalType(20, 2))
    table.commit(table.data([{"i": 1 << 40, "f": 1e300, "d": Decimal("123456789012345.67")}]))
    wanted = [(1, 0.5, Decimal("1.25")), (None, None, None), (1 << 40, 1e300, Decimal("123456789012345.67"))]
    assert in_order(table.rows()) == in_order([dict(zip("ifd", row, strict=True)) for row in wanted])
    table.close()


def test_types_that_arrow_and_spark_share_are_used(tmp_path: Path) -> None:
    kinds = [UUIDType(), FixedType(3), BinaryType(), TimeType(), TimestamptzType()]
    table = ForeignTable(
        tmp_path, Schema(*[NestedField(i, f"c{i}", kind, required=False) for i, kind in enumerate(kinds, 1)])
    )
    unique = UUID("12345678-1234-5678-1234-567812345678")
    at = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    table.commit(
        table.data(
            [
                dict(
                    zip(
                        ["c1", "c2", "c3", "c4", "c5"],
                        [unique.bytes, b"abc", b"", dt.time(1, 2, 3, 4), at],
                        strict=True,
                    )
                )
            ]
        )
    )
    assert [tuple(row.values()) for row in table.rows()] == [(str(unique), b"abc", b"", dt.time(1, 2, 3, 4), at)]
    table.close()


MAPPING = """[{"field-id": 1, "names": ["id", "old_id"]}, {"field-id": 2, "names": ["point"], "fields":
  [{"field-id": 5, "names": ["x"]}, {"field-id": 6, "names": ["y"]}]}]"""


def test_files_without_ids_are_resolved_by_the_name_mapping(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, NESTED, properties={"schema.name-mapping.default": MAPPING})
    table.commit(table.data([wide(1), wide(4)], field_ids=False))
    found = table.rows()
    assert [(row["id"], row["point"]) for row in found] == [(1, wide(1)["point"]), (4, None)]
    assert [row["points"] for row in found] == [None, None], "a name that is not mapped is not there"
    table.close()


def test_files_without_ids_and_mapping_are_resolved_by_place(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "b", StringType(), required=False))
    table = ForeignTable(tmp_path, schema)
    table.commit(table.data([{"a": 1, "b": "x"}], field_ids=False))
    with table.table.update_schema() as update:
        update.rename_column("a", "z")
    assert table.rows() == [{"z": 1, "b": "x"}]
    table.close()


def test_an_identity_partition_fills_a_column_that_the_file_lacks(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "day", DateType(), required=False))
    table = ForeignTable(tmp_path, schema, PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day")))
    narrow = Schema(schema.find_field("a"))
    day = dt.date(2024, 2, 29)
    table.commit(
        table._file(table.data([]).content, narrow, [{"a": 1}], [(day - dt.date(1970, 1, 1)).days]),
        table._file(table.data([]).content, narrow, [{"a": 2}], [None]),
    )
    assert in_order(table.rows()) == in_order([{"a": 1, "day": day}, {"a": 2, "day": None}])
    table.close()


DEFAULTS = {
    "boolean": (True, True),
    "int": (5, 5),
    "double": (0.5, 0.5),
    "decimal(5,2)": ("1.25", Decimal("1.25")),
    "date": ("2024-02-29", dt.date(2024, 2, 29)),
    "time": ("01:02:03.000004", dt.time(1, 2, 3, 4)),
    "timestamptz": ("2024-02-29T01:00:00+00:00", dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC)),
    "string": ("none", "none"),
    "uuid": ("12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678"),
    "fixed[2]": ("00ff", b"\x00\xff"),
    "binary": ("00ff", b"\x00\xff"),
}
"""As metadata has them, and as they are read."""


@pytest.mark.parametrize("kind", DEFAULTS)
def test_an_initial_default_fills_a_column_that_the_file_lacks(nested: ForeignTable, kind: str) -> None:
    written, wanted = DEFAULTS[kind]
    text = json.dumps({"id": 50, "name": "c", "type": kind, "required": False, "initial-default": written})
    target = read_target(nested.table, Schema(NestedField.model_validate_json(text)), ())
    batch = pa.RecordBatch.from_pydict({"id": [1, 2]})
    file_schema = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    assert Projection(file_schema, target, {}).batch(batch).to_pylist() == [{"c": wanted}, {"c": wanted}]


def test_an_unknown_column_is_refused_with_a_suggestion(nested: ForeignTable) -> None:
    with pytest.raises(InvalidInput, match='has no column "pionts"') as refused:
        nested.rows(columns=["pionts"])
    assert refused.value.hint == 'Did you mean "points"?'
