from pathlib import Path

import pytest

from calve.errors import SourceLost
from calve.source.files import ledger as module
from calve.source.files.ledger import Ledger, Place, SeenFiles
from calve.storage.listing import KnownFile
from calve.storage.state import LocalState

START = Place(0, "")
ROOT = "/in"


def file(number: int) -> KnownFile:
    return KnownFile(number, f"/in/{number}.json", 10)


@pytest.fixture
def store(tmp_path: Path) -> LocalState:
    return LocalState(tmp_path)


def known(seen: SeenFiles, count: int) -> list[int]:
    fresh, changed = seen.compare([file(n) for n in range(1, count + 1)])
    assert not changed
    return [n for n in range(1, count + 1) if file(n) not in fresh]


def filled(store: LocalState, count: int) -> tuple[Ledger, Place]:
    ledger, place = Ledger(store, ROOT), START
    for number in range(1, count + 1):
        place = ledger.add(place, [file(number)])
    return ledger, place


def test_a_place_survives_its_offsets() -> None:
    assert Place.of(Place(3, "abc").to_offsets()) == Place(3, "abc")
    assert Place.of(None) == START
    assert START.to_offsets() is None


def test_another_process_finds_the_chain_by_its_offsets(store: LocalState) -> None:
    _, place = filled(store, 3)
    again = Ledger(store, ROOT)
    assert known(again.seen(place), 6) == [1, 2, 3]
    assert again.files(START, place) == [file(1), file(2), file(3)]
    assert len(again.files(START, place)) == 3


def test_files_are_in_the_order_of_time_and_name(store: LocalState) -> None:
    ledger = Ledger(store, ROOT)
    late, early, same = KnownFile(9, "/in/a", 1), KnownFile(1, "/in/z", 1), KnownFile(1, "/in/b", 1)
    assert ledger.files(START, ledger.add(START, [late, early, same])) == [same, early, late]


def test_two_runs_that_race_do_not_disturb_each_other(store: LocalState) -> None:
    one, place = filled(store, 1)
    other = Ledger(store, ROOT)
    mine, theirs = one.add(place, [file(2)]), other.add(place, [file(2), file(3)])
    assert mine.number == theirs.number
    assert known(Ledger(store, ROOT).seen(mine), 4) == [1, 2]
    assert known(Ledger(store, ROOT).seen(theirs), 4) == [1, 2, 3]
    assert Ledger(store, ROOT).files(place, theirs) == [file(2), file(3)]


def test_a_lost_entry_is_an_error_and_never_a_second_look_at_the_folder(store: LocalState, tmp_path: Path) -> None:
    _, place = filled(store, 3)
    next(tmp_path.glob("ledger/00000002-*")).unlink()
    with pytest.raises(SourceLost, match="Entry 00000002-"):
        Ledger(store, ROOT).seen(place)


def test_committed_entries_are_folded_and_nothing_is_forgotten(
    store: LocalState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_EVERY", 5)
    ledger, place = Ledger(store, ROOT), START
    for number in range(1, 24):
        place = ledger.add(place, [file(number)])
        if number != 23:
            ledger.fold(place)
    assert len(list(tmp_path.glob("ledger/*"))) < 6
    assert len(list(tmp_path.glob("seen/*"))) == 1
    assert len(Ledger(store, ROOT).seen(place)) == 23
    following = Ledger(store, ROOT).add(place, [file(24)])
    assert len(Ledger(store, ROOT).seen(following)) == 24


def test_a_range_that_is_not_in_one_chain_is_refused(store: LocalState) -> None:
    one, place = filled(store, 1)
    mine, theirs = one.add(place, [file(2)]), Ledger(store, ROOT).add(place, [file(3)])
    following = one.add(mine, [file(4)])
    assert one.files(mine, following) == [file(4)]
    with pytest.raises(SourceLost, match="do not follow each other"):
        one.files(theirs, following)


def test_a_damaged_entry_is_an_error(store: LocalState, tmp_path: Path) -> None:
    _, place = filled(store, 2)
    entry = next(tmp_path.glob("ledger/00000001-*"))
    entry.write_bytes(entry.read_bytes().replace(b"1.json", b"9.json"))
    with pytest.raises(SourceLost, match="is damaged"):
        Ledger(store, ROOT).seen(place)


def test_another_folder_is_an_error_and_not_a_folder_of_new_files(store: LocalState) -> None:
    _, place = filled(store, 1)
    with pytest.raises(SourceLost, match="folder of a file source has changed"):
        Ledger(store, "/mnt/in").seen(place)


class FoldingStore(LocalState):
    """Another run folds while this one walks the chain."""

    def __init__(self, root: Path, place: Place) -> None:
        super().__init__(root)
        self._other = LocalState(root)
        self._place = place
        self._reads = 0

    def read(self, name: str) -> bytes | None:
        self._reads += 1
        if self._reads == 6:
            Ledger(self._other, ROOT).fold(self._place)
        return super().read(name)


def test_a_chain_that_is_folded_while_it_is_walked_is_found_on_a_second_look(
    store: LocalState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_EVERY", 1)
    ledger, place = filled(store, 8)
    following = ledger.add(place, [file(9)])
    assert known(Ledger(FoldingStore(tmp_path, place), ROOT).seen(following), 9) == list(range(1, 10))
    assert len(list(tmp_path.glob("ledger/*"))) == 2, "it was folded"


def test_a_run_that_was_overtaken_folds_nothing_and_does_not_stop_for_it(
    store: LocalState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_EVERY", 1)
    old, early = filled(store, 3)
    late = Ledger(store, ROOT).add(early, [file(4)])
    Ledger(store, ROOT).fold(late)
    before = sorted(tmp_path.glob("*/*"))
    old.fold(early)
    assert sorted(tmp_path.glob("*/*")) == before
    assert known(Ledger(store, ROOT).seen(late), 4) == [1, 2, 3, 4]


def test_a_set_of_files_knows_what_is_new_and_what_changed() -> None:
    seen = SeenFiles.of(file(n) for n in range(100)).with_files([file(100)]).with_files([file(101)])
    listed = [file(5), file(200), KnownFile(6, file(6).path, 99), KnownFile(7, file(101).path, 10)]
    for same in (seen, SeenFiles.from_bytes(seen.to_bytes())):
        fresh, changed = same.compare(listed)
        assert fresh == [file(200)]
        assert [(c.now.path, c.mtime_ns, c.size) for c in changed] == [(file(6).path, 6, 10), (file(101).path, 101, 10)]
        assert len(same) == 102
    assert SeenFiles.of([]).compare(listed) == (listed, [])
    assert SeenFiles.from_bytes(b"").compare([]) == ([], [])
