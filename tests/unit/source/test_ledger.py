from pathlib import Path

import pytest

from calve.errors import SourceLost
from calve.source import ledger as module
from calve.source.ledger import KnownFile, Ledger, Place
from calve.state import LocalState

START = Place(0, "")


def file(number: int) -> KnownFile:
    return KnownFile(number, f"/in/{number}.json", 10)


@pytest.fixture
def store(tmp_path: Path) -> LocalState:
    return LocalState(tmp_path)


def filled(store: LocalState, count: int) -> tuple[Ledger, Place]:
    ledger, place = Ledger(store), START
    for number in range(1, count + 1):
        place = ledger.add(place, [file(number)])
    return ledger, place


def test_a_place_survives_its_offsets() -> None:
    assert Place.of(Place(3, "abc").to_offsets()) == Place(3, "abc")
    assert Place.of(None) == START
    assert START.to_offsets() is None


def test_another_process_finds_the_chain_by_its_offsets(store: LocalState) -> None:
    _, place = filled(store, 3)
    again = Ledger(store)
    assert again.seen(place) == {f.path: f for f in (file(1), file(2), file(3))}
    assert again.files(place) == [file(3)]


def test_files_are_in_the_order_of_time_and_name(store: LocalState) -> None:
    ledger = Ledger(store)
    late, early, same = KnownFile(9, "/in/a", 1), KnownFile(1, "/in/z", 1), KnownFile(1, "/in/b", 1)
    assert ledger.files(ledger.add(START, [late, early, same])) == [same, early, late]


def test_two_runs_that_race_do_not_disturb_each_other(store: LocalState) -> None:
    one, place = filled(store, 1)
    other = Ledger(store)
    mine, theirs = one.add(place, [file(2)]), other.add(place, [file(2), file(3)])
    assert mine.number == theirs.number
    assert set(Ledger(store).seen(mine)) == {"/in/1.json", "/in/2.json"}
    assert set(Ledger(store).seen(theirs)) == {"/in/1.json", "/in/2.json", "/in/3.json"}


def test_a_lost_entry_is_an_error_and_never_a_second_look_at_the_folder(store: LocalState, tmp_path: Path) -> None:
    _, place = filled(store, 3)
    next(tmp_path.glob("ledger/00000002-*")).unlink()
    with pytest.raises(SourceLost, match="Entry 00000002-"):
        Ledger(store).seen(place)


def test_committed_entries_are_folded_and_nothing_is_forgotten(
    store: LocalState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_EVERY", 5)
    ledger, place = Ledger(store), START
    for number in range(1, 24):
        place = ledger.add(place, [file(number)])
        if number != 23:
            ledger.fold(place)
    assert len(list(tmp_path.glob("ledger/*"))) < 6
    assert len(list(tmp_path.glob("seen/*"))) == 1
    assert len(Ledger(store).seen(place)) == 23
    following = Ledger(store).add(place, [file(24)])
    assert len(Ledger(store).seen(following)) == 24
