"""The table dfs.tmp.nation, as its metadata comes, changes and goes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.tables import DEFAULT_SEGMENT, GENERAL_INFO, MetadataType, TableUnit, open_tables
from tests.unit.metastore.sample import (
    DELETE_AFTER_COMMIT,
    GENERAL,
    NATION,
    SEGMENT,
    VERSIONS_MAX,
    files_below,
    metastore_at,
    part,
    segment,
)

Tables = Component[TableUnit]

FILE = part(MetadataType.FILE, "0_0_0.parquet")
ROW_GROUPS = [part(MetadataType.ROW_GROUP, f"0_0_0.parquet/{i}", index=i) for i in range(2)]
PARTITION = part(MetadataType.PARTITION, "n_regionkey=1")
FIVE = [SEGMENT, FILE, *ROW_GROUPS, PARTITION]


def folder(tmp_path: Path) -> Path:
    return tmp_path / "metastore" / "tables" / "dfs" / "tmp" / "nation"


def pointers(tables: Tables) -> dict[tuple[str, ...], str]:
    """The file of each partition."""
    return {file.partition: Path(file.path).name for file in tables.see().files}


def test_an_unpartitioned_table_has_two_files_of_one_and_five_rows(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL, *FIVE).execute()
    files = files_below(tmp_path, "*.parquet")
    assert {file.parent for file in files} == {folder(tmp_path)}
    assert sorted(pq.read_metadata(file).num_rows for file in files) == [1, 5]
    assert set(pointers(tables)) == {("dfs", "tmp", "nation", GENERAL_INFO), ("dfs", "tmp", "nation", DEFAULT_SEGMENT)}
    types = Counter(unit.metadata_type for unit in tables.read(where=f.eq("metadata_key", DEFAULT_SEGMENT)))
    assert types == {
        MetadataType.SEGMENT: 1,
        MetadataType.FILE: 1,
        MetadataType.ROW_GROUP: 2,
        MetadataType.PARTITION: 1,
    }


def test_a_partitioned_table_has_one_file_and_one_for_each_top_level_segment(tables: Tables, tmp_path: Path) -> None:
    dirs = [f"dir{n}" for n in range(7)]
    below = [part(MetadataType.FILE, f"{key}/{n}.parquet", key) for key in dirs for n in range(3)]
    tables.modify().overwrite(GENERAL, *below, *(segment(key) for key in dirs)).execute()
    assert len(files_below(folder(tmp_path), "*.parquet")) == 1 + 7
    assert {partition[-1] for partition in pointers(tables)} == {GENERAL_INFO, *dirs}


def test_an_overwrite_points_to_a_new_file_and_leaves_the_old_one(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL, *FIVE).execute()
    before = pointers(tables)
    tables.modify().overwrite(*FIVE, part(MetadataType.FILE, "0_0_1.parquet")).execute()
    after = pointers(tables)
    general, default = ("dfs", "tmp", "nation", GENERAL_INFO), ("dfs", "tmp", "nation", DEFAULT_SEGMENT)
    assert after[general] == before[general]
    assert after[default] != before[default]
    names = {file.name for file in files_below(folder(tmp_path))}
    assert names == {before[general], before[default], after[default]}
    assert len(tables.read(where=f.eq("metadata_key", DEFAULT_SEGMENT))) == 6


def test_a_delete_removes_partitions_and_no_files(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL, *FIVE, segment("dir0")).execute()
    files = files_below(folder(tmp_path))
    tables.modify().delete(NATION.condition() & f.eq("metadata_key", "dir0")).execute()
    assert {partition[-1] for partition in pointers(tables)} == {GENERAL_INFO, DEFAULT_SEGMENT}
    assert files_below(folder(tmp_path)) == files
    tables.modify().delete(NATION.condition()).execute()
    assert tables.read() == []
    assert files_below(folder(tmp_path)) == files


def test_expiry_takes_the_files_that_a_delete_left(tmp_path: Path) -> None:
    with metastore_at(tmp_path, common={DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: "1"}) as one:
        tables = open_tables(one)
        tables.modify().overwrite(GENERAL, *FIVE).execute()
        tables.modify().delete(NATION.condition() & f.eq("metadata_key", DEFAULT_SEGMENT)).execute()
        assert [file.name for file in files_below(folder(tmp_path))] == list(pointers(tables).values())


def test_tables_of_other_names_are_left_alone(tables: Tables) -> None:
    others = [replace(GENERAL, **{key: "other"}) for key in ("storage_plugin", "workspace", "table_name")]  # type: ignore[arg-type]
    tables.modify().overwrite(GENERAL, *FIVE, *others).execute()
    tables.modify().delete(NATION.condition()).execute()
    assert sorted(tables.read(), key=repr) == sorted(others, key=repr)
