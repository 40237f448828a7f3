"""A table of format version 3 that Spark's MERGE INTO and calve change in turns."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)
from pyspark.sql import SparkSession

import calve
from calve.catalog.connect import connect_embedded
from calve.catalog.row_lineage import next_row_id
from calve.iceberg.files.content import content_id
from calve.keylookup.search import SparkJobs
from calve.model.spec import OnForeignCommit, WriteOptions
from calve.write.row_ids import RowIdWriter
from tests.integration.reader.tables import SparkTable
from tests.support.foreign import NAME, Row, in_order, live_entries_of
from tests.support.id_schedules import KEYS, Schedule
from tests.support.keyed import KeyedTable
from tests.support.lineage import ROW_ID, UPDATED, Lineage, check_batch, lineage_in, lineage_of
from tests.support.readers import duckdb_rows, spark_iceberg_rows, spark_iceberg_sql
from tests.support.runs import Run, spec_of
from tests.support.version_3_columns import add_defaults, add_row

LINEAGE = ["id", "v", ROW_ID, UPDATED]
COLUMNS = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType()))
MERGE = (
    "MERGE INTO {t} t USING (SELECT id, id %% 3 AS op FROM range(%d, %d, 2)) s ON t.id = s.id "
    "WHEN MATCHED AND s.op = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'spark' "
    "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')"
)


def to_calve(catalog: Catalog, name: str, metadata: Path) -> None:
    """Let calve's catalog continue with Spark's newest metadata."""
    if catalog.table_exists(name):
        catalog.drop_table(name)
    catalog.register_table(name, (metadata / f"v{newest(metadata)}.metadata.json").as_uri())


def to_spark(table: Table, spark: SparkTable, metadata: Path) -> None:
    """Let Spark's catalog, whose metadata files are numbered, continue with the metadata of calve."""
    version = newest(metadata) + 1
    for checksum in metadata.glob(".*.crc"):
        checksum.unlink()
    shutil.copy(table.metadata_location.removeprefix("file://"), metadata / f"v{version}.metadata.json")
    (metadata / "version-hint.text").write_text(str(version))
    spark_iceberg_sql(f"REFRESH TABLE {spark.name}")


def newest(metadata: Path) -> int:
    """The number of Spark's newest metadata file."""
    return max(int(file.name[1:].partition(".")[0]) for file in metadata.glob("v*.metadata.json"))


class SharedTable:
    """The table in Spark's catalog and in calve's; each continues with the metadata of the other."""

    def __init__(self, home: Path) -> None:
        self.spark = SparkTable(home / "spark", "turns", "id BIGINT NOT NULL, v STRING", 3)
        self.calve = KeyedTable(home / "calve", COLUMNS, ["id"], version=3)
        self.metadata = Path(self.spark.location.removeprefix("file:")).parent
        self.rows: dict[int, str] = {}

    def merge(self, low: int, high: int) -> None:
        """Let Spark change the table."""
        self.spark.run(MERGE % (low, high))
        for number in range(low, high, 2):
            if number not in self.rows:
                self.rows[number] = "new"
            elif number % 3:
                self.rows[number] = "spark"
            else:
                del self.rows[number]

    def to_calve(self) -> None:
        """Continue in calve's catalog."""
        to_calve(self.calve.catalog, NAME, self.metadata)

    def to_spark(self) -> None:
        """Continue in Spark's catalog."""
        to_spark(self.calve.table, self.spark, self.metadata)

    def change(self, upserts: list[int], deletes: list[int]) -> None:
        """Let calve change the table."""
        rows: list[Row] = [{"id": number, "v": "calve"} for number in upserts]
        before, new_from = self.lineage(), next_row_id(self.calve.table.metadata) or 0
        self.calve.apply([self.calve.data(rows)], rows, [{"id": number, "v": ""} for number in deletes])
        self.rows |= dict.fromkeys(upserts, "calve")
        for number in deletes:
            self.rows.pop(number, None)
        check_batch(before, self.lineage(), {row["id"]: row for row in rows}, deletes, new_from)

    def lineage(self) -> Lineage:
        """The rows and their ids, as Spark sees calve's table."""
        return lineage_in(spark_iceberg_rows(self.calve.table.metadata_location, LINEAGE))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedTable]:
    made = SharedTable(tmp_path)
    yield made
    made.calve.close()


def check_compaction(shared: SharedTable) -> None:
    """Compact the table with calve: rows keep their ids and sequence numbers, as Spark sees them."""
    before = shared.lineage()
    assert calve.compact(shared.calve.ref) is not None
    assert shared.lineage() == before
    plain = [row.values for row in before.values()]
    assert in_order(duckdb_rows(shared.calve.table.metadata_location)) == in_order(plain)
    assert in_order(shared.calve.table.scan().to_arrow().to_pylist()) == in_order(plain)


def test_spark_and_calve_change_a_table_in_turns(shared: SharedTable) -> None:
    rng = random.Random(3)
    for start in (0, 100, 200):
        shared.spark.run(f"INSERT INTO {{t}} SELECT id, 'first' FROM range({start}, {start + 100})")
    shared.rows |= dict.fromkeys(range(300), "first")
    for turn in range(2):
        shared.merge(40 * turn, 280 + 40 * turn)
        shared.to_calve()
        for _ in range(2):
            touched = rng.sample(range(400), 60)
            shared.change(touched[:40], touched[40:])
        expected = in_order([{"id": number, "v": value} for number, value in shared.rows.items()])
        table = shared.calve.table
        assert in_order(shared.calve.rows()) == expected
        assert in_order(table.scan().to_arrow().to_pylist()) == expected
        assert in_order(spark_iceberg_rows(table.metadata_location)) == expected
        vectors = [e.data_file for e in live_entries_of(shared.calve) if e.data_file.file_format is FileFormat.PUFFIN]
        named = [content_id(file).data_file for file in vectors]
        assert len(set(named)) == len(named), "a data file has one vector"
        if all(content_id(file).offset == 4 for file in vectors):  # later ones of a shared file DuckDB reads wrong
            assert in_order(duckdb_rows(table.metadata_location)) == expected
        check_compaction(shared)
        shared.to_spark()
        (ids,) = spark_iceberg_sql(f"SELECT count(*) n, count(DISTINCT _row_id) ids FROM {shared.spark.name}")
        assert ids == {"n": len(expected), "ids": len(expected)}


def test_spark_reads_an_upgraded_table_and_the_ids_of_its_rows(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    run.commit(dict.fromkeys(range(20), "first"))
    run.commit(dict.fromkeys(range(5, 10), "second"))
    after = Run(tmp_path, spec_of("s", version=2, format_version=3))
    after.run.claims.claim()
    after.run.claims.between_batches(after.table.evolve)
    columns = ["id", "v", "_row_id", "_last_updated_sequence_number"]
    upgraded = {row["id"]: row for row in spark_iceberg_rows(after.now.metadata_location, columns)}
    assert len(upgraded) == 20
    assert sorted(row["_row_id"] for row in upgraded.values()) == [*range(5), *range(5, 10), *range(15, 25)]
    after.commit({0: "third", 5: "third"})
    found = spark_iceberg_rows(after.now.metadata_location, columns)
    assert len(found) == len({row["_row_id"] for row in found}) == 20
    expected = {number: "second" if 5 <= number < 10 else "first" for number in range(20)} | {0: "third", 5: "third"}
    assert {row["id"]: row["v"] for row in found} == expected
    assert {row["id"]: row["v"] for row in duckdb_rows(after.now.metadata_location)} == expected
    for row in found:
        if row["v"] != "third":
            assert row == upgraded[row["id"]], "rows that no batch changed keep their ids"


class SharedSchedule(Schedule):
    """A sink whose table Spark changes in between; Spark reads the ids."""

    def __init__(self, home: Path, seed: int) -> None:
        home.mkdir(parents=True)
        self.spark = SparkTable(home / "spark", f"schedule_{seed}", "id BIGINT NOT NULL, v STRING", 3)
        self.metadata = Path(self.spark.location.removeprefix("file:")).parent
        catalog = connect_embedded(home)
        catalog.create_namespace("shop")
        to_calve(catalog, "shop.orders", self.metadata)
        catalog.close()
        super().__init__(home, seed)
        self.run.run.claims.claim()  # Spark may be the first to write

    def lineage(self) -> Lineage:
        if self.run.now.current_snapshot() is None:
            return {}
        return lineage_in(spark_iceberg_rows(self.run.now.metadata_location, LINEAGE))

    def other_writer(self) -> None:
        """Let Spark insert, update and delete rows, and change a key."""
        to_spark(self.run.now, self.spark, self.metadata)
        low = self.rng.choice(KEYS)
        self.spark.run(MERGE % (low, low + 4))
        taken = {row["id"] for row in spark_iceberg_sql(f"SELECT id FROM {self.spark.name}")}
        free = [key for key in KEYS if key not in taken]
        if taken and free:
            self.spark.run(f"UPDATE {{t}} SET id = {free[0]} WHERE id = {min(taken)}")
        to_calve(self.run.catalog, "shop.orders", self.metadata)

    def compact(self) -> None:
        """Let calve compact the table, or Spark."""
        self.rng.choice([super().compact, self.compact_by_spark])()

    def compact_by_spark(self) -> None:
        """Let the procedure of the Iceberg runtime rewrite all files: no row, id or sequence number changes."""
        before = self.lineage()
        if not before:
            return
        to_spark(self.run.now, self.spark, self.metadata)
        catalog, _, name = self.spark.name.partition(".")
        (done,) = spark_iceberg_sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
        )
        assert done["rewritten_data_files_count"] > 0
        to_calve(self.run.catalog, "shop.orders", self.metadata)
        table = self.run.now
        assert lineage_of(table) == self.lineage() == before
        plain = in_order([row.values for row in before.values()])
        assert in_order(duckdb_rows(table.metadata_location)) == plain
        assert in_order(table.scan().to_arrow().to_pylist()) == plain


def test_updated_rows_keep_their_ids_while_spark_changes_the_table(tmp_path: Path) -> None:
    schedule = SharedSchedule(tmp_path / "s", 7)
    for _ in range(2):
        schedule.record()
        schedule.commit()
        schedule.record()
        schedule.other_writer()
        schedule.crash()
    assert schedule.check(3) > 3


def test_rows_keep_their_ids_when_spark_rewrites_their_files(tmp_path: Path) -> None:
    schedule = SharedSchedule(tmp_path / "s", 1)
    for _ in range(2):
        schedule.record()
        schedule.commit()
        schedule.record()  # its files are there before Spark's, and it is committed after them
        schedule.compact_by_spark()
        schedule.commit()
    assert schedule.kept > 3


@pytest.mark.soak
def test_rows_keep_their_ids_however_often_spark_rewrites_their_files(tmp_path: Path) -> None:
    for seed in range(8):
        schedule = SharedSchedule(tmp_path / str(seed), seed)
        for _ in range(10):
            schedule.check(2)
            schedule.compact_by_spark()
        assert schedule.check(1) > 10


@pytest.mark.slow
def test_updated_rows_keep_their_ids_in_any_order_of_events(tmp_path: Path) -> None:
    assert sum(SharedSchedule(tmp_path / str(seed), seed).check(30) for seed in range(8)) > 100


def test_spark_reads_and_writes_default_values_as_calve_does(tmp_path: Path) -> None:
    shared = SharedSchedule(tmp_path / "s", 1)
    shared.run.commit({1: "a", 2: "b", 3: "c"})
    others = add_defaults(shared.run, 5, 7, without="clock")  # Spark reads no table with a time
    shared.run.commit({2: "d", 4: "e"})
    to_spark(shared.run.now, shared.spark, shared.metadata)
    shared.spark.run("INSERT INTO {t} (id, v) VALUES (5, 'spark')")
    shared.spark.run("UPDATE {t} SET v = 'spark' WHERE id = 1")
    to_calve(shared.run.catalog, "shop.orders", shared.metadata)
    shared.run.commit({6: "f"})
    texts = {1: "spark", 2: "d", 3: "c", 4: "e", 5: "spark", 6: "f"}
    wanted = {key: {"v": v, "n": 5 if key in {1, 3} else 7, **others} for key, v in texts.items()}
    for _ in range(2):
        found = {row.pop("id"): row for row in spark_iceberg_rows(shared.run.now.metadata_location)}
        assert {key: {**row, "mark": UUID(row["mark"])} for key, row in found.items()} == wanted
        calve.compact(calve.connect(home=shared.run.home).table("shop.orders"))


def test_spark_reads_unknown_values_and_refuses_tables_with_nanoseconds(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s", format_version=3, on_foreign_commit=OnForeignCommit.ACCEPT))
    run.commit({1: "a"})
    pair = StructType(NestedField(11, "u", UnknownType()), NestedField(12, "x", LongType()))
    with run.now.update_schema() as update:
        update.add_column("u", UnknownType())
        update.add_column("c", pair)
        update.add_column("many", ListType(13, pair, element_required=False))
    run.table.load()
    add_row(run, 9, "x", {"x": 5}, [{"x": 6}, None])
    assert calve.compact(calve.connect(home=tmp_path).table("shop.orders"))
    run.commit({2: "b"})
    empty = {"u": None, "c": None, "many": None}
    assert in_order(spark_iceberg_rows(run.now.metadata_location)) == in_order(
        [
            {"id": 1, "v": "a", **empty},
            {"id": 2, "v": "b", **empty},
            {"id": 9, "v": "x", "u": None, "c": {"u": None, "x": 5}, "many": [{"u": None, "x": 6}, None]},
        ]
    )
    for kind in (TimestampNanoType(), TimestamptzNanoType()):
        with run.now.update_schema() as update:
            update.add_column("t", kind)
        with pytest.raises(RuntimeError, match=f"Cannot convert unsupported type to Spark: {kind}"):
            spark_iceberg_rows(run.now.metadata_location, ["id"])
        with run.now.update_schema() as update:
            update.delete_column("t")


def test_tasks_write_large_batches_again_with_their_ids(spark: SparkSession, tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, COLUMNS, ["id"], session=lambda: spark, version=3)
    table.resolver._rows = RowIdWriter(table.iceberg, WriteOptions(), SparkJobs(lambda: spark, "pool"), here_bytes=0)
    rows: list[Row] = [{"id": number, "v": "first"} for number in range(100)]
    table.apply([table.data(rows)], rows)
    before, new_from = lineage_of(table.table), next_row_id(table.table.metadata) or 0
    updates: list[Row] = [{"id": number, "v": "second"} for number in range(90, 120)]
    table.apply([table.data(updates[:15]), table.data(updates[15:])], updates)
    check_batch(before, lineage_of(table.table), {row["id"]: row for row in updates}, (), new_from)
    table.close()
