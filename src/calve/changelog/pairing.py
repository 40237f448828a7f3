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

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calve.changelog.events import FLAGS
from calve.changelog.row_numbers import Numbers, order_by, paired, row_numbers
from calve.errors import TerminalError
from calve.model.changelog import CHANGE_TYPE, FRONTIER, TIMESTAMP, VERSION, ChangeStep, ChangeType

Mask = NDArray[np.bool_]

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
        rows = events.select(range(events.num_columns - len(FLAGS)))
        if not events.num_rows:
            return self._table(rows, np.empty(0, np.int64), np.empty(0, np.int64))
        step, added, whole, origin = (c.to_numpy() for c in events.columns[-len(FLAGS) :])
        compared = not self.key or bool((whole & ~added).any())  # else no deleted row can equal an added one
        values = row_numbers(rows.columns, len(step)) if compared else np.zeros(len(step), np.int64)
        keys = row_numbers([rows.column(place) for place in self.key], len(step)) if self.key else values
        gone = _cancelled(paired(_numbers(step), values), added, whole) if compared else np.zeros(len(step), bool)
        index = np.flatnonzero(~gone)
        found = _Found(index, step[index], added[index], whole[index], keys[index], values[index])
        if not self.net:
            places, types, steps = found.every_step()
        elif self.key:
            rewrites = np.array([one.rewrites for one in self.steps])
            places, types, steps = found.net(_keys_of_strangers(step, added, keys, origin, rewrites))
        else:
            places, types, steps = found.difference(np.ones(len(index), bool), keyed=False)
        if not self.before:
            kept = types != _PREIMAGE
            places, types, steps = places[kept], types[kept], steps[kept]
        order = order_by(steps, keys[places], _ORDER[types])
        return self._table(self._taken(rows, places[order], types[order] == _DELETE), types[order], steps[order])

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


def _numbers(values: NDArray[np.int32]) -> Numbers:
    return values.astype(np.int64)


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
    """Events that are left after equal rows of a step were cancelled."""

    places: Numbers
    step: NDArray[np.int32]
    added: Mask
    whole: Mask
    key: Numbers
    value: Numbers

    def every_step(self) -> _Changes:
        """An update where a step deletes one row of a key and adds one."""
        visit = _Visits(self)
        update = ((visit.deleted == 1) & (visit.added == 1))[visit.of_event]
        return self.places, _types(self.added, update), _numbers(self.step)

    def net(self, strangers: Numbers) -> _Changes:
        """The first and the last row of keys that never have two; the difference of multisets for the others.

        `strangers` are keys that are known to have several rows.
        """
        if not len(self.places):
            return self.places, self.key, _numbers(self.step)
        visit = _Visits(self)
        several = (visit.deleted > 1) | (visit.added > 1)
        follows = visit.key[1:] == visit.key[:-1]
        several[1:] |= follows & ((visit.deleted[1:] != visit.added[:-1]) | visit.deletes_another_row[1:])
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
        same = both.copy()
        left, right = row_before[both], row_after[both]
        same[both] = (self.value[left] == self.value[right]) & self.whole[left] & self.whole[right]
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
        key, value, step, added = self.key[index], self.value[index], _numbers(self.step[index]), self.added[index]
        group = paired(key, value)
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


def _keys_of_strangers(
    step: NDArray[np.int32], added: Mask, key: Numbers, origin: Numbers, rewrites: Numbers
) -> Numbers:
    """Keys of which a step deletes a row in another place than the one that the last step before it added.

    A rewrite of files between the two steps may have moved the row. Rows that a step only moves itself are events, too.
    """
    order = order_by(key, step, added)  # a step deletes, then adds
    pairs = order[:-1], order[1:]
    follows = (key[pairs[0]] == key[pairs[1]]) & added[pairs[0]] & ~added[pairs[1]] & (step[pairs[0]] < step[pairs[1]])
    unmoved = rewrites[step[pairs[0]]] == rewrites[step[pairs[1]]]
    found: Numbers = key[pairs[1][follows & unmoved & (origin[pairs[0]] != origin[pairs[1]])]]
    return found


def _types(added: Mask, update: Mask) -> Numbers:
    found: Numbers = np.where(update, np.where(added, _POSTIMAGE, _PREIMAGE), np.where(added, _INSERT, _DELETE)).astype(
        np.int64
    )
    return found


class _Visits:
    """The steps that touch a key, ordered by key and step."""

    def __init__(self, events: _Found) -> None:
        order = order_by(events.key, events.step)
        key, step = events.key[order], events.step[order]
        starts = np.r_[True, (key[1:] != key[:-1]) | (step[1:] != step[:-1])] if len(order) else np.zeros(0, bool)
        number = np.cumsum(starts) - 1
        self.key, self.step = key[starts], _numbers(step[starts])
        count = len(self.key)
        self.of_event = np.empty(len(order), np.int64)
        self.of_event[order] = number
        added = events.added[order]
        self.added = np.bincount(number[added], minlength=count)
        self.deleted = np.bincount(number[~added], minlength=count)
        value = events.value[order]
        known = ~added & events.whole[order]
        old, new = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        old[number[known]], new[number[added]] = value[known], value[added]
        self.deletes_another_row = np.zeros(count, bool)
        """Whether the deleted row is known not to be the one that the visit before added: a key with several rows."""
        self.deletes_another_row[1:] = (old[1:] >= 0) & (new[:-1] >= 0) & (old[1:] != new[:-1])
