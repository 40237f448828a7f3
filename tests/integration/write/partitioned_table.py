"""A table with partitions that batches of changes are committed to, and a dictionary beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds, SystemClock
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.schema.creation import iceberg_schema, partition_spec
from calve.iceberg.sink_table import IcebergTable
from calve.model.change import table_columns
from calve.model.checkpoint import offsets_digest
from calve.model.files import FileTotals, WriteResult
from calve.model.frontier import Frontier
from calve.model.progress import Fence, Progress
from calve.model.spec import PartitionBy, TableName, WriteOptions
from calve.model.table import Proposal
from calve.sql.parser import parse_partition_field
from calve.write.job import Writer
from tests.integration.write.test_writers import write
from tests.support.readers import duckdb_rows, spark_iceberg_rows

NAME = TableName.parse("shop.parts")


def partition_by(*fields: str) -> list[PartitionBy]:
    parsed = [parse_partition_field(text) for text in fields]
    return [PartitionBy(f.transform.value, tuple(map(str, f.column.parts)), f.width) for f in parsed]


class PartitionedTable:
    """Of the columns of a frame of changes, with the key `id`."""

    def __init__(self, home: Path, frame: DataFrame, *fields: str) -> None:
        self.columns = table_columns(frame.columns)
        schema = iceberg_schema(frame.select(*self.columns).schema, ["id"])
        spec = partition_spec(schema, partition_by(*fields))
        self.catalog = connect_embedded(home)
        created = load_or_create_table(self.catalog, NAME, schema, ["id"], spec=spec)
        self.table = IcebergTable(created, "sink", ["id"], SystemClock(), RandomIds())
        self.batches = 0

    @property
    def iceberg(self) -> Table:
        """As the catalog has it now."""
        return self.catalog.load_table(NAME.identifier)

    def commit(self, writer: Writer, frame: DataFrame) -> WriteResult:
        """One batch."""
        number, self.batches = self.batches, self.batches + 1
        state = self.table.load()
        result = write(writer, frame, self.table.write_target(WriteOptions()), deletes=number > 0)
        manifests = self.table.write_manifests(result.files, f"commit-{number}") if result.files else ()
        lower, upper = Frontier(number), Frontier(number + 1)
        fence = Fence(1, 1, "run")
        progress = Progress("sink", fence, upper, lower, f"commit-{number}", "q", number, None, offsets_digest(None))
        self.table.commit(state, Proposal(progress, manifests, FileTotals.of(result)))
        return result

    def rows(self, columns: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
        """By reader, in order."""
        at = self.iceberg.metadata_location
        return {
            name: sorted((tuple(row[column] for column in columns) for row in read(at)), key=repr)
            for name, read in (("DuckDB", duckdb_rows), ("Spark", spark_iceberg_rows))
        }
