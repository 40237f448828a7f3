"""Names at CREATE: what is refused, and where what is not refused goes."""

from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.schema.creation import iceberg_schema
from calve.model.spec import TableName
from calve.sql.names import quoted_name
from calve.sql.parser import parse
from calve.statements.execute import execute
from tests.integration.servers.test_logins import no_spark
from tests.unit.iceberg.sample import COLUMNS

NAMES_OF_TABLES = ["a b", "a b#c?d%e", "a b%23c", "/", "a/b", "[/x]", "ü", "c:d", "it's", "a\\b"]
ODD = ["a b", "a b#c?d%e", "a b%23c", "../../../x", "..", ".", "a/b", "[/x]", "ü", "c:d", "it's"]


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    found = workplace(tmp_path / "home", no_spark, {})
    do(found, "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded')")
    do(found, "CREATE SOURCE s FROM LOAD GENERATOR orders (ROWS = 1)")
    return found


def do(place: Workplace, text: str) -> None:
    for statement in parse(text):
        execute(place, statement)


def sink(name: str = "s", table: str = "t", namespace: str = "shop", options: str = "") -> str:
    target = f"NAMESPACE {quoted_name(namespace)} TABLE {quoted_name(table)}"
    return f"CREATE SINK {quoted_name(name)} FROM s TO ICEBERG CATALOG lake {target} {options}"


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_leaves_no_file_outside_of_the_home(place: Workplace, tmp_path: Path, name: str) -> None:
    do(place, sink(name, name.replace(".", "") or "t"))
    do(place, f"DROP SINK {quoted_name(name)}")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("bad", ["a\nb", "a\tb", "\u202e", "x" * 300])
@pytest.mark.parametrize("what", ["sink", "table", "namespace"])
def test_what_cannot_be_a_name_is_refused_at_create(place: Workplace, bad: str, what: str) -> None:
    given = {"sink": {"name": bad}, "table": {"table": bad}, "namespace": {"namespace": bad}}[what]
    with pytest.raises(InvalidInput, match=f"the name of a {what}"):
        do(place, sink(**given))


def test_tables_with_odd_names_have_folders_of_their_own_in_the_warehouse(tmp_path: Path) -> None:
    catalog = connect_embedded(tmp_path)
    schema = iceberg_schema(COLUMNS, ["id"])
    names = [TableName((namespace,), table) for namespace in ("shop", "a/b", "a b#c") for table in NAMES_OF_TABLES]
    places = {load_or_create_table(catalog, name, schema, ["id"]).location() for name in names}
    assert len(places) == len(names)
    for location in places:
        folder = Path(location.removeprefix("file://"))
        assert (folder / "metadata").is_dir()
        assert folder.resolve().parent.parent == tmp_path / "warehouse"
    catalog.close()


@pytest.mark.parametrize(
    "state",
    [
        "{home}/warehouse/shop/t",
        "file://{home}/warehouse/shop/t/state",
        "{home}/warehouse/shop/../shop/t/state",
        "{home}/warehouse",
        "{link}/shop/t/state",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_state_location_and_a_table_are_never_in_one_folder(
    place: Workplace, tmp_path: Path, state: str, *, exists: bool
) -> None:
    (tmp_path / "link").symlink_to(place.home / "warehouse")
    if exists:
        catalog = connect_embedded(place.home)
        load_or_create_table(catalog, TableName.parse("shop.t"), iceberg_schema(COLUMNS, ["id"]), ["id"])
        catalog.close()
    location = state.format(home=place.home, link=tmp_path / "link")
    with pytest.raises(InvalidInput, match="the state location and the table's location overlap"):
        do(place, sink(options=f"WITH (STATE LOCATION = '{location}')"))


def test_a_state_location_beside_the_table_is_fine(place: Workplace) -> None:
    do(place, sink(options=f"WITH (STATE LOCATION = '{place.home}/warehouse/shop/t2')"))
