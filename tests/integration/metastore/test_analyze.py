"""ANALYZE TABLE over files and tables, INFORMATION_SCHEMA, and what readers and sinks make of metadata."""

import json
import logging
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.analyze import file_statistics
from calve.api.folders import FolderRead, read_folder
from calve.catalog.connect import connect_embedded
from calve.cli.read import describe_folder
from calve.definitions.workplace import Workplace, workplace
from calve.errors import BadRow, InvalidInput
from calve.lake import Lake, TableRef
from calve.metastore.statistics import ColumnStatistics, StatisticKind, StatisticsType
from calve.metastore.tables import MetadataType, TableUnit, open_tables
from calve.model.engine import Engine
from calve.model.spec import TableName
from calve.reader.read import read_filtered
from calve.sql.parser import parse
from calve.sql.statements import SelectQuery
from calve.statements.answers import TextAnswer
from calve.statements.execute import execute
from calve.statements.select import select
from tests.support.answers import rows_of
from tests.support.pipelines import Pipelines
from tests.unit.analyze.trees import fresh_units, in_order, put, put_tree, spoil
from tests.unit.iceberg.sample import Sample
from tests.unit.metastore.sample import files_below


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Workplace:
    return workplace(tmp_path / "home", lambda: spark, {})


def told(place: Workplace, text: str) -> str:
    (statement,) = parse(text)
    found = execute(place, statement)
    assert isinstance(found, TextAnswer)
    return found.text


def asked(place: Workplace, text: str, engine: Engine) -> list[tuple[object, ...]]:
    (statement,) = parse(text)
    assert isinstance(statement, SelectQuery)
    return rows_of(select(place, statement, engine).found)


def units(place: Workplace, *types: MetadataType) -> list[TableUnit]:
    with place.metastore() as metastore:
        return open_tables(metastore).read(*types)


def general(place: Workplace) -> TableUnit:
    (unit,) = units(place, MetadataType.TABLE)
    return unit


def rows_read(read: FolderRead) -> list[dict[str, object]]:
    return sorted((row for batch in read.rows() for row in batch.to_pylist()), key=repr)


# ---- files


def test_csv_files_are_measured_by_spark_and_only_new_ones_are_read(place: Workplace, tmp_path: Path) -> None:
    root = tmp_path / "in"
    for region, text in (("eu", "1,2.5,2024-01-01 10:00:00\n2,,"), ("us", "7,0.5,2024-02-01 00:00:00\n")):
        (root / f"region={region}").mkdir(parents=True)
        (root / f"region={region}" / "a b%20#é.csv").write_text(f"id,amount,at\n{text}")
    assert told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA").endswith("; read 2")
    found = dict(general(place).columns_statistics or {})
    assert found["id"] == ColumnStatistics(StatisticsType.WHOLE, 0, 3, 1, 7)
    assert found["amount"] == ColumnStatistics(StatisticsType.FRACTION, 1, 2, 0.5, 2.5)
    assert (found["at"].nulls, str(found["at"].greatest)) == (1, "2024-02-01 00:00:00+00:00")
    assert found["region"] == ColumnStatistics(StatisticsType.TEXT, 0, 3, "eu", "us")
    for path in files_below(root):
        spoil(path)
    assert told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA").endswith("is up to date")
    (root / "region=eu" / "b.csv").write_text("id,amount,at\n9,1,2024-03-01 00:00:00\n")
    assert told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA").endswith("; read 1")
    assert dict(general(place).columns_statistics or {})["id"] == ColumnStatistics(StatisticsType.WHOLE, 0, 4, 1, 9)
    assert Counter(unit.metadata_type for unit in units(place))[MetadataType.FILE] == 3


def test_json_of_a_source_is_measured_with_its_columns(place: Workplace, tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "a.json").write_text('{"id": 1, "price": 2.5, "tags": ["x"]}\n{"id": 2, "price": null}\n')
    (root / "b.json").write_text("")
    execute(
        place,
        parse(
            "CREATE SOURCE s (id BIGINT, price DECIMAL(12,2), tags ARRAY<STRING>) "
            f"FROM FILES (PATH = '{root}', FORMAT = 'json')"
        )[0],
    )
    told(place, "ANALYZE TABLE s REFRESH METADATA")
    found = dict(general(place).columns_statistics or {})
    assert found["price"] == ColumnStatistics(StatisticsType.DECIMAL, 1, 1, Decimal("2.50"), Decimal("2.50"))
    assert found["tags"] == ColumnStatistics(StatisticsType.OTHER, 1, 1)
    assert rows_read(read_folder(place, str(root), "price IS NULL")) == [{"id": 2, "price": None, "tags": None}]
    (root / "bad.json").write_text("{]\n")
    with pytest.raises(InvalidInput, match="cannot be read"):
        told(place, "ANALYZE TABLE s REFRESH METADATA")


def test_folders_that_cannot_be_read_say_what_to_do(place: Workplace, tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    with pytest.raises(InvalidInput, match=f"the folder {root}/none does not exist") as caught:
        read_folder(place, str(root / "none"))
    assert caught.value.hint
    (root / "a.json").write_text('{"a": 1, "A": 2}\n')
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        read_folder(place, str(root))
    assert "calve init" in caught.value.hint
    (root / "a.json").unlink()
    (root / "a.csv").write_text("a;b,c\n1;2\n")
    with pytest.raises(BadRow, match="a record cannot be read") as bad:
        rows_read(read_folder(place, str(root)))
    assert "as many values" in bad.value.hint


def test_many_footers_are_read_by_tasks_with_the_same_result(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "in"
    for number in range(file_statistics.FEW + 6):
        put(root / str(number % 3) / f"{number}.parquet", range(number * 10, number * 10 + 10), row_group_size=5)
    assert told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA").endswith("; read 70")
    monkeypatch.setattr(file_statistics, "FEW", 1000)
    assert in_order(units(place)) == fresh_units(root, tmp_path / "other")
    monkeypatch.setattr(file_statistics, "FEW", 0)
    put(root / "0" / "none.parquet", [1])
    (root / "0" / "none.parquet").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="not a valid Parquet file"):
        told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA")


# ---- tables


def test_a_table_is_measured_by_its_manifests_and_footers(place: Workplace, spark: SparkSession) -> None:
    pipelines = Pipelines(place.home, spark)
    pipelines.run(
        "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
        "CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 100, UPDATES = 20);"
        "CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders PARTITION BY (status);"
    )
    assert "; read " in told(place, "ANALYZE TABLE shop.orders REFRESH METADATA")
    rows = pipelines.rows("shop.orders", "id", "status")
    found = general(place)
    ids = dict(found.columns_statistics or {})["id"]
    assert (ids.least, ids.greatest, ids.nulls) == (min(rows)[0], max(rows)[0], 0)
    assert json.loads(found.additional_metadata or "")["sink"]["name"] == "s"
    segments = {unit.metadata_key for unit in units(place, MetadataType.SEGMENT)}
    assert segments == {f"status={status}" for _, status in rows}
    files = {unit.path for unit in units(place, MetadataType.FILE)}
    assert {unit.path for unit in units(place, MetadataType.ROW_GROUP)} == files
    assert told(place, "ANALYZE TABLE lake.shop.orders REFRESH METADATA").endswith("is up to date")
    table = connect_embedded(place.home).load_table("shop.orders")
    table.append(pa.Table.from_pylist([{"id": 10_000, "status": "ODD"}], schema=table.schema().as_arrow()))
    assert told(place, "ANALYZE TABLE shop.orders REFRESH METADATA").endswith("; read 1")
    assert dict(general(place).columns_statistics or {})["id"].greatest == 10_000
    filtered = read_filtered(spark, TableRef(Lake(place.home, {}), TableName.parse("shop.orders")), "id = 10000")
    assert [row["status"] for batch in filtered.rows() for row in batch.to_pylist()] == ["ODD"]
    assert len(filtered.plan.files) == 1
    assert told(place, "ANALYZE TABLE shop.orders DROP METADATA") == 'dropped the metadata of table "shop.orders"'
    with pytest.raises(InvalidInput, match="has no metadata"):
        told(place, "ANALYZE TABLE shop.orders DROP METADATA")
    assert told(place, "ANALYZE TABLE shop.orders DROP METADATA IF EXISTS").endswith("has no metadata")


# ---- questions


@pytest.mark.parametrize("engine", [Engine.DUCKDB, Engine.SPARK])
def test_the_information_schema_and_tables_answer_in_both_engines(
    place: Workplace, tmp_path: Path, engine: Engine
) -> None:
    root = tmp_path / "in"
    for region in ("eu", "us"):
        put(root / f"region={region}" / "0.parquet", [1, 2, None], place={"city": "Bonn"})
    told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA")
    tables = "SELECT TABLE_SCHEMA, TABLE_SOURCE, NUM_ROWS, METADATA_LEVEL FROM INFORMATION_SCHEMA.`TABLES`"
    assert asked(place, tables, engine) == [("files.default", "PARQUET", 6, "ROW_GROUP")]
    columns = (
        "SELECT c.column_name, data_type, min_val, max_val, num_nulls FROM information_schema.tables t "
        "JOIN Information_Schema.COLUMNS c USING (table_name) ORDER BY ordinal_position"
    )
    assert asked(place, columns, engine) == [
        ("id", "bigint", "1", "2", 2),
        ("place.city", "string", "Bonn", "Bonn", 0),
        ("region", "string", "eu", "us", 0),
    ]
    partitions = "SELECT partition_value FROM INFORMATION_SCHEMA.PARTITIONS WHERE partition_column = 'region'"
    assert sorted(asked(place, f"{partitions} AND metadata_type = 'SEGMENT'", engine)) == [("eu",), ("us",)]
    counted = "SELECT 'INFORMATION_SCHEMA.TABLES', count(*) FROM INFORMATION_SCHEMA.PARTITIONS"
    assert asked(place, counted, engine) == [("INFORMATION_SCHEMA.TABLES", 6)]
    sample = Sample(place.home)
    sample.commit({1: "a", 2: "b"})
    sample.commit({2: "bb"}, [1, 2])
    assert asked(place, "SELECT o.id, o.v FROM shop.orders o WHERE o.id > 0", engine) == [(2, "bb")]
    sample.close()
    for text, problem in (
        ("SELECT * FROM INFORMATION_SCHEMA.VIEWS", "has no table VIEWS"),
        ("SELECT nothing FROM INFORMATION_SCHEMA.TABLES", "refuses the query"),
        ("SELECT * FROM nowhere", "there is no table or sink"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            asked(place, text, engine)


# ---- readers

CONDITIONS = {
    "id = 1150": 1,
    "id BETWEEN 1190 AND 1205": 2,
    "id IN (5, 2399)": 2,
    "id < 0": 0,
    "id IS NULL": 0,
    "id > 2390 OR id + 1 = 4": 24,
}


@pytest.mark.parametrize("where", CONDITIONS)
def test_a_folder_has_the_same_rows_with_and_without_metadata(
    place: Workplace, tmp_path: Path, spark: SparkSession, where: str
) -> None:
    root = tmp_path / "in"
    put_tree(root)
    told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA")
    found = read_folder(place, str(root), where)
    assert len(found.chosen.files) == CONDITIONS[where]
    everything = spark.read.option("recursiveFileLookup", "true").parquet(str(root))
    assert rows_read(found) == sorted((row.asDict() for row in everything.where(where).collect()), key=repr)
    needed = {file.path for file in found.chosen.files}
    for path in files_below(root):
        if str(path) not in needed:
            spoil(path)  # whoever opens it fails
    assert rows_read(found) == rows_read(read_folder(place, str(root), where))


def test_files_that_changed_since_are_read_with_their_new_columns(place: Workplace, tmp_path: Path) -> None:
    root = tmp_path / "in"
    put_tree(root)
    told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA")
    put(root / "a" / "0" / "0.parquet", [1150])
    put(root / "d" / "new.parquet", [1150], extra="x")
    found = read_folder(place, str(root), "id = 1150")
    assert (len(found.chosen.files), found.chosen.outdated) == (3, 2)
    lines = describe_folder(found)
    assert lines[1:3] == [
        "metadata    level ROW_GROUP, 23 of 25 files as analyzed",
        f"data        3 of 25 files, {found.chosen.bytes / 1000:.1f} kB",
    ]
    assert lines[3:] == [
        "outdated    2 files are new or changed since then, and are read",
        "skipped     15 files in 2 segments; 7 files by their bounds, 0 by those of their row groups",
        "            1 row groups of files that are read",
    ]
    assert rows_read(found) == [{"id": 1150, "extra": "x"}, {"id": 1150, "extra": None}, {"id": 1150, "extra": None}]


def test_a_metastore_that_cannot_be_asked_leaves_nothing_out(
    place: Workplace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "in" / "0.parquet", [1, 2])
    place.home.mkdir(exist_ok=True)
    (place.home / "metastore").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        found = read_folder(place, str(tmp_path / "in"), "id = 2")
    assert rows_read(found) == [{"id": 2}]
    assert found.problem
    assert "the metastore could not be read" in caplog.text


def test_files_of_another_kind_are_read_as_what_they_are(place: Workplace, tmp_path: Path) -> None:
    root = tmp_path / "in"
    put(root / "0.parquet", [1, 2])
    told(place, f"ANALYZE TABLE '{root}' REFRESH METADATA")
    (root / "0.parquet").unlink()
    (root / "0.csv").write_text("id\n7\n")
    found = read_folder(place, str(root), "id > 5")
    assert (rows_read(found), found.chosen.level) == ([{"id": 7}], None)


def test_a_condition_that_spark_refuses_is_told(place: Workplace, tmp_path: Path) -> None:
    put(tmp_path / "in" / "0.parquet", [1, 2])
    with pytest.raises(InvalidInput, match="the condition is invalid"):
        read_folder(place, str(tmp_path / "in"), "nothing = 2")


# ---- sinks

SINK = (
    "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
    "CREATE SOURCE numbers (id BIGINT NOT NULL, PRIMARY KEY (id) NOT ENFORCED) "
    "FROM FILES (PATH = '{root}', FORMAT = 'parquet') ENVELOPE NONE;"
    "CREATE VIEW high AS SELECT id, id * 2 AS twice FROM numbers WHERE id >= 2300;"
    "CREATE SINK s FROM high TO ICEBERG CATALOG lake NAMESPACE shop TABLE high KEY (id);"
)


def test_a_source_of_files_reads_only_those_that_its_view_needs(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "in"
    put_tree(root)
    pipelines = Pipelines(tmp_path / "home", spark)
    told(pipelines.place, f"ANALYZE TABLE '{root}' REFRESH METADATA")
    for path in files_below(root)[:-1]:
        spoil(path)
    put(root / "later.parquet", [1, 5000])
    with caplog.at_level(logging.INFO, "calve"):
        (result,) = pipelines.run(SINK.format(root=root))
    assert result.cause is None
    assert pipelines.rows("shop.high", "id", "twice") == [(n, 2 * n) for n in [*range(2300, 2400), 5000]]
    assert "23 of 25 files" in caplog.text


def test_a_sink_registers_its_table(tmp_path: Path, spark: SparkSession) -> None:
    root = tmp_path / "in"
    put(root / "0.parquet", [2300, 2301])
    pipelines = Pipelines(tmp_path / "home", spark)
    pipelines.run(SINK.format(root=root))
    unit = general(pipelines.place)
    assert (unit.storage_plugin, unit.workspace, unit.table_name) == ("embedded", "shop", "high")
    assert unit.location == pipelines.table("shop.high").location()
    sink = json.loads(unit.additional_metadata or "")["sink"]
    head = pipelines.table("shop.high").metadata.current_snapshot_id
    assert (sink["name"], sink["key"], sink["snapshot"]) == ("s", ["id"], head)
    rows = [one.value for one in unit.metadata_statistics or () if one.kind is StatisticKind.ROWS]
    assert rows == [2]
    pipelines.run()
    assert general(pipelines.place) == unit
    put(root / "1.parquet", [2302])
    pipelines.run()
    assert json.loads(general(pipelines.place).additional_metadata or "")["sink"]["snapshot"] != head


def test_a_metastore_that_fails_does_not_break_a_sink(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in" / "0.parquet", [2300])
    (tmp_path / "blocked").write_text("in the way")
    monkeypatch.setenv("CALVE_METASTORE__ICEBERG__LOCATION__BASE_PATH", str(tmp_path / "blocked"))
    pipelines = Pipelines(tmp_path / "home", spark)
    with caplog.at_level(logging.WARNING):
        (result,) = pipelines.run(SINK.format(root=tmp_path / "in"))
    assert (result.cause, result.pending) == (None, 0)
    assert pipelines.rows("shop.high") == [(2300, 4600)]
    assert "could not register table shop.high with the metastore" in caplog.text
