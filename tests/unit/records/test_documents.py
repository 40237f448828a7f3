"""What the schema part of a record says of its columns, and what becomes of their values."""

import datetime as dt
from base64 import b64encode
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T  # noqa: N812

from calve.records.documents import codings_of
from calve.records.scalars import GUARDED_MICROS, Settings
from calve.records.strict import Columns, Misfit

TIME, MONEY, MOMENT = T.TimeType(), T.DecimalType(10, 2), T.TimestampNTZType()


def unscaled(number: int) -> str:
    return b64encode(number.to_bytes(4, "big", signed=True)).decode()


def field(name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"field": "c", "type": "int64", "name": name, **more}


def read(kind: T.DataType, value: Any, *, unit: str | None = GUARDED_MICROS, **schema: Any) -> Any:
    columns = Columns.of([T.StructField("c", kind)], Settings(unit))
    return columns.values({"c": value}, codings_of([field(**schema)]))[0]


DECIMAL = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("io.debezium.time.Time", 45_296_789),
        ("org.apache.kafka.connect.data.Time", 45_296_789),
        ("io.debezium.time.MicroTime", 45_296_789_000),
        ("io.debezium.time.NanoTime", 45_296_789_000_999),
    ],
)
def test_a_time_of_day_counts_what_its_schema_says(name: str, value: int) -> None:
    assert read(TIME, value, name=name) == dt.time(12, 34, 56, 789_000)


@pytest.mark.parametrize(("text", "time"), [("12:34", dt.time(12, 34)), ("12:34:56.7Z", dt.time(12, 34, 56, 700_000))])
def test_a_time_of_day_is_a_text_without_a_zone_or_of_utc(text: str, time: dt.time) -> None:
    assert read(TIME, text) == time


@pytest.mark.parametrize("value", ["12:34:56+01:00", "24:00", "12", 86_400_000, -1, 86_400_000_001, 1.5, True])
def test_what_is_no_time_of_day_for_sure_is_a_misfit(value: Any) -> None:
    with pytest.raises(Misfit):
        read(TIME, value)


def test_a_unit_that_is_said_decides_about_small_numbers() -> None:
    assert read(TIME, 1000, unit="ms") == dt.time(0, 0, 1)
    assert read(TIME, 1000, unit="us") == dt.time(0, 0, 0, 1000)


def test_values_inside_of_arrays_maps_and_structs_have_their_own_encoding() -> None:
    values = [unscaled(12345), None]
    assert read(T.ArrayType(MONEY), values, type="array", items=DECIMAL) == [Decimal("123.45"), None]
    found = read(T.MapType(T.StringType(), MONEY), {"a": unscaled(-1)}, type="map", values=DECIMAL)
    assert found == [("a", Decimal("-0.01"))]
    inner = T.StructType([T.StructField("at", MOMENT), T.StructField("of", T.ArrayType(TIME))])
    fields = [
        {"field": "at", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {"field": "of", "type": "array", "items": {"type": "int32", "name": "io.debezium.time.Time"}},
    ]
    found = read(inner, {"at": 1, "of": [1]}, type="struct", fields=fields)
    assert found == {"at": 1000, "of": [dt.time(0, 0, 0, 1000)]}
