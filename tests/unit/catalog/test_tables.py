from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
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
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds, SystemClock
from calve.errors import InvalidInput, TransientError
from calve.iceberg.loading import check_adoptable, check_found_by_all, load_or_create_table, unpartitioned_spec_id
from calve.iceberg.schema.creation import iceberg_schema
from calve.maintain.compact import CompactionScope, compact
from calve.maintain.convert import ConversionTools
from calve.model.spec import TableName
from tests.support.keyed import no_session
from tests.support.warm import together
from tests.unit.catalog.rights import as_an_ordinary_user

NAME = TableName.parse("shop.eu.orders")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = connect_embedded(tmp_path / "home")
    yield opened
    opened.close()


def schema(*columns: NestedField, key: tuple[int, ...] = (1,)) -> Schema:
    return Schema(NestedField(1, "id", LongType(), required=True), *columns, identifier_field_ids=list(key))


def column(kind: IcebergType, *, name: str = "v", required: bool = False) -> NestedField:
    return NestedField(20, name, kind, required=required)


def test_a_missing_table_is_created_with_all_that_calve_needs(catalog: Catalog) -> None:
    table = load_or_create_table(catalog, NAME, schema(column(StringType())), ["id"])
    assert catalog.load_table(NAME.identifier).metadata.table_uuid == table.metadata.table_uuid
    assert table.format_version == 2
    assert table.schema().identifier_field_names() == {"id"}
    assert table.schema().find_field("id").required
    assert unpartitioned_spec_id(table) == 0
    assert [(field.source_id, str(field.direction)) for field in table.sort_order().fields] == [(1, "ASC")]
    assert table.properties["write.parquet.compression-codec"] == "zstd"
    assert table.properties["write.delete.mode"] == "merge-on-read"
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert "history.expire.max-snapshot-age-ms" not in table.properties, "it would override SNAPSHOT RETENTION"


def test_properties_of_the_caller_win(catalog: Catalog) -> None:
    table = load_or_create_table(
        catalog, NAME, schema(), ["id"], {"write.parquet.compression-codec": "snappy", "owner": "me"}
    )
    assert table.properties["write.parquet.compression-codec"] == "snappy"
    assert table.properties["owner"] == "me"


def test_an_existing_table_is_loaded_as_it_is(catalog: Catalog) -> None:
    first = load_or_create_table(catalog, NAME, schema(column(StringType())), ["id"])
    second = load_or_create_table(catalog, NAME, schema(column(StringType())), ["id"], {"owner": "late"})
    assert second.metadata_location == first.metadata_location
    assert "owner" not in second.properties


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (LongType(), IntegerType()),
        (DoubleType(), FloatType()),
        (DecimalType(20, 2), DecimalType(10, 2)),
        (ListType(21, LongType()), ListType(21, IntegerType())),
        (MapType(21, StringType(), 22, DoubleType()), MapType(21, StringType(), 22, FloatType())),
    ],
)
def test_a_wider_column_takes_narrower_values(catalog: Catalog, theirs: IcebergType, ours: IcebergType) -> None:
    load_or_create_table(catalog, NAME, schema(column(theirs)), ["id"])
    load_or_create_table(catalog, NAME, schema(column(ours)), ["id"])


@pytest.mark.parametrize(
    ("theirs", "ours", "detail"),
    [
        (IntegerType(), LongType(), 'column "v": got long, expected int, which is narrower.'),
        (StringType(), LongType(), 'column "v": got long, expected string.'),
        (TimestampType(), TimestamptzType(), 'column "v": got timestamptz, expected timestamp.'),
        (DecimalType(10, 3), DecimalType(10, 2), 'column "v": got decimal(10, 2), expected decimal(10, 3).'),
        (
            StructType(NestedField(21, "x", LongType())),
            StructType(NestedField(21, "x", StringType()), NestedField(22, "y", LongType())),
            'column "v.x": got string, expected long; column "v.y": got long, expected none.',
        ),
    ],
)
def test_a_column_that_does_not_fit_is_named(
    catalog: Catalog, theirs: IcebergType, ours: IcebergType, detail: str
) -> None:
    load_or_create_table(catalog, NAME, schema(column(theirs)), ["id"])
    with pytest.raises(InvalidInput, match="does not fit the input") as raised:
        load_or_create_table(catalog, NAME, schema(column(ours)), ["id"])
    assert raised.value.detail == detail


def test_a_column_that_the_table_lacks_is_named(catalog: Catalog) -> None:
    load_or_create_table(catalog, NAME, schema(), ["id"])
    with pytest.raises(InvalidInput) as raised:
        load_or_create_table(catalog, NAME, schema(column(StringType())), ["id"])
    assert raised.value.detail == 'column "v": got string, expected none.'


def test_a_table_may_have_more_columns_unless_they_need_values(catalog: Catalog) -> None:
    more = [column(StringType()), NestedField(21, "w", StringType(), required=True)]
    load_or_create_table(catalog, NAME, schema(more[0]), ["id"])
    load_or_create_table(catalog, NAME, schema(), ["id"])
    other = TableName.parse("shop.strict")
    load_or_create_table(catalog, other, schema(*more), ["id"])
    with pytest.raises(InvalidInput) as raised:
        load_or_create_table(catalog, other, schema(), ["id"])
    assert raised.value.detail == 'column "w": got none, expected a value for every row.'


def test_another_key_than_the_tables_is_refused(catalog: Catalog) -> None:
    both = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "part", LongType(), required=True),
        identifier_field_ids=[1, 2],
    )
    load_or_create_table(catalog, NAME, both, ["part", "id"])
    load_or_create_table(catalog, NAME, both, ["id", "part"])
    with pytest.raises(InvalidInput, match="has a different key") as raised:
        load_or_create_table(catalog, NAME, both, ["id"])
    assert raised.value.detail == "Got key (id), expected the identifier fields (id, part)."


def test_a_table_of_another_format_version_is_refused(catalog: Catalog) -> None:
    with pytest.raises(InvalidInput, match="has an unsupported format version"):
        load_or_create_table(catalog, NAME, schema(), ["id"], {"format-version": "1"})


def test_a_table_has_the_format_version_that_the_sink_asks_for(catalog: Catalog) -> None:
    later, plain = TableName.parse("shop.later"), TableName.parse("shop.plain")
    created = load_or_create_table(catalog, later, schema(), ["id"], format_version=3)
    assert created.format_version == 3
    assert created.metadata.next_row_id == 0  # type: ignore[union-attr]
    for version in (None, 3):
        assert load_or_create_table(catalog, later, schema(), ["id"], format_version=version).format_version == 3
    load_or_create_table(catalog, plain, schema(), ["id"], format_version=2)
    for name, wanted, found in ((later, 2, 3), (plain, 3, 2)):
        with pytest.raises(InvalidInput, match=r"has (another|a later) format version") as raised:
            load_or_create_table(catalog, name, schema(), ["id"], format_version=wanted)
        assert f"It has version {found}" in raised.value.detail


def test_names_of_row_ids_are_reserved_in_format_version_3(catalog: Catalog) -> None:
    columns = schema(column(LongType(), name="_Row_ID"))
    with pytest.raises(InvalidInput, match='"_Row_ID" is reserved'):
        load_or_create_table(catalog, NAME, columns, ["id"], format_version=3)
    assert not catalog.table_exists(NAME.identifier)
    load_or_create_table(catalog, NAME, columns, ["id"])


def test_rows_of_format_version_3_are_adopted_unless_a_column_is_in_the_way(catalog: Catalog) -> None:
    table = load_or_create_table(catalog, NAME, schema(), ["id"], format_version=3)
    check_adoptable(table, NAME, "s")
    with table.update_schema() as update:
        update.add_column("_row_id", LongType())
    with pytest.raises(InvalidInput, match="cannot be adopted") as raised:
        check_adoptable(table, NAME, "s")
    assert '"_row_id"' in raised.value.detail
    with pytest.raises(InvalidInput, match="cannot be compacted") as raised:
        compact(catalog, CompactionScope(NAME), ConversionTools(no_session, SystemClock(), RandomIds()))
    assert '"_row_id"' in raised.value.detail


def test_a_partitioned_table_gets_a_spec_for_deletes_and_keeps_its_own(catalog: Catalog) -> None:
    catalog.create_namespace("shop")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    catalog.create_table(("shop", "orders"), schema(), partition_spec=spec)
    table = load_or_create_table(catalog, TableName.parse("shop.orders"), schema(), ["id"])
    assert unpartitioned_spec_id(table) == 1
    assert table.metadata.default_spec_id == 0
    again = load_or_create_table(catalog, TableName.parse("shop.orders"), schema(), ["id"])
    assert again.metadata_location == table.metadata_location


def test_a_warehouse_that_cannot_be_written_says_so(catalog: Catalog, tmp_path: Path) -> None:
    warehouse = tmp_path / "home" / "warehouse"
    warehouse.chmod(0o555)
    with as_an_ordinary_user(), pytest.raises(TransientError, match="loading table") as raised:
        load_or_create_table(catalog, NAME, schema(), ["id"])
    assert "permission" in raised.value.hint
    warehouse.chmod(0o755)
    load_or_create_table(catalog, NAME, schema(), ["id"])


def create_five(home: Path) -> list[str]:
    """The ids of tables that others create as well."""
    columns = '{"type": "struct", "fields": [{"name": "id", "type": "long"}]}'
    wanted, found = iceberg_schema(columns, ["id"]), []
    for number in range(5):
        catalog = connect_embedded(home / str(number))
        table = load_or_create_table(catalog, TableName.parse("a.b.t"), wanted, ["id"])
        found.append(str(table.metadata.table_uuid))
        catalog.close()
    return found


@pytest.mark.long
def test_processes_that_create_the_same_table_at_once_get_the_same_table(tmp_path: Path) -> None:
    answers = together(*[partial(create_five, tmp_path)] * 3)
    assert len(answers[0]) == 5
    assert answers[0] == answers[1] == answers[2]


def test_columns_are_found_whatever_their_case_and_order(catalog: Catalog) -> None:
    struct = StructType(NestedField(21, "City", StringType()), NestedField(22, "code", LongType()))
    theirs = Schema(
        NestedField(3, "V", struct, required=False),
        NestedField(7, "ID", LongType(), required=True),
        identifier_field_ids=[7],
    )
    load_or_create_table(catalog, NAME, theirs, ["ID"])
    ours = StructType(NestedField(21, "CODE", IntegerType()), NestedField(22, "city", StringType()))
    load_or_create_table(catalog, NAME, schema(column(ours)), ["id"])


def test_a_column_of_a_narrower_type_is_told_from_one_of_another(catalog: Catalog) -> None:
    load_or_create_table(catalog, NAME, schema(column(IntegerType())), ["id"])
    for kind, detail in ((LongType(), "got long, expected int, which is narrower"), (StringType(), "got string")):
        with pytest.raises(InvalidInput) as raised:
            load_or_create_table(catalog, NAME, schema(column(kind)), ["id"])
        assert detail in raised.value.detail


def test_a_table_that_is_partitioned_in_another_way_is_refused(catalog: Catalog) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    other = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
    table = load_or_create_table(catalog, NAME, schema(), ["id"], spec=spec)
    assert load_or_create_table(catalog, NAME, schema(), ["id"], spec=spec).spec() == table.spec()
    assert load_or_create_table(catalog, NAME, schema(), ["id"]).spec() == table.spec()
    with pytest.raises(InvalidInput, match="is partitioned differently") as raised:
        load_or_create_table(catalog, NAME, schema(), ["id"], spec=other)
    assert raised.value.detail == "Got bucket[4] of id, expected identity of id."


def test_a_uuid_is_no_key_of_equality_deletes(catalog: Catalog) -> None:
    table = load_or_create_table(catalog, NAME, schema(column(UUIDType())), ["id"])
    check_found_by_all(table, ["id"])
    with pytest.raises(InvalidInput, match='column "v" cannot be a key with equality deletes'):
        check_found_by_all(table, ["v"])
