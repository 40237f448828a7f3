import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import calve.keylookup.index.parts
from calve.keylookup.index.parts import PAGE, DamagedIndex, Entries, Part, Parts
from calve.keylookup.index.words import Keys, sorted_keys
from calve.reader.resources import MemoryBudget
from calve.storage.state import LocalState

LONG = 30.0


def column(values: list[int] | list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values)])


def entries_of(values: list[int] | list[str]) -> tuple[Entries, tuple[int, ...]]:
    """The place of each value is its number."""
    keys = sorted_keys([column(values)])
    words = np.empty((len(keys.hashes), 0), np.uint64) if keys.exact else keys.words
    return Entries(keys.hashes, keys.rows.astype(np.uint64), words), keys.widths


def wanted(values: list[int] | list[str]) -> Keys:
    return sorted_keys([column(values)])


class Stored:
    """A part in a folder, read with so much memory."""

    def __init__(self, folder: Path, values: list[int] | list[str], memory: int = 0) -> None:
        self.folder = folder
        entries, self.widths = entries_of(values)
        self.part: Part = Parts(LocalState(folder)).put("part", entries)
        self.parts = Parts(LocalState(folder), MemoryBudget(memory))

    def places(self, values: list[int] | list[str]) -> list[int]:
        return sorted(self.parts.lookup(self.part, wanted(values), self.widths).places.tolist())


@pytest.mark.parametrize("rows", [1, PAGE - 1, PAGE, PAGE + 1, 20 * PAGE + 7])
@pytest.mark.parametrize("different", [3, 1 << 62], ids=["few hashes", "many hashes"])
def test_all_hashes_are_searched_together_with_the_same_result_as_one_by_one(
    rows: int, different: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calve.keylookup.index.parts, "_CACHED", 0)
    rng = np.random.default_rng([rows, different % 7])
    hashes = np.sort(rng.integers(0, different, rows, np.uint64))
    near = np.concatenate([hashes, hashes + np.uint64(1), hashes - np.uint64(1)])  # below 0 is the highest hash
    asked = np.unique(np.concatenate([near, rng.integers(0, different, 1000, np.uint64)]))
    entries = Entries(hashes, np.arange(rows, dtype=np.uint64), np.empty((rows, 0), np.uint64))
    keys = Keys(asked, np.empty((len(asked), 0), np.uint64), (), np.arange(len(asked)), exact=True)
    found = entries.with_keys(keys, ())
    expected = sorted(
        (place, row)
        for row, (low, high) in enumerate(
            zip(np.searchsorted(hashes, asked), np.searchsorted(hashes, asked, "right"), strict=True)
        )
        for place in range(low, high)
    )
    assert sorted(zip(found.places.tolist(), found.rows.tolist(), strict=True)) == expected


@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["read every time", "kept"])
@pytest.mark.parametrize("few", [3, 3000])
def test_every_entry_of_a_key_is_found_and_no_other(few: int, memory: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(few)
    numbers = rng.integers(0, 4 * PAGE, 20 * PAGE + 7).tolist()
    for values in (numbers, [f"key {number}" for number in numbers]):
        stored = Stored(tmp_path / type(values[0]).__name__, values, memory)
        for _ in range(2):
            asked = rng.choice(8 * PAGE, few, replace=False).tolist()
            known = frozenset(asked)
            keys = asked if values is numbers else [f"key {number}" for number in asked]
            places = [at for at, number in enumerate(numbers) if number in known]
            assert stored.places(keys) == places


def test_entries_of_one_key_may_fill_many_pages(tmp_path: Path) -> None:
    values = [1] * (3 * PAGE) + [2] * 5 + [3] * (2 * PAGE)
    stored = Stored(tmp_path, values)
    for key in (1, 2, 3, 4):
        assert stored.places([key]) == [at for at, value in enumerate(values) if value == key]


def read_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Grows with every range that is read from now on: of which object, how many bytes."""
    really = LocalState.read_ranges
    read: list[tuple[str, int]] = []

    def watched(store: LocalState, name: str, ranges: list[tuple[int, int]]) -> list[bytes] | None:
        read.extend((name, length) for _, length in ranges)
        return really(store, name, ranges)

    monkeypatch.setattr(LocalState, "read_ranges", watched)
    return read


def test_of_parts_that_do_not_fit_together_the_same_ones_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, widths = entries_of(list(range(20 * PAGE)))
    writer = Parts(LocalState(tmp_path))
    parts = [writer.put(name, entries) for name in ("one", "two", "three")]
    reader = Parts(LocalState(tmp_path), MemoryBudget(2 * entries.size))
    keys, read = wanted(list(range(0, 20 * PAGE, 7))), read_by(monkeypatch)
    for _ in range(3):
        read.clear()
        for part in parts:
            assert len(reader.lookup(part, keys, widths)) == len(keys.hashes)
    assert {name for name, _ in read} == {"three"}


class Pairs(LocalState):
    """A folder whose large reads wait for each other, two by two; `most` is how many there were at once."""

    def __init__(self, root: Path, large: int) -> None:
        super().__init__(root)
        self.most = self._now = 0
        self._large, self._lock, self._two = large, threading.Lock(), threading.Barrier(2)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        if sum(length for _, length in ranges) < self._large:
            return super().read_ranges(name, ranges)
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            self._two.wait(LONG)
            return super().read_ranges(name, ranges)
        finally:
            with self._lock:
                self._now -= 1


def test_whole_parts_are_read_at_once_as_far_as_they_fit_the_budget_of_all_sinks(tmp_path: Path) -> None:
    entries, widths = entries_of(list(range(20 * PAGE)))
    parts = [Parts(LocalState(tmp_path)).put(f"{number}", entries) for number in range(12)]
    store, budget = Pairs(tmp_path, entries.size), MemoryBudget(2 * 2 * entries.size)
    sinks, keys = [Parts(store, budget) for _ in range(3)], wanted(list(range(0, 20 * PAGE, 7)))

    def found(number: int) -> int:
        return len(sinks[number % len(sinks)].lookup(parts[number], keys, widths))

    with ThreadPoolExecutor(len(parts)) as pool:
        assert list(pool.map(found, range(len(parts)))) == [len(keys.hashes)] * len(parts)
    assert store.most == 2


def test_few_keys_read_few_bytes_of_a_large_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(tmp_path, list(range(200 * PAGE)))
    read = read_by(monkeypatch)
    assert stored.places([7, 70_000]) == [7, 70_000]
    assert sum(length for _, length in read) <= stored.part.pages * 16 + 4 * stored.part.page_bytes


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5 * PAGE] ^= 4
    path.write_bytes(data)


def flip_fence(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def swap(path: Path) -> None:
    Parts(LocalState(path.parent)).put("other", entries_of(list(range(1, 20 * PAGE + 1)))[0])
    path.with_name("other").replace(path)


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip, flip_fence, swap])
def test_a_part_that_is_not_whole_is_noticed(damage: Callable[[Path], object], tmp_path: Path) -> None:
    values = list(range(20 * PAGE))
    stored = Stored(tmp_path, values)
    damage(tmp_path / "part")
    with pytest.raises(DamagedIndex):
        stored.places(values)
