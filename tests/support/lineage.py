"""Ids of rows: those of a table by the rules of the specification, and those that calve promises."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from calve.iceberg.files.content import content_id, first_row_id
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.vectors import decode_vector

ROW_ID, UPDATED = "_row_id", "_last_updated_sequence_number"


@dataclass(frozen=True)
class LiveRow:
    """A row of a table."""

    values: Mapping[str, Any]
    row_id: int
    updated: int
    """The sequence number of its last change."""


Lineage = dict[Any, LiveRow]
"""The rows of a table by key, the column `id`."""


def lineage_of(table: Table) -> Lineage:
    """The rows of a table, whose only deletes are vectors, by the rules of the specification."""
    found: list[LiveRow] = []
    cache = ManifestCache()
    lines = cache.lines_of(table.io, table.current_snapshot())
    entries = cache.entries_of(table.io, *(line.manifest for line in lines))
    gone = {
        content_id(e.data_file).data_file: set(decode_vector(_blob_of(e.data_file)).tolist())
        for e in entries
        if e.data_file.content
    }
    for entry in entries:
        file = entry.data_file
        if file.content:
            continue
        start = first_row_id(file)
        assert start is not None
        for position, row in enumerate(pq.read_table(file.file_path.removeprefix("file://")).to_pylist()):
            row_id, updated = row.pop(ROW_ID, None), row.pop(UPDATED, None)
            if position not in gone.get(file.file_path, ()):
                found.append(
                    LiveRow(
                        row,
                        start + position if row_id is None else row_id,
                        (entry.sequence_number or 0) if updated is None else updated,
                    )
                )
    return by_key(found)


def _blob_of(file: DataFile) -> bytes:
    known = content_id(file)
    content = Path(known.path.removeprefix("file://")).read_bytes()
    return content[known.offset : known.offset + known.length]


def lineage_in(rows: Sequence[Mapping[str, Any]]) -> Lineage:
    """The rows that an engine returned, with both columns."""
    found = []
    for row in rows:
        values = {name: value for name, value in row.items() if name not in {ROW_ID, UPDATED}}
        found.append(LiveRow(values, row[ROW_ID], row[UPDATED]))
    return by_key(found)


def by_key(rows: Sequence[LiveRow]) -> Lineage:
    """The rows by key. No key and no id occurs twice."""
    assert len({row.row_id for row in rows}) == len(rows), "an id is on two rows"
    found = {row.values["id"]: row for row in rows}
    assert len(found) == len(rows), "a key is on two rows"
    return found


def check_batch(
    before: Lineage, after: Lineage, upserts: Mapping[Any, Mapping[str, Any]], deletes: Collection[Any], new_from: int
) -> None:
    """Check what a batch did to the table, given its rows before and after the commit.

    An updated row keeps its id, an inserted one gets a new one, from `new_from` on; both have the sequence number of
    the commit. Nothing else changed.
    """
    untouched = {key: row for key, row in before.items() if key not in upserts and key not in deletes}
    assert {key: row for key, row in after.items() if key not in upserts} == untouched
    assert {key: dict(after[key].values) for key in upserts} == {key: dict(row) for key, row in upserts.items()}
    committed = {after[key].updated for key in upserts}
    assert len(committed) <= 1
    assert all(number > row.updated for number in committed for row in before.values())
    for key in upserts:
        if key in before:
            assert after[key].row_id == before[key].row_id, "an updated row keeps its id"
        else:
            assert after[key].row_id >= new_from, "an inserted row has an id that no row had before"
