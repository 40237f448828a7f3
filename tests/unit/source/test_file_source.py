"""A file source under races: files that come at any time, runs that die, runs that do not know they were replaced."""

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calve import faults
from calve.clock import SystemClock
from calve.errors import SourceLost, TransientError
from calve.model.checkpoint import Offsets
from calve.source.files import ledger as ledger_module
from calve.source.files.definition import FileSource, files
from calve.source.files.ledger import Ledger, Place
from calve.storage.state import LocalState


def opened(root: Path, per_checkpoint: int = 2) -> FileSource:
    source = files(root / "in", format="json", schema="id INT", max_files_per_checkpoint=per_checkpoint)
    return source.open(LocalState(root / "state"), SystemClock())


def put(root: Path, name: str, mtime: int) -> None:
    part = root / f".{name}"
    part.write_text("{}")
    os.utime(part, (mtime, mtime))
    part.rename(root / "in" / name)


def names_between(root: Path, start: Offsets, end: Offsets) -> list[str]:
    ledger = Ledger(LocalState(root / "state"), str(root / "in"))
    return [Path(f.path).name for f in ledger.files(Place.of(start), Place.of(end))]


def drained(root: Path, source: FileSource, start: Offsets) -> tuple[list[str], Offsets]:
    found: list[str] = []
    while (end := source.next_end(start)) is not None:
        found += names_between(root, start, end)
        start = end
    return found, start


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def test_a_file_that_comes_while_the_folder_is_listed_is_taken_next(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a", 1000)
    source = opened(root)
    listed = source._listing.__class__.files

    def interrupted(listing: Any) -> Any:
        found = listed(listing)
        put(root, "b", 500)
        monkeypatch.undo()
        return found

    monkeypatch.setattr(source._listing.__class__, "files", interrupted)
    assert drained(root, source, None)[0] == ["a", "b"]


@pytest.mark.parametrize("point", ["ledger.before", "ledger.after"])
def test_a_death_around_the_ledger_neither_skips_nor_repeats_a_file(root: Path, point: str) -> None:
    put(root, "a", 1000)
    put(root, "b", 1000)
    first = opened(root, 1).next_end(None)
    faults.install(faults.parse(f"{point}=error"))
    try:
        with pytest.raises(TransientError):
            opened(root, 1).next_end(first)
    finally:
        faults.install(None)
    put(root, "late", 1)
    assert drained(root, opened(root, 1), first)[0] == ["late", "b"]


def test_a_replaced_run_that_goes_on_does_not_disturb_its_successor(root: Path) -> None:
    put(root, "a", 1000)
    zombie, successor = opened(root), opened(root)
    first = zombie.next_end(None)
    put(root, "b", 1001)
    theirs = zombie.next_end(first)
    put(root, "c", 1002)
    mine = successor.next_end(first)
    assert names_between(root, first, theirs) == ["b"]
    assert names_between(root, first, mine) == ["b", "c"]
    assert zombie.next_end(theirs) is not None
    assert successor.next_end(mine) is None
    assert opened(root).next_end(mine) is None


def test_a_lost_state_is_an_error_and_not_an_empty_beginning(root: Path) -> None:
    put(root, "a", 1000)
    end = opened(root).next_end(None)
    shutil.rmtree(root / "state")
    with pytest.raises(SourceLost, match="ledger of a file source is incomplete"):
        opened(root).next_end(end)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("file"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.integers(0, 1)),
        st.tuples(st.just("committed"), st.integers(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_along_the_recorded_offsets_every_file_comes_once(steps: list[tuple[str, int]], per_checkpoint: int) -> None:
    """Two runs share folder and state; whichever takes next builds on the offsets that were recorded last."""
    root = Path(mkdtemp())
    before = ledger_module.FOLD_EVERY
    ledger_module.FOLD_EVERY = 3
    try:
        (root / "in").mkdir()
        runs = [opened(root, per_checkpoint), opened(root, per_checkpoint)]
        recorded: Offsets = None
        found: list[str] = []
        for number, (kind, argument) in enumerate(steps):
            if kind == "file":
                put(root, f"f{number}", 1000 + argument)
            elif kind == "restart":
                runs[argument] = opened(root, per_checkpoint)
            elif kind == "committed":
                runs[argument].committed(recorded)
            elif (end := runs[argument].next_end(recorded)) is not None:
                found += names_between(root, recorded, end)
                recorded = end
        rest, _ = drained(root, runs[0], recorded)
        expected = [f"f{n}" for n, (kind, _) in enumerate(steps) if kind == "file"]
        assert sorted(found + rest) == sorted(expected)
    finally:
        ledger_module.FOLD_EVERY = before
        shutil.rmtree(root)
