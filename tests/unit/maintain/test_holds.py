"""A compaction holds what it stands on: however fast others commit meanwhile, its work is not lost."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from calve import faults
from calve.catalog.connect import connect_embedded
from calve.catalog.embedded import EmbeddedCatalog
from calve.clock import RandomIds, SystemClock
from calve.iceberg.snapshot.holds import PREFIX, Hold, HoldPlace
from calve.maintain.compact import CompactionScope, Compactor, RewrittenFiles, compact
from calve.maintain.convert import ConversionTools
from tests.support.compaction import rewritten
from tests.support.expiring import BATCH, MANY, expire_early
from tests.support.keyed import KeyedTable, no_session
from tests.support.readers import duckdb_rows
from tests.support.runs import EIGHT_FILES

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "v", LongType()))


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    expire_early(monkeypatch)


class Stream:
    """A sink that commits one row after the other, and replaces old ones."""

    def __init__(self, home: Path) -> None:
        self.table = KeyedTable(home, SCHEMA, ["id"])
        self._next = 0

    def commits(self, count: int) -> None:
        for _ in range(count):
            rows = [{"id": self._next, "v": self._next}, {"id": self._next // 3, "v": -self._next}]
            rows = rows[:1] if self._next == 0 else rows
            self._next += 1
            self.table.apply([self.table.data(rows)], rows)

    def compactor(self, renew_seconds: float = 60.0) -> Compactor:
        tools = ConversionTools(no_session, SystemClock(), RandomIds())
        return Compactor(
            self.table.ref.lake.open(), CompactionScope(self.table.ref.name), tools, renew_seconds=renew_seconds
        )

    def check_rows(self) -> None:
        found = duckdb_rows(self.table.table.metadata_location)
        assert sorted((row["id"], row["v"]) for row in found) == sorted(
            (row["id"], row["v"]) for row in self.table.contents.values()
        )

    @property
    def holds(self) -> list[str]:
        return [name for name in self.table.table.metadata.refs if name.startswith(PREFIX)]


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path)
    yield made
    made.table.close()


def test_a_hold_is_taken_however_often_others_commit_meanwhile(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.commits(2)
    catalog = connect_embedded(tmp_path)
    table = catalog.load_table(stream.table.ref.name.identifier)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert isinstance(catalog, EmbeddedCatalog)
    swap, others = catalog._swap, [1, 1, 1]

    def swap_too_late(*arguments: Any) -> None:
        if others:
            stream.commits(others.pop())
        swap(*arguments)

    monkeypatch.setattr(catalog, "_swap", swap_too_late)
    hold = Hold(HoldPlace(catalog, stream.table.ref.name, SystemClock()), "h", table, snapshot.snapshot_id)
    assert others == []
    assert stream.holds == [hold.tag]
    stream.check_rows()
    catalog.close()


def planned_and_rewritten(compactor: Compactor) -> RewrittenFiles:
    plan = compactor.plan(EIGHT_FILES)
    assert plan is not None
    return rewritten(compactor, plan)


def test_a_compaction_outlives_more_commits_than_are_kept(stream: Stream) -> None:
    stream.commits(12)
    compactor = stream.compactor()
    for during in (20, MANY):
        ready = planned_and_rewritten(compactor)
        assert stream.holds == [ready.hold.tag]
        stream.commits(during)
        done = compactor.commit(ready)
        assert done is not None
        assert done.files_after < done.files_before
        assert stream.holds == [], "the hold ended with the commit"
        stream.check_rows()
    stream.commits(BATCH)
    assert len(stream.table.table.snapshots()) <= MANY


def test_a_long_compaction_moves_its_hold_along(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it keeps the history of a minute and not of hours."""
    stream.commits(12)
    compactor = stream.compactor(renew_seconds=0.01)
    plan = compactor.plan(EIGHT_FILES)
    assert plan is not None
    renew, may_renew, renewed = Hold.renew, threading.Event(), threading.Event()
    seen: list[int] = []

    def renew_when_told(hold: Hold) -> None:
        if may_renew.is_set():
            may_renew.clear()
            renew(hold)
            renewed.set()

    def check() -> None:
        if not seen:
            for _ in range(2):
                stream.commits(MANY)
                renewed.clear()
                may_renew.set()
                assert renewed.wait(60)
                seen.append(len(stream.table.table.snapshots()))

    monkeypatch.setattr(Hold, "renew", renew_when_told)
    ready = rewritten(compactor, plan, check)
    head = stream.table.table.current_snapshot()
    assert head is not None
    assert ready.hold.snapshot_id == head.snapshot_id
    assert max(seen) <= 2 * MANY, "two rounds and their beginning are more"
    assert compactor.commit(ready) is not None
    stream.check_rows()


def test_of_two_compactions_beside_each_other_one_wins_and_neither_leaves_a_hold(stream: Stream) -> None:
    stream.commits(12)
    first, second = stream.compactor(), stream.compactor()
    one, two = planned_and_rewritten(first), planned_and_rewritten(second)
    assert len(stream.holds) == 2
    stream.commits(MANY)
    assert second.commit(two) is not None
    assert stream.holds == [one.hold.tag]
    assert first.commit(one) is None, "its files were replaced"
    first.abandon(one)
    assert stream.holds == []
    stream.check_rows()


def test_a_rewrite_that_fails_ends_its_hold(stream: Stream) -> None:
    stream.commits(12)
    compactor = stream.compactor()
    plan = compactor.plan(EIGHT_FILES)
    assert plan is not None

    def check() -> None:
        assert len(stream.holds) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewritten(compactor, plan, check)
    assert stream.holds == []


def test_a_compaction_by_hand_that_fails_at_its_commit_ends_its_hold(stream: Stream) -> None:
    stream.commits(12)
    tools = ConversionTools(no_session, SystemClock(), RandomIds())

    def break_off(point: str) -> None:
        if point == "maintain.before":
            raise KeyboardInterrupt

    faults.install(break_off)
    try:
        with pytest.raises(KeyboardInterrupt):
            compact(stream.table.ref.lake.open(), CompactionScope(stream.table.ref.name), tools)
    finally:
        faults.install(None)
    assert stream.holds == []
    stream.check_rows()


@pytest.mark.long
def test_work_that_was_rolled_back_under_is_thrown_away(stream: Stream) -> None:
    stream.commits(12)
    before = stream.table.table.current_snapshot()
    assert before is not None
    stream.commits(1)
    compactor = stream.compactor()
    ready = planned_and_rewritten(compactor)
    with stream.table.table.manage_snapshots() as refs:
        refs.rollback_to_snapshot(before.snapshot_id)
    ready.hold.renew()
    assert ready.hold.snapshot_id != before.snapshot_id
    assert compactor.commit(ready) is None
    compactor.abandon(ready)
    assert stream.holds == []
