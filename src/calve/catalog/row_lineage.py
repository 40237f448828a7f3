"""Metadata of tables of format version 3, which pyiceberg reads and does not write.

A table states the next row id that is free. A snapshot starts at exactly that id, and states how many ids its manifest
list hands out; the table then moves on by that number. A snapshot that starts elsewhere was made on another state of
the table: two rows would get the same id.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate, UpgradeFormatVersionUpdate
from pyiceberg.typedef import IcebergBaseModel

from calve.errors import InvalidInput

LINEAGE_VERSION = 3
"""The format version from which on rows have ids."""


UPGRADE = UpgradeFormatVersionUpdate.model_validate({"format-version": LINEAGE_VERSION})
"""Raises the format version of a table, so that its rows get ids."""


def with_upgrade(base: TableMetadata, updates: Sequence[TableUpdate]) -> tuple[TableMetadata, tuple[TableUpdate, ...]]:
    """Apply an upgrade to format version 3, if the first update is one; pyiceberg refuses it. Returns the other ones.

    No snapshot that the table has gets ids for its rows: a later one assigns them.
    """
    if not updates or updates[0] != UPGRADE:
        return base, tuple(updates)
    if base.format_version < LINEAGE_VERSION:
        fields = json.loads(base.model_dump_json(exclude_none=True))
        base = TableMetadataV3.model_validate(fields | {"format-version": LINEAGE_VERSION, "next-row-id": 0})
    return base, tuple(updates[1:])


def next_row_id(metadata: TableMetadata) -> int | None:
    """The first row id of the table's next snapshot; None if its rows have no ids."""
    if metadata.format_version < LINEAGE_VERSION:
        return None
    stated: int | None = getattr(metadata, "next_row_id", None)
    if stated is not None:
        return stated
    return max(((one.first_row_id or 0) + (one.added_rows or 0) for one in metadata.snapshots), default=0)


def metadata_text(metadata: TableMetadata, exclude: Iterable[str] = ()) -> str:
    """The content of a metadata file, without some of its fields."""
    if metadata.format_version < LINEAGE_VERSION:
        return metadata.model_dump_json(exclude_none=True, exclude=set(exclude))
    stated = metadata.model_copy(update={"next_row_id": next_row_id(metadata)})
    return IcebergBaseModel.model_dump_json(stated, exclude_none=True, exclude=set(exclude))


def write_metadata(metadata: TableMetadata, io: FileIO, location: str, *, overwrite: bool = False) -> None:
    """Write a metadata file. Raises OSError."""
    if metadata.format_version < LINEAGE_VERSION:
        ToOutputFile.table_metadata(metadata, io.new_output(location), overwrite=overwrite)
        return
    compressed = Compressor.get_compressor(location).bytes_compressor()(metadata_text(metadata).encode())
    with io.new_output(location).create(overwrite=overwrite) as stream:
        stream.write(compressed)


def check_snapshots(base: TableMetadata, updates: Iterable[TableUpdate]) -> None:
    """Check that new snapshots were made on this state of the table. Raises ValueError; pyiceberg checks less."""
    if not isinstance(base, TableMetadataV3):
        return
    last, free = base.last_sequence_number, next_row_id(base) or 0
    for update in updates:
        if isinstance(update, AddSnapshotUpdate):
            new = update.snapshot
            if (new.sequence_number or 0) <= last:
                raise ValueError(f"the sequence number of snapshot {new.snapshot_id} is not greater than {last}")
            if new.first_row_id != free or new.added_rows is None:
                raise ValueError(f"snapshot {new.snapshot_id} starts at row id {new.first_row_id}, the next is {free}")
            last, free = new.sequence_number or 0, free + new.added_rows


def check_writable(table: Table) -> None:
    """Raise InvalidInput if the table's metadata has fields that would be lost when it is written again.

    Tables of version 3 may have such fields (encryption keys, for example). Raises OSError.
    """
    metadata = table.metadata
    if metadata.format_version < LINEAGE_VERSION:
        return
    with table.io.new_input(table.metadata_location).open() as stream:
        raw = Compressor.get_compressor(table.metadata_location).stream_decompressor(stream).read()
    lost = _lost(json.loads(raw), json.loads(metadata_text(metadata)), "")
    if lost:
        raise InvalidInput(
            f'table "{".".join(table.name())}" has metadata that calve does not know',
            detail=f"It would lose {', '.join(lost[:5])}.",
            hint="Write to it through a REST catalog, whose server writes the metadata, or to another table.",
        )


def _lost(before: Any, after: Any, path: str) -> list[str]:
    """The fields of one JSON value, with something in them, that another lacks."""
    if isinstance(before, dict):
        known = after if isinstance(after, dict) else {}
        return [
            name
            for key, value in before.items()
            if value is not None and value not in ({}, [])
            for name in ([f"{path}{key}"] if key not in known else _lost(value, known[key], f"{path}{key}."))
        ]
    if isinstance(before, list):
        same = after if isinstance(after, list) and len(after) == len(before) else [None] * len(before)
        return [name for one, other in zip(before, same, strict=True) for name in _lost(one, other, path)]
    return []
