"""A table in words: its columns, and its history."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, StructType

from calve.model.numbers import whole_number
from calve.model.progress import FRONTIER, SINK_ID
from calve.model.types import sql_name


@dataclass(frozen=True)
class TableColumn:
    """One column of a table."""

    name: str
    type: str
    """In calve's SQL."""
    nullable: bool
    key: bool
    partitions: tuple[str, ...]
    """Transforms by which the table is partitioned by it."""


@dataclass(frozen=True)
class TableSnapshot:
    """One snapshot of a table."""

    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    operation: str
    added_rows: int
    """Rows in added data files."""
    deletes: int
    """Keys and positions in added delete files, and rows in removed data files."""
    data_files: int
    """Data files of the table after it."""
    frontier: str | None
    """As in its summary; None for snapshots that no sink committed."""
    sink_id: str | None
    refs: tuple[str, ...]


def columns_of_table(table: Table) -> list[TableColumn]:
    """The current columns of a table, in order."""
    schema = table.schema()
    keys = set(schema.identifier_field_ids)
    transforms: dict[int, list[str]] = {}
    for field in table.spec().fields:
        transforms.setdefault(field.source_id, []).append(str(field.transform))
    return [
        TableColumn(
            name=field.name,
            type=type_in_sql(field.field_type),
            nullable=not field.required,
            key=field.field_id in keys,
            partitions=tuple(transforms.get(field.field_id, ())),
        )
        for field in schema.fields
    ]


def type_in_sql(kind: IcebergType) -> str:
    """A type in calve's SQL; types that SQL cannot declare keep Iceberg's name."""
    match kind:
        case StructType():
            return f"STRUCT<{', '.join(f'{f.name}: {type_in_sql(f.field_type)}' for f in kind.fields)}>"
        case ListType():
            return f"ARRAY<{type_in_sql(kind.element_type)}>"
        case MapType():
            return f"MAP<{type_in_sql(kind.key_type)}, {type_in_sql(kind.value_type)}>"
        case DecimalType():
            return f"DECIMAL({kind.precision},{kind.scale})"
        case _:
            return sql_name(str(kind)) or str(kind).upper()


def snapshots_of_table(table: Table) -> list[TableSnapshot]:
    """The remaining snapshots of a table, newest first."""
    refs: dict[int, list[str]] = {}
    for name, ref in table.metadata.refs.items():
        refs.setdefault(ref.snapshot_id, []).append(name)
    ordered = sorted(table.metadata.snapshots, key=lambda s: (s.sequence_number or 0, s.timestamp_ms), reverse=True)
    return [_snapshot(one, tuple(sorted(refs.get(one.snapshot_id, ())))) for one in ordered]


def _snapshot(snapshot: Snapshot, refs: tuple[str, ...]) -> TableSnapshot:
    summary = snapshot.summary
    given: Mapping[str, str] = summary.additional_properties if summary else {}
    return TableSnapshot(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        timestamp_ms=snapshot.timestamp_ms,
        operation=summary.operation.value if summary else "",
        added_rows=_count(given, "added-records"),
        deletes=sum(_count(given, key) for key in _DELETES),
        data_files=_count(given, "total-data-files"),
        frontier=given.get(FRONTIER),
        sink_id=given.get(SINK_ID),
        refs=refs,
    )


_DELETES = ("added-equality-deletes", "added-position-deletes", "deleted-records")


def _count(summary: Mapping[str, str], key: str) -> int:
    return whole_number(summary.get(key, "")) or 0
