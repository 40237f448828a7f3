"""Changes of a table as a stream for Spark's queries: offsets, restarts, changed history, consumers. Without Spark."""

import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import StringType

from calve.errors import InvalidInput, SourceChanged, SourceLost
from calve.iceberg.planning.change_range import Point
from calve.iceberg.snapshot.consumers import OF_STREAM, consumers_of
from calve.lake import Lake, TableRef
from calve.model.changelog import CHANGE_COLUMNS
from calve.source.following import MOVE_SECONDS
from calve.source.python_source import ChangeReader, TaskPartition, TaskReader
from calve.source.table_stream import BEGINNING, Offset, define_stream
from tests.support.change_feed import apply_as_multiset, apply_by_key, check_versions, read_changes, states
from tests.support.fake_query import FakeQuery, PassingClock, ordered
from tests.support.foreign import NAME
from tests.support.regions import random_commit, table_of_regions
from tests.unit.changelog.test_random_changes import EvolvingTable, snapshots
from tests.unit.iceberg.sample import SetClock

MOVE_MS = round(MOVE_SECONDS * 1000)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[EvolvingTable]:
    table = EvolvingTable(tmp_path / "lake", random.Random(5))
    for _ in range(4):
        table.batch()
    yield table
    table.table.close()


def ends(query: FakeQuery) -> list[int]:
    return [json.loads(end)["snapshot"] for end in query.log]


STREAMS = [("snapshot", "before"), ("earliest", "none"), ("latest", "none"), ("third", "before")]


@pytest.mark.parametrize(("start", "images"), STREAMS)
@pytest.mark.parametrize("rounds", [8, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.long])])
def test_changes_applied_to_the_start_give_the_table_across_restarts(
    start: str, images: str, rounds: int, made: EvolvingTable
) -> None:
    rng = random.Random(f"{start} {rounds}")
    ids, before = snapshots(made.table.table), images == "before"
    point: Point = ids[2] if start == "third" else start
    query = FakeQuery(made.table.ref, {"start": point, "before": before, "max_rows": rng.choice([None, 1, 20])})
    query.poll()
    for number in range(rounds):
        for _ in range(rng.choice([1, 3]) if number % 3 == 2 else rng.choice([0, 1])):
            made.batch()
        if number % 3 == 1:
            made.rewrite()
        if number % 3 == 2:
            assert query.poll(dies=True)
        if rng.random() < 0.5 or query.committed < len(query.log):
            query.restart()
        query.poll()
    while query.poll():
        pass
    assert ends(query)[-1] == snapshots(made.table.table)[-1]
    first = {"latest": ids[-1], "third": ids[2]}.get(start)
    rows = states(made.table.ref, first)[0] if first else []
    check_versions(ordered(query.changes))
    reached = apply_by_key(rows, ordered(query.changes), ["id"], before=before)
    assert sorted(map(repr, reached)) == sorted(map(repr, made.table.rows()))
    if first:
        expected = read_changes(made.table.ref, since=first, net=False, before=before)
        assert ordered(query.changes) == ordered(expected), "the same changes as those of the range"


def test_a_batch_that_is_repeated_starts_where_it_started_first(made: EvolvingTable) -> None:
    for start in ("latest", "snapshot"):
        query = FakeQuery(made.table.ref, {"start": start})
        query.poll(dies=True)
        first = query.log[0]
        made.batch()
        query.restart()
        assert query.log == [first], "latest is another snapshot now, and the batch is not"
        rows = states(made.table.ref, json.loads(first)["first"]["snapshot"])[0] if start == "latest" else []
        query.poll()
        reached = apply_by_key(rows, ordered(query.changes), ["id"], before=False)
        assert sorted(map(repr, reached)) == sorted(map(repr, made.table.rows()))


def test_rows_without_a_key_are_inserted_and_deleted(tmp_path: Path) -> None:
    rng = random.Random(4)
    table = table_of_regions(tmp_path)
    random_commit(table, rng)
    query = FakeQuery(table.ref, {"start": "earliest"})
    for _ in range(5):
        query.poll()
        random_commit(table, rng)
        query.restart()
    while query.poll():
        pass
    assert {change["_change_type"] for change in query.changes} == {"insert", "delete"}
    reached = apply_as_multiset([], sorted(query.changes, key=lambda c: c["_commit_version"]))
    assert sorted(map(repr, reached)) == sorted(map(repr, states(table.ref, None)[1]))
    table.close()


def test_a_query_that_has_not_said_where_it_is_reads_up_to_the_head(made: EvolvingTable) -> None:
    """So does Spark with availableNow: it asks once, before anything else, and reads no further."""
    query = FakeQuery(made.table.ref, {"start": snapshots(made.table.table)[0], "max_rows": 1})
    assert query.poll()
    made.batch()
    made.batch()
    fresh = define_stream(made.table.ref, start=17).open(PassingClock())
    end = fresh.latest()
    assert end["snapshot"] == snapshots(made.table.table)[-1], "an expired start does not matter to an old query"
    assert fresh.plan(json.loads(query.log[-1]), end)
    with pytest.raises(InvalidInput, match="has no snapshot 17"):
        fresh.plan(BEGINNING, end)
    assert query.poll()
    assert ends(query)[-1] == snapshots(made.table.table)[-2], "one with a limit takes snapshot after snapshot"


def test_other_columns_end_the_query_and_a_new_one_reads_them(made: EvolvingTable) -> None:
    query = FakeQuery(made.table.ref, {"start": "snapshot"})
    query.poll()
    with made.table.table.update_schema() as update:
        update.add_column("more", StringType())
    assert not query.poll(), "a change of columns alone is nothing"
    made.batch()
    with pytest.raises(SourceChanged, match="the columns of table") as told:
        query.poll()
    assert "Start the query again" in told.value.hint
    unaware = query.definition.open(PassingClock())
    end = unaware.latest()
    with pytest.raises(SourceChanged, match="the columns of table"):
        unaware.plan(json.loads(query.log[-1]), end)
    query.restart()
    assert query.poll()
    assert {"more" in change for change in query.changes} == {True, False}


def test_a_changed_history_is_told_with_what_to_do(made: EvolvingTable) -> None:
    ids = snapshots(made.table.table)
    query = FakeQuery(made.table.ref, {"start": "snapshot"})
    query.poll()
    made.batch()
    query.poll(dies=True)
    made.table.table.manage_snapshots().set_current_snapshot(ids[1]).commit()
    with pytest.raises(SourceLost, match="the history of table") as told:
        query.restart()
    assert "another checkpoint location" in told.value.hint
    assert str(ids[-1]) in told.value.detail
    query.ref.lake.open().drop_table(NAME)
    with pytest.raises(SourceLost, match="was dropped"):
        query.stream.latest()


def test_a_consumer_keeps_what_was_not_processed(made: EvolvingTable) -> None:
    clock = SetClock()
    query = FakeQuery(made.table.ref, {"start": "snapshot", "consumer": "audit"}, clock)

    def tag() -> int:
        (found,) = consumers_of(made.table.table)
        assert (found.name, found.sink_id) == ("audit", OF_STREAM)
        return found.snapshot_id

    query.poll(dies=True)
    assert tag() == snapshots(made.table.table)[-1], "held before anything is read"
    read = tag()
    made.batch()
    fresh = query.definition.open(clock)
    fresh.latest()
    assert tag() == read, "a process that does not know where the query is leaves the tag"
    query.restart()
    assert query.poll()
    assert tag() == read, "the batch is not committed"
    clock.now += MOVE_MS
    made.table.exchange([], operation=Operation.REPLACE)
    query.poll()
    assert tag() == ends(query)[1]
    with pytest.raises(InvalidInput, match="not a valid name"):
        define_stream(made.table.ref, consumer="no such name")


def test_only_what_is_asked_for_is_read(made: EvolvingTable) -> None:
    query = FakeQuery(made.table.ref, {"start": "earliest", "columns": ["n"], "max_rows": 1})
    assert query.poll()
    made.batch()
    made.batch()
    while query.poll():
        pass
    assert {tuple(change) for change in query.changes} == {("id", "n", *CHANGE_COLUMNS)}
    assert ends(query) == snapshots(made.table.table)[3:], "the first batch has no limit"
    refused: list[dict[str, Any]] = [{"columns": "n"}, {"key": "id"}, {"max_rows": 0}, {"columns": ["no"]}]
    for wrong in refused:
        with pytest.raises(InvalidInput):
            define_stream(made.table.ref, **wrong)


def test_the_first_rows_have_the_version_of_their_snapshot(made: EvolvingTable) -> None:
    query = FakeQuery(made.table.ref, {"start": "snapshot"})
    query.poll()
    head = made.table.table.metadata.current_snapshot()
    assert head is not None
    assert {(c["_change_type"], c["_commit_version"]) for c in query.changes} == {("insert", head.sequence_number)}
    (when,) = {change["_commit_timestamp"] for change in query.changes}
    assert round(when.timestamp() * 1000) == head.timestamp_ms
    offset: Offset = json.loads(query.log[0])
    assert (offset["first"]["snapshot"], offset["rows"]) == (head.snapshot_id, True)


def test_executors_get_no_credentials_of_the_catalog(made: EvolvingTable) -> None:
    definition = define_stream(made.table.ref, start="earliest")
    lake = Lake(made.table.ref.lake.home, {"type": "rest", "uri": "https://catalog.example", "token": "hush"})
    reader = ChangeReader(replace(definition, table=TableRef(lake, definition.table.name)))
    sent = pickle.dumps(reader)
    assert type(pickle.loads(sent)) is TaskReader
    assert b"hush" not in sent
    opened = ChangeReader(definition)
    parts = opened.partitions(opened.initialOffset(), opened.latestOffset())
    assert parts
    for part in parts:
        assert isinstance(part, TaskPartition)
        assert made.table.table.location() not in repr(part), "tasks have credentials of files, so they are not shown"
        assert list(TaskReader().read(part))
    opened.stop()
