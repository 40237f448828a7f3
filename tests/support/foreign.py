"""Tables of other writers: any schema and spec, equality deletes of several field sets, position deletes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import ManifestEntry
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType

import calve
from calve.catalog.connect import connect_embedded
from calve.catalog.outcome import send
from calve.clock import RandomIds, SystemClock
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_file, write_manifests
from calve.iceberg.files.store import open_output
from calve.iceberg.schema.arrow import arrow_schema, metrics_of
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import added_counts, new_summary
from calve.iceberg.snapshot.removal import remove_named
from calve.lake import TableRef
from calve.model.checkpoint import offsets_digest
from calve.model.files import Content, FileTotals, WriteResult, WrittenFile
from calve.model.frontier import Frontier
from calve.model.progress import Fence, Progress
from calve.model.scan import ContentId
from calve.model.table import Proposal
from calve.reader.local import TimeTravel, read_here

NAME = "shop.others"
SINK = "7d1f0000-0000-4000-8000-000000000001"
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]

POSITION_DELETES = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)


class ForeignTable:
    """A table in its own catalog, written file by file."""

    def __init__(
        self,
        home: Path,
        schema: Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.catalog: Catalog = connect_embedded(home)
        self.catalog.create_namespace("shop")
        self.catalog.create_table(
            NAME, schema, partition_spec=spec, properties={"format-version": "2", **(properties or {})}
        )
        self._ids = RandomIds()
        self._commits = 0

    @property
    def table(self) -> Table:
        """The current table."""
        return self.catalog.load_table(NAME)

    @property
    def ref(self) -> TableRef:
        """The table as calve refers to it."""
        return calve.connect(home=self.home).table(NAME)

    def data(self, rows: Sequence[Row], partition: Sequence[Any] = (), **how: Any) -> WrittenFile:
        """Write a data file in the default spec, with the current columns of the table."""
        return self._file(Content.DATA, self.table.schema(), rows, partition, **how)

    def equality(
        self, fields: Sequence[str], rows: Iterable[Row], partition: Sequence[Any] = (), **how: Any
    ) -> WrittenFile:
        """Write equality deletes."""
        found = [self.table.schema().find_field(name) for name in fields]
        schema = Schema(*[f.model_copy(update={"required": False}) for f in found])
        ids = tuple(f.field_id for f in found)
        return self._file(Content.EQUALITY_DELETES, schema, list(rows), partition, equality_ids=ids, **how)

    def positions(
        self, places: Iterable[tuple[WrittenFile, int]], partition: Sequence[Any] = (), **how: Any
    ) -> WrittenFile:
        """Write position deletes."""
        rows = [{"file_path": path, "pos": at} for path, at in sorted((file.path, at) for file, at in places)]
        return self._file(Content.POSITION_DELETES, POSITION_DELETES, rows, partition, **how)

    def _file(
        self,
        content: Content,
        schema: Schema,
        rows: Sequence[Row],
        partition: Sequence[Any],
        *,
        spec_id: int | None = None,
        equality_ids: tuple[int, ...] = (),
        row_group_size: int | None = None,
        field_ids: bool = True,
    ) -> WrittenFile:
        table = self.table
        path = f"{table.location()}/data/{self._ids.new_id()}.parquet"
        arrow = arrow_schema(schema) if field_ids else schema_to_pyarrow(schema, include_field_ids=False)
        written = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow)
        with open_output(path, {}) as sink:
            with pq.ParquetWriter(sink, written.schema, compression="zstd") as writer:
                writer.write_table(written, row_group_size=row_group_size)
            size = sink.tell()
        metrics, offsets = metrics_of(writer.writer.metadata, schema, {"write.metadata.metrics.default": "full"})
        spec = table.metadata.default_spec_id if spec_id is None else spec_id
        return WrittenFile(content, path, len(rows), size, spec, tuple(partition), metrics, offsets, equality_ids)

    def commit(self, *files: WrittenFile) -> int:
        """Commit one snapshot with these files; returns its id. Frontiers are 10, 20, ..."""
        iceberg = IcebergTable(self.table, SINK, [], SystemClock(), self._ids)
        number = self._commits
        self._commits += 1
        lower, upper = Frontier(10 * number), Frontier(10 * number + 10)
        fence, digest = Fence(1, 1, "run"), offsets_digest(None)
        progress = Progress(SINK, fence, upper, lower, f"commit-{number}", "query", number, None, digest)
        manifests = iceberg.write_manifests(files, progress.commit_id) if files else ()
        totals = FileTotals.of(WriteResult(files, len(files)))
        return iceberg.commit(iceberg.load(), Proposal(progress, manifests, totals)).snapshot_id

    def exchange(
        self, gone: Iterable[WrittenFile], *files: WrittenFile, operation: Operation = Operation.OVERWRITE
    ) -> int:
        """Commit one snapshot that removes some files and adds others; returns its id."""
        return exchange_files(self.table, {file.id for file in gone}, files, operation)

    def rows(self, columns: Sequence[str] | None = None, **at: Any) -> Rows:
        """Read the table with calve, without Spark."""
        travel: TimeTravel = at  # type: ignore[assignment]
        return [row for batch in read_here(self.ref, columns=columns, **travel).rows() for row in batch.to_pylist()]

    def close(self) -> None:
        """Close the database."""
        self.catalog.close()


def exchange_files(
    table: Table,
    gone: Collection[ContentId],
    files: Sequence[WrittenFile],
    operation: Operation = Operation.OVERWRITE,
) -> int:
    """Commit one snapshot that removes some files and adds others; returns its id."""
    ids = RandomIds()
    draft = new_draft(table, SystemClock(), ids)
    manifests = ManifestCache()
    before = manifests.all_lines_of(table.io, draft.parent)
    removal = remove_named(draft, before, set(gone), manifests)
    added = write_manifests(table, files, f"exchanged-{ids.new_id()}") if files else ()
    lines = [ManifestLine(manifest_file(m, draft.snapshot_id, draft.sequence_number)) for m in added]
    counts = added_counts(FileTotals.of(WriteResult(tuple(files), 0)))
    summary = new_summary(operation, counts, draft.parent, {}, removed=removal.counts)
    contents = SnapshotContents((*lines, *removal.lines), before, summary)
    send(snapshot_change(draft, contents, manifests), "an exchange of files")
    return draft.snapshot_id


def live_entries_of(found: ForeignTable) -> list[ManifestEntry]:
    """The live entries of the head, with what they inherit."""
    cache, table = ManifestCache(), found.table
    lines = cache.lines_of(table.io, table.current_snapshot())
    return cache.entries_of(table.io, *(line.manifest for line in lines))


def in_order(rows: Iterable[Row]) -> Rows:
    """Sort rows for comparison."""
    return sorted((dict(row) for row in rows), key=repr)
