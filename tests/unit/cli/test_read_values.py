"""Values as `calve read` prints them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from calve.cli.read import describe_scan, json_value, text_of, values_of
from calve.cli.rows import csv_field
from calve.model.scan import DeleteFile, DeleteKind, Pruned, ScanFile, ScanPlan

POINT = pa.struct([("x", pa.int32()), ("d", pa.decimal128(5, 2))])


@pytest.mark.parametrize(
    ("value", "kind", "text", "as_json"),
    [
        (True, pa.bool_(), "true", True),
        (-7, pa.int64(), "-7", -7),
        (0.1, pa.float64(), "0.1", 0.1),
        (float("nan"), pa.float64(), "nan", "nan"),
        (Decimal("1E+2"), pa.decimal128(5, 0), "100", "100"),
        (Decimal("0.10"), pa.decimal128(5, 2), "0.10", "0.10"),
        ("é", pa.string(), "é", "é"),
        (b"\x00\xff", pa.binary(), "AP8=", "AP8="),
        (dt.date(2024, 2, 29), pa.date32(), "2024-02-29", "2024-02-29"),
        (dt.time(1, 2, 3, 4), pa.time64("us"), "01:02:03.000004", "01:02:03.000004"),
        (dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC"), *["2024-02-29 01:00:00Z"] * 2),
        (dt.datetime(2024, 2, 29, 1, 0, 0, 5), pa.timestamp("us"), *["2024-02-29 01:00:00.000005"] * 2),  # noqa: DTZ001
        ([1, None], pa.list_(pa.int32()), "[1, null]", [1, None]),
        ({"x": 1, "d": Decimal("2.50")}, POINT, '{"x": 1, "d": "2.50"}', {"x": 1, "d": "2.50"}),
        ([(1, b"\x00")], pa.map_(pa.int32(), pa.binary()), '{"1": "AA=="}', {"1": "AA=="}),
    ],
)
def test_values_are_printed_in_full(value: Any, kind: pa.DataType, text: str, as_json: Any) -> None:
    assert text_of(value, kind) == text
    assert json_value(value, kind) == as_json


def test_times_that_python_does_not_have_are_printed() -> None:
    assert values_of(pa.array([1_700_000_000_000_000_001], pa.timestamp("ns"))) == ["2023-11-14 22:13:20.000000001"]
    assert values_of(pa.array([None, 4_000_000], pa.date32()))[0] is None
    assert "12921" in values_of(pa.array([None, 4_000_000], pa.date32()))[1]


@pytest.mark.parametrize(
    ("text", "field"), [("plain", "plain"), ("", '""'), ('a"b', '"a""b"'), ("a,b", '"a,b"'), ("a\nb", '"a\nb"')]
)
def test_fields_of_csv_are_quoted_where_they_must_be(text: str, field: str) -> None:
    assert csv_field(text) == field


def test_explain_counts_every_delete_once() -> None:
    shared = DeleteFile(DeleteKind.EQUALITY, "e", 500, 10, 2, (1,))
    vectors = [DeleteFile(DeleteKind.VECTOR, "v", 10_000, 3, 2, offset=4, length=50 + n) for n in range(2)]
    files = tuple(ScanFile(f"f{n}", 1_500_000, 1000, 1, deletes=(shared, vectors[n])) for n in range(2))
    plan = ScanPlan(7, 0, None, files, 12, 5, Pruned(1, 4, 6))
    assert describe_scan(plan, "shop.orders") == [
        "table       shop.orders",
        "snapshot    7, committed 1970-01-01 00:00:00 UTC",
        "data        2 of 12 files, 2,000 rows, 3.0 MB",
        "deletes     1 files of equality deletes, 10 rows, 500 B",
        "deletes     2 deletion vectors, 6 rows, 101 B",
        "skipped     1 of 5 manifests; 4 files by partition, 6 by bounds",
    ]


def test_explain_of_a_table_without_snapshots() -> None:
    assert describe_scan(ScanPlan(None, None, None, (), 0, 0), "a.b") == ["a.b has no snapshot: nothing is read."]
