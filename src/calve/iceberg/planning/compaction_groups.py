"""Decides which data files are rewritten together (pure).

Readers pay for every file that they open and for every deleted row that they read (`compaction_cost.py`). A file whose
deletes have cost readers as much as a rewrite is rewritten, and so are small files of one partition and of about the
same size (a tier). Two bounds on either side keep that sensible for any number of reads: nothing is rewritten for a few
deletes or a few files, and everything once there are many. Merging in tiers rewrites each row only a few times,
however many batches there are.

In tables with many files, new files have the target size. A smaller table gets several smaller files instead of one:
most readers read a file with one core, and some need time quadratic in its rows to apply its deletes.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from calve.iceberg.planning.compaction_cost import FileCosts
from calve.model.files import tier_of
from calve.model.scan import ScanFile
from calve.model.spec import CompactionOptions

_SMALL = 0.75
"""A file smaller than this share of the desired size is small."""
_FILES = 8
"""A table has at least this many files, unless they would be smaller than `_LEAST` bytes."""
_LEAST = 16 << 20
_SORTED_FILES = 16
"""Files of the target size whose rows are sorted together, if that is what a rewrite is for."""
SORTED_ROWS = 40_000_000
"""Rows of a group up to which their keys are sorted in memory."""
_SMALLEST = 1 << 20
"""Files of at most this many bytes are all in the lowest tier."""


@dataclass(frozen=True)
class CompactionPolicy:
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
    reads_per_hour: float = 0.0
    """Expected full reads of the table: with more of them, rewrites pay earlier than the two bounds above."""
    paying_share: float = 1.0
    """The least share of deleted rows for which a rewrite may pay."""
    paying_fan: int = 2
    """The least number of small files in one tier whose merge may pay."""
    everything: bool = False
    """Whether all files are rewritten, whatever they are like, and rows of larger groups are sorted together."""

    @property
    def put_off(self) -> "CompactionPolicy":
        """The policy of a sink that is behind: twice as many changes, or files, before anything is rewritten."""
        share = 1 - (1 - self.deleted_share) ** 2  # what is left after as many changes again
        return replace(self, deleted_share=share, fan=2 * self.fan, reads_per_hour=0.0)


TIER_FACTOR = 8
"""Sizes of files in one tier differ by less than this factor."""

AUTOMATIC = CompactionPolicy(
    deleted_share=0.3, fan=24, rows=10_000_000, deleted_least=10_000, reads_per_hour=60, paying_share=0.1, paying_fan=8
)
"""However fast the table changes, at most about two rows are rewritten per uniformly changed one: the upper bounds see
to it (`benchmarks/compaction_costs.py`). If it changes slowly, reads are what counts, and rewrites pay earlier."""


def policy_of(options: CompactionOptions) -> CompactionPolicy:
    """The policy of a sink: what it states takes the place of the default, and of its bounds."""
    policy = AUTOMATIC
    if options.reads_per_hour is not None:
        policy = replace(policy, reads_per_hour=options.reads_per_hour)
    if options.deleted_share is not None:
        policy = replace(policy, deleted_share=options.deleted_share, paying_share=1.0)
    if options.small_files is not None:
        policy = replace(policy, fan=options.small_files, paying_fan=options.small_files)
    return policy


BY_HAND = CompactionPolicy(deleted_share=0.0, fan=2, rows=50_000_000, tiers=False)
"""Rewrites everything that improves the table."""

SORTING = replace(BY_HAND, everything=True)
"""Rewrites every file: its rows are to be in another order."""

AgeOf = Callable[[ScanFile], float]
"""The seconds since a file was written."""


def ages_by(snapshots: Iterable[tuple[int, int]], now_ms: int) -> AgeOf:
    """The ages of files by their sequence numbers, from sequence numbers and times of snapshots in any order.

    History that has expired makes old files look younger, at least as old as the oldest snapshot.
    """
    known = sorted(snapshots)
    sequences = [sequence for sequence, _ in known]

    def age_of(file: ScanFile) -> float:
        at = bisect_left(sequences, file.sequence_number)
        return max(0, now_ms - known[at][1]) / 1000 if at < len(known) else 0.0

    return age_of


@dataclass(frozen=True)
class Groups:
    """Groups of files that are rewritten together."""

    groups: tuple[tuple[ScanFile, ...], ...]
    more: bool
    """Whether groups are left for the next round."""
    file_size: int
    """The target size of new files, in bytes."""
    worn: int = 0
    """Files that are rewritten because of their deleted rows."""
    overdue: bool = False
    """Whether some would be rewritten even if that were put off."""

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


def due_groups(
    files: Sequence[ScanFile], target_size: int, policy: CompactionPolicy, age_of: AgeOf = lambda _: 0.0
) -> Groups:
    """The files of a snapshot that should be rewritten; usually none."""
    group_size = _SORTED_FILES * target_size if policy.everything else target_size
    sizes = _Sizes(_file_size(sum(file.size for file in files), target_size), group_size)
    choice = _Choice(FileCosts(files), sizes, policy, age_of)
    late = replace(choice, policy=policy.put_off)
    partitions: dict[tuple[object, ...], list[ScanFile]] = defaultdict(list)
    for file in files:
        partitions[file.spec_id, *map(repr, file.partition)].append(file)
    chosen: list[tuple[ScanFile, ...]] = []
    rows, more = 0, False
    for members in partitions.values():
        for group in choice.groups(members):
            size = sum(file.rows for file in group)
            if chosen and rows + size > policy.rows:
                more = True
                continue
            chosen.append(group)
            rows += size
    worn = sum(choice.is_worn(file) for group in chosen for file in group)
    overdue = bool(chosen) and any(any(late.groups(members)) for members in partitions.values())
    return Groups(tuple(chosen), more, sizes.file, worn, overdue)


@dataclass(frozen=True)
class _Choice:
    """Chooses among the files of a partition."""

    costs: FileCosts
    sizes: _Sizes
    policy: CompactionPolicy
    age_of: AgeOf

    def groups(self, members: Sequence[ScanFile]) -> Iterator[tuple[ScanFile, ...]]:
        """Groups of one partition."""
        worn = {f.path for f in members if self.is_worn(f)}
        tiers: dict[int, list[ScanFile]] = defaultdict(list)
        for file in members:
            if file.size < _SMALL * self.sizes.file:
                tiers[tier_of(file.size, _SMALLEST, TIER_FACTOR) if self.policy.tiers else 0].append(file)
        # smaller files join a rewrite that happens anyway
        carried = max((f.size for f in members if f.path in worn and f.size < _SMALL * self.sizes.group), default=-1)
        merged = {tier for tier, small in tiers.items() if self._is_full(small)}
        joined = [f for tier, small in tiers.items() for f in small if tier in merged or f.size <= carried]
        candidates = {file.path: file for file in (*joined, *(f for f in members if f.path in worn))}
        for group in self._bins(sorted(candidates.values(), key=lambda f: (f.sequence_number, f.path))):
            if len(group) > 1 or group[0].path in worn:
                yield group

    def is_worn(self, file: ScanFile) -> bool:
        """Whether a file is rewritten because of its deleted rows, or in any case."""
        if self.policy.everything:
            return True
        if not file.deletes:
            return False
        dead, policy = self.costs.dead_rows(file), self.policy
        if dead < policy.deleted_least or dead < min(policy.deleted_share, policy.paying_share) * file.rows:
            return False
        return dead >= policy.deleted_share * file.rows or self._pays([file], small=False)

    def _is_full(self, tier: Sequence[ScanFile]) -> bool:
        enough = len(tier) >= self.policy.paying_fan and self._pays(tier, small=True)
        return enough or len(tier) >= self.policy.fan

    def _pays(self, files: Sequence[ScanFile], *, small: bool) -> bool:
        """Whether reads have lost as much to these files as rewriting them costs."""
        if not self.policy.reads_per_hour:
            return False
        costs = [(self.costs.of(file), self.age_of(file)) for file in files]
        lost = sum(cost.lost(self.policy.reads_per_hour, age, small=small) for cost, age in costs)
        return lost >= sum(cost.rewrite for cost, _ in costs)

    def _bins(self, files: Iterable[ScanFile]) -> Iterator[tuple[ScanFile, ...]]:
        """Groups of files adjacent in age, of at most the target size in total; large files stay alone."""
        most = self.sizes.group
        group: list[ScanFile] = []
        filled, rows = 0.0, 0
        for file in files:
            left = file.size * (1 - self.costs.dead_rows(file) / max(1, file.rows))
            if left >= _SMALL * most:
                yield (file,)
                continue
            if group and (filled + left > most or rows + file.rows > SORTED_ROWS):
                yield tuple(group)
                group, filled, rows = [], 0.0, 0
            group.append(file)
            filled += left
            rows += file.rows
        if group:
            yield tuple(group)
