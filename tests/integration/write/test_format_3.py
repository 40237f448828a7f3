"""A table of format version 3 that Spark's MERGE INTO and calve change in turns."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import calve
from calve.iceberg.files.content import content_id
from tests.integration.reader.tables import SparkTable
from tests.support.foreign import NAME, Row, in_order, live_entries_of
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows, spark_iceberg_rows, spark_iceberg_sql
from tests.support.runs import Run, spec_of

COLUMNS = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType()))
MERGE = (
    "MERGE INTO {t} t USING (SELECT id, id %% 3 AS op FROM range(%d, %d, 2)) s ON t.id = s.id "
    "WHEN MATCHED AND s.op = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'spark' "
    "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')"
)


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
        self.calve.catalog.drop_table(NAME)
        self.calve.catalog.register_table(NAME, (self.metadata / f"v{self._version}.metadata.json").as_uri())

    def to_spark(self) -> None:
        """Continue in Spark's catalog, whose metadata files are numbered."""
        version = self._version + 1
        for checksum in self.metadata.glob(".*.crc"):
            checksum.unlink()
        ours = self.calve.table.metadata_location.removeprefix("file://")
        shutil.copy(ours, self.metadata / f"v{version}.metadata.json")
        (self.metadata / "version-hint.text").write_text(str(version))
        spark_iceberg_sql(f"REFRESH TABLE {self.spark.name}")

    @property
    def _version(self) -> int:
        """The number of Spark's newest metadata file."""
        names = [file.name for file in self.metadata.glob("v*.metadata.json")]
        return max(int(name[1:].partition(".")[0]) for name in names)

    def change(self, upserts: list[int], deletes: list[int]) -> None:
        """Let calve change the table."""
        rows: list[Row] = [{"id": number, "v": "calve"} for number in upserts]
        self.calve.apply([self.calve.data(rows)], rows, [{"id": number, "v": ""} for number in deletes])
        self.rows |= dict.fromkeys(upserts, "calve")
        for number in deletes:
            self.rows.pop(number, None)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedTable]:
    made = SharedTable(tmp_path)
    yield made
    made.calve.close()


def check_compaction(shared: SharedTable) -> None:
    """Compact the table with calve: rows keep their ids and sequence numbers, as Spark sees them."""
    columns = ["id", "v", "_row_id", "_last_updated_sequence_number"]
    before = in_order(spark_iceberg_rows(shared.calve.table.metadata_location, columns))
    assert calve.compact(shared.calve.ref) is not None
    assert in_order(spark_iceberg_rows(shared.calve.table.metadata_location, columns)) == before
    plain = [{name: row[name] for name in columns[:2]} for row in before]
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
