import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import InvalidInput, TerminalError, TransientError
from calve.storage.part_files import part_of
from calve.storage.state import (
    JOINED_GAP,
    LocalState,
    RemoteState,
    StateFolder,
    StateStore,
    check_apart,
    joined_ranges,
    open_state,
)


@pytest.fixture(params=["local", "remote", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    if request.param == "remote":
        return RemoteState(f"file://{tmp_path}/with space", {})
    local = LocalState(tmp_path / "with space")
    return StateFolder(local, "sink") if request.param == "folder" else local


def test_a_record_that_was_put_is_read_and_listed(store: StateStore) -> None:
    store.put("rec/a/2", b"two")
    store.put("rec/a/1", b"one")
    store.put("rec/a/1", b"one again")
    assert store.read("rec/a/1") == b"one again"
    assert store.list("rec") == ["rec/a/1", "rec/a/2"]


def test_what_is_not_there_reads_as_none_and_lists_as_nothing(store: StateStore) -> None:
    assert store.read("rec/none") is None
    assert store.list("rec") == []
    store.delete("rec/none")


def test_a_record_that_must_be_new_may_be_put_twice_and_never_over_another(store: StateStore) -> None:
    store.put_new("rec/1", b"mine")
    store.put_new("rec/1", b"mine")
    with pytest.raises(TerminalError, match="another process wrote the state record"):
        store.put_new("rec/1", b"of somebody else")
    assert store.read("rec/1") == b"mine"
    assert [name.rpartition("/")[2] for name in store.list("rec")] == ["1"]


def test_ranges_are_read_in_any_order_and_end_with_the_record(store: StateStore) -> None:
    data = random.Random(7).randbytes(5 * JOINED_GAP)
    store.put("rec/1", data)
    ranges = [(3 * JOINED_GAP, 10), (0, 7), (5, 9), (5, 0), (5 * JOINED_GAP - 3, 9), (6 * JOINED_GAP, 4)]
    assert store.read_ranges("rec/1", ranges) == [data[offset : offset + length] for offset, length in ranges]
    assert store.read_ranges("rec/1", []) == []
    assert store.read_ranges("rec/none", ranges) is None


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20))), st.integers(0, 40))
def test_joined_ranges_cover_all_and_are_farther_apart_than_the_gap(ranges: list[tuple[int, int]], gap: int) -> None:
    spans = joined_ranges(ranges, gap)
    for offset, length in ranges:
        assert any(start <= offset and offset + length <= start + size for start, size in spans)
    assert all(low + size + gap < high for (low, size), (high, _) in pairwise(spans))
    assert sum(size for _, size in spans) <= sum(length for _, length in ranges) + gap * max(0, len(ranges) - 1)


def test_a_deleted_record_is_gone(store: StateStore) -> None:
    store.put("runs/1", b"x")
    store.put("runs/2", b"y")
    store.delete("runs/1")
    assert store.list("runs") == ["runs/2"]


def test_half_written_files_are_not_records(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    store.put("rec/1", b"x")
    (tmp_path / "rec" / ".2.77.part").write_bytes(b"half")
    assert store.list("rec") == ["rec/1"]


def test_a_listing_removes_what_killed_writers_left_and_spares_writers_at_work(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    store.put("rec/1", b"x")
    abandoned, unfinished = part_of(tmp_path / "rec" / "2"), tmp_path / "rec" / ".3.1.2.part"
    for part in (abandoned, unfinished):
        part.write_bytes(b"half")
    hidden = tmp_path / "rec" / ".keep"
    hidden.touch()
    for old in (abandoned, hidden, tmp_path / "rec" / "1"):
        os.utime(old, (0, 0))
    assert store.list("") == ["rec/1"]
    assert sorted(file.name for file in (tmp_path / "rec").iterdir()) == sorted(["1", ".keep", unfinished.name])


def test_a_store_that_cannot_be_written_is_a_transient_error_that_names_the_record(tmp_path: Path) -> None:
    (tmp_path / "rec").write_text("a file where a folder has to be")
    with pytest.raises(TransientError, match="could not write the state record"):
        LocalState(tmp_path).put("rec/1", b"x")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_location_is_a_path_or_a_uri(form: str, tmp_path: Path) -> None:
    open_state(form.format(tmp_path)).put("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_state_location_inside_of_the_table_is_noticed_however_it_is_written(tmp_path: Path) -> None:
    table = f"file://{tmp_path}/a b/t"
    for start in ("file://", "file:"):
        with pytest.raises(InvalidInput, match="overlap"):
            check_apart(f"{start}{tmp_path}/a%20b/t/state", table)
        check_apart(f"{start}{tmp_path}/a%20b/state", table)


def test_threads_of_one_process_put_the_same_name_whole(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    bodies = [bytes([n]) * 200_000 * (n + 1) for n in range(4)]

    def put(body: bytes) -> None:
        for _ in range(20):
            store.put("part", body)
            assert store.read("part") in bodies

    with ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(put, bodies))
    assert store.list("") == ["part"]


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    store.put("rec/1/adopt", b"x")
    (tmp_path / "runs").symlink_to("runs")  # a circle, which not even root can follow
    with pytest.raises(TransientError, match="could not list the state record"):
        store.list("runs")
    assert store.list("rec") == ["rec/1/adopt"]
    assert store.list("rec/1/adopt") == store.list("stage") == []
