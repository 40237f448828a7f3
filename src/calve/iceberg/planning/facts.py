"""What manifests say about the data files of a table: rows, partition, nulls and bounds of columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField, PrimitiveType, StructType

from calve.catalog.failures import trying
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.store import io_properties_of
from calve.iceberg.planning.delete_index import DeleteIndex
from calve.iceberg.schema.readable import every_field, spark_schema
from calve.model.numbers import whole_number


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about one column of a file; None if unknown. Dates and timestamps are counted from 1970."""

    nulls: int | None
    values: int | None
    """Nulls included."""
    least: Any = None
    greatest: Any = None


@dataclass(frozen=True)
class FileFacts:
    """Facts about one data file."""

    path: str
    size: int
    rows: int
    deletes: bool
    """Whether some of its rows may be deleted."""
    partition: tuple[str, ...]
    """`field=value`, in the order of the partition fields."""
    columns: Mapping[str, ColumnFacts]


@dataclass(frozen=True)
class TableFacts:
    """Facts about the newest snapshot of a table."""

    location: str
    snapshot_id: int | None
    timestamp_ms: int
    schema: Mapping[str, Any]
    """Spark's, for `StructType.fromJson`."""
    names: Mapping[int, str]
    """Top-level columns by field id."""
    partition_columns: tuple[str, ...]
    files: tuple[FileFacts, ...]
    io_properties: Mapping[str, str]


@dataclass(frozen=True)
class TableSummary:
    """A table by its metadata alone."""

    location: str
    schema: Mapping[str, Any]
    """Spark's, for `StructType.fromJson`."""
    snapshot_id: int | None
    timestamp_ms: int
    rows: int
    """Rows in its data files; unless `exact`, some of them may be deleted."""
    exact: bool
    files: int
    bytes: int


def standing_of(metadata: TableMetadata) -> TableSummary:
    """Summarize the newest snapshot by its own summary."""
    snapshot = metadata.current_snapshot()
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties

    def count(name: str) -> int:
        return whole_number(summary.get(name, "0")) or 0

    return TableSummary(
        location=metadata.location,
        schema=spark_schema(metadata.schema()),
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        timestamp_ms=snapshot.timestamp_ms if snapshot else metadata.last_updated_ms,
        rows=count("total-records"),
        exact=count("total-delete-files") == 0,
        files=count("total-data-files"),
        bytes=count("total-files-size"),
    )


def facts_of(table: Table) -> TableFacts:
    """Read the facts of a table from its manifests. Raises TransientError; InvalidInput if it cannot be read."""
    snapshot = table.current_snapshot()
    schema = table.schema()
    files: tuple[FileFacts, ...] = ()
    if snapshot is not None:
        with trying(f'reading the manifests of "{".".join(table.name())}"'):
            cache = ManifestCache()
            manifests = [line.manifest for line in cache.lines_of(table.io, snapshot)]
            data = cache.entries_of(table.io, *(m for m in manifests if m.content is ManifestContent.DATA))
            deletes = cache.entries_of(table.io, *(m for m in manifests if m.content is ManifestContent.DELETES))
        index = DeleteIndex(deletes, table.specs(), every_field(table).fields)
        columns = dict(_columns(schema.fields))
        files = tuple(_file(entry, index, columns, table.specs(), schema) for entry in data)
    return TableFacts(
        location=table.location(),
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        timestamp_ms=snapshot.timestamp_ms if snapshot else 0,
        schema=spark_schema(schema),
        names={field.field_id: field.name for field in schema.fields},
        partition_columns=tuple(field.name for field in table.spec().fields),
        files=files,
        io_properties=io_properties_of(table.io.properties),
    )


def _columns(fields: tuple[NestedField, ...], prefix: str = "") -> Any:
    """Columns and fields of structs, with their full names."""
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield from _columns(field.field_type.fields, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field


def _file(
    entry: ManifestEntry,
    index: DeleteIndex,
    columns: Mapping[str, NestedField],
    specs: Mapping[int, PartitionSpec],
    schema: Schema,
) -> FileFacts:
    file = entry.data_file
    return FileFacts(
        path=file.file_path,
        size=file.file_size_in_bytes,
        rows=file.record_count,
        deletes=bool(index.of(entry)),
        partition=_partition(file, specs[file.spec_id], schema),
        columns={name: _facts(file, field) for name, field in columns.items()},
    )


def _partition(file: DataFile, spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    kinds = {part.field_id: part.field_type for part in spec.partition_type(schema).fields}
    return tuple(
        f"{part.name}={part.transform.to_human_string(kinds[part.field_id], file.partition[place])}"
        for place, part in enumerate(spec.fields)
    )


def _facts(file: DataFile, field: NestedField) -> ColumnFacts:
    number, kind = field.field_id, field.field_type
    values = (file.value_counts or {}).get(number)
    nulls = (file.null_value_counts or {}).get(number)
    if not isinstance(kind, PrimitiveType):
        return ColumnFacts(nulls, values)
    low, high = (file.lower_bounds or {}).get(number), (file.upper_bounds or {}).get(number)
    return ColumnFacts(nulls, values, *(None if one is None else _value(kind, one) for one in (low, high)))


def _value(kind: PrimitiveType, bound: bytes) -> Any:
    try:
        return from_bytes(kind, bound)
    except (ValueError, TypeError):  # written with a type that was widened since
        return None
