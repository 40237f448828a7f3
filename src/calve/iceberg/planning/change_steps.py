"""The history of a table as a reader of its changes follows it: places in it, and the snapshots after a place.

A place names the table by its uuid and a snapshot of main. The snapshots after it are found by parent ids, from the
head back to the place. If they do not lead there, history was changed: the table was rolled back or recreated, or
snapshots expired that were not read yet. A reader must not continue then, since it cannot know what it missed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from calve.catalog.failures import trying
from calve.errors import InvalidInput, SourceLost
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.planning.change_range import Point, moment_at_point, starts_empty, walk
from calve.iceberg.schema.readable import spark_schema
from calve.iceberg.snapshot.history import head_of
from calve.model.changelog import TablePlace
from calve.model.instants import instant_text
from calve.model.numbers import whole_number

_ORDERED = 2
"""The first format version with sequence numbers."""
_COUNTED = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
_RESTART = "To read the table again from its rows: WITH (SNAPSHOT = true)."


@dataclass(frozen=True)
class TableStep:
    """A snapshot that follows a place."""

    place: TablePlace
    schema_id: int
    rows: int
    """About the number of rows that it changes."""


def place_of(table: Table, snapshot: Snapshot | None) -> TablePlace:
    """The place after a snapshot; the start of a table without any."""
    uuid = str(table.metadata.table_uuid)
    if snapshot is None:
        return TablePlace(uuid, None, 0)
    return TablePlace(uuid, snapshot.snapshot_id, snapshot.sequence_number or 0)


def newest_place(table: Table, branch: str = MAIN_BRANCH) -> TablePlace:
    """The head of a branch."""
    return place_of(table, head_of(table.metadata, branch))


def oldest_on_main(table: Table) -> int | None:
    """The id of the oldest ancestor of the head; None if the table has no snapshot."""
    oldest = _oldest(table)
    return None if oldest is None else oldest.snapshot_id


def _oldest(table: Table, branch: str = MAIN_BRANCH) -> Snapshot | None:
    head = head_of(table.metadata, branch)
    return None if head is None else walk(table.metadata, head, None).path[-1]


def oldest_place(table: Table, branch: str = MAIN_BRANCH) -> TablePlace:
    """The oldest ancestor of the head of a branch, or the start of the table if that is known to be empty."""
    oldest = _oldest(table, branch)
    return place_of(table, None if oldest is None or _starts_empty(table, oldest) else oldest)


def place_at(table: Table, point: Point) -> TablePlace:
    """The place at a snapshot, a time, a frontier, a branch or a tag. Raises InvalidInput if it is not on main."""
    found = place_of(table, moment_at_point(table, point, None).snapshot)
    try:
        steps_after(table, found)
    except SourceLost as error:
        raise InvalidInput(f"changes cannot be read from {point} on", detail=error.detail) from error
    return found


def rows_at(table: Table, place: TablePlace) -> int | None:
    """The number of rows of a table at a place, as far as its summary says."""
    snapshot = None if place.snapshot_id is None else table.metadata.snapshot_by_id(place.snapshot_id)
    text = (
        ""
        if snapshot is None or snapshot.summary is None
        else snapshot.summary.additional_properties.get("total-records", "")
    )
    return whole_number(text)


def steps_after(table: Table, place: TablePlace) -> tuple[TableStep, ...]:
    """The snapshots of main after a place, oldest first. Raises SourceLost if history was changed."""
    name, metadata = ".".join(table.name()), table.metadata
    if place.uuid != str(metadata.table_uuid):
        raise SourceLost(
            f'the history of table "{name}" was changed: the table was recreated',
            detail=f"Its uuid was {place.uuid} and is now {metadata.table_uuid}.",
            hint=_RESTART,
        )
    head = head_of(metadata)
    if head is None:
        if place.snapshot_id is None:
            return ()
        raise _changed(name, place, "The table has no snapshot any longer.")
    since = None if place.snapshot_id is None else metadata.snapshot_by_id(place.snapshot_id)
    way = walk(metadata, head, since) if since is not None or place.snapshot_id is None else walk(metadata, head, None)
    reached = way.found or (place.snapshot_id is None and _starts_empty(table, way.path[-1]))
    if not reached:
        raise _changed(name, place, _why(way.path[-1], head, since, place))
    return tuple(_step(table, snapshot) for snapshot in reversed(way.path))


def _starts_empty(table: Table, snapshot: Snapshot) -> bool:
    with trying(f'reading the history of "{".".join(table.name())}"'):
        return starts_empty(table, snapshot, ManifestCache())


def _why(oldest: Snapshot, head: Snapshot, since: Snapshot | None, place: TablePlace) -> str:
    reachable = (
        f"The oldest snapshot that leads to the head {head.snapshot_id} is {oldest.snapshot_id}, committed "
        f"{instant_text(oldest.timestamp_ms, ' UTC')}."
    )
    if place.snapshot_id is None:
        return f"Its first snapshots have expired, and were not read. {reachable}"
    if since is not None or (oldest.sequence_number or 0) <= place.sequence_number:
        return (
            f"Snapshot {place.snapshot_id} was read, and is not an ancestor of the head: the table was rolled back, or "
            f"snapshots in between have expired. {reachable}"
        )
    return f"Snapshot {place.snapshot_id} was read, and has expired with those after it. {reachable}"


def _changed(name: str, place: TablePlace, detail: str) -> SourceLost:
    undo = f"Roll the table forward to snapshot {place.snapshot_id} or a descendant to continue. "
    return SourceLost(
        f'the history of table "{name}" was changed',
        detail=detail,
        hint=f"{undo if place.snapshot_id is not None else ''}{_RESTART} A source with a CONSUMER keeps its snapshots.",
    )


def _step(table: Table, snapshot: Snapshot) -> TableStep:
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    rows = sum(whole_number(summary.get(name, "0")) or 0 for name in _COUNTED)
    again = whole_number(summary.get("removed-position-deletes", "0")) or 0  # new files and vectors contain these
    schema_id = table.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id
    return TableStep(place_of(table, snapshot), schema_id, max(0, rows - again))


def check_order(table: Table, snapshots: Iterable[Snapshot]) -> None:
    """Raise InvalidInput if changes of these snapshots, which follow each other, cannot be ordered by their version."""
    numbers = [snapshot.sequence_number or 0 for snapshot in snapshots]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise InvalidInput(
            f'the order of some changes of table "{".".join(table.name())}" is not known',
            detail="Several of the snapshots are from before its format version was 2, and have no sequence numbers.",
            hint="Start after the first snapshot of version 2, or with the rows of the table: START = 'snapshot'.",
        )


def check_version(table: Table) -> None:
    """Raise InvalidInput if the snapshots of a table have no sequence numbers."""
    if table.metadata.format_version < _ORDERED:
        raise InvalidInput(
            f'table "{".".join(table.name())}" has format version {table.metadata.format_version}',
            detail="Its snapshots have no sequence numbers, which order the changes of a key.",
            hint="Upgrade it: ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2').",
        )


@dataclass(frozen=True)
class TableShape:
    """The columns of a table, as Spark reads them, and its key."""

    schema_id: int
    columns: str
    """JSON of a Spark schema; equal texts are equal columns by name and type."""
    ids: tuple[tuple[str, int], ...]
    """Every field, nested ones as well, with its id: a column that is dropped and added again is another one."""
    key: tuple[str, ...]
    snapshots: frozenset[int]
    """Those that the table had when it was loaded."""


def shape_of(table: Table, schema_id: int | None = None) -> TableShape:
    """The shape of a table now, or by an older schema; an unknown one is the current one."""
    by_id = {schema.schema_id: schema for schema in table.metadata.schemas}
    current = by_id[table.metadata.current_schema_id]
    schema: Schema = current if schema_id is None else by_id.get(schema_id, current)
    key = tuple(f.name for f in schema.fields if f.field_id in schema.identifier_field_ids)
    there = frozenset(snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    ids = tuple(sorted(index_by_name(schema).items()))
    return TableShape(schema.schema_id, json.dumps(spark_schema(schema)), ids, key, there)
