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
    """Tasks that read all files once: at least `parallelism` of them where there is enough to read."""
    total = sum(file.size + OPEN_COST for file in files)
    size = min(TASK_BYTES, max(OPEN_COST, total // max(1, parallelism)))
    ordered = sorted(files, key=lambda file: (file.sequence_number, file.path))
    splits = [split for file in ordered for split in _splits(file, size)]
    return tuple(ReadTask(tuple(members)) for members in _packed(splits, size))


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


def _packed(splits: Iterable[Split], size: int) -> Iterator[list[Split]]:
    members: list[Split] = []
    filled = 0
    for split in splits:
        cost = split.end - split.start + OPEN_COST
        if members and filled + cost > size:
            yield members
            members, filled = [], 0
        members.append(split)
        filled += cost
    if members:
        yield members
