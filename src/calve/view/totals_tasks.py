"""Totals of views with many groups: Spark tasks add the changes of a checkpoint, and merge pieces.

    additions ──► by range of hashes ──► + the same groups in all pieces ──► a part: additions, and totals after them

There is one shuffle. A task owns ranges of hashes: it gets all additions to groups in them, reads the blocks of each
piece that have these groups, and writes a part. The driver gets descriptions of parts, and rows that are bad. Only
that task writes, under names with the number of its attempt, and only reported parts get into a record. What a killed
attempt leaves belongs to no piece, and is removed after later commits. A merge goes through the hashes range by range.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.errors import TransientError
from calve.keylookup.index.words import range_of
from calve.model.change import BAD
from calve.spark.owners import SENT, Shuffle, by_owner, received
from calve.spark.tasks import Tasks
from calve.spark.version import arrow_schema_of, collected
from calve.storage.state import NewRecords, StateStore, delete_unreferenced
from calve.view.blocks import (
    DamagedPart,
    GroupPart,
    HashSelection,
    LostPiece,
    PieceContents,
    encoded_part,
    group_hashes,
    rows_of_parts,
)
from calve.view.sums import add_piece, live_groups, sum_by_group

RANGE_ROWS = 1_000_000
"""About the most groups that a task holds: a few hundred megabytes."""
_LEAST_SHARE = 256 << 10
"""Bytes of rows that every task may return, however many there are."""


@dataclass(frozen=True)
class PartsAnswer:
    """What tasks wrote, and the bad rows; if a piece could not be read, only that."""

    parts: tuple[GroupPart, ...] = ()
    bad: tuple[pa.Table, ...] = ()
    lost: str = ""
    """The record of a piece that cannot be read."""

    def plus(self, other: "PartsAnswer") -> "PartsAnswer":
        """Both."""
        return PartsAnswer(self.parts + other.parts, self.bad + other.bad, self.lost or other.lost)


def answer_of(answers: Iterable[PartsAnswer], store: StateStore) -> PartsAnswer:
    """All answers of a job. Raises LostPiece, after removing what was written."""
    whole = PartsAnswer()
    for answer in answers:
        whole = whole.plus(answer)
    if whole.lost:
        discard_parts(store, whole.parts)
        raise LostPiece(whole.lost)
    return whole


def discard_parts(store: StateStore, parts: Iterable[GroupPart]) -> None:
    """Remove parts that no record names; what cannot be removed is left to a later clean-up."""
    delete_unreferenced(store, [part.name for part in parts])


def ranges_for(rows: int) -> int:
    """The number of ranges of hashes for this many groups."""
    return -(-rows // RANGE_ROWS) or 1


@dataclass(frozen=True)
class TotalsUpdate:
    """Adds the changes of a checkpoint. Pickled to tasks."""

    store: StateStore
    view: str
    pieces: tuple[PieceContents, ...]
    """They lead from the beginning to the start of the checkpoint."""
    schema: pa.Schema
    """Of the totals."""
    ranges: int
    stem: str
    """Unique: names of parts are derived from it."""

    def run(self, additions: DataFrame) -> PartsAnswer:
        """Add them in tasks. Raises LostPiece, TransientError, TerminalError."""
        tasks = Tasks(f'totals of view "{self.view}" could not be updated', self.discard)
        shuffle = Shuffle(self.ranges)
        split = tasks.through(additions, partial(shuffle.send, self.split), SENT)
        return answer_of(tasks.over(shuffle.at_owners(split), self.write), self.store)

    def discard(self, answer: PartsAnswer) -> None:
        """Remove the parts of a task whose job failed."""
        discard_parts(self.store, answer.parts)

    # ---- in a task

    def split(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, object]]:
        """Additions by the owner of their range; bad rows go to the first one."""
        for batch in batches:
            table = pa.Table.from_batches([batch])
            bad = table.filter(table[BAD].is_valid())
            if bad.num_rows:
                yield 0, PartsAnswer(bad=(bad,))
            fine = table.filter(table[BAD].is_null()).drop_columns([BAD]).cast(self.schema)
            for owner, rows in by_owner(range_of(group_hashes(fine), self.ranges)) if fine.num_rows else ():
                yield owner, fine.take(pa.array(rows))

    def write(self, batches: Iterable[pa.RecordBatch], attempt: str) -> PartsAnswer:
        """Write the parts of some ranges."""
        records, answer = NewRecords(self.store), PartsAnswer()
        with records.removed_on_failure():
            for owner, members in received(batches).items():
                for member in members:
                    answer = answer.plus(member) if isinstance(member, PartsAnswer) else answer
                tables = [member for member in members if isinstance(member, pa.Table)]
                if tables and not answer.lost:
                    answer = answer.plus(
                        self._part(f"{self.stem}-{attempt}-{owner}", pa.concat_tables(tables), records)
                    )
        return answer

    def _part(self, name: str, piece: pa.Table, records: NewRecords) -> PartsAnswer:
        selection = HashSelection.of(group_hashes(piece))
        try:
            before = [table for one in self.pieces for table in one.tables(self.store, selection)]
        except LostPiece as lost:
            return PartsAnswer(lost=lost.record)
        totals = live_groups(sum_by_group([self.schema.empty_table(), *before]), self.view)
        _, touched = add_piece(totals, piece, self.view)
        part, data = encoded_part(name, piece, touched)
        records.put(name, data)
        return PartsAnswer((part,))


@dataclass(frozen=True)
class TotalsMerge:
    """Merges pieces, range by range. Pickled to tasks."""

    store: StateStore
    view: str
    pieces: tuple[PieceContents, ...]
    whole: bool
    """Whether they begin at the beginning: groups without rows are dropped."""
    ranges: int
    stem: str

    def run(self, spark: SparkSession) -> tuple[GroupPart, ...]:
        """Merge in tasks. Raises LostPiece, TransientError, TerminalError."""
        tasks = Tasks(f'totals of view "{self.view}" could not be merged', self.discard)
        return answer_of(tasks.run(spark, range(self.ranges), self.task), self.store).parts

    def discard(self, answer: PartsAnswer) -> None:
        """Remove the part of a task whose job failed."""
        discard_parts(self.store, answer.parts)

    def task(self, number: int, attempt: str) -> PartsAnswer:
        """Merge one range."""
        selection = HashSelection.of_range(number, self.ranges)
        try:
            tables = [table for piece in self.pieces for table in piece.tables(self.store, selection)]
        except LostPiece as lost:
            return PartsAnswer(lost=lost.record)
        if not sum(table.num_rows for table in tables):
            return PartsAnswer()
        merged = sum_by_group(tables)
        merged = live_groups(merged, self.view) if self.whole else merged
        if not merged.num_rows:
            return PartsAnswer()
        records, name = NewRecords(self.store), f"{self.stem}-{attempt.replace('/', '-')}"
        with records.removed_on_failure():
            part, data = encoded_part(name, merged)
            records.put(name, data)
        return PartsAnswer((part,))


@dataclass(frozen=True)
class _FewRows:
    """The rows of a task, unless they are too many; their number, and their bytes."""

    count: int
    size: int
    batches: tuple[pa.RecordBatch, ...] | None


def collected_within(additions: DataFrame, most: int, primary: str) -> tuple[pa.Table | None, int]:
    """The rows of a frame if they take at most so many bytes, else None; and their number. Raises CalveError.

    Each task returns its rows if they fit its share of `most`, so the driver never gets much more than that. If all
    rows fit, and those of a task exceed its share, they are computed a second time.
    """
    tasks = additions.sparkSession.sparkContext.defaultParallelism
    share = min(most, max(_LEAST_SHARE, most // tasks))
    answers = Tasks[_FewRows](primary).over(additions.coalesce(tasks), partial(_rows_within, share))
    count, size = sum(answer.count for answer in answers), sum(answer.size for answer in answers)
    if size > most:
        return None, count
    if any(answer.batches is None for answer in answers):
        return collected(additions), count
    schema = arrow_schema_of(additions.schema)
    tables = [pa.Table.from_batches([batch]).cast(schema) for answer in answers for batch in answer.batches or ()]
    return pa.concat_tables([schema.empty_table(), *tables]), count


def _rows_within(share: int, batches: Iterator[pa.RecordBatch], _attempt: str) -> _FewRows:
    kept: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        size, count = size + batch.nbytes, count + batch.num_rows
        kept = [*kept, batch] if size <= share else []
    return _FewRows(count, size, tuple(kept) if size <= share else None)


def frame_after(spark: SparkSession, store: StateStore, parts: Sequence[GroupPart], schema: StructType) -> DataFrame:
    """The totals of the groups that a checkpoint touched, which its parts contain, read by tasks."""
    tasks = max(1, min(len(parts), spark.sparkContext.defaultParallelism))
    numbers = spark.range(0, len(parts), 1, tasks)
    read = partial(_read_parts, store, tuple(parts), arrow_schema_of(schema))
    return Tasks[None]("totals of a view could not be read").through(numbers, read, schema)


def _read_parts(
    store: StateStore, parts: Sequence[GroupPart], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    chosen = [parts[number] for batch in batches for number in batch.column(0).to_pylist()]
    try:
        yield from rows_of_parts(store, chosen, schema)
    except DamagedPart as error:  # a repeated checkpoint writes them again
        raise TransientError("totals of a view could not be read", detail=f"{error} is missing or damaged") from error
