import itertools

from hypothesis import given
from hypothesis import strategies as st

from calve.model.scan import ScanFile
from calve.reader.splits import OPEN_COST, TASK_BYTES, read_tasks

MB = 1 << 20


def file_of(number: int, size: int, offsets: tuple[int, ...] = ()) -> ScanFile:
    return ScanFile(f"file-{number}", size, 1, number, offsets)


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.lists(st.integers(1, 1999), unique=True, max_size=9)), max_size=8),
    st.integers(1, 64),
)
def test_every_byte_of_every_file_is_in_one_split(sizes: list[tuple[int, list[int]]], parallelism: int) -> None:
    files = [
        file_of(n, size * MB, tuple(sorted(at * MB for at in offsets if at < size)))
        for n, (size, offsets) in enumerate(sizes)
    ]
    splits = [split for task in read_tasks(files, parallelism) for split in task.splits]
    for file in files:
        ranges = sorted((s.start, s.end) for s in splits if s.file == file)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == file.size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


def test_a_large_file_is_cut_where_row_groups_begin() -> None:
    offsets = tuple(range(4, 1000 * MB, 100 * MB))
    splits = [s for task in read_tasks([file_of(1, 1000 * MB, offsets)], 4) for s in task.splits]
    assert len(splits) == 5
    assert all(s.start == 0 or s.start in offsets for s in splits)


def test_small_files_share_a_task() -> None:
    tasks = read_tasks([file_of(n, MB) for n in range(100)], 1)
    assert 1 < len(tasks) <= 100 * (MB + OPEN_COST) // TASK_BYTES + 1


def test_tasks_fill_whole_rounds() -> None:
    tasks = read_tasks([file_of(n, 40 * MB) for n in range(13)], 2)
    assert len(tasks) == 6
    assert {len(task.splits) for task in tasks} <= {2, 3}


def test_small_tables_are_spread_over_all_cores() -> None:
    assert len(read_tasks([file_of(n, 10 * MB) for n in range(8)], 8)) == 8


def test_nothing_to_read_takes_no_task() -> None:
    assert read_tasks([], 8) == ()
