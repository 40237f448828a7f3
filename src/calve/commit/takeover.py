"""What a run takes over: those records of its predecessor that are not in the table yet.

Pure, except for checking whether files still exist. The records form a chain: every checkpoint starts where the one
before it ended, every committable where the one before it ended, and the first follows the table's own progress.
Entries after a break in the chain are unusable: their changes are read again if the source can go back, else this is a
gap.
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
"""Number of committed checkpoints whose identity is kept, to recognise Spark's replay of the last one."""

Missing = Callable[[Entry], tuple[str, ...]]
"""Files of an entry that no longer exist."""

CanReread = Callable[[Offsets], bool]
"""Whether the source can start at these offsets."""


def can_reread_anywhere(_offsets: Offsets) -> bool:
    """For sources that can start at any offsets, and where the answer is not needed yet."""
    return True


class _Tally:
    """Running totals over the entries of a position. Each is added once: a long window has tens of thousands."""

    def __init__(self, entries: list[Entry], minted: Frontier) -> None:
        self._entries, self._minted = entries, minted
        self._count = 0
        self._last: Entry | None = None
        self.ready = self.ready_bytes = self.ready_changes = 0
        self.held_bytes = self.staged_bytes = self.staged_rows = 0
        self.staged: list[CheckpointEntry] = []
        self.times: list[int] = []
        self.alike: list[CheckpointEntry] = []
        """The first checkpoints with rows, up to the first one of another kind."""
        self.rest: list[CheckpointEntry] = []
        """The checkpoints with rows from there on."""

    def fits(self, entries: list[Entry], minted: Frontier) -> bool:
        """Whether entries were only appended since the last update."""
        if entries is not self._entries or len(entries) < self._count:
            return False
        if minted is not self._minted and minted != self._minted:
            return False
        return not self._count or entries[self._count - 1] is self._last

    def follow(self) -> None:
        """Add the new entries."""
        if len(self._entries) == self._count:
            return
        for entry in self._entries[self._count :]:
            self._add(entry)
            self._count, self._last = self._count + 1, entry

    def _add(self, entry: Entry) -> None:
        if entry.committable:
            totals = entry.committable.totals
            self.ready += 1
            self.ready_bytes += totals.data_bytes + totals.delete_bytes
            self.ready_changes += totals.changes
        if not is_staged(entry) or entry.staged is None:
            return
        self.held_bytes += entry.staged.bytes
        if Frontier(entry.time) < self._minted:
            return  # a recorded batch holds it
        self.staged.append(entry)
        self.staged_bytes += entry.staged.bytes
        self.staged_rows += entry.staged.rows
        for time in entry.times_from(self._minted.time or 0):
            at = bisect_left(self.times, time)
            if at == len(self.times) or self.times[at] != time:
                self.times.insert(at, time)
        if entry.staged.rows:
            same = not self.rest and (not self.alike or _alike(entry, self.alike[0]))
            (self.alike if same else self.rest).append(entry)


@dataclass
class RunPosition:
    """Position of a run: what is committed, what is recorded, what comes next. Only the run changes it."""

    frontier: Frontier = START
    """Committed frontier."""
    minted: Frontier = START
    """Upper end of the last recorded batch."""
    last_time: int = -1
    """Highest time that was assigned; later ones are larger."""
    base: Offsets = None
    """Offsets of the table when its progress was taken over."""
    end: Offsets = None
    """End offsets of the last recorded checkpoint: reading continues there."""
    checkpoint: int = -1
    """Batch id of the last recorded checkpoint."""
    entries: list[Entry] = field(default_factory=list)
    """Recorded and not committed."""
    known: dict[CheckpointIdentity, None] = field(default_factory=dict)
    """Recorded checkpoints in order, to recognise replays."""
    committed: Progress | None = None
    generation: int = 0
    """Generation of the last recorded entry, else of the table."""
    spent: list[Committable] = field(default_factory=list)
    """Committables of the predecessor that are committed; their key files may still exist."""
    input: int = 0
    """Input frontier of rows with event times: no smaller time is expected."""
    final: bool = False
    """The input is complete: no further rows will come."""
    occupied: bool = False
    """Other writers may have added rows to the table since it was empty."""
    _tally: _Tally | None = field(default=None, repr=False, compare=False)

    @property
    def _waiting(self) -> _Tally:
        if self._tally is None or not self._tally.fits(self.entries, self.minted):
            self._tally = _Tally(self.entries, self.minted)
        self._tally.follow()
        return self._tally

    @property
    def staged(self) -> Sequence[CheckpointEntry]:
        """Checkpoints that are not part of a recorded batch yet, in order."""
        return self._waiting.staged

    @property
    def staged_bytes(self) -> int:
        """Size of the checkpoints that are not part of a recorded batch yet."""
        return self._waiting.staged_bytes

    @property
    def held_bytes(self) -> int:
        """Size of all staged checkpoints that are not committed, whether part of a recorded batch or not."""
        return self._waiting.held_bytes

    @property
    def ready(self) -> int:
        """Committables that wait to be committed."""
        return self._waiting.ready

    @property
    def ready_bytes(self) -> int:
        """Size of the committables that wait to be committed."""
        return self._waiting.ready_bytes

    @property
    def ready_changes(self) -> int:
        """Changes in the committables that wait to be committed."""
        return self._waiting.ready_changes

    @property
    def staged_rows(self) -> int:
        """Rows of the checkpoints that are not part of a recorded batch yet."""
        return self._waiting.staged_rows

    @property
    def waiting_times(self) -> Sequence[int]:
        """Sorted times of staged rows that are not part of a recorded batch yet."""
        return self._waiting.times

    def split(self, *, own_times: bool) -> int | None:
        """Return the time where a batch must end because rows of another kind follow; None if there are none.

        Rows with event times of any kind may share a batch. Rows without are closed at once if later rows have event
        times (`own_times`).
        """
        alike, rest = self._waiting.alike, self._waiting.rest
        if not alike or alike[0].timed:
            return None
        if rest and not rest[0].timed:
            return rest[0].time
        return alike[-1].time + 1 if rest or own_times else None

    @property
    def closed(self) -> int:
        """Rows with a smaller time are late: its batch is recorded, or about to be."""
        return max(self.minted.time or 0, self.last_time + 1)

    def whole_below(self, upper: Frontier) -> list[CheckpointEntry]:
        """Return the leading recorded checkpoints whose rows are all below `upper`."""
        checkpoints = (e for e in self.entries if isinstance(e, CheckpointEntry))
        return list(takewhile(lambda e: e.committable or Frontier(e.time) < upper, checkpoints))

    def offsets_below(self, committable: Committable) -> Offsets:
        """Return the offsets that a committable should state, given the entries before it."""
        whole = self.whole_below(committable.batch.upper)
        return whole[-1].identity.end if whole else self.base

    def ahead_of(self, upper: Frontier) -> str:
        """Return the digest of the end of the last checkpoint that is partly below `upper`; empty if none is."""
        rest = [e for e in self.entries if isinstance(e, CheckpointEntry)][len(self.whole_below(upper)) :]
        partly = [e for e in rest if e.staged and e.timed and e.staged.rows and Frontier(e.staged.low) < upper]
        return offsets_digest(partly[-1].identity.end) if partly else ""

    def drop_committed(self, committable: Committable) -> list[CheckpointEntry]:
        """Drop the entries that a commit completed; returns the staged checkpoints among them."""
        gone = [e for e in self.whole_below(committable.batch.upper) if is_staged(e)]
        ids = {id(e) for e in gone}
        self.entries = [e for e in self.entries if id(e) not in ids and e.committable is not committable]
        return gone

    def reaches(self, ahead: str) -> bool:
        """Whether the checkpoint that is partly committed was taken over."""
        ends = (e.identity.end for e in self.entries if isinstance(e, CheckpointEntry))
        return any(offsets_digest(end) == ahead for end in ends)

    def remember(self, identity: CheckpointIdentity) -> None:
        """Remember a checkpoint, to recognise its replay."""
        self.known.pop(identity, None)
        self.known[identity] = None

    def knows(self, identity: CheckpointIdentity) -> bool:
        """True for a replay: this identity is recorded, or is that of the last commit."""
        if identity in self.known:
            return True
        last = self.committed
        return (
            last is not None
            and (identity.query_id, identity.batch_id, identity.end) == (last.query_id, last.checkpoint, last.offsets)
            and last.offsets is not None
        )

    def to_adoption(self) -> Adoption:
        """Build the record of what this run took over."""
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
    """Return the position of a run that builds on `progress` and takes over `records`.

    A new generation reads from the beginning, and takes over nothing of older ones. `own_times`: rows have event times.
    `occupied`: the table may contain rows that a batch has to replace, so a batch written for an empty table is
    unusable.
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
    if not own_times:  # else runs assign no times, and rows that are read again keep theirs
        position.last_time = max(position.last_time, records.adoption.last_time, *(e.time for e in recorded), -1)
    _apply_records(position, recorded, missing, can_reread)
    return position


def _apply_records(position: RunPosition, recorded: Iterable[Entry], missing: Missing, can_reread: CanReread) -> None:
    unusable: list[tuple[Entry, str]] = []
    for entry in recorded:
        if _committed(position, entry) and not _continues(position, entry):
            if isinstance(entry, CheckpointEntry):
                position.remember(entry.identity)
                if not unusable:  # else its frontier comes again with the rows before it
                    _advance_input(position, entry)
            if entry.committable and entry.committable.keys:
                position.spent.append(entry.committable)
            continue
        reason = "it follows one that is missing" if unusable else _why_unusable(position, entry, missing)
        if reason and isinstance(entry, FrontierEntry):
            continue  # its staged rows are closed again, under a new commit id
        if reason:
            unusable.append((entry, reason))
            continue
        extend(position, entry)
    _drop_idle_frontiers(position)
    if unusable and not can_reread(position.end):
        raise _gap_error(unusable)


def _drop_idle_frontiers(position: RunPosition) -> None:
    """Drop trailing frontiers without rows: there is nothing to take over, unless they seal or empty the table."""
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
        _advance_input(position, entry)
    position.generation = generation_of(entry)
    if entry.committable:
        position.minted = entry.committable.batch.upper


def _advance_input(position: RunPosition, entry: CheckpointEntry) -> None:
    """Apply what a checkpoint states about future times."""
    if entry.staged:
        position.input = max(position.input, entry.staged.frontier or 0)
        position.final = position.final or entry.staged.final


def is_staged(entry: Entry) -> TypeGuard[CheckpointEntry]:
    """Whether an entry waits for its window."""
    return isinstance(entry, CheckpointEntry) and entry.committable is None


def _alike(one: CheckpointEntry, other: CheckpointEntry) -> bool:
    """Whether rows of two checkpoints may share a batch."""
    kinds = [entry.staged.kind if entry.staged else None for entry in (one, other)]
    return one.timed == other.timed and kinds[0] == kinds[1]


def generation_of(entry: Entry) -> int:
    """Return the generation that an entry belongs to."""
    return entry.committable.generation if entry.committable else getattr(entry, "generation", 0)


def _committed(position: RunPosition, entry: Entry) -> bool:
    """Whether the table contains the rows of an entry."""
    if entry.committable is not None:
        return not position.frontier < entry.committable.batch.upper
    return Frontier(entry.time) < position.frontier


def _continues(position: RunPosition, entry: Entry) -> bool:
    """Whether a checkpoint continues the chain although all its rows are committed.

    The table does not state its offsets yet, or lacks rows of a checkpoint before it.
    """
    return is_staged(entry) and entry.timed and entry.identity.start == position.end


def _why_unusable(position: RunPosition, entry: Entry, missing: Missing) -> str:
    if isinstance(entry, CheckpointEntry) and not _starts_at_end(position, entry):
        return "a checkpoint before it is missing"
    if entry.committable and not _starts_at_frontier(position, entry.committable):
        return f"its batch starts at {entry.committable.batch.lower}, not at {position.minted}"
    if isinstance(entry, FrontierEntry) and entry.committable.offsets != position.offsets_below(entry.committable):
        return "checkpoints that it closed are missing"
    if entry.committable and isinstance(entry, CheckpointEntry) and position.staged:
        return "checkpoints before it are staged and not committed"
    if position.occupied and _is_blind(position, entry):
        return "it was written for an empty table, which now contains rows of other writers"
    gone = () if _committed(position, entry) else missing(entry)
    return f"{gone[0]} is missing" if gone else ""


def _starts_at_end(position: RunPosition, entry: CheckpointEntry) -> bool:
    return entry.identity.start == position.end


def _starts_at_frontier(position: RunPosition, committable: Committable) -> bool:
    return committable.batch.lower == position.minted


def _is_blind(position: RunPosition, entry: Entry) -> bool:
    """Whether an entry would duplicate keys that are in the table: it adds rows and deletes none."""
    batch, generation = entry.committable, position.committed.generation if position.committed else 0
    if batch is None or not batch.totals.data_rows or batch.generation > generation:
        return False
    return not batch.keys and not batch.totals.equality_deletes


def _gap_error(unusable: list[tuple[Entry, str]]) -> CheckpointGap:
    names = [str(e.identity) for e, _ in unusable if isinstance(e, CheckpointEntry)]
    return CheckpointGap(
        "recorded checkpoints cannot be committed, and the source cannot read them again",
        detail=f"Checkpoints {', '.join(names)}: {unusable[0][1]}.",
        hint="Restore the missing files, or start a new sink into a new table.",
    )
