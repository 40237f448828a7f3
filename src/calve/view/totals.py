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

A piece is a Parquet file with one row per touched group:

    _calve__g0, ...   the group
    n                 rows
    c0, ...           per aggregate function: rows with a value
    s0, ...           the sum of the values, DECIMAL(38) or DOUBLE
    lo0, hi0, ...     minimum and maximum in Spark's order: NaN is above all other numbers

Totals are held in the driver's memory, and so are the groups that one checkpoint touches.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from calve.errors import CheckpointGap, TerminalError
from calve.model.checkpoint import CheckpointIdentity, Offsets, offsets_digest
from calve.model.numbers import whole_number
from calve.storage.state import StateStore
from calve.view.groups import GROUP

ROWS = "n"
FANOUT = 8
"""The number of pieces of about the same length from which on they are merged into one."""
MOST_MERGED = 64
"""The most pieces that are merged after one checkpoint: a checkpoint waits for that."""

_BEGINNING = offsets_digest(None)
_SUFFIX = ".parquet"
_STATIC = b"calve.static"
_TOUCHED = "_calve__touched"
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_KEPT = 2
"""Totals of the last two positions stay in memory: a failed checkpoint is retried from the position before it."""

_log = logging.getLogger(__name__)


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


class ViewTotals:
    """The pieces of one view of one sink."""

    def __init__(self, store: StateStore, view: str) -> None:
        self._store, self._view = store, view
        self._recent: dict[str, TotalsAt] = {}
        self._recorded: dict[str, TotalsPiece] = {}
        """By end: if a checkpoint was repeated with another start, the last one counts."""
        self._known: dict[str, set[TotalsPiece]] = {}
        """Pieces by end, as last listed, with those that were recorded since."""
        self._has_rivals = False
        """Whether a recorded piece has the same end as another known one."""
        self._tidied: str | None = None
        """The committed position up to which there is nothing left to merge."""

    def at(self, offsets: Offsets, schema: pa.Schema) -> TotalsAt:
        """The totals at a position. Raises CheckpointGap if a piece is missing."""
        position = offsets_digest(offsets)
        found = self._recent.get(position)
        if found is None:
            tables = self._read(position)
            last = (tables[-1].schema.metadata or {}).get(_STATIC, b"").decode() if tables else ""
            found = TotalsAt(live_groups(sum_by_group([schema.empty_table(), *tables]), self._view), last)
            self._keep(position, found)
        return found

    def record(self, identity: CheckpointIdentity, piece: pa.Table, after: TotalsAt, *, epoch: int = 0) -> None:
        """Store the additions of a checkpoint durably, and remember the totals after it. `epoch` is that of the run."""
        named = piece.replace_schema_metadata({_STATIC: after.static.encode()})
        end, start = offsets_digest(identity.end), offsets_digest(identity.start)
        put = TotalsPiece(end, start, 1, epoch)
        self._store.put(put.name, _to_parquet(named))
        self._recorded[end] = put
        known = self._known.setdefault(end, set())
        self._has_rivals |= bool(known - {put})
        known.add(put)
        self._keep(end, after)

    def committed(self, offsets: Offsets, *, epoch: int = 0) -> None:
        """Merge pieces before a committed position, if there are enough, and remove pieces no longer needed.

        Called after every checkpoint. It lists the pieces only if something may be left to do: a window may have tens
        of thousands of checkpoints, each with a piece.
        """
        position = offsets_digest(offsets)
        if position == self._tidied and not self._has_rivals:
            return
        pieces = self._remove_rivals(epoch)
        run = _mergeable_run(path_to(position, pieces) or [])
        try:
            if run:
                self._merge(run, epoch)
        except CheckpointGap as error:  # a newer run merged them; if they are lost, the next checkpoint fails
            _log.warning("pieces of the totals of view %s were not merged: %s", self._view, error)
        self._tidied = None if run else position

    def _remove_rivals(self, epoch: int) -> list[TotalsPiece]:
        """Remove pieces of a run with other checkpoint boundaries: the tables they joined may have changed since.

        Returns all that remain.
        """
        own, pieces = self._recorded, self._pieces()
        rivals = [piece for piece in pieces if piece.end in own and piece != own[piece.end]]
        self._remove(rivals, epoch)
        self._recorded, self._has_rivals = {}, False
        return self._pieces() if rivals else pieces

    def _merge(self, run: Sequence[TotalsPiece], epoch: int) -> None:
        tables = self._tables(run)
        whole = sum_by_group(tables)
        if run[0].start == _BEGINNING:
            whole = live_groups(whole, self._view)
        whole = whole.replace_schema_metadata(tables[-1].schema.metadata)
        merged_piece = TotalsPiece(run[-1].end, run[0].start, sum(p.checkpoints for p in run), epoch)
        self._store.put(merged_piece.name, _to_parquet(whole))
        self._remove(run, epoch)
        pieces = self._pieces()
        self._remove([piece for piece in pieces if path_to(piece.start, pieces) is None], epoch)

    def _remove(self, pieces: Sequence[TotalsPiece], epoch: int) -> None:
        """Remove pieces, unless a newer run has written one.

        The check lists again, after the listing that led to the removal: a newer run writes a merged piece before it
        removes the parts, so a run that missed a part for that reason sees the merged piece here.
        """
        if not pieces:
            return
        newest = max((piece.epoch for piece in self._pieces()), default=epoch)
        if newest > epoch:
            _log.warning("totals of view %s are left to epoch %d: this run has epoch %d", self._view, newest, epoch)
            return
        for piece in pieces:
            self._store.delete(piece.name)

    def _pieces(self) -> list[TotalsPiece]:
        found = [piece for name in self._store.list("") if (piece := TotalsPiece.parse(name))]
        self._known = {}
        for piece in found:
            self._known.setdefault(piece.end, set()).add(piece)
        return found

    def _path(self, position: str) -> list[TotalsPiece]:
        path = path_to(position, self._pieces())
        if path is None:
            raise CheckpointGap(
                f'the totals of view "{self._view}" are missing',
                detail=f"No pieces in the state location lead from the beginning of the input to {position}.",
                hint="Restore the state location, or rebuild the table from the beginning of the input.",
            )
        return path

    def _read(self, position: str) -> list[pa.Table]:
        """Read the pieces that lead to a position; lists again if some were merged while being read."""
        path = self._path(position)
        while True:
            try:
                return self._tables(path)
            except CheckpointGap:
                again = self._path(position)
                if again == path:
                    raise
                path = again

    def _tables(self, pieces: Sequence[TotalsPiece]) -> list[pa.Table]:
        tables = []
        for piece in pieces:
            data = self._store.read(piece.name)
            if data is None:
                raise CheckpointGap(
                    f'a piece of the totals of view "{self._view}" is missing',
                    detail=f"It is {piece.name}, from position {piece.start} to {piece.end}.",
                    hint="Restore the state location, or rebuild the table from the beginning of the input.",
                )
            tables.append(pq.read_table(pa.BufferReader(data)))
        return tables

    def _keep(self, position: str, totals: TotalsAt) -> None:
        self._recent.pop(position, None)
        self._recent[position] = totals
        while len(self._recent) > _KEPT:
            del self._recent[next(iter(self._recent))]


def _mergeable_run(path: Sequence[TotalsPiece]) -> list[TotalsPiece]:
    """The first run of consecutive pieces of about the same length that is long enough to be merged."""
    for _, pieces in groupby(path, lambda piece: piece.tier):
        run = list(islice(pieces, MOST_MERGED))
        if len(run) >= FANOUT:
            return run
    return []


def add_piece(totals: TotalsAt, piece: pa.Table, view: str) -> tuple[pa.Table, pa.Table]:
    """Add a piece: the totals after it, and the rows of the groups it touched; `n` is 0 for groups without rows."""
    tables = [_mark(totals.table, 0), _mark(piece.cast(totals.table.schema), 1)]
    both = sum_by_group(tables)
    touched = both.filter(pc.equal(both[_TOUCHED], 1)).drop_columns([_TOUCHED])
    _check_counts(touched, view)
    return live_groups(both.drop_columns([_TOUCHED]), view), touched


def _mark(table: pa.Table, mark: int) -> pa.Table:
    return table.append_column(_TOUCHED, pa.repeat(pa.scalar(mark, pa.int8()), table.num_rows))


def sum_by_group(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up tables with the same schema, group by group."""
    schema = tables[0].schema.remove_metadata()
    whole = pa.concat_tables([t.cast(schema) for t in tables])
    groups = [name for name in schema.names if name.startswith(GROUP)]
    rest = [name for name in schema.names if name not in groups]
    comparable = pa.table([_comparable(whole[name], name) for name in schema.names], schema.names)
    sums = comparable.group_by(groups, use_threads=False).aggregate([(name, _function(name)) for name in rest])
    ordered = sums.select([*groups, *(f"{name}_{_function(name)}" for name in rest)]).rename_columns([*groups, *rest])
    try:
        columns = [_restored(ordered[field.name], field) for field in schema]
        return pa.table(columns, schema=schema)
    except pa.ArrowInvalid as error:
        raise TerminalError("a sum has more than 38 digits", detail=str(error)) from error


def _comparable(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column in a form that Arrow sums without overflow and compares in Spark's order."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        return column.cast(pa.decimal256(76, kind.scale))  # room for any sum, so that overflow is detected
    if _function(name) != "sum" and kind in _BITS:
        # Arrow ignores NaN in minima and maxima, and does not order -0.0 and 0.0.
        nan = pa.scalar(float("nan"), kind)
        whole = pc.if_else(
            pc.is_nan(column), nan, column
        ).combine_chunks()  # NaN has many bit patterns, some of them negative
        return pa.chunked_array([_ordered_bits(whole.view(_BITS[kind]))])
    return column


def _restored(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Inverse of `_comparable`."""
    if _function(field.name) != "sum" and field.type in _BITS:
        return pa.chunked_array([_ordered_bits(column.combine_chunks()).view(field.type)])
    return column.cast(field.type)


def _ordered_bits(bits: pa.Array) -> pa.Array:
    """Map the bits of floats to integers of the same order: -Infinity, ..., -0.0, 0.0, ..., NaN. Its own inverse."""
    magnitude = pa.scalar((1 << (bits.type.bit_width - 1)) - 1, bits.type)
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, magnitude), bits)


def _function(name: str) -> str:
    return "min" if name.startswith("lo") else "max" if name.startswith("hi") or name == _TOUCHED else "sum"


def live_groups(table: pa.Table, view: str) -> pa.Table:
    """The groups that have rows. Raises TerminalError for a negative count."""
    _check_counts(table, view)
    return table.filter(pc.greater(table[ROWS], 0))


def _check_counts(table: pa.Table, view: str) -> None:
    wrong = table.filter(pc.less(table[ROWS], 0))
    if wrong.num_rows:
        first = wrong.select([n for n in wrong.column_names if n.startswith(GROUP)]).slice(0, 1).to_pylist()[0]
        raise TerminalError(
            f'more rows were removed from a group of view "{view}" than it has',
            detail=f"The group is ({', '.join(str(v) for v in first.values())}). A change arrived twice, or its before "
            "differs from the row.",
            hint="The source has to deliver every change once, with the complete row in before.",
        )


def _to_parquet(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return bytes(out.getvalue().to_pybytes())
