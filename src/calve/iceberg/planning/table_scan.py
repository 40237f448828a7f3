"""Plans a scan: snapshot -> manifests -> data files with their deletes.

    manifest list ──► data manifests that may match ──► files that may match, by partition, then by bounds
                 └──► delete manifests ───────────────► DeleteIndex ──► deletes of each file

Delete manifests are read whole, whatever the condition: a delete of a matching row may itself not match.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from calve.catalog.failures import trying
from calve.iceberg.files.content import first_row_id
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.planning.delete_index import DeleteIndex, check_readable
from calve.iceberg.planning.pruning import Pruning
from calve.iceberg.planning.travel import AsOf, TravelPoint, moment_of
from calve.iceberg.schema.readable import ReadTarget, every_field, projected, read_target, spark_schema
from calve.model.scan import EVERYTHING, Condition, DeleteFile, DeleteKind, Pruned, ScanFile, ScanPlan

NOTHING = ScanPlan(None, None, None, (), 0, 0)
"""The plan of a table without a snapshot."""


@dataclass(frozen=True)
class Scan:
    """One moment of a table, ready to be planned. The plan sees exactly this moment, whatever others commit."""

    table: Table
    moment: TravelPoint
    schema: Schema

    @classmethod
    def of(cls, table: Table, as_of: AsOf, columns: Sequence[str] | None = None) -> "Scan":
        """Choose a moment and columns. Raises InvalidInput if the moment or a column does not exist."""
        moment = moment_of(table, as_of)
        return cls(table, moment, projected(_schema_of(table, moment), columns, ".".join(table.name())))

    def read_as(self, schema_id: int) -> "Scan":
        """The same moment with all columns of another schema of the table, matched by field id."""
        moment = replace(self.moment, schema_id=schema_id)
        return replace(self, moment=moment, schema=_schema_of(self.table, moment))

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [f.name for f in self.schema.fields]

    @property
    def spark_schema(self) -> dict[str, Any]:
        """The Spark schema of the columns, for `StructType.fromJson`."""
        return spark_schema(self.schema)

    def select(self, columns: Sequence[str]) -> "Scan":
        """The same moment with fewer columns."""
        return replace(self, schema=projected(self.schema, columns, ".".join(self.table.name())))

    def plan(self, where: Condition = EVERYTHING) -> ScanPlan:
        """Plan files and deletes. Raises TransientError; InvalidInput for unsupported file formats."""
        snapshot = self.moment.snapshot
        if snapshot is None:
            return NOTHING
        with trying(f'planning a scan of "{".".join(self.table.name())}"'):
            cache = ManifestCache()
            manifests = [line.manifest for line in cache.all_lines_of(self.table.io, snapshot)]
            pruning = Pruning(where, _schema_of(self.table, self.moment), self.table.specs())
            files, pruned = self._files(manifests, cache, pruning)
        data = [m for m in manifests if m.content is ManifestContent.DATA]
        return ScanPlan(
            snapshot_id=snapshot.snapshot_id,
            timestamp_ms=snapshot.timestamp_ms,
            frontier=self.moment.frontier,
            files=files,
            data_files=sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in data),
            manifests=len(manifests),
            pruned=pruned,
            where=where,
        )

    def target(self, plan: ScanPlan) -> ReadTarget:
        """How to read the files of a plan into the columns."""
        ids = {field_id for delete in plan.deletes(DeleteKind.EQUALITY) for field_id in delete.equality_ids}
        return read_target(self.table, self.schema, ids, plan.where)

    def _files(
        self, manifests: Sequence[ManifestFile], cache: ManifestCache, pruning: Pruning
    ) -> tuple[tuple[ScanFile, ...], Pruned]:
        data = [m for m in manifests if m.content is ManifestContent.DATA]
        matching = [m for m in data if pruning.may_match_manifest(m)]
        entries = cache.entries_of(self.table.io, *matching)
        in_partition = [e for e in entries if pruning.may_match_partition(e.data_file)]
        chosen = [e for e in in_partition if pruning.may_match_bounds(e.data_file)]
        deletes = [m for m in manifests if m.content is ManifestContent.DELETES] if chosen else []
        oldest = min((e.sequence_number or 0 for e in chosen), default=0)
        newer = [m for m in deletes if (m.sequence_number or 0) >= oldest]
        fields = every_field(self.table).fields
        index = DeleteIndex(cache.entries_of(self.table.io, *newer), self.table.specs(), fields)
        pruned = Pruned(
            manifests=len(data) - len(matching),
            files_by_partition=len(entries) - len(in_partition),
            files_by_bounds=len(in_partition) - len(chosen),
        )
        return tuple(
            scan_file(entry, index.of(entry), self.table.specs()[entry.data_file.spec_id]) for entry in chosen
        ), pruned


def _schema_of(table: Table, moment: TravelPoint) -> Schema:
    return next(schema for schema in table.metadata.schemas if schema.schema_id == moment.schema_id)


def scan_file(entry: ManifestEntry, deletes: tuple[DeleteFile, ...], spec: PartitionSpec) -> ScanFile:
    """A data file with the deletes that apply to it. Raises InvalidInput if it cannot be read."""
    file = entry.data_file
    check_readable(file)
    return ScanFile(
        path=file.file_path,
        size=file.file_size_in_bytes,
        rows=file.record_count,
        sequence_number=entry.sequence_number or 0,
        split_offsets=_ascending(file.split_offsets),
        constants=_constants(file, spec),
        deletes=deletes,
        spec_id=file.spec_id,
        partition=tuple(file.partition[place] for place in range(len(file.partition))),
        first_row_id=first_row_id(file),
    )


def _ascending(offsets: Sequence[int] | None) -> tuple[int, ...]:
    """The offsets, or none if they are not strictly ascending."""
    given = tuple(offsets or ())
    return given if list(given) == sorted(set(given)) else ()


def _constants(file: DataFile, spec: PartitionSpec) -> tuple[tuple[int, Any], ...]:
    return tuple(
        (part.source_id, file.partition[place])
        for place, part in enumerate(spec.fields)
        if isinstance(part.transform, IdentityTransform)
    )
