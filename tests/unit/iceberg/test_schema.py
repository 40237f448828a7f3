import json
from typing import Any

import pytest
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyspark.sql import types as spark

from calve.errors import InvalidInput
from calve.iceberg.schema.arrow import arrow_schema
from calve.iceberg.schema.creation import iceberg_schema


def struct(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (spark.BooleanType(), BooleanType()),
        (spark.ByteType(), IntegerType()),
        (spark.ShortType(), IntegerType()),
        (spark.IntegerType(), IntegerType()),
        (spark.LongType(), LongType()),
        (spark.FloatType(), FloatType()),
        (spark.DoubleType(), DoubleType()),
        (spark.DecimalType(38, 10), DecimalType(38, 10)),
        (spark.StringType(), StringType()),
        (spark.CharType(3), StringType()),
        (spark.VarcharType(9), StringType()),
        (spark.BinaryType(), BinaryType()),
        (spark.DateType(), DateType()),
        (spark.TimestampType(), TimestamptzType()),
        (spark.TimestampNTZType(), TimestampType()),
        (spark.TimeType(), TimeType()),
        (spark.DayTimeIntervalType(), StringType()),
        (spark.YearMonthIntervalType(), StringType()),
        (spark.CalendarIntervalType(), StringType()),
        (spark.VariantType(), StringType()),
    ],
)
def test_a_spark_type_has_one_iceberg_type(given: spark.DataType, expected: IcebergType) -> None:
    assert iceberg_schema(struct(c=given)).find_type("c") == expected


def test_a_declared_uuid_is_a_uuid() -> None:
    columns = struct(u=spark.StringType(), t=spark.StringType())
    assert [f.field_type for f in iceberg_schema(columns, ["t"], uuids=["u"]).fields] == [UUIDType(), StringType()]


def test_key_columns_are_required_and_identify_rows_in_key_order() -> None:
    schema = iceberg_schema(struct(a=spark.StringType(), b=spark.LongType(), c=spark.DateType()), ["c", "a"])
    assert [f.required for f in schema.fields] == [True, False, True]
    assert schema.identifier_field_ids == [3, 1]


def test_other_columns_take_nulls_whatever_spark_says() -> None:
    columns = spark.StructType(
        [spark.StructField("k", spark.LongType()), spark.StructField("v", spark.LongType(), nullable=False)]
    )
    assert not iceberg_schema(columns, ["k"]).find_field("v").required


def test_nested_types_have_ids_on_every_level() -> None:
    inner = struct(x=spark.LongType(), y=spark.MapType(spark.StringType(), spark.ArrayType(spark.DateType())))
    schema = iceberg_schema(struct(k=spark.LongType(), n=spark.ArrayType(inner)), ["k"])
    nested = schema.find_type("n")
    assert isinstance(nested, ListType)
    assert isinstance(nested.element_type, StructType)
    assert isinstance(nested.element_type.fields[1].field_type, MapType)
    assert sorted(schema.field_ids) == list(range(1, 9))


def test_ids_are_those_that_a_catalog_assigns() -> None:
    inner = struct(x=spark.LongType())
    schema = iceberg_schema(struct(n=inner, k=spark.LongType()), ["k"])
    assert (schema.find_field("n").field_id, schema.find_field("k").field_id, schema.find_field("n.x").field_id) == (
        1,
        2,
        3,
    )
    assert schema.identifier_field_ids == [2]


def test_every_arrow_field_carries_its_id() -> None:
    schema = iceberg_schema(struct(k=spark.LongType(), m=spark.MapType(spark.StringType(), struct(x=spark.LongType()))))
    found: list[int] = []

    def walk(field: Any) -> None:
        if field.metadata and b"PARQUET:field_id" in field.metadata:
            found.append(int(field.metadata[b"PARQUET:field_id"]))
        for index in range(field.type.num_fields):
            walk(field.type.field(index))

    for field in arrow_schema(schema):
        walk(field)
    assert sorted(found) == sorted(schema.field_ids)


def test_comments_become_documentation() -> None:
    columns = spark.StructType([spark.StructField("k", spark.LongType(), metadata={"comment": "the key"})])
    assert iceberg_schema(columns).find_field("k").doc == "the key"


def test_json_is_as_good_as_a_struct_type() -> None:
    columns = struct(k=spark.LongType(), v=spark.ArrayType(spark.StringType()))
    assert iceberg_schema(columns.json(), ["k"]) == iceberg_schema(columns, ["k"])


@pytest.mark.parametrize(
    "kind",
    [
        spark.NullType(),
        spark.VariantType(),
        spark.StructType([]),
    ],
)
def test_a_type_that_a_table_cannot_hold_is_refused_by_column(kind: spark.DataType) -> None:
    with pytest.raises(InvalidInput, match=r'column "n\.element\.bad" has a type that a table cannot hold'):
        iceberg_schema(struct(n=spark.ArrayType(struct(bad=kind))))


def test_decimals_over_38_digits_are_refused() -> None:
    columns = json.dumps({"type": "struct", "fields": [{"name": "d", "type": "decimal(39,0)"}]})
    with pytest.raises(InvalidInput, match='column "d"'):
        iceberg_schema(columns)


@pytest.mark.parametrize(
    "kind",
    [
        spark.FloatType(),
        spark.DoubleType(),
        spark.ArrayType(spark.LongType()),
        spark.MapType(spark.LongType(), spark.LongType()),
        struct(x=spark.LongType()),
        spark.StringType("UTF8_LCASE"),
        spark.DayTimeIntervalType(),
        spark.VariantType(),
    ],
)
def test_a_type_without_exact_equality_is_no_key(kind: spark.DataType) -> None:
    with pytest.raises(InvalidInput, match='column "k" cannot be a key'):
        iceberg_schema(struct(k=kind), ["k"])


def test_a_missing_key_column_is_named_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match='key column "id" does not exist') as raised:
        iceberg_schema(struct(ID=spark.LongType(), v=spark.LongType()), ["id"])
    assert raised.value.detail == "The input's columns are ID, v."


def test_a_key_column_named_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the key contains a column twice"):
        iceberg_schema(struct(k=spark.LongType()), ["k", "k"])


def test_names_of_calve_are_refused() -> None:
    with pytest.raises(InvalidInput, match='column name "_calve_op" is reserved'):
        iceberg_schema(struct(_calve_op=spark.LongType()))


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a")])
def test_names_that_engines_cannot_tell_apart_are_refused(names: tuple[str, str]) -> None:
    columns = spark.StructType([spark.StructField(name, spark.LongType()) for name in names])
    with pytest.raises(InvalidInput, match="exists twice"):
        iceberg_schema(columns)
    with pytest.raises(InvalidInput, match=r'column "n\.[aA]" exists twice'):
        iceberg_schema(struct(n=columns))


def test_an_input_without_columns_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the input has no columns"):
        iceberg_schema(spark.StructType([]))
