from dataclasses import replace

import pytest

from calve.errors import InvalidInput
from calve.metastore.component import Component
from calve.metastore.metastore import Metastore
from calve.metastore.requests import ViewRequests
from calve.metastore.views import ViewId, ViewType, ViewUnit, open_views
from tests.support.readers import duckdb_rows

BIG = ViewUnit(
    storage_plugin="dfs",
    workspace="tmp",
    view_name="big",
    metadata_type=ViewType.VIEW,
    sql="SELECT * FROM orders WHERE amount > 100",
    uses=("orders",),
    workspace_path=("dfs", "tmp"),
    last_modified_time=1,
)


@pytest.fixture
def views(metastore: Metastore) -> Component[ViewUnit]:
    return open_views(metastore)


def test_a_view_is_kept_replaced_and_dropped(views: Component[ViewUnit]) -> None:
    requests, name = ViewRequests(views), ViewId("dfs", "tmp", "big")
    assert requests.view(name) is None
    views.modify().overwrite(BIG).execute()
    assert requests.view(name) == BIG
    changed = replace(BIG, sql="SELECT 1", uses=())
    views.modify().overwrite(changed).execute()
    assert requests.view(name) == changed
    views.modify().delete(name.condition()).execute()
    assert requests.view(name) is None
    assert str(name) == "dfs.tmp.big"


def test_views_are_listed_by_place(views: Component[ViewUnit]) -> None:
    others = [replace(BIG, view_name="all"), replace(BIG, workspace="root"), replace(BIG, storage_plugin="s3")]
    views.modify().overwrite(BIG, *others).execute()
    requests = ViewRequests(views)
    assert [unit.view_name for unit in requests.views("dfs", "tmp")] == ["all", "big"]
    assert len(requests.views("dfs")) == 3
    assert requests.views("hive") == []
    assert len(duckdb_rows(views.see().table.metadata_location)) == 4


def test_a_view_has_names_on_all_levels(views: Component[ViewUnit]) -> None:
    with pytest.raises(InvalidInput, match='partition key "workspace" has no value'):
        views.modify().overwrite(replace(BIG, workspace=None))
