"""What a failed attempt leaves behind: nothing, unless the table may refer to it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import calve
from calve import faults
from calve.errors import CheckpointGap, CommitConflict, FencedError, TransientError
from calve.iceberg.files.names import is_list
from calve.model.files import Manifest
from tests.support.compaction import compact
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of

FIRST = {1: "a", 2: "a", 3: "a"}


class Orders:
    """A table with one batch, and the files of the store."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run = Run(home, spec_of("s"))
        assert self.run.commit(FIRST)

    def compact(self) -> None:
        """What another process does."""
        compact(calve.connect(home=self.home).table(str(NAME)), ["id"])

    def rows(self) -> dict[int, str]:
        return {row["id"]: row["v"] for row in duckdb_rows(self.run.now.metadata_location)}

    def left_behind(self) -> list[str]:
        """Files that no snapshot refers to."""
        table = self.run.now
        named: set[str] = set()
        for snapshot in table.metadata.snapshots:
            named.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                named.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                named |= {entry.data_file.file_path for entry in entries}
        known = {name.removeprefix("file://") for name in named}
        folder = Path(table.location().removeprefix("file://"))
        found = [path for path in folder.rglob("*") if path.suffix in {".parquet", ".avro"}]
        return sorted(path.name for path in found if str(path) not in known)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    made = Orders(tmp_path)
    yield made
    faults.install(None)
    made.run.catalog.close()


def at_commits(*acts: Callable[[], object]) -> None:
    """Do these before the next commits of a batch are sent, one at each."""
    waiting = list(acts)

    def hook(point: str) -> None:
        if point == "commit.before" and waiting:
            waiting.pop(0)()

    faults.install(hook)


def test_an_attempt_that_lost_a_race_leaves_no_file_behind(orders: Orders) -> None:
    at_commits(orders.compact, orders.compact)
    assert orders.run.commit({1: "b", 4: "b"})
    assert orders.rows() == FIRST | {1: "b", 4: "b"}
    assert orders.left_behind() == []


def test_deletes_of_an_attempt_in_doubt_stay_until_another_attempt_is_applied(orders: Orders) -> None:
    in_doubt: list[list[str]] = []

    def lose_the_answer() -> None:
        in_doubt.append([name for name in orders.left_behind() if name.endswith(".parquet") and "keys" not in name])
        orders.compact()
        raise TransientError("the answer was lost")

    def look() -> None:
        there = orders.left_behind()
        assert all(name in there for name in in_doubt[0])

    at_commits(lose_the_answer, look)
    assert orders.run.commit({1: "b"})
    assert in_doubt[0], "the attempt had deletes"
    assert orders.rows() == FIRST | {1: "b"}
    left = orders.left_behind()
    assert [name for name in left if not is_list(name)] == []


def test_a_conflict_that_was_none_removes_nothing_that_the_table_refers_to(orders: Orders) -> None:
    waiting = [CommitConflict("the client takes it for refused, although it was applied")]

    def hook(point: str) -> None:
        if point == "commit.after" and waiting:
            raise waiting.pop()

    faults.install(hook)
    assert orders.run.commit({1: "b"})
    assert not waiting
    assert orders.rows() == FIRST | {1: "b"}
    assert orders.run.commit({2: "c"})
    assert orders.rows() == FIRST | {1: "b", 2: "c"}


@pytest.mark.parametrize("behind", ["the claim", "the last batch"])
def test_a_catalog_that_shows_an_older_state_once_neither_fences_nor_halts_a_run(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    successor = Run(orders.home, orders.run.spec)
    older = [successor.now] if behind == "the claim" else []
    successor.run.claims.claim()
    older = older or [successor.now]
    assert successor.commit({1: "b"})
    successor.record({2: "c"})
    real = successor.catalog.load_table
    monkeypatch.setattr(successor.catalog, "load_table", lambda name: older.pop() if older else real(name))
    assert successor.run.commits.commit_next()
    assert not older
    assert orders.rows() == FIRST | {1: "b", 2: "c"}
    successor.catalog.close()


def at_check_of_files(run: Run, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do this after the next attempt has checked the fence, right before it looks for the files of its batch."""
    real = run.table.missing_files

    def missing_files(manifests: Sequence[Manifest]) -> tuple[str, ...]:
        monkeypatch.undo()
        act()
        return real(manifests)

    monkeypatch.setattr(run.table, "missing_files", missing_files)


def test_a_run_is_fenced_if_its_successor_commits_the_batch_and_removes_its_keys_meanwhile(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.run.record({1: "b"})

    def take_over() -> None:
        successor = Run(orders.home, orders.run.spec)
        successor.run.claims.claim()
        assert successor.run.commits.commit_next()
        successor.catalog.close()

    at_check_of_files(orders.run, monkeypatch, take_over)
    with pytest.raises(FencedError, match="lost its fence"):
        orders.run.run.commits.commit_next()
    assert orders.rows() == FIRST | {1: "b"}


def test_missing_files_of_a_run_that_holds_the_fence_halt_it(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.run.record({1: "b"})
    keys = list(orders.home.rglob("*-keys-*.avro"))
    assert keys

    def lose_keys() -> None:
        for path in keys:
            path.unlink()

    at_check_of_files(orders.run, monkeypatch, lose_keys)
    with pytest.raises(CheckpointGap, match="files of an uncommitted batch are missing"):
        orders.run.run.commits.commit_next()
