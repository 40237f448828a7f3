"""What every writer wrote, read by engines that are not calve."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds, SystemClock
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.sink_table import IcebergTable
from calve.model.change import table_columns
from calve.model.checkpoint import offsets_digest
from calve.model.files import FileTotals
from calve.model.frontier import Frontier
from calve.model.progress import Fence, Progress
from calve.model.spec import TableName, WriteOptions
from calve.model.table import Proposal
from tests.integration.write.frames import Row, frame_of
from tests.integration.write.test_writers import EVERY_TYPE, FAST, rows_of_every_type, write
from tests.support.readers import duckdb_rows, spark_iceberg_rows

KEY = ["day", "text", "price", "small"]
NAME = TableName.parse("shop.everything")
Reader = Callable[[str], list[dict[str, Any]]]


class Everything:
    """A table with a column of every type that batches are committed to."""

    def __init__(self, home: Path, frame: DataFrame) -> None:
        self.columns = table_columns(frame.columns)
        schema = iceberg_schema(frame.select(*[f"`{name}`" for name in self.columns]).schema, KEY)
        self.catalog = connect_embedded(home)
        created = load_or_create_table(self.catalog, NAME, schema, KEY, {})
        self.table = IcebergTable(created, "sink", KEY, SystemClock(), RandomIds())

    def commit(self, number: int, frame: DataFrame, writer: str) -> None:
        result = write(FAST[writer], frame, self.table.write_target(WriteOptions()), deletes=number > 0)
        manifests = self.table.write_manifests(result.files, f"commit-{number}")
        lower, upper = Frontier(number), Frontier(number + 1)
        fence = Fence(1, 1, "run")
        progress = Progress("sink", fence, upper, lower, f"commit-{number}", "q", number, None, offsets_digest(None))
        self.table.commit(self.table.load(), Proposal(progress, manifests, FileTotals.of(result)))

    def rows(self, reader: Reader) -> list[Row]:
        """In no order."""
        found = reader(self.catalog.load_table(NAME.identifier).metadata_location)
        return sorted((tuple(_plain(row[name]) for name in self.columns) for row in found), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("writer", FAST)
def test_other_engines_read_what_a_writer_wrote(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    rows = rows_of_every_type(300)
    batches = [frame_of(spark, EVERY_TYPE, rows[:100]), frame_of(spark, EVERY_TYPE, rows[100:])]
    table = Everything(tmp_path, batches[0])
    for number, frame in enumerate(batches):
        table.commit(number, frame, writer)
    width = len(table.columns)
    key = [table.columns.index(name) for name in KEY]
    last = {tuple(row[i] for i in key): row for row in rows}  # their order is their rank
    wanted = sorted((tuple(map(_plain, row[:width])) for row in last.values() if row[width] == 1), key=repr)
    assert table.rows(duckdb_rows) == wanted
    assert table.rows(spark_iceberg_rows) == wanted
    table.catalog.close()
