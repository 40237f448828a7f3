import io
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from calve.iceberg.schema.arrow import arrow_schema, key_schema, metrics_of, parse_schema, text_above
from calve.iceberg.schema.creation import iceberg_schema
from calve.model.files import ColumnMetrics

COLUMNS = spark.StructType(
    [
        spark.StructField("k", spark.LongType()),
        spark.StructField("text", spark.StringType()),
        spark.StructField("list", spark.ArrayType(spark.IntegerType())),
        spark.StructField("day", spark.DateType()),
        spark.StructField("price", spark.DecimalType(9, 2)),
        spark.StructField("data", spark.BinaryType()),
        spark.StructField("share", spark.DoubleType()),
    ]
)
SCHEMA = iceberg_schema(COLUMNS, ["k"])


def metrics(table: pa.Table, properties: dict[str, str] | None = None) -> tuple[ColumnMetrics, tuple[int, ...]]:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=2)
    return metrics_of(pq.read_metadata(buffer), SCHEMA, properties or {})


def rows(*values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema=arrow_schema(SCHEMA))


def test_counts_nulls_and_bounds_are_by_field_id() -> None:
    found, offsets = metrics(rows({"k": 3, "text": "b" * 20}, {"k": -1, "text": None}, {"k": 2, "text": "a"}))
    assert found.value_counts[1] == found.value_counts[2] == 3
    assert (found.null_value_counts[1], found.null_value_counts[2]) == (0, 1)
    assert found.lower_bounds[1] == (-1).to_bytes(8, "little", signed=True)
    assert found.upper_bounds[1] == (3).to_bytes(8, "little")
    assert (found.lower_bounds[2], found.upper_bounds[2]) == (b"a", b"b" * 15 + b"c")
    assert len(offsets) == 2
    assert offsets[0] == 4


def test_the_table_decides_which_metrics_are_kept() -> None:
    found, _ = metrics(rows({"k": 1, "text": "a"}), {"write.metadata.metrics.default": "none"})
    assert (found.value_counts, found.lower_bounds) == ({}, {})


def test_days_beyond_pythons_calendar_have_counts_and_no_bounds() -> None:
    table = rows({"k": 1, "day": date(2020, 1, 1)}, {"k": 2})
    far = pa.array([4_000_000, None], pa.int32()).cast(pa.date32())
    found, _ = metrics(table.set_column(3, table.schema.field(3), far))
    day = SCHEMA.find_field("day").field_id
    assert (found.value_counts[day], found.null_value_counts[day]) == (2, 1)
    assert day not in found.lower_bounds
    assert 1 in found.lower_bounds


def test_a_file_of_keys_has_the_key_columns_with_their_ids_in_key_order() -> None:
    schema = iceberg_schema(COLUMNS, ["text", "k"])
    keys = key_schema(parse_schema(schema.model_dump_json()), schema.identifier_field_ids)
    assert [(f.name, f.field_id, f.required) for f in keys.fields] == [("text", 2, True), ("k", 1, True)]


def ids(*names: str) -> list[int]:
    return [SCHEMA.find_field(name).field_id for name in names]


@pytest.mark.parametrize("edge", ["\ud7ff", "\ue000", "\uffff", "\U0010fffe", "\U0010ffff", "\x00", "\x7f"])
@pytest.mark.parametrize("before", [14, 15, 16])
def test_any_text_has_an_upper_bound_that_is_text(edge: str, before: int) -> None:
    text = "a" * before + edge * 3
    upper = metrics(rows({"k": 1, "text": text}))[0].upper_bounds[2]
    assert text < upper.decode()
    assert len(upper.decode()) <= 16


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1), st.integers(1, 6))
@example(["\ud7ff" * 3], 2)
@example(["a\U0010ffff\U0010ffff"], 2)
def test_bounds_enclose_every_text(texts: list[str], length: int) -> None:
    table = rows(*({"k": i, "text": text, "data": text.encode()} for i, text in enumerate(texts)))
    found, _ = metrics(table, {"write.metadata.metrics.default": f"truncate({length})"})
    encoded = [text.encode() for text in texts]
    for column in ids("text", "data"):
        assert found.lower_bounds[column] <= min(encoded)
        upper = found.upper_bounds.get(column)
        assert upper is None or upper >= max(encoded)


def test_the_greatest_texts_have_no_upper_bound() -> None:
    assert text_above("\U0010ffff" * 3, 2) is None
    assert text_above("\U0010ffff" * 2, 2) == "\U0010ffff" * 2
    found, _ = metrics(rows({"k": 1, "text": "\U0010ffff" * 17, "data": b"\xff" * 17}))
    for column in ids("text", "data"):
        assert column in found.lower_bounds
        assert column not in found.upper_bounds


def test_a_row_group_without_bounds_leaves_the_column_without_them() -> None:
    # Parquet's writers leave out the bounds of values of more than 4 kB; row groups have two rows here.
    long = {"text": "z" * 5000, "data": b"z" * 5000}
    short = {"text": "b", "data": b"b"}
    found, _ = metrics(rows({"k": 1, **long}, {"k": 2, **long}, {"k": 3, **short}))
    for column in ids("text", "data"):
        assert column not in found.lower_bounds
        assert column not in found.upper_bounds
        assert (found.value_counts[column], found.null_value_counts[column]) == (3, 0)
    assert 1 in found.lower_bounds


def test_a_row_group_of_nulls_alone_does_not_take_the_bounds_of_others() -> None:
    found, _ = metrics(rows({"k": 1}, {"k": 2}, {"k": 3, "text": "b", "share": 1.5}))
    for column in ids("text", "share"):
        assert column in found.lower_bounds
        assert column in found.upper_bounds


def test_text_that_is_no_utf_8_has_counts_and_no_bounds() -> None:
    table = rows({"k": 1, "text": "a"})
    broken = pa.array([b"\xff\xfe"]).cast(pa.large_binary()).view(pa.large_string())
    found, _ = metrics(table.set_column(1, table.schema.field(1), broken))
    assert found.value_counts[2] == 1
    assert 2 not in found.lower_bounds


@pytest.mark.parametrize("mode", ["truncate(0)", "truncate(x)", "some", ""])
def test_a_metrics_mode_that_is_unknown_is_taken_for_the_default(mode: str) -> None:
    said = {"write.metadata.metrics.default": mode, "write.metadata.metrics.column.text": mode}
    assert metrics(rows({"k": 1, "text": "a" * 20}), said) == metrics(rows({"k": 1, "text": "a" * 20}))
