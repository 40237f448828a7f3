"""Changes of a checkpoint, kept in the state location until the window of their time is closed; and back.

Rows are checked before they are kept, so that a record that cannot become a change stops its own checkpoint and no
later one. They are kept as they come, without a shuffle: whatever the number of tasks was, the close of the window
shuffles all of them once, by key. A file has the table's columns, the operation and the order columns, or the time and
the multiplicity of a row.

Where rows have times of their own, a file may hold rows of several windows: each close takes those of its batch. Rows
that are late are looked for here, when they come.
"""

import io
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from calve.errors import CalveError, CheckpointGap
from calve.model.change import BAD, ORDER, ORDER_PREFIX, TIME
from calve.model.checkpoint import CheckpointEntry, Staged
from calve.model.frontier import BatchDescription
from calve.model.size import SizeHint
from calve.model.target import WriteTarget
from calve.sparktext import ident
from calve.sparkversion import collected
from calve.state import StateStore
from calve.write.changes import checked
from calve.write.choose import fits_the_driver
from calve.write.columns import layout_of
from calve.write.failures import CAUGHT, failure_of
from calve.write.timed import TimeRule, held_by
from calve.write.worker import REPORT, TaskFailed

_FILE, _AT = "_calve__file", "_calve__at"
_ROWS_PER_FILE = 1_000_000


@dataclass(frozen=True)
class StageFolder:
    """Where a run stages; goes to tasks."""

    store: StateStore
    name: str
    clock: TimeRule | None = None
    """Where rows have times of their own."""

    def put(self, rows: pa.Table) -> Staged:
        """One file of rows, if there are any."""
        timed = self.clock.applied(rows) if self.clock else None
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
        return timed.told(staged) if timed else staged


def stage_batch(frame: DataFrame, target: WriteTarget, folder: StageFolder, *, size: SizeHint) -> Staged:
    """Keep a frame of changes. Raises BadRow, LateRow, or TransientError where another try may succeed."""
    layout = layout_of(frame.columns, target)
    try:
        changes = checked(frame, layout)
        if fits_the_driver(size):
            return _together([folder.put(collected(changes))], folder)
        plain = changes.toDF(*[f"c{i}" for i in range(len(changes.columns))])  # mapInArrow fails for names with a dot
        task = partial(_stage_partition, folder, tuple(changes.columns))
        reports = plain.mapInArrow(task, f"{REPORT} binary").collect()
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error) from error
    parts: list[Staged] = [pickle.loads(row[REPORT]) for row in reports]  # noqa: S301 - of our own tasks
    return _together(parts, folder)


def _together(parts: list[Staged], folder: StageFolder) -> Staged:
    files = tuple(name for part in parts for name in part.files)
    staged = Staged(files, sum(part.rows for part in parts), sum(part.bytes for part in parts))
    return folder.clock.together(staged, parts) if folder.clock else staged


def _stage_partition(
    folder: StageFolder, columns: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    try:
        staged = _together([folder.put(rows) for rows in _in_files(batches, columns)], folder)
    except CalveError as error:
        raise TaskFailed(error.encode()) from error
    except CAUGHT as error:
        raise TaskFailed(failure_of(error).encode()) from error
    yield pa.RecordBatch.from_pydict({REPORT: pa.array([pickle.dumps(staged)], pa.binary())})


def _in_files(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Rows of one file each: as many as memory should hold."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch.rename_columns(list(columns)))
        rows += batch.num_rows
        if rows >= _ROWS_PER_FILE:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)


# ---- back


def size_of(staged: Sequence[Staged]) -> SizeHint:
    """Of all rows of some checkpoints."""
    return SizeHint(rows=sum(part.rows for part in staged), stored=sum(part.bytes for part in staged))


def staged_changes(
    spark: SparkSession, store: StateStore, entries: Sequence[CheckpointEntry], batch: BatchDescription
) -> DataFrame | None:
    """The changes of a batch out of several checkpoints, in their order, as one frame; None when there are none.

    Changes of one key are ordered by their own time or by an order that holds across checkpoints if they have one, then
    by their checkpoint.
    """
    files = [(e.time, at, n) for at, e in enumerate(entries) if e.staged for n in e.staged.files]
    if not files:
        return None
    kept = _schema_of(store, files[0][-1]).fields
    plan = _Back(store, tuple(f.name for f in kept), batch, own_times=entries[0].timed)
    fields = [*kept, T.StructField(_AT, T.LongType())]
    # mapInArrow fails for names with a dot
    positions = T.StructType([T.StructField(f"c{i}", f.dataType) for i, f in enumerate(fields)])
    tasks = min(len(files), 2 * spark.sparkContext.defaultParallelism)
    listed = spark.createDataFrame(files, f"{TIME} BIGINT, {_AT} BIGINT, {_FILE} STRING").repartition(tasks)
    read = listed.mapInArrow(partial(_Back.rows, plan), positions).toDF(*[f.name for f in fields])
    orders = [f.name for f in kept if f.name.startswith(ORDER_PREFIX)]
    ordered = [*([TIME] if plan.own_times else []), *_across_checkpoints(kept), _AT, *orders]
    others = [ident(f.name) for f in kept if f.name not in orders]
    renamed = [f"{name} as {ORDER_PREFIX}{i}" for i, name in enumerate(ordered)]
    return read.selectExpr(*others, *renamed, f"cast(null as string) as {BAD}")


def _across_checkpoints(fields: Sequence[T.StructField]) -> list[str]:
    """SQL of what orders changes before their checkpoints do, most significant first."""
    kept = next((f.dataType for f in fields if f.name == ORDER), None)
    if kept is None:
        return []
    return [ident(ORDER, f.name) for f in kept.fields] if isinstance(kept, T.StructType) else [ORDER]


@dataclass(frozen=True)
class _Back:
    """How tasks read staged files."""

    store: StateStore
    columns: tuple[str, ...]
    batch: BatchDescription
    own_times: bool

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for listed in batches:
            for file in listed.to_pylist():
                try:
                    data = _contents(self.store, file[_FILE])
                except CalveError as error:
                    raise TaskFailed(error.encode()) from error
                for rows in pq.ParquetFile(io.BytesIO(data)).iter_batches():
                    yield self._read(rows, file)

    def _read(self, rows: pa.RecordBatch, file: dict[str, Any]) -> pa.RecordBatch:
        if self.own_times:
            rows = rows.filter(held_by(self.batch, rows.column(TIME)))
        count = rows.num_rows
        arrays = [rows.column(name) for name in self.columns]
        if TIME in self.columns and not self.own_times:  # a log: the time is that of the checkpoint
            arrays[self.columns.index(TIME)] = pa.array([file[TIME]] * count, pa.int64())
        arrays.append(pa.array([file[_AT]] * count, pa.int64()))
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def _schema_of(store: StateStore, name: str) -> T.StructType:
    """The columns of a staged file, which are those of all."""
    return from_arrow_schema(pq.ParquetFile(io.BytesIO(_contents(store, name))).schema_arrow)


def _contents(store: StateStore, name: str) -> bytes:
    data = store.read(name)
    if data is None:
        raise CheckpointGap("a staged file is gone", detail=name, hint="Start the sink again.")
    return data
