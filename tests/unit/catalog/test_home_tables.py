"""The catalog of a home folder, asked without Iceberg."""

from pathlib import Path

from calve.catalog.connect import connect_embedded
from calve.catalog.home_tables import is_in_order, is_new, table_names
from calve.model.spec import TableName
from tests.unit.keylookup.test_random import SCHEMA


def test_a_table_is_new_until_the_catalog_has_it(tmp_path: Path) -> None:
    table, nested = TableName.parse("shop.orders"), TableName.parse("a.b.orders")
    assert is_in_order(tmp_path)
    assert is_new(tmp_path, table)
    assert table_names(tmp_path) == []
    catalog = connect_embedded(tmp_path)
    assert is_in_order(tmp_path)
    assert is_new(tmp_path, table)
    for one in (table, nested):
        catalog.create_namespace_if_not_exists(one.namespace)
        catalog.create_table((*one.namespace, one.name), SCHEMA)
        assert not is_new(tmp_path, one)
    assert is_new(tmp_path, TableName.parse("b.orders"))
    listed = [name for one in (table, nested) for name in catalog.list_tables(one.namespace)]
    assert table_names(tmp_path) == sorted((".".join(name[:-1]), name[-1]) for name in listed)
    assert len(listed) == 2


def test_a_damaged_catalog_is_not_in_order_and_nothing_is_known_of_its_tables(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is not a database" * 100)
    assert not is_in_order(tmp_path)
    assert table_names(tmp_path) is None
    assert not is_new(tmp_path, TableName.parse("shop.orders"))
