"""Decides which data files are rewritten together (pure).

Readers pay for every file that they open and for every deleted row that they read. So files of one partition are merged
in tiers: as soon as there are several of about the same size. Each row is rewritten only a few times, however many
batches there are. A file with many deleted rows is rewritten as well.

In tables with many files, new files have the target size. A smaller table gets several smaller files instead of one:
most readers read a file with one core, and some need time quadratic in its rows to apply its deletes.

If a delete file applies to several data files, the deleted rows of each are estimated in proportion to its rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from calve.model.files import tier_of
from calve.model.scan import ContentId, ScanFile

_SMALL = 0.75
"""A file smaller than this share of the desired size is small."""
_FILES = 8
"""A table has at least this many files, unless they would be smaller than `_LEAST` bytes."""
_LEAST = 16 << 20
_SMALLEST = 1 << 20
"""Files of at most this many bytes are all in the lowest tier."""


@dataclass(frozen=True)
class Policy:
    """When a rewrite is worth its cost."""

    deleted_share: float
    """A file is rewritten if at least this share of its rows is deleted."""
    fan: int
    """The number of small files in one tier that are merged."""
    rows: int
    """The most rows rewritten in one round; at least one group is rewritten."""
    deleted_least: int = 0
    """A file with fewer deleted rows is not rewritten because of them."""
    tiers: bool = True
    """Whether only small files of about the same size are merged; otherwise all small files."""


AUTOMATIC = Policy(deleted_share=0.1, fan=8, rows=10_000_000, deleted_least=10_000)
BY_HAND = Policy(deleted_share=0.0, fan=2, rows=50_000_000, tiers=False)
"""Rewrites everything that improves the table."""


@dataclass(frozen=True)
class Groups:
    """Groups of files that are rewritten together."""

    groups: tuple[tuple[ScanFile, ...], ...]
    more: bool
    """Whether groups are left for the next round."""
    file_size: int
    """The target size of new files, in bytes."""

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
    """Desired sizes in bytes."""

    file: int
    """Of one file."""
    group: int
    """Of a group, whose rows are sorted together and may be written to several files."""


def small_below(total: int, target_size: int) -> float:
    """The size below which a file of a table with this many bytes is small."""
    return _SMALL * _file_size(total, target_size)


def _file_size(total: int, target_size: int) -> int:
    return min(target_size, max(_LEAST, total // _FILES))


def due_groups(files: Sequence[ScanFile], target_size: int, policy: Policy) -> Groups:
    """The files of a snapshot that should be rewritten; usually none."""
    deleted = deleted_rows(files)
    sizes = _Sizes(_file_size(sum(file.size for file in files), target_size), target_size)
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
    """The estimated number of deleted rows by file path; files without deletes are omitted."""
    reached: dict[ContentId, int] = defaultdict(int)
    listed = [file for file in files if file.deletes]
    for file in listed:
        for delete in file.deletes:
            reached[delete.id] += file.rows
    return {
        file.path: min(
            float(file.rows),
            sum(delete.rows * file.rows / max(1, reached[delete.id]) for delete in file.deletes),
        )
        for file in listed
    }


def _groups(
    members: Sequence[ScanFile], deleted: Mapping[str, float], sizes: _Sizes, policy: Policy
) -> Iterator[tuple[ScanFile, ...]]:
    """Groups of one partition."""
    worn = {f.path for f in members if f.path in deleted and deleted[f.path] >= many_deleted(f, policy)}
    tiers: dict[int, list[ScanFile]] = defaultdict(list)
    for file in members:
        if file.size < _SMALL * sizes.file:
            tiers[tier_of(file.size, _SMALLEST, AUTOMATIC.fan) if policy.tiers else 0].append(file)
    # smaller files join a rewrite that happens anyway
    carried = max((f.size for f in members if f.path in worn and f.size < _SMALL * sizes.group), default=-1)
    joined = [f for small in tiers.values() for f in small if len(small) >= policy.fan or f.size <= carried]
    candidates = {file.path: file for file in (*joined, *(f for f in members if f.path in worn))}
    for group in _bins(sorted(candidates.values(), key=lambda f: (f.sequence_number, f.path)), deleted, sizes.group):
        if len(group) > 1 or group[0].path in worn:
            yield group


def many_deleted(file: ScanFile, policy: Policy) -> float:
    """The number of deleted rows from which on a file is rewritten because of them."""
    return max(policy.deleted_share * file.rows, policy.deleted_least)


def _bins(files: Iterable[ScanFile], deleted: Mapping[str, float], most: int) -> Iterator[tuple[ScanFile, ...]]:
    """Groups of files adjacent in age, of at most `most` bytes in total; large files stay alone."""
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
