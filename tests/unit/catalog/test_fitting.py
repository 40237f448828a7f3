"""What a table becomes for an input that has more than the table."""

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from calve.iceberg.schema.fitting import Fit, as_known, fit


def optional(number: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(number, name, kind, required=False)


def schema(*fields: NestedField) -> Schema:
    return Schema(NestedField(1, "id", IntegerType(), required=True), *fields, identifier_field_ids=[1])


def table(*fields: NestedField) -> TableMetadata:
    return new_table_metadata(schema(*fields), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///t")


def fitted(theirs: list[NestedField], ours: list[NestedField]) -> Fit:
    return fit(table(*theirs), schema(*ours))


def test_new_columns_are_optional_come_last_and_get_ids_that_nobody_had() -> None:
    kind = ListType(30, StructType(NestedField(31, "x", LongType(), required=True)), element_required=False)
    found = fitted([optional(2, "v", StringType())], [optional(5, "new", kind), optional(6, "v", StringType())])
    assert found.mendable
    assert [(f.field_id, f.name, f.required) for f in found.schema.fields] == [
        (1, "id", True),
        (2, "v", False),
        (3, "new", False),
    ]
    assert sorted(found.schema.field_ids) == [1, 2, 3, 4, 5]
    assert found.schema.identifier_field_ids == [1]


def test_fields_of_structs_lists_and_maps_are_added_and_widened_where_they_are() -> None:
    def kind(number: IcebergType, *more: NestedField) -> IcebergType:
        inner = StructType(optional(10, "n", number), *more)
        return MapType(11, StringType(), 12, ListType(13, inner, element_required=False), value_required=False)

    found = fitted(
        [optional(2, "v", kind(FloatType()))],
        [optional(2, "V", kind(DoubleType(), optional(14, "m", DecimalType(5, 2))))],
    )
    assert [d.text for d in found.differences] == [
        'column "V.value.element.n": got double, expected float, which is narrower',
        'column "V.value.element.m": got decimal(5, 2), expected none',
    ]
    assert found.mendable
    field = found.schema.find_field("v.value.element.m")
    assert (field.field_id, found.schema.find_type("v.value.element.n")) == (7, DoubleType())


def test_a_required_column_that_the_input_lacks_becomes_optional() -> None:
    found = fitted([NestedField(2, "v", StringType(), required=True)], [])
    assert found.mendable
    assert not found.schema.find_field("v").required


def test_other_types_other_scales_and_wider_keys_are_for_people() -> None:
    theirs = [optional(2, "v", StringType()), optional(3, "d", DecimalType(5, 2))]
    ours = [optional(2, "v", LongType()), optional(3, "d", DecimalType(6, 3))]
    wider = Schema(NestedField(1, "id", LongType(), required=True), *ours, identifier_field_ids=[1])
    found = fit(table(*theirs), wider)
    assert [(d.mendable, d.text) for d in found.differences] == [
        (False, 'column "id": got long, expected int, which is narrower, and a key'),
        (False, 'column "v": got long, expected string'),
        (False, 'column "d": got decimal(6, 3), expected decimal(5, 2)'),
    ]


def test_a_renamed_column_is_known_by_the_name_that_it_had_unless_another_has_it_now() -> None:
    first = table(optional(2, "a", StringType()))
    renamed = schema(optional(2, "b", StringType())).model_copy(update={"schema_id": 1})
    metadata = first.model_copy(update={"schemas": [*first.schemas, renamed], "current_schema_id": 1})
    given = schema(optional(2, "a", StringType()))
    assert [f.name for f in as_known(metadata, given).fields] == ["id", "a"]
    assert not fit(metadata, given).differences
    assert [f.name for f in fit(metadata, given).schema.fields] == ["id", "b"]
    both = schema(optional(2, "a", StringType()), optional(3, "b", StringType()))
    assert [f.name for f in fit(metadata, both).schema.fields] == ["id", "b", "a"]
