"""Stores the totals of a view with GROUP BY in the state location, as a sum of pieces.

    beginning ──► A ──► B ──► C ──► D        positions of the input: digests of offsets
        └──────piece 1──────┘ └ 2 ┘ └ 3      what the checkpoints between two positions added to each group

A checkpoint writes one piece, named by its end, its start and the epoch of the run that wrote it. The totals at a
position are the sum of an unbroken path of pieces from the beginning. Where several pieces lead to a position, the
newest epoch wins: a run writes only after it has claimed the table, so nothing that older runs write later is in the
table. Eight pieces of about the same length are merged into one, which is written before its parts are removed, and
only up to a committed position, since no run starts before it.

A run writes under names with its own epoch, and removes nothing once it sees a piece of a newer epoch: a run that lost
its fence can neither overwrite nor remove the pieces that its successor builds on.

A piece is one row per touched group (`sums`). Totals of few groups are held in the driver's memory, as a part of the
budget of the process, and their pieces are single records. Once they do not fit, Spark tasks add the changes of each
checkpoint and merge pieces (`totals_tasks`), and pieces consist of parts that are sorted by a hash of the group
(`blocks`); larger records of earlier checkpoints are split into parts one after another. The driver then holds
descriptions of parts. A piece that cannot be read counts as absent: another path may lead around it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from calve import faults
from calve.clock import IdSource, RandomIds
from calve.errors import CheckpointGap
from calve.model.checkpoint import CheckpointIdentity, Offsets, SizeHint, offsets_digest
from calve.model.numbers import whole_number
from calve.reader.resources import MemoryBudget, process_memory
from calve.storage.state import StateStore
from calve.view.blocks import PARTS, GroupPart, LostPiece, PieceContents, read_piece
from calve.view.sums import live_groups, sum_by_group
from calve.view.totals_tasks import PartsAnswer, TotalsMerge, TotalsUpdate, discard_parts, ranges_for

FANOUT = 8
"""The number of pieces of about the same length from which on they are merged into one."""
MOST_MERGED = 64
"""The most pieces that are merged after one checkpoint: a checkpoint waits for that."""

_BEGINNING = offsets_digest(None)
_SUFFIX = ".parquet"
_PART_OF_MEMORY = 8
"""The totals of one view take at most this part of the process's budget."""
_FEW = 8
"""Additions of less than this part of the limit are not counted before the next ones are collected."""
_ROW_BYTES = 128
"""About what a row of a checkpoint adds, if only the number of its rows is known."""
_KEPT = 2
"""Totals of the last two positions stay in memory: a failed checkpoint is retried from the position before it."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class TotalsLimits:
    """What the totals of one view may take of the driver's memory."""

    memory: MemoryBudget = field(default_factory=process_memory)
    small: int = 1 << 20
    """Bytes that every view may have, whatever else the process holds."""

    @property
    def most(self) -> int:
        """The most bytes; sums need a small multiple of it for a moment."""
        return max(self.small, self.memory.most // _PART_OF_MEMORY)


@dataclass(frozen=True)
class TotalsPiece:
    """The additions between two positions, and the number of checkpoints between them."""

    end: str
    start: str
    checkpoints: int
    epoch: int = 0
    """Of the run that wrote it."""

    @property
    def name(self) -> str:
        """Its name in the store; earlier versions wrote names without an epoch."""
        epoch = f".{self.epoch}" if self.epoch else ""
        return f"{self.end}.{self.start}.{self.checkpoints}{epoch}{_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> "TotalsPiece | None":
        """The piece of that name; None for anything else."""
        parts = name.removesuffix(_SUFFIX).split(".")
        numbers = [number for text in parts[2:] if (number := whole_number(text)) is not None]
        if not name.endswith(_SUFFIX) or not 1 <= len(parts[2:]) == len(numbers) <= 2:
            return None
        return cls(parts[0], parts[1], *numbers)

    @property
    def tier(self) -> int:
        """0 for fewer than eight checkpoints, 1 for fewer than 64, and so on."""
        tier, length = 0, self.checkpoints
        while length >= FANOUT:
            tier, length = tier + 1, length // FANOUT
        return tier


def path_to(end: str, pieces: Iterable[TotalsPiece]) -> list[TotalsPiece] | None:
    """The pieces that lead from the beginning to a position, in order; None if there is a gap.

    Among pieces with the same end it prefers the newest epoch, then the longest, unless that is a dead end.
    """
    leading: dict[str, list[TotalsPiece]] = {}
    for piece in sorted(pieces, key=lambda p: (p.epoch, p.checkpoints, p.name)):
        leading.setdefault(piece.end, []).append(piece)
    path: list[TotalsPiece] = []
    here, seen = end, {end}
    while here != _BEGINNING:
        choices = leading.get(here, [])
        while choices and choices[-1].start in seen:
            choices.pop()
        if choices:
            path.append(choices.pop())
            here = path[-1].start
            seen.add(here)
        elif path:
            here = path.pop().end
        else:
            return None
    return path[::-1]


@dataclass(frozen=True)
class TotalsAt:
    """Totals at a position, and the fingerprint of the static tables they were computed with."""

    table: pa.Table
    static: str


@dataclass(frozen=True)
class ManyTotals:
    """Totals at a position that are too many for the driver: the pieces that they are the sum of."""

    pieces: tuple[PieceContents, ...]

    @property
    def static(self) -> str:
        """The fingerprint of the static tables they were computed with."""
        return self.pieces[-1].static if self.pieces else ""


@dataclass(frozen=True)
class _ListedParts:
    """Parts that were there before this run was seen to have committed up to a position."""

    position: str
    parts: frozenset[str]


class ViewTotals:
    """The pieces of one view of one sink. `spark` is needed once there are many groups."""

    def __init__(
        self,
        store: StateStore,
        view: str,
        *,
        limits: TotalsLimits | None = None,
        spark: SparkSession | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._store, self._view = store, view
        self._limits, self._spark, self._ids = limits or TotalsLimits(), spark, ids or RandomIds()
        self._room = self._limits.memory.share(self)
        self._many = False
        """Whether the totals were too many for the driver. Stays so until the next start."""
        self._recent: dict[str, TotalsAt] = {}
        self._contents: dict[str, PieceContents] = {}
        """By record, as read or put last."""
        self._lost: set[str] = set()
        """Records of pieces that cannot be read: they count as absent."""
        self._last_size: int | None = None
        """Bytes of the additions of the last checkpoint; None before the first, and once they were compared."""
        self._recorded: dict[str, TotalsPiece] = {}
        """By end: if a checkpoint was repeated with another start, the last one counts."""
        self._known: dict[str, set[TotalsPiece]] = {}
        """Pieces by end, as last listed, with those that were recorded since."""
        self._parts: frozenset[str] = frozenset()
        """Names of parts, as last listed."""
        self._before: _ListedParts | None = None
        """What was listed before the last committed position; None before the first."""
        self._has_rivals = False
        """Whether a recorded piece has the same end as another known one."""
        self._tidied: str | None = None
        """The committed position up to which there is nothing left to merge."""

    @property
    def store(self) -> StateStore:
        """Where the pieces are."""
        return self._store

    @property
    def most(self) -> int:
        """The most bytes of totals, or of additions, in the driver."""
        return self._limits.most

    def expects_few(self, size: SizeHint) -> bool:
        """Whether the additions of a checkpoint of this size are likely few, as those of the last one were.

        The size is an estimate, so the answer is yes only once until additions are recorded: an attempt may have failed
        because they are many, and the next one counts them.
        """
        last, self._last_size = self._last_size, None
        by_rows = None if size.rows is None else size.rows * _ROW_BYTES
        known = [estimate for estimate in (size.bytes, by_rows) if estimate is not None]
        return last is not None and bool(known) and max(last, *known) * _FEW <= self.most

    def at(self, offsets: Offsets, schema: pa.Schema) -> TotalsAt | ManyTotals:
        """The totals at a position. Raises CheckpointGap if a piece is missing."""
        position = offsets_digest(offsets)
        found = self._recent.get(position)
        return found or self._along(position, partial(self._opened, position, schema))

    def record(self, identity: CheckpointIdentity, piece: pa.Table, after: TotalsAt, *, epoch: int = 0) -> None:
        """Store the additions of a checkpoint durably, and remember the totals after it. `epoch` is that of the run."""
        put = _piece_of(identity, epoch)
        self._record(put, PieceContents.of_rows(put.name, piece, after.static), piece)
        self._keep(put.end, after)

    def add_by_tasks(
        self, identity: CheckpointIdentity, additions: DataFrame, schema: pa.Schema, rows: int
    ) -> PartsAnswer:
        """Let tasks add the additions of a checkpoint: they write its parts. `schema` is that of totals.

        `rows` is about the number of additions, or of the rows that they come from; 0 if neither is known. Raises
        CheckpointGap, TransientError, TerminalError.
        """
        parallelism = additions.sparkSession.sparkContext.defaultParallelism

        def add(path: Sequence[TotalsPiece]) -> PartsAnswer:
            pieces = tuple(map(self._described, path))
            ranges = max(parallelism, ranges_for(max(rows, sum(piece.rows for piece in pieces))))
            update = TotalsUpdate(self._store, self._view, pieces, schema, ranges, self._fresh())
            return update.run(additions)

        answer = self._along(offsets_digest(identity.start), add)
        faults.reached("totals.parts")
        return answer

    def record_parts(
        self, identity: CheckpointIdentity, parts: Sequence[GroupPart], static: str, *, epoch: int = 0
    ) -> None:
        """Store the additions of a checkpoint durably, whose parts are complete in the store."""
        put = _piece_of(identity, epoch)
        self._record(put, PieceContents.of_parts(put.name, parts, static), None)
        self._forget()

    def committed(self, offsets: Offsets, *, epoch: int = 0) -> None:
        """Merge pieces before a committed position, if there are enough, and remove pieces no longer needed.

        Called after every checkpoint. It lists the pieces only if something may be left to do: a window may have tens
        of thousands of checkpoints, each with a piece.
        """
        position = offsets_digest(offsets)
        if position == self._tidied and not self._has_rivals:
            return
        listed = _ListedParts(position, self._parts)
        pieces = self._remove_rivals(epoch)
        path = path_to(position, pieces) or []
        try:
            run = _mergeable_run(path) or self._to_split(path)
            if run:
                self._merge(run, epoch)
            self._remove_leftovers(listed, epoch)
            self._tidied = None if run else position
        except LostPiece as lost:  # a newer run merged them; if they are lost, the next checkpoint fails
            self._lose(lost.record)
            self._tidied = None

    def close(self) -> None:
        """Give the memory back, and keep no totals any more, as if they were too many."""
        self._many = True
        self._recent, self._contents = {}, {}
        self._room.close()

    # ---- the pieces that lead to a position

    def _along(self, position: str, act: Callable[[Sequence[TotalsPiece]], T]) -> T:
        """Do something with the pieces that lead to a position, without those that cannot be read.

        Lists them again whenever one cannot be read: it may have been merged meanwhile. Raises CheckpointGap.
        """
        while True:
            path = self._path(position)
            try:
                return act(path)
            except LostPiece as lost:
                self._lose(lost.record)

    def _lose(self, record: str) -> None:
        _log.warning("a piece of the totals of view %s cannot be read, and counts as absent: %s", self._view, record)
        self._contents.pop(record, None)
        self._lost.add(record)

    def _path(self, position: str) -> list[TotalsPiece]:
        path = path_to(position, self._pieces())
        if path is None and self._lost:
            raise CheckpointGap(
                f'a piece of the totals of view "{self._view}" is missing or damaged',
                detail=f"It is {', '.join(sorted(self._lost))}; nothing else leads to position {position}.",
                hint="Restore the state location, or rebuild the table from the beginning of the input.",
            )
        if path is None:
            raise CheckpointGap(
                f'the totals of view "{self._view}" are missing',
                detail=f"No pieces in the state location lead from the beginning of the input to {position}.",
                hint="Restore the state location, or rebuild the table from the beginning of the input.",
            )
        return path

    def _opened(self, position: str, schema: pa.Schema, path: Sequence[TotalsPiece]) -> TotalsAt | ManyTotals:
        """Sum up the pieces, as far as the sum fits."""
        tables, pieces = [schema.empty_table()], []
        for piece in path:
            contents, rows = self._contents.get(piece.name), None
            if contents is None or not (self._many or contents.parts):
                contents, rows = read_piece(self._store, piece.name)
            pieces.append(self._noted(contents))
            self._many = self._many or contents.size > self.most
            if not self._many:
                tables = self._folded([*tables, *(contents.tables(self._store) if rows is None else [rows])])
                self._many = self._is_too_large(tables)
        if not self._many:
            whole = live_groups(sum_by_group(tables), self._view)
            found = TotalsAt(whole, pieces[-1].static if pieces else "")
            if self._keep(position, found):
                return found
        return ManyTotals(tuple(pieces))

    def _folded(self, tables: list[pa.Table]) -> list[pa.Table]:
        """The same sum, in one table if these take too much."""
        return tables if sum(table.nbytes for table in tables) <= 2 * self.most else [sum_by_group(tables)]

    def _is_too_large(self, tables: Sequence[pa.Table]) -> bool:
        """Whether a sum does not fit, although it is in one table."""
        return len(tables) == 1 and tables[0].nbytes > self.most

    def _described(self, piece: TotalsPiece) -> PieceContents:
        return self._contents.get(piece.name) or self._noted(read_piece(self._store, piece.name)[0])

    def _noted(self, contents: PieceContents) -> PieceContents:
        self._contents[contents.record] = contents
        self._lost.discard(contents.record)
        return contents

    def _record(self, put: TotalsPiece, contents: PieceContents, rows: pa.Table | None) -> None:
        before = self._contents.get(put.name)
        self._store.put(put.name, contents.encoded(rows))
        discard_parts(self._store, (before and before.parts) or ())  # of an attempt that was repeated
        self._noted(contents)
        self._last_size = contents.size
        self._recorded[put.end] = put
        known = self._known.setdefault(put.end, set())
        self._has_rivals |= bool(known - {put})
        known.add(put)

    def _fresh(self) -> str:
        return f"{PARTS}/{self._ids.new_id()}"

    # ---- merges and removal

    def _remove_rivals(self, epoch: int) -> list[TotalsPiece]:
        """Remove pieces of a run with other checkpoint boundaries: the tables they joined may have changed since.

        Returns all that remain.
        """
        own, pieces = self._recorded, self._pieces()
        rivals = [piece for piece in pieces if piece.end in own and piece != own[piece.end]]
        self._remove(rivals, epoch)
        self._recorded, self._has_rivals = {}, False
        return self._pieces() if rivals else pieces

    def _to_split(self, path: Sequence[TotalsPiece]) -> list[TotalsPiece]:
        """A piece whose rows are in one record that every task would have to read, if there is one."""
        if not self._many or self._spark is None:
            return []
        described = ((piece, self._described(piece)) for piece in path)
        return next(([piece] for piece, one in described if one.parts is None and one.size > self._limits.small), [])

    def _merge(self, run: Sequence[TotalsPiece], epoch: int) -> None:
        pieces = tuple(map(self._described, run))
        merged = TotalsPiece(run[-1].end, run[0].start, sum(p.checkpoints for p in run), epoch)
        static, whole = pieces[-1].static, run[0].start == _BEGINNING
        rows = self._summed(pieces)
        if rows is not None:
            rows = live_groups(rows, self._view) if whole else rows
            contents = PieceContents.of_rows(merged.name, rows, static)
        else:
            parts = self._merged_parts(pieces, whole=whole)
            contents = PieceContents.of_parts(merged.name, parts, static)
            faults.reached("totals.merged")
        self._store.put(merged.name, contents.encoded(rows))
        self._noted(contents)
        self._remove([piece for piece in run if piece != merged], epoch)
        left = self._pieces()
        self._remove([piece for piece in left if path_to(piece.start, left) is None], epoch)

    def _summed(self, pieces: Sequence[PieceContents]) -> pa.Table | None:
        """The sum of pieces, added up one by one; None if it does not fit the driver, or if they touched no group."""
        most = self._limits.small if self._many else _FEW * self.most
        if self._spark is not None and sum(piece.size for piece in pieces) > most:
            return None
        tables: list[pa.Table] = []
        for piece in pieces:
            tables = self._folded([*tables, *piece.tables(self._store)])
            if self._spark is not None and self._is_too_large(tables):
                return None
        return sum_by_group(tables) if tables else None

    def _merged_parts(self, pieces: tuple[PieceContents, ...], *, whole: bool) -> tuple[GroupPart, ...]:
        """Let tasks merge pieces; the parts that they wrote."""
        rows = sum(piece.rows for piece in pieces)
        if not rows:
            return ()
        if self._spark is None:
            raise TypeError(self._view)
        work = TotalsMerge(self._store, self._view, pieces, whole, ranges_for(rows), self._fresh())
        return work.run(self._spark)

    def _remove(self, pieces: Sequence[TotalsPiece], epoch: int) -> None:
        """Remove pieces, unless a newer run has written one.

        The check lists again, after the listing that led to the removal: a newer run writes a merged piece before it
        removes the parts, so a run that missed a part for that reason sees the merged piece here. Parts are removed
        after the record that names them.
        """
        if not pieces or self._is_fenced(epoch):
            return
        for piece in pieces:
            try:
                parts = self._described(piece).parts or ()
            except LostPiece:
                parts = ()
            self._contents.pop(piece.name, None)
            self._store.delete(piece.name)
            discard_parts(self._store, parts)

    def _is_fenced(self, epoch: int) -> bool:
        newest = max((piece.epoch for piece in self._pieces()), default=epoch)
        if newest > epoch:
            _log.warning("totals of view %s are left to epoch %d: this run has epoch %d", self._view, newest, epoch)
        return newest > epoch

    def _remove_leftovers(self, listed: _ListedParts, epoch: int) -> None:
        """Remove parts that no record names, of attempts that ended before their record was put.

        What was listed before one position is removed at the next one: this run has committed after it listed, since
        it was still at the former position then. So it held the fence when it listed, and nothing in the list belongs
        to a successor. Nor does it belong to an attempt of this run that is in flight: a checkpoint cleans up after its
        record.
        """
        before = self._before
        if before is not None and listed.position == before.position:
            return
        if before is not None and self._unnamed(before.parts):
            if self._is_fenced(epoch):  # it lists again
                return
            for name in sorted(self._unnamed(before.parts)):
                self._store.delete(name)
        self._before = listed

    def _unnamed(self, parts: frozenset[str]) -> frozenset[str]:
        """Those of these parts that were still there when parts were last listed, and that no record names.

        The record of a lost piece counts: whoever restores the piece needs its other parts.
        """
        left = parts & self._parts
        if not left:
            return left
        described = [self._described(piece) for same_end in self._known.values() for piece in same_end]
        for record in self._lost:
            with suppress(LostPiece):
                described.append(read_piece(self._store, record)[0])
        return left - {part.name for contents in described for part in contents.parts or ()}

    def _pieces(self) -> list[TotalsPiece]:
        names = self._store.list("")
        found = [piece for name in names if name not in self._lost and (piece := TotalsPiece.parse(name))]
        self._parts = frozenset(name for name in names if name.startswith(f"{PARTS}/"))
        self._known = {}
        for piece in found:
            self._known.setdefault(piece.end, set()).add(piece)
        return found

    # ---- memory

    def _keep(self, position: str, totals: TotalsAt) -> bool:
        """Remember totals; if there is no room, forget all, and let tasks do the rest."""
        self._give(self._recent.pop(position, None))
        size = totals.table.nbytes
        if self._many or size > self.most or (size > self._limits.small and not self._room.take(size)):
            self._many = True
            self._forget()
            return False
        self._recent[position] = totals
        while len(self._recent) > _KEPT:
            self._give(self._recent.pop(next(iter(self._recent))))
        return True

    def _forget(self) -> None:
        self._recent = {}
        self._room.give_all()

    def _give(self, totals: TotalsAt | None) -> None:
        if totals is not None and totals.table.nbytes > self._limits.small:
            self._room.give(totals.table.nbytes)


def _piece_of(identity: CheckpointIdentity, epoch: int) -> TotalsPiece:
    return TotalsPiece(offsets_digest(identity.end), offsets_digest(identity.start), 1, epoch)


def _mergeable_run(path: Sequence[TotalsPiece]) -> list[TotalsPiece]:
    """The first run of consecutive pieces of about the same length that is long enough to be merged."""
    for _, pieces in groupby(path, lambda piece: piece.tier):
        run = list(islice(pieces, MOST_MERGED))
        if len(run) >= FANOUT:
            return run
    return []
