"""Plans which files have to be read for the changes between two snapshots of a table.

    until ──► parent ──► ... ──► since         the steps; each snapshot is compared with its parent
    a step: data files and deletes as sets ──► files that enter, that leave, and that other deletes reach

Which rows are live in a snapshot follows from all of its files and deletes, by the rules of the specification
(`delete_index`), never from the status of manifest entries: a delete may be added again, and a data file may return.
Manifests that both snapshots have are not compared. Snapshots with the operation `replace` change no rows, by the
specification, and are skipped.

If the chain of parents does not reach `since`, the steps are unknown. Net changes are then those between the two ends,
unless the table was rolled back behind `since`: then they would undo what a reader has already seen.
"""

import datetime as dt
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from calve.catalog.failures import trying
from calve.errors import InvalidInput
from calve.iceberg.files.content import content_id
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.planning.delete_index import DeleteIndex
from calve.iceberg.planning.pruning import Pruning
from calve.iceberg.planning.table_scan import scan_file
from calve.iceberg.planning.travel import AsOf, TravelPoint, moment_at, moment_of
from calve.iceberg.schema.readable import ReadTarget, every_field, projected, read_target, spark_schema
from calve.iceberg.snapshot.history import ancestors_of, head_of
from calve.model.changelog import CHANGE_COLUMNS, ChangedFile, ChangeScanPlan, ChangeStep, Deletes, Transition
from calve.model.frontier import Frontier
from calve.model.instants import instant_text
from calve.model.numbers import whole_number
from calve.model.progress import FRONTIER
from calve.model.scan import EVERYTHING, Condition, ContentId, DeleteKind
from calve.model.table import REPLACE

Point = int | str | dt.datetime | Frontier
"""A snapshot id; a branch, a tag or a time as text; a time; a frontier, also as text (`[1700000000000]`)."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_log = logging.getLogger("calve")


def moment_at_point(table: Table, point: Point | None, sink: str | None) -> TravelPoint:
    """The snapshot that a point refers to; the head of main for None. Raises InvalidInput."""
    match point:
        case None:
            return moment_of(table, AsOf())
        case bool():
            pass
        case int():
            return moment_of(table, AsOf(snapshot_id=point))
        case Frontier():
            return moment_at(table, point, sink)
        case dt.datetime():
            return _at_time(table, point)
        case str():
            return _at_text(table, point.strip(), sink)
    raise InvalidInput("since and until take a snapshot id, a time or a frontier", detail=f"Got {point!r}.")


def _at_text(table: Table, text: str, sink: str | None) -> TravelPoint:
    number = whole_number(text)
    if number is not None:
        return moment_of(table, AsOf(snapshot_id=number))
    if text.startswith("["):
        try:
            return moment_at(table, Frontier.from_json(text), sink)
        except ValueError as error:
            raise InvalidInput(f'invalid frontier "{text}"', hint="Write [1700000000000], or [] if sealed.") from error
    if text in table.metadata.refs:
        return moment_of(table, AsOf(ref=text))
    try:
        return _at_time(table, dt.datetime.fromisoformat(text))
    except ValueError as error:
        refs = ", ".join(sorted(table.metadata.refs)) or "none"
        raise InvalidInput(
            f'"{text}" is neither a snapshot, nor a time, nor a frontier',
            detail=f"The branches and tags of the table are: {refs}.",
            hint="Write a snapshot id, 2026-01-31T12:00:00Z, [1700000000000] for a frontier, or the name of a tag.",
        ) from error


def _at_time(table: Table, time: dt.datetime) -> TravelPoint:
    """The snapshot that was the head of main at a time, or the moment before the first one. Raises InvalidInput.

    An expiry shortens the log of heads. So a time before the log is before the first snapshot only if main had none.
    """
    instant = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    wanted = (instant - _EPOCH) // dt.timedelta(milliseconds=1)
    metadata = table.metadata
    times = [entry.timestamp_ms for entry in metadata.snapshot_log]
    times += [snapshot.timestamp_ms for snapshot in ancestors_of(metadata, head_of(metadata))]
    if min(times, default=wanted + 1) <= wanted:
        return moment_of(table, AsOf(time_ms=wanted))
    return TravelPoint(None, metadata.current_schema_id)


# -------------------------------------------------------------------------------------------------------------- walk


@dataclass(frozen=True)
class Walk:
    """The way from a snapshot towards its oldest ancestor."""

    path: tuple[Snapshot, ...]
    """Newest first, without the snapshot that was searched for."""
    found: bool
    """Whether it ends at the snapshot that was searched for."""

    @property
    def pairs(self) -> Iterator[tuple[Snapshot | None, Snapshot]]:
        """Parents and children, oldest first, without the oldest child."""
        for child, parent in reversed(list(zip(self.path, self.path[1:], strict=False))):
            yield parent, child


def walk(metadata: TableMetadata, until: Snapshot, since: Snapshot | None) -> Walk:
    """Follow parent ids from `until` to `since`, or to the oldest ancestor."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    path: list[Snapshot] = []
    at: Snapshot | None = until
    while at is not None:
        if since is not None and at.snapshot_id == since.snapshot_id:
            return Walk(tuple(path), found=True)
        path.append(at)
        at = None if at.parent_snapshot_id is None else by_id.get(at.parent_snapshot_id)
    return Walk(tuple(path), found=False)


def starts_empty(table: Table, snapshot: Snapshot, manifests: ManifestCache) -> bool:
    """Whether everything in a snapshot was added by it; an expiry may have cut it off from its parent."""
    lines = manifests.all_lines_of(table.io, snapshot)
    return snapshot.parent_snapshot_id is None and all(
        line.manifest.added_snapshot_id == snapshot.snapshot_id
        and line.manifest.existing_files_count == 0
        and line.manifest.deleted_files_count == 0
        for line in lines
    )


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def check_free_names(columns: Iterable[str], *, hint: str) -> None:
    """Raise InvalidInput if changes could not have these columns beside their own."""
    reserved = [name for name in columns if name.lower() in CHANGE_COLUMNS]
    if reserved:
        raise InvalidInput(f'column "{reserved[0]}" has a name that changes use themselves', hint=hint)


@dataclass(frozen=True)
class ChangeRange:
    """Two moments of a table and the way between them, ready to be planned."""

    table: Table
    since: Snapshot | None
    until: TravelPoint
    schema: Schema
    """The columns to read, of those that the table has at `until`."""
    pairs: tuple[tuple[Snapshot | None, Snapshot], ...]
    """Every snapshot after the one before it, oldest first."""
    gap: str = ""
    manifests: ManifestCache = field(default_factory=ManifestCache, compare=False, repr=False)

    @classmethod
    def of(
        cls, table: Table, since: Point | None, until: Point | None, *, sink: str | None = None, net: bool = True
    ) -> "ChangeRange":
        """Find the snapshots. Raises InvalidInput if they do not exist or the steps between them are unknown."""
        end = moment_at_point(table, until, sink)
        start = None if since is None else moment_at_point(table, since, sink).snapshot
        name = ".".join(table.name())
        schema = next(s for s in table.metadata.schemas if s.schema_id == end.schema_id)
        if end.snapshot is None:
            if until is not None:
                raise InvalidInput(
                    f'table "{name}" has no snapshot at or before {until}', hint="Older snapshots may have expired."
                )
            return cls(table, None, end, schema, ())
        manifests = ManifestCache()
        with trying(f'reading the history of "{name}"'):
            pairs, gap = _pairs(table, start, end.snapshot, manifests, net=net)
        if gap and since is not None and start is None:
            raise InvalidInput(
                f'table "{name}" has no snapshot at or before {since}',
                detail=gap,
                hint="Leave since out for the changes since the table was empty.",
            )
        if gap:
            _log.warning('the changes of table "%s" are those between two snapshots: %s', name, gap)
        return cls(table, start, end, schema, pairs, gap, manifests)

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [f.name for f in self.schema.fields]

    @property
    def spark_schema(self) -> dict[str, Any]:
        """The Spark schema of the columns, for `StructType.fromJson`. A row of a deletion may have its key only."""
        found = spark_schema(self.schema)
        return {**found, "fields": [{**column, "nullable": True} for column in found["fields"]]}

    @property
    def key(self) -> list[str]:
        """The identifier fields of the table, if all of them are columns. Raises InvalidInput otherwise."""
        by_id = {f.field_id: f.name for f in self.schema.fields}
        missing = [number for number in self.schema.identifier_field_ids if number not in by_id]
        if missing:
            raise InvalidInput(
                f'the key of table "{".".join(self.table.name())}" has fields of nested columns',
                hint="Name columns that identify a row: key=[...].",
            )
        return [f.name for f in self.schema.fields if f.field_id in self.schema.identifier_field_ids]

    def check_key(self, columns: Sequence[str]) -> None:
        """Raise InvalidInput for columns whose values cannot be told apart reliably."""
        for column in columns:
            kind = self.schema.find_field(column).field_type
            if not isinstance(kind, PrimitiveType) or isinstance(kind, FloatType | DoubleType):
                raise InvalidInput(f'column "{column}" cannot be a key', detail=f"Its type is {kind}.")

    def read_as(self, schema_id: int) -> "ChangeRange":
        """The same range with all columns of another schema of the table, matched by field id."""
        return replace(self, until=replace(self.until, schema_id=schema_id)).widened()

    def widened(self) -> "ChangeRange":
        """The same range with all columns."""
        every = next(s for s in self.table.metadata.schemas if s.schema_id == self.until.schema_id)
        return replace(self, schema=every)

    def named(self, columns: Sequence[str]) -> list[str]:
        """Columns as the table spells them. Raises InvalidInput for unknown ones."""
        return [f.name for f in projected(self.schema, columns, ".".join(self.table.name())).fields]

    def select(self, columns: Sequence[str]) -> "ChangeRange":
        """The same range with fewer columns. Raises InvalidInput for names that changes have themselves."""
        check_free_names(columns, hint="Select the other columns.")
        chosen = projected(self.schema, columns, ".".join(self.table.name()))
        kept = {f.field_id for f in chosen.fields}
        identifiers = [number for number in self.schema.identifier_field_ids if number in kept]
        return replace(
            self, schema=Schema(*chosen.fields, schema_id=chosen.schema_id, identifier_field_ids=identifiers)
        )

    def plan(self, where: Condition = EVERYTHING) -> ChangeScanPlan:
        """Plan files and transitions. Raises TransientError; InvalidInput for unsupported file formats."""
        pruning = Pruning(where, self.widened().schema, self.table.specs())
        planner = _Planner(self.table, self.manifests, pruning)
        steps: list[ChangeStep] = []
        rewrites = 0
        with trying(f'planning the changes of "{".".join(self.table.name())}"'):
            for parent, snapshot in self.pairs:
                if not self.gap and _operation(snapshot) == REPLACE and parent is not None:
                    rewrites += 1
                    continue
                planner.compare(len(steps), parent, snapshot)
                steps.append(replace(step_of(snapshot), rewrites=rewrites))
            files = planner.files()
        return ChangeScanPlan(
            since_id=None if self.since is None else self.since.snapshot_id,
            until_id=None if self.until.snapshot is None else self.until.snapshot.snapshot_id,
            steps=tuple(steps),
            files=files,
            snapshots=len(self.pairs),
            gap=self.gap,
            where=where,
        )

    def target(self, plan: ChangeScanPlan) -> ReadTarget:
        """How to read the files of a plan into the columns."""
        ids = {number for delete in plan.deletes(DeleteKind.EQUALITY) for number in delete.equality_ids}
        return read_target(self.table, self.schema, ids, plan.where)


def _pairs(
    table: Table, since: Snapshot | None, until: Snapshot, manifests: ManifestCache, *, net: bool
) -> tuple[tuple[tuple[Snapshot | None, Snapshot], ...], str]:
    """The steps of a range, and why they are unknown, if so."""
    way = walk(table.metadata, until, since)
    if way.found:
        return (*([(since, way.path[-1])] if way.path else []), *way.pairs), ""
    oldest = way.path[-1]
    whole = starts_empty(table, oldest, manifests)
    if since is None and whole:
        return ((None, oldest), *way.pairs), ""
    name = ".".join(table.name())
    if since is not None and (whole or any(_age(snapshot) <= _age(since) for snapshot in way.path)):
        raise InvalidInput(
            f'the history of table "{name}" was changed',
            detail=f"Snapshot {since.snapshot_id} is not an ancestor of snapshot {until.snapshot_id}: the table was "
            f"rolled back or replaced, or the two are on different branches. The oldest snapshot that leads to "
            f"{until.snapshot_id} is {oldest.snapshot_id}.",
            hint="Read the table again, and continue from the snapshot that was read.",
        )
    start = "the start of the table" if since is None else f"snapshot {since.snapshot_id}"
    gap = (
        f"Snapshots between {start} and {oldest.snapshot_id} have expired; the oldest one that leads to "
        f"{until.snapshot_id} is {oldest.snapshot_id}, committed "
        f"{instant_text(oldest.timestamp_ms, ' UTC')}."
    )
    if not net:
        raise InvalidInput(
            f'some steps of table "{name}" are gone',
            detail=gap,
            hint=f"Read the net changes, or every step since {oldest.snapshot_id}.",
        )
    return ((since, until),), gap


def _operation(snapshot: Snapshot) -> str:
    return "" if snapshot.summary is None else str(snapshot.summary.operation.value)


def step_of(snapshot: Snapshot) -> ChangeStep:
    """What is known of a snapshot as a step."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return ChangeStep(snapshot.snapshot_id, snapshot.sequence_number or 0, snapshot.timestamp_ms, summary.get(FRONTIER))


# ------------------------------------------------------------------------------------------------------------- files

_FileId = tuple[str, int]
"""Path and sequence number: a data file that left and came back may be reached by other deletes than before."""


def _file_id(entry: ManifestEntry) -> _FileId:
    return entry.data_file.file_path, entry.sequence_number or 0


class _Planner:
    """Collects the transitions of every file, step by step."""

    def __init__(self, table: Table, manifests: ManifestCache, pruning: Pruning) -> None:
        self._table, self._manifests, self._pruning = table, manifests, pruning
        self._fields = every_field(table).fields
        self._indexes: dict[int, DeleteIndex] = {}
        self._entries: dict[_FileId, ManifestEntry] = {}
        self._transitions: dict[_FileId, list[Transition]] = {}

    def compare(self, number: int, parent: Snapshot | None, snapshot: Snapshot) -> None:
        """Compare a snapshot with the one before it. Raises OSError."""
        data = self._differing(parent, snapshot, ManifestContent.DATA)
        deletes = self._differing(parent, snapshot, ManifestContent.DELETES)
        left, entered = self._matching(data.gone), self._matching(data.new)
        for entry in entered:
            self._add(entry, Transition(number, None, self._index(snapshot).of(entry)))
        for entry in left:
            before = self._index(parent).of(entry)
            self._add(entry, Transition(number, before, None, images=bool(entered)))
        if not deletes.gone and not deletes.new:
            return
        differing = [self._index_of(deletes.gone), self._index_of(deletes.new)]
        for entry in self._matching(self._kept(data)):
            if any(index.of(entry) for index in differing):
                before, after = self._index(parent).of(entry), self._index(snapshot).of(entry)
                if set(before) != set(after):
                    self._add(entry, Transition(number, before, after))

    def files(self) -> tuple[ChangedFile, ...]:
        """Every file with its transitions."""
        found = enumerate(self._transitions.items())
        return tuple(self._changed(number, known, transitions) for number, (known, transitions) in found)

    def _changed(self, number: int, known: _FileId, transitions: Sequence[Transition]) -> ChangedFile:
        entry = self._entries[known]
        sides = (side for t in transitions for side in (t.before, t.after) if side is not None)
        deletes: Deletes = tuple({delete: None for side in sides for delete in side})
        spec = self._table.specs()[entry.data_file.spec_id]
        return ChangedFile(scan_file(entry, deletes, spec), tuple(transitions), number)

    def _add(self, entry: ManifestEntry, transition: Transition) -> None:
        known = _file_id(entry)
        self._entries.setdefault(known, entry)
        self._transitions.setdefault(known, []).append(transition)

    def _matching(self, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
        """Files that may hold a row of the filtered table; no other row of them matters, live or deleted."""
        return [
            e
            for e in entries
            if self._pruning.may_match_partition(e.data_file) and self._pruning.may_match_bounds(e.data_file)
        ]

    def _index(self, snapshot: Snapshot | None) -> DeleteIndex:
        number = 0 if snapshot is None else snapshot.snapshot_id
        known = self._indexes.get(number)
        if known is None:
            listed = self._lines(snapshot, ManifestContent.DELETES)
            known = self._index_of(self._manifests.entries_of(self._table.io, *listed))
            while len(self._indexes) > 1:  # of the step before
                del self._indexes[next(iter(self._indexes))]
            self._indexes[number] = known
        return known

    def _index_of(self, entries: Iterable[ManifestEntry]) -> DeleteIndex:
        return DeleteIndex(entries, self._table.specs(), self._fields)

    def _lines(self, snapshot: Snapshot | None, content: ManifestContent) -> list[ManifestFile]:
        lines = self._manifests.lines_of(self._table.io, snapshot)
        return [line.manifest for line in lines if line.manifest.content is content]

    def _differing(self, parent: Snapshot | None, snapshot: Snapshot, content: ManifestContent) -> "_Difference":
        old, new = self._lines(parent, content), self._lines(snapshot, content)
        shared = {m.manifest_path for m in old} & {m.manifest_path for m in new}
        before = self._manifests.entries_of(self._table.io, *(m for m in old if m.manifest_path not in shared))
        after = self._manifests.entries_of(self._table.io, *(m for m in new if m.manifest_path not in shared))
        remain = tuple(m for m in new if m.manifest_path in shared)
        return _Difference.of(before, after, remain)

    def _kept(self, data: "_Difference") -> list[ManifestEntry]:
        return [*data.stayed, *self._manifests.entries_of(self._table.io, *data.shared)]


@dataclass(frozen=True)
class _Difference:
    """Entries of two snapshots, compared as multisets."""

    gone: list[ManifestEntry]
    new: list[ManifestEntry]
    stayed: list[ManifestEntry]
    """In both snapshots, in different manifests."""
    shared: tuple[ManifestFile, ...]
    """Manifests of both snapshots."""

    @classmethod
    def of(
        cls, before: Sequence[ManifestEntry], after: Sequence[ManifestEntry], shared: tuple[ManifestFile, ...]
    ) -> "_Difference":
        """Compare the entries of the other manifests."""
        old, new = Counter(map(_identity, before)), Counter(map(_identity, after))
        gone, _ = _divided(before, old - new)
        entered, stayed = _divided(after, new - old)
        return cls(gone, entered, stayed, shared)


def _identity(entry: ManifestEntry) -> tuple[int, ContentId]:
    return entry.sequence_number or 0, content_id(entry.data_file)


def _divided(
    entries: Sequence[ManifestEntry], surplus: Counter[tuple[Any, ...]]
) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """The entries of the surplus, and the others."""
    left = Counter(surplus)
    chosen: list[ManifestEntry] = []
    others: list[ManifestEntry] = []
    for entry in entries:
        known = _identity(entry)
        if left[known] > 0:
            left[known] -= 1
            chosen.append(entry)
        else:
            others.append(entry)
    return chosen, others
