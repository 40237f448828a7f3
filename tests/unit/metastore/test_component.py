from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from calve.errors import CommitConflict, InvalidInput, TransientError
from calve.iceberg.small_tables.partition_files import TableVersion
from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.config import ComponentConfig
from calve.metastore.metastore import Metastore
from calve.metastore.modify import Modify, execute_together
from calve.metastore.statistics import ColumnStatistics, Statistic, StatisticKind, StatisticsType
from calve.metastore.tables import MetadataType, TableUnit, open_tables
from calve.metastore.units import Role, unit_field
from calve.metastore.views import ViewType, ViewUnit, open_views
from tests.support.readers import duckdb_rows
from tests.unit.metastore.sample import (
    GENERAL,
    NATION,
    SEGMENT,
    VERSIONS_MAX,
    config_at,
    files_below,
    metastore_at,
    part,
    segment,
)

Tables = Component[TableUnit]


def keys(tables: Tables, *types: MetadataType) -> list[str]:
    return sorted(unit.metadata_key or "" for unit in tables.read(*types))


# ---- version and properties


def test_the_version_is_zero_and_changes_with_every_modification(tables: Tables) -> None:
    assert tables.metadata().version == 0
    first = tables.modify().overwrite(GENERAL).execute()
    second = tables.modify().overwrite(GENERAL).execute()
    assert 0 < first < second == tables.metadata().version


def test_a_modification_that_changes_nothing_leaves_the_version(tables: Tables) -> None:
    assert tables.modify().execute() == 0
    assert tables.modify().overwrite().execute() == 0
    assert tables.modify().delete(f.eq("table_name", "absent")).execute() == 0
    assert tables.purge() == 0
    assert tables.metadata().version == 0


def test_a_component_has_the_common_properties_and_its_own_which_win(tmp_path: Path) -> None:
    with metastore_at(tmp_path / "none") as none:
        assert dict(open_tables(none).metadata().properties) == {}
    common, own = {"read.split.target-size": "10", "commit.retry.num-retries": "2"}, {"read.split.target-size": "100"}
    with metastore_at(tmp_path / "both", common=common, tables=own) as both:
        assert dict(open_tables(both).metadata().properties) == {**common, **own}
        assert dict(open_views(both).metadata().properties) == common


def test_properties_follow_the_configuration_when_a_component_is_opened(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common={"read.split.target-size": "10", "commit.retry.num-retries": "2"}) as before:
        open_tables(before).modify().overwrite(GENERAL).execute()
    now = {"read.split.target-size": "100", VERSIONS_MAX: "5"}
    with metastore_at(tmp_path, common={"read.split.target-size": "100"}, tables={VERSIONS_MAX: "5"}) as after:
        found = open_tables(after).metadata()
        assert dict(found.properties) == now
        assert found.version == 1
        assert open_tables(after).read() == [GENERAL]
    with metastore_at(tmp_path) as last:
        assert dict(open_tables(last).metadata().properties) == {}


def test_a_component_that_is_in_step_is_opened_without_a_commit(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common={VERSIONS_MAX: "5"}) as first:
        open_tables(first).metadata()
    metadata = files_below(tmp_path / "metastore/tables/metadata")
    with metastore_at(tmp_path, common={VERSIONS_MAX: "5"}) as second:
        open_tables(second).metadata()
    assert files_below(tmp_path / "metastore/tables/metadata") == metadata


# ---- write and read


def test_every_kind_of_field_comes_back_as_it_was_written(tables: Tables) -> None:
    unit = TableUnit(
        storage_plugin="dfs",
        workspace="tmp",
        table_name="nation",
        metadata_key="dir0",
        metadata_type=MetadataType.ROW_GROUP,
        row_group_index=1,
        last_modified_time=2**62,
        host_affinity={"a": 0.5, "b": 1.0},
        columns_statistics={"n": ColumnStatistics(StatisticsType.WHOLE, nulls=0, values=3, least=1, greatest=9)},
        metadata_statistics=(Statistic(StatisticKind.ROWS, 3),),
        schema='{"columns": []}',
        path="/tmp/nation/0.parquet",  # noqa: S108
    )
    other = replace(SEGMENT, metadata_key="dir0", locations=("a", "b", "c"), partition_values=("x",))
    tables.modify().overwrite(unit, other).execute()
    assert tables.read(where=NATION.condition()) == [unit, other]


@pytest.mark.parametrize(("value", "name"), [((), "interesting_columns"), ({}, "partition_keys"), ("", "owner")])
def test_nothing_and_empty_are_two_things(tables: Tables, value: object, name: str) -> None:
    with_value = replace(GENERAL, table_name="with", **{name: value})  # type: ignore[arg-type]
    without = replace(GENERAL, table_name="without", **{name: None})
    tables.modify().overwrite(with_value, without).execute()
    assert getattr(tables.read(where=f.eq("table_name", "with"))[0], name) == value
    assert getattr(tables.read(where=f.eq("table_name", "without"))[0], name) is None
    assert [u.table_name for u in tables.read(where=f.is_null(name))] == ["without"]


def test_chosen_columns_come_alone(tables: Tables) -> None:
    tables.modify().overwrite(GENERAL).execute()
    found = tables.read(where=NATION.condition() & f.eq("owner", "bob"), columns=["table_name", "metadata_key"])
    assert found == [TableUnit(table_name="nation", metadata_key="GENERAL_INFO")]
    with pytest.raises(InvalidInput, match='TableUnit has no column "owner_name"'):
        tables.read(columns=["owner_name"])


def test_nothing_is_found_where_nothing_is(tables: Tables) -> None:
    assert tables.read(where=f.eq("storage_plugin", "dfs"), columns=["table_name"]) == []
    tables.modify().overwrite(GENERAL).execute()
    assert tables.read(MetadataType.FILE) == []
    assert tables.read(where=f.eq("storage_plugin", "s3")) == []


def test_units_of_one_type_are_read_or_of_several_or_all(tables: Tables) -> None:
    file = part(MetadataType.FILE, "0.parquet")
    tables.modify().overwrite(GENERAL, SEGMENT, file).execute()
    assert tables.read(MetadataType.FILE) == [file]
    assert len(tables.read(MetadataType.FILE, MetadataType.TABLE)) == 2
    assert len(tables.read()) == 3


def test_nulls_of_a_column_match_unequal_and_not_in(tables: Tables) -> None:
    units = [
        replace(GENERAL, table_name=name, owner=owner) for name, owner in (("a", "bob"), ("b", "eve"), ("c", None))
    ]
    tables.modify().overwrite(*units).execute()

    def names(condition: f.Filter) -> list[str]:
        return sorted(unit.table_name or "" for unit in tables.read(where=condition))

    assert names(f.ne("owner", "bob")) == ["b", "c"]
    assert names(f.none_of("owner", ["bob"])) == ["b", "c"]
    assert names(f.none_of("owner", ["bob", "eve"])) == ["c"]
    assert names(~f.eq("owner", "bob")) == ["b", "c"]
    assert names(f.eq("owner", "bob")) == ["a"]


def test_another_engine_reads_what_was_written(tables: Tables) -> None:
    general = replace(GENERAL, partition_keys={"dir0": "x"})
    tables.modify().overwrite(general, SEGMENT).execute()
    tables.modify().overwrite(segment("dir1")).delete(f.eq("metadata_key", "DEFAULT_SEGMENT")).execute()
    rows = duckdb_rows(tables.see().table.metadata_location)
    assert {row["metadata_key"] for row in rows} == {"GENERAL_INFO", "dir1"}
    (found,) = [row for row in rows if row["metadata_key"] == "GENERAL_INFO"]
    assert found["interesting_columns"] == ["n_nationkey"]
    assert dict(found["partition_keys"]) == {"dir0": "x"}
    assert list(rows[0]) == list(tables.layout.names)


# ---- overwrite, delete, purge


def test_an_overwrite_replaces_a_partition_whole(tables: Tables) -> None:
    tables.modify().overwrite(SEGMENT, part(MetadataType.FILE, "0.parquet"), GENERAL).execute()
    tables.modify().overwrite(part(MetadataType.FILE, "1.parquet")).execute()
    assert [u.metadata_identifier for u in tables.read(MetadataType.FILE, MetadataType.SEGMENT)] == ["1.parquet"]
    assert tables.read(MetadataType.TABLE) == [GENERAL]


def test_a_delete_takes_the_partitions_that_match(tables: Tables) -> None:
    tables.modify().overwrite(segment("dir0"), segment("dir1")).execute()
    tables.modify().delete(NATION.condition() & f.eq("metadata_key", "dir0")).execute()
    assert keys(tables) == ["dir1"]


def test_operations_act_in_their_order_and_make_one_snapshot(tables: Tables) -> None:
    dir0, dir1, dir2 = (segment(key) for key in ("dir0", "dir1", "dir2"))
    tables.modify().overwrite(dir0, dir1).execute()
    at_dir0 = f.eq("metadata_key", "dir0")
    assert tables.modify().delete(at_dir0).overwrite(replace(dir1, path="/new")).execute() == 2
    assert {(u.metadata_key, u.path) for u in tables.read()} == {("dir1", "/new")}
    tables.modify().overwrite(dir0, dir2).delete(at_dir0).execute()
    assert keys(tables) == ["dir1", "dir2"]
    tables.modify().delete(f.all_of()).overwrite(dir0).overwrite(replace(dir0, path="/last")).execute()
    assert [(u.metadata_key, u.path) for u in tables.read()] == [("dir0", "/last")]
    assert tables.metadata().version == 4
    assert len(tables.see().table.metadata.snapshots) == 4


def test_units_of_one_overwrite_share_their_partition_and_those_of_two_do_not(tables: Tables) -> None:
    one, two = part(MetadataType.FILE, "1"), part(MetadataType.FILE, "2")
    tables.modify().overwrite(one, two).execute()
    assert tables.read() == [one, two]
    tables.modify().overwrite(one).overwrite(two).execute()
    assert tables.read() == [two]


def test_a_purge_takes_everything_and_keeps_history(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL, SEGMENT).execute()
    data = files_below(tmp_path, "*.parquet")
    assert tables.purge() == 2
    assert tables.read() == []
    assert files_below(tmp_path, "*.parquet") == data
    table = tables.see().table
    before, after = table.metadata.snapshots
    assert after.summary is not None
    assert (after.summary.operation.value, after.summary["total-records"]) == ("delete", "0")
    assert len(duckdb_rows(table.metadata_location, snapshot_id=before.snapshot_id)) == 2
    tables.modify().overwrite(GENERAL).execute()
    assert tables.read() == [GENERAL]


def test_what_is_refused_changes_nothing(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL).execute()
    files = files_below(tmp_path, "*.parquet")
    refused: list[Callable[[], object]] = [
        lambda: tables.modify().overwrite(SEGMENT).delete(f.eq("path", "x")).execute(),
        lambda: tables.modify().overwrite(SEGMENT, replace(SEGMENT, workspace=None)).execute(),
        lambda: tables.modify().overwrite(replace(SEGMENT, table_name="../nation")).execute(),
    ]
    for attempt in refused:
        with pytest.raises(InvalidInput):
            attempt()
    assert tables.read() == [GENERAL]
    assert files_below(tmp_path, "*.parquet") == files


# ---- concurrency


def test_a_version_that_is_gone_is_a_conflict_and_nothing_is_done(tables: Tables, tmp_path: Path) -> None:
    version = tables.modify().overwrite(GENERAL).execute()
    tables.modify().overwrite(SEGMENT).execute()
    files = files_below(tmp_path)
    with pytest.raises(CommitConflict, match='component "tables" was changed by another writer') as caught:
        tables.modify().overwrite(segment("late")).expecting(version).execute()
    assert caught.value.detail == "Got version 2, expected 1."
    assert files_below(tmp_path) == files
    assert tables.modify().overwrite(segment("in time")).expecting(2).execute() == 3


def test_two_writers_who_saw_the_same_both_succeed(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one, metastore_at(tmp_path) as other:
        mine, theirs = open_tables(one), open_tables(other)
        mine.modify().overwrite(GENERAL).execute()
        stale = theirs.see()
        mine.modify().overwrite(segment("dir0")).execute()
        theirs.see = _first(stale, theirs.see)  # type: ignore[method-assign]
        assert theirs.modify().overwrite(segment("dir1")).execute() == 3
        assert keys(mine) == ["GENERAL_INFO", "dir0", "dir1"]


def _first(seen: TableVersion, then: Callable[[], TableVersion]) -> Callable[[], TableVersion]:
    """What was seen before, once; then what there is."""
    answers = [seen]
    return lambda: answers.pop() if answers else then()


def test_a_reader_whose_files_expire_reads_the_newest(tmp_path: Path) -> None:
    common = {"write.metadata.delete-after-commit.enabled": "true", VERSIONS_MAX: "1"}
    with metastore_at(tmp_path, common=common) as one, metastore_at(tmp_path, common=common) as other:
        writer, reader = open_tables(one), open_tables(other)
        writer.modify().overwrite(SEGMENT).execute()
        stale = reader.see()
        writer.modify().overwrite(replace(SEGMENT, path="/new")).execute()
        reader.see = _first(stale, reader.see)  # type: ignore[method-assign]
        assert [u.path for u in reader.read()] == ["/new"]


def test_a_file_that_is_lost_is_an_error_and_no_empty_answer(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        open_tables(one).modify().overwrite(SEGMENT).execute()
    (file,) = files_below(tmp_path, "*.parquet")
    file.unlink()
    with metastore_at(tmp_path) as other, pytest.raises(TransientError, match='reading component "tables" failed'):
        open_tables(other).read()


def test_several_components_change_together_or_not_at_all(metastore: Metastore, tables: Tables) -> None:
    views = open_views(metastore)
    view = ViewUnit(storage_plugin="dfs", workspace="tmp", view_name="v", metadata_type=ViewType.VIEW, sql="SELECT 1")
    seen = views.see()
    both: list[Modify[Any]] = [tables.modify().overwrite(GENERAL), views.modify().overwrite(view)]
    assert execute_together(both) == [1, 1]
    with pytest.raises(CommitConflict):
        execute_together([tables.modify().overwrite(SEGMENT), views.modify().delete(f.all_of()).expecting(seen)])
    with pytest.raises(CommitConflict):
        views.modify().delete(f.eq("view_name", "absent")).expecting(seen).execute()
    with pytest.raises(CommitConflict):
        execute_together([tables.modify().overwrite(SEGMENT)], unchanged=[seen])
    assert tables.read() == [GENERAL]
    assert views.read() == [view]
    assert execute_together([tables.modify().overwrite(SEGMENT)], unchanged=[views.see()]) == [2]


# ---- names


class SameId:
    """Always the same id."""

    def new_id(self) -> str:
        return "00000000-0000-4000-8000-000000000000"

    def jitter(self) -> float:
        return 1.0


def test_a_file_name_that_is_taken_fails_the_operation(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        open_tables(one).modify().overwrite(GENERAL).execute()
        folder = tmp_path / "metastore/tables/dfs/tmp/nation"
        (folder / f"{SameId().new_id()}.parquet").write_bytes(b"somebody's")
        before = files_below(tmp_path / "metastore/tables")
    with metastore_at(tmp_path, ids=SameId()) as two:
        with pytest.raises(TransientError, match="the name of a new file was already taken"):
            open_tables(two).modify().overwrite(SEGMENT).execute()
        assert open_tables(two).read() == [GENERAL]
    assert files_below(tmp_path / "metastore/tables") == before


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("/tmp/nation", "tmp/nation"),  # noqa: S108
        ("a/b/c", "a/b/c"),
        ("//a///b//", "a/b"),
        ("a b", "a b"),
        ("what?#%", "what%3F%23%25"),
        ("tab\there", "tab%09here"),
        ("...", "..."),
        ("größe", "größe"),
    ],
)
def test_nested_and_odd_names_are_folders_below_the_component(tmp_path: Path, name: str, folder: str) -> None:
    unit = replace(GENERAL, table_name=name)
    with metastore_at(tmp_path) as one:
        open_tables(one).modify().overwrite(unit).execute()
    (file,) = files_below(tmp_path, "*.parquet")
    assert file.parent == tmp_path / "metastore/tables/dfs/tmp" / folder
    with metastore_at(tmp_path) as other:
        assert open_tables(other).read(where=f.eq("table_name", name)) == [unit]
        assert len(duckdb_rows(open_tables(other).see().table.metadata_location)) == 1


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/..", "a/./b", "."])
def test_a_name_that_leads_out_of_the_component_is_refused(tables: Tables, name: str) -> None:
    for key in ("storage_plugin", "workspace", "table_name"):
        with pytest.raises(InvalidInput, match="cannot name a folder of the metastore"):
            tables.modify().overwrite(replace(GENERAL, **{key: name}))  # type: ignore[arg-type]


def test_a_name_that_no_folder_can_have_is_refused(tables: Tables) -> None:
    with pytest.raises(InvalidInput, match="too long for a folder name"):
        tables.modify().overwrite(replace(GENERAL, table_name="x" * 300))


def test_locations_of_the_configuration_stay_below_the_base_too(tmp_path: Path) -> None:
    config = config_at(tmp_path)
    with pytest.raises(InvalidInput, match="cannot name a folder"):
        Metastore(replace(config, relative_path="../elsewhere"))
    with pytest.raises(InvalidInput, match="cannot name a folder"):
        open_tables(Metastore(replace(config, components={"tables": ComponentConfig("../tables")})))


def test_components_have_folders_of_their_own(tmp_path: Path) -> None:
    for location in ("tables", "tables/inner", "/", "/tables/"):
        places = {"tables": ComponentConfig("tables"), "views": ComponentConfig(location)}
        with pytest.raises(InvalidInput, match="is in the folder of component"):
            Metastore(replace(config_at(tmp_path), components=places))
    apart = {"tables": ComponentConfig("tables"), "views": ComponentConfig("tables2")}
    Metastore(replace(config_at(tmp_path), components=apart))


def test_a_metastore_in_a_folder_with_an_odd_name_works(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c?d%20é"
    with metastore_at(folder) as one:
        open_tables(one).modify().overwrite(GENERAL).execute()
        assert open_tables(one).read() == [GENERAL]
        assert files_below(folder / "metastore/tables/dfs/tmp/nation")


# ---- the shape of a component


@dataclass(frozen=True, kw_only=True)
class Grown:
    storage_plugin: str | None = unit_field(role=Role.STORAGE_KEY)
    workspace: str | None = unit_field(role=Role.STORAGE_KEY)
    view_name: str | None = unit_field(role=Role.STORAGE_KEY)
    sql: str | None = unit_field()


@dataclass(frozen=True, kw_only=True)
class More(Grown):
    labels: tuple[str, ...] | None = unit_field()
    cost: float | None = unit_field()


def test_columns_that_a_newer_calve_has_are_added_and_an_older_one_refuses(tmp_path: Path) -> None:
    old = Grown(storage_plugin="a", workspace="b", view_name="c", sql="SELECT 1")
    with metastore_at(tmp_path) as before:
        before.component("views", Grown).modify().overwrite(old).execute()
    with metastore_at(tmp_path) as after:
        views = after.component("views", More)
        assert views.read() == [More(storage_plugin="a", workspace="b", view_name="c", sql="SELECT 1")]
        new = More(storage_plugin="a", workspace="b", view_name="d", labels=("x",), cost=1.5)
        views.modify().overwrite(new).execute()
        assert views.read(where=f.eq("view_name", "d")) == [new]
        assert len(duckdb_rows(views.see().table.metadata_location)) == 2
    with metastore_at(tmp_path) as again, pytest.raises(InvalidInput, match="was written by a newer calve"):
        again.component("views", Grown).read()


def test_a_component_of_another_class_or_place_is_refused(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        open_tables(one).metadata()
        with pytest.raises(InvalidInput, match="units of another class"):
            one.component("tables", ViewUnit)
    moved = config_at(tmp_path)
    moved = replace(moved, components={"tables": ComponentConfig("moved")})
    with (
        Metastore(moved) as other,
        pytest.raises(InvalidInput, match=r'table "metastore\.tables" is at another location'),
    ):
        open_tables(other).metadata()
    with metastore_at(tmp_path) as third, pytest.raises(InvalidInput, match='component "unheard" has no location'):
        third.component("unheard", ViewUnit)
