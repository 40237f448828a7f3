"""Long histories: merged manifests, expired snapshots."""

import pytest
from pyiceberg.manifest import ManifestEntryStatus

from calve import faults
from calve.errors import CommitConflict, TransientError
from calve.iceberg.snapshot import draft
from calve.iceberg.snapshot.retention import BATCH, KEEP_ALL
from calve.model.progress import tag_name
from tests.unit.iceberg.sample import SINK, Sample

FAN_IN = 8


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "FAN_IN", FAN_IN)


def fill(sample: Sample, batches: int) -> dict[int, str]:
    """Batches that insert, update and delete; returns the rows that remain."""
    rows: dict[int, str] = {}
    for number in range(batches):
        changed = {number: "new", number // 2: f"changed by {number}"}
        gone = [number - 3] if number % 5 == 0 and number > 3 else []
        sample.commit(changed, deletes=[*changed, *gone])
        rows |= changed
        for key in gone:
            if key not in changed:
                rows.pop(key, None)
    return rows


def test_merged_manifests_hold_the_same_rows(sample: Sample) -> None:
    rows = fill(sample, FAN_IN)
    before = sample.iceberg.load()
    assert sample.iceberg.merge_manifests(before)
    after = sample.iceberg.load()
    assert after.ancestors[0].operation == "replace"
    assert after.ancestors[0].own is None
    assert after.ancestors[1:] == before.ancestors
    assert after.stated == before.stated
    assert sample.rows() == rows
    table = sample.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert len(snapshot.manifests(table.io)) == 2
    assert snapshot.summary["total-data-files"] == str(FAN_IN)
    assert snapshot.summary["total-delete-files"] == str(FAN_IN)
    assert table.refs()[tag_name(SINK)].snapshot_id == before.head
    assert not sample.iceberg.merge_manifests(after)


def test_merged_entries_keep_their_snapshots_and_sequence_numbers(sample: Sample) -> None:
    fill(sample, FAN_IN)
    table = sample.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    before = {
        entry.data_file.file_path: (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    sample.iceberg.merge_manifests(sample.iceberg.load())
    table = sample.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = [e for manifest in snapshot.manifests(table.io) for e in manifest.fetch_manifest_entry(table.io)]
    assert {e.status for e in entries} == {ManifestEntryStatus.EXISTING}
    assert {
        e.data_file.file_path: (e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in entries
    } == before
    assert [m.min_sequence_number for m in snapshot.manifests(table.io)] == [1, 1]


def test_deletes_before_a_merge_do_not_hit_rows_after_it(sample: Sample) -> None:
    rows = fill(sample, FAN_IN)
    sample.iceberg.merge_manifests(sample.iceberg.load())
    sample.commit({0: "back", 1: "back"}, deletes=[0, 1])
    assert sample.rows() == {**rows, 0: "back", 1: "back"}


def test_few_manifests_are_not_merged(sample: Sample) -> None:
    fill(sample, 3)
    state = sample.iceberg.load()
    assert not sample.iceberg.merge_manifests(state)
    assert sample.iceberg.load().ancestors == state.ancestors


def test_a_merge_on_a_stale_state_is_a_conflict(sample: Sample) -> None:
    fill(sample, FAN_IN)
    state = sample.iceberg.load()
    sample.commit({1: "later"}, deletes=[1])
    with pytest.raises(CommitConflict):
        sample.iceberg.merge_manifests(state)
    assert sample.rows()[1] == "later"


@pytest.mark.parametrize(("point", "merged"), [("maintain.before", False), ("maintain.after", True)])
def test_a_merge_that_fails_loses_nothing(sample: Sample, point: str, *, merged: bool) -> None:
    rows = fill(sample, FAN_IN)
    faults.install(faults.parse(f"{point}=error"))
    try:
        with pytest.raises(TransientError):
            sample.iceberg.merge_manifests(sample.iceberg.load())
    finally:
        faults.install(None)
    assert (sample.iceberg.load().ancestors[0].operation == "replace") is merged
    assert sample.rows() == rows


def test_old_snapshots_expire_with_a_commit_and_progress_stays(sample: Sample) -> None:
    for _ in range(KEEP_ALL + BATCH):
        sample.commit({})
    assert len(sample.table.snapshots()) == KEEP_ALL + BATCH
    sample.clock.now += 1
    sample.commit({})
    last = sample.commit({})
    assert len(sample.table.snapshots()) == KEEP_ALL + 2
    state = sample.iceberg.load()
    assert len(state.ancestors) == KEEP_ALL + 1
    assert state.ancestors[-1].parent_id is None
    assert state.stated == last
    own = state.ancestors[0].own
    assert own is not None
    assert own.commit_id == last.commit_id


def test_tags_and_branches_of_others_outlive_expiry(sample: Sample) -> None:
    first = sample.commit({1: "a"})
    second = sample.commit({2: "b"}, deletes=[2])
    third = sample.commit({3: "c"}, deletes=[3])
    with sample.table.manage_snapshots() as refs:
        refs.create_tag(third.snapshot_id, "audit").create_branch(second.snapshot_id, "fork")
    for _ in range(KEEP_ALL + BATCH + 3):
        sample.commit({})
    ids = {snapshot.snapshot_id for snapshot in sample.table.snapshots()}
    assert {first.snapshot_id, second.snapshot_id, third.snapshot_id} <= ids
    assert len(ids) < KEEP_ALL + BATCH
    assert sample.rows(third.snapshot_id) == {1: "a", 2: "b", 3: "c"}


def test_snapshots_older_than_the_table_allows_expire(sample: Sample) -> None:
    fill(sample, BATCH + 1)
    sample.clock.now += 8 * 24 * 3_600_000  # the last of them is the head until then, and stays
    rows = sample.rows()
    last = sample.commit({})
    assert [s.snapshot_id for s in sample.table.snapshots()][-1] == last.snapshot_id
    again = sample.commit({})
    assert len(sample.table.snapshots()) <= 3
    assert sample.iceberg.load().head == again.snapshot_id
    assert sample.rows() == rows
