"""Values of every type, and columns that changed since they were written, are the same after a compaction."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
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
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import calve
from tests.support.foreign import ForeignTable, in_order
from tests.support.readers import duckdb_rows

_INNER = StructType(
    NestedField(30, "a", IntegerType(), required=True),
    NestedField(31, "b", ListType(32, StringType(), element_required=False), required=False),
)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "yes", BooleanType(), required=False),
    NestedField(3, "number", IntegerType(), required=False),
    NestedField(4, "ratio", FloatType(), required=False),
    NestedField(5, "exact", DoubleType(), required=False),
    NestedField(6, "price", DecimalType(9, 2), required=False),
    NestedField(7, "huge", DecimalType(38, 10), required=False),
    NestedField(8, "text", StringType(), required=False),
    NestedField(9, "raw", BinaryType(), required=False),
    NestedField(10, "fixed", FixedType(3), required=False),
    NestedField(11, "uuid", UUIDType(), required=False),
    NestedField(12, "day", DateType(), required=False),
    NestedField(13, "clock", TimeType(), required=False),
    NestedField(14, "at", TimestamptzType(), required=False),
    NestedField(15, "local", TimestampType(), required=False),
    NestedField(16, "list", ListType(20, _INNER, element_required=True), required=False),
    NestedField(17, "map", MapType(21, StringType(), 22, _INNER, value_required=False), required=False),
    NestedField(18, "inner", _INNER, required=False),
    identifier_field_ids=[1],
)


def row(number: int) -> dict[str, Any]:
    inner = {"a": number, "b": [None, str(number)]}
    return {
        "id": number,
        "yes": number % 2 == 0,
        "number": -number,
        "ratio": number / 4,
        "exact": float("inf") if number == 3 else number / 8,
        "price": Decimal(number) / 4,
        "huge": Decimal(10) ** 20 + number,
        "text": f"é{number}",
        "raw": bytes([number]),
        "fixed": bytes([number] * 3),
        "uuid": UUID(int=number).bytes,
        "day": dt.date(1969, 12, 30) + dt.timedelta(number),
        "clock": dt.time(1, 2, 3, number),
        "at": dt.datetime(2024, 1, 1, microsecond=number, tzinfo=dt.UTC),
        "local": dt.datetime(1960, 1, 1, microsecond=number),  # noqa: DTZ001 - a local time
        "list": [] if number == 4 else [inner, inner],
        "map": {"k": inner, "n": None},
        "inner": None if number == 5 else inner,
    }


EMPTY = dict.fromkeys([field.name for field in SCHEMA.fields])


def test_values_of_every_type_are_the_same(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA)
    files = [
        table.data([row(n) for n in (1, 4, 6)], row_group_size=2),
        table.data([row(n) for n in (5, 3, 2)]),
        table.data([EMPTY | {"id": 0}]),
    ]
    table.commit(*files)
    table.commit(table.positions([(files[0], 2)]))
    wanted, by_duckdb = in_order(table.rows()), in_order(duckdb_rows(table.table.metadata_location))
    assert len(wanted) == 6
    assert calve.compact(table.ref) is not None
    assert in_order(table.rows()) == wanted
    assert in_order(duckdb_rows(table.table.metadata_location)) == by_duckdb
    (task,) = table.table.scan().plan_files()
    written = pq.read_table(task.file.file_path.removeprefix("file://"))
    assert written["id"].to_pylist() == [0, 1, 2, 3, 4, 5], "sorted by the key"
    assert table.table.scan().to_arrow().sort_by("id")["uuid"].to_pylist()[1] == UUID(int=1)
    table.close()


def test_files_of_older_columns_become_files_of_those_of_today(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA.select("id", "number", "text"))
    table.commit(table.data([{"id": 1, "number": 7, "text": "gone"}]))
    with table.table.update_schema() as update:
        update.delete_column("text")
        update.rename_column("number", "wide")
        update.update_column("number", LongType())
        update.add_column("new", StringType())
    table.commit(table.data([{"id": 2, "wide": 1 << 40, "new": "x"}]))
    wanted = [{"id": 1, "wide": 7, "new": None}, {"id": 2, "wide": 1 << 40, "new": "x"}]
    calve.compact(table.ref)
    assert table.rows() == duckdb_rows(table.table.metadata_location) == wanted
    table.close()
