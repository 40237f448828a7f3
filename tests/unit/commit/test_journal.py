from dataclasses import replace
from pathlib import Path

import pytest

from calve.commit.journal import Journal
from calve.commit.takeover import adopt, can_reread_anywhere
from calve.errors import CheckpointGap
from calve.model.checkpoint import Adoption, CheckpointEntry, CheckpointIdentity, Entry, FrontierEntry, offsets_digest
from calve.model.files import Committable, Content, Manifest
from calve.model.frontier import SEALED, START, BatchDescription, Frontier
from calve.model.progress import Fence, Progress
from calve.storage.state import LocalState

RUN = Fence(1, 3, "run-a")
NOTHING = Adoption((), (), -1, None)


def committable(number: int, *, upper: Frontier | None = None) -> Committable:
    manifest = Manifest(f"m{number}", 1, 0, Content.DATA, 1, 1, ())
    batch = BatchDescription(Frontier((number - 1) * 10), upper or Frontier(number * 10))
    return Committable(f"c{number}", batch, "q", number, str(number), (manifest,))


def entry(number: int) -> CheckpointEntry:
    start = str(number - 1) if number > 1 else None
    return CheckpointEntry(CheckpointIdentity("q", number, start, str(number)), number * 10 - 1, committable(number))


def progress(number: int) -> Progress:
    offsets = str(number)
    fence = Fence(1, 2, "old")
    frontier = Frontier(number * 10)
    return Progress("s", fence, frontier, START, f"c{number}", "q", number, offsets, offsets_digest(offsets))


def all_there(_: Entry) -> tuple[str, ...]:
    return ()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(LocalState(tmp_path))


def filled(journal: Journal, *numbers: int) -> Journal:
    journal.adopt(RUN, NOTHING)
    for number in numbers:
        journal.append(RUN, number, entry(number))
    return journal


def test_a_directory_counts_only_once_it_has_an_adoption_record(journal: Journal) -> None:
    journal.append(RUN, 1, entry(1))
    assert journal.predecessor(9) is None
    journal.adopt(RUN, NOTHING)
    records = journal.predecessor(9)
    assert records is not None
    assert records.entries == (entry(1),)


def test_the_newest_run_below_the_own_epoch_is_taken(journal: Journal) -> None:
    for epoch in (2, 10, 9):
        fence = Fence(1, epoch, f"run-{epoch}")
        journal.adopt(fence, NOTHING)
        journal.append(fence, 1, entry(epoch))
    records = journal.predecessor(10)
    assert records is not None
    assert records.entries == (entry(9),)


def test_records_behind_a_hole_are_not_read(journal: Journal) -> None:
    records = filled(journal, 1, 2, 4).predecessor(9)
    assert records is not None
    assert records.entries == (entry(1), entry(2))


@pytest.mark.parametrize(
    "removals",
    [{1: [1, 2, 3]}, {1: [1], 2: [2], 3: [3]}, {2: [1, 2], 3: [3]}],
    ids=["at once", "one by one", "behind the reader"],
)
def test_records_behind_those_that_their_run_is_removing_are_read(
    journal: Journal, tmp_path: Path, removals: dict[int, list[int]]
) -> None:
    filled(journal, 1, 2, 3, 4, 5)

    class Removing(LocalState):
        """Where a run removes committed records right before others are read."""

        def read(self, name: str) -> bytes | None:
            number = name.rpartition("/")[2]
            journal.forget(RUN, removals.pop(int(number), []) if number.isdigit() else [])
            return super().read(name)

    records = Journal(Removing(tmp_path)).predecessor(9)
    assert records is not None
    assert records.entries == (entry(4), entry(5))
    assert not removals


def test_a_damaged_record_counts_as_missing(journal: Journal, tmp_path: Path) -> None:
    filled(journal, 1, 2, 3)
    next(tmp_path.glob("rec/*/00000002")).write_text('{"kind": "check')
    records = journal.predecessor(9)
    assert records is not None
    assert records.entries == (entry(1),)


def test_the_first_uuid_is_kept(journal: Journal) -> None:
    journal.remember_uuid("one")
    journal.remember_uuid("two")
    assert journal.known_uuid() == "one"


def test_taken_epochs_are_seen_by_later_runs(journal: Journal) -> None:
    assert journal.newest_epoch() == 0
    journal.take_epoch(Fence(1, 7, "a"))
    assert journal.newest_epoch() == 7


def test_a_start_forgets_a_bounded_number_of_older_epochs_and_keeps_the_last(journal: Journal, tmp_path: Path) -> None:
    starts = [Fence(1, epoch, f"run-{epoch}") for epoch in range(1, 122)]
    for start in starts:
        journal.take_epoch(start)

    def epochs() -> list[int]:
        return sorted(int(path.name.partition("-")[0]) for path in tmp_path.glob("runs/*"))

    journal.forget_older_epochs(starts[-2])
    assert epochs() == [*range(101, 122)]
    journal.forget_older_epochs(starts[-1])
    assert epochs() == [120, 121]
    assert journal.newest_epoch() == 121


def test_the_holder_removes_what_older_runs_left(journal: Journal) -> None:
    filled(journal, 1)
    journal.take_epoch(RUN)
    holder = Fence(1, 4, "run-b")
    journal.adopt(holder, NOTHING)
    journal.forget_predecessors(holder)
    assert journal.predecessor(4) is None
    assert journal.predecessor(5) is not None


def test_offsets_are_found_by_their_digest(journal: Journal) -> None:
    filled(journal, 1, 2)
    assert journal.offsets_with(offsets_digest("2")) == (True, "2")
    assert journal.offsets_with(offsets_digest("7")) == (False, None)


def test_a_run_takes_over_what_the_table_does_not_have(journal: Journal) -> None:
    position = adopt(progress(1), filled(journal, 1, 2, 3).predecessor(9), all_there, can_reread_anywhere)
    assert position.entries == [entry(2), entry(3)]
    assert (position.end, position.minted, position.frontier) == ("3", Frontier(30), Frontier(10))
    assert position.last_time == 29
    assert position.knows(entry(1).identity)
    assert position.knows(entry(3).identity)


def test_a_replay_of_the_last_commit_is_known_even_without_records() -> None:
    position = adopt(progress(1), None, all_there, can_reread_anywhere)
    assert position.knows(CheckpointIdentity("q", 1, None, "1"))
    assert not position.knows(CheckpointIdentity("q", 1, None, "2"))


@pytest.mark.parametrize("gone", [2, 3])
def test_a_batch_whose_files_are_gone_is_read_again_with_all_that_follow(journal: Journal, gone: int) -> None:
    records = filled(journal, 1, 2, 3).predecessor(9)

    def missing(one: Entry) -> tuple[str, ...]:
        return (f"m{gone}",) if one.committable and one.committable.commit_id == f"c{gone}" else ()

    position = adopt(progress(1), records, missing, can_reread_anywhere)
    assert position.end == str(gone - 1)
    with pytest.raises(CheckpointGap, match=f"q/{gone}.*m{gone} is missing"):
        adopt(progress(1), records, missing, lambda _: False)


def test_a_missing_checkpoint_is_a_gap_that_names_those_behind_it(journal: Journal) -> None:
    with pytest.raises(CheckpointGap, match="q/3: a checkpoint before it is missing"):
        adopt(progress(1), filled(journal, 3).predecessor(9), all_there, lambda _: False)


def test_a_seal_is_taken_over_and_a_moved_frontier_is_not(journal: Journal) -> None:
    filled(journal, 1)
    journal.append(RUN, 2, FrontierEntry(50, replace(committable(2), manifests=(), offsets="1")))
    position = adopt(None, journal.predecessor(9), all_there, can_reread_anywhere)
    assert position.entries == [entry(1)]
    assert position.last_time == 50
    journal.forget(RUN, [2])
    journal.append(RUN, 2, FrontierEntry(50, replace(committable(2, upper=SEALED), offsets="1")))
    assert adopt(None, journal.predecessor(9), all_there, can_reread_anywhere).minted == SEALED


def test_a_batch_whose_checkpoints_are_lost_is_not_taken_over(journal: Journal) -> None:
    journal.adopt(RUN, NOTHING)
    journal.append(RUN, 2, FrontierEntry(50, replace(committable(1), offsets="7")))
    position = adopt(None, journal.predecessor(9), all_there, can_reread_anywhere)
    assert (position.entries, position.end) == ([], None)
