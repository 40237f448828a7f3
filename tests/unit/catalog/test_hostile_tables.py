"""Tables, and answers of catalogs, that name code to run or a store to send credentials to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, hive
from pyiceberg.table.snapshots import MetadataLogEntry

from calve.catalog.connect import (
    STORE_IO,
    _catalog_class,
    connect_embedded,
    location_of,
    open_catalog,
    sqlite_uri,
)
from calve.catalog.discard import discard_old_metadata
from calve.catalog.guarded import Guarded, local_files, locations_of, names_code
from calve.catalog.rest import RestClient
from calve.errors import InvalidInput
from calve.model.spec import WriteOptions
from calve.storage.filesystems import APART, NO_LOCAL_FILES, StoreIO, filesystem_of, with_place_apart
from tests.support import traps
from tests.support.readers import duckdb_rows
from tests.support.servers.tables import GlueTables, RestTables
from tests.unit.iceberg.sample import NAME, Sample

Opened = Callable[[], Catalog]


@pytest.fixture(autouse=True)
def nothing_sprung() -> Iterator[None]:
    traps.SPRUNG.clear()
    yield
    assert traps.SPRUNG == []


@pytest.fixture(params=["embedded", "sql", "rest", "glue"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """A new client of one catalog of each type."""
    with ExitStack() as ending:
        warehouse = location_of(tmp_path / "warehouse")
        (tmp_path / "warehouse").mkdir()

        def client() -> Catalog:
            match request.param:
                case "embedded":
                    found = connect_embedded(tmp_path)
                case "sql":  # as in PostgreSQL: not the embedded catalog
                    settings = {"uri": sqlite_uri(tmp_path / "catalog.db"), "warehouse": warehouse, **STORE_IO}
                    found = _catalog_class("sql")("calve", **settings)
                case "rest":
                    found = open_catalog({"type": "rest", "uri": rest.uri})
                case _:
                    found = open_catalog(
                        {"type": "glue", "glue.endpoint": glue.uri, "warehouse": warehouse, **GLUE_LOGIN}
                    )
            ending.callback(found.close)
            return found

        if request.param == "rest":
            Sample(tmp_path).close()  # the server knows no CREATE
            rest = RestTables(tmp_path)
            ending.callback(rest.stop)
        if request.param == "glue":
            glue = GlueTables()
            ending.callback(glue.stop)
        yield client


GLUE_LOGIN = {"client.region": "r", "client.access-key-id": "k", "client.secret-access-key": "s"}


def test_a_table_property_names_neither_code_nor_a_store(opened: Opened, tmp_path: Path) -> None:
    sample = Sample(tmp_path, opened=opened())
    sample.commit({1: "a", 2: "b"})
    sample.table.transaction().set_properties(traps.PROPERTIES).commit_transaction()

    again = Sample(tmp_path, opened=opened(), batches=1)
    again.commit({1: "A", 3: "c"}, deletes=[1])
    table = again.table
    assert not isinstance(table.io, traps.HostileIO)
    assert not {"s3.endpoint", "s3.access-key-id", "gcs.service.host"} & table.io.properties.keys()
    target = again.iceberg.write_target(WriteOptions())
    assert "elsewhere" not in str(target.io_properties)
    assert locations_of(table).new_data_location("x") == f"{table.location()}/data/x"
    assert {row["id"]: row["v"] for row in duckdb_rows(table.metadata_location)} == {1: "A", 2: "b", 3: "c"}
    assert table.properties.items() >= traps.PROPERTIES.items(), "they are the owner's, and stay"


def test_a_table_of_hive_names_neither_code_nor_a_store(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.table.transaction().set_properties(traps.PROPERTIES).commit_transaction()
    known = {"table_type": "ICEBERG", "metadata_location": sample.table.metadata_location}
    catalog = open_catalog({"type": "hive", "uri": "thrift://localhost:1", "warehouse": location_of(tmp_path)})
    assert isinstance(catalog, hive.HiveCatalog)
    row = vars(hive)["HiveTable"](dbName="shop", tableName="orders", parameters=known)
    table = catalog._convert_hive_into_iceberg(row)
    staged = catalog._update_and_stage_table(table, table.name(), (), ())
    assert isinstance(table.io, StoreIO)
    assert isinstance(staged.io, StoreIO)
    assert "elsewhere" not in str(table.io.properties)
    sample.close()


@pytest.mark.parametrize("kind", ["sql", "glue", "hive"])
def test_every_catalog_with_metadata_files_is_guarded(kind: str) -> None:
    assert issubclass(_catalog_class(kind), Guarded)


def test_a_rest_catalog_names_a_store_but_no_code(tmp_path: Path) -> None:
    Sample(tmp_path).close()
    login = {"type": "custom", "impl": "tests.support.traps.hostile_login"}
    told = {"py-io-impl": traps.PROPERTIES["py-io-impl"], "auth": login, "ssl": {"cabundle": "/theirs"}}
    handed_out = {**traps.PROPERTIES, "s3.endpoint": "http://handed-out", "s3.session-token": "t"}
    server = RestTables(tmp_path, told, handed_out)
    with_login = open_catalog({"type": "rest", "uri": server.uri, "token": "mine"})
    assert isinstance(with_login, RestClient)
    table = with_login.load_table(NAME.identifier)
    assert isinstance(table.io, StoreIO)
    assert table.io.properties["s3.endpoint"] == "http://handed-out"
    assert table.io.properties["s3.session-token"] == "t"
    assert [name for name in table.io.properties if names_code(name)] == ["py-io-impl"]
    assert table.io.properties[NO_LOCAL_FILES] == "false"
    assert "ssl" not in with_login.properties
    with_login.close()
    server.stop()


def test_a_rest_catalog_does_not_open_files_of_this_machine(tmp_path: Path) -> None:
    """By the way that this process has to places with properties of their own."""
    Sample(tmp_path).close()
    told = with_place_apart({NO_LOCAL_FILES: "false"}, "file:///etc", {NO_LOCAL_FILES: "false"})
    server = RestTables(tmp_path, told, told)
    catalog = open_catalog({"type": "rest", "uri": server.uri, "warehouse": "s3://bucket/tables"})
    io = catalog.load_table(NAME.identifier).io
    assert [name for name in io.properties if name.startswith(APART)] == []
    with pytest.raises(InvalidInput, match="a table refers to a file on this machine"):
        io.new_input("file:///etc/hostname").open()
    catalog.close()
    server.stop()


def test_a_rest_catalog_does_not_say_where_the_users_login_goes(tmp_path: Path) -> None:
    server = RestTables(tmp_path, {"oauth2-server-uri": "http://theirs", "token": "theirs"})
    catalog = open_catalog({"type": "rest", "uri": server.uri, "token": "mine", "oauth2-server-uri": "http://mine"})
    assert catalog.properties["oauth2-server-uri"] == "http://mine"
    assert "theirs" not in catalog.properties.values()
    catalog.close()
    server.stop()


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({"type": "rest", "uri": "https://catalog.example"}, True),
        ({"type": "rest", "uri": "https://catalog.example", "warehouse": "prod"}, True),
        ({"type": "rest", "uri": "https://catalog.example", "warehouse": "file:///shared"}, False),
        ({"type": "rest", "uri": "http://127.0.0.1:8181"}, False),
        ({"type": "rest", "uri": "http://localhost:8181", "warehouse": "s3://bucket/tables"}, True),
        ({"type": "sql", "uri": "sqlite:////x/catalog.db"}, False),
        ({"type": "sql", "uri": "postgresql://host/db", "warehouse": "/shared/tables"}, False),
        ({"type": "glue", "warehouse": "s3://bucket"}, True),
        ({"type": "glue", NO_LOCAL_FILES: "false"}, False),
    ],
)
def test_tables_of_a_catalog_elsewhere_have_no_files_on_this_machine(
    properties: dict[str, str], *, refused: bool, tmp_path: Path
) -> None:
    settings = properties | local_files(properties)
    assert (settings[NO_LOCAL_FILES] == "true") is refused
    for location in (f"file://{tmp_path}/x", f"{tmp_path}/x"):
        if refused:
            with pytest.raises(InvalidInput, match="a table refers to a file on this machine"):
                filesystem_of(location, settings)
            with pytest.raises(InvalidInput, match="a table refers to a file on this machine"):
                StoreIO(settings).new_input(location).open()
        else:
            assert filesystem_of(location, settings)[1] == f"{tmp_path}/x"


def test_a_location_of_an_unknown_kind_is_named() -> None:
    with pytest.raises(InvalidInput, match='locations that start with "gopher:" are not supported'):
        filesystem_of("gopher://host/x", {})


def test_nothing_but_the_guard_asks_for_a_location_provider_or_a_file_io() -> None:
    source = Path(__file__).parents[3] / "src" / "calve"
    asking = ("load_location_provider(", ".location_provider()", "load_file_io(")
    found = [
        f"{path.relative_to(source)}: {word}"
        for path in sorted(source.rglob("*.py"))
        for word in asking
        if word in path.read_text().replace("_load_file_io(", "")
    ]
    assert found == []


def test_a_metadata_log_cannot_name_files_to_delete(tmp_path: Path) -> None:
    sample = Sample(tmp_path / "home")
    sample.commit({1: "a"})
    metadata = sample.table.metadata
    head = metadata.current_snapshot()
    assert head is not None
    own, other = f"{metadata.location}/metadata/00000-x.metadata.json", tmp_path / "other.metadata.json"
    Path(own.removeprefix("file://")).touch()
    other.touch()
    outside = f"{metadata.location}/metadata/../../../../../other.metadata.json"
    for location in (own, f"file://{other}", outside, head.manifest_list):
        left = [*metadata.metadata_log, MetadataLogEntry.model_validate({"metadata-file": location, "timestamp-ms": 1})]
        before = sample.table
        before.metadata = metadata.model_copy(update={"metadata_log": left})
        discard_old_metadata(before, metadata)
    assert not Path(own.removeprefix("file://")).exists()
    assert other.exists()
    assert sample.rows() == {1: "a"}
    sample.close()
