"""Turns the events of a key into changes: inserts, deletes and updates, of every step or net.

A step that deletes and adds equal rows changes nothing: copy-on-write, rewrites. What remains of a key in a step is an
update if it is one deleted and one added row, else deletes, then inserts.

Net, a key has the row that the first step touching it deletes, if it deletes one, and the row that the last step
touching it adds, if it adds one. If a key is seen to have several rows, its net changes are the difference of the rows
as multisets, which needs all columns of deleted rows. It is seen if a step deletes or adds two, or deletes another row
than the last one that a step has added: one with other values, or in another place, unless a rewrite between the two
steps may have moved it. Without a key, every row is its own.

The events of a key must be in the same table. All steps are vectorized over the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calve.changelog.events import FLAGS
from calve.changelog.row_numbers import Mask, Numbers, equal_rows, order_by, paired, row_numbers
from calve.errors import TerminalError
from calve.model.changelog import CHANGE_TYPE, FRONTIER, TIMESTAMP, VERSION, ChangeStep, ChangeType

_TYPES = tuple(ChangeType)
_INSERT, _DELETE, _PREIMAGE, _POSTIMAGE = (
    _TYPES.index(one)
    for one in (ChangeType.INSERT, ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
)

META = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(VERSION, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
        pa.field(FRONTIER, pa.string()),
    ]
)
"""The columns of changes after those of the table."""
_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Pairing:
    """How events become changes. Pickled to executors."""

    steps: tuple[ChangeStep, ...]
    key: tuple[int, ...]
    """Places of the key columns; empty for tables without a key."""
    net: bool
    before: bool
    """Whether former values of updated rows are returned."""

    def changes(self, events: pa.Table) -> pa.Table:
        """The changes, by step and key, deletes of a key first. The last columns of events are their flags.

        Raises TerminalError if several rows have one key and their columns were not read.
        """
        return pa.Table.from_batches(self.batches(events), schema=pa.schema([*_rows_of(events).schema, *META]))

    def batches(self, events: pa.Table) -> Iterator[pa.RecordBatch]:
        """The same, made batch by batch: who takes them works on one while the next is made."""
        if not events.num_rows:
            return
        rows = _rows_of(events).combine_chunks()
        places, types, steps = self._found(rows, events)
        for first in range(0, len(places), _BATCH_ROWS):
            piece = slice(first, first + _BATCH_ROWS)
            taken = self._taken(rows, places[piece], types[piece] == _DELETE)
            yield from self._table(taken, types[piece], steps[piece]).to_batches()

    def _found(self, rows: pa.Table, events: pa.Table) -> "_Changes":
        """The changes in their order."""
        step, added, whole, origin = (c.to_numpy() for c in events.columns[-len(FLAGS) :])
        values = _Values([c for at, c in enumerate(rows.columns) if self.key and at not in self.key], origin)
        keys = _numbered([rows.column(at) for at in self.key or range(rows.num_columns)], origin)
        order = order_by(keys, step, added)  # a step deletes, then adds
        found = _Found(order, step[order], added[order], whole[order], keys[order], values)
        rewrites = np.array([one.rewrites for one in self.steps])
        strangers = found.keys_of_strangers(rewrites) if self.net and self.key else keys[:0]
        if (whole & ~added).any():  # else no deleted row is known to equal an added one
            found = found.uncancelled()
        if not self.net:
            places, types, steps = found.every_step()
        elif self.key:
            places, types, steps = found.net(strangers)
        else:
            places, types, steps = found.difference(np.ones(len(found.places), bool), keyed=False)
        if not self.before:
            kept = types != _PREIMAGE
            places, types, steps = places[kept], types[kept], steps[kept]
        order = order_by(steps, keys[places], _ORDER[types])
        return places[order], types[order], steps[order]

    def _taken(self, rows: pa.Table, places: Numbers, deleted: Mask) -> pa.Table:
        """Rows of changes. Unless former values are asked for, deleted rows have their key only, whatever was read."""
        chosen = pa.array(places)
        if self.before or not self.key:
            return rows.take(chosen)
        keyless = pa.array(places, mask=deleted)
        columns = [c.take(chosen if at in self.key else keyless) for at, c in enumerate(rows.columns)]
        return pa.Table.from_arrays(columns, schema=rows.schema)

    def _table(self, rows: pa.Table, types: Numbers, steps: Numbers) -> pa.Table:
        at = pa.array(steps)
        columns = [
            pa.array([one.value for one in _TYPES]).take(pa.array(types)),
            pa.array([s.version for s in self.steps], pa.int64()).take(at),
            pa.array([s.timestamp_ms * 1000 for s in self.steps], pa.int64()).cast(META.field(2).type).take(at),
            pa.array([s.frontier for s in self.steps], pa.string()).take(at),
        ]
        schema = pa.schema([*rows.schema, *META])
        return pa.Table.from_arrays([*rows.columns, *columns], schema=schema)


_ORDER = np.array([{_DELETE: 0, _PREIMAGE: 1, _POSTIMAGE: 2, _INSERT: 3}[n] for n in range(len(_TYPES))])


def _rows_of(events: pa.Table) -> pa.Table:
    """Events without their flags."""
    return events.select(range(events.num_columns - len(FLAGS)))


def _numbers(values: NDArray[np.int32]) -> Numbers:
    return values.astype(np.int64)


def _numbered(columns: Sequence[pa.ChunkedArray], origin: Numbers) -> Numbers:
    """For each event the number of its values. Those of one row of a file follow each other, and are compared once."""
    others = np.r_[True, origin[1:] != origin[:-1]]
    distinct = pa.array(np.flatnonzero(others))
    found: Numbers = row_numbers([column.take(distinct) for column in columns], len(distinct))[np.cumsum(others) - 1]
    return found


@dataclass(frozen=True)
class _Values:
    """What rows of one key may differ in. Few rows are ever compared, so they are not numbered in advance."""

    columns: Sequence[pa.ChunkedArray]
    """All but the key; without a key none, since rows of one key number are equal then."""
    origin: Numbers

    def equal(self, left: Numbers, right: Numbers) -> Mask:
        """Whether events have equal rows, by places in the events: pairs of the same key, whose columns were read."""
        found: Mask = self.origin[left] == self.origin[right]
        others = np.flatnonzero(~found)
        found[others] = equal_rows(self.columns, left[others], right[others])
        return found

    def numbers(self, places: Numbers) -> Numbers:
        """Numbers of rows, which are the same for equal rows of the same key."""
        chosen = pa.array(places)
        return row_numbers([column.take(chosen) for column in self.columns], len(places))


def _cancelled(groups: Numbers, added: Mask, whole: Mask) -> Mask:
    """Pairs of a deleted and an added row of one group; rows whose columns were not all read are equal to none."""
    cancelled = np.zeros(len(groups), bool)
    comparable = np.flatnonzero(whole)
    if not len(comparable):
        return cancelled
    group, is_added = groups[comparable], added[comparable]
    size = int(group.max()) + 1
    pairs = np.minimum(np.bincount(group[is_added], minlength=size), np.bincount(group[~is_added], minlength=size))
    if pairs.any():
        for kind in (is_added, ~is_added):
            rank = _ranks(group[kind])
            cancelled[comparable[kind]] = rank < pairs[group[kind]]
    return cancelled


def _ranks(groups: Numbers) -> Numbers:
    """For each row its number within its group, in order."""
    order = np.argsort(groups, kind="stable")
    ascending = groups[order]
    starts = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]]) if len(groups) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(groups)])
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return ranks


_Changes = tuple[Numbers, Numbers, Numbers]
"""Places of rows in the events, types, and steps."""


@dataclass(frozen=True)
class _Found:
    """Events by key and step, those of deleted rows first, before and after equal rows of a step are cancelled."""

    places: Numbers
    """Where each of them is in the table of events."""
    step: NDArray[np.int32]
    added: Mask
    whole: Mask
    key: Numbers
    values: _Values

    @cached_property
    def _visits(self) -> "_Visits":
        return _Visits(self.key, self.step, self.added)

    def uncancelled(self) -> "_Found":
        """What is left without equal rows of a step, one deleted and one added."""
        gone = self._visits.cancelled(self.places, self.values, self.whole)
        if not gone.any():
            return self
        left = np.flatnonzero(~gone)
        return _Found(
            self.places[left],
            self.step[left],
            self.added[left],
            self.whole[left],
            self.key[left],
            self.values,
        )

    def every_step(self) -> _Changes:
        """An update where a step deletes one row of a key and adds one."""
        visit = self._visits
        update = ((visit.deleted == 1) & (visit.added == 1))[visit.of_event]
        return self.places, _types(self.added, update), _numbers(self.step)

    def net(self, strangers: Numbers) -> _Changes:
        """The first and the last row of keys that never have two; the difference of multisets for the others.

        `strangers` are keys that are known to have several rows.
        """
        if not len(self.places):
            return self.places, self.key, _numbers(self.step)
        visit = self._visits
        several = (visit.deleted > 1) | (visit.added > 1)
        follows = visit.key[1:] == visit.key[:-1]
        another = visit.deletes_another_row(self.places, self.values, self.whole)
        several[1:] |= (follows & (visit.deleted[1:] != visit.added[:-1])) | another[1:]
        many = np.zeros(int(self.key.max()) + 1, bool)
        many[visit.key[several]] = True
        many[strangers[strangers < len(many)]] = True
        last = np.r_[~follows, True]
        first = np.r_[True, ~follows]
        before = ~self.added & first[visit.of_event] & ~many[self.key]
        after = self.added & last[visit.of_event] & ~many[self.key]
        old, new = np.flatnonzero(before), np.flatnonzero(after)
        row_before = np.full(len(many), -1, np.int64)
        row_after = row_before.copy()
        row_before[self.key[old]], row_after[self.key[new]] = old, new
        both = (row_before >= 0) & (row_after >= 0)
        same = np.zeros(len(many), bool)
        both_read = np.flatnonzero(both)
        both_read = both_read[self.whole[row_before[both_read]] & self.whole[row_after[both_read]]]
        left, right = self.places[row_before[both_read]], self.places[row_after[both_read]]
        same[both_read] = self.values.equal(left, right)
        chosen = np.r_[old, new]
        chosen = chosen[~same[self.key[chosen]]]
        newest = np.zeros(len(many), np.int64)
        newest[visit.key[last]] = visit.step[last]
        types = _types(self.added[chosen], both[self.key[chosen]])
        simple = self.places[chosen], types, newest[self.key[chosen]]
        if not many.any():
            return simple
        others = self.difference(many[self.key], keyed=True)
        return tuple(np.concatenate(pair) for pair in zip(simple, others, strict=True))  # type: ignore[return-value]

    def keys_of_strangers(self, rewrites: Numbers) -> Numbers:
        """Keys of which a step deletes a row in another place than the one that the last step before it added.

        A rewrite of files between the two steps may have moved the row. Rows that a step only moves itself are events,
        too.
        """
        key, step, added = self.key, self.step, self.added
        pairs = (key[1:] == key[:-1]) & added[:-1] & ~added[1:] & (step[:-1] < step[1:])
        earlier = np.flatnonzero(pairs)
        later = earlier + 1
        unmoved = rewrites[step[earlier]] == rewrites[step[later]]
        moved = self.values.origin[self.places[earlier]] != self.values.origin[self.places[later]]
        found: Numbers = key[later[unmoved & moved]]
        return found

    def difference(self, chosen: Mask, *, keyed: bool) -> _Changes:
        """The difference of added and deleted rows as multisets. Raises TerminalError if they are not known."""
        index = np.flatnonzero(chosen)
        if not len(index):
            return self.places[index], self.key[index], _numbers(self.step[index])
        if not self.whole[index].all():
            raise TerminalError(
                "several rows of the table have the same key",
                detail="Which of them were deleted is known from all of their columns only.",
                hint="Ask for before images, for every step, or name a key that identifies rows.",
            )
        key, step, added = self.key[index], _numbers(self.step[index]), self.added[index]
        group = paired(key, self.values.numbers(self.places[index]))
        gone = _cancelled(group, added, np.ones(len(index), bool))
        newest = np.zeros(int(key.max()) + 1, np.int64)
        np.maximum.at(newest, key, step)
        left = np.flatnonzero(~gone)
        size = len(newest)
        one = (np.bincount(key[left][added[left]], minlength=size) == 1) & (
            np.bincount(key[left][~added[left]], minlength=size) == 1
        )
        update = one[key[left]] if keyed else np.zeros(len(left), bool)
        return self.places[index[left]], _types(added[left], update), newest[key[left]]


def _types(added: Mask, update: Mask) -> Numbers:
    found: Numbers = np.where(update, np.where(added, _POSTIMAGE, _PREIMAGE), np.where(added, _INSERT, _DELETE)).astype(
        np.int64
    )
    return found


class _Visits:
    """The steps that touch a key, ordered by key and step, of events in the same order, deleted rows first."""

    def __init__(self, key: Numbers, step: NDArray[np.int32], added: Mask) -> None:
        self._added = added
        starts = np.r_[True, (key[1:] != key[:-1]) | (step[1:] != step[:-1])] if len(key) else np.zeros(0, bool)
        self._first = np.flatnonzero(starts)
        ends = np.r_[self._first[1:], len(key)] if len(key) else self._first
        self._size = ends - self._first
        self.key, self.step = key[self._first], _numbers(step[self._first])
        self.added = np.add.reduceat(added, self._first, dtype=np.int64) if len(key) else self._size
        self.deleted = self._size - self.added

    @cached_property
    def of_event(self) -> Numbers:
        """The visit of each event."""
        return np.repeat(np.arange(len(self._size)), self._size)

    def cancelled(self, places: Numbers, values: _Values, whole: Mask) -> Mask:
        """Pairs of a deleted and an added row with the same values, all of which were read."""
        found = np.zeros(len(places), bool)
        old = self._first[(self.deleted == 1) & (self.added == 1)]
        old = old[whole[old] & whole[old + 1]]
        new = old + 1
        same = values.equal(places[old], places[new])
        found[old[same]] = found[new[same]] = True
        several = (self.deleted > 0) & (self.added > 0) & (self._size > 2)
        rest = np.flatnonzero(several[self.of_event])
        if len(rest):
            groups = paired(self.of_event[rest], values.numbers(places[rest]))
            found[rest] = _cancelled(groups, self._added[rest], whole[rest])
        return found

    def deletes_another_row(self, places: Numbers, values: _Values, whole: Mask) -> Mask:
        """Whether the deleted row is known not to be the one that the visit before added: a key with several rows.

        Of visits with several deleted or added rows, any of them may be taken.
        """
        found = np.zeros(len(self.key), bool)
        old, new = self._first, self._first + self._size - 1  # a step deletes, then adds
        known = (self.deleted > 0) & whole[old]
        later = 1 + np.flatnonzero(known[1:] & (self.added[:-1] > 0) & (self.key[1:] == self.key[:-1]))
        found[later] = ~values.equal(places[old[later]], places[new[later - 1]])
        return found
