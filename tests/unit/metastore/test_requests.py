"""Each request, on data that is there and on data that is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from calve.errors import TerminalError
from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.requests import TableRequests, UnitRef
from calve.metastore.tables import GENERAL_INFO, MetadataType, TableId, TableUnit, open_tables
from tests.unit.metastore.sample import GENERAL, NATION, SEGMENT, metastore_at, part

ABSENT = TableId("dfs", "tmp", "absent")
ROOT = "/data/nation"
NATION_TABLE = replace(GENERAL, interesting_columns=("n_name",), partition_keys={"part_int": "dir0"})


def made(kind: MetadataType, key: str, identifier: str, time: int | None = None, **given: object) -> TableUnit:
    base = part(kind, identifier, key)
    return replace(base, last_modified_time=time, **given)  # type: ignore[arg-type]


def file_at(key: str, name: str, time: int) -> TableUnit:
    where = f"{ROOT}/{key}/part_varchar=g"
    return made(MetadataType.FILE, key, f"{key}/part_varchar=g/{name}", time, location=where, path=f"{where}/{name}")


def row_group(key: str, name: str, index: int) -> TableUnit:
    where = f"{ROOT}/{key}/part_varchar=g"
    identifier = f"{key}/part_varchar=g/{name}/{index}"
    return made(MetadataType.ROW_GROUP, key, identifier, location=where, path=f"{where}/{name}", row_group_index=index)


def segment_at(key: str, name: str, time: int) -> TableUnit:
    return made(MetadataType.SEGMENT, key, f"{key}/{name}", time, location=f"{ROOT}/{key}/{name}", column="n_nation")


def partition_of(key: str, name: str, column: str) -> TableUnit:
    return made(MetadataType.PARTITION, key, f"{key}/{name}", locations=(f"{ROOT}/{key}/{name}",), column=column)


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> TableRequests:
    tables = open_tables(metastore_at(tmp_path_factory.mktemp("metastore")))
    fill(tables)
    return TableRequests(tables)


def fill(tables: Component[TableUnit]) -> None:
    tables.modify().overwrite(
        NATION_TABLE,
        replace(GENERAL, table_name="region"),
        segment_at("part_int=3", "d3", 1),
        segment_at("part_int=3", "d4", 2),
        segment_at("part_int=4", "d5", 3),
        partition_of("part_int=3", "d5", "n_nation"),
        partition_of("part_int=4", "d5", "n_nation"),
        partition_of("part_int=4", "d6", "n_region"),
        file_at("part_int=3", "0_0_0.parquet", 1),
        file_at("part_int=3", "0_0_1.parquet", 2),
        file_at("part_int=4", "0_0_0.parquet", 3),
        row_group("part_int=3", "0_0_0.parquet", 1),
        row_group("part_int=3", "0_0_0.parquet", 2),
        row_group("part_int=4", "0_0_0.parquet", 1),
        row_group("part_int=4", "0_0_0.parquet", 2),
    ).execute()


def identifiers(units: list[TableUnit]) -> list[str]:
    return sorted(unit.metadata_identifier or "" for unit in units)


def test_the_standing_of_a_table_that_is_there_and_of_one_that_is_not(requests: TableRequests) -> None:
    known, absent = requests.standing(NATION), requests.standing(ABSENT)
    assert (known.exists, known.last_modified_time, known.version) == (True, 1, 1)
    assert (absent.exists, absent.last_modified_time, absent.table) == (False, None, ABSENT)
    assert not requests.has_changed(known)
    assert not requests.has_changed(absent)


def test_a_table_has_changed_when_its_time_did_or_it_came_or_went(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        tables = open_tables(one)
        requests = TableRequests(tables)
        nothing = requests.standing(NATION)
        tables.modify().overwrite(GENERAL).execute()
        assert requests.has_changed(nothing)
        first = requests.standing(NATION)
        tables.modify().overwrite(replace(GENERAL, table_name="other")).execute()
        assert not requests.has_changed(first)
        tables.modify().overwrite(replace(GENERAL, last_modified_time=2)).execute()
        assert requests.has_changed(first)
        second = requests.standing(NATION)
        tables.purge()
        assert requests.has_changed(second)


def test_tables_are_found_by_filter_and_one_by_name(requests: TableRequests) -> None:
    workspace = f.eq("storage_plugin", "dfs") & f.eq("workspace", "tmp")
    assert sorted(u.table_name or "" for u in requests.tables(workspace)) == ["nation", "region"]
    assert requests.tables(f.eq("workspace", "absent")) == []
    assert len(requests.tables()) == 2
    assert requests.table(NATION) == NATION_TABLE
    assert requests.table(ABSENT) is None


def test_two_units_where_one_is_expected_are_an_error(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        tables = open_tables(one)
        tables.modify().overwrite(GENERAL, GENERAL).execute()
        with pytest.raises(TerminalError, match=r"holds 2 units for dfs\.tmp\.nation"):
            TableRequests(tables).table(NATION)


def test_interesting_columns_and_partition_keys_come_alone(requests: TableRequests) -> None:
    expected = TableUnit(interesting_columns=("n_name",), partition_keys={"part_int": "dir0"})
    assert requests.interesting_columns_and_partition_keys(NATION) == expected
    assert requests.interesting_columns_and_partition_keys(ABSENT) is None


def test_segments_are_found_by_key_by_column_and_by_reference(requests: TableRequests) -> None:
    at = [f"{ROOT}/part_int=3/d3", f"{ROOT}/part_int=3/d4"]
    assert identifiers(requests.segments_by_key(NATION, at, "part_int=3")) == ["part_int=3/d3", "part_int=3/d4"]
    assert requests.segments_by_key(NATION, [f"{ROOT}/part_int=3/d6"], "part_int=3") == []
    assert len(requests.segments_by_column(NATION, at, "n_nation")) == 2
    assert requests.segments_by_column(NATION, at, "n_region") == []
    refs = [UnitRef(MetadataType.SEGMENT, "part_int=3", f"part_int=3/{name}") for name in ("d3", "d4")]
    assert len(requests.segments(NATION, refs)) == 2
    assert requests.segments(NATION, [UnitRef(MetadataType.SEGMENT, "part_int=4", "part_int=4")]) == []


def test_files_are_found_by_path_and_by_reference(requests: TableRequests) -> None:
    key, folder = "part_int=3", f"{ROOT}/part_int=3/part_varchar=g"
    paths = [f"{folder}/0_0_0.parquet", f"{folder}/0_0_1.parquet"]
    assert len(requests.files(NATION, key, paths)) == 2
    assert requests.files(NATION, key, [f"{folder}/0_0_2.parquet"]) == []
    assert requests.file(NATION, key, paths[0]) == file_at(key, "0_0_0.parquet", 1)
    assert requests.file(NATION, key, f"{folder}/0_0_2.parquet") is None
    refs = [
        UnitRef(MetadataType.FILE, "part_int=4", "part_int=4/part_varchar=g/0_0_0.parquet"),
        UnitRef(MetadataType.FILE, "part_int=3", "part_int=3/part_varchar=g/0_0_1.parquet"),
    ]
    assert len(requests.files_by_ref(NATION, refs)) == 2
    assert requests.files_by_ref(NATION, [UnitRef(MetadataType.FILE, "part_int=4", "0_0_3.parquet")]) == []


def test_row_groups_are_found_by_file_and_by_reference(requests: TableRequests) -> None:
    three, four = (f"{ROOT}/{key}/part_varchar=g/0_0_0.parquet" for key in ("part_int=3", "part_int=4"))
    assert len(requests.row_groups(NATION, ["part_int=3"], [three])) == 2
    assert len(requests.row_groups(NATION, ["part_int=3", "part_int=4"], [three, four])) == 4
    assert requests.row_groups(NATION, ["part_int=4"], [three]) == []
    refs = [
        UnitRef(MetadataType.ROW_GROUP, key, f"{key}/part_varchar=g/0_0_0.parquet/1")
        for key in ("part_int=3", "part_int=4")
    ]
    assert [unit.row_group_index for unit in requests.row_groups_by_ref(NATION, refs)] == [1, 1]
    assert requests.row_groups_by_ref(NATION, [UnitRef(MetadataType.ROW_GROUP, "part_int=4", "0/9")]) == []


def test_partitions_are_found_by_column(requests: TableRequests) -> None:
    keys = ["part_int=3", "part_int=4"]
    assert len(requests.partitions(NATION, keys, "n_nation")) == 2
    assert requests.partitions(NATION, keys, "id") == []


def test_units_of_any_type_are_found_by_reference(requests: TableRequests) -> None:
    refs = [
        UnitRef(MetadataType.SEGMENT, "part_int=3", "part_int=3/d3"),
        UnitRef(MetadataType.SEGMENT, "part_int=3", "part_int=3/d4"),
        UnitRef(MetadataType.PARTITION, "part_int=3", "part_int=4/d5"),
    ]
    assert identifiers(requests.units(NATION, refs)) == ["part_int=3/d3", "part_int=3/d4"]
    assert requests.units(NATION, [UnitRef(MetadataType.ROW_GROUP, "part_int=4", "part_int=4")]) == []


def test_the_parts_of_segments_come_sorted_by_type(requests: TableRequests) -> None:
    at = [f"{ROOT}/part_int=4/d5", f"{ROOT}/part_int=4/part_varchar=g"]
    parts = requests.parts(NATION, ["part_int=4", "part_int=5"], at)
    counted = (len(parts.tables), len(parts.segments), len(parts.files), len(parts.row_groups), len(parts.partitions))
    assert counted == (0, 1, 1, 2, 0)


def test_times_of_files_come_by_path_and_of_segments_by_key(requests: TableRequests) -> None:
    where = f"{ROOT}/part_int=3/part_varchar=g"
    expected = {f"{where}/0_0_0.parquet": 1, f"{where}/0_0_1.parquet": 2}
    assert requests.files_last_modified(NATION, "part_int=3", [where]) == expected
    assert requests.files_last_modified(NATION, "part_int=9", [where]) == {}
    at = [f"{ROOT}/part_int=3/d3", f"{ROOT}/part_int=4/d5"]
    assert requests.segments_last_modified(NATION, at) == {"part_int=3": 1, "part_int=4": 3}
    assert requests.segments_last_modified(NATION, []) == {"part_int=3": 2, "part_int=4": 3}


def test_a_unit_without_a_type_is_found_among_all_only(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        tables = open_tables(one)
        untyped = replace(SEGMENT, metadata_type=None, metadata_key=GENERAL_INFO)
        tables.modify().overwrite(untyped).execute()
        assert tables.read() == [untyped]
        assert TableRequests(tables).table(NATION) is None
