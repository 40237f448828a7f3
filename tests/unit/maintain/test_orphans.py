"""Orphan files leave a table's folder; files that anybody needs, or may still commit, never do."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate

import calve
from calve import faults
from calve.catalog.connect import connect_embedded
from calve.catalog.version_hint import VERSION_HINT
from calve.clock import RandomIds, SystemClock
from calve.errors import FencedError, InvalidInput, TerminalError, TransientError
from calve.iceberg.files.names import mark_in, own_name, table_mark
from calve.iceberg.planning.compaction_groups import BY_HAND
from calve.iceberg.snapshot.forgetting import forget_sink
from calve.iceberg.snapshot.removal_journal import RemovalEntry, RemovalJournal, RemovedSnapshot
from calve.maintain.compact import CompactionScope, Compactor
from calve.maintain.convert import ConversionTools
from calve.maintain.orphans import OrphanOptions, OrphanReport, remove_orphans
from calve.model.progress import state_key
from calve.model.table import Proposal
from calve.storage.listing import stored_time_ms
from calve.storage.state import LocalState
from tests.support.compaction import rewritten
from tests.support.foreign import in_order
from tests.support.keyed import no_session
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of

SINK = "5e9a2d0c-0000-4000-8000-00000000000a"
DAY = timedelta(days=1)


class Time:
    """The clock of the store: the machine's, moved ahead."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def stored_ms(self, location: str, properties: Any) -> int:
        found = stored_time_ms(location, properties)
        assert found is not None
        return found + round(self.ahead.total_seconds() * 1000)

    def now_ms(self) -> int:
        return round(time.time() * 1000 + self.ahead.total_seconds() * 1000)

    def monotonic(self) -> float:
        return time.monotonic()

    def move(self, step: timedelta) -> None:
        self.ahead += step


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr("calve.maintain.orphans.stored_time_ms", made.stored_ms)
    return made


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "home", spec_of(SINK))
    made.commit({1: "a", 2: "b"})
    made.commit({2: "c", 3: "d"})
    yield made
    made.catalog.close()


def folder_of(run: Run) -> Path:
    return Path(run.now.location().removeprefix("file://"))


def stored(run: Run) -> set[str]:
    return {str(path.relative_to(folder_of(run))) for path in folder_of(run).rglob("*") if path.is_file()}


def put(run: Run, name: str) -> str:
    """A file that nothing refers to; returns its path below the table's folder."""
    path = folder_of(run) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    return name


def own(run: Run, rest: str = "00000-left.parquet", folder: str = "data") -> str:
    return f"{folder}/{own_name(table_mark(run.now.metadata.table_uuid), rest)}"


def clean(run: Run, at: Time | None = None, **options: Any) -> OrphanReport:
    table = calve.connect(home=run.home).table(str(NAME))
    return remove_orphans(table, OrphanOptions(**options), clock=at or SystemClock())


def clean_twice(run: Run, at: Time, **options: Any) -> OrphanReport:
    """Two runs, with more than the age limit between them, long after everything was written.

    Returns the report of the second, with what both removed.
    """
    at.move(10 * DAY)
    first = clean(run, at, **options)
    at.move(10 * DAY)
    second = clean(run, at, **options)
    second.removed.files += first.removed.files
    return second


def rows(run: Run) -> dict[int, str]:
    found = in_order(duckdb_rows(run.now.metadata_location))
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["v"] for row in found}


def test_names_of_all_files_that_a_sink_writes_carry_the_mark_of_its_table(run: Run) -> None:
    run.record({4: "e"})
    mark = table_mark(run.now.metadata.table_uuid)
    names = [name for name in stored(run) if not name.endswith((".metadata.json", VERSION_HINT))]
    assert len(names) > 8
    assert {mark_in(name) for name in names} == {mark}


def test_an_orphan_goes_when_a_second_run_finds_it_after_the_age_limit(run: Run, at: Time) -> None:
    left, before = put(run, own(run)), stored(run)
    at.move(10 * DAY)
    first = clean(run, at)
    assert (first.orphans.files, first.removed.files, first.waiting.files) == (1, 0, 1)
    at.move(2 * DAY)
    assert clean(run, at).removed.files == 0, "two days are less than three"
    at.move(1.1 * DAY)
    assert clean(run, at, dry_run=True).removed.files == 1
    assert stored(run) == before | {left}
    last = clean(run, at)
    assert (last.removed.files, last.removed.bytes) == (1, len(b"left behind"))
    assert stored(run) == before - {left}
    assert rows(run) == {1: "a", 2: "c", 3: "d"}
    assert clean(run, at).orphans.files == 0


def test_a_file_is_as_old_as_the_clock_of_its_store_says(run: Run, at: Time) -> None:
    put(run, own(run))
    wrong = Time()
    wrong.move(1000 * DAY)
    assert clean(run, wrong).orphans.files == 0, "the machine's clock does not count"
    at.move(2 * DAY)
    assert clean(run, at).orphans.files == 0
    at.move(2 * DAY)
    assert clean(run, at).orphans.files == 1


def test_ages_below_a_day_need_force(run: Run, at: Time) -> None:
    put(run, own(run))
    at.move(timedelta(hours=2))
    report = clean(run, at, age=timedelta(hours=1))
    assert report.orphans.files == 0
    assert report.warnings == ["files are removed when they are a day old at the earliest; --force permits less"]
    assert clean(run, at, age=timedelta(hours=1), force=True).orphans.files == 1


def test_a_dry_run_writes_nothing(run: Run, at: Time) -> None:
    put(run, own(run))
    before = stored(run)
    at.move(10 * DAY)
    assert clean(run, at, dry_run=True).orphans.files == 1
    assert stored(run) == before
    assert not (run.home / "orphans").exists()


def test_work_that_is_recorded_and_not_committed_stays_and_is_committed_later(run: Run, at: Time) -> None:
    run.record({1: "x", 9: "y"})
    before = stored(run)
    assert clean_twice(run, at).orphans.files == 0
    assert stored(run) == before
    successor = Run(run.home, run.spec)
    assert clean_twice(run, at).orphans.files == 0, "not after a restart either"
    successor.run.claims.claim()
    assert clean_twice(run, at).orphans.files == 0, "nor when the successor adopted it"
    assert successor.run.commits.commit_next() is not None
    assert rows(successor) == {1: "x", 2: "c", 3: "d", 9: "y"}
    assert clean_twice(successor, at).removed.files == 0
    successor.catalog.close()


def test_records_that_a_successor_takes_over_meanwhile_are_found(run: Run, at: Time) -> None:
    run.record({1: "x", 9: "y"})
    at.move(10 * DAY)
    clean(run, at)
    at.move(10 * DAY)
    successors: list[Run] = []

    def restart(point: str) -> None:
        if point == "orphans.listed" and not successors:
            successors.append(Run(run.home, run.spec))
            successors[0].run.claims.claim()
            successors[0].commit({7: "z"})  # its first commit removes the records of its predecessor

    faults.install(restart)
    assert clean(run, at).removed.files == 0
    while successors[0].run.commits.commit_next() is not None:
        pass
    assert rows(run) == {1: "x", 2: "c", 3: "d", 7: "z", 9: "y"}
    successors[0].catalog.close()


def test_a_batch_that_is_committed_during_a_run_keeps_its_files(run: Run, at: Time) -> None:
    run.record({5: "e"})
    at.move(20 * DAY)

    def commit(point: str) -> None:
        if point == "orphans.work":
            faults.install(None)
            assert run.run.commits.commit_next() is not None

    faults.install(commit)
    assert clean(run, at).orphans.files == 0
    assert rows(run) == {1: "a", 2: "c", 3: "d", 5: "e"}


def test_a_file_that_is_committed_right_before_its_removal_stays(run: Run, at: Time) -> None:
    """Another writer may add a file that lay there for weeks."""
    data, _ = run._files({9: "late"})
    at.move(10 * DAY)
    clean(run, at)
    at.move(10 * DAY)

    def add(point: str) -> None:
        if point == "orphans.noted":
            faults.install(None)
            state = run.table.load()
            assert state.stated is not None
            run.table.commit(state, Proposal(state.stated, run.table.write_manifests([data], "late")))

    faults.install(add)
    assert clean(run, at).removed.files == 1, "the file of keys"
    assert rows(run)[9] == "late"


def test_while_the_state_of_a_sink_is_out_of_reach_only_manifest_lists_go(run: Run, at: Time) -> None:
    data, keys = put(run, own(run)), put(run, own(run, "keys-m0.avro", "metadata"))
    listed = put(run, own(run, "snap-1-x.avro", "metadata"))
    (run.home / "state").rename(run.home / "moved")
    report = clean_twice(run, at)
    assert (report.removed.files, report.withheld.files) == (1, 2)
    assert {data, keys} <= stored(run)
    assert listed not in stored(run)
    assert report.warnings[0].startswith(
        f"the state of sink {SINK} is out of reach, so only manifest lists are removed"
    )
    (run.home / "state").rmdir() if (run.home / "state").exists() else None
    shutil.rmtree(run.home / "state", ignore_errors=True)
    (run.home / "moved").rename(run.home / "state")
    assert clean_twice(run, at).removed.files == 2


@pytest.mark.parametrize("lost", ["unstated", "another table's", "an old copy", "damaged"])
def test_a_state_that_is_not_the_sinks_counts_as_out_of_reach(run: Run, at: Time, lost: str) -> None:
    run.record({5: "e"})
    put(run, own(run))
    state = run.home / "state" / SINK
    if lost == "unstated":
        table = run.now
        table.catalog.commit_table(table, (), (RemovePropertiesUpdate(removals=[state_key(SINK)]),))
    elif lost == "another table's":
        (state / "table.json").write_text('{"format":1,"uuid":"7d1f0000-0000-4000-8000-000000000001"}')
    elif lost == "an old copy":
        shutil.copytree(state, run.home / "copy")
        Run(run.home, run.spec).commit({6: "f"})
        shutil.rmtree(state)
        (run.home / "copy").rename(state)
    else:
        next(path for path in sorted((state / "rec").rglob("0*")) if path.is_file()).write_text("{")
    report = clean_twice(run, at)
    assert report.removed.files == 0
    assert report.withheld.files >= 1
    assert "is out of reach" in report.warnings[0]


def test_a_forgotten_sink_is_excluded_before_its_files_are_orphans(run: Run, at: Time) -> None:
    run.record({5: "e"})
    shutil.rmtree(run.home / "state")
    left = clean_twice(run, at)
    assert (left.removed.files, left.withheld.files) == (0, 4), "data, keys and their manifests"
    forget_sink(run.catalog, NAME, SINK, SystemClock(), RandomIds())
    with pytest.raises(FencedError, match="--forget excluded this one"):
        run.run.commits.commit_next()
    report = clean(run, at)
    assert (report.removed.files, report.warnings) == (4, [])
    assert rows(run) == {1: "a", 2: "c", 3: "d"}
    with pytest.raises(InvalidInput, match="names no sink nobody"):
        forget_sink(run.catalog, NAME, "nobody", SystemClock(), RandomIds())


def test_a_commit_that_is_under_way_when_its_sink_is_forgotten_is_not_applied(run: Run) -> None:
    run.record({5: "e"})

    def forget(point: str) -> None:
        if point == "commit.before":
            faults.install(None)
            forget_sink(connect_embedded(run.home), NAME, SINK, SystemClock(), RandomIds())

    faults.install(forget)
    with pytest.raises(FencedError):
        run.run.commits.commit_next()
    assert rows(run) == {1: "a", 2: "c", 3: "d"}


def test_files_of_other_writers_are_listed_and_removed_only_if_asked_for(run: Run, at: Time) -> None:
    mark = own_name("0badf00d", "00000-x.parquet")
    others = [
        put(run, name)
        for name in ("data/part-0.parquet", "data/calve-00000-older-version.parquet", "metadata/abc-m0.avro")
    ]
    kept = [
        put(run, name)
        for name in (
            f"data/{mark}",  # of another table
            "metadata/version-hint.text",
            "metadata/00099-left.metadata.json",
            "data/_temporary/0/part-1.parquet",
            "data/.part-0.parquet.crc",
        )
    ]
    report = clean_twice(run, at)
    assert (report.removed.files, report.others.files) == (0, 3)
    assert sorted(report.some_others) == sorted(f"{folder_of(run)}/{name}" for name in others)
    report = clean_twice(run, at, everything=True)
    assert report.removed.files == 3
    assert not set(others) & stored(run)
    assert set(kept) <= stored(run)
    assert rows(run) == {1: "a", 2: "c", 3: "d"}


def test_files_in_a_folder_of_calves_own_are_its_own(run: Run, at: Time) -> None:
    left = put(run, f"{own(run, 'unfinished-5-all')}/part-00000.zstd.parquet")
    assert clean_twice(run, at).removed.files == 1
    assert left not in stored(run)


def test_a_data_folder_outside_of_the_table_is_cleaned_of_own_names_only(run: Run, at: Time, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    table = run.now
    changes = SetPropertiesUpdate(updates={"write.data.path": f"file://{shared}"})
    table.catalog.commit_table(table, (), (changes,))
    run.commit({7: "g"})
    run.commit({8: "h"})
    (shared / "others.parquet").write_bytes(b"of another table")
    (shared / own(run).removeprefix("data/")).write_bytes(b"left")
    report = clean_twice(run, at, everything=True)
    assert report.removed.files == 1
    assert (shared / "others.parquet").exists()
    assert rows(run)[8] == "h"


def test_a_listing_that_lacks_a_live_file_stops_the_job(run: Run, at: Time, tmp_path: Path) -> None:
    put(run, own(run, "00001-left.parquet", "elsewhere"))
    data = folder_of(run) / "data"
    data.rename(tmp_path / "data")
    data.symlink_to(tmp_path / "data")
    with pytest.raises(TerminalError, match="lacks files of its current snapshot"):
        clean(run, at)


def test_a_path_that_the_table_names_in_another_store_stops_the_job(run: Run, at: Time) -> None:
    left = put(run, own(run))
    run.record({5: "e"})
    at.move(10 * DAY)
    view = "calve.iceberg.snapshot.table_files.TableView.own_files"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, property(lambda _: (f"s3://elsewhere{folder_of(run)}/{left}",)))
        with pytest.raises(TerminalError, match="names a file of another store"):
            clean(run, at)
        patch.setattr(view, property(lambda _: (f"file:{folder_of(run)}/{left}",)))
        assert clean(run, at).orphans.files == 0, "schemes of one store are the same"


def test_a_folder_that_holds_another_table_is_refused(run: Run) -> None:
    location = f"{run.now.location()}/nested"
    run.catalog.create_table("shop.nested", run.now.schema(), location=location)
    with pytest.raises(InvalidInput, match=r'the folder of table "shop.orders" contains another table'):
        clean(run)
    other = calve.connect(home=run.home).table("shop.nested")
    assert not remove_orphans(other, OrphanOptions()).refusal, "the other one contains nothing else"


def test_a_folder_that_holds_a_state_location_is_refused(run: Run) -> None:
    table = calve.connect(home=run.home).table(str(NAME))
    with pytest.raises(InvalidInput, match="the state location and the table's location overlap"):
        remove_orphans(table, OrphanOptions(), states=[str(folder_of(run) / "state")])


def test_a_table_whose_files_nobody_may_remove_is_refused(run: Run, at: Time) -> None:
    put(run, own(run))
    table = run.now
    table.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"gc.enabled": "no idea"}),))
    report = clean_twice(run, at)
    assert report.refusal == 'the table property gc.enabled is "no idea"'
    assert own(run) in stored(run)


def compactor(run: Run) -> Compactor:
    tools = ConversionTools(no_session, run.clock, run.ids)
    return Compactor(connect_embedded(run.home), CompactionScope(NAME), tools)


def test_files_of_a_compaction_in_flight_stay_however_long_it_takes(run: Run, at: Time) -> None:
    before = stored(run)
    working = compactor(run)
    plan = working.plan(BY_HAND)
    assert plan is not None
    ready = rewritten(working, plan)
    left = put(run, own(run))
    new = {name for name in stored(run) - before if name.endswith(".parquet")} - {left}
    assert len(new) == 1
    at.move(10 * DAY)
    clean(run)  # by the machine's clock, by which the hold is renewed and does not age
    at.move(10 * DAY)
    report = clean(run)
    assert (report.removed.files, report.withheld.files) == (0, 2), "it may have written either of them"
    assert new <= stored(run)
    assert working.commit(ready) is not None
    assert rows(run) == {1: "a", 2: "c", 3: "d"}
    report = clean(run)
    assert report.removed.files == 1
    assert left not in stored(run)
    assert rows(run) == {1: "a", 2: "c", 3: "d"}


def test_a_compaction_that_began_after_a_file_was_noted_did_not_write_it(run: Run, at: Time) -> None:
    left = put(run, own(run))
    at.move(10 * DAY)
    clean(run)
    at.move(10 * DAY)
    working = compactor(run)
    plan = working.plan(BY_HAND)
    assert plan is not None
    ready = rewritten(working, plan)
    assert clean(run).removed.files == 1
    assert left not in stored(run)
    assert working.commit(ready) is not None
    assert rows(run) == {1: "a", 2: "c", 3: "d"}


def test_files_of_a_compaction_that_died_go_when_its_hold_is_over(run: Run, at: Time) -> None:
    before = stored(run)
    working = compactor(run)
    plan = working.plan(BY_HAND)
    assert plan is not None
    rewritten(working, plan)  # and never committed
    new = {name for name in stored(run) - before if name.endswith(".parquet")}
    assert clean_twice(run, at).removed.files == 1
    assert not new & stored(run)
    assert rows(run) == {1: "a", 2: "c", 3: "d"}


def test_files_of_expired_snapshots_wait_for_their_own_removal(run: Run, at: Time) -> None:
    assert compactor_done(run)
    run.commit({4: "e"})
    table = run.now
    ids = [s.snapshot_id for s in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)][:-2]
    journal = RemovalJournal(LocalState(run.home / "state"))
    lists = {s.snapshot_id: s.manifest_list for s in table.metadata.snapshots}
    snapshots = tuple(RemovedSnapshot(number, lists[number]) for number in ids)
    entry = RemovalEntry("entry", str(table.metadata.table_uuid), snapshots, (), put_ms=0)
    journal.put(entry)
    for name in [name for name, ref in table.metadata.refs.items() if name != "main" and ref.snapshot_id in ids]:
        table.manage_snapshots().remove_tag(name).commit()
    run.now.maintenance.expire_snapshots().by_ids(ids).commit()
    before = stored(run)
    assert clean_twice(run, at).orphans.files == 0
    assert stored(run) >= {name for name in before if not name.endswith(".metadata.json")}
    journal.delete(entry)
    assert clean_twice(run, at).removed.files >= 4
    assert rows(run) == {1: "a", 2: "c", 3: "d", 4: "e"}


def compactor_done(run: Run) -> bool:
    working = compactor(run)
    plan = working.plan(BY_HAND)
    assert plan is not None
    return working.commit(rewritten(working, plan)) is not None


@pytest.mark.parametrize("point", ["orphans.listed", "orphans.work", "orphans.noted", "orphans.remove"])
def test_a_run_that_dies_at_any_step_is_repeated(run: Run, at: Time, point: str) -> None:
    run.record({5: "e"})
    left = put(run, own(run))
    at.move(10 * DAY)
    clean(run, at)
    at.move(10 * DAY)
    faults.install(_failing_once(point))
    with pytest.raises(_DiedError):
        clean(run, at)
    assert clean_twice(run, at).removed.files == 1
    assert left not in stored(run)
    assert run.run.commits.commit_next() is not None
    assert rows(run) == {1: "a", 2: "c", 3: "d", 5: "e"}


class _DiedError(Exception):
    pass


def _failing_once(wanted: str) -> Callable[[str], None]:
    def reach(point: str) -> None:
        if point == wanted:
            faults.install(None)
            raise _DiedError

    return reach


def test_damaged_notes_only_cost_time(run: Run, at: Time) -> None:
    put(run, own(run))
    at.move(10 * DAY)
    clean(run, at)
    next((run.home / "orphans").iterdir()).write_bytes(b"half a fi")
    at.move(10 * DAY)
    assert clean(run, at).removed.files == 0
    at.move(10 * DAY)
    assert clean(run, at).removed.files == 1


def test_a_manifest_that_the_table_names_and_that_is_gone_stops_the_job(run: Run, at: Time) -> None:
    put(run, own(run))
    manifests = run.now.inspect.manifests().to_pylist()
    Path(manifests[0]["path"].removeprefix("file://")).unlink()
    with pytest.raises(TransientError, match="a file that the table names could not be read"):
        clean(run, at)


def test_names_that_are_no_text_are_never_touched(run: Run, at: Time) -> None:
    name = os.fsencode(folder_of(run)) + b"/data/\xff\xfe.parquet"
    with open(name, "wb") as out:  # noqa: PTH123 - pathlib takes no bytes
        out.write(b"?")
    assert clean_twice(run, at).others.files == 1
    assert os.path.exists(name)  # noqa: PTH110 - the same
