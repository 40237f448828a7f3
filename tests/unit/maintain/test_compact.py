"""Small files and deletes leave a table: no row changes, whoever writes meanwhile."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

import calve
from calve import faults
from calve.clock import RandomIds, SystemClock
from calve.errors import CommitConflict, InvalidInput, TransientError
from calve.iceberg.planning.compaction_groups import BY_HAND, SORTING
from calve.iceberg.snapshot.holds import PREFIX
from calve.maintain import rewrite
from calve.maintain.compact import CompactionScope, Compactor, RewriteRoom
from calve.maintain.convert import ConversionTools
from calve.model.files import Content
from tests.support.combinations import seeds
from tests.support.compaction import rewritten
from tests.support.foreign import ForeignTable, in_order
from tests.support.keyed import no_session
from tests.support.readers import duckdb_rows
from tests.support.regions import SCHEMA, random_commit, row


def files_of(table: ForeignTable, content: Content = Content.DATA) -> list[dict[str, Any]]:
    return [file for file in table.table.inspect.files().to_pylist() if file["content"] == content]


def stored(table: ForeignTable) -> set[str]:
    """Names of all Parquet files below the table."""
    return {path.name for path in Path(table.table.location().removeprefix("file://")).rglob("*.parquet")}


@seeds(3)
def test_a_compacted_table_has_the_same_rows_for_every_reader(table: ForeignTable, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        random_commit(table, rng)
    wanted, before = in_order(table.rows()), table.table.current_snapshot()
    assert before is not None
    done = calve.compact(table.ref)
    assert done is not None
    assert (done.files_before, done.rows_after) == (15, len(wanted))
    assert in_order(table.rows()) == wanted
    assert in_order(table.rows(snapshot_id=before.snapshot_id)) == wanted, "older snapshots are as they were"
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert in_order(table.table.scan().to_arrow().to_pylist()) == wanted, "pyiceberg reads it, for no delete is left"
    assert len(files_of(table)) == len(table.table.inspect.files()) == done.files_after == 4, "one for each partition"
    assert calve.compact(table.ref) is None, "nothing is left to do"


def test_a_compaction_is_a_replace_whose_totals_are_right(table: ForeignTable) -> None:
    first = table.data([row(n) for n in range(10)])
    table.commit(first)
    table.commit(table.equality(["id"], [row(n) for n in (1, 2, 77)]), table.data([row(1, v=1)]))
    table.commit(table.positions([(first, 5)]))
    calve.compact(table.ref)
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    counts = snapshot.summary.additional_properties
    assert counts["total-records"] == counts["added-records"] == "8"
    assert (counts["total-data-files"], counts["deleted-data-files"], counts["deleted-records"]) == ("1", "2", "11")
    assert counts["total-delete-files"] == counts["total-equality-deletes"] == counts["total-position-deletes"] == "0"
    assert int(counts["total-files-size"]) == files_of(table)[0]["file_size_in_bytes"]


def test_new_files_have_the_sequence_number_of_the_snapshot_that_was_planned_on(
    table: ForeignTable, at_maintenance: Any
) -> None:
    """Or equality deletes that come during a compaction would not reach their rows."""
    table.commit(table.data([row(1), row(2)]))
    table.commit(table.data([row(3)]))
    others = [lambda: table.commit(table.equality(["id"], [row(2)]), table.data([row(1, v=1)]))]
    at_maintenance(lambda: others.pop()() if others else None)
    done = calve.compact(table.ref)
    assert done is not None
    assert in_order(table.rows()) == in_order([row(1), row(3), row(1, v=1)])
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.rows())
    entries = table.table.inspect.entries().to_pylist()
    compacted = [e for e in entries if e["data_file"]["record_count"] == 3]
    assert [(e["sequence_number"], e["file_sequence_number"]) for e in compacted] == [(2, 4)]


def test_rows_that_are_deleted_by_position_during_a_compaction_stay_deleted(
    table: ForeignTable, at_maintenance: Any
) -> None:
    files = [table.data([row(n) for n in numbers]) for numbers in (range(0, 20, 2), range(1, 20, 2), range(20, 30))]
    table.commit(*files)
    table.commit(table.positions([(files[0], 0), (files[0], 3)]))
    moments = [
        lambda: table.commit(table.positions([(files[0], 3), (files[0], 4), (files[1], 9)])),
        lambda: table.commit(table.positions([(files[1], 0), (files[2], 9)]), table.data([row(8, v=1)])),
    ]
    at_maintenance(lambda: moments.pop(0)() if moments else None)
    done = calve.compact(table.ref)
    assert done is not None
    assert (done.files_before, done.files_after, done.rows_after) == (3, 1, 28)
    gone = {0, 6, 8, 19, 1, 29}
    wanted = in_order([*(row(n) for n in range(30) if n not in gone), row(8, v=1)])
    assert in_order(table.rows()) == wanted
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    assert in_order(table.table.scan().to_arrow().to_pylist()) == wanted
    assert [f["record_count"] for f in files_of(table, Content.POSITION_DELETES)] == [4], "the rest left with its files"


def test_files_that_another_replaced_meanwhile_are_left_to_it(table: ForeignTable, at_maintenance: Any) -> None:
    table.commit(table.data([row(1)]))
    table.commit(table.data([row(2)]))
    others = [lambda: calve.compact(table.ref)]
    at_maintenance(lambda: others.pop()() if others else None)
    assert calve.compact(table.ref) is None, "planned again, there was nothing to do"
    assert in_order(table.rows()) == [row(1), row(2)]
    assert len(stored(table)) == 3, "two files of the sink, one of the compaction that won"


def test_a_table_that_never_rests_is_left_as_it_is(table: ForeignTable, at_maintenance: Any) -> None:
    table.commit(table.data([row(1)]))
    table.commit(table.data([row(2)]))
    at_maintenance(lambda: table.commit(table.data([row(5)])))
    with pytest.raises(CommitConflict, match="conflicted with another change of the table"):
        calve.compact(table.ref)
    assert in_order({r["id"]: r for r in table.rows()}.values()) == [row(1), row(2), row(5)]
    referenced = {Path(f["file_path"]).name for f in files_of(table)}
    assert stored(table) == referenced, "what it wrote is gone"


def test_files_that_may_be_in_the_table_are_never_removed(table: ForeignTable) -> None:
    table.commit(table.data([row(1)]))
    table.commit(table.data([row(2)]))
    compactor = Compactor(
        table.ref.lake.open(), CompactionScope(table.ref.name), ConversionTools(no_session, SystemClock(), RandomIds())
    )
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    ready = rewritten(compactor, plan)

    def lost(point: str) -> None:
        if point == "maintain.after":
            raise TransientError("the answer was lost")

    faults.install(lost)
    with pytest.raises(TransientError, match="the answer was lost"):
        compactor.commit(ready)
    faults.install(None)
    assert compactor.commit(ready) is None, "its files are not in the table any more: it was applied"
    compactor.abandon(ready)
    assert in_order(duckdb_rows(table.table.metadata_location)) == [row(1), row(2)]


def test_new_files_that_are_gone_are_not_committed_and_their_rows_are_compacted_again(table: ForeignTable) -> None:
    """As after a removal of orphans, if the process was suspended for days between writing and committing."""
    rows = [row(number) for number in range(4)]
    for one in rows:
        table.commit(table.data([one]))
    compactor, wanted = by_groups(table), in_order(rows)
    plan, before = compactor.plan(BY_HAND), stored(table)
    assert plan is not None
    ready, head = rewritten(compactor, plan), table.table.metadata.current_snapshot_id
    (new,) = [file.path for group in ready.groups for file in group.files]
    Path(new.removeprefix("file://")).unlink()
    assert compactor.commit(ready) is None
    assert table.table.metadata.current_snapshot_id == head
    compactor.abandon(ready)
    assert stored(table) == before
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    again = compactor.plan(BY_HAND)
    assert again is not None
    assert compactor.commit(rewritten(compactor, again)) is not None
    assert len(files_of(table)) == 1
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted


def test_what_was_written_is_removed_when_it_is_ended_half_way(table: ForeignTable) -> None:
    for number in range(4):
        table.commit(table.data([row(number)], ["eu"], spec_id=0), table.data([row(10 + number)]))
    compactor = Compactor(
        table.ref.lake.open(), CompactionScope(table.ref.name), ConversionTools(no_session, SystemClock(), RandomIds())
    )
    plan, before = compactor.plan(BY_HAND), stored(table)
    assert plan is not None
    assert len(plan.groups.groups) == 2
    calls: list[int] = []

    def at_last() -> None:
        calls.append(len(stored(table)))
        if len(calls) == 12:  # in each group: before, for each of four files, and before its rows are written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewritten(compactor, plan, at_last)
    assert calls[-1] > len(before), "the first group was written"
    assert stored(table) == before


def test_a_compactor_remembers_its_files_only_while_all_are_rewritten(table: ForeignTable) -> None:
    compactor = by_groups(table)
    for number in range(6):
        table.commit(table.data([row(number)]))
        if number % 2:
            plan = compactor.plan(BY_HAND)
            assert plan is not None
            for ready in compactor.rewrite(plan, lambda: None):
                assert compactor.commit(ready) is not None
            assert not compactor._written
    sorting = compactor.plan(SORTING)
    assert sorting is not None, "what was merged is not sorted yet"
    for ready in compactor.rewrite(sorting, lambda: None):
        assert compactor.commit(ready) is not None
    assert compactor.plan(SORTING) is None


def by_groups(table: ForeignTable) -> Compactor:
    """Every group is a part of its own."""
    tools = ConversionTools(no_session, SystemClock(), RandomIds())
    room = RewriteRoom(here_rows=1000, bundle_rows=1)
    return Compactor(table.ref.lake.open(), CompactionScope(table.ref.name), tools, room=room)


def test_a_process_that_dies_between_two_parts_leaves_a_right_table_and_the_rest_to_the_next(
    table: ForeignTable,
) -> None:
    rng = random.Random(4)
    for _ in range(5):
        random_commit(table, rng)
    compactor = by_groups(table)
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    groups = len(plan.groups.groups)
    assert groups > 2
    parts = compactor.rewrite(plan, lambda: None)
    wanted = in_order(table.rows())
    assert compactor.commit(next(parts)) is not None
    next(parts)  # written and never committed
    assert in_order(table.rows()) == wanted
    successor = by_groups(table)
    left = successor.plan(BY_HAND)
    assert left is not None
    assert len(left.groups.groups) == groups - 1
    for ready in successor.rewrite(left, lambda: None):
        assert successor.commit(ready) is not None
    assert in_order(table.rows()) == wanted
    assert in_order(duckdb_rows(table.table.metadata_location)) == wanted
    parts.close()


def test_a_group_that_fails_is_told_after_the_others_were_committed(
    table: ForeignTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(4)
    for _ in range(5):
        random_commit(table, rng)
    compactor, wanted = by_groups(table), in_order(table.rows())
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    rewrite_group, failing = rewrite.rewrite, plan.groups.groups[0]

    def fail_first(work: rewrite.GroupWork, check: Any) -> rewrite.Rewritten:
        if work.inputs == failing:
            raise TransientError("the store is gone")
        return rewrite_group(work, check)

    monkeypatch.setattr(rewrite, "rewrite", fail_first)
    committed: list[int] = []

    def commit_all() -> None:
        for ready in compactor.rewrite(plan, lambda: None):
            done = compactor.commit(ready)
            assert done is not None
            committed.append(done.files_before)

    with pytest.raises(TransientError, match="the store is gone"):
        commit_all()
    assert sum(committed) == plan.groups.files - len(failing)
    assert in_order(table.rows()) == wanted
    assert not [name for name in table.table.metadata.refs if name.startswith(PREFIX)]


def test_a_table_that_was_rolled_back_is_not_compacted_as_it_was(table: ForeignTable, at_maintenance: Any) -> None:
    """Rows that were deleted when it was planned are there again."""
    files = [table.data([row(1), row(2)]), table.data([row(3)])]
    first = table.commit(*files)
    table.commit(table.positions([(files[0], 0)]))

    def roll_back() -> None:
        faults.install(None)
        table.table.manage_snapshots().rollback_to_snapshot(first).commit()

    at_maintenance(roll_back)
    calve.compact(table.ref)
    assert in_order(table.rows()) == [row(1), row(2), row(3)]
    assert in_order(duckdb_rows(table.table.metadata_location)) == [row(1), row(2), row(3)]


def test_rows_of_a_file_that_is_all_deleted_leave_no_file(table: ForeignTable) -> None:
    file = table.data([row(1)])
    table.commit(file)
    table.commit(table.positions([(file, 0)]))
    done = calve.compact(table.ref)
    assert done is not None
    assert (done.files_after, done.rows_after) == (0, 0)
    assert table.rows() == []
    assert len(table.table.inspect.files()) == 0


def test_deletes_that_reach_no_row_leave_with_the_next_compaction(table: ForeignTable) -> None:
    file = table.data([row(1), row(2)])
    table.commit(file)
    table.commit(table.equality(["id"], [row(7)]))
    done = calve.compact(table.ref)
    assert done is not None
    assert (done.files_before, done.files_after) == (0, 0), "no data file is rewritten for them"
    assert [f["file_path"] for f in table.table.inspect.files().to_pylist()] == [file.path]
    assert calve.compact(table.ref) is None


def test_good_files_are_left_alone(table: ForeignTable) -> None:
    assert calve.compact(table.ref) is None
    table.commit(table.data([row(1)]))
    assert calve.compact(table.ref) is None, "one file is few"


def test_a_table_of_format_version_one_is_refused(tmp_path: Path) -> None:
    table = ForeignTable(tmp_path, SCHEMA, properties={"format-version": "1"})
    with pytest.raises(InvalidInput, match="cannot be compacted"):
        calve.compact(table.ref)
    table.close()


@pytest.mark.parametrize("failing", ["write_list", "entries_of"])
def test_a_compaction_whose_manifests_cannot_be_written_leaves_no_file_behind(
    table: ForeignTable, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    files = [table.data([row(1), row(2)]), table.data([row(3)])]
    table.commit(*files)
    table.commit(table.positions([(files[0], 0)]))
    scope = CompactionScope(table.ref.name)
    compactor = Compactor(table.catalog, scope, ConversionTools(no_session, SystemClock(), RandomIds()))
    plan = compactor.plan(BY_HAND)
    assert plan is not None
    folder = Path(table.table.location().removeprefix("file://"))
    before = {path for path in folder.rglob("*") if not path.name.endswith(".metadata.json")}
    ready = rewritten(compactor, plan)
    table.commit(table.positions([(files[1], 0)]))
    others = set(folder.rglob("*.avro"))

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(f"calve.iceberg.files.manifest_cache.ManifestCache.{failing}", fail)
        with pytest.raises(TransientError):
            compactor.commit(ready)
        compactor.abandon(ready)
    left = {path for path in folder.rglob("*") if not path.name.endswith(".metadata.json")} - before - others
    assert {path.suffix for path in left} <= {".parquet"}
    assert len(left) == 1, "the deletes that were committed meanwhile"
    assert in_order(table.rows()) == [row(2)]
