"""Applies changes of a table to its former state, with a dictionary or a multiset as the model."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from calve.changelog.changes import changes_here
from calve.iceberg.loading import load_table
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf, TravelPoint, moment_of
from calve.lake import TableRef
from calve.model.changelog import CHANGE_COLUMNS, CHANGE_TYPE, VERSION
from calve.reader.local import LocalRead

Row = Mapping[str, Any]
Change = dict[str, Any]
Read = Callable[..., list[Change]]


def read_changes(ref: TableRef, **how: Any) -> list[Change]:
    """The changes, read in this process."""
    return [row for batch in changes_here(ref, **how).rows() for row in batch.to_pylist()]


def values_of(change: Row) -> dict[str, Any]:
    """The columns of the table."""
    return {name: value for name, value in change.items() if name not in CHANGE_COLUMNS}


def states(ref: TableRef, since: int | None, until: int | None = None) -> tuple[list[Row], list[Row]]:
    """The rows at two snapshots, both with the columns of the second."""
    table = load_table(ref.lake.open(), ref.name)
    last = moment_of(table, AsOf(snapshot_id=until))
    scan = Scan.of(table, AsOf(snapshot_id=until))
    found = []
    for snapshot in (since, last.snapshot.snapshot_id if last.snapshot else None):
        moment = TravelPoint(None if snapshot is None else table.metadata.snapshot_by_id(snapshot), last.schema_id)
        one = Scan(table, moment, scan.schema)
        found.append([row for batch in LocalRead(one, one.plan()).rows() for row in batch.to_pylist()])
    return found[0], found[1]


def apply_by_key(rows: Iterable[Row], changes: Sequence[Change], key: Sequence[str], *, before: bool) -> list[Row]:
    """Apply changes in their order. Every change must fit the state that it finds."""

    def of(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in key)

    state: dict[tuple[Any, ...], Row] = {of(row): row for row in rows}
    expected: Row | None = None
    for change in changes:
        row, kind = values_of(change), change[CHANGE_TYPE]
        if kind == "insert":
            assert of(row) not in state, f"{row} is inserted, and there"
            state[of(row)] = row
        elif kind == "delete":
            old = state.pop(of(row))
            assert row == (old if before else {name: old[name] if name in key else None for name in old})
        elif kind == "update_preimage":
            assert before
            expected = state[of(row)]
            assert row == expected
        else:
            assert of(row) in state, f"{row} is updated, and not there"
            assert not before or expected is not None
            assert not before or expected != row, "an update that changes nothing"
            state[of(row)], expected = row, None
    return list(state.values())


def apply_as_multiset(rows: Iterable[Row], changes: Sequence[Change]) -> list[Row]:
    """Apply inserts and deletes, and updates as both, in their order."""
    state = Counter(repr(row) for row in rows)
    kept = {repr(row): row for row in rows}
    for change in changes:
        row = values_of(change)
        kept[repr(row)] = row
        if change[CHANGE_TYPE] in {"insert", "update_postimage"}:
            state[repr(row)] += 1
        else:
            assert state[repr(row)] > 0, f"{row} is deleted, and not there"
            state[repr(row)] -= 1
    return [kept[text] for text in state.elements()]


def check_versions(changes: Sequence[Change]) -> None:
    """Steps come in their order."""
    versions = [change[VERSION] for change in changes]
    assert versions == sorted(versions)


def check_keyed(
    ref: TableRef, since: int | None, until: int | None, key: Sequence[str], read: Read = read_changes
) -> int:
    """Net and every step, with and without before images, lead from one state to the other; returns net changes."""
    first, last = states(ref, since, until)
    wanted = sorted(map(repr, last))
    count = 0
    for net in (True, False):
        for before in (False, True):
            found = read(ref, since=since, until=until, net=net, before=before)
            check_versions(found)
            reached = apply_by_key(first, found, key, before=before)
            assert sorted(map(repr, reached)) == wanted, (net, before)
            if net:
                assert len({tuple(c[n] for n in key) for c in found}) == len(found) - _images(found)
                count = len(found)
    return count


def _images(changes: Sequence[Change]) -> int:
    return sum(change[CHANGE_TYPE] == "update_preimage" for change in changes)
