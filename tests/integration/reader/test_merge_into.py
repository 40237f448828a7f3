"""Tables that Spark with the Iceberg runtime changes by MERGE INTO, UPDATE and DELETE."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import calve
from calve.model.scan import DeleteKind
from calve.reader.local import read_here
from tests.integration.reader.tables import SparkTable, check, in_order, registered, rows_of
from tests.support.combinations import diagonal
from tests.support.readers import spark_iceberg_rows

COLUMNS = "id BIGINT, region STRING, price DECIMAL(12, 2), note STRING, tags ARRAY<STRING>, at TIMESTAMP"
ROWS = (
    "SELECT id, concat('r', id % 3), CAST(id AS DECIMAL(12, 2)) / 4, concat('note ', id), "
    "CASE WHEN id % 5 > 0 THEN array('a', CAST(id AS STRING)) END, timestamp_millis(id * 1000000) FROM range({}, {})"
)
MERGE = (
    "MERGE INTO {t} t USING (SELECT id, id % 4 AS op FROM range(500, 1500, 3)) s ON t.id = s.id "
    "WHEN MATCHED AND s.op = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'merged', price = price + 1 "
    "WHEN NOT MATCHED THEN INSERT (id, region, note) VALUES (s.id, 'new', 'inserted')"
)


@diagonal(
    layout=["", "PARTITIONED BY (region)", "PARTITIONED BY (bucket(4, id), days(at))"],
    kind=[DeleteKind.POSITION, DeleteKind.VECTOR],
)
def test_merge_into_reads_as_the_runtime_does(
    spark: SparkSession, tmp_path: Path, kind: DeleteKind, layout: str
) -> None:
    version = 3 if kind is DeleteKind.VECTOR else 2
    table = SparkTable(tmp_path, "merged", COLUMNS, version, layout)
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 1000)}")
    table.run(MERGE)
    table.run("DELETE FROM {t} WHERE id % 7 = 0")
    table.run("UPDATE {t} SET region = 'moved' WHERE id % 11 = 0")
    wanted = table.rows()
    assert len(wanted) == 964
    check(spark, table.ref, wanted)
    plan = read_here(table.ref).plan
    assert plan.deletes(kind)
    assert not any(plan.deletes(other) for other in DeleteKind if other is not kind)


def test_a_table_upgraded_from_positions_to_vectors_reads_as_the_runtime_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = SparkTable(tmp_path, "upgraded", COLUMNS, 2)
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 300)}")
    table.run(f"INSERT INTO {{t}} {ROWS.format(300, 600)}")
    table.run("DELETE FROM {t} WHERE id % 7 = 0")
    table.run("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")
    table.run("DELETE FROM {t} WHERE id < 300 AND id % 5 = 0")
    wanted = table.rows()
    assert len(wanted) == len([n for n in range(600) if n % 7 and not (n < 300 and n % 5 == 0)])
    check(spark, table.ref, wanted)
    plan = read_here(table.ref).plan
    assert plan.deletes(DeleteKind.POSITION)
    assert plan.deletes(DeleteKind.VECTOR)


def test_earlier_snapshots_read_as_the_runtime_does(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(tmp_path, "history", COLUMNS, 3)
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 100)}")
    table.run("DELETE FROM {t} WHERE id % 2 = 0")
    table.run("ALTER TABLE {t} RENAME COLUMN note TO remark")
    table.run("DELETE FROM {t} WHERE id % 3 = 0")
    ref, location = table.ref, table.location
    snapshots = ref.lake.open().load_table(str(ref)).metadata.snapshots
    assert len(snapshots) == 3
    for snapshot in snapshots:
        found = rows_of(calve.read(spark, ref, snapshot_id=snapshot.snapshot_id))
        assert in_order(found) == in_order(spark_iceberg_rows(location, snapshot_id=snapshot.snapshot_id))


def test_schemas_that_changed_read_as_the_runtime_does(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(
        tmp_path, "evolved", "id INT, f FLOAT, d DECIMAL(5, 2), s STRUCT<a: INT, b: STRING>, gone STRING", 2
    )
    table.run("INSERT INTO {t} SELECT id, id / 2, id / 4, named_struct('a', id, 'b', 'x'), 'g' FROM range(50)")
    table.run("ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT")
    table.run("ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE")
    table.run("ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(18, 2)")
    table.run("ALTER TABLE {t} RENAME COLUMN s.a TO first")
    table.run("ALTER TABLE {t} ADD COLUMN s.c MAP<STRING, INT>")
    table.run("ALTER TABLE {t} DROP COLUMN gone")
    table.run("ALTER TABLE {t} ADD COLUMN gone DATE FIRST")
    table.run("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)")
    table.run(
        "INSERT INTO {t} SELECT DATE'2024-02-29', id << 40, 0.1D, 1.25, "
        "named_struct('first', id, 'b', NULL, 'c', map('k', 1)) FROM (SELECT id FROM range(50, 60))"
    )
    table.run("DELETE FROM {t} WHERE s.first % 5 = 0")
    check(spark, table.ref, table.rows())


def test_initial_defaults_of_version_3_read_as_the_runtime_does(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(tmp_path, "defaulted", "id BIGINT", 3)
    table.run("INSERT INTO {t} SELECT id FROM range(20)")
    table.run("ALTER TABLE {t} ADD COLUMNS (n INT, day DATE, s STRING)")
    table.run("INSERT INTO {t} SELECT id, 6, NULL, 'x' FROM range(20, 30)")
    table.run("DELETE FROM {t} WHERE id % 5 = 0")
    location = with_defaults(table.location, {"n": 5, "day": "2024-02-29", "s": "none"})
    wanted = spark_iceberg_rows(location)
    assert {(row["n"], row["s"]) for row in wanted} == {(5, "none"), (6, "x")}
    check(spark, registered(tmp_path, "defaulted", location), wanted)


def with_defaults(location: str, defaults: dict[str, Any]) -> str:
    """The same metadata with initial defaults, which this version of the runtime reads and cannot set."""
    path = Path(location.removeprefix("file:"))
    metadata = json.loads(path.read_text())
    for schema in metadata["schemas"]:
        for column in schema["fields"]:
            if column["name"] in defaults:
                column["initial-default"] = defaults[column["name"]]
    changed = path.with_name("v999.metadata.json")
    changed.write_text(json.dumps(metadata))
    return str(changed)


def test_files_that_were_added_without_ids_read_as_the_runtime_does(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    rows = spark.sql(
        "SELECT id, named_struct('a', id, 'b', array(id)) AS s, timestamp_seconds(id) AS at, "
        "DATE'2024-01-01' + CAST(id % 3 AS INT) AS day, CASE WHEN id % 2 = 0 THEN 'eu' END AS region FROM range(60)"
    )
    rows.repartition(1).write.partitionBy("day", "region").parquet(str(folder))
    columns = "id BIGINT, s STRUCT<a: BIGINT, b: ARRAY<BIGINT>>, at TIMESTAMP, day DATE, region STRING"
    table = SparkTable(tmp_path, "added", columns, 2, "PARTITIONED BY (day, region)")
    table.run(f"CALL scratch.system.add_files(table => 'shop.added', source_table => '`parquet`.`{folder}`')")
    table.run("ALTER TABLE {t} RENAME COLUMN s.a TO first")
    table.run("DELETE FROM {t} WHERE id % 7 = 0")
    wanted = table.rows()
    assert len(wanted) == 51
    check(spark, table.ref, wanted)


def test_columns_and_their_comments_are_as_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(tmp_path, "described", "id BIGINT NOT NULL COMMENT 'the key', `odd.name` STRING, u BINARY", 2)
    table.run("INSERT INTO {t} VALUES (1, 'x', X'00ff')")
    frame = calve.read(spark, table.ref)
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in frame.schema] == [
        ("id", "bigint", False),
        ("odd.name", "string", True),
        ("u", "binary", True),
    ]
    assert frame.schema["id"].metadata == {"comment": "the key"}
    assert rows_of(frame) == [{"id": 1, "odd.name": "x", "u": b"\x00\xff"}]
