"""Snapshots expire in a commit of their own: no tag, no hold and no sink at rest loses what it stands on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotsUpdate

import calve
from calve import faults
from calve.catalog.connect import connect_embedded
from calve.catalog.outcome import send
from calve.errors import CommitConflict
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.snapshot import retention
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.expiry import expire
from calve.iceberg.snapshot.history import new_summary
from calve.iceberg.snapshot.holds import HOLD_MS, PREFIX, Hold, HoldPlace
from calve.iceberg.snapshot.retention import ExpiryPolicy
from calve.model.progress import tag_name
from calve.model.spec import OnForeignCommit, RetentionOptions
from calve.model.table import Proposal
from tests.support.expiring import BATCH, KEPT, MANY, expire_early
from tests.support.readers import duckdb_rows
from tests.support.runs import Run, spec_of
from tests.unit.iceberg.sample import NAME, SINK, Sample


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    expire_early(monkeypatch)


def at_removal(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, act: Callable[[int], None]) -> list[int]:
    """Call `act` with the first id that is about to be removed, after everything was looked at; what was called."""
    called: list[int] = []
    send = catalog.commit_table

    def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
        gone = [i for update in updates if isinstance(update, RemoveSnapshotsUpdate) for i in update.snapshot_ids]
        if gone and not called:
            called.append(gone[-1])
            act(gone[-1])
        return send(table, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    return called


@pytest.fixture(params=["embedded", "sql"])
def any_sample(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """A table in a catalog whose metadata the client swaps."""
    if request.param == "sql":
        home = tmp_path / "home"
        home.mkdir()
        where = {"uri": f"sqlite:///{home}/sql.db", "warehouse": f"file://{home}/warehouse"}
        monkeypatch.setattr(
            "tests.unit.iceberg.sample.connect_embedded",
            lambda _: SqlCatalog("calve", **where, init_catalog_tables="true"),
        )
    return Sample(tmp_path / "home")


def test_a_tag_made_while_its_snapshot_expires_survives(any_sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = any_sample

    def make_tag(snapshot_id: int) -> None:
        with sample.table.manage_snapshots() as refs:
            refs.create_tag(snapshot_id, "audit")

    called = at_removal(monkeypatch, sample.catalog, make_tag)
    for number in range(MANY):
        sample.commit({number: "x"})
    assert called, "snapshots expired"
    refs = sample.table.metadata.refs
    assert refs["audit"].snapshot_id == called[0]
    assert len(sample.rows(called[0])) < MANY
    assert len(sample.table.snapshots()) < MANY, "others expired afterwards"


def test_a_tag_made_while_a_batch_is_committed_survives(sample: Sample) -> None:
    """Between the load that a batch builds on and its commit."""
    for _ in range(KEPT + BATCH):
        sample.commit({})
    old = sorted(sample.table.snapshots(), key=lambda s: s.sequence_number or 0)[3].snapshot_id

    def make_tag(point: str) -> None:
        if point == "commit.before" and "audit" not in sample.table.metadata.refs:
            with sample.table.manage_snapshots() as refs:
                refs.create_tag(old, "audit")

    faults.install(make_tag)
    try:
        for _ in range(2 * BATCH):
            sample.commit({})
    finally:
        faults.install(None)
    assert sample.table.metadata.refs["audit"].snapshot_id == old
    assert sample.table.snapshot_by_id(old) is not None
    assert len(sample.table.snapshots()) < KEPT + 2 * BATCH


def test_a_failed_expiry_is_no_failed_commit_and_is_made_up_for(sample: Sample) -> None:
    for _ in range(KEPT + BATCH):
        sample.commit({})
    faults.install(faults.parse("expiry.before=error"))
    try:
        landed = sample.commit({})
        assert len(sample.table.snapshots()) == KEPT + BATCH + 1
        assert sample.iceberg.load().head == landed.snapshot_id
        sample.commit({})
    finally:
        faults.install(None)
    assert len(sample.table.snapshots()) < KEPT + BATCH


def test_tags_with_an_end_go_when_it_is_over_and_a_sinks_tag_has_none(sample: Sample) -> None:
    first = sample.commit({1: "a"})
    with sample.table.manage_snapshots() as refs:
        refs.create_tag(first.snapshot_id, "short", max_ref_age_ms=HOLD_MS)
        refs.create_tag(first.snapshot_id, "long")
    for _ in range(MANY):
        sample.commit({})
    assert "short" in sample.table.metadata.refs
    sample.clock.now += HOLD_MS + 1
    for _ in range(2 * BATCH):
        sample.commit({})
    refs_now = sample.table.metadata.refs
    assert "short" not in refs_now
    assert refs_now["long"].snapshot_id == first.snapshot_id
    assert refs_now[tag_name(SINK)].max_ref_age_ms == 2**63 - 1


# ---- holds


def hold_on(sample: Sample, hold_id: str = "1", sink_id: str = "") -> Hold:
    table = sample.table
    head = table.current_snapshot()
    assert head is not None
    place = HoldPlace(connect_embedded(sample.home), NAME, sample.clock, sink_id=sink_id)
    return Hold(place, hold_id, table, head.snapshot_id)


def test_a_hold_keeps_its_snapshot_and_all_that_follow_it(sample: Sample) -> None:
    sample.commit({1: "a"})
    hold = hold_on(sample)
    for _ in range(2 * MANY):
        sample.commit({})
    ancestors = [s.snapshot_id for s in sample.iceberg.load().ancestors]
    assert ancestors[-1] == hold.snapshot_id
    assert len(ancestors) == 2 * MANY + 1
    hold.release()
    assert not [name for name in sample.table.metadata.refs if name.startswith(PREFIX)]
    for _ in range(BATCH):
        sample.commit({})
    assert len(sample.table.snapshots()) <= KEPT + BATCH + 1


def test_a_hold_that_moves_along_keeps_what_follows_its_new_place_only(sample: Sample) -> None:
    sample.commit({1: "a"})
    hold = hold_on(sample)
    for _ in range(5):
        for _ in range(MANY):
            sample.commit({})
        hold.renew()
    assert len(sample.table.snapshots()) <= 2 * MANY
    assert hold.snapshot_id == sample.iceberg.load().head


def test_a_hold_of_a_process_that_died_ends_a_day_later(sample: Sample) -> None:
    """Counted from when it was taken, however old the snapshot was then."""
    sample.commit({1: "a"})
    sample.clock.now += 5 * HOLD_MS
    held = hold_on(sample).snapshot_id
    for _ in range(MANY):
        sample.commit({})
    sample.clock.now += HOLD_MS - 1
    for _ in range(MANY):
        sample.commit({})
    assert [s.snapshot_id for s in sample.iceberg.load().ancestors][-1] == held
    sample.clock.now += 2
    for _ in range(2 * BATCH):
        sample.commit({})
    assert not [name for name in sample.table.metadata.refs if name.startswith(PREFIX)]
    assert len(sample.iceberg.load().ancestors) <= KEPT + 2 * BATCH


def test_what_is_held_has_a_limit(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    most = MANY + BATCH
    monkeypatch.setattr(retention, "MOST_HELD", most)
    sample.commit({1: "a"})
    hold_on(sample)
    for _ in range(3 * MANY):
        sample.commit({})
        assert len(sample.table.snapshots()) <= most + 2 * BATCH


def test_a_hold_is_not_taken_on_a_snapshot_that_is_gone(sample: Sample) -> None:
    sample.commit({1: "a"})
    table = sample.table
    with pytest.raises(CommitConflict, match="is no longer in the table"):
        Hold(HoldPlace(sample.catalog, NAME, sample.clock), "1", table, 4711)


def test_the_hold_of_a_former_run_of_a_sink_goes_with_its_next_one(sample: Sample) -> None:
    sample.commit({1: "a"})
    hold_on(sample, "by-hand")
    hold_on(sample, "died", sink_id=SINK)
    hold_on(sample, "lives", sink_id=SINK)
    tags = {name for name in sample.table.metadata.refs if name.startswith(PREFIX)}
    assert tags == {f"{PREFIX}by-hand", f"{PREFIX}{SINK}-lives"}


# ---- sinks at rest


def replace_nothing(run: Run) -> None:
    """A snapshot as a compaction by hand makes it, with the same files."""
    manifests, draft = ManifestCache(), new_draft(run.now, run.clock, run.ids)
    lines = manifests.lines_of(draft.table.io, draft.parent)
    summary = new_summary(Operation.REPLACE, {}, draft.parent, {})
    send(snapshot_change(draft, SnapshotContents(lines, lines, summary), manifests), "a compaction by hand")


def contents(run: Run, branch: str = "main") -> dict[int, str]:
    """What DuckDB reads; a key that is there twice fails."""
    found = duckdb_rows(run.now.metadata_location, snapshot_id=run.now.metadata.refs[branch].snapshot_id)
    rows = {row["id"]: row["v"] for row in found}
    assert len(rows) == len(found)
    return rows


def test_a_sink_at_rest_can_prove_its_progress_after_compactions_and_expiry_by_hand(tmp_path: Path) -> None:
    resting = Run(tmp_path, spec_of("resting"))
    for number in range(KEPT + BATCH):
        resting.commit({number % 5: f"r{number}"})
    for _ in range(MANY):
        replace_nothing(resting)
    policy = ExpiryPolicy(RetentionOptions(), "main", resting.clock.now_ms())
    assert expire(resting.now, policy) is not None, "what came before its newest snapshot goes"
    assert expire(resting.now, policy) is None
    again = Run(tmp_path, spec_of("resting"))
    assert again.run.state.end == str(KEPT + BATCH - 1), "it stands where it stopped"
    again.commit({1: "again", 50: "new"})
    rows = {number % 5: f"r{number}" for number in range(KEPT + BATCH)}
    assert contents(again) == rows | {1: "again", 50: "new"}


def test_a_sink_at_rest_goes_on_after_many_commits_of_another_writer_that_it_accepts(tmp_path: Path) -> None:
    accepting = spec_of("resting", on_foreign_commit=OnForeignCommit.ACCEPT)
    resting = Run(tmp_path, accepting)
    for number in range(3):
        resting.commit({number: "r"})
    busy = Sample(tmp_path, sink_id="busy")
    busy.clock.now = resting.clock.now_ms()
    for number in range(MANY):
        busy.commit({100 + number: "b"})
    again = Run(tmp_path, accepting)
    assert again.run.state.end == "2"
    again.commit({1: "again"})
    assert contents(again) == {0: "r", 1: "again", 2: "r"} | {100 + number: "b" for number in range(MANY)}
    busy.close()


@pytest.mark.long
def test_a_sink_at_rest_on_a_branch_goes_on_after_compactions_and_commits_to_main(tmp_path: Path) -> None:
    resting = Run(tmp_path, spec_of("resting", branch="audit"))
    for number in range(12):
        resting.commit({number: "r"})
    busy = Run(tmp_path, spec_of("busy"))
    assert calve.compact(calve.connect(home=tmp_path).table("shop.orders"), branch="audit") is not None
    for number in range(3 * MANY):
        busy.commit({100: f"b{number}"})
    assert len(busy.now.snapshots()) < 3 * MANY
    again = Run(tmp_path, spec_of("resting", branch="audit"))
    assert again.run.state.end == "11"
    again.commit({1: "again"})
    assert contents(again, "audit") == dict.fromkeys(range(12), "r") | {1: "again"}
    assert contents(again) == {100: f"b{3 * MANY - 1}"}


def test_a_sink_that_lost_its_table_keeps_no_history(tmp_path: Path) -> None:
    gone = Sample(tmp_path, sink_id="gone")
    gone.commit({1: "g"})
    now = Sample(tmp_path, sink_id="now")
    now.clock.now = gone.clock.now_ms()
    state = now.iceberg.load()
    assert [other.sink_id for other in state.others] == ["gone"]
    now.iceberg.commit(state, Proposal(now.progress(), retired=tuple(other.retire() for other in state.others)))
    for _ in range(2 * MANY):
        now.commit({})
    assert len(now.iceberg.load().ancestors) <= KEPT + 2 * BATCH
    for sample in (gone, now):
        sample.close()


def test_a_commit_counts_although_its_table_is_dropped_before_the_expiry_after_it(tmp_path: Path) -> None:
    sample = Sample(tmp_path / "home")

    def drop(point: str) -> None:
        if point == "expiry.before":
            sample.catalog.drop_table(NAME.identifier)

    faults.install(drop)
    try:
        for number in range(MANY):
            if not sample.catalog.table_exists(NAME.identifier):
                break
            sample.commit({number: "x"})
    finally:
        faults.install(None)
    assert not sample.catalog.table_exists(NAME.identifier)
