"""Values of JSON in the types of a table: exactly, or not at all."""

import base64
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.records.documents import Malformed
from calve.records.scalars import GUARDED_MICROS, PLAIN, Coding, Settings
from calve.records.strict import Columns, Misfit, check_type, converter

BIG, INT, TINY, SMALL = T.LongType(), T.IntegerType(), T.ByteType(), T.ShortType()
TEXT, DOUBLE, FLOAT, BOOL, DATE, BINARY = (
    T.StringType(),
    T.DoubleType(),
    T.FloatType(),
    T.BooleanType(),
    T.DateType(),
    T.BinaryType(),
)
ZONED, UNZONED = T.TimestampType(), T.TimestampNTZType()
MONEY = T.DecimalType(12, 2)
MICROS = Settings(unit="us")
NOON = 1_704_196_800_000_000  # 2024-01-02T12:00:00Z


def converted(data_type: T.DataType, value: Any, settings: Settings = MICROS, coding: Coding = PLAIN) -> Any:
    return converter(data_type, "c", settings)(value, coding)


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (BIG, 7, 7),
        (BIG, "7", 7),
        (BIG, "-7", -7),
        (BIG, Decimal("7.0"), 7),
        (BIG, Decimal("1e3"), 1000),
        (BIG, 2**63 - 1, 2**63 - 1),
        (BIG, -(2**63), -(2**63)),
        (TINY, -128, -128),
        (SMALL, 32767, 32767),
        (INT, -(2**31), -(2**31)),
        (DOUBLE, 1, 1.0),
        (DOUBLE, Decimal("1.5"), 1.5),
        (DOUBLE, "1.5e3", 1500.0),
        (DOUBLE, "Infinity", float("inf")),
        (FLOAT, Decimal("0.5"), 0.5),
        (MONEY, 5, Decimal("5.00")),
        (MONEY, Decimal("1.5"), Decimal("1.50")),
        (MONEY, "1.50", Decimal("1.50")),
        (MONEY, "1.500", Decimal("1.50")),
        (MONEY, Decimal("1.0E7"), Decimal("10000000.00")),
        (MONEY, "9999999999.99", Decimal("9999999999.99")),
        (MONEY, {"scale": 2, "value": "/4U="}, Decimal("-1.23")),
        (T.DecimalType(38, 0), 10**38 - 1, Decimal(10**38 - 1)),
        (T.DecimalType(38, 38), "0." + "9" * 38, Decimal("0." + "9" * 38)),
        (TEXT, "a\u0000ü", "a\u0000ü"),
        (TEXT, 1, "1"),
        (TEXT, Decimal("1.10"), "1.10"),
        (TEXT, True, "true"),
        (TEXT, {"a": [1, None, Decimal("1.5"), "x"]}, '{"a":[1,null,1.5,"x"]}'),
        (BOOL, True, True),
        (BOOL, 0, False),
        (BOOL, "true", True),
        (BINARY, "YWJj", b"abc"),
        (BINARY, "", b""),
        (DATE, "1970-01-02", 1),
        (DATE, "2024-02-29", 19782),
        (DATE, "2024-02-29Z", 19782),
        (DATE, -719_162, -719_162),
        (ZONED, "2024-01-02T12:00:00Z", NOON),
        (ZONED, "2024-01-02T14:00:00+02:00", NOON),
        (ZONED, "2024-01-02 12:00", NOON),
        (ZONED, "2024-01-02T12:00:00.123456789Z", NOON + 123_456),
        (ZONED, "2024-01-02", NOON - 43_200_000_000),
        (ZONED, NOON, NOON),
        (UNZONED, "2024-01-02T12:00:00", NOON),
        (UNZONED, "2024-01-02T12:00:00Z", NOON),
        (UNZONED, NOON, NOON),
    ],
)
def test_a_value_that_fits_is_converted(data_type: T.DataType, value: Any, expected: Any) -> None:
    result = converted(data_type, value)
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (BIG, "abc"),
        (BIG, ""),
        (BIG, " 7"),
        (BIG, "٧"),
        (BIG, True),
        (BIG, Decimal("1.5")),
        (BIG, Decimal("1e1000000")),
        (BIG, 2**63),
        (BIG, [1]),
        (TINY, 128),
        (INT, 2**31),
        (DOUBLE, "inf"),
        (DOUBLE, "1d"),
        (DOUBLE, Decimal("1e400")),
        (DOUBLE, True),
        (FLOAT, Decimal("1e39")),
        (MONEY, Decimal("1.555")),
        (MONEY, "10000000000"),
        (MONEY, "abc"),
        (MONEY, "NaN"),
        (MONEY, "AfQ="),
        (MONEY, True),
        (MONEY, {"scale": 2}),
        (MONEY, {"scale": 2, "value": "@"}),
        (MONEY, {"scale": "x", "value": "/4U="}),
        (T.DecimalType(38, 38), "0." + "9" * 39),
        (TEXT, "half \ud800"),
        (BOOL, 2),
        (BOOL, "yes"),
        (BINARY, "abc"),
        (BINARY, "@@@@"),
        (BINARY, "ü==="),
        (BINARY, 1),
        (DATE, "2024-02-30"),
        (DATE, "2024-01-02Tjunk"),
        (DATE, "2024"),
        (DATE, "0000-01-01"),
        (DATE, 2_932_897),
        (DATE, True),
        (ZONED, "12:30"),
        (ZONED, "2024-01-02T25:00:00Z"),
        (ZONED, "2024-W01-1"),
        (ZONED, "20240102"),
        (ZONED, 2**62),
        (ZONED, Decimal("1.5")),
        (ZONED, True),
        (ZONED, "9999-12-31T23:59:59-14:00"),
        (ZONED, "9999-12-31T23:59:59.999999-00:01"),
        (ZONED, "0001-01-01T00:00:00+00:01"),
        (ZONED, 253_402_300_800_000_000),
        (ZONED, -62_135_596_800_000_001),
        (UNZONED, "2024-01-02T12:00:00+02:00"),
        (UNZONED, 253_402_300_800_000_000),
        (T.MapType(TEXT, BIG), [["a", 1]]),
    ],
)
def test_a_value_that_does_not_fit_is_a_misfit_and_never_null(data_type: T.DataType, value: Any) -> None:
    with pytest.raises(Misfit) as misfit:
        converted(data_type, value)
    assert misfit.value.path == "c"
    assert misfit.value.value == value


def test_a_number_is_a_timestamp_only_where_its_unit_is_known() -> None:
    with pytest.raises(Misfit):
        converted(ZONED, NOON, Settings(unit=None))
    assert converted(ZONED, NOON // 1000, Settings(unit="ms")) == NOON
    assert converted(ZONED, NOON * 1000 + 999, Settings(unit="ns")) == NOON
    assert converted(ZONED, -1, Settings(unit="ns")) == -1


@pytest.mark.parametrize(
    ("text", "zone", "micros"),
    [
        ("9999-12-31T23:59:59.999999Z", "UTC", 253_402_300_799_999_999),
        ("9999-12-31T23:59:59.999999999Z", "UTC", 253_402_300_799_999_999),
        ("9999-12-31T23:59:59+14:00", "UTC", 253_402_300_799_000_000 - 14 * 3_600_000_000),
        ("0001-01-01T00:00:00Z", "UTC", -62_135_596_800_000_000),
        ("0001-01-01T14:00:00+14:00", "UTC", -62_135_596_800_000_000),
        ("9999-12-31T23:59:59.999999", "-00:00", 253_402_300_799_999_999),
        ("9999-12-31T23:59:59", "+14:00", 253_402_300_799_000_000 - 14 * 3_600_000_000),
    ],
)
def test_the_first_and_the_last_moment_are_taken(text: str, zone: str, micros: int) -> None:
    assert converted(ZONED, text, Settings(zone=zone)) == micros


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("9999-12-31T23:59:59", "-14:00"),
        ("0001-01-01T00:00:00", "+14:00"),
        ("0001-01-01", "Europe/Berlin"),
        ("9999-12-31T23:59", "America/New_York"),
    ],
)
def test_a_local_time_may_be_out_of_range_in_its_zone(text: str, zone: str) -> None:
    with pytest.raises(Misfit):
        converted(ZONED, text, Settings(zone=zone))
    assert converted(UNZONED, text, Settings(zone=zone)) is not None


def test_a_key_of_a_map_is_a_text() -> None:
    with pytest.raises(Misfit) as misfit:
        converted(T.MapType(TEXT, BIG), {"a": 1, "\ud800": 2})
    assert (misfit.value.path, misfit.value.type_name) == ("c.key", "STRING")


def test_the_records_own_unit_wins_over_the_default() -> None:
    assert converted(ZONED, NOON // 1000, MICROS, Coding(unit="ms")) == NOON
    assert converted(ZONED, 19724, MICROS, Coding(unit="d")) == NOON - 43_200_000_000
    assert converted(DATE, 19724, MICROS, Coding(unit="d")) == 19724
    with pytest.raises(Misfit):
        converted(DATE, 19724, MICROS, Coding(unit="ms"))


def test_microseconds_that_must_be_milliseconds_are_refused_unless_the_unit_was_said() -> None:
    guarded = Settings(unit=GUARDED_MICROS)
    assert converted(ZONED, NOON, guarded) == NOON
    assert converted(ZONED, 0, guarded) == 0
    with pytest.raises(Misfit):
        converted(ZONED, NOON // 1000, guarded)
    assert converted(ZONED, NOON // 1000, MICROS) == NOON // 1000


def test_a_timestamp_without_zone_is_in_the_sessions_zone() -> None:
    local = "2024-07-02T12:00:00"
    utc = converted(ZONED, local)
    assert converted(ZONED, local, Settings(zone="Europe/Berlin")) == utc - 7_200_000_000
    assert converted(ZONED, local, Settings(zone="-03:30")) == utc + 12_600_000_000
    with pytest.raises(InvalidInput, match="time zone"):
        converted(ZONED, local, Settings(zone="Nowhere/At_All"))


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_decimals_as_bytes_are_decoded_exactly(unscaled: int, scale: int) -> None:
    data = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
    text = base64.b64encode(data).decode()
    exact = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    kind = T.DecimalType(38, scale)
    assert converted(kind, text, coding=Coding(scale=scale)) == exact
    assert converted(kind, {"scale": scale, "value": text}) == exact
    assert Decimal(converted(TEXT, text, coding=Coding(scale=scale))) == exact


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.integers(0, 38))
def test_a_decimal_fits_exactly_or_not_at_all(number: Decimal, precision: int, scale: int) -> None:
    data_type = T.DecimalType(precision, min(scale, precision))
    try:
        result = converted(data_type, number)
    except Misfit:
        return
    assert result == number
    assert len(result.as_tuple().digits) <= precision or not result
    assert -result.as_tuple().exponent == data_type.scale


def test_nested_values_follow_the_same_rules() -> None:
    inner = T.StructType([T.StructField("n", INT, nullable=False), T.StructField("d", DATE)])
    assert converted(T.ArrayType(inner), [{"n": 1, "d": "1970-01-02", "x": 5}, None, {"n": 2}]) == [
        {"n": 1, "d": 1},
        None,
        {"n": 2, "d": None},
    ]
    assert converted(T.MapType(TEXT, DOUBLE), {"a": Decimal("1.5"), "b": None}) == [("a", 1.5), ("b", None)]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([{"n": "x"}], "c[].n"),
        ([{"d": 1}], "c[].n"),
        ({"n": 1}, "c"),
        ([[1]], "c[]"),
    ],
)
def test_a_nested_misfit_names_its_place(value: Any, path: str) -> None:
    inner = T.StructType([T.StructField("n", INT, nullable=False), T.StructField("d", DATE)])
    with pytest.raises(Misfit) as misfit:
        converted(T.ArrayType(inner), value)
    assert misfit.value.path == path


def test_a_missing_column_is_null_and_a_missing_not_null_column_is_a_misfit() -> None:
    columns = Columns.of([T.StructField("a", INT), T.StructField("b", INT, nullable=False)], MICROS)
    assert columns.values({"b": 1}) == [None, 1]
    assert columns.values({"a": None, "b": 1}) == [None, 1]
    for record in ({"a": 1}, {"a": 1, "b": None}):
        with pytest.raises(Misfit, match="NOT NULL"):
            columns.values(record)


@pytest.mark.parametrize(
    "data_type", [T.VariantType(), T.DayTimeIntervalType(), T.MapType(INT, INT), T.ArrayType(T.NullType())]
)
def test_types_that_no_text_converts_to_are_refused(data_type: T.DataType) -> None:
    with pytest.raises(InvalidInput, match=r'column "c'):
        check_type(data_type, "c")


def test_a_missing_field_whose_name_has_another_case_is_hinted_at() -> None:
    columns = Columns.of([T.StructField("id", BIG, nullable=False)], MICROS)
    with pytest.raises(Misfit) as misfit:
        columns.values({"n": 1, "ID": 7})
    assert Malformed.of(misfit.value).hint == 'The record has a field "ID": declare the column with the same case.'
    with pytest.raises(Misfit) as misfit:
        columns.values({"n": 1, "id": None})
    assert Malformed.of(misfit.value).hint == ""
