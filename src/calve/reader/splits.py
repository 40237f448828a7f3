"""Divides the files of a scan into tasks of about equal cost.

A task reads splits whose files are adjacent by sequence number, because they share most deletes.
"""

from collections.abc import Iterable, Iterator, Sequence

from calve.model.scan import FileSplit, ReadTask, ScanFile

TASK_BYTES = 128 << 20
"""The most bytes that a task reads, unless one row group is larger."""
OPEN_COST = 4 << 20
"""Opening a file takes about as long as reading this many bytes."""


def read_tasks(files: Sequence[ScanFile], parallelism: int) -> tuple[ReadTask, ...]:
    """Tasks that read each file once: `parallelism` or a multiple of it, of about equal cost."""
    total = sum(file.size + OPEN_COST for file in files)
    size = min(TASK_BYTES, max(OPEN_COST, total // max(1, parallelism)))
    ordered = sorted(files, key=lambda file: (file.sequence_number, file.path))
    splits = [split for file in ordered for split in _splits(file, size)]
    rounds = -(-total // (TASK_BYTES * max(1, parallelism)))
    return tuple(ReadTask(tuple(members)) for members in _shared(splits, rounds * max(1, parallelism)))


def whole(file: ScanFile) -> ReadTask:
    """A task that reads one file."""
    return ReadTask((FileSplit(file, 0, file.size),))


def _splits(file: ScanFile, size: int) -> Iterator[FileSplit]:
    """Parts of a file of about `size` bytes, cut at row groups if their offsets are known."""
    if file.size <= size:
        yield FileSplit(file, 0, file.size)
        return
    cuts: Iterable[int] = file.split_offsets or range(0, file.size, size)
    start = 0
    for cut in cuts:
        if cut - start >= size and cut < file.size:
            yield FileSplit(file, start, cut)
            start = cut
    yield FileSplit(file, start, file.size)


def _shared(splits: Sequence[FileSplit], tasks: int) -> Iterator[list[FileSplit]]:
    """Distribute splits, in order, to at most `tasks` lists of about equal cost."""
    costs = [split.end - split.start + OPEN_COST for split in splits]
    total, before = sum(costs), 0
    lists: dict[int, list[FileSplit]] = {}
    for split, cost in zip(splits, costs, strict=True):
        lists.setdefault((2 * before + cost) * tasks // (2 * total), []).append(split)
        before += cost
    yield from lists.values()
