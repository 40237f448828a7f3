"""Rewrites groups of data files, sorted and with deletes applied, and keeps track of where every row goes.

    files ──► live positions ──► order by key ──► slices of rows, read along ──► rolling files
                                     └──► places: old position -> new position

Files of calve are sorted already, so they are streamed and merged, a slice at a time. An unsorted file is held in
memory; if these are too large, their rows go to a temporary file, by the slice that they belong to. Small files are
read at once, several at a time, and held, as long as there is room: opening them is what takes time. Memory: keys and
places of the rows of a group, a slice, and what is held.

A Z-order interleaves the bits of the columns' ranks: rows that are close in all columns are close in the file, so that
every column tells files apart. Ranks instead of values: equal numbers of rows, whatever the type and the distribution.

    groups ──► bundles of about a million rows ─┬─► this process, one after the other       a moment's work
                                                ├─► processes beside it                     on a sink's only machine
                                                └─► Spark, one job of one task each         everything else

A bundle is what succeeds, fails and is committed as a whole. Only as many bundles are being rewritten at a time as the
share of the cores allows: pools of Spark's FAIR scheduler have equal weights, and a task that has begun keeps its core.
So the limit also holds on a session whose scheduler is FIFO.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from os import SEEK_END
from tempfile import TemporaryFile
from typing import IO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calve.errors import CalveError, TerminalError
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.files.store import absent, remove_new
from calve.iceberg.planning.compaction_groups import SORTED_ROWS
from calve.iceberg.schema.readable import LAST_UPDATED, ROW_ID, ReadTarget
from calve.keylookup.search import SparkJobs
from calve.model.files import WriteTarget, WrittenFile
from calve.model.scan import ContentId, DeleteKind, ScanFile, SortFields
from calve.reader.deletes import TaskDeletes, paths_named
from calve.reader.key_positions import key_columns_at
from calve.reader.rows import HeldRows, LiveRows, live_rows, read_at_once, read_split, whole
from calve.spark.failures import own_file_failure, told_as
from calve.spark.session import is_local
from calve.spark.tasks import CHECK_SECONDS, Tasks, cancelled
from calve.write.data_files import FileKind, FileNames, RollingFiles, partitioner_for

HELD_BYTES = 512 << 20
"""Size up to which rows of unsorted files are held in memory; small files take at most half as much."""
SMALL_BYTES = 4 << 20
"""Size of a file up to which it is read at once."""
SMALL_READS = 8
"""Small files that are read at the same time: stores take long to answer."""
RANK_BITS = 21
"""Bits of a column in a Z-order, if there is room for them: far more values than there are files."""
SLICE_BYTES = 64 << 20
SLICE_ROWS = 1 << 18
BUNDLE_ROWS = 1_000_000
"""Rows from which on groups are a bundle of their own: about a second's work."""

_FAILED = "data files could not be rewritten"

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class GroupWork:
    """One group of files of one partition, and everything needed to rewrite them."""

    inputs: tuple[ScanFile, ...]
    """The files, with their deletes."""
    reading: ReadTarget
    order: SortFields
    target: WriteTarget
    name: str
    """Unique: names of new files are derived from it."""


@dataclass(frozen=True, eq=False)
class Rewritten:
    """Result of rewriting a group."""

    inputs: tuple[ScanFile, ...]
    files: tuple[WrittenFile, ...]
    places: tuple[NDArray[np.int32], ...]
    """For each input: each row's place among the rows of all new files, -1 for a deleted row."""
    named: Mapping[ContentId, frozenset[str]]
    """Position delete files of the inputs -> all data files that they refer to."""

    @property
    def rows(self) -> int:
        """Number of rows in the new files."""
        return sum(file.record_count for file in self.files)

    def moved(self, number: int, positions: Numbers) -> list[RowPositions]:
        """Map positions of an input that were deleted after it was read to the new files; skips deleted rows."""
        places = self.places[number]
        now = places[positions[positions < len(places)]]
        now = np.sort(now[now >= 0]).astype(np.int64)
        ends = np.cumsum([file.record_count for file in self.files])
        cuts = [0, *np.searchsorted(now, ends).tolist()]
        return [
            RowPositions(
                ScanFile(file.path, file.size, file.record_count, 0, spec_id=file.spec_id, partition=file.partition),
                now[low:high] - (end - file.record_count),
            )
            for file, end, low, high in zip(self.files, ends, cuts, cuts[1:], strict=False)
            if low < high
        ]


def rewrite(work: GroupWork, check: Callable[[], None]) -> Rewritten:
    """Rewrite a group. `check` is called periodically, and raises to cancel.

    Removes its files if it fails. Raises TransientError; TerminalError if rows would be lost.
    """
    names = _names(work)
    with names.removed_on_failure(), _translate_failures(work):
        return _rewrite_files(work, names, check)


def _rewrite_files(work: GroupWork, names: FileNames, check: Callable[[], None]) -> Rewritten:
    deletes = TaskDeletes(work.reading, work.inputs)
    small = _read_small_files(work, deletes, check)
    live: list[LiveRows] = []
    for number, file in enumerate(work.inputs):
        check()
        live.append(small[number].live if number in small else live_rows(file, work.reading, deletes))
    starts = np.cumsum([0, *(len(one.positions) for one in live)])
    order = _order(work, live, small)
    places = np.empty(starts[-1], np.int32)
    places[order] = np.arange(starts[-1], dtype=np.int32)
    spans = list(itertools.pairwise(starts.tolist()))
    unsorted = [number not in small and not _ascends(places[low:high]) for number, (low, high) in enumerate(spans)]
    held = sum(
        one.row_bytes * len(one.positions) for one, out_of_order in zip(live, unsorted, strict=True) if out_of_order
    )
    step = _slice_rows(live)
    with ExitStack() as stack:
        spill = stack.enter_context(TemporaryFile(prefix="calve-rewrite-")) if held > HELD_BYTES else None
        sources = _Sources(work.reading.schema)
        for number, (file, (low, high)) in enumerate(zip(work.inputs, spans, strict=True)):
            if number in small:
                rows = small.pop(number).rows
                sources.hold(low, _lineage_of(rows.to_batches(), file, live[number].positions))
                continue
            batches = _lineage_of(read_split(whole(file), work.reading, deletes), file, live[number].positions)
            if not unsorted[number]:
                sources.add(low, _Stream(batches, work.reading.schema))
            elif spill is None:
                sources.add(low, _Held(batches, work.reading.schema))
            else:
                sources.add(low, _Spilled(batches, places[low:high], step, spill, check))
        out = stack.enter_context(RollingFiles(_kind(work), work.target, names))
        for slice_rows in sources.slices(order, step):
            check()
            out.write(slice_rows)
    _check_counts(work, live, out.files)
    return Rewritten(
        inputs=work.inputs,
        files=out.files,
        places=tuple(
            _by_position(file.rows, one.positions, places[low:high])
            for file, one, (low, high) in zip(work.inputs, live, spans, strict=True)
        ),
        named=_named(work),
    )


def _read_small_files(work: GroupWork, deletes: TaskDeletes, check: Callable[[], None]) -> dict[int, HeldRows]:
    """Read small files, by their number, as long as there is room for their rows."""
    numbers = [number for number, file in enumerate(work.inputs) if file.size <= SMALL_BYTES]
    held: dict[int, HeldRows] = {}
    room = HELD_BYTES // 2
    with ThreadPoolExecutor(SMALL_READS, "calve-small-files") as threads:
        for start in range(0, len(numbers), SMALL_READS):
            if room <= 0:
                break
            check()
            next_ones = numbers[start : start + SMALL_READS]
            tasks = [
                threads.submit(read_at_once, file, work.reading, deletes.of(file), work.order.ids)
                for file in (work.inputs[number] for number in next_ones)
            ]
            held |= {number: task.result() for number, task in zip(next_ones, tasks, strict=True)}
            room -= sum(held[number].rows.nbytes for number in next_ones)
    return held


def _lineage_of(batches: Iterable[pa.RecordBatch], file: ScanFile, positions: Numbers) -> Iterator[pa.RecordBatch]:
    return iter(batches) if file.first_row_id is None else _with_lineage(batches, file, positions)


def _with_lineage(batches: Iterable[pa.RecordBatch], file: ScanFile, positions: Numbers) -> Iterator[pa.RecordBatch]:
    """State the ids and sequence numbers that rows inherit: in another file they would inherit others."""
    done = 0
    for batch in batches:
        ids = pa.array(positions[done : done + batch.num_rows] + (file.first_row_id or 0), pa.int64())
        done += batch.num_rows
        kept = batch.column(ROW_ID.name), batch.column(LAST_UPDATED.name)
        filled = pc.coalesce(kept[0], ids), pc.fill_null(kept[1], file.sequence_number)
        for field, values in zip((ROW_ID, LAST_UPDATED), filled, strict=True):
            at = batch.schema.get_field_index(field.name)
            batch = batch.set_column(at, batch.schema.field(at), values)  # noqa: PLW2901 - column by column
        yield batch


def _order(work: GroupWork, live: Sequence[LiveRows], small: Mapping[int, HeldRows]) -> Numbers:
    """Return the numbers of all rows, counted across the files, in the order in which to write them."""
    total = sum(len(one.positions) for one in live)
    as_they_are = np.arange(total)
    ids = work.order.ids
    if not ids or not total or total > SORTED_ROWS:
        return as_they_are
    parts = [
        small[number].keys if number in small else key_columns_at(work.reading, RowPositions(file, one.positions), ids)
        for number, (file, one) in enumerate(zip(work.inputs, live, strict=True))
        if len(one.positions)
    ]
    columns = [pa.chunked_array([c for part in parts for c in part[at].chunks]) for at in range(len(ids))]
    if work.order.interleaved:
        return np.argsort(z_order(columns), kind="stable")
    nulls_first = [key for one in columns for key in ([one.is_valid(), one] if one.null_count else [one])]
    table = pa.table(nulls_first, names=[str(at) for at in range(len(nulls_first))])
    order: Numbers = pc.sort_indices(table, sort_keys=[(n, "ascending") for n in table.column_names]).to_numpy()
    return order.astype(np.int64)


def z_order(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.uint64]:
    """The place of each row in the Z-order of columns: the bits of its ranks in them, interleaved; nulls first."""
    bits = min(RANK_BITS, 63 // len(columns))
    found = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        ranks = _ranks(column)
        ranks = ranks * np.uint64((1 << bits) - 1) // np.uint64(max(1, len(column) - 1))
        for bit in range(bits):
            at = bit * len(columns) + len(columns) - 1 - number
            found |= ((ranks >> np.uint64(bit)) & np.uint64(1)) << np.uint64(at)
    return found


def _ranks(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """For each value, the number of rows with smaller ones; nulls are the smallest."""
    order = pc.sort_indices(column).to_numpy()[: len(column) - column.null_count]  # nulls are last
    ordered = column.take(pa.array(order))
    first = np.ones(len(order), bool)
    first[1:] = ~pc.equal(ordered[1:], ordered[:-1]).to_numpy()
    ranks = np.zeros(len(column), np.uint64)
    ranks[order] = column.null_count + np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    return ranks


def _ascends(places: NDArray[np.integer]) -> bool:
    return bool((places[1:] > places[:-1]).all())


def _slice_rows(live: Sequence[LiveRows]) -> int:
    rows = sum(len(one.positions) for one in live)
    size = sum(one.row_bytes * len(one.positions) for one in live)
    return int(min(SLICE_ROWS, max(256, SLICE_BYTES * rows // max(1, size))))


class _Source(Protocol):
    """Live rows of one file."""

    def rows(self, numbers: Numbers) -> pa.Table:
        """Return the rows with these numbers; each row is requested once."""
        ...


class _Stream:
    """Rows that are requested in the order of the file."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches, self._rest = batches, schema.empty_table()

    def rows(self, numbers: Numbers) -> pa.Table:
        parts, missing = [], len(numbers)
        while True:
            part = self._rest.slice(0, missing)
            self._rest = self._rest.slice(len(part))
            parts.append(part)
            missing -= len(part)
            if not missing:
                return pa.concat_tables(parts)
            self._rest = pa.Table.from_batches([next(self._batches)])


class _Held:
    """Rows of an unsorted file, or of small ones: all are in memory from the first request on."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches, self._schema = batches, schema
        self._table: pa.Table | None = None

    def rows(self, numbers: Numbers) -> pa.Table:
        if self._table is None:
            self._table = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        return self._table.take(pa.array(numbers))


class _Spilled:
    """Rows of an unsorted file that do not fit into memory.

    On the first request all are written to a temporary file, sorted in portions, and cut where slices end; so the rows
    of a slice are read with one access for each portion.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        places: NDArray[np.int32],
        step: int,
        file: IO[bytes],
        check: Callable[[], None],
    ) -> None:
        self._batches, self._places, self._step = batches, places, step
        self._file, self._check = file, check
        self._pieces: dict[int, list[tuple[int, int]]] | None = None
        """Slice -> offset and size of each piece."""
        self._schema: pa.Schema | None = None

    def rows(self, numbers: Numbers) -> pa.Table:
        if self._pieces is None:
            self._pieces = defaultdict(list)
            self._write(self._pieces)
        pieces = []
        for offset, size in self._pieces.pop(int(self._places[numbers[0]]) // self._step):
            self._file.seek(offset)
            pieces.append(pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema))
        found = pa.Table.from_batches(pieces)
        ordered = found.take(pa.array(np.argsort(found.column(_PLACE).to_numpy())))
        return ordered.drop_columns([_PLACE])

    def _write(self, pieces: dict[int, list[tuple[int, int]]]) -> None:
        done, portion, size = 0, list[pa.RecordBatch](), 0
        for batch in self._batches:
            self._check()
            portion.append(batch)
            size += batch.nbytes
            if size >= SLICE_BYTES:
                done += self._write_portion(portion, done, pieces)
                portion, size = [], 0
        if portion:
            self._write_portion(portion, done, pieces)

    def _write_portion(
        self, batches: Sequence[pa.RecordBatch], start: int, pieces: dict[int, list[tuple[int, int]]]
    ) -> int:
        table = pa.Table.from_batches(batches)
        places = self._places[start : start + len(table)]
        by_place = np.argsort(places)
        table = table.append_column(_PLACE, pa.array(places)).take(pa.array(by_place))
        slices, cuts = np.unique(places[by_place] // self._step, return_index=True)
        for slice_number, low, high in zip(slices.tolist(), cuts, [*cuts[1:], len(table)], strict=True):
            for piece in table.slice(low, high - low).combine_chunks().to_batches():
                self._schema = piece.schema
                offset = self._file.seek(0, SEEK_END)
                pieces[slice_number].append((offset, self._file.write(piece.serialize())))
        return len(table)


_PLACE = "calve place"


class _Sources:
    """The rows of all files of a group, numbered across them; files are added in their order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._starts: list[int] = []
        self._sources: list[_Source] = []
        self._small: list[pa.RecordBatch] = []
        """The rows of the last source, as long as it can take more small files."""

    def add(self, start: int, source: _Source) -> None:
        """Rows from number `start` on."""
        self._starts.append(start)
        self._sources.append(source)
        self._small = []

    def hold(self, start: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows of a small file: those that follow each other are one source."""
        if not self._small:
            small: list[pa.RecordBatch] = []
            self.add(start, _Held(small, self._schema))
            self._small = small
        self._small.extend(batches)

    def slices(self, order: Numbers, step: int) -> Iterator[pa.Table]:
        """The rows in this order."""
        starts = np.array(self._starts, np.int64)
        for start in range(0, len(order), step):
            piece = order[start : start + step]
            owners = np.searchsorted(starts, piece, side="right") - 1
            by_owner = np.argsort(owners, kind="stable")
            cuts = np.searchsorted(owners[by_owner], np.arange(len(starts) + 1))
            parts = [
                source.rows(piece[by_owner[low:high]] - starts[number])
                for number, (source, low, high) in enumerate(zip(self._sources, cuts, cuts[1:], strict=False))
                if low < high
            ]
            if len(parts) == 1:
                yield parts[0]
                continue
            back = np.empty(len(piece), np.int64)
            back[by_owner] = np.arange(len(piece))
            yield pa.concat_tables(parts).combine_chunks().take(pa.array(back))


def _by_position(rows: int, positions: Numbers, places: NDArray[np.int32]) -> NDArray[np.int32]:
    found = np.full(rows, -1, np.int32)
    found[positions] = places
    return found


def _named(work: GroupWork) -> dict[ContentId, frozenset[str]]:
    """Return the data files that each position delete file refers to."""
    files = {d.id: d for file in work.inputs for d in file.deletes if d.kind is DeleteKind.POSITION}
    return {known: paths_named(file.path, work.reading.io_properties) for known, file in files.items()}


def _names(work: GroupWork) -> FileNames:
    return FileNames(work.target, work.name, "compaction")


def _kind(work: GroupWork) -> FileKind:
    kind, partitioner = FileKind.data(work.target), partitioner_for(work.target)
    values = work.inputs[0].partition
    return replace(kind, partition=values, folder=partitioner.folder(values) if partitioner else "")


def _check_counts(work: GroupWork, live: Sequence[LiveRows], files: Sequence[WrittenFile]) -> None:
    listed, read = sum(file.rows for file in work.inputs), sum(one.rows for one in live)
    left, found = sum(len(one.positions) for one in live), sum(file.record_count for file in files)
    if (listed, left) != (read, found):
        raise TerminalError(
            "a compaction would have changed the number of rows",
            detail=f"{len(work.inputs)} files have {listed:,} rows according to their manifests and {read:,} in fact; "
            f"{left:,} of them are not deleted, {found:,} were written.",
            hint="Nothing was committed.",
        )


@contextmanager
def _translate_failures(work: GroupWork) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        inputs = f"{work.inputs[0].path} and {len(work.inputs) - 1} others"
        raise own_file_failure(error, _FAILED, inputs) from error


# ---- bundles of groups

Bundle = tuple[GroupWork, ...]
Outcome = tuple[Rewritten, ...] | CalveError
"""The results of the groups of a bundle, or why it failed; then it left no files."""


def bundles_of(works: Sequence[GroupWork], rows: int) -> list[Bundle]:
    """Groups in their order, in bundles of at least `rows` rows but for the last."""
    bundles: list[Bundle] = []
    filled = 0
    for work in works:
        if not bundles or filled >= rows:
            bundles.append(())
            filled = 0
        bundles[-1] += (work,)
        filled += sum(file.rows for file in work.inputs)
    return bundles


def rewrite_here(bundles: Sequence[Bundle], check: Callable[[], None]) -> Generator[Outcome, None, None]:
    """Rewrite bundles in this process; yields the outcome of each. `check` raises to cancel."""
    for bundle in bundles:
        try:
            outcome: Outcome = rewrite_bundle(bundle, check)
        except CalveError as error:
            outcome = error
        yield outcome


@dataclass(frozen=True)
class SparkCores:
    """The cores that rewrites may use."""

    most: int
    local: bool
    """Whether they are those of this machine."""


def spark_cores(jobs: SparkJobs, share: float) -> SparkCores:
    """A share of the cores, at least one. Raises TransientError."""
    with told_as(_FAILED):
        context = jobs.session().sparkContext
        return SparkCores(max(1, int(share * context.defaultParallelism)), is_local(str(context.master)))


def rewrite_by_tasks(
    bundles: Sequence[Bundle], jobs: SparkJobs, at_once: int, name: str, check: Callable[[], None]
) -> Generator[Outcome, None, None]:
    """Rewrite bundles with Spark tasks, at most this many at once; yields outcomes as tasks end.

    `name` is that of the job group. If `check` raises, or the iterator is closed, the tasks are cancelled, and finished
    ones whose outcomes were not asked for yet are undone; those that are killed leave orphan files.
    """
    with told_as(_FAILED):
        context = jobs.session().sparkContext

    def run(bundle: Bundle) -> Outcome:
        try:
            with told_as(_FAILED):
                spark = jobs.session()  # in the pool, which belongs to the thread as the job group does
                spark.sparkContext.setJobGroup(name, f"compaction, {len(bundle)} groups of files")
            tasks: Tasks[tuple[Rewritten, ...]] = Tasks(_FAILED, partial(_discard, bundle))
            return tasks.run(spark, [bundle], _rewrite_in_task)[0]
        except CalveError as error:
            return error

    return outcomes_of(bundles, run, at_once, lambda: context.cancelJobGroup(name), check)


def outcomes_of(
    bundles: Sequence[Bundle],
    run: Callable[[Bundle], Outcome],
    at_once: int,
    cancel: Callable[[], None],
    check: Callable[[], None],
) -> Generator[Outcome, None, None]:
    """Run bundles in threads, at most this many at once; yields outcomes as they end.

    If `check` raises, or the iterator is closed, `cancel` is called until those that run have ended, and outcomes that
    were not asked for yet are undone.
    """
    with ThreadPoolExecutor(min(at_once, len(bundles)), "calve-compaction") as threads:
        running = {threads.submit(run, bundle): bundle for bundle in bundles}
        try:
            while running:
                check()
                for future in wait(running, CHECK_SECONDS, FIRST_COMPLETED).done:
                    del running[future]
                    yield future.result()
        finally:
            for future in cancelled(running, cancel):
                outcome = future.result()
                if not isinstance(outcome, CalveError):
                    _discard(running[future], outcome)


def _discard(bundle: Bundle, done: Sequence[Rewritten]) -> None:
    paths = [file.path for one in done for file in one.files]
    remove_new(paths, bundle[0].target.io_properties, "their compaction ended before it was complete")


def discard_unreported(bundle: Bundle) -> None:
    """Remove the files of a bundle whose process died before it reported them: their names follow from the work.

    A file is begun when the one before it is complete. What cannot be looked up is left as an orphan.
    """
    for work in bundle:
        names, folder, properties = _names(work), _kind(work).folder, work.target.io_properties
        with suppress(OSError):
            left = takewhile(lambda one: not absent([one], properties), iter(lambda: names.fresh(folder), None))  # noqa: B023 - used at once
            remove_new(list(left), properties, "the process that wrote them died")


def rewrite_bundle(bundle: Bundle, check: Callable[[], None]) -> tuple[Rewritten, ...]:
    """Rewrite a bundle in this thread; leaves no files if it fails. Raises what `check` raises and `rewrite`."""
    done: list[Rewritten] = []
    try:
        for work in bundle:
            check()
            done.append(rewrite(work, check))
    except BaseException:
        _discard(bundle, done)
        raise
    return tuple(done)


def _rewrite_in_task(bundle: Bundle, attempt: str) -> tuple[Rewritten, ...]:
    return rewrite_bundle(tuple(replace(work, name=f"{work.name}/{attempt}") for work in bundle), lambda: None)
