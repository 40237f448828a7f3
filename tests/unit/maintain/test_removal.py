"""Files of expired snapshots are removed: after their grace, none too many, whatever happens in between."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate

import calve
from calve import faults
from calve.catalog.outcome import TableChange, send
from calve.commit.journal import Journal
from calve.errors import CommitUnknown, TransientError
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.snapshot import expiry as snapshot_expiry
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.expired_files import IcebergFiles, TableNames
from calve.iceberg.snapshot.history import NamedSink, new_summary
from calve.iceberg.snapshot.removal_journal import RemovalJournal, RemovedSnapshot
from calve.maintain import expire as by_hand
from calve.maintain.expire import expire_snapshots, work_in
from calve.maintain.orphans import OrphanOptions, remove_orphans
from calve.maintain.removal import ABANDONED_MS, InFlight, Removal
from calve.model.progress import Fence, tag_name
from calve.model.spec import HOUR_MS, RetentionOptions
from calve.storage.state import StateFolder
from tests.support.changes import Died
from tests.support.readers import duckdb_rows
from tests.support.runs import Run, spec_of
from tests.unit.iceberg.sample import NAME, SINK, Sample, SetClock

GRACE = timedelta(hours=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path / "home")
    journal = Journal(StateFolder(table.state, SINK))
    journal.take_epoch(Fence(1, 1, "run-1"))
    journal.remember_uuid(str(table.table.metadata.table_uuid))
    yield table
    table.close()


def old_and_new(sample: Sample, count: int = 12) -> dict[int, dict[int, str]]:
    """Commit that many batches, each an hour after the other; the rows of each. Every third replaces all rows."""
    rows: dict[int, str] = {}
    states: dict[int, dict[int, str]] = {}
    for number in range(count):
        changes = {number % 4: f"v{number}", 100 + number: "once"}
        rows = changes if number % 3 == 2 else {**rows, **changes}
        proposal = replace(sample.proposal(changes, deletes=[number % 4]), replaces=number % 3 == 2)
        states[sample.iceberg.commit(sample.iceberg.load(), proposal).snapshot_id] = dict(rows)
        sample.clock.now += HOUR_MS
    return states


def expire(sample: Sample, **options: Any) -> by_hand.ExpiryReport:
    table = calve.connect(home=sample.home).table(str(NAME))
    settings = {"older_than": 3 * HOUR, "grace": GRACE, **options}
    return expire_snapshots(table, clock=sample.clock, **settings)


def files_of(home: Path) -> set[str]:
    """Every file of the table but its metadata.json and the hint at its version."""
    return {
        f"file://{path}"
        for path in (home / "warehouse").rglob("*")
        if path.is_file() and ".metadata.json" not in path.name and path.name != "version-hint.text"
    }


def named(sample: Sample) -> set[str]:
    """Every file that a snapshot of the table names, as pyiceberg reads it."""
    io, found = sample.table.io, set()
    for snapshot in sample.table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)}
    return found


def check_readable(sample: Sample, states: dict[int, dict[int, str]]) -> None:
    """Time travel to every snapshot that is left."""
    left = {snapshot.snapshot_id for snapshot in sample.table.snapshots()}
    assert left & states.keys()
    for number in left & states.keys():
        assert sample.rows(number) == states[number]


def test_files_go_an_hour_after_their_snapshots_and_every_other_snapshot_stays_readable(sample: Sample) -> None:
    states = old_and_new(sample)
    before = files_of(sample.home)
    expired = expire(sample)
    assert len(expired.snapshots) == 8
    assert not expired.removed
    assert [one.snapshots for one in expired.waiting] == [8]
    assert expired.waiting[0].due_ms == sample.clock.now + HOUR_MS
    assert files_of(sample.home) == before, "readers of the snapshots that expired may still be at work"
    sample.clock.now += HOUR_MS - 1
    assert not expire(sample, older_than=100 * HOUR).removed
    sample.clock.now += 1
    done = expire(sample, older_than=100 * HOUR)
    assert not done.waiting
    assert done.removed["manifest lists"].files == 8
    assert {"data", "deletes", "manifests"} <= done.removed.keys()
    gone = before - files_of(sample.home)
    assert sum(count.files for count in done.removed.values()) == len(gone)
    assert files_of(sample.home) == named(sample), "neither more nor less than the table names"
    check_readable(sample, states)
    assert not sample.state.list("removal")


def test_data_files_that_left_the_table_go_with_the_last_snapshot_that_has_them(tmp_path: Path) -> None:
    """Compaction replaces data files; they stay for the snapshots before it, and go with them."""
    run = Run(tmp_path, spec_of("s"))
    for number in range(12):
        run.commit({number % 3: f"v{number}"})
    table = calve.connect(home=tmp_path).table(str(NAME))
    assert calve.compact(table) is not None
    run.commit({7: "after"})  # what the sink's newest snapshot names stays
    before = {path for path in files_of(tmp_path) if path.endswith(".parquet")}
    expired = expire_snapshots(table, older_than=timedelta(0), grace=timedelta(0), force=True)
    assert expired.snapshots
    assert expired.removed["data"].files
    assert expired.removed["data"].bytes
    assert expired.removed["deletes"].files
    after = {path for path in files_of(tmp_path) if path.endswith(".parquet")}
    assert len(after) < len(before)
    rows = duckdb_rows(run.now.metadata_location)
    assert {row["id"]: row["v"] for row in rows} == {0: "v9", 1: "v10", 2: "v11", 7: "after"}
    run.commit({8: "goes on"})
    assert len(duckdb_rows(run.now.metadata_location)) == 5


def expire_and_remove(sample: Sample) -> None:
    expire(sample)
    sample.clock.now += HOUR_MS
    expire(sample)


STEPS = ["expiry.journal", "removal.before", "removal.files", "removal.manifests", "removal.lists", "removal.after"]


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_dies_leaves_nothing_that_the_next_one_does_not_finish(
    sample: Sample, step: str, dying: Callable[[str], None]
) -> None:
    states = old_and_new(sample)
    dying(step)
    with pytest.raises(Died):
        expire_and_remove(sample)
    faults.install(None)
    check_readable(sample, states)
    for _ in range(3):
        expire(sample, older_than=1000 * HOUR)
        sample.clock.now += HOUR_MS + 25 * HOUR_MS * (step == "expiry.journal")
    assert files_of(sample.home) == named(sample)
    assert not sample.state.list("removal")
    check_readable(sample, states)


def test_every_state_put_may_fail(sample: Sample) -> None:
    states = old_and_new(sample)
    for nth in (1, 2):
        faults.install(faults.parse(f"state.put:{nth}=error"))
        try:
            with pytest.raises(TransientError):
                expire(sample, older_than=(6 - nth) * HOUR)
        finally:
            faults.install(None)
    expire(sample)
    for _ in range(3):
        expire(sample, older_than=1000 * HOUR)
        sample.clock.now += 26 * HOUR_MS
    assert files_of(sample.home) == named(sample)
    check_readable(sample, states)


KILLED_STEPS = ["removal.files", "removal.lists"]


@pytest.mark.long
def test_a_process_that_is_killed_at_any_step_is_made_up_for(sample: Sample) -> None:
    states = old_and_new(sample)
    expire(sample)
    sample.clock.now += HOUR_MS
    for step in KILLED_STEPS:
        program = (
            "import sys; from datetime import timedelta; import calve;"
            "from tests.unit.iceberg.sample import NAME, SetClock;"
            "from calve.maintain.expire import expire_snapshots;"
            "expire_snapshots(calve.connect(home=sys.argv[1]).table(str(NAME)), older_than=timedelta(hours=2),"
            " grace=timedelta(hours=1), clock=SetClock(int(sys.argv[2])))"
        )
        environment = {**os.environ, "CALVE_FAULTS": f"{step}=kill"}
        arguments = [sys.executable, "-c", program, str(sample.home), str(sample.clock.now)]
        ended = subprocess.run(arguments, env=environment, check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, (step, ended.stderr)
        check_readable(sample, states)
    sample.clock.now += 26 * HOUR_MS
    for _ in range(3):
        expire(sample, older_than=1000 * HOUR)
        sample.clock.now += 26 * HOUR_MS
    assert files_of(sample.home) == named(sample)
    check_readable(sample, states)


def test_a_dry_run_removes_nothing_and_says_what_it_would(sample: Sample) -> None:
    old_and_new(sample)
    before = files_of(sample.home), len(sample.table.snapshots())
    assert len(expire(sample, dry_run=True).snapshots) == 8
    assert (files_of(sample.home), len(sample.table.snapshots())) == before
    expire(sample)
    sample.clock.now += HOUR_MS
    before = files_of(sample.home), len(sample.table.snapshots())
    told = expire(sample, dry_run=True, older_than=100 * HOUR)
    assert files_of(sample.home) == before[0]
    assert told.removed == expire(sample, older_than=100 * HOUR).removed


# ---- what keeps files


def test_files_of_snapshots_that_expired_later_wait_for_their_own_grace(sample: Sample) -> None:
    states = old_and_new(sample)
    first = expire(sample, older_than=6 * HOUR)
    table = sample.table
    sample.clock.now += HOUR_MS // 2
    second = expire(sample, older_than=2 * HOUR)
    assert len(first.snapshots) >= 4
    assert len(second.snapshots) >= 4
    sample.clock.now += HOUR_MS // 2
    done = expire(sample, older_than=100 * HOUR)
    assert done.removed
    assert [one.snapshots for one in done.waiting] == [len(second.snapshots)]
    for number in second.snapshots:
        rows = duckdb_rows(table.metadata_location, snapshot_id=number)
        assert {row["id"]: row["v"] for row in rows} == states[number]


def test_a_tag_made_meanwhile_keeps_the_files_of_its_snapshot(sample: Sample) -> None:
    states = old_and_new(sample)
    old = next(iter(states))
    with sample.table.manage_snapshots() as refs:
        refs.create_tag(old, "audit")
    assert old not in expire(sample).snapshots
    sample.clock.now += HOUR_MS
    expire(sample)
    assert sample.rows(old) == states[old]


def test_files_that_are_in_the_table_again_stay(sample: Sample) -> None:
    """Somebody adds the manifests of an expired snapshot again, after everything was compared."""
    states = old_and_new(sample, 3)
    first, _, last = states
    lines = ManifestCache().lines_of(sample.table.io, sample.table.snapshot_by_id(last))
    with sample.table.manage_snapshots() as refs:
        refs.rollback_to_snapshot(first)
    with sample.table.manage_snapshots() as refs:
        refs.remove_tag(tag_name(SINK))
    sample.clock.now += 10 * HOUR_MS
    assert last in expire(sample, older_than=HOUR).snapshots
    sample.clock.now += HOUR_MS

    def add_again(point: str) -> None:
        if point == "removal.before":
            manifests, draft = ManifestCache(), new_draft(sample.table, sample.clock, sample.ids)
            summary = new_summary(Operation.APPEND, {}, draft.parent, {})
            send(snapshot_change(draft, SnapshotContents(lines, lines, summary), manifests), "the files again")

    faults.install(add_again)
    done = expire(sample, older_than=100 * HOUR)
    faults.install(None)
    assert done.removed["data"].files == 1, "only that of the batch between the two"
    head = sample.table.current_snapshot()
    assert head is not None
    assert sample.rows(head.snapshot_id) == states[last]


def test_a_batch_that_may_be_committed_again_keeps_its_files(tmp_path: Path, dying: Callable[[str], None]) -> None:
    """Its process died before it learned of the commit; then the table was rolled back, and the snapshot expired."""
    clock = SetClock()
    run = Run(tmp_path, spec_of("s"), clock=clock)
    before = run.commit({1: "a"})
    assert before is not None
    run.record({1: "b", 2: "b"})
    dying("receipt.before")
    with pytest.raises(Died):
        run.run.commits.commit_next()
    faults.install(None)
    lost = run.now.current_snapshot()
    assert lost is not None
    with run.now.manage_snapshots() as refs:
        refs.rollback_to_snapshot(before.snapshot_id)
    with run.now.manage_snapshots() as refs:
        refs.remove_tag(tag_name("s"))
    table = calve.connect(home=tmp_path).table(str(NAME))
    work, uuid = work_in(table.lake.state_root(None), table.lake.state_root), str(run.now.metadata.table_uuid)
    flying = work(TableNames(uuid, {}, sinks=(NamedSink("s", None, None),)))
    files = IcebergFiles(run.catalog, NAME)
    files.load()
    there = [manifest for manifest in flying.manifests if Path(manifest.removeprefix("file://")).exists()]
    needed = {file.path for manifest in there for file in files.files_in(manifest)}
    assert {file.path for one in lost.manifests(run.now.io) for file in files.files_in(one.manifest_path)} & needed
    assert not flying.unknown_sinks
    assert work(TableNames(uuid, {}, sinks=(NamedSink("other", None, None),))).unknown_sinks == {"other"}
    clock.now += 10 * HOUR_MS
    assert lost.snapshot_id in expire_snapshots(table, older_than=HOUR, grace=GRACE, clock=clock).snapshots
    clock.now += HOUR_MS
    done = expire_snapshots(table, older_than=HOUR, grace=GRACE, clock=clock)
    assert "manifest lists" in done.removed
    assert "data" not in done.removed  # positions that the attempt looked up go: the next one looks them up again
    assert all(Path(path.removeprefix("file://")).exists() for path in (*there, *needed))


def test_records_are_read_where_the_table_states_and_only_the_newest_count(tmp_path: Path) -> None:
    lake = calve.connect(home=tmp_path / "home")
    run = Run(tmp_path / "elsewhere", spec_of("s"), lake.open())
    run.commit({1: "a"})
    run.record({2: "b"})
    names = IcebergFiles(run.catalog, NAME).load()
    assert names is not None
    (sink,) = names.sinks
    assert sink.state_location == str(tmp_path / "elsewhere" / "state")
    assert sink.epoch is not None
    find = work_in(lake.state_root(None), lake.state_root)
    flying = find(names)
    assert flying.manifests
    assert not flying.unknown_sinks
    shutil.copytree(tmp_path / "elsewhere" / "state", tmp_path / "home" / "state", dirs_exist_ok=True)
    run.record({3: "c"})
    assert find(names).manifests > flying.manifests, "a copy at hand does not count"
    moved = replace(names, sinks=(replace(sink, state_location=str(tmp_path / "gone")),))
    assert find(moved).manifests == flying.manifests, "unless there are no others"
    newer = replace(names, sinks=(replace(sink, epoch=sink.epoch + 1),))
    assert find(newer).unknown_sinks == {"s"}, "a copy from before the newest run does not know its work"
    nowhere = (None, "", str(tmp_path / "gone"), "nothing://anywhere/state", "s3://")
    shutil.rmtree(tmp_path / "home" / "state")
    for location in nowhere:
        lost = replace(names, sinks=(replace(sink, state_location=location),))
        assert find(lost).unknown_sinks == {"s"}, location
    assert not (tmp_path / "gone").exists(), "looking for records makes no folder"


def test_a_snapshot_that_is_in_the_table_again_ends_its_removal(sample: Sample) -> None:
    states = old_and_new(sample)
    before = sample.table.metadata_location
    gone = expire(sample).snapshots
    files = files_of(sample.home)
    sample.catalog.drop_table(NAME.identifier)
    sample.catalog.register_table(NAME.identifier, before)
    sample.clock.now += HOUR_MS
    expire(sample, older_than=100 * HOUR)
    assert files_of(sample.home) == files
    assert sample.rows(gone[0]) == states[gone[0]]
    assert not sample.state.list("removal")


def test_nothing_goes_while_a_file_of_the_table_cannot_be_read(sample: Sample) -> None:
    old_and_new(sample)
    expire(sample)
    sample.clock.now += HOUR_MS
    head = sample.table.current_snapshot()
    assert head is not None
    path = Path(head.manifests(sample.table.io)[0].manifest_path.removeprefix("file://"))
    kept, before = path.read_bytes(), files_of(sample.home)
    path.write_bytes(b"Obj\x01 damaged")
    with pytest.raises(TransientError, match="files of expired snapshots were not removed"):
        expire(sample, older_than=100 * HOUR)
    path.unlink()
    with pytest.raises(TransientError, match="files of expired snapshots were not removed"):
        expire(sample, older_than=100 * HOUR)
    path.write_bytes(kept)
    assert files_of(sample.home) == before
    assert expire(sample, older_than=100 * HOUR).removed


def test_an_expiry_with_an_unknown_outcome_is_carried_out_once_the_table_shows_it(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_and_new(sample)
    real = snapshot_expiry.expire

    def lost(*arguments: Any) -> Any:
        real(*arguments)
        raise CommitUnknown("the answer was lost")

    monkeypatch.setattr(by_hand, "expire", lost)
    with pytest.raises(CommitUnknown):
        expire(sample)
    monkeypatch.undo()
    assert sample.state.list("removal"), "its entry stays"
    expire(sample, older_than=100 * HOUR)
    sample.clock.now += HOUR_MS
    assert expire(sample, older_than=100 * HOUR).removed
    assert files_of(sample.home) == named(sample)


def test_files_that_were_kept_for_an_expiry_which_is_refused_go_later(sample: Sample) -> None:
    """A paused process journals snapshots that another one has expired; its commit is refused afterwards."""
    old_and_new(sample)
    expire(sample)
    journal = RemovalJournal(sample.state)
    (applied,) = journal.entries(str(sample.table.metadata.table_uuid))
    refused = replace(applied, entry_id="refused", put_ms=applied.put_ms + HOUR_MS, seen_ms=None)
    sample.clock.now += HOUR_MS
    journal.put(refused)
    assert not expire(sample, older_than=100 * HOUR).removed
    journal.delete(refused)
    assert expire(sample, older_than=100 * HOUR).removed
    assert files_of(sample.home) == named(sample)
    assert not sample.state.list("removal")


def test_an_expiry_of_which_one_snapshot_came_back_at_once_removes_the_files_of_the_others(sample: Sample) -> None:
    """No run saw the table without all of its snapshots, so the expiry looks as if it had not been applied."""
    old_and_new(sample)
    expire(sample)
    journal, head = RemovalJournal(sample.state), sample.table.current_snapshot()
    assert head is not None
    (entry,) = journal.entries(str(sample.table.metadata.table_uuid))
    back = RemovedSnapshot(head.snapshot_id, head.manifest_list, SINK)
    journal.put(replace(entry, snapshots=(*entry.snapshots, back), seen_ms=None))
    sample.clock.now += HOUR_MS
    assert not expire(sample, older_than=100 * HOUR).removed, "it may still be applied"
    sample.clock.now += ABANDONED_MS
    expire(sample, older_than=100 * HOUR)
    sample.clock.now += HOUR_MS
    assert expire(sample, older_than=100 * HOUR).removed
    assert files_of(sample.home) == named(sample)
    assert not sample.state.list("removal")


# ---- refusals


@pytest.mark.parametrize("value", ["false", "maybe"])
def test_nothing_expires_in_a_table_without_garbage_collection(sample: Sample, value: str) -> None:
    old_and_new(sample)
    expire(sample, older_than=8 * HOUR)
    sample.table.transaction().set_properties({"gc.enabled": value}).commit_transaction()
    sample.clock.now += HOUR_MS
    before = files_of(sample.home), len(sample.table.snapshots())
    told = expire(sample)
    assert told.refusal == f'the table property gc.enabled is "{value}"'
    assert not told.snapshots
    files = IcebergFiles(sample.catalog, NAME)
    report = Removal(files, RemovalJournal(sample.state), lambda _: InFlight(), sample.clock, grace_ms=1).run()
    assert report.refusal
    assert report.waiting
    assert (files_of(sample.home), len(sample.table.snapshots())) == before


def test_a_sink_goes_on_where_snapshots_may_not_expire(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = Sample(tmp_path / "home", properties={"gc.enabled": "false"})
    for number in range(70):
        sample.commit({number: "x"})
    assert len(sample.table.snapshots()) == 70
    told = [record.message for record in caplog.records if "snapshots are kept" in record.message]
    assert told == [f'table {NAME}: snapshots are kept: the table property gc.enabled is "false"']
    sample.close()


def test_a_retention_below_an_hour_is_an_hour_and_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = Sample(tmp_path / "home", retention=RetentionOptions(1000))
    for number in range(30):
        sample.commit({number: "x"})
        sample.clock.now += HOUR_MS // 10
    assert 10 < len(sample.table.snapshots()) < 30
    assert [r.message for r in caplog.records if "SNAPSHOT RETENTION is less than an hour" in r.message]
    sample.close()


def test_ages_below_an_hour_need_force(sample: Sample) -> None:
    old_and_new(sample)
    told = expire(sample, older_than=timedelta(0), grace=timedelta(0))
    assert len(told.warnings) == 2
    assert not told.removed
    done = expire(sample, older_than=timedelta(0), grace=timedelta(0), force=True)
    assert done.removed
    assert not done.warnings
    assert len(sample.table.snapshots()) == 1


# ---- statistics


def attach_statistics(sample: Sample, number: int) -> set[str]:
    """Attach statistics and partition statistics to a snapshot, as other tools do; returns the names of the files."""
    folder = Path(sample.table.location().removeprefix("file://")) / "metadata"
    names = {"statistics": f"stats-{number}.stats", "partition-statistics": f"partitions-{number}.parquet"}
    common = {"snapshot-id": number, "file-size-in-bytes": 1}
    paths = {kind: {**common, "statistics-path": f"file://{folder}/{name}"} for kind, name in names.items()}
    for name in names.values():
        (folder / name).write_bytes(b"x")
    whole = {**paths["statistics"], "file-footer-size-in-bytes": 1, "blob-metadata": []}
    parts = PartitionStatisticsFile.model_validate(paths["partition-statistics"])
    updates = (
        SetStatisticsUpdate.model_validate({"statistics": whole, "snapshot-id": number}),
        SetPartitionStatisticsUpdate.model_validate({"partition-statistics": parts}),
    )
    send(TableChange(sample.table, (), updates, done=lambda _: True), "statistics")
    return set(names.values())


def statistics_of(sample: Sample) -> tuple[set[int], set[int], set[str]]:
    """Snapshots with statistics and with partition statistics, and the names of their files that exist."""
    metadata = sample.table.metadata
    folder = Path(sample.table.location().removeprefix("file://")) / "metadata"
    files = {path.name for path in folder.iterdir() if path.name.startswith(("stats-", "partitions-"))}
    return (
        {one.snapshot_id for one in metadata.statistics},
        {one.snapshot_id for one in metadata.partition_statistics},
        files,
    )


def test_statistics_of_others_stay_with_their_snapshot_and_go_with_it(sample: Sample) -> None:
    states = list(old_and_new(sample))
    first, last = states[0], states[-1]
    files = {number: attach_statistics(sample, number) for number in (first, last)}
    both = ({first, last}, {first, last}, files[first] | files[last])
    ref = calve.connect(home=sample.home).table(str(NAME))
    sample.commit({7: "a batch"})
    assert calve.compact(ref) is not None
    assert statistics_of(sample) == both, "neither a batch nor a compaction changes them"
    found = remove_orphans(ref, OrphanOptions(timedelta(0), everything=True, force=True), clock=sample.clock)
    assert found.others.files == found.orphans.files == 0
    assert first in expire(sample).snapshots
    assert statistics_of(sample) == ({last}, {last}, both[2]), "files wait for the grace"
    sample.clock.now += HOUR_MS
    assert expire(sample).removed["statistics"].files == 2
    assert statistics_of(sample) == ({last}, {last}, files[last])
