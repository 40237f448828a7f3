"""Finds the rows of one file that appear or disappear in the steps of a range, and reads their columns.

    positions and vectors   are compared without opening the data file
    equality deletes        need their columns of those row groups that keys of differing deletes may meet
    columns                 are read of row groups with events only: all of them for added rows; for deleted rows the
                            key, unless their former values are needed; of neighboring rows only their pages (`pages`)

A row is live after a step and not before: added. The other way round: deleted. Rows that were dead already, and those
that a batch added and deleted itself, are neither. A file is opened at most once, whatever the number of steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.changelog.row_numbers import order_by
from calve.iceberg.files.store import open_input
from calve.iceberg.files.vectors import NOTHING, Positions
from calve.iceberg.schema.readable import ReadTarget
from calve.model.changelog import ChangedFile, Deletes, Transition
from calve.model.scan import DeleteFile, DeleteKind, FileSplit
from calve.reader.deletes import TaskDeletes
from calve.reader.key_sets import KeySet, distinct
from calve.reader.pages import rows_in_pages
from calve.reader.projection import Projection, field_id
from calve.reader.row_groups import GroupBounds, GroupTest
from calve.reader.rows import first_rows, group_offset, rows_without_columns

STEP, ADDED, WHOLE, ORIGIN = FLAGS = "_calve_step", "_calve_added", "_calve_whole", "_calve_origin"
"""Columns of events after those of the table: the number of the step; whether the row was added; whether all columns
count: what is read of other rows by chance must not decide; and the file and position of the row, as one number."""
_POSITION_BITS = 36

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class EventTarget:
    """What events are read into. Pickled to executors."""

    target: ReadTarget
    light: tuple[str, ...]
    """Columns of deleted rows that are always read: the key, and what a condition needs."""
    images: bool
    """Whether all columns of deleted rows are read."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of events."""
        flags = zip(FLAGS, (pa.int32(), pa.bool_(), pa.bool_(), pa.int64()), strict=True)
        return pa.schema([*self.target.schema, *(pa.field(name, kind) for name, kind in flags)])

    @cached_property
    def light_target(self) -> ReadTarget:
        """The target of rows whose other columns are not read."""
        return replace(self.target, schema=pa.schema([self.target.schema.field(name) for name in self.light]))


class TaskKeySets:
    """Sets of the keys of equality deletes, each loaded once for all files of a task."""

    def __init__(self, deletes: TaskDeletes) -> None:
        self._deletes = deletes
        self._known: dict[frozenset[DeleteFile], KeySet] = {}

    def of(self, deletes: frozenset[DeleteFile]) -> KeySet:
        """The keys of deletes with the same fields. Raises OSError."""
        known = self._known.get(deletes)
        if known is None:
            known = self._known[deletes] = self._deletes.key_set(sorted(deletes, key=lambda d: d.path))
        return known


@dataclass(frozen=True)
class _Events:
    """Rows of a file, by position, with what happens to them."""

    positions: Positions
    steps: NDArray[np.int32]
    added: Mask
    wide: Mask
    """Whether all columns are needed."""

    @classmethod
    def joined(cls, parts: Sequence["_Events"]) -> "_Events":
        """All events, ordered by position and then by step; so are those of each part."""
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        positions = np.concatenate([part.positions for part in parts] or [np.empty(0, np.int64)])
        steps = np.concatenate([part.steps for part in parts] or [np.empty(0, np.int32)])
        added = np.concatenate([part.added for part in parts] or [np.empty(0, bool)])
        wide = np.concatenate([part.wide for part in parts] or [np.empty(0, bool)])
        order = order_by(positions, steps)
        return cls(positions[order], steps[order], added[order], wide[order])

    def within(self, first: int, rows: int) -> "_Events":
        """The events of some rows, whose positions become relative to `first`."""
        low, high = np.searchsorted(self.positions, [first, first + rows])
        piece = slice(low, high)
        return _Events(self.positions[piece] - first, self.steps[piece], self.added[piece], self.wide[piece])

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class _Side:
    """The deletes of a file in one snapshot."""

    by_position: frozenset[DeleteFile]
    by_key: frozenset[DeleteFile]

    @classmethod
    def of(cls, deletes: Deletes) -> "_Side":
        keys = frozenset(d for d in deletes if d.kind is DeleteKind.EQUALITY)
        return cls(frozenset(deletes) - keys, keys)

    def grows_into(self, after: "_Side") -> bool:
        """Whether a step only adds deletes by position."""
        return not self.by_key and not after.by_key and self.by_position <= after.by_position


@dataclass(frozen=True)
class _Open:
    """A transition that cannot be decided without the keys of the rows."""

    transition: Transition
    before: tuple[Positions, frozenset[DeleteFile]] | None
    """Rows that are deleted by position, and deletes by key; None if the file is not in the table."""
    after: tuple[Positions, frozenset[DeleteFile]] | None
    moved: Positions | None
    """Rows that are deleted by position on one side only; None if either side lacks the file."""


class ChangedRows:
    """The events of one file."""

    def __init__(self, changed: ChangedFile, into: EventTarget, deletes: TaskDeletes, keys: TaskKeySets) -> None:
        self._changed, self._into, self._deletes, self._keys = changed, into, deletes, keys
        self._read: dict[DeleteFile, Positions] = {}
        self._masks: dict[frozenset[DeleteFile], Mask] = {}
        self._rows: dict[frozenset[DeleteFile], Positions] = {}
        self._open: list[_Open] = []
        known = [self._known(t) for t in changed.transitions]
        self._events = _Events.joined([part for parts in known for part in parts])

    def read(self, split: FileSplit) -> Iterator[pa.RecordBatch]:
        """The events of a part of the file. Raises OSError, TerminalError."""
        if not len(self._events) and not self._open:
            return
        with (
            open_input(split.file.path, self._into.target.io_properties) as source,
            pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet,
        ):
            file = _OpenFile(parquet, source, self._into, self._changed, self._keys, self._open)
            first = 0
            for group in range(parquet.metadata.num_row_groups):
                metadata = parquet.metadata.row_group(group)
                rows = metadata.num_rows
                if split.start <= group_offset(metadata) < split.end and file.may_match(group):
                    decided = self._events.within(first, rows)
                    events = _Events.joined([decided, *file.opened(group, first, rows, self._into)])
                    if len(events):
                        yield from file.columns(group, events, first)
                first += rows

    def _known(self, transition: Transition) -> list[_Events]:
        """The events of a transition, if positions decide them."""
        before, after = (None if d is None else _Side.of(d) for d in (transition.before, transition.after))
        if before is not None and after is not None and before.grows_into(after):
            rows = self._newly_dead(before, after)
            return [_events(transition, rows, np.zeros(len(rows), bool), self._into)]
        old, new = (None if side is None else self._dead(side) for side in (before, after))
        keys = (before is not None and before.by_key) or (after is not None and after.by_key)
        moved = None if old is None or new is None else old ^ new
        if keys and before is not None and after is not None and before.by_key == after.by_key and not _any(moved):
            return []
        if keys:
            self._open.append(
                _Open(
                    transition,
                    None if before is None or old is None else (self._as_rows(before, old), before.by_key),
                    None if after is None or new is None else (self._as_rows(after, new), after.by_key),
                    None if moved is None else np.flatnonzero(moved),
                )
            )
            return []
        if old is None or new is None:
            live = np.flatnonzero(~(new if old is None else old))  # type: ignore[operator]  # one of them is there
            return [_events(transition, live, np.full(len(live), old is None), self._into)]
        rows = np.flatnonzero(moved)  # type: ignore[arg-type]  # both are there
        return [_events(transition, rows, old[rows], self._into)]

    def _newly_dead(self, before: _Side, after: _Side) -> Positions:
        """Rows that are deleted by position after a step, and not before it: without looking at all rows."""
        found = [self._positions(delete) for delete in after.by_position - before.by_position]
        dead = self._dead(before)
        rows = distinct(np.concatenate([*found, NOTHING]))
        rows = rows[rows < len(dead)]
        rows = rows[~dead[rows]]
        dead[rows] = True  # in place: the next step most likely starts here
        self._masks[after.by_position] = self._masks.pop(before.by_position)
        return rows

    def _dead(self, side: _Side) -> Mask:
        """Rows that are deleted by position."""
        known = self._masks.get(side.by_position)
        if known is None:
            near = max((s for s in self._masks if s <= side.by_position), key=len, default=frozenset())
            known = self._masks[near].copy() if near in self._masks else np.zeros(self._changed.file.rows, bool)
            for delete in side.by_position - near:
                positions = self._positions(delete)
                known[positions[positions < len(known)]] = True
            while len(self._masks) > 1:  # the next step differs little from this one
                del self._masks[next(iter(self._masks))]
            self._masks[side.by_position] = known
        return known

    def _as_rows(self, side: _Side, dead: Mask) -> Positions:
        """Dead rows as positions, which transitions share: there may be hundreds, each with few of many rows."""
        known = self._rows.get(side.by_position)
        if known is None:
            known = self._rows[side.by_position] = np.flatnonzero(dead)
        return known

    def _positions(self, delete: DeleteFile) -> Positions:
        if delete.kind is DeleteKind.VECTOR:  # each contains those before it, so all of them could be too many to keep
            return self._deletes.positions_in(delete, self._changed.file.path)
        known = self._read.get(delete)
        if known is None:
            known = self._read[delete] = self._deletes.positions_in(delete, self._changed.file.path)
        return known


def _any(mask: Mask | None) -> bool:
    return mask is None or bool(mask.any())


def _events(transition: Transition, positions: Positions, added: Mask, into: EventTarget) -> _Events:
    steps = np.full(len(positions), transition.step, np.int32)
    return _Events(positions, steps, added, added | (into.images or transition.images))


def _mask(positions: Positions, first: int, rows: int) -> Mask:
    """Whether each of some rows is among ascending positions in a file."""
    low, high = np.searchsorted(positions, [first, first + rows])
    found = np.zeros(rows, bool)
    found[positions[low:high] - first] = True
    return found


@dataclass
class _GroupKeys:
    """Which rows of one row group the keys of deletes match."""

    columns: dict[int, pa.ChunkedArray] = field(default_factory=dict)
    matches: dict[frozenset[DeleteFile], Positions] = field(default_factory=dict)


class _OpenFile:
    """Reads row groups of one open file."""

    def __init__(
        self,
        parquet: pq.ParquetFile,
        source: pa.NativeFile,
        into: EventTarget,
        changed: ChangedFile,
        keys: TaskKeySets,
        undecided: Sequence[_Open],
    ) -> None:
        self._parquet, self._source = parquet, source
        self._into, self._keys, self._undecided = into, keys, undecided
        self._origin = changed.number << _POSITION_BITS
        self._file = changed.file
        constants = dict(changed.file.constants)
        self._wide = Projection(parquet.schema_arrow, into.target, constants)
        self._light = Projection(parquet.schema_arrow, into.light_target, constants)
        self.may_match = GroupTest(parquet, self._wide.sources, into.target.where).may_match
        self._bounds: dict[tuple[int, ...], GroupBounds] = {}
        sides = [side for one in undecided for side in (one.before, one.after) if side is not None]
        self._common = frozenset.intersection(*(keys for _, keys in sides)) if sides else frozenset()

    def opened(self, group: int, first: int, rows: int, into: EventTarget) -> Iterator[_Events]:
        """The events of transitions that keys decide."""
        known = _GroupKeys()
        for one in self._undecided:
            candidates = np.ones(rows, bool)
            if one.moved is not None and one.before is not None and one.after is not None:
                differing = one.before[1] ^ one.after[1]
                candidates = _mask(one.moved, first, rows) | self._matches(group, rows, differing, known)
            if not candidates.any():
                continue
            dead = [
                np.ones(rows, bool)
                if side is None
                else _mask(side[0], first, rows) | self._matches(group, rows, side[1], known)
                for side in (one.before, one.after)
            ]
            found = np.flatnonzero(candidates & (dead[0] ^ dead[1]))
            yield _events(one.transition, found, dead[0][found], into)

    def _matches(self, group: int, rows: int, deletes: frozenset[DeleteFile], known: _GroupKeys) -> Mask:
        """The rows of a group that any of the deletes deletes."""
        matching = np.zeros(rows, bool)
        for part in self._parts(deletes):
            if part not in known.matches:
                known.matches[part] = np.flatnonzero(self._match(group, rows, part, known))
            matching[known.matches[part]] = True
        return matching

    def _parts(self, deletes: frozenset[DeleteFile]) -> Iterator[frozenset[DeleteFile]]:
        """What all transitions have in common as one set of keys for each set of fields, and each other delete."""
        by_fields: dict[tuple[int, ...], set[DeleteFile]] = {}
        for delete in deletes & self._common:
            by_fields.setdefault(delete.equality_ids, set()).add(delete)
        yield from map(frozenset, by_fields.values())
        for delete in deletes - self._common:
            yield frozenset((delete,))

    def _match(self, group: int, rows: int, part: frozenset[DeleteFile], known: _GroupKeys) -> Mask:
        ids = next(iter(part)).equality_ids
        keys = self._keys.of(part)
        if not self._reaches(group, ids, keys):
            return np.zeros(rows, bool)
        missing = [number for number in ids if number not in known.columns]
        if missing:
            paths = dict.fromkeys(self._into.target.keys[number].path[0] for number in missing)
            names = self._wide.needed(paths)
            table = (
                self._parquet.read_row_group(group, columns=names)
                if names
                else pa.Table.from_batches([rows_without_columns(rows)])
            )
            known.columns |= {number: self._wide.key(table, number) for number in missing}
        return keys.deleted([known.columns[number] for number in ids], self._file.sequence_number)

    def _reaches(self, group: int, ids: tuple[int, ...], keys: KeySet) -> bool:
        """False if no row of a group can have one of the keys, by its statistics."""
        if ids not in self._bounds:
            plain = [self._wide.source(n) if self._into.target.keys[n].path == (n,) else "" for n in ids]
            self._bounds[ids] = GroupBounds(self._parquet, plain)
        bounds = self._bounds[ids].of(group)
        return all(found is None or keys.reaches(at, found) for at, found in enumerate(bounds))

    def columns(self, group: int, events: _Events, offset: int) -> Iterator[pa.RecordBatch]:
        """The events of a row group with their columns; its first row is at `offset` in the file."""
        wide = bool(events.wide.any())
        projection, target = (self._wide, self._into.target) if wide else (self._light, self._into.light_target)
        names = projection.needed(n for f in target.schema if (n := field_id(f)) is not None)
        together = rows_in_pages(self._parquet, self._source, group, names, events.positions)
        if together is not None:
            yield self._batch(projection.batch(together), events, self._origin + offset)
            return
        first = 0
        for batch in first_rows(self._parquet, group, names, int(events.positions[-1]) + 1):
            piece = events.within(first, batch.num_rows)
            if len(piece):
                chosen = projection.batch(batch.take(pa.array(piece.positions)))
                yield self._batch(chosen, piece, self._origin + offset + first)
            first += batch.num_rows

    def _batch(self, chosen: pa.RecordBatch, events: _Events, origin: int) -> pa.RecordBatch:
        schema = self._into.schema
        known = dict(zip(chosen.schema.names, chosen.columns, strict=True))
        columns = [
            known[f.name] if f.name in known else pa.nulls(len(events), f.type) for f in self._into.target.schema
        ]
        flags = map(pa.array, (events.steps, events.added, events.wide, events.positions + origin))
        return pa.RecordBatch.from_arrays([*columns, *flags], schema=schema)
