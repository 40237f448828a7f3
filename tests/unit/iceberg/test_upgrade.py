"""A sink raises the format version of its table from 2 to 3, in one commit between two batches."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType

from calve import faults
from calve.catalog.outcome import TableChange, send
from calve.catalog.row_lineage import UPGRADE, next_row_id
from calve.clock import RandomIds, SystemClock
from calve.errors import InvalidInput, TransientError
from calve.iceberg.files.content import content_id, first_row_id, first_row_id_of
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.loading import check_upgradable
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import new_summary
from calve.model.spec import SinkSpec
from tests.support.changes import Death, Died, at
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.install(None)


def old() -> SinkSpec:
    return spec_of("s")


def new(version: int = 2) -> SinkSpec:
    """The sink after ALTER SINK s SET (FORMAT VERSION = 3)."""
    return spec_of("s", version=version, format_version=3)


def check(run: Run, expected: dict[int, str]) -> None:
    """Compare the rows that DuckDB and pyiceberg read, and look for ids that two files share."""
    for rows in (duckdb_rows(run.now.metadata_location), run.now.scan().to_arrow().to_pylist()):
        assert len(rows) == len(expected)
        assert {row["id"]: row["v"] for row in rows} == expected
    cache, table = ManifestCache(), run.now
    lines = cache.lines_of(table.io, table.current_snapshot())
    files = [
        e.data_file for e in cache.entries_of(table.io, *(one.manifest for one in lines)) if not e.data_file.content
    ]
    spans = sorted((first_row_id(file) or 0, file.record_count) for file in files)
    assert all(first_row_id(file) is not None for file in files)
    ends = [start + rows for start, rows in spans]
    assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False)), "an id is on two rows"
    assert ends[-1] <= (next_row_id(table.metadata) or 0)


def upgrades_of(run: Run) -> list[int]:
    """The snapshots that assigned ids to rows of older ones."""
    return [
        one.snapshot_id for one in run.now.snapshots() if one.summary and one.summary.operation is Operation.REPLACE
    ]


def test_an_upgrade_is_one_commit_that_gives_every_row_an_id_and_writes_no_manifest_again(tmp_path: Path) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b", 3: "c"})
    run.commit({1: "A", 4: "d"})
    before = run.now
    manifests = {line.manifest_path for line in before.current_snapshot().manifests(before.io)}  # type: ignore[union-attr]
    after = Run(tmp_path, new())
    assert run.now.metadata.format_version == 2, "a start alone changes nothing"
    claimed = 1
    after.run.claims.claim()
    after.run.claims.between_batches(after.table.evolve)
    table = after.now
    assert (table.metadata.format_version, next_row_id(table.metadata)) == (3, 5)
    assert len(table.metadata.snapshots) == len(before.metadata.snapshots) + claimed + 1
    head = table.current_snapshot()
    assert head is not None
    assert (head.first_row_id, head.added_rows) == (0, 5)
    lines = [line.manifest for line in ManifestCache().all_lines_of(table.io, head)]
    assert {line.manifest_path for line in lines} == manifests
    assert sorted(first_row_id_of(line) or 0 for line in lines if not line.content) == [0, 2]
    assert not after.table.behind
    check(after, {1: "A", 2: "b", 3: "c", 4: "d"})


def test_the_first_vector_of_a_file_has_the_positions_of_older_delete_files(tmp_path: Path) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b", 3: "c"})
    run.commit({1: "A"})
    run.catalog.close()
    after = Run(tmp_path, new())
    after.commit({2: "B"})
    check(after, {1: "A", 2: "B", 3: "c"})
    cache, table = ManifestCache(), after.now
    lines = cache.lines_of(table.io, table.current_snapshot())
    deletes = [e.data_file for e in cache.entries_of(table.io, *(one.manifest for one in lines)) if e.data_file.content]
    assert [(file.file_format, file.record_count) for file in deletes] == [(FileFormat.PUFFIN, 2)]
    assert content_id(deletes[0]).data_file
    assert len(upgrades_of(after)) == 1


def test_what_is_ready_is_committed_before_the_upgrade_and_what_follows_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b"})
    run.record({1: "A"})
    after = Run(tmp_path, new())
    after.run.claims.claim()
    tried = iter(range(3))

    def commit_meanwhile(_: float) -> None:
        assert next(tried) < 2
        assert after.run.commits.commit_next()

    monkeypatch.setattr(after.signals, "pause", commit_meanwhile)
    after.commit({2: "B"})
    check(after, {1: "A", 2: "B"})
    versions = [one.first_row_id is None for one in sorted(after.now.snapshots(), key=lambda s: s.sequence_number or 0)]
    assert versions == sorted(versions, reverse=True), "no snapshot of version 2 follows one of version 3"
    assert versions.count(False) == 2


STEPS = {
    "claim.after": False,
    "upgrade.before": False,
    "upgrade.after": False,
    "resolve.before": True,
    "resolve.after": True,
    "manifest-list.after:2": True,
    "commit.before:2": True,
    "commit.after:2": True,
}
"""Where a run that upgrades its table may die, and whether its batch is recorded by then. First it claims the table."""


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_dies_while_it_upgrades_leaves_a_table_that_the_next_one_continues(
    tmp_path: Path, step: str
) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b"})
    point, _, nth = step.partition(":")
    faults.install(Death(point, int(nth or 1)))
    with pytest.raises(Died):
        Run(tmp_path, new()).commit({1: "A"})
    faults.install(None)
    after = Run(tmp_path, new(3))
    after.record({2: "B"})
    while after.run.state.ready:
        after.run.commits.commit_next()
    check(after, {1: "A" if STEPS[step] else "a", 2: "B"})
    assert len(upgrades_of(after)) == 1


def test_an_upgrade_that_another_commit_overtook_is_made_on_top_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b"})
    after = Run(tmp_path, new())

    def foreign() -> None:
        draft = new_draft(run.now, SystemClock(), RandomIds())
        lines = ManifestCache().lines_of(draft.table.io, draft.parent)
        summary = new_summary(Operation.REPLACE, {}, draft.parent, {})
        send(snapshot_change(draft, SnapshotContents(lines, lines, summary), ManifestCache()), "another snapshot")

    at("upgrade.before", 1, foreign)
    after.commit({1: "A"})
    check(after, {1: "A", 2: "b"})
    assert len(upgrades_of(after)) == 2
    lists = {Path(one.manifest_list).name for one in after.now.snapshots()}
    folder = Path(after.now.location().removeprefix("file://")) / "metadata"
    assert {path.name for path in folder.glob("*snap-*.avro")} == lists, "that of the first attempt is gone"


def test_deletes_looked_up_before_another_tool_upgraded_the_table_are_looked_up_again(tmp_path: Path) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b"})
    head = run.now.current_snapshot()

    def upgraded_by_others() -> None:
        send(TableChange(run.now, (), (UPGRADE,), done=lambda now: now.format_version == 3), "an upgrade")
        raise TransientError("the catalog is out of reach")

    at("commit.before", 1, upgraded_by_others)
    assert run.commit({1: "A"})
    assert head is not None
    assert run.now.metadata.snapshots[-1].parent_snapshot_id == head.snapshot_id, "the upgrade added no snapshot"
    check(run, {1: "A", 2: "b"})
    cache, table = ManifestCache(), run.now
    lines = cache.lines_of(table.io, table.current_snapshot())
    deletes = [e.data_file for e in cache.entries_of(table.io, *(one.manifest for one in lines)) if e.data_file.content]
    assert [file.file_format for file in deletes] == [FileFormat.PUFFIN]


def test_another_branch_gets_its_ids_with_its_next_snapshot(tmp_path: Path) -> None:
    other = Run(tmp_path, spec_of("t", branch="audit"))
    other.commit({3: "c"})
    run = Run(tmp_path, old())
    run.commit({1: "a", 2: "b"})
    after = Run(tmp_path, new())
    after.commit({1: "A"})
    check(after, {1: "A", 2: "b"})
    other.commit({4: "d"})
    head = other.now.snapshot_by_name("audit")
    assert head is not None
    assert all(
        first_row_id_of(line.manifest) is not None
        for line in ManifestCache().lines_of(other.now.io, head)
        if not line.manifest.content
    )
    found = duckdb_rows(other.now.metadata_location, snapshot_id=head.snapshot_id)
    assert {row["id"]: row["v"] for row in found} == {3: "c", 4: "d"}


def test_a_column_with_the_name_of_a_row_id_forbids_the_upgrade(tmp_path: Path) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a"})
    with run.now.update_schema() as update:
        update.add_column("_ROW_ID", LongType())
    with pytest.raises(InvalidInput, match="cannot be upgraded to format version 3") as caught:
        Run(tmp_path, new())
    assert '"_ROW_ID"' in caught.value.detail
    with pytest.raises(InvalidInput, match="cannot be upgraded"):
        check_upgradable(run.now.metadata, str(NAME))
    run.commit({2: "b"})
    assert run.now.metadata.format_version == 2


def test_a_table_is_neither_downgraded_nor_upgraded_by_a_sink_that_never_wrote_to_it(tmp_path: Path) -> None:
    run = Run(tmp_path, old())
    run.commit({1: "a"})
    with pytest.raises(InvalidInput, match="has another format version") as caught:
        Run(tmp_path, spec_of("t", format_version=3))
    assert "ALTER SINK ... SET (FORMAT VERSION = 3)" in caught.value.hint
    Run(tmp_path, new()).commit({2: "b"})
    with pytest.raises(InvalidInput, match="has a later format version") as caught:
        Run(tmp_path, spec_of("s", version=3, format_version=2))
    assert "cannot be downgraded" in caught.value.detail
