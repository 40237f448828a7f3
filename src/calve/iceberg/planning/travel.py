"""Time travel: chooses the snapshot to read: the head of main, or one by id, by branch or tag, by frontier or by time.

As of a frontier F, that is the newest snapshot of a sink on main whose frontier is at or below F, so every time in it
is below F. A sealed snapshot is above every F. Commits of others between two snapshots of a sink (compaction, for
example) are never chosen.

As of a time, that is the snapshot that was the head of main then, as the table's own log of heads says.
"""

from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from calve.clock import sink_id_of
from calve.errors import InvalidInput
from calve.iceberg.snapshot.history import ancestors_of, head_of
from calve.model.frontier import Frontier
from calve.model.instants import instant_text
from calve.model.progress import FRONTIER, SINK_ID
from calve.suggest import suggestion


@dataclass(frozen=True)
class AsOf:
    """A moment of a table: now, unless one of the others is given. `sink`, by name or id, requires `frontier`."""

    snapshot_id: int | None = None
    frontier: int | None = None
    ref: str | None = None
    sink: str | None = None
    time_ms: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("snapshot_id", "frontier", "ref", "time_ms") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(
                "a table can be read as of only one point in time",
                detail=f"Got {' and '.join(name.removesuffix('_ms') for name in given)}.",
                hint="Keep one of them.",
            )
        number: object = self.snapshot_id
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise InvalidInput("snapshot_id must be a whole number", detail=f"Got {number!r}.")
        if self.sink is not None and self.frontier is None:
            raise InvalidInput("a sink can be chosen only together with a frontier", hint="Set as_of_frontier.")


@dataclass(frozen=True)
class TravelPoint:
    """A snapshot (None if the table never had one) and the schema to read it with."""

    snapshot: Snapshot | None
    schema_id: int

    @property
    def frontier(self) -> str | None:
        """The frontier in the snapshot's summary."""
        return None if self.snapshot is None else _stated(self.snapshot, FRONTIER)


def moment_of(table: Table, as_of: AsOf) -> TravelPoint:
    """Find the snapshot. Raises InvalidInput if the table does not have it."""
    metadata = table.metadata
    if as_of.snapshot_id is not None:
        return _then(metadata, _by_id(table, as_of.snapshot_id))
    if as_of.frontier is not None:
        return moment_at(table, Frontier(as_of.frontier), as_of.sink)
    if as_of.ref is not None:
        return _by_ref(table, as_of.ref)
    if as_of.time_ms is not None:
        return _then(metadata, _by_time(table, as_of.time_ms))
    return TravelPoint(head_of(metadata), metadata.current_schema_id)


def moment_at(table: Table, frontier: Frontier, sink: str | None) -> TravelPoint:
    """The newest snapshot of a sink at or before a frontier. Raises InvalidInput if there is none."""
    return _then(table.metadata, _by_frontier(table, frontier, sink))


def _then(metadata: TableMetadata, snapshot: Snapshot) -> TravelPoint:
    """The snapshot with the columns that the table had then."""
    known = {schema.schema_id for schema in metadata.schemas}
    schema_id = snapshot.schema_id if snapshot.schema_id in known else None
    return TravelPoint(snapshot, metadata.current_schema_id if schema_id is None else schema_id)


def _by_id(table: Table, snapshot_id: int) -> Snapshot:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        newest = [str(s.snapshot_id) for s in ancestors_of(table.metadata, head_of(table.metadata))][:3]
        raise InvalidInput(
            f'table "{_name(table)}" has no snapshot {snapshot_id}',
            detail=f"It has {len(table.metadata.snapshots)}; the newest are {', '.join(newest) or 'none'}.",
            hint="It may have expired.",
        )
    return snapshot


def _by_ref(table: Table, name: str) -> TravelPoint:
    ref = table.metadata.refs.get(name)
    snapshot = None if ref is None else table.metadata.snapshot_by_id(ref.snapshot_id)
    if ref is None or snapshot is None:
        names = sorted(table.metadata.refs)
        raise InvalidInput(
            f'table "{_name(table)}" has no branch or tag "{name}"',
            detail=f"It has {', '.join(names) or 'none'}.",
            hint=suggestion(name, names),
        )
    if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
        return TravelPoint(snapshot, table.metadata.current_schema_id)
    return _then(table.metadata, snapshot)


def _by_time(table: Table, time_ms: int) -> Snapshot:
    metadata = table.metadata
    heads = sorted(metadata.snapshot_log, key=lambda entry: entry.timestamp_ms)
    then = [entry for entry in heads if entry.timestamp_ms <= time_ms]
    if not then:
        oldest = instant_text(heads[0].timestamp_ms, " UTC") if heads else ""
        raise InvalidInput(
            f'table "{_name(table)}" had no snapshot at {instant_text(time_ms, " UTC")}',
            detail=f"Its history begins at {oldest}." if heads else "It has no snapshot.",
            hint="Older snapshots may have expired." if heads else "",
        )
    found = metadata.snapshot_by_id(then[-1].snapshot_id)
    if found is None:
        raise InvalidInput(
            f'the snapshot of table "{_name(table)}" at {instant_text(time_ms, " UTC")} has expired',
            detail=f"It was {then[-1].snapshot_id}, of {instant_text(then[-1].timestamp_ms, ' UTC')}.",
            hint="SHOW SNAPSHOTS FROM the table lists those that remain.",
        )
    return found


def _by_frontier(table: Table, wanted: Frontier, sink: str | None) -> Snapshot:
    stated = [
        (snapshot, sink_id)
        for snapshot in ancestors_of(table.metadata, head_of(table.metadata))
        if (sink_id := _stated(snapshot, SINK_ID)) is not None and _stated(snapshot, FRONTIER) is not None
    ]
    sinks = sorted({sink_id for _, sink_id in stated})
    name = _name(table)
    if sink is not None:
        ids = {sink, sink_id_of(sink, name)}
        stated = [(snapshot, sink_id) for snapshot, sink_id in stated if sink_id in ids]
    elif len(sinks) > 1:
        raise InvalidInput(
            f'table "{name}" is written by several sinks, each with a frontier of its own',
            detail=f"Got snapshots of {', '.join(sinks)}.",
            hint="Choose the sink by name or id.",
        )
    if not stated:
        raise InvalidInput(
            f'table "{name}" has no snapshot of {"a sink" if sink is None else f"sink {sink}"}',
            detail=f"Its snapshots belong to {', '.join(sinks) or 'other writers'}.",
            hint="Read it as of a snapshot id instead.",
        )
    for snapshot, _ in stated:
        if not wanted < _frontier(snapshot):
            return snapshot
    oldest = _frontier(stated[-1][0])
    raise InvalidInput(
        f'table "{name}" has no snapshot at or before frontier {wanted.time}',
        detail=f"The oldest remaining snapshot is at {oldest}.",
        hint="Older snapshots may have expired.",
    )


def _frontier(snapshot: Snapshot) -> Frontier:
    text = _stated(snapshot, FRONTIER) or ""
    try:
        return Frontier.from_json(text)
    except ValueError as error:
        raise InvalidInput(
            f"snapshot {snapshot.snapshot_id} has an invalid frontier", detail=f'Its summary has "{text}".'
        ) from error


def _stated(snapshot: Snapshot, key: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(key)


def _name(table: Table) -> str:
    return ".".join(table.name())
