"""Files -> splits of about equal size -> tasks (pure).

A task reads splits whose files are neighbours by sequence number, for they have most deletes in common.
"""

from collections.abc import Iterable, Iterator, Sequence

from calve.model.scan import ReadTask, ScanFile, Split

TASK_BYTES = 128 << 20
"""What a task reads at most, unless one row group is larger."""
OPEN_COST = 4 << 20
"""Opening a file takes as long as reading so many bytes, about."""


def read_tasks(files: Sequence[ScanFile], parallelism: int) -> tuple[ReadTask, ...]:
    """Tasks that read all files once: as many as run at a time or a multiple of that, of about equal length."""
    total = sum(file.size + OPEN_COST for file in files)
    size = min(TASK_BYTES, max(OPEN_COST, total // max(1, parallelism)))
    ordered = sorted(files, key=lambda file: (file.sequence_number, file.path))
    splits = [split for file in ordered for split in _splits(file, size)]
    rounds = -(-total // (TASK_BYTES * max(1, parallelism)))
    return tuple(ReadTask(tuple(members)) for members in _shared(splits, rounds * max(1, parallelism)))


def whole(file: ScanFile) -> ReadTask:
    """A task that reads one file."""
    return ReadTask((Split(file, 0, file.size),))


def _splits(file: ScanFile, size: int) -> Iterator[Split]:
    """Parts of a file of about `size` bytes, cut where row groups begin as far as that is known."""
    if file.size <= size:
        yield Split(file, 0, file.size)
        return
    cuts: Iterable[int] = file.split_offsets or range(0, file.size, size)
    start = 0
    for cut in cuts:
        if cut - start >= size and cut < file.size:
            yield Split(file, start, cut)
            start = cut
    yield Split(file, start, file.size)


def _shared(splits: Sequence[Split], tasks: int) -> Iterator[list[Split]]:
    """Neighbours together, in at most so many lists of about equal cost."""
    costs = [split.end - split.start + OPEN_COST for split in splits]
    total, before = sum(costs), 0
    lists: dict[int, list[Split]] = {}
    for split, cost in zip(splits, costs, strict=True):
        lists.setdefault((2 * before + cost) * tasks // (2 * total), []).append(split)
        before += cost
    yield from lists.values()
