"""Metadata of a folder, as its files come, change and go."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calve.analyze.folder_subject import FolderSubject
from calve.analyze.refresh import AnalyzeRequest, Refreshed, drop_metadata, refresh
from calve.definitions.workplace import workplace
from calve.errors import InvalidInput
from calve.metastore import filters as f
from calve.metastore.statistics import ColumnStatistics, Statistic, StatisticKind, StatisticsType
from calve.metastore.tables import DEFAULT_SEGMENT, GENERAL_INFO, MetadataType, open_tables
from calve.sql.parser import parse_one
from calve.sql.statements import MetadataLevel
from calve.statements.analyze import folder_id
from calve.statements.answers import TextAnswer
from calve.statements.execute import execute
from tests.support.threads import in_threads
from tests.unit.analyze.trees import Tables, fresh_units, in_order, no_spark, put, refreshed, spoil
from tests.unit.metastore.sample import files_below, metastore_at

FULL = 24


def counts(found: Refreshed) -> tuple[int, int, int, int]:
    return found.added, found.changed, found.removed, found.looked


def types(tables: Tables) -> Counter[MetadataType | None]:
    return Counter(unit.metadata_type for unit in tables.read())


def keys_written(tables: Tables, before: set[str]) -> set[str]:
    """Top-level segments whose file in the metastore is another one than before."""
    return {file.partition[-1] for file in tables.see().files if file.path not in before}


def test_every_level_has_its_rows_and_bounds(tables: Tables, root: Path) -> None:
    assert counts(refreshed(tables, root)) == (FULL, 0, 0, FULL)
    assert types(tables) == {
        MetadataType.TABLE: 1,
        MetadataType.SEGMENT: 3 + 12,
        MetadataType.FILE: FULL,
        MetadataType.ROW_GROUP: 2 * FULL,
    }
    bounds = {
        (unit.metadata_type, unit.metadata_identifier): (
            dict(unit.columns_statistics or {})["id"],
            next(one.value for one in unit.metadata_statistics or () if one.kind is StatisticKind.ROWS),
        )
        for unit in tables.read()
    }
    assert bounds[MetadataType.TABLE, None] == (ColumnStatistics(StatisticsType.WHOLE, 0, 2400, 0, 2399), 2400)
    assert bounds[MetadataType.SEGMENT, "b"] == (ColumnStatistics(StatisticsType.WHOLE, 0, 800, 800, 1599), 800)
    assert bounds[MetadataType.SEGMENT, "b/1"] == (ColumnStatistics(StatisticsType.WHOLE, 0, 200, 1000, 1199), 200)
    file = bounds[MetadataType.FILE, "b/1/1.parquet"]
    assert file == (ColumnStatistics(StatisticsType.WHOLE, 0, 100, 1100, 1199), 100)
    group = bounds[MetadataType.ROW_GROUP, "b/1/1.parquet/1"]
    assert group == (ColumnStatistics(StatisticsType.WHOLE, 0, 50, 1150, 1199), 50)


def test_what_did_not_change_is_up_to_date_and_nothing_is_written(tables: Tables, root: Path) -> None:
    refreshed(tables, root)
    version = tables.metadata().version
    found = refreshed(tables, root)
    assert (found.up_to_date, found.looked, tables.metadata().version) == (True, 0, version)


def add(root: Path) -> None:
    put(root / "b" / "1" / "2.parquet", range(5000, 5100))
    put(root / "d" / "new.parquet", range(6000, 6010))


def change(root: Path) -> None:
    put(root / "a" / "0" / "0.parquet", range(9000, 9010))
    put(root / "c" / "3" / "1.parquet", [None, 7])


def remove(root: Path) -> None:
    (root / "a" / "2" / "0.parquet").unlink()
    shutil.rmtree(root / "b" / "3")
    shutil.rmtree(root / "c")


@pytest.mark.parametrize(
    ("edit", "expected", "written"),
    [
        (add, (2, 0, 0, 2), {"b", "d"}),
        (change, (0, 2, 0, 2), {"a", "c"}),
        (remove, (0, 0, 1 + 2 + 8, 0), {"a", "b"}),
    ],
    ids=["added", "changed", "removed"],
)
def test_only_what_changed_is_looked_into_and_written(
    tables: Tables,
    root: Path,
    tmp_path: Path,
    edit: Callable[[Path], None],
    expected: tuple[int, int, int, int],
    written: set[str],
) -> None:
    refreshed(tables, root)
    before = {file.path for file in tables.see().files}
    version = tables.metadata().version
    edit(root)
    assert counts(refreshed(tables, root)) == expected
    assert tables.metadata().version == version + 1
    assert keys_written(tables, before) == written | {GENERAL_INFO}
    assert in_order(tables.read()) == fresh_units(root, tmp_path / "other")


def test_files_that_did_not_change_are_not_opened(tables: Tables, root: Path) -> None:
    refreshed(tables, root)
    for path in files_below(root):
        spoil(path)
    assert refreshed(tables, root).up_to_date
    put(root / "b" / "1" / "2.parquet", range(10))
    assert counts(refreshed(tables, root)) == (1, 0, 0, 1)
    spoil(root / "b" / "1" / "2.parquet")
    (root / "b" / "1" / "2.parquet").touch()
    with pytest.raises(InvalidInput, match="not a valid Parquet file"):
        refreshed(tables, root)


@settings(max_examples=4)
@given(data=st.data())
def test_any_number_of_changes_leads_where_one_look_leads(data: st.DataObject) -> None:
    names = [f"{top}{inner}/{n}.parquet" for top in ("", "a/", "b/") for inner in ("x", "y") for n in range(2)]
    with tempfile.TemporaryDirectory() as folder, metastore_at(Path(folder) / "home") as metastore:
        root, tables = Path(folder) / "in", open_tables(metastore)
        put(root / "always.parquet", [1])
        for step in range(2):
            for name in data.draw(st.lists(st.sampled_from(names), max_size=5, unique=True)):
                if (root / name).exists() and data.draw(st.booleans()):
                    (root / name).unlink()
                else:
                    put(root / name, data.draw(st.lists(st.none() | st.integers(0, 99), max_size=4)), row_group_size=2)
            refreshed(tables, root)
            assert in_order(tables.read()) == fresh_units(root, Path(folder) / f"other{step}")


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        (MetadataLevel.TABLE, {MetadataType.TABLE}),
        (MetadataLevel.SEGMENT, {MetadataType.TABLE, MetadataType.SEGMENT}),
        (MetadataLevel.FILE, {MetadataType.TABLE, MetadataType.SEGMENT, MetadataType.FILE}),
    ],
)
def test_a_level_has_those_above_it_and_no_more(
    tables: Tables, root: Path, tmp_path: Path, level: MetadataLevel, kinds: set[MetadataType]
) -> None:
    request = AnalyzeRequest(level=level)
    refreshed(tables, root, request)
    assert set(types(tables)) == kinds
    assert refreshed(tables, root, request).up_to_date
    add(root)
    remove(root)
    refreshed(tables, root, request)
    assert in_order(tables.read()) == fresh_units(root, tmp_path / "other", request)


def test_less_than_what_is_known_is_up_to_date_and_more_is_not(tables: Tables, root: Path) -> None:
    refreshed(tables, root, AnalyzeRequest(("id",), MetadataLevel.FILE))
    assert refreshed(tables, root, AnalyzeRequest(("id",), MetadataLevel.SEGMENT)).up_to_date
    assert refreshed(tables, root, AnalyzeRequest((), MetadataLevel.FILE)).up_to_date
    assert counts(refreshed(tables, root)) == (FULL, 0, 0, FULL)
    assert refreshed(tables, root, AnalyzeRequest(("id",), MetadataLevel.FILE)).up_to_date
    add(root)
    found = refreshed(tables, root, AnalyzeRequest(("id",), MetadataLevel.FILE))
    assert (found.level, found.looked) == (MetadataLevel.ROW_GROUP, 2)  # what is known stays as deep as it is


def test_only_columns_that_are_asked_for_have_statistics(tables: Tables, tmp_path: Path) -> None:
    put(tmp_path / "in" / "0.parquet", [1, 2], place={"city": "Bonn", "zip": 1}, other=3)
    refreshed(tables, tmp_path / "in", AnalyzeRequest(("place",)))
    (general,) = tables.read(MetadataType.TABLE)
    assert set(general.columns_statistics or {}) == {"place.city", "place.zip"}
    assert general.interesting_columns == ("place",)
    assert '"other"' in (general.schema or "")
    drop_metadata(tables, folder_id(str(tmp_path / "in")))
    refreshed(tables, tmp_path / "in", AnalyzeRequest(()))
    assert all(not unit.columns_statistics for unit in tables.read())


def test_a_folder_that_was_emptied_has_no_rows(tables: Tables, root: Path, tmp_path: Path) -> None:
    place = workplace(tmp_path / "home", no_spark, {})
    for text, expected in (
        (f"ANALYZE TABLE '{root}' COLUMNS (id) REFRESH METADATA", "24 files, 24 new, 0 changed, 0 removed"),
        (f"ANALYZE TABLE '{root}' COLUMNS (id) REFRESH METADATA", "0 files, 0 new, 0 changed, 24 removed"),
    ):
        found = execute(place, parse_one(text))
        assert isinstance(found, TextAnswer)
        assert expected in found.text
        shutil.rmtree(root)
        root.mkdir()
    (general,) = tables.read()
    assert (general.metadata_statistics or ())[0] == Statistic(StatisticKind.ROWS, 0)


def test_columns_are_found_without_case_and_unknown_ones_are_named(tables: Tables, root: Path) -> None:
    refreshed(tables, root, AnalyzeRequest(("ID",), MetadataLevel.TABLE))
    (general,) = tables.read(MetadataType.TABLE)
    assert set(general.columns_statistics or {}) == {"id"}
    with pytest.raises(InvalidInput, match='column "i" does not exist') as caught:
        refreshed(tables, root, AnalyzeRequest(("i",)))
    assert caught.value.hint == "Columns are id."


def test_a_location_with_a_password_is_not_kept(tables: Tables) -> None:
    with pytest.raises(InvalidInput, match="a location with a password") as caught:
        refresh(tables, FolderSubject.of("s3://key:wolfram@bucket/in", no_spark), AnalyzeRequest())
    assert "wolfram" not in str(caught.value)


def test_a_folder_without_folders_has_two_files_and_one_file_five_units(tables: Tables, tmp_path: Path) -> None:
    root = tmp_path / "dfs" / "tmp" / "nation"
    put(root / "0.parquet", range(100), n_regionkey=1)
    refreshed(tables, root)
    below = tmp_path / "home" / "metastore" / "tables" / "files" / "default"
    assert len(files_below(below, "*.parquet")) == 2
    units = tables.read(where=f.eq("metadata_key", DEFAULT_SEGMENT))
    assert Counter(unit.metadata_type for unit in units) == {
        MetadataType.SEGMENT: 1,
        MetadataType.FILE: 1,
        MetadataType.ROW_GROUP: 2,
        MetadataType.PARTITION: 1,
    }
    (partition,) = [unit for unit in units if unit.metadata_type is MetadataType.PARTITION]
    assert (partition.column, partition.partition_values) == ("n_regionkey", ("1",))
    put(root / "1.parquet", range(100), n_regionkey=2)
    refreshed(tables, root)
    assert len(files_below(below, "*.parquet")) == 2 + 2  # those of before stay until they expire


def test_a_folder_of_folders_has_one_file_and_one_for_each_of_them(tables: Tables, root: Path, tmp_path: Path) -> None:
    refreshed(tables, root)
    below = tmp_path / "home" / "metastore" / "tables" / "files" / "default"
    assert len(files_below(below, "*.parquet")) == 1 + 3
    assert {file.partition[-1] for file in tables.see().files} == {GENERAL_INFO, "a", "b", "c"}


def test_folders_named_by_a_column_are_columns(tables: Tables, tmp_path: Path) -> None:
    root = tmp_path / "in"
    for region, day in (("eu", 1), ("eu", 2), ("u%20s", 2), ("__HIVE_DEFAULT_PARTITION__", 3)):
        put(root / f"region={region}" / f"day={day}" / "0.parquet", [1, 2])
    refreshed(tables, root)
    (general,) = tables.read(MetadataType.TABLE)
    assert general.partition_keys == {"dir0": "region", "dir1": "day"}
    found = dict(general.columns_statistics or {})
    assert found["region"] == ColumnStatistics(StatisticsType.TEXT, 2, 6, "eu", "u s")
    assert found["day"] == ColumnStatistics(StatisticsType.WHOLE, 0, 8, 1, 3)
    segments = {(u.column, u.partition_values) for u in tables.read(MetadataType.SEGMENT)}
    assert {("region", ("eu",)), ("day", ("2",))} <= segments


def test_reserved_names_can_be_folders(tables: Tables, tmp_path: Path) -> None:
    root = tmp_path / "in"
    for name in (GENERAL_INFO, DEFAULT_SEGMENT):
        put(root / name / "0.parquet", [1])
    put(root / "0.parquet", [2])
    refreshed(tables, root)
    put(root / GENERAL_INFO / "1.parquet", [3])
    assert counts(refreshed(tables, root)) == (1, 0, 0, 1)
    assert in_order(tables.read()) == fresh_units(root, tmp_path / "other")


def test_types_that_do_not_fit_are_named(tables: Tables, tmp_path: Path) -> None:
    put(tmp_path / "in" / "0.parquet", [1], mark="x")
    put(tmp_path / "in" / "1.parquet", [1], mark=1)
    with pytest.raises(InvalidInput, match='column "mark" has different types') as caught:
        refreshed(tables, tmp_path / "in")
    assert "string and bigint" in caught.value.detail


@pytest.mark.parametrize(
    ("names", "problem"),
    [([], "there are no files"), (["a.parquet", "b.csv"], "different formats"), (["a.bin"], "unknown extension")],
)
def test_a_folder_that_cannot_be_analyzed_is_refused(
    tables: Tables, tmp_path: Path, names: list[str], problem: str
) -> None:
    (tmp_path / "in").mkdir()
    for name in names:
        (tmp_path / "in" / name).touch()
    with pytest.raises(InvalidInput, match=problem):
        refreshed(tables, tmp_path / "in")


def test_a_level_that_the_files_do_not_have_is_refused(tables: Tables, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n1\n")
    with pytest.raises(InvalidInput, match="CSV do not support level ROW_GROUP"):
        refreshed(tables, tmp_path / "in", AnalyzeRequest(level=MetadataLevel.ROW_GROUP))


def test_metadata_that_is_dropped_is_gone_and_that_of_others_stays(tables: Tables, tmp_path: Path) -> None:
    for name in ("one", "two"):
        put(tmp_path / name / "0.parquet", [1])
        refreshed(tables, tmp_path / name)
    assert drop_metadata(tables, folder_id(str(tmp_path / "one")))
    assert not drop_metadata(tables, folder_id(str(tmp_path / "one")))
    assert {unit.table_name for unit in tables.read()} == {str(tmp_path / "two")}


def test_many_who_refresh_at_the_same_time_agree(tmp_path: Path, root: Path) -> None:
    stores = [metastore_at(tmp_path / "home") for _ in range(3)]

    def work(number: int) -> None:
        for step in range(2):
            put(root / f"t{number}" / f"{step}.parquet", [number, step])
            refreshed(open_tables(stores[number]), root)

    in_threads(work, range(3))
    tables = open_tables(stores[0])
    refreshed(tables, root)
    assert in_order(tables.read()) == fresh_units(root, tmp_path / "other")


def test_numbers_of_a_table_add_up(tables: Tables, root: Path) -> None:
    refreshed(tables, root)
    (general,) = tables.read(MetadataType.TABLE)
    size = sum(path.stat().st_size for path in files_below(root))
    assert general.metadata_statistics == (
        Statistic(StatisticKind.ROWS, 2400),
        Statistic(StatisticKind.BYTES, size),
        Statistic(StatisticKind.FILES, FULL),
        Statistic(StatisticKind.LEVEL, "ROW_GROUP"),
    )
    assert general.last_modified_time == max(path.stat().st_mtime_ns for path in files_below(root)) // 1_000_000
