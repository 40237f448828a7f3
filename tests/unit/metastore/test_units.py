from dataclasses import dataclass, replace

import pytest

from calve.errors import InvalidInput, TerminalError
from calve.iceberg.small_tables.declared import DeclaredColumn, ListOf, MapOf, Plain
from calve.metastore import filters as f
from calve.metastore.tables import MetadataType, TableUnit
from calve.metastore.units import Role, UnitLayout, unit_field
from tests.unit.metastore.sample import GENERAL, SEGMENT

TABLES = UnitLayout(TableUnit)


def test_the_columns_of_a_table_follow_from_its_unit_class() -> None:
    columns = {column.name: column for column in TABLES.columns()}
    assert len(columns) == 22
    assert columns["table_name"] == DeclaredColumn("table_name", Plain.TEXT, partition_key=True)
    assert columns["last_modified_time"].kind is Plain.WHOLE
    assert columns["locations"].kind == ListOf(Plain.TEXT)
    assert columns["columns_statistics"].kind == MapOf(Plain.TEXT)
    assert columns["host_affinity"].kind == MapOf(Plain.FRACTION)
    assert TABLES.partition_keys == ("storage_plugin", "workspace", "table_name", "metadata_key")
    assert TABLES.storage_keys == ("storage_plugin", "workspace", "table_name")


def test_a_metadata_type_has_the_columns_of_its_scope() -> None:
    everywhere = {
        *TABLES.partition_keys,
        *("metadata_type", "schema", "columns_statistics", "metadata_statistics"),
        *("last_modified_time", "additional_metadata"),
    }
    own = {
        MetadataType.TABLE: {"owner", "table_type", "location", "interesting_columns", "partition_keys"},
        MetadataType.SEGMENT: {"location", "metadata_identifier", "column", "locations", "partition_values", "path"},
        MetadataType.FILE: {"location", "metadata_identifier", "path"},
        MetadataType.ROW_GROUP: {"location", "metadata_identifier", "path", "row_group_index", "host_affinity"},
        MetadataType.PARTITION: {"metadata_identifier", "column", "locations", "partition_values"},
    }
    for metadata_type, columns in own.items():
        assert set(TABLES.columns_of(metadata_type)) == everywhere | columns


def test_a_unit_with_a_value_out_of_its_scope_is_refused() -> None:
    with pytest.raises(InvalidInput, match='a unit of type SEGMENT has no "owner"') as caught:
        TABLES.to_row(replace(SEGMENT, owner="bob"))
    assert "TABLE" in caught.value.detail


@pytest.mark.parametrize("name", TABLES.partition_keys)
def test_a_partition_key_without_a_value_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f'partition key "{name}" has no value'):
        TABLES.to_row(replace(GENERAL, **{name: None}))


def test_values_of_the_wrong_type_are_refused() -> None:
    for name, value in (
        ("last_modified_time", "yesterday"),
        ("last_modified_time", True),
        ("last_modified_time", 2**63),
        ("interesting_columns", "text"),
        ("interesting_columns", (None,)),
        ("partition_keys", ("a",)),
        ("owner", 3),
        ("owner", "\ud800"),
        ("columns_statistics", {"a": "text"}),
    ):
        with pytest.raises(InvalidInput, match=f'column "{name}" of a TableUnit cannot hold'):
            TABLES.to_row(replace(GENERAL, **{name: value}))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a TableUnit"):
        TABLES.to_row("unit")  # type: ignore[arg-type]


def test_a_row_that_somebody_else_broke_is_named() -> None:
    with pytest.raises(TerminalError, match='column "metadata_type" of a TableUnit cannot be read'):
        TABLES.from_row({"metadata_type": "GALAXY"})


def test_filters_have_to_fit_the_columns() -> None:
    for condition, problem in (
        (f.eq("tablename", "x"), 'TableUnit has no column "tablename"'),
        (f.eq("table_name", 1), 'column "table_name" cannot be compared with 1'),
        (f.lt("last_modified_time", "x"), 'column "last_modified_time" cannot be compared'),
        (f.one_of("locations", ["x"]), 'column "locations" cannot be compared'),
    ):
        with pytest.raises(InvalidInput, match=problem):
            TABLES.check_filter(condition)
    TABLES.check_filter(f.is_null("locations") & f.eq("metadata_type", MetadataType.FILE))


def test_a_delete_that_looks_beyond_partition_keys_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a delete cannot filter by location, path") as caught:
        TABLES.check_delete(f.eq("table_name", "x") & (f.eq("path", "y") | f.is_null("location")))
    assert "metadata_key" in caught.value.detail


def test_classes_that_cannot_be_units_are_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Keyless:
        name: str | None = unit_field()

    @dataclass(frozen=True, kw_only=True)
    class Plainly:
        name: str | None = None

    @dataclass(frozen=True, kw_only=True)
    class Odd:
        name: complex | None = unit_field()

    @dataclass(frozen=True, kw_only=True)
    class NumberKey:
        name: int | None = unit_field(role=Role.PARTITION_KEY)

    for unit, problem in (
        (Keyless, "has no partition key"),
        (Plainly, "is not declared"),
        (Odd, "has an unsupported type"),
        (NumberKey, "has an unsupported type"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            UnitLayout(unit)
