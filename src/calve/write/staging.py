"""Stages the changes of a checkpoint in the state location until their window closes, and reads them back.

Rows are checked before they are staged, so a bad record stops its own checkpoint and not a later one. They are staged
as they arrive, without a shuffle: closing the window shuffles all of them once, by key. A file has the table's columns
and either the operation and the order columns or the time and the multiplicity of a row. Its record (`RowKind`) says
which columns these are, so rows of checkpoints with different columns or orders can be read together.

If rows have their own times, a file may contain rows of several windows, and each batch reads its own. Late rows are
detected here, on arrival.
"""

import io
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, count
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from calve.errors import CalveError, CheckpointGap, TransientError
from calve.iceberg.schema.readable import Names, ReadTarget
from calve.iceberg.schema.staged import StagedColumns, staged_columns, staged_names
from calve.model.change import BAD, ORDER, ORDER_PREFIX, PROGRESS, TIME, order_columns
from calve.model.checkpoint import CheckpointEntry, RowKind, SizeHint, Staged
from calve.model.files import WriteTarget
from calve.model.frontier import BatchDescription
from calve.reader.projection import Projection
from calve.spark.failures import CAUGHT, failure_of, own_file_failure
from calve.spark.sqltext import ident
from calve.spark.tasks import TaskFailed, Tasks
from calve.spark.version import frame_of_rows
from calve.storage.state import NewRecords, StateStore
from calve.write.batch import fits_the_driver
from calve.write.changes import ArrowChanges, check_changes
from calve.write.driver_writer import collect_within_limit
from calve.write.job import BatchTooLarge, layout_of
from calve.write.timed import TimeRule, times_in_batch

_FILE, _AT, _KIND = "_calve__file", "_calve__at", "_calve__kind"
_AT_FIELD = T.StructField(_AT, T.LongType())
_LISTED = T.StructType(
    [
        T.StructField(TIME, T.LongType()),
        _AT_FIELD,
        T.StructField(_KIND, T.IntegerType()),
        T.StructField(_FILE, T.StringType()),
    ]
)
"""Columns of a list of staged files."""
_ROWS_PER_FILE = 1_000_000
_BYTES_PER_FILE = 128 << 20
"""In memory."""
_FAILED = "the changes could not be staged"


@dataclass(frozen=True)
class StageFolder:
    """Where a run stages changes. Pickled into tasks."""

    store: StateStore
    name: str
    clock: TimeRule | None = None
    """Set if rows have their own times."""

    def put(self, rows: pa.Table) -> Staged:
        """Write rows to one file; no rows, no file."""
        timed = self.clock.apply(rows) if self.clock else None
        rows = timed.rows if timed else rows
        names: tuple[str, ...] = ()
        data = b""
        if rows.num_rows:
            out = io.BytesIO()
            pq.write_table(rows, out, compression="zstd")
            data = out.getvalue()
            names = (f"{self.name}/{uuid.uuid4()}.parquet",)
            self.store.put(names[0], data)
        staged = Staged(names, rows.num_rows, len(data))
        return timed.describe(staged) if timed else staged


def stage_batch(
    given: DataFrame | ArrowChanges, target: WriteTarget, folder: StageFolder, kind: RowKind, *, size: SizeHint
) -> Staged:
    """Stage changes. `kind` describes them except for their columns, which come from `target`.

    A frame may be computed more than once, so it has to produce the same rows every time. Raises BadRow, LateRow, or
    TransientError if a retry may succeed.
    """
    layout = layout_of(given.columns, target)
    try:
        if isinstance(given, ArrowChanges):
            kind = replace(kind, columns=_columns_of(target), beside=given.beside.json())
            return replace(_stage(folder, [given.checked(layout)]), kind=kind)
        changes = check_changes(given, layout)
        behind = changes.schema.fields[len(layout.columns) :]
        beside = T.StructType([field for field in behind if field.name != PROGRESS])  # not stored
        kind = replace(kind, columns=_columns_of(target), beside=beside.json())
        if fits_the_driver(size):
            with suppress(BatchTooLarge):  # its rows are few, and large
                return replace(_stage(folder, [collect_within_limit(changes)]), kind=kind)
        plain = changes.toDF(*[f"c{i}" for i in range(len(changes.columns))])  # mapInArrow fails for names with a dot
        tasks = Tasks(_FAILED, partial(discard_staged, folder.store))
        parts = tasks.over(plain, partial(_stage_partition, folder, tuple(changes.columns)))
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error, _FAILED) from error
    return replace(_combine(parts, folder), kind=kind)


def _columns_of(target: WriteTarget) -> str:
    """The schema without its id, which also grows with columns that these rows do not have."""
    return json.dumps({"type": "struct", "fields": json.loads(target.schema_json)["fields"]})


def _stage(folder: StageFolder, tables: Iterable[pa.Table]) -> Staged:
    """Stage all rows or none: no record names the files before this returns."""
    records = NewRecords(folder.store)
    own = replace(folder, store=records)
    with records.removed_on_failure():
        return _combine([own.put(rows) for rows in tables], folder)


def discard_staged(store: StateStore, staged: Staged) -> None:
    """Remove staged files that no record names or will name."""
    for name in staged.files:
        with suppress(TransientError):
            store.delete(name)


def _combine(parts: list[Staged], folder: StageFolder) -> Staged:
    files = tuple(name for part in parts for name in part.files)
    staged = Staged(files, sum(part.rows for part in parts), sum(part.bytes for part in parts))
    return folder.clock.combine(staged, parts) if folder.clock else staged


def _stage_partition(
    folder: StageFolder, columns: tuple[str, ...], batches: Iterator[pa.RecordBatch], _attempt: str
) -> Staged:
    return _stage(folder, _tables_per_file(batches, columns))


def _tables_per_file(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Group batches into tables, one per file, bounded by what memory should hold."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch.rename_columns(list(columns)))
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS_PER_FILE or size >= _BYTES_PER_FILE:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


# reading back


def size_of(staged: Sequence[Staged]) -> SizeHint:
    """The size of all rows of some checkpoints."""
    return SizeHint(rows=sum(part.rows for part in staged), stored=sum(part.bytes for part in staged))


@dataclass(frozen=True)
class StagedRows:
    """The staged rows of a checkpoint, and their kind."""

    entry: CheckpointEntry
    kind: RowKind

    @property
    def files(self) -> tuple[str, ...]:
        """Their files in the state location."""
        return self.entry.staged.files if self.entry.staged else ()


@dataclass(frozen=True)
class StagedBatch:
    """The changes of a batch from at least one checkpoint, in order, with the columns of the table.

    Changes of one key are ordered by their own time, or by an order that holds across checkpoints, if they have one,
    then by checkpoint. Other order columns are compared only within a checkpoint: another one may order differently.
    """

    store: StateStore
    checkpoints: Sequence[StagedRows]
    target: WriteTarget
    batch: BatchDescription

    def frame(self, spark: SparkSession) -> DataFrame:
        """As a frame of changes."""
        table, beside = self._table, self._beside
        fields = [*table, *(column.field for column in beside), _AT_FIELD]
        # mapInArrow fails for names with a dot
        positions = T.StructType([T.StructField(f"c{i}", f.dataType) for i, f in enumerate(fields)])
        files = self._files
        tasks = min(len(files), 2 * spark.sparkContext.defaultParallelism)
        listed = frame_of_rows(spark, files, _LISTED)
        read = listed.repartition(tasks).mapInArrow(partial(_Reader.rows, self._reader), positions)
        orders = order_columns(column.field.name for column in beside)
        others = [ident(f.name) for f in fields if f.name not in {*orders, _AT}]
        renamed = [f"{ident(*path)} as {ORDER_PREFIX}{i}" for i, path in enumerate(self._ordered_by)]
        return read.toDF(*[f.name for f in fields]).selectExpr(*others, *renamed, f"cast(null as string) as {BAD}")

    def in_memory(self, most_bytes: int) -> ArrowChanges | None:
        """All of them in memory; None if they take more bytes than that. Raises what tasks raise that read them."""
        names = [*(field.name for field in self._table), *(column.field.name for column in self._beside), _AT]
        parts, size = list[pa.RecordBatch](), 0
        for part in chain.from_iterable(self._reader.file(_Listed(*file)) for file in self._files):
            parts.append(part.rename_columns(names))
            size += part.nbytes
            if size > most_bytes:
                return None
        rows = pa.Table.from_batches(parts)
        orders = set(order_columns(names))
        kept = rows.select([name for name in names if name not in {*orders, _AT}])
        for i, (name, *below) in enumerate(self._ordered_by):
            values = pc.struct_field(rows[name], below) if below else rows[name]
            kept = kept.append_column(f"{ORDER_PREFIX}{i}", values)
        beside = T.StructType([column.field for column in self._beside if column.field.name not in orders])
        return ArrowChanges(kept, T.StructType(self._table), beside)

    @cached_property
    def _kinds(self) -> list[RowKind]:
        return list(dict.fromkeys(part.kind for part in self.checkpoints))

    @cached_property
    def _columns(self) -> StagedColumns:
        return staged_columns(self.target.schema_json)

    @cached_property
    def _table(self) -> list[T.StructField]:
        return list(T.StructType.fromJson(self._columns.spark).fields)

    @cached_property
    def _beside(self) -> "tuple[_Beside, ...]":
        return _beside(self._kinds, {field.name for field in self._table})

    @cached_property
    def _reader(self) -> "_Reader":
        names = tuple(staged_names(kind.columns) for kind in self._kinds)
        timed = self.checkpoints[0].entry.timed
        return _Reader(self.store, self.batch, self._columns.arrow, names, self._beside, own_times=timed)

    @property
    def _files(self) -> list[tuple[int, int, int, str]]:
        listed = enumerate(self.checkpoints)
        return [(p.entry.time, at, self._kinds.index(p.kind), name) for at, p in listed for name in p.files]

    @property
    def _ordered_by(self) -> list[tuple[str, ...]]:
        """The paths of what changes are ordered by, most significant first."""
        own = [(TIME,)] if self._reader.own_times else []
        orders = order_columns(column.field.name for column in self._beside)
        return [*own, *_across_checkpoints(self._table), (_AT,), *((name,) for name in orders)]


@dataclass(frozen=True)
class _Beside:
    """A column after those of the table, and its name in files of each kind; empty if they lack it."""

    field: T.StructField
    sources: tuple[str, ...]


def _beside(kinds: Sequence[RowKind], table: AbstractSet[str]) -> tuple[_Beside, ...]:
    """Kinds share operation, time and multiplicity; each way of ordering has its own columns."""
    schemas = [T.StructType.fromJson(json.loads(kind.beside)) for kind in kinds]
    shared = {f.name: f for s in schemas for f in s.fields if not f.name.startswith(ORDER_PREFIX)}
    found = [
        _Beside(field, tuple(name if name in schema.names else "" for schema in schemas))
        for name, field in shared.items()
        if name not in table
    ]
    orders = [[schema[name] for name in order_columns(schema.names)] for schema in schemas]
    ways = [tuple(field.dataType for field in order) for order in orders]
    number = count()
    for way in dict.fromkeys(ways):
        for at, data_type in enumerate(way):
            field = T.StructField(f"{ORDER_PREFIX}{next(number)}", data_type)
            sources = (order[at].name if own == way else "" for order, own in zip(orders, ways, strict=True))
            found.append(_Beside(field, tuple(sources)))
    return tuple(found)


def _across_checkpoints(fields: Sequence[T.StructField]) -> list[tuple[str, ...]]:
    """The paths of the order that takes precedence over checkpoints, most significant first."""
    kept = next((f.dataType for f in fields if f.name == ORDER), None)
    if kept is None:
        return []
    return [(ORDER, f.name) for f in kept.fields] if isinstance(kept, T.StructType) else [(ORDER,)]


class _Listed(NamedTuple):
    """A staged file."""

    time: int
    """Of its checkpoint."""
    at: int
    """Which of the batch's checkpoints it belongs to."""
    kind: int
    """Which of the batch's kinds its rows have."""
    name: str


@dataclass(frozen=True)
class _Reader:
    """How tasks read staged files."""

    store: StateStore
    batch: BatchDescription
    columns: pa.Schema
    """Of the table, with field ids."""
    names: tuple[Names, ...]
    """The names of the columns in the files, by kind."""
    beside: tuple[_Beside, ...]
    own_times: bool

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for listed in batches:
            for row in listed.to_pylist():
                try:
                    yield from self.file(_Listed(row[TIME], row[_AT], row[_KIND], row[_FILE]))
                except CalveError as error:
                    raise TaskFailed(error.encode()) from error

    def file(self, listed: "_Listed") -> Iterator[pa.RecordBatch]:
        """The rows of one file. Raises CheckpointGap, TransientError."""
        try:
            parquet = pq.ParquetFile(io.BytesIO(_contents(self.store, listed.name)))
            projection = Projection(parquet.schema_arrow, ReadTarget(self.columns, names=self.names[listed.kind]), {})
            for rows in parquet.iter_batches():
                yield self._read(rows, listed, projection)
        except (OSError, pa.ArrowException) as error:
            raise own_file_failure(error, "a staged file could not be read", listed.name) from error

    def _read(self, rows: pa.RecordBatch, listed: "_Listed", projection: Projection) -> pa.RecordBatch:
        if self.own_times:
            rows = rows.filter(times_in_batch(self.batch, rows.column(TIME)))
        length = rows.num_rows
        arrays = list(projection.batch(rows).columns)
        if TIME in self.columns.names and not self.own_times:  # a log: the time is that of the checkpoint
            arrays[self.columns.names.index(TIME)] = pa.repeat(pa.scalar(listed.time, pa.int64()), length)
        for column in self.beside:
            source = column.sources[listed.kind]
            arrays.append(rows.column(source) if source else pa.nulls(length, to_arrow_type(column.field.dataType)))
        arrays.append(pa.repeat(pa.scalar(listed.at, pa.int64()), length))
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def schema_of(store: StateStore, name: str) -> T.StructType:
    """The columns of a staged file, read from the file."""
    return from_arrow_schema(pq.ParquetFile(io.BytesIO(_contents(store, name))).schema_arrow)


def _contents(store: StateStore, name: str) -> bytes:
    data = store.read(name)
    if data is None:
        raise CheckpointGap("a staged file is missing", detail=name, hint="Restart the sink.")
    return data
