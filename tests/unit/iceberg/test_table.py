from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import StringType

from calve import faults
from calve.errors import CommitConflict, ProgressUnprovable, TerminalError, TransientError
from calve.iceberg.schema.arrow import parse_schema
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import MISSING_SECONDS, IcebergTable
from calve.model.progress import Progress, property_key, tag_name
from calve.model.spec import WriteOptions
from calve.model.table import Proposal
from tests.support.readers import duckdb_rows
from tests.unit.iceberg.sample import NAME, SINK, Sample


def head(sample: Sample) -> Snapshot:
    snapshot = sample.table.current_snapshot()
    assert snapshot is not None
    return snapshot


def summary(snapshot: Snapshot) -> dict[str, str]:
    assert snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def append(sample: Sample, rows: dict[int, str]) -> None:
    """As another writer does."""
    table = sample.table
    table.append(pa.Table.from_pylist([{"id": k, "v": v} for k, v in rows.items()], schema=table.schema().as_arrow()))


def test_an_empty_table_has_no_ancestors_and_no_data(sample: Sample) -> None:
    state = sample.iceberg.load()
    assert (state.ancestors, state.stated, state.has_data, state.head) == ((), None, False, None)
    assert state.uuid == str(sample.table.metadata.table_uuid)


def test_updates_and_deletes_replace_rows_of_earlier_batches_only(sample: Sample) -> None:
    sample.commit({1: "a", 2: "b", 3: "c"})
    sample.commit({1: "A", 4: "d"}, deletes=[1, 2, 4])
    assert sample.rows() == {1: "A", 3: "c", 4: "d"}
    sample.commit({2: "again"}, deletes=[2, 3])
    assert sample.rows() == {1: "A", 2: "again", 4: "d"}


def test_time_travel_shows_every_batch(sample: Sample) -> None:
    first = sample.commit({1: "a"})
    second = sample.commit({1: "b", 2: "x"}, deletes=[1, 2])
    third = sample.commit({}, deletes=[1])
    assert sample.rows(first.snapshot_id) == {1: "a"}
    assert sample.rows(second.snapshot_id) == {1: "b", 2: "x"}
    assert sample.rows(third.snapshot_id) == {2: "x"}


def test_a_commit_states_its_progress_in_summary_property_and_tag(sample: Sample) -> None:
    sample.commit({1: "a"})
    progress = sample.commit({2: "b"}, deletes=[2])
    table = sample.table
    assert progress.snapshot_id == head(sample).snapshot_id
    assert progress.sequence_number == head(sample).sequence_number == 2
    assert progress.table_uuid == str(table.metadata.table_uuid)
    assert Progress.from_property(table.properties[property_key(SINK)]) == progress
    assert summary(head(sample)).items() >= progress.to_summary().items()
    tag = table.refs()[tag_name(SINK)]
    assert (tag.snapshot_ref_type, tag.snapshot_id) == (SnapshotRefType.TAG, progress.snapshot_id)


def test_a_loaded_state_shows_own_snapshots_newest_first(sample: Sample) -> None:
    first = sample.commit({1: "a"})
    second = sample.commit({2: "b"}, deletes=[2])
    state = sample.iceberg.load()
    assert state.head == second.snapshot_id
    assert [info.snapshot_id for info in state.ancestors] == [second.snapshot_id, first.snapshot_id]
    assert [info.parent_id for info in state.ancestors] == [first.snapshot_id, None]
    own = state.ancestors[0].own
    assert own is not None
    assert own.commit_id == second.commit_id
    assert own.offsets == second.offsets
    assert state.stated == second
    assert state.has_data


def test_snapshots_of_another_sink_are_not_own(sample: Sample) -> None:
    sample.commit({1: "a"})
    other = Sample(sample.home, sink_id="another")
    state = other.iceberg.load()
    assert [info.own for info in state.ancestors] == [None]
    assert state.stated is None
    other.close()


def test_operations_are_named_after_what_was_added(sample: Sample) -> None:
    sample.commit({})
    sample.commit({1: "a"})
    sample.commit({1: "b"}, deletes=[1])
    sample.commit({}, deletes=[1])
    operations = [info.operation for info in sample.iceberg.load().ancestors]
    assert operations == ["delete", "overwrite", "append", "append"]


def test_totals_are_carried_from_snapshot_to_snapshot(sample: Sample) -> None:
    sample.commit({1: "a", 2: "b"})
    sample.commit({3: "c"}, deletes=[1, 3])
    added = summary(head(sample))
    assert added["added-data-files"] == added["added-delete-files"] == added["added-equality-delete-files"] == "1"
    assert (added["added-records"], added["added-equality-deletes"]) == ("1", "2")
    sample.commit({})
    totals = {k: v for k, v in summary(head(sample)).items() if k.startswith("total-") and k != "total-files-size"}
    assert totals == {
        "total-data-files": "2",
        "total-delete-files": "1",
        "total-records": "3",
        "total-equality-deletes": "2",
        "total-position-deletes": "0",
    }
    files = sum(f.stat().st_size for f in sample.home.glob("warehouse/shop/orders/data/*.parquet"))
    assert summary(head(sample))["total-files-size"] == str(files)


def test_a_table_that_only_lost_rows_still_has_data(sample: Sample) -> None:
    sample.commit({})
    assert not sample.iceberg.load().has_data
    sample.commit({1: "a"})
    sample.commit({}, deletes=[1])
    assert sample.iceberg.load().has_data


def test_a_stale_state_is_a_conflict_and_changes_nothing(sample: Sample) -> None:
    state = sample.iceberg.load()
    sample.commit({1: "a"}, state=state)
    before = sample.table.metadata_location
    with pytest.raises(CommitConflict, match="conflicted with another change of the table"):
        sample.commit({1: "b"}, state=state)
    assert sample.table.metadata_location == before
    assert sample.rows() == {1: "a"}


def test_manifests_serve_a_second_attempt_after_a_conflict(sample: Sample) -> None:
    sample.commit({1: "a"})
    state = sample.iceberg.load()
    proposal = sample.proposal({1: "b"}, deletes=[1])
    append(sample, {7: "foreign"})
    with pytest.raises(CommitConflict):
        sample.iceberg.commit(state, proposal)
    sample.iceberg.commit(sample.iceberg.load(), proposal)
    assert sample.rows() == {1: "b", 7: "foreign"}


def test_a_foreign_append_shows_as_a_snapshot_that_is_not_own(sample: Sample) -> None:
    own = sample.commit({1: "a"})
    append(sample, {7: "foreign"})
    state = sample.iceberg.load()
    assert [(i.operation, i.own is not None) for i in state.ancestors] == [("append", False), ("append", True)]
    assert state.stated == own


def test_a_schema_changed_in_between_is_a_conflict(sample: Sample) -> None:
    state = sample.iceberg.load()
    with sample.table.update_schema() as change:
        change.rename_column("v", "w")
    with pytest.raises(CommitConflict):
        sample.commit({1: "a"}, state=state)


def test_a_property_changed_in_between_is_kept(sample: Sample) -> None:
    state = sample.iceberg.load()
    sample.table.transaction().set_properties({"owner": "someone"}).commit_transaction()
    sample.commit({1: "a"}, state=state)
    assert sample.table.properties["owner"] == "someone"
    assert sample.rows() == {1: "a"}


def test_a_recreated_table_is_a_conflict_then_has_another_uuid(sample: Sample) -> None:
    state = sample.iceberg.load()
    sample.catalog.drop_table(NAME.identifier)
    again = Sample(sample.home)
    with pytest.raises(CommitConflict):
        sample.commit({1: "a"}, state=state)
    assert sample.iceberg.load().uuid != state.uuid
    again.close()


def test_a_dropped_table_ends_the_sink(sample: Sample) -> None:
    state = sample.iceberg.load()
    sample.catalog.drop_table(NAME.identifier)
    with pytest.raises(CommitConflict):
        sample.commit({1: "a"}, state=state)
    with pytest.raises(TerminalError, match="no longer exists"):
        sample.iceberg.load()


def test_an_older_state_that_a_catalog_shows_for_a_moment_is_not_believed(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.commit({1: "a"})
    older = sample.table
    newest = sample.commit({2: "b"}, deletes=[2])
    with monkeypatch.context() as replica:
        replica.setattr(sample.catalog, "load_table", lambda _: older)
        with pytest.raises(TransientError, match=r'the catalog showed an older state of table "shop\.orders"'):
            sample.iceberg.load()
    assert sample.iceberg.load().head == newest.snapshot_id
    sample.clock.now += round(MISSING_SECONDS * 1000)
    with monkeypatch.context() as replica:
        replica.setattr(sample.catalog, "load_table", lambda _: older)
        with pytest.raises(TransientError, match="sequence number was 1, after it had been 2"):
            sample.iceberg.load()
    sample.commit({3: "c"}, deletes=[3])
    assert sample.rows() == {1: "a", 2: "b", 3: "c"}


def test_an_older_state_that_a_catalog_keeps_showing_is_that_of_the_table(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sample.commit({1: "a"})
    restored = sample.table
    sample.commit({2: "b"}, deletes=[2])
    monkeypatch.setattr(sample.catalog, "load_table", lambda _: restored)
    for _ in range(2):
        with pytest.raises(TransientError, match="showed an older state"):
            sample.iceberg.load()
        sample.clock.now += round(MISSING_SECONDS * 500)
    assert sample.iceberg.load().head == first.snapshot_id
    assert sample.iceberg.load().head == first.snapshot_id


def test_retention_fields_of_the_branch_survive_a_commit(sample: Sample) -> None:
    own = sample.commit({1: "a"})
    with sample.table.manage_snapshots() as refs:
        refs.create_branch(own.snapshot_id, "main", max_snapshot_age_ms=123_456_789_000, min_snapshots_to_keep=7)
    sample.commit({2: "b"}, deletes=[2])
    main = sample.table.refs()["main"]
    assert (main.max_snapshot_age_ms, main.min_snapshots_to_keep) == (123_456_789_000, 7)
    assert main.snapshot_id == head(sample).snapshot_id


def test_times_of_snapshots_never_go_back(sample: Sample) -> None:
    sample.commit({1: "a"})
    first = head(sample).timestamp_ms
    sample.clock.now -= 3_600_000
    sample.commit({2: "b"}, deletes=[2])
    assert head(sample).timestamp_ms >= first


def test_an_unreadable_statement_of_progress_is_not_taken_for_none(sample: Sample) -> None:
    sample.commit({1: "a"})
    sample.table.transaction().set_properties({property_key(SINK): "{}"}).commit_transaction()
    with pytest.raises(ProgressUnprovable, match="the progress of the sink cannot be read"):
        sample.iceberg.load()


@pytest.mark.parametrize("point", ["load", "manifest-list.before", "manifest-list.after", "commit.before"])
def test_a_failure_before_the_request_applies_nothing(sample: Sample, point: str) -> None:
    sample.commit({1: "a"})
    proposal = sample.proposal({1: "b"}, deletes=[1])
    faults.install(faults.parse(f"{point}=error"))
    try:
        with pytest.raises(TransientError, match=f"injected failure at {point}"):
            sample.iceberg.commit(sample.iceberg.load(), proposal)
    finally:
        faults.install(None)
    assert sample.rows() == {1: "a"}
    sample.iceberg.commit(sample.iceberg.load(), proposal)
    assert sample.rows() == {1: "b"}


def test_a_failure_after_the_request_leaves_the_commit_in_the_table(sample: Sample) -> None:
    proposal = sample.proposal({1: "a"})
    faults.install(faults.parse("commit.after=error"))
    try:
        with pytest.raises(TransientError):
            sample.iceberg.commit(sample.iceberg.load(), proposal)
    finally:
        faults.install(None)
    own = sample.iceberg.load().ancestors[0].own
    assert own is not None
    assert own.commit_id == proposal.progress.commit_id
    assert sample.rows() == {1: "a"}


def test_a_commit_whose_answer_was_lost_is_found_in_the_table(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sample.catalog.commit_table

    def answer_lost(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        raise CommitStateUnknownException("502 Bad Gateway")

    monkeypatch.setattr(sample.catalog, "commit_table", answer_lost)
    own = sample.commit({1: "a"})
    assert sample.rows() == {1: "a"}
    assert own.snapshot_id == head(sample).snapshot_id
    assert len(sample.table.metadata.snapshots) == 1


def test_a_failed_commit_deletes_no_file(sample: Sample) -> None:
    sample.commit({1: "a"})
    state = sample.iceberg.load()
    sample.commit({2: "b"}, deletes=[2])
    proposal = sample.proposal({3: "c"}, deletes=[3])
    before = _files(sample.home)
    with pytest.raises(CommitConflict):
        sample.iceberg.commit(state, proposal)
    assert _files(sample.home) >= before
    assert sample.iceberg.missing_files(proposal.manifests) == ()


def test_missing_manifests_and_files_are_named(sample: Sample) -> None:
    proposal = sample.proposal({1: "a"}, deletes=[1])
    data, deletes = proposal.manifests
    file = next(sample.home.glob("warehouse/shop/orders/data/*.parquet"))
    file.unlink()
    assert sample.iceberg.missing_files(proposal.manifests) == (f"file://{file}",)
    Path(deletes.path.removeprefix("file://")).unlink()
    assert deletes.path in sample.iceberg.missing_files(proposal.manifests)
    assert data.path not in sample.iceberg.missing_files(proposal.manifests)


def test_a_table_with_claims_and_no_rows_reads_as_empty(sample: Sample) -> None:
    sample.commit({})
    assert sample.rows() == {}
    second = Sample(sample.home, batches=1)
    second.commit({})
    second.commit({1: "a"})
    assert sample.rows() == {1: "a"}
    second.close()


def test_a_process_that_starts_anew_goes_on(sample: Sample) -> None:
    sample.commit({1: "a"})
    sample.commit({2: "b"}, deletes=[2])
    second = Sample(sample.home, batches=2)
    second.commit({1: "A"}, deletes=[1])
    assert sample.rows() == {1: "A", 2: "b"}
    assert len(sample.iceberg.load().ancestors) == 3
    second.close()


def test_old_metadata_files_are_removed_as_the_table_asks(tmp_path: Path) -> None:
    sample = Sample(tmp_path, properties={"write.metadata.previous-versions-max": "3"})
    for number in range(8):
        sample.commit({number: "x"})
    assert len(list(tmp_path.glob("warehouse/shop/orders/metadata/*.metadata.json"))) == 4
    assert len(sample.table.metadata.metadata_log) == 3
    sample.close()


def test_old_metadata_files_stay_when_the_table_does_not_ask(tmp_path: Path) -> None:
    properties = {
        "write.metadata.previous-versions-max": "3",
        "write.metadata.delete-after-commit.enabled": "false",
    }
    sample = Sample(tmp_path, properties=properties)
    for number in range(8):
        sample.commit({number: "x"})
    assert len(list(tmp_path.glob("warehouse/shop/orders/metadata/*.metadata.json"))) == 9
    sample.close()


@pytest.mark.parametrize("limit", ["²", "--5", "many", "9" * 5000])
def test_an_invalid_length_of_the_metadata_log_stops_no_commit(tmp_path: Path, limit: str) -> None:
    sample = Sample(tmp_path, properties={"write.metadata.previous-versions-max": limit})
    sample.commit({1: "a"})
    sample.commit({2: "b"}, deletes=[2])
    stale = sample.table
    sample.commit({3: "c"}, deletes=[3])
    stale.catalog.commit_table(stale, (), (SetPropertiesUpdate(updates={"a": "b"}),))  # as SQL, Glue and Hive commit
    assert sample.rows() == {1: "a", 2: "b", 3: "c"}
    assert sample.table.properties["write.metadata.previous-versions-max"] == limit
    assert len(sample.table.metadata.metadata_log) == 4
    sample.close()


def test_an_old_metadata_file_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sample = Sample(tmp_path, properties={"write.metadata.previous-versions-max": "1"})
    sample.commit({1: "a"})
    oldest = Path(sample.table.metadata.metadata_log[0].metadata_file.removeprefix("file://"))
    oldest.unlink()
    (oldest / "in the way").mkdir(parents=True)
    sample.commit({2: "b"}, deletes=[2])
    assert "a file was not removed" in caplog.text
    assert sample.rows() == {1: "a", 2: "b"}
    sample.close()


def test_files_go_where_the_table_says(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    sample = Sample(tmp_path / "home", properties={"write.data.path": f"file://{elsewhere}"})
    sample.commit({1: "a"})
    assert len(list(elsewhere.glob("*.parquet"))) == 1
    assert sample.rows() == {1: "a"}
    sample.close()


def test_what_goes_to_executors_has_no_progress_and_no_catalog_in_it(sample: Sample) -> None:
    sample.commit({1: "a"})
    sample.iceberg.load()
    target = sample.iceberg.write_target(WriteOptions(row_group_size=500_000))
    assert target.options.row_group_size == 500_000
    assert all(name.startswith("write.") for name in target.table_properties)
    assert target.io_properties == {}
    assert target.key_ids == (1,)
    assert (target.data_spec_id, target.delete_spec_id) == (0, 0)


def test_a_column_that_others_add_rename_or_drop_does_not_concern_the_sink(sample: Sample) -> None:
    sample.commit({1: "a"})
    with sample.table.update_schema() as change:
        change.add_column("extra", StringType()).rename_column("id", "key")
    sample.commit({1: "b"}, deletes=[1])
    found = duckdb_rows(sample.table.metadata_location)
    assert found == [{"key": 1, "v": "b", "extra": None}]
    with sample.table.update_schema() as change:
        change.delete_column("v")
    sample.commit({1: "c", 2: "d"}, deletes=[1, 2])
    assert sorted(row["key"] for row in duckdb_rows(sample.table.metadata_location)) == [1, 2]


def test_an_input_may_have_fewer_columns_than_the_table_and_in_another_order(sample: Sample) -> None:
    with sample.table.update_schema() as change:
        change.add_column("extra", StringType())
    theirs = sample.table.schema()
    given = Schema(theirs.find_field("v"), theirs.find_field("id"))
    table = IcebergTable(sample.table, SINK, ["id"], sample.clock, sample.ids, shape=Shape(given))
    schema = parse_schema(table.write_target(WriteOptions()).schema_json)
    assert [(field.name, field.field_id) for field in schema.fields] == [("v", 2), ("id", 1)]


def test_an_empty_proposal_moves_progress_only(sample: Sample) -> None:
    sample.commit({1: "a"})
    progress = sample.iceberg.commit(sample.iceberg.load(), Proposal(sample.progress(commit_id="claim", epoch=2)))
    assert sample.rows() == {1: "a"}
    state = sample.iceberg.load()
    assert state.stated == progress
    assert state.ancestors[0].operation == "append"
    assert summary(head(sample))["total-records"] == "1"


def _files(home: Path) -> set[Path]:
    return {path for path in (home / "warehouse").rglob("*") if path.is_file()}
