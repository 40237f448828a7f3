"""Inspected files -> units of the component `tables` (pure), and back.

A top-level segment with its contents is one partition of the component: the segment, its nested segments, and their
partitions, files and row groups, down to the analyzed level. Statistics are merged from those of the parts. A column
that has a single value in each file of a top-level segment divides the segment into partitions.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calve.analyze.subject import FileLook, GroupLook, ListedFile, digest_of, reaches
from calve.metastore.statistics import ColumnStatistics, Statistic, StatisticKind, merge_columns, merge_statistics
from calve.metastore.tables import DEFAULT_SEGMENT, GENERAL_INFO, MetadataType, TableId, TableUnit, number_of
from calve.sql.statements import MetadataLevel

_RESERVED: Final = frozenset({DEFAULT_SEGMENT, GENERAL_INFO})
_NANOS_PER_MILLI: Final = 1_000_000


@dataclass(frozen=True)
class AnalyzedFile:
    """A file and its contents."""

    file: ListedFile
    look: FileLook

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics of the file's unit."""
        return (
            Statistic(StatisticKind.ROWS, self.look.rows, self.look.exact),
            Statistic(StatisticKind.BYTES, self.file.size),
            Statistic(StatisticKind.FILES, 1),
        )


@dataclass(frozen=True)
class TableFrame:
    """What all units of a table share."""

    table: TableId
    location: str
    level: MetadataLevel
    partition_columns: tuple[str, ...]

    def unit(self, kind: MetadataType, key: str, **fields: Any) -> TableUnit:
        """A unit of this table."""
        names = self.table
        return TableUnit(
            storage_plugin=names.storage_plugin,
            workspace=names.workspace,
            table_name=names.name,
            metadata_type=kind,
            metadata_key=key,
            **fields,
        )

    def folder(self, parts: Sequence[str]) -> str:
        """The location of a segment."""
        return "/".join([self.location.rstrip("/"), *parts])


def key_of(file: ListedFile) -> str:
    """The metadata key of the units of a file: its top-level segment."""
    if not file.folders:
        return DEFAULT_SEGMENT
    top = file.folders[0]
    return f"{top}/" if top in _RESERVED else top  # folder names never end with a slash


def segment_units(frame: TableFrame, key: str, files: Sequence[AnalyzedFile]) -> list[TableUnit]:
    """All units of one top-level segment, the segment itself first."""
    units: list[TableUnit] = []
    inside: dict[tuple[str, ...], list[AnalyzedFile]] = defaultdict(list)
    for one in files:
        for depth in range(1 if one.file.folders else 0, len(one.file.folders) + 1):
            inside[one.file.folders[:depth]].append(one)
    if reaches(frame.level, MetadataLevel.SEGMENT):
        units += [_segment(frame, key, parts, inside[parts]) for parts in sorted(inside)]
    if reaches(frame.level, MetadataLevel.PARTITION):
        units += _partitions(frame, key, files)
    for one in files:
        if reaches(frame.level, MetadataLevel.FILE):
            units.append(_file(frame, key, one))
        if reaches(frame.level, MetadataLevel.ROW_GROUP):
            units += [_row_group(frame, key, one, number) for number in range(len(one.look.groups))]
    return units


def _segment(frame: TableFrame, key: str, parts: tuple[str, ...], files: Sequence[AnalyzedFile]) -> TableUnit:
    place = frame.folder(parts)
    return frame.unit(
        MetadataType.SEGMENT,
        key,
        metadata_identifier="/".join(parts) or DEFAULT_SEGMENT,
        location=place,
        path=place,
        locations=tuple(one.file.path for one in files if one.file.folders == parts),
        column=_segment_column(frame, parts),
        partition_values=(_segment_value(frame, parts),) if parts else None,
        columns_statistics=merge_columns(dict(one.look.columns) for one in files),
        metadata_statistics=merge_statistics(one.statistics for one in files),
        last_modified_time=_modified(files),
        additional_metadata=json.dumps({"digest": digest_of(one.file for one in files)}),
    )


def _segment_column(frame: TableFrame, parts: Sequence[str]) -> str | None:
    if not parts:
        return None
    return parts[-1].partition("=")[0] if frame.partition_columns else f"dir{len(parts) - 1}"


def _segment_value(frame: TableFrame, parts: Sequence[str]) -> str:
    return parts[-1].partition("=")[2] if frame.partition_columns else parts[-1]


def _partitions(frame: TableFrame, key: str, files: Sequence[AnalyzedFile]) -> list[TableUnit]:
    rows = sum(one.look.rows for one in files)
    if rows <= len(files):
        return []  # a single row always has a single value
    units = []
    for column in files[0].look.columns:
        groups: dict[str, list[AnalyzedFile]] = defaultdict(list)
        for one in files:
            value = _single(one.look.columns.get(column))
            if value is None:
                break
            groups[value].append(one)
        else:
            units += [_partition(frame, key, column, value, members) for value, members in sorted(groups.items())]
    return units


def _single(found: ColumnStatistics | None) -> str | None:
    """The only value of a column in a file, as text; None if there are several."""
    if found is None or found.nulls != 0 or found.least is None or found.least != found.greatest:
        return None
    return str(found.least)


def _partition(frame: TableFrame, key: str, column: str, value: str, files: Sequence[AnalyzedFile]) -> TableUnit:
    return frame.unit(
        MetadataType.PARTITION,
        key,
        metadata_identifier=f"{key}/{column}={value}",
        column=column,
        partition_values=(value,),
        locations=tuple(one.file.path for one in files),
        columns_statistics=merge_columns(dict(one.look.columns) for one in files),
        metadata_statistics=merge_statistics(one.statistics for one in files),
        last_modified_time=_modified(files),
    )


def _file(frame: TableFrame, key: str, one: AnalyzedFile) -> TableUnit:
    return frame.unit(
        MetadataType.FILE,
        key,
        metadata_identifier=one.file.name,
        path=one.file.path,
        location=frame.folder(one.file.folders),
        schema=one.look.schema,
        columns_statistics=one.look.columns,
        metadata_statistics=one.statistics,
        last_modified_time=one.file.stamp // _NANOS_PER_MILLI,
        additional_metadata=json.dumps({"stamp": one.file.stamp, "folders": one.file.folders}),
    )


def _row_group(frame: TableFrame, key: str, one: AnalyzedFile, number: int) -> TableUnit:
    group = one.look.groups[number]
    return frame.unit(
        MetadataType.ROW_GROUP,
        key,
        metadata_identifier=f"{one.file.name}/{number}",
        path=one.file.path,
        location=frame.folder(one.file.folders),
        row_group_index=number,
        columns_statistics=group.columns,
        metadata_statistics=(
            Statistic(StatisticKind.ROWS, group.rows, one.look.exact),
            Statistic(StatisticKind.BYTES, group.bytes),
        ),
        last_modified_time=one.file.stamp // _NANOS_PER_MILLI,
    )


def _modified(files: Iterable[AnalyzedFile]) -> int:
    return max((one.file.stamp for one in files), default=0) // _NANOS_PER_MILLI


# -------------------------------------------------------------------------------------------------------------- back


def listed_file(unit: TableUnit) -> ListedFile:
    """The file as it was analyzed."""
    kept = json.loads(unit.additional_metadata or "{}")
    size = number_of(unit, StatisticKind.BYTES) or 0
    folders = tuple(kept.get("folders", ()))
    return ListedFile(unit.metadata_identifier or "", unit.path or "", folders, size, kept.get("stamp", -1))


def looked_again(units: Sequence[TableUnit]) -> list[AnalyzedFile]:
    """Files and their contents, from their units."""
    groups: dict[str, list[TableUnit]] = defaultdict(list)
    for unit in units:
        if unit.metadata_type is MetadataType.ROW_GROUP:
            groups[unit.path or ""].append(unit)
    found = []
    for unit in units:
        if unit.metadata_type is MetadataType.FILE:
            parts = sorted(groups[unit.path or ""], key=lambda one: one.row_group_index or 0)
            found.append(AnalyzedFile(listed_file(unit), _look(unit, parts)))
    return found


def _look(unit: TableUnit, groups: Iterable[TableUnit]) -> FileLook:
    rows = next((one for one in unit.metadata_statistics or () if one.kind is StatisticKind.ROWS), None)
    return FileLook(
        unit.schema or "",
        int(rows.value) if rows else 0,
        unit.columns_statistics or {},
        tuple(
            GroupLook(
                number_of(one, StatisticKind.ROWS) or 0,
                number_of(one, StatisticKind.BYTES) or 0,
                one.columns_statistics or {},
            )
            for one in groups
        ),
        exact=rows.exact if rows else True,
    )


def kept_in(unit: TableUnit | None) -> dict[str, Any]:
    """The additional metadata that calve stores with a unit."""
    found: dict[str, Any] = json.loads((unit.additional_metadata if unit else None) or "{}")
    return found
