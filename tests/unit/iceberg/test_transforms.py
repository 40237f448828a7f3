"""Partition values: the examples of the specification, pyiceberg's transforms of single values, and iceberg-rust."""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.errors import TerminalError
from calve.iceberg.files.transforms import _hashes, transformed

LEAST, MOST = -(2**63), 2**63 - 1


def arrow_of(kind: IcebergType, values: list[Any]) -> pa.Array:
    return pa.array(values, pa.binary(16) if isinstance(kind, UUIDType) else schema_to_pyarrow(kind))


def applied(kind: IcebergType, transform: Transform[Any, Any], *values: Any) -> list[Any]:
    found: list[Any] = transformed(arrow_of(kind, list(values)), kind, transform).to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (IntegerType(), 34, 2017239379),
        (LongType(), 34, 2017239379),
        (DecimalType(9, 2), Decimal("14.20"), -500754589),
        (DateType(), dt.date(2017, 11, 16), -653330422),
        (TimeType(), dt.time(22, 31, 8), -662762989),
        (TimestampType(), dt.datetime(2017, 11, 16, 22, 31, 8), -2047944441),  # noqa: DTZ001 - a local time
        (
            TimestamptzType(),
            dt.datetime(2017, 11, 16, 14, 31, 8, tzinfo=dt.timezone(dt.timedelta(hours=-8))),
            -2047944441,
        ),
        (TimestampType(), dt.datetime(2017, 11, 16, 22, 31, 8, 1), -1207196810),  # noqa: DTZ001 - a local time
        (StringType(), "iceberg", 1210000089),
        (UUIDType(), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
        (FixedType(4), bytes([0, 1, 2, 3]), -188683207),
        (BinaryType(), bytes([0, 1, 2, 3]), -188683207),
    ],
)
def test_hashes_are_those_of_the_specification(kind: IcebergType, value: Any, expected: int) -> None:
    assert _hashes(arrow_of(kind, [value]), kind).astype("int32").tolist() == [expected]


def test_truncation_goes_down_to_the_multiple_below_as_the_specification_shows() -> None:
    ten: Transform[Any, Any] = TruncateTransform(10)
    assert applied(IntegerType(), ten, 1, -1, 0, 10, None, -10) == [0, -10, 0, 10, None, -10]
    assert applied(LongType(), ten, 1, -1, MOST) == [0, -10, MOST - 7]
    assert applied(DecimalType(9, 2), TruncateTransform(50), Decimal("10.65"), None) == [Decimal("10.50"), None]
    assert applied(DecimalType(38, 2), TruncateTransform(50), Decimal("-10.65"), None) == [Decimal("-11.00"), None]
    assert applied(StringType(), TruncateTransform(3), "iceberg", "", None, "😀é😀é") == ["ice", "", None, "😀é😀"]
    assert applied(BinaryType(), TruncateTransform(3), b"\1\2\3\4", None) == [b"\1\2\3", None]


@pytest.mark.parametrize(("digits", "text"), [(4, "-99.99"), (38, "-" + "9" * 36 + ".99")])
def test_a_decimal_whose_truncation_has_too_many_digits_has_no_partition(digits: int, text: str) -> None:
    kind = DecimalType(digits, 2)
    values = pa.array([Decimal("-99.90"), None, Decimal(text)], pa.decimal128(digits, 2))
    least = transformed(values.slice(0, 2), kind, TruncateTransform(10))
    assert least.to_pylist() == [Decimal("-99.90"), None]
    with pytest.raises(TerminalError, match="no partition") as caught:
        transformed(values, kind, TruncateTransform(50))
    assert caught.value.detail == f"truncate(50) of its value needs more digits than decimal({digits}, 2) has."
    assert "SET PARTITION BY" in caught.value.hint


def test_truncation_below_the_least_number_wraps_as_in_java() -> None:
    assert applied(LongType(), TruncateTransform(10), LEAST) == [LEAST - 2 + 2**64]
    assert applied(IntegerType(), TruncateTransform(10), -(2**31)) == [2**31 - 2]


def test_times_before_1970_belong_to_the_unit_that_they_are_in() -> None:
    days = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1960, 2, 29), dt.date(1, 1, 1), None]
    assert applied(DateType(), YearTransform(), *days) == [-1, 0, -10, -1969, None]
    assert applied(DateType(), MonthTransform(), *days) == [-1, 0, -119, -23628, None]
    assert applied(DateType(), DayTransform(), *days) == [-1, 0, -3594, -719162, None]
    at = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - a local time
    units: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform(), HourTransform()]
    for transform in units:
        assert applied(TimestampType(), transform, at, None) == [-1, None]


def test_the_hour_of_a_time_with_a_zone_is_that_of_utc() -> None:
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    at = pa.array([dt.datetime(2020, 1, 1, 0, 15, tzinfo=zone)], pa.timestamp("us", "Asia/Kolkata"))
    assert transformed(at, TimestamptzType(), HourTransform()).to_pylist() == [438282]
    assert transformed(at, TimestamptzType(), YearTransform()).to_pylist() == [49]


def test_void_is_null_and_identities_are_what_manifests_hold() -> None:
    assert applied(LongType(), VoidTransform(), 1, None) == [None, None]
    assert applied(DateType(), IdentityTransform(), dt.date(1970, 1, 3), None) == [2, None]
    assert applied(TimestampType(), IdentityTransform(), dt.datetime(1970, 1, 1, 0, 0, 1)) == [10**6]  # noqa: DTZ001
    assert applied(BooleanType(), IdentityTransform(), True, None) == [True, None]  # noqa: FBT003 - values
    assert applied(DoubleType(), IdentityTransform(), 0.5, None) == [0.5, None]


def test_what_a_transform_is_not_for_is_no_value() -> None:
    for kind, transform in ((DoubleType(), BucketTransform(4)), (DateType(), HourTransform())):
        with pytest.raises(TypeError):
            applied(kind, transform, None)


PLAIN: list[tuple[IcebergType, st.SearchStrategy[Any]]] = [
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(LEAST, MOST)),
    (DecimalType(9, 2), st.decimals(Decimal(-9_999_999), Decimal(9_999_999), places=2)),
    (DecimalType(38, 10), st.decimals(Decimal(-(10**27)), Decimal(10**27), places=10)),
    (StringType(), st.text()),
    (BinaryType(), st.binary()),
    (DateType(), st.dates()),
    (TimestampType(), st.datetimes()),
    (TimestamptzType(), st.datetimes(timezones=st.just(dt.UTC))),
]
TRANSFORMS: list[Transform[Any, Any]] = [
    BucketTransform(1),
    BucketTransform(16),
    BucketTransform(2**31 - 1),
    TruncateTransform(1),
    TruncateTransform(7),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
]


@given(st.data())
def test_values_are_those_of_pyiceberg_for_random_values_of_every_type(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(PLAIN))
    transform = data.draw(st.sampled_from([t for t in TRANSFORMS if t.can_transform(kind)]))
    rows = data.draw(st.lists(st.none() | values, max_size=20))
    skipped = data.draw(st.integers(0, len(rows)))  # arrays need not begin where their memory does
    one = transform.transform(kind)
    expected = [one(row) for row in rows[skipped:]]
    if isinstance(transform, TruncateTransform) and isinstance(kind, IntegerType | LongType):
        bits = 32 if isinstance(kind, IntegerType) else 64
        expected = [v if v is None or v >= -(2 ** (bits - 1)) else v + 2**bits for v in expected]
    found = transformed(arrow_of(kind, rows).slice(skipped), kind, transform).to_pylist()
    assert found == expected


IN_RUST: list[tuple[IcebergType, st.SearchStrategy[Any]]] = [
    *PLAIN,
    (UUIDType(), st.binary(min_size=16, max_size=16)),
    (FixedType(5), st.binary(min_size=5, max_size=5)),
    (TimeType(), st.times()),
]


@given(st.data())
def test_arrays_are_those_of_iceberg_rust_for_random_values_of_every_type(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(IN_RUST))
    transform = data.draw(st.sampled_from([t for t in TRANSFORMS if t.can_transform(kind)]))
    array = arrow_of(kind, data.draw(st.lists(st.none() | values, max_size=20)))
    narrow = array.cast(pa.binary()) if isinstance(kind, BinaryType) else array  # it truncates no other binary values
    expected = transform.pyarrow_transform(kind)(narrow)
    found = transformed(array, kind, transform)
    assert found.cast(expected.type).to_pylist() == expected.to_pylist()
