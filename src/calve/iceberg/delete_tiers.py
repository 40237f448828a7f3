"""Which files of position deletes are merged by the next commit that deletes rows.

A data file that is changed again and again collects a file of deletes with each batch, and every reader opens them all.
As soon as several of about one size are about the same rows (one data file, or a partition), they become one: each
delete is written again a few times at most, whatever the number of batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry

from calve.iceberg.delete_index import delete_file, only_path, partition_of
from calve.iceberg.manifests import OWN_PREFIX
from calve.model.scan import DeleteFile, DeleteKind

_FAN = 6
"""Files of one size that are merged."""
_SMALLEST = 4096
"""Deletes below which sizes do not matter."""
_MOST = 4_000_000
"""Deletes that one commit writes again: it takes about a second for so many."""


@dataclass(frozen=True)
class DeleteGroup:
    """Files of deletes that become one, or one for each data file that has many."""

    files: tuple[DeleteFile, ...]
    spec_id: int
    partition: tuple[Any, ...]


def due_groups(entries: Iterable[ManifestEntry]) -> tuple[DeleteGroup, ...]:
    """Groups of the position deletes of a snapshot; none most of the time. Files of other writers are left alone."""
    tiers: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in entries:
        file = entry.data_file
        own = file.file_path.rpartition("/")[2].startswith(OWN_PREFIX)
        if own and file.content is DataFileContent.POSITION_DELETES and file.file_format is FileFormat.PARQUET:
            tiers.setdefault((partition_of(file), only_path(file), _tier(file.record_count)), []).append(entry)
    due: list[DeleteGroup] = []
    room = _MOST
    for members in tiers.values():
        rows = sum(entry.data_file.record_count for entry in members)
        if len(members) >= _FAN and rows <= room:
            room -= rows
            due.append(_group(members))
    return tuple(due)


def _tier(rows: int) -> int:
    tier = 0
    while rows > _SMALLEST:
        rows //= _FAN
        tier += 1
    return tier


def _group(entries: list[ManifestEntry]) -> DeleteGroup:
    first = entries[0].data_file
    return DeleteGroup(
        files=tuple(delete_file(DeleteKind.POSITION, e.data_file, e.sequence_number or 0) for e in entries),
        spec_id=first.spec_id,
        partition=tuple(first.partition[i] for i in range(len(first.partition))),
    )
