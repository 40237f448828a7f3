"""Which data files are written anew together (pure).

Readers pay for every file that they open and for every row that they read and leave out. So files of one partition are
joined into larger ones, in tiers: as soon as there are several of about one size, and each row is written again a few
times at most, however many batches there were. A file with many deleted rows is written again as well.

Files are as large as the target size says in tables that have many of them. A smaller table has some smaller files
instead of one: most readers read a file with one core, and some take the square of its rows to apply its deletes.

How many rows of a file are deleted is estimated where a file of deletes is about several: in proportion to their rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from calve.model.scan import ScanFile

_SMALL = 0.75
"""A file below this part of the size that it should have is small."""
_FILES = 8
"""Files that a table has at least, unless they would be smaller than this:"""
_LEAST = 16 << 20
_SMALLEST = 1 << 20
"""Bytes below which sizes do not matter."""


@dataclass(frozen=True)
class Policy:
    """When work is worth its while."""

    deleted_share: float
    """A file with more deleted rows than this part of all is written again."""
    fan: int
    """Small files of one tier that are joined."""
    rows: int
    """Rows that are written again in one round; at least one group is."""
    deleted_least: int = 0
    """Fewer deleted rows are no reason."""
    tiers: bool = True
    """Whether only small files of about one size are joined; else all of them."""


AUTOMATIC = Policy(deleted_share=0.1, fan=8, rows=10_000_000, deleted_least=10_000)
BY_HAND = Policy(deleted_share=0.0, fan=2, rows=50_000_000, tiers=False)
"""Whatever makes the table better."""


@dataclass(frozen=True)
class Groups:
    """Files that are written again together, group by group."""

    groups: tuple[tuple[ScanFile, ...], ...]
    more: bool
    """Whether the round left groups for the next one."""
    file_size: int
    """Of new files, in bytes."""

    @property
    def files(self) -> int:
        """Files in all groups."""
        return sum(map(len, self.groups))

    @property
    def rows(self) -> int:
        """Rows in all groups, deleted ones included."""
        return sum(file.rows for group in self.groups for file in group)


@dataclass(frozen=True)
class _Sizes:
    """In bytes."""

    file: int
    """Of a file as it should be."""
    group: int
    """Of files that are sorted together; it may give several."""


def due_groups(files: Sequence[ScanFile], target_size: int, policy: Policy) -> Groups:
    """What to do about the files of a snapshot; nothing most of the time."""
    deleted = deleted_rows(files)
    sizes = _Sizes(min(target_size, max(_LEAST, sum(file.size for file in files) // _FILES)), target_size)
    partitions: dict[tuple[object, ...], list[ScanFile]] = defaultdict(list)
    for file in files:
        partitions[file.spec_id, *map(repr, file.partition)].append(file)
    chosen: list[tuple[ScanFile, ...]] = []
    rows, more = 0, False
    for members in partitions.values():
        for group in _groups(members, deleted, sizes, policy):
            size = sum(file.rows for file in group)
            if chosen and rows + size > policy.rows:
                more = True
                continue
            chosen.append(group)
            rows += size
    return Groups(tuple(chosen), more, sizes.file)


def deleted_rows(files: Iterable[ScanFile]) -> Mapping[str, float]:
    """Deleted rows of each file by its path, about; files without deletes are left out."""
    reached: dict[tuple[str, int], int] = defaultdict(int)
    listed = [file for file in files if file.deletes]
    for file in listed:
        for delete in file.deletes:
            reached[delete.path, delete.offset] += file.rows
    return {
        file.path: min(
            float(file.rows),
            sum(delete.rows * file.rows / max(1, reached[delete.path, delete.offset]) for delete in file.deletes),
        )
        for file in listed
    }


def _groups(
    members: Sequence[ScanFile], deleted: Mapping[str, float], sizes: _Sizes, policy: Policy
) -> Iterator[tuple[ScanFile, ...]]:
    """Groups of one partition."""
    worn = {f.path for f in members if f.path in deleted and deleted[f.path] >= _many(f, policy)}
    tiers: dict[int, list[ScanFile]] = defaultdict(list)
    for file in members:
        if file.size < _SMALL * sizes.file:
            tiers[_tier(file) if policy.tiers else 0].append(file)
    # what is written again anyway takes with it what is smaller
    carried = max((f.size for f in members if f.path in worn and f.size < _SMALL * sizes.group), default=-1)
    joined = [f for small in tiers.values() for f in small if len(small) >= policy.fan or f.size <= carried]
    candidates = {file.path: file for file in (*joined, *(f for f in members if f.path in worn))}
    for group in _bins(sorted(candidates.values(), key=lambda f: (f.sequence_number, f.path)), deleted, sizes.group):
        if len(group) > 1 or group[0].path in worn:
            yield group


def _many(file: ScanFile, policy: Policy) -> float:
    return max(policy.deleted_share * file.rows, policy.deleted_least)


def _tier(file: ScanFile) -> int:
    tier, size = 0, file.size
    while size > _SMALLEST:
        size //= AUTOMATIC.fan
        tier += 1
    return tier


def _bins(files: Iterable[ScanFile], deleted: Mapping[str, float], most: int) -> Iterator[tuple[ScanFile, ...]]:
    """Neighbours by age with so many bytes together; large ones stay alone."""
    group: list[ScanFile] = []
    filled = 0.0
    for file in files:
        left = file.size * (1 - deleted.get(file.path, 0.0) / max(1, file.rows))
        if left >= _SMALL * most:
            yield (file,)
            continue
        if group and filled + left > most:
            yield tuple(group)
            group, filled = [], 0.0
        group.append(file)
        filled += left
    if group:
        yield tuple(group)
