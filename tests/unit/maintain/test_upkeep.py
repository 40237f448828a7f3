"""Maintenance beside a sink's commits: it keeps up with fast ones, and ends with the fence."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calve.commit.committer import CommitHooks, Committer
from calve.errors import FencedError, TerminalError, TransientError
from calve.iceberg.snapshot.compaction import CompactionOwner
from calve.iceberg.snapshot.history import stated_progress
from calve.iceberg.snapshot.holds import PREFIX
from calve.maintain import rewrite
from calve.model.checkpoint import CheckpointIdentity
from calve.model.progress import property_key
from calve.model.spec import DayHours
from calve.pipeline.upkeep import Upkeep, UpkeepPace
from tests.support.expiring import MANY, expire_early
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of

PATIENCE = 60.0
DAY = 24 * 60


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    expire_early(monkeypatch)


def operations(run: Run) -> list[str]:
    return [s.summary.operation.value for s in run.now.snapshots() if s.summary is not None]


def parquet_files(run: Run) -> set[str]:
    return {path.name for path in Path(run.now.location().removeprefix("file://")).rglob("*.parquet")}


def ready(run: Run, upkeep: Upkeep) -> None:
    """Commit until the upkeep has new files that wait for their commit."""
    for number in range(12):
        run.commit({number: "a"})
    upkeep.maintain()
    assert upkeep._join is not None
    upkeep._join()
    assert upkeep.busy


def test_the_upkeep_of_a_sink_keeps_up_with_fast_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, spec_of("fast"))
    upkeep = run.upkeep()
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return rewrite_group(*arguments)

    rewrite_group = rewrite.rewrite
    monkeypatch.setattr(rewrite, "rewrite", slow)
    for number in range(12):
        run.commit({number: "a"})
    upkeep.maintain()
    assert begun.wait(PATIENCE)
    for number in range(MANY):
        run.commit({number: f"b{number}"})
    go_on.set()
    assert upkeep._join is not None
    upkeep._join()
    upkeep.maintain()
    upkeep.close(failed=False)
    assert run.monitor.status.compactions == 1
    assert not [name for name in run.now.metadata.refs if name.startswith(PREFIX)]
    rows = {row["id"]: row["v"] for row in duckdb_rows(run.now.metadata_location)}
    assert rows == {number: f"b{number}" for number in range(MANY)}


def test_a_fenced_run_commits_no_compaction_even_before_it_knows(tmp_path: Path) -> None:
    fenced = Run(tmp_path, spec_of("s"))
    upkeep = fenced.upkeep()
    ready(fenced, upkeep)
    successor = Run(tmp_path, spec_of("s"))
    successor.run.claims.claim()
    before, files = successor.now.metadata.current_snapshot_id, parquet_files(successor)
    with pytest.raises(FencedError):
        upkeep.maintain()
    upkeep.close(failed=True)
    assert successor.now.metadata.current_snapshot_id == before
    assert "replace" not in operations(successor)
    assert parquet_files(successor) < files, "new files that nobody can have committed are removed"
    successor.commit({1: "b"})
    rows = {row["id"]: row["v"] for row in duckdb_rows(successor.now.metadata_location)}
    assert rows == dict.fromkeys(range(12), "a") | {1: "b"}


@pytest.mark.parametrize("told", [True, False])
def test_a_run_that_ends_fenced_commits_no_ready_compaction(tmp_path: Path, *, told: bool) -> None:
    """Whether its committer met the successor, or it was asked to stop before that."""
    fenced = Run(tmp_path, spec_of("s"))
    upkeep = fenced.upkeep()
    ready(fenced, upkeep)
    if told:
        fenced.record({1: "never"})
    successor = Run(tmp_path, spec_of("s"))
    successor.run.claims.claim()
    before = successor.now.metadata.current_snapshot_id
    hooks = CommitHooks(lambda: False, lambda: None, upkeep)
    committer = Committer(fenced.run, fenced.signals, hooks, idle_check_seconds=60)
    fenced.signals.stop()
    committer.start()
    committer.finish()
    assert isinstance(committer.failure, FencedError) == told
    assert successor.now.metadata.current_snapshot_id == before
    assert not [name for name in successor.now.metadata.refs if name.startswith(PREFIX)]


def test_a_run_that_ends_well_commits_what_is_ready(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep()
    ready(run, upkeep)
    upkeep.close(failed=False)
    assert "replace" in operations(run)


def test_a_run_that_failed_commits_nothing_more(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep()
    ready(run, upkeep)
    files = parquet_files(run)
    upkeep.close(failed=True)
    assert "replace" not in operations(run)
    assert parquet_files(run) < files
    assert not [name for name in run.now.metadata.refs if name.startswith(PREFIX)]


def test_a_table_that_does_not_say_who_owns_it_is_compacted_later(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep()
    ready(run, upkeep)
    run.now.transaction().remove_properties(property_key("s")).commit_transaction()
    upkeep.maintain()
    assert "replace" not in operations(run)
    run.commit({1: "b"})
    upkeep.close(failed=False)
    assert "replace" in operations(run)


def test_a_table_that_the_catalog_does_not_find_for_a_moment_is_compacted_later(tmp_path: Path) -> None:
    """As a replica that is behind: whether the table was dropped is for the commits of its sink to decide."""
    run, away = Run(tmp_path, spec_of("s")), (*NAME.identifier[:-1], "away")
    upkeep = run.upkeep(pace=UpkeepPace(rest_per_plan=0, rest_seconds=0))
    for number in range(12):
        run.commit({number: "a"})
    run.catalog.rename_table(NAME.identifier, away)
    assert not planned(upkeep)
    run.catalog.rename_table(away, NAME.identifier)
    assert planned(upkeep)
    run.catalog.rename_table(NAME.identifier, away)
    upkeep.maintain()
    assert upkeep.busy, "the new files are kept"
    run.catalog.rename_table(away, NAME.identifier)
    upkeep.maintain()
    assert "replace" in operations(run)
    upkeep.close(failed=False)


def test_a_fenced_run_plans_no_compaction(tmp_path: Path) -> None:
    fenced = Run(tmp_path, spec_of("s"))
    for number in range(12):
        fenced.commit({number: "a"})
    upkeep = fenced.upkeep()
    successor = Run(tmp_path, spec_of("s"))
    successor.run.claims.claim()
    refs, files = successor.now.metadata.refs, parquet_files(successor)
    upkeep.maintain()
    upkeep.close(failed=False)
    assert successor.now.metadata.refs == refs
    assert parquet_files(successor) == files


def test_a_run_that_counts_a_commit_of_its_predecessor_late_still_maintains_its_table(tmp_path: Path) -> None:
    before = Run(tmp_path, spec_of("s"))
    for number in range(12):
        before.commit({number: "a"})
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep()
    stated = stated_progress(run.now.properties, "s")
    assert stated is not None
    run.monitor.started(stated.fence.epoch + 1, stated.frontier.to_json(), committed=replace(stated, commits=13))
    upkeep.maintain()
    assert not upkeep.busy, "nothing is planned before the first commit of this run"
    run.commit({1: "b"})
    upkeep.maintain()
    assert upkeep._join is not None
    upkeep._join()
    upkeep.close(failed=False)
    assert run.monitor.status.compactions == 1


def test_outside_of_its_hours_nothing_is_planned(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    for number in range(8):
        run.commit({number: "a"})
    now = run.clock.now_ms() // 60_000
    later = run.upkeep(DayHours((now + 120) % DAY, (now + 180) % DAY))
    later.maintain()
    assert not later.busy
    upkeep = run.upkeep(DayHours((now - 60) % DAY, (now + 60) % DAY))
    upkeep.maintain()
    assert upkeep._join is not None
    upkeep._join()
    upkeep.close(failed=False)
    assert run.monitor.status.compactions == 1


def test_before_its_claim_a_run_is_not_fenced_but_early(tmp_path: Path) -> None:
    Run(tmp_path, spec_of("s")).commit({1: "a"})
    run = Run(tmp_path, spec_of("s"))
    later = replace(run.run.state.fence, epoch=run.run.state.fence.epoch + 1, run_id="later")
    with pytest.raises(TransientError, match="is not claimed by this run yet"):
        CompactionOwner("s", lambda: later).check(run.now)


def test_new_files_whose_keys_cannot_be_read_are_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep()
    for number in range(12):
        run.commit({number: "a"})
    files = parquet_files(run)

    def broken(_files: object) -> None:
        raise TerminalError("a file cannot be read")

    monkeypatch.setattr(run.resolver, "prepared", broken)
    upkeep.maintain()
    assert upkeep._join is not None
    upkeep._join()
    upkeep.maintain()
    upkeep.close(failed=False)
    assert parquet_files(run) == files
    assert not [name for name in run.now.metadata.refs if name.startswith(PREFIX)]


def read(run: Run, *, unread: int) -> None:
    """Read a checkpoint that leaves so much of the source behind."""
    run.run.checkpoints.reads(CheckpointIdentity("q", 1, None, "1"), 0, unread)


def planned(upkeep: Upkeep) -> bool:
    """Let the committer look at the maintenance; whether there is something to be committed."""
    upkeep.maintain()
    if upkeep._join is not None:
        upkeep._join()
    return upkeep.busy


def test_a_sink_that_is_behind_puts_rewrites_off_until_it_has_caught_up(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep()
    read(run, unread=7)
    for number in range(12):
        run.commit({number: "a"})
    assert not planned(upkeep), "eight files would do"
    read(run, unread=0)
    assert planned(upkeep), "without another commit"
    upkeep.close(failed=False)
    assert "replace" in operations(run)


def test_a_sink_that_is_behind_for_ever_is_maintained_all_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("s"))
    upkeep = run.upkeep(pace=UpkeepPace(rest_per_plan=0))  # however long a plan takes here
    read(run, unread=7)
    commits = 0
    while not planned(upkeep):
        commits += 1
        assert commits <= 32, "twice the number of files, and the commits until the next plan"
        run.commit({commits: "a"})
    assert commits >= 16
    upkeep.close(failed=False)
    assert "replace" in operations(run)
