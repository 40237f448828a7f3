"""The component `tables`: tables of other systems with their segments, files, row groups and partitions.

One file holds the general information of a table (one row). Each top-level segment has another file: the segment, its
nested segments, their files, row groups and partitions. A table without folders has one segment, the default one. So a
changed part of a table is replaced without rewriting the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from calve.metastore.component import Component
from calve.metastore.filters import Filter, all_of, eq
from calve.metastore.metastore import Metastore
from calve.metastore.statistics import ColumnStatistics, Statistic, StatisticKind
from calve.metastore.units import Role, unit_field

NAME: Final = "tables"

GENERAL_INFO: Final = "GENERAL_INFO"
"""The metadata key of the unit that describes the whole table."""
DEFAULT_SEGMENT: Final = "DEFAULT_SEGMENT"
"""The metadata key of the only segment of a table without folders."""


class MetadataType(StrEnum):
    """What a unit describes."""

    TABLE = "TABLE"
    SEGMENT = "SEGMENT"
    FILE = "FILE"
    ROW_GROUP = "ROW_GROUP"
    PARTITION = "PARTITION"


_TABLE, _SEGMENT, _FILE, _ROW_GROUP, _PARTITION = MetadataType


@dataclass(frozen=True, kw_only=True)
class TableUnit:
    """One row: a table, a segment, a file, a row group or a partition."""

    storage_plugin: str | None = unit_field(role=Role.STORAGE_KEY)
    workspace: str | None = unit_field(role=Role.STORAGE_KEY)
    table_name: str | None = unit_field(role=Role.STORAGE_KEY)
    owner: str | None = unit_field(_TABLE)
    table_type: str | None = unit_field(_TABLE)
    metadata_type: MetadataType | None = unit_field(role=Role.TYPE)
    metadata_key: str | None = unit_field(role=Role.PARTITION_KEY)
    location: str | None = unit_field(_TABLE, _SEGMENT, _FILE, _ROW_GROUP)
    interesting_columns: tuple[str, ...] | None = unit_field(_TABLE)
    schema: str | None = unit_field()
    columns_statistics: Mapping[str, ColumnStatistics] | None = unit_field()
    metadata_statistics: tuple[Statistic, ...] | None = unit_field()
    last_modified_time: int | None = unit_field()
    partition_keys: Mapping[str, str] | None = unit_field(_TABLE)
    additional_metadata: str | None = unit_field()

    metadata_identifier: str | None = unit_field(_SEGMENT, _FILE, _ROW_GROUP, _PARTITION)
    column: str | None = unit_field(_SEGMENT, _PARTITION)
    locations: tuple[str, ...] | None = unit_field(_SEGMENT, _PARTITION)
    partition_values: tuple[str, ...] | None = unit_field(_SEGMENT, _PARTITION)

    path: str | None = unit_field(_SEGMENT, _FILE, _ROW_GROUP)

    row_group_index: int | None = unit_field(_ROW_GROUP)
    host_affinity: Mapping[str, float] | None = unit_field(_ROW_GROUP)


@dataclass(frozen=True)
class TableId:
    """A table by its three names."""

    storage_plugin: str
    workspace: str
    name: str

    def __str__(self) -> str:
        return f"{self.storage_plugin}.{self.workspace}.{self.name}"

    @classmethod
    def of(cls, unit: TableUnit) -> "TableId":
        """The table that a unit belongs to."""
        return cls(unit.storage_plugin or "", unit.workspace or "", unit.table_name or "")

    def condition(self) -> Filter:
        """Matches all units of the table."""
        return all_of(
            eq("storage_plugin", self.storage_plugin), eq("workspace", self.workspace), eq("table_name", self.name)
        )


def number_of(unit: TableUnit, kind: StatisticKind) -> int | None:
    """A numeric statistic of a unit."""
    return next((int(one.value) for one in unit.metadata_statistics or () if one.kind is kind), None)


def open_tables(metastore: Metastore) -> Component[TableUnit]:
    """The component of tables of a metastore."""
    return metastore.component(NAME, TableUnit)
