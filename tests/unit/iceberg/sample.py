"""A small real table in a folder of its own, written and read without Spark."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from calve.catalog.connect import connect_embedded
from calve.clock import IdSource, RandomIds
from calve.iceberg.files.store import open_output
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.schema.arrow import arrow_schema, key_schema, metrics_of, parse_schema
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot.removal_journal import RemovalJournal
from calve.model.checkpoint import offsets_digest
from calve.model.files import Content, FileTotals, Manifest, WriteResult, WrittenFile
from calve.model.frontier import Frontier
from calve.model.progress import Fence, Progress
from calve.model.spec import RetentionOptions, TableName, WriteOptions
from calve.model.table import Proposal, TableState
from calve.storage.state import LocalState
from tests.support.readers import duckdb_rows

COLUMNS = """{"type": "struct", "fields": [
  {"name": "id", "type": "long", "nullable": true, "metadata": {}},
  {"name": "v", "type": "string", "nullable": true, "metadata": {}}]}"""
NAME = TableName.parse("shop.orders")
SINK = "5e9a2d0c-0000-4000-8000-000000000001"
Rows = Mapping[int, str]


class SetClock:
    """A clock that stands where it is put: ahead of the machine's, by which pyiceberg makes tables."""

    def __init__(self, now: int = 4_102_444_800_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


@dataclass
class Sample:
    """A table, its sink, and what was committed last."""

    home: Path
    sink_id: str = SINK
    properties: Mapping[str, str] = field(default_factory=dict)
    clock: SetClock = field(default_factory=SetClock)
    ids: IdSource = field(default_factory=RandomIds)
    batches: int = 0
    opened: Catalog | None = None
    """Another catalog than the one of `home`."""
    retention: RetentionOptions = field(default_factory=RetentionOptions)

    def __post_init__(self) -> None:
        self.catalog: Catalog = self.opened or connect_embedded(self.home)
        created = load_or_create_table(self.catalog, NAME, iceberg_schema(COLUMNS, ["id"]), ["id"], self.properties)
        self.state = LocalState(self.home / "state")
        self.iceberg = IcebergTable(
            created,
            self.sink_id,
            ["id"],
            self.clock,
            self.ids,
            retention=self.retention,
            removals=RemovalJournal(self.state),
        )

    @property
    def table(self) -> Table:
        """As the catalog has it now."""
        return self.catalog.load_table(NAME.identifier)

    def write(self, rows: Rows, deletes: Iterable[int] = ()) -> tuple[WrittenFile, ...]:
        """One data file and one file of equality deletes, each when there is something in it."""
        target = self.iceberg.write_target(WriteOptions())
        schema = parse_schema(target.schema_json)
        keys = key_schema(schema, target.key_ids)
        data = pa.Table.from_pylist([{"id": k, "v": v} for k, v in rows.items()], schema=arrow_schema(schema))
        gone = pa.Table.from_pylist([{"id": k} for k in deletes], schema=arrow_schema(keys))
        files = []
        for content, table, file_schema, ids in (
            (Content.DATA, data, schema, ()),
            (Content.EQUALITY_DELETES, gone, keys, target.key_ids),
        ):
            if table.num_rows:
                path = f"{target.data_location}/calve-{self.ids.new_id()}.parquet"
                size, footer = _write_parquet(table, path, target.io_properties)
                metrics, offsets = metrics_of(footer, file_schema, target.table_properties)
                files.append(WrittenFile(content, path, table.num_rows, size, 0, (), metrics, offsets, ids))
        return tuple(files)

    def progress(self, commit_id: str = "", epoch: int = 1) -> Progress:
        """Progress of the next batch."""
        number = self.batches
        offsets = f'{{"at":{number}}}'
        return Progress(
            sink_id=self.sink_id,
            fence=Fence(1, epoch, f"run-{epoch}"),
            frontier=Frontier(10 * (number + 1)),
            lower=Frontier(10 * number),
            commit_id=commit_id or f"commit-{number}",
            query_id="query",
            checkpoint=number,
            offsets=offsets,
            digest=offsets_digest(offsets),
        )

    def proposal(self, rows: Rows, deletes: Iterable[int] = ()) -> Proposal:
        """The next batch, its files and manifests written."""
        files = self.write(rows, deletes)
        progress = self.progress()
        manifests: tuple[Manifest, ...] = self.iceberg.write_manifests(files, progress.commit_id) if files else ()
        self.batches += 1
        return Proposal(progress, manifests, FileTotals.of(WriteResult(files, len(files))))

    def commit(self, rows: Rows, deletes: Iterable[int] = (), state: TableState | None = None) -> Progress:
        """One batch, on the newest state unless told otherwise."""
        return self.iceberg.commit(state or self.iceberg.load(), self.proposal(rows, deletes))

    def rows(self, snapshot_id: int | None = None) -> dict[int, str]:
        """What DuckDB reads; a key that is there twice fails."""
        found = duckdb_rows(self.table.metadata_location, snapshot_id=snapshot_id)
        rows = {row["id"]: row["v"] for row in found}
        assert len(rows) == len(found), found
        return rows

    def close(self) -> None:
        """Close the database."""
        self.catalog.close()


def _write_parquet(table: pa.Table, location: str, io_properties: Mapping[str, str]) -> tuple[int, pq.FileMetaData]:
    with open_output(location, io_properties) as sink:
        with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
            writer.write_table(table)
        size = sink.tell()
    return size, writer.writer.metadata
