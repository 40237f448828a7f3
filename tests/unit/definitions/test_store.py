"""The definitions of a home folder in its metastore."""

from dataclasses import replace
from pathlib import Path

import pytest

from calve.definitions.in_metastore import MetastoreDefinitions
from calve.definitions.objects import ConcurrentEdit, Definition, SinkState, read_statement
from calve.definitions.units import DefinitionUnit
from calve.errors import InvalidInput
from calve.metastore.config import DISTRIBUTION, MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.requests import ViewRequests
from calve.metastore.views import ViewId, open_views
from tests.support.readers import duckdb_rows
from tests.support.threads import in_threads

SECRET = Definition("s-1", 1, read_statement("CREATE SECRET pw FROM FILE 'vault:s-1'"), owner="c-1")
CONNECTION = Definition(
    "c-1",
    1,
    read_statement(
        "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'rest', URL = 'http://x', CREDENTIAL = SECRET pw)"
    ),
    uses=("s-1",),
)
SOURCE = Definition("o-1", 1, read_statement("CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100)"))
VIEW = Definition("v-1", 3, read_statement("CREATE VIEW big AS SELECT * FROM orders WHERE amount > 1"), uses=("o-1",))
SINK = Definition(
    "k-1",
    7,
    read_statement("CREATE SINK out FROM big TO ICEBERG CATALOG lake NAMESPACE shop TABLE big"),
    uses=("v-1", "c-1"),
    standing=SinkState(paused=True, accepted_snapshot=12, generation=2),
)

ALL = [SECRET, CONNECTION, SOURCE, VIEW, SINK]


def store_at(home: Path) -> MetastoreDefinitions:
    return MetastoreDefinitions(home, {})


def component_files(home: Path) -> set[str]:
    return {path.relative_to(home / "metastore").parts[0] for path in home.rglob("*.parquet")}


def test_definitions_come_back_in_the_order_of_their_creation(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.all() == []
    store.create([SECRET, CONNECTION])
    store.create([SOURCE])
    store.create([VIEW, SINK])
    assert store.all() == store_at(tmp_path).all() == ALL
    assert component_files(tmp_path) == {"secrets", "connections", "sources", "views", "sinks"}


def test_a_change_of_several_kinds_is_one_change(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.create(ALL)
    with pytest.raises(InvalidInput, match='source "orders" already exists'):
        store.create([replace(SECRET, uid="s-2", statement=read_statement("CREATE SECRET b FROM ENV 'B'")), SOURCE])
    with pytest.raises(ConcurrentEdit):
        store.drop([SINK, replace(VIEW, version=2)])
    assert store.all() == ALL
    store.drop([SINK, VIEW])
    assert store.all() == [SECRET, CONNECTION, SOURCE]


def test_sources_and_views_share_their_names_and_others_do_not(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.create([SOURCE])
    view = replace(VIEW, statement=read_statement("CREATE VIEW Orders AS SELECT 1 AS x FROM orders"))
    with pytest.raises(InvalidInput, match='source "orders" already exists'):
        store.create([view])
    store.create([replace(SECRET, statement=read_statement("CREATE SECRET orders FROM ENV 'X'"))])
    with pytest.raises(InvalidInput, match='view "big" already exists'):
        store.create([VIEW, replace(VIEW, uid="v-2")])


def test_a_definition_that_somebody_else_changed_is_not_overwritten(tmp_path: Path) -> None:
    mine, theirs = store_at(tmp_path), store_at(tmp_path)
    mine.create(ALL)
    following = theirs.replace(replace(SINK, standing=SinkState()))
    assert following.version == 8
    for attempt in (lambda: mine.replace(SINK), lambda: mine.drop([SINK])):
        with pytest.raises(ConcurrentEdit, match='another process changed sink "out"'):
            attempt()
    assert mine.all() == [*ALL[:-1], following]


def test_a_changed_definition_keeps_its_place_and_the_revision_differs(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    revisions = [store.revision]
    store.create(ALL)
    revisions.append(store.revision)
    changed = replace(VIEW, statement=read_statement("CREATE VIEW big AS SELECT id FROM orders"))
    following = store.replace(changed)
    revisions.append(store.revision)
    assert store.all() == [SECRET, CONNECTION, SOURCE, following, SINK]
    store.drop([SINK])
    revisions.append(store.revision)
    assert len(set(revisions)) == len(revisions)
    assert store_at(tmp_path).revision == revisions[-1]


def test_edits_of_many_at_once_are_all_there(tmp_path: Path) -> None:
    store_at(tmp_path).all()

    def create(number: int) -> None:
        store = store_at(tmp_path)
        for turn in range(3):
            name = f"s{number}_{turn}"
            statement = read_statement(f"CREATE SECRET {name} FROM ENV 'X'")
            source = read_statement(f"CREATE SOURCE {name} FROM LOAD GENERATOR orders")
            store.create([Definition(f"a{name}", 1, statement), Definition(f"b{name}", 1, source)])

    in_threads(create, range(4))
    assert len({definition.uid for definition in store_at(tmp_path).all()}) == 24


def test_a_secret_with_its_text_is_refused_and_written_nowhere(tmp_path: Path) -> None:
    literal = replace(SECRET, statement=read_statement("CREATE SECRET pw AS 'hunter2'"))
    store = store_at(tmp_path)
    with pytest.raises(InvalidInput, match='the text of secret "pw" cannot be stored here'):
        store.create([literal])
    assert store.all() == []
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_another_engine_and_the_metastore_itself_read_the_definitions(tmp_path: Path) -> None:
    store_at(tmp_path).create(ALL)
    with Metastore(MetastoreConfig.load(tmp_path, {})) as metastore:
        sinks = metastore.component("sinks", DefinitionUnit)
        (row,) = duckdb_rows(sinks.see().table.metadata_location, ["uid", "name", "sql", "uses"])
        assert row == {"uid": "k-1", "name": "out", "sql": SINK.statement.to_sql(), "uses": ["v-1", "c-1"]}
        view = ViewRequests(open_views(metastore)).view(ViewId("calve", "default", "big"))
        assert view is not None
        assert (view.uid, view.version, view.sql) == ("v-1", 3, VIEW.statement.to_sql())


def test_definitions_stay_in_the_home_when_the_metastore_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / DISTRIBUTION).write_text(
        'calve.metastore.iceberg.location.base_path = "s3://bucket"\ncalve.metastore.catalog.type = "rest"\n'
    )
    store_at(tmp_path).create(ALL)
    assert "sinks" in component_files(tmp_path)
