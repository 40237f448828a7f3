"""What Spark with the Iceberg runtime, and DuckDB, make of a component."""

from dataclasses import replace
from pathlib import Path

from calve.metastore import filters as f
from calve.metastore.statistics import ColumnStatistics, StatisticsType
from calve.metastore.tables import open_tables
from tests.support.readers import duckdb_rows, spark_iceberg_rows
from tests.unit.metastore.sample import DELETE_AFTER_COMMIT, GENERAL, VERSIONS_MAX, metastore_at, segment

COLUMNS = ["table_name", "metadata_key", "last_modified_time", "interesting_columns", "columns_statistics"]


def test_other_engines_read_a_component_that_was_overwritten_deleted_and_expired(tmp_path: Path) -> None:
    statistics = {"n": ColumnStatistics(StatisticsType.WHOLE, nulls=0, values=2, least=1, greatest=2)}
    with metastore_at(tmp_path, common={DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: "3"}) as metastore:
        tables = open_tables(metastore)
        for number in range(20):
            changed = replace(segment(f"dir{number % 7}"), last_modified_time=number, columns_statistics=statistics)
            tables.modify().overwrite(changed, replace(GENERAL, interesting_columns=())).execute()
        tables.modify().delete(f.one_of("metadata_key", ["dir1", "dir2"])).execute()
        seen = tables.see().table
        units = tables.read()
    expected = sorted((unit.table_name, unit.metadata_key, unit.last_modified_time) for unit in units)
    assert len(expected) == 1 + 5
    for read in (spark_iceberg_rows, duckdb_rows):
        rows = read(seen.metadata_location, COLUMNS)
        assert sorted((row["table_name"], row["metadata_key"], row["last_modified_time"]) for row in rows) == expected
        (general,) = [row for row in rows if row["metadata_key"] == "GENERAL_INFO"]
        assert (general["interesting_columns"], general["columns_statistics"]) == ([], None)
        one = next(row for row in rows if row["metadata_key"] != "GENERAL_INFO")
        assert {name: ColumnStatistics.from_text(text) for name, text in one["columns_statistics"]} == statistics
        for snapshot in seen.metadata.snapshots:
            assert snapshot.summary is not None
            count = len(read(seen.metadata_location, ["metadata_key"], snapshot.snapshot_id))
            assert str(count) == snapshot.summary["total-records"]
