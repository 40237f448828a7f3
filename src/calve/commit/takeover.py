"""What a run takes over: the part of its predecessor's records that the table does not have yet.

Pure apart from the question whether files still exist. The records form a chain: every checkpoint starts where the one
before it ended, every committable where the one before it closed, and the first follows the table's own progress. What
follows a break cannot be used; it is read again where the source can, else it is a gap.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeGuard

from calve.commit.journal import RunRecords
from calve.errors import CheckpointGap
from calve.model.checkpoint import (
    Adoption,
    CheckpointEntry,
    CheckpointIdentity,
    Entry,
    FrontierEntry,
    Offsets,
    offsets_digest,
)
from calve.model.files import Committable
from calve.model.frontier import START, Frontier
from calve.model.progress import Progress

KNOWN_KEPT = 2
"""Identities of committed checkpoints that are kept, to recognise Spark's replay of the last one."""

Missing = Callable[[Entry], tuple[str, ...]]
"""Files of an entry that no longer exist."""

CanReread = Callable[[Offsets], bool]
"""Whether the source can start at these offsets."""


def anywhere(_offsets: Offsets) -> bool:
    """A source that can start at all offsets, or a view that leaves the question open."""
    return True


class _Tally:
    """What waits of the entries of a position, counted once for each: in a long window they are tens of thousands."""

    def __init__(self, entries: list[Entry], minted: Frontier) -> None:
        self._entries, self._minted = entries, minted
        self._count = 0
        self._last: Entry | None = None
        self.ready = self.held_bytes = self.staged_bytes = 0
        self.staged: list[CheckpointEntry] = []
        self.times: list[int] = []
        self.alike: list[CheckpointEntry] = []
        """The first ones with rows, all of one kind."""
        self.rest: list[CheckpointEntry] = []
        """Those with rows from the first one of another kind on."""

    def fits(self, entries: list[Entry], minted: Frontier) -> bool:
        """Whether nothing but more entries came since."""
        if entries is not self._entries or minted != self._minted or len(entries) < self._count:
            return False
        return not self._count or entries[self._count - 1] is self._last

    def follow(self) -> None:
        """Count what was added."""
        for entry in self._entries[self._count :]:
            self._add(entry)
            self._count, self._last = self._count + 1, entry

    def _add(self, entry: Entry) -> None:
        if entry.committable:
            self.ready += 1
        if not is_staged(entry) or entry.staged is None:
            return
        self.held_bytes += entry.staged.bytes
        if Frontier(entry.time) < self._minted:
            return  # a recorded batch holds it
        self.staged.append(entry)
        self.staged_bytes += entry.staged.bytes
        for time in entry.times_from(self._minted.time or 0):
            at = bisect_left(self.times, time)
            if at == len(self.times) or self.times[at] != time:
                self.times.insert(at, time)
        if entry.staged.rows:
            same = not self.rest and (not self.alike or _alike(entry, self.alike[0]))
            (self.alike if same else self.rest).append(entry)


@dataclass
class RunPosition:
    """Where a run stands: what is in the table, what is recorded, what comes next. Only the run changes it."""

    frontier: Frontier = START
    """Committed."""
    minted: Frontier = START
    """Upper end of the last recorded batch."""
    last_time: int = -1
    """No time up to this one is given again."""
    base: Offsets = None
    """Offsets of the table when its progress was taken over."""
    end: Offsets = None
    """End offsets of the last recorded checkpoint: where reading goes on."""
    checkpoint: int = -1
    """Batch id of the last recorded checkpoint."""
    entries: list[Entry] = field(default_factory=list)
    """Recorded, not in the table."""
    known: dict[CheckpointIdentity, None] = field(default_factory=dict)
    """Recorded, in order; a replay of one is recognised."""
    committed: Progress | None = None
    generation: int = 0
    """Of the last recorded entry, else of the table."""
    spent: list[Committable] = field(default_factory=list)
    """Of the predecessor, in the table already; their keys may still be there."""
    input: int = 0
    """Where rows have times of their own: no smaller time is expected."""
    final: bool = False
    """The input said that nothing follows."""
    occupied: bool = False
    """Others may have brought rows into the table since it was empty."""
    _tally: _Tally | None = field(default=None, repr=False, compare=False)

    @property
    def _waiting(self) -> _Tally:
        if self._tally is None or not self._tally.fits(self.entries, self.minted):
            self._tally = _Tally(self.entries, self.minted)
        self._tally.follow()
        return self._tally

    @property
    def staged(self) -> Sequence[CheckpointEntry]:
        """Checkpoints that no recorded batch holds yet, in order."""
        return self._waiting.staged

    @property
    def staged_bytes(self) -> int:
        """Of the checkpoints that no recorded batch holds yet."""
        return self._waiting.staged_bytes

    @property
    def held_bytes(self) -> int:
        """Of all staged checkpoints that are not in the table, whether a batch holds them or not."""
        return self._waiting.held_bytes

    @property
    def ready(self) -> int:
        """Committables that wait to be committed."""
        return self._waiting.ready

    @property
    def waiting_times(self) -> Sequence[int]:
        """The times of staged rows that no recorded batch holds yet, in order."""
        return self._waiting.times

    def split(self, *, own_times: bool) -> int | None:
        """Where the first waiting rows must end a batch: those behind them are of another kind; None where none are.

        Rows with times of their own may share a batch whatever they are. Where the rows to come have such times, rows
        without wait for nothing more.
        """
        alike, rest = self._waiting.alike, self._waiting.rest
        if not alike or alike[0].timed:
            return None
        if rest and not rest[0].timed:
            return rest[0].time
        return alike[-1].time + 1 if rest or own_times else None

    @property
    def closed(self) -> int:
        """Rows of a smaller time are late: a batch that holds it is recorded, or about to be."""
        return max(self.minted.time or 0, self.last_time + 1)

    def whole_below(self, upper: Frontier) -> list[CheckpointEntry]:
        """The first recorded checkpoints, up to one that has rows which are not below `upper`."""
        checkpoints = (e for e in self.entries if isinstance(e, CheckpointEntry))
        return list(takewhile(lambda e: e.committable or Frontier(e.time) < upper, checkpoints))

    def offsets_below(self, committable: Committable) -> Offsets:
        """The offsets that a committable should state, by what was taken over before it."""
        whole = self.whole_below(committable.batch.upper)
        return whole[-1].identity.end if whole else self.base

    def ahead_of(self, upper: Frontier) -> str:
        """Digest of the end of the last checkpoint that is partly below `upper`; empty without one."""
        rest = [e for e in self.entries if isinstance(e, CheckpointEntry)][len(self.whole_below(upper)) :]
        partly = [e for e in rest if e.staged and e.timed and e.staged.rows and Frontier(e.staged.low) < upper]
        return offsets_digest(partly[-1].identity.end) if partly else ""

    def drop_committed(self, committable: Committable) -> list[CheckpointEntry]:
        """Forget what a commit brought into the table; the staged checkpoints among it."""
        gone = [e for e in self.whole_below(committable.batch.upper) if is_staged(e)]
        ids = {id(e) for e in gone}
        self.entries = [e for e in self.entries if id(e) not in ids and e.committable is not committable]
        return gone

    def reaches(self, ahead: str) -> bool:
        """Whether the checkpoint that is partly in the table is among what was taken over."""
        ends = (e.identity.end for e in self.entries if isinstance(e, CheckpointEntry))
        return any(offsets_digest(end) == ahead for end in ends)

    def remember(self, identity: CheckpointIdentity) -> None:
        """Recognise a replay of it."""
        self.known.pop(identity, None)
        self.known[identity] = None

    def knows(self, identity: CheckpointIdentity) -> bool:
        """True for a replay: the same four values are recorded, or are those of the last commit."""
        if identity in self.known:
            return True
        last = self.committed
        return (
            last is not None
            and (identity.query_id, identity.batch_id, identity.end) == (last.query_id, last.checkpoint, last.offsets)
            and last.offsets is not None
        )

    def to_adoption(self) -> Adoption:
        """The record a run writes of what it took over."""
        uncommitted = {e.identity for e in self.entries if isinstance(e, CheckpointEntry)}
        known = [i for i in self.known if i not in uncommitted]
        return Adoption(tuple(self.entries), tuple(known[-KNOWN_KEPT:]), self.last_time, self.end)


def adopt(  # noqa: PLR0913 - three are options by name
    progress: Progress | None,
    records: RunRecords | None,
    missing: Missing,
    can_reread: CanReread,
    *,
    generation: int = 0,
    own_times: bool = False,
    occupied: bool = False,
) -> RunPosition:
    """The position of a run that builds on `progress` and takes over `records`; `own_times`: rows have their own.

    A new generation reads from the beginning, and takes over nothing of older ones. `occupied`: the table may have rows
    that a batch has to replace, so one that was written for an empty table cannot be used.
    """
    position = RunPosition(committed=progress, occupied=occupied)
    if progress:
        position.frontier = position.minted = progress.next_lower(generation)
        position.checkpoint, position.generation = progress.checkpoint, progress.generation
        if progress.generation >= generation:
            position.base = position.end = progress.offsets
        if progress.frontier.time is not None:
            position.last_time = progress.frontier.time - 1
    if records is None:
        return position
    recorded = [*records.adoption.entries, *records.entries]
    if position.generation < generation:
        recorded = [e for e in recorded if generation_of(e) == generation]
    else:
        position.known = dict.fromkeys(records.adoption.known)
    if not own_times:  # else no run gives times, and rows that are read again have theirs
        position.last_time = max(position.last_time, records.adoption.last_time, *(e.time for e in recorded), -1)
    _take(position, recorded, missing, can_reread)
    return position


def _take(position: RunPosition, recorded: Iterable[Entry], missing: Missing, can_reread: CanReread) -> None:
    unusable: list[tuple[Entry, str]] = []
    for entry in recorded:
        if _committed(position, entry) and not _continues(position, entry):
            if isinstance(entry, CheckpointEntry):
                position.remember(entry.identity)
                if not unusable:  # else what it said comes again with the rows before it
                    _hear(position, entry)
            if entry.committable and entry.committable.keys:
                position.spent.append(entry.committable)
            continue
        reason = "it follows one that is missing" if unusable else _break(position, entry, missing)
        if reason and isinstance(entry, FrontierEntry):
            continue  # what was staged for it is closed again, under a new commit id
        if reason:
            unusable.append((entry, reason))
            continue
        extend(position, entry)
    _drop_idle_frontiers(position)
    if unusable and not can_reread(position.end):
        raise _gap(unusable)


def _drop_idle_frontiers(position: RunPosition) -> None:
    """A frontier that moved without rows is no work to take over, unless it seals or empties the table."""
    empties_above = position.committed.generation if position.committed else 0
    while position.entries and isinstance(position.entries[-1], FrontierEntry):
        last = position.entries[-1].committable
        if last.batch.upper.sealed or last.generation > empties_above or not last.empty:
            return
        position.entries.pop()
        position.minted = last.batch.lower


def extend(position: RunPosition, entry: Entry) -> None:
    """Move a position over one more recorded entry."""
    position.entries.append(entry)
    if isinstance(entry, FrontierEntry) or not entry.timed:
        position.last_time = max(position.last_time, entry.time)
    if isinstance(entry, CheckpointEntry):
        position.remember(entry.identity)
        position.end, position.checkpoint = entry.identity.end, entry.identity.batch_id
        _hear(position, entry)
    position.generation = generation_of(entry)
    if entry.committable:
        position.minted = entry.committable.batch.upper


def _hear(position: RunPosition, entry: CheckpointEntry) -> None:
    """What a checkpoint said of the times to come."""
    if entry.staged:
        position.input = max(position.input, entry.staged.frontier or 0)
        position.final = position.final or entry.staged.final


def is_staged(entry: Entry) -> TypeGuard[CheckpointEntry]:
    """Whether an entry waits for its window."""
    return isinstance(entry, CheckpointEntry) and entry.committable is None


def _alike(one: CheckpointEntry, other: CheckpointEntry) -> bool:
    """Whether rows of two checkpoints that have the times of these may share a batch."""
    kinds = [entry.staged.kind if entry.staged else None for entry in (one, other)]
    return one.timed == other.timed and kinds[0] == kinds[1]


def generation_of(entry: Entry) -> int:
    """The generation that an entry belongs to."""
    return entry.committable.generation if entry.committable else getattr(entry, "generation", 0)


def _committed(position: RunPosition, entry: Entry) -> bool:
    """Whether the table has what an entry holds."""
    if entry.committable is not None:
        return not position.frontier < entry.committable.batch.upper
    return Frontier(entry.time) < position.frontier


def _continues(position: RunPosition, entry: Entry) -> bool:
    """Whether the table has all rows of a checkpoint, but not those of one before it, or no offsets of it yet."""
    return is_staged(entry) and entry.timed and entry.identity.start == position.end


def _break(position: RunPosition, entry: Entry, missing: Missing) -> str:
    if isinstance(entry, CheckpointEntry) and entry.identity.start != position.end:
        return "a checkpoint before it is missing"
    if entry.committable and entry.committable.batch.lower != position.minted:
        return f"its batch starts at {entry.committable.batch.lower}, not at {position.minted}"
    if isinstance(entry, FrontierEntry) and entry.committable.offsets != position.offsets_below(entry.committable):
        return "checkpoints that it closed are missing"
    if entry.committable and isinstance(entry, CheckpointEntry) and position.staged:
        return "checkpoints before it are staged and not committed"
    if position.occupied and _is_blind(position, entry):
        return "it was written for an empty table, which has rows of others now"
    gone = () if _committed(position, entry) else missing(entry)
    return f"{gone[0]} is gone" if gone else ""


def _is_blind(position: RunPosition, entry: Entry) -> bool:
    """Whether rows of an entry would stand beside older ones with their keys: it deletes nothing, nor all there is."""
    batch, generation = entry.committable, position.committed.generation if position.committed else 0
    if batch is None or not batch.totals.data_rows or batch.generation > generation:
        return False
    return not batch.keys and not batch.totals.equality_deletes


def _gap(unusable: list[tuple[Entry, str]]) -> CheckpointGap:
    names = [str(e.identity) for e, _ in unusable if isinstance(e, CheckpointEntry)]
    return CheckpointGap(
        "recorded checkpoints cannot be committed, and their source cannot be read again",
        detail=f"Checkpoints {', '.join(names)}: {unusable[0][1]}.",
        hint="Restore the missing files, or start a new sink into a new table.",
    )
