import sqlite3
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text

from calve.catalog import embedded
from calve.catalog.connect import _catalog_class, connect_embedded, location_of, open_catalog
from calve.catalog.embedded import EmbeddedCatalog
from calve.catalog.glue import GlueClient
from calve.errors import CommitUnknown, InvalidInput, TransientError
from tests.unit.catalog.rights import as_an_ordinary_user
from tests.unit.iceberg.sample import NAME, Sample


def test_a_home_folder_has_a_database_that_processes_can_share(tmp_path: Path) -> None:
    catalog = connect_embedded(tmp_path / "new" / "home")
    assert isinstance(catalog, EmbeddedCatalog)
    with catalog.engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA busy_timeout")) == 30_000
    assert (tmp_path / "new" / "home" / "warehouse").is_dir()
    catalog.close()


@pytest.mark.parametrize("name", ["a b", "p%20q", "h#sh", "q?m", "ümläut", "it's", "all ü %20#?+&é"])
def test_a_home_may_have_any_name(tmp_path: Path, name: str) -> None:
    sample = Sample(tmp_path / name)
    sample.commit({1: "a", 2: "b"})
    sample.commit({1: "A"}, deletes=[1])
    assert sample.rows() == {1: "A", 2: "b"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    sample.close()


def test_locations_are_uris_unless_a_uri_would_be_cut(tmp_path: Path) -> None:
    assert location_of(tmp_path / "a b%ü") == f"file://{tmp_path}/a b%ü"
    assert location_of(tmp_path / "a#b") == f"{tmp_path}/a#b"


def test_a_sqlite_catalog_by_properties_is_the_embedded_one(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog(properties)
    assert isinstance(catalog, EmbeddedCatalog)
    catalog.close()


def test_properties_that_name_no_catalog_are_refused() -> None:
    with pytest.raises(InvalidInput, match='invalid catalog type "carrier pigeon"') as raised:
        open_catalog({"type": "carrier pigeon", "uri": "x"})
    assert raised.value.detail == "Expected one of: rest, sql, glue, hive."
    with pytest.raises(InvalidInput, match="the catalog's properties are incomplete"):
        open_catalog({"type": "sql"})


def test_a_missing_package_is_named_by_the_extra_of_calve_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "thrift.protocol", None)
    for module in ("calve.catalog.hive", "pyiceberg.catalog.hive"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    _catalog_class.cache_clear()
    with pytest.raises(InvalidInput, match="a package for catalogs of type hive is missing") as raised:
        open_catalog({"type": "hive", "uri": "thrift://127.0.0.1:1"})
    assert raised.value.hint == 'Install it with pip install "calve[hive]".'


def test_another_client_sees_the_same_table(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.commit({1: "a"})
    plain = SqlCatalog("calve", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=location_of(tmp_path / "warehouse"))
    table = plain.load_table(NAME.identifier)
    assert table.metadata == sample.table.metadata
    assert table.metadata_location == sample.table.metadata_location
    table.transaction().set_properties({"owner": "someone"}).commit_transaction()
    assert sample.table.properties["owner"] == "someone"
    sample.commit({2: "b"}, deletes=[2])
    assert sample.rows() == {1: "a", 2: "b"}
    plain.close()
    sample.close()


def test_metadata_is_written_as_pyiceberg_reads_it(tmp_path: Path) -> None:
    sample = Sample(tmp_path, properties={"comment": 'a "quoted" ü\n'})
    for number in range(4):
        sample.commit({number: "x"}, deletes=[number])
    written = sample.table.metadata
    fresh = SqlCatalog("calve", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert fresh.load_table(NAME.identifier).metadata == written
    fresh.close()
    sample.close()


def test_a_commit_to_a_locked_database_is_unknown_and_works_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "BUSY_MS", 10)
    sample = Sample(tmp_path)
    sample.commit({1: "a"})
    proposal = sample.proposal({2: "b"}, deletes=[2])
    other = sqlite3.connect(tmp_path / "catalog.db")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CommitUnknown, match="the response to the commit of batch") as raised:
        sample.iceberg.commit(sample.iceberg.load(), proposal)
    assert raised.value.detail == "OperationalError: database is locked"
    other.rollback()
    other.close()
    sample.iceberg.commit(sample.iceberg.load(), proposal)
    assert sample.rows() == {1: "a", 2: "b"}
    sample.close()


def test_a_home_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with as_an_ordinary_user(), pytest.raises(TransientError, match="opening the catalog") as raised:
        connect_embedded(tmp_path / "home")
    assert "permission" in raised.value.hint
    tmp_path.chmod(0o755)
    connect_embedded(tmp_path / "home").close()


def test_a_sink_stalls_on_a_warehouse_that_cannot_be_written_and_goes_on_later(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.commit({1: "a"})
    proposal = sample.proposal({2: "b"}, deletes=[2])
    metadata = tmp_path / "warehouse" / "shop" / "orders" / "metadata"
    metadata.chmod(0o555)
    state = sample.iceberg.load()
    with as_an_ordinary_user(), pytest.raises(TransientError, match="writing the manifest list") as raised:
        sample.iceberg.commit(state, proposal)
    assert "permission" in raised.value.hint
    metadata.chmod(0o755)
    sample.iceberg.commit(sample.iceberg.load(), proposal)
    assert sample.rows() == {1: "a", 2: "b"}
    sample.close()


def test_a_glue_catalog_uses_the_role_of_its_connection() -> None:
    keys = {"client.region": "r", "client.access-key-id": "k", "client.secret-access-key": "s"}
    plain = open_catalog({"type": "glue", **keys})
    with_role = open_catalog({"type": "glue", **keys, "client.role-arn": "arn:aws:iam::1:role/lake"})
    for catalog, method in ((plain, "explicit"), (with_role, "assume-role")):
        assert isinstance(catalog, GlueClient)
        for client in (catalog, catalog._sends_once):
            assert client.glue._request_signer._credentials.method == method
        assert {type(value) for value in catalog.properties.values()} == {str}, "tables get them, too"
