"""Changes of a checkpoint, kept in the state location until the window of their time is closed; and back.

Rows are checked before they are kept, so that a record that cannot become a change stops its own checkpoint and no
later one. They are kept as they come, without a shuffle: whatever the number of tasks was, the close of the window
shuffles all of them once, by key. A file has the table's columns, the operation and the order columns.
"""

import io
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from calve.errors import CalveError, CheckpointGap
from calve.model.change import BAD, ORDER_PREFIX
from calve.model.checkpoint import Staged
from calve.model.size import SizeHint
from calve.model.target import WriteTarget
from calve.state import StateStore
from calve.write.changes import checked
from calve.write.choose import fits_the_driver
from calve.write.columns import layout_of
from calve.write.failures import CAUGHT, failure_of
from calve.write.worker import REPORT, TaskFailed

_FILE, _AT = "file", "at"
_ROWS_PER_FILE = 1_000_000


@dataclass(frozen=True)
class StageFolder:
    """Where a run stages; goes to tasks."""

    store: StateStore
    name: str

    def put(self, rows: pa.Table) -> Staged:
        """One file of rows."""
        out = io.BytesIO()
        pq.write_table(rows, out, compression="zstd")
        name = f"{self.name}/{uuid.uuid4()}.parquet"
        data = out.getvalue()
        self.store.put(name, data)
        return Staged((name,), rows.num_rows, len(data))


def stage_batch(frame: DataFrame, target: WriteTarget, folder: StageFolder, *, size: SizeHint) -> Staged:
    """Keep a frame of changes. Raises BadRow, or TransientError where another try may succeed."""
    layout = layout_of(frame.columns, target)
    try:
        changes = checked(frame, layout)
        if fits_the_driver(size):
            rows = changes.toArrow()
            return folder.put(rows) if rows.num_rows else Staged((), 0, 0)
        plain = changes.toDF(*[f"c{i}" for i in range(len(changes.columns))])  # mapInArrow fails for names with a dot
        task = partial(_stage_partition, folder, tuple(changes.columns))
        reports = plain.mapInArrow(task, f"{REPORT} binary").collect()
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error) from error
    return _together(pickle.loads(row[REPORT]) for row in reports)  # noqa: S301 - of our own tasks


def _together(parts: Iterator[Staged]) -> Staged:
    found = list(parts)
    files = tuple(name for part in found for name in part.files)
    return Staged(files, sum(part.rows for part in found), sum(part.bytes for part in found))


def _stage_partition(
    folder: StageFolder, columns: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    try:
        staged = _together(folder.put(rows) for rows in _in_files(batches, columns))
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


def staged_changes(spark: SparkSession, store: StateStore, staged: Sequence[Staged]) -> DataFrame | None:
    """The changes of several checkpoints, in their order, as one frame of changes; None when there are none.

    The number of the checkpoint is the first order column.
    """
    files = [(at, name) for at, part in enumerate(staged) for name in part.files]
    if not files:
        return None
    kept = _schema_of(store, files[0][1]).fields
    orders = [f for f in kept if f.name.startswith(ORDER_PREFIX)]
    shifted = [T.StructField(f"{ORDER_PREFIX}{i + 1}", f.dataType) for i, f in enumerate(orders)]
    columns = [T.StructField(f.name, f.dataType) for f in kept if f not in orders]
    first = T.StructField(f"{ORDER_PREFIX}0", T.LongType())
    # mapInArrow fails for names with a dot
    positions = [T.StructField(f"c{i}", f.dataType) for i, f in enumerate([*columns, first, *shifted])]
    names = [f.name for f in [*columns, first, *shifted]]
    task = partial(_read_files, store, tuple(f.name for f in columns), tuple(f.name for f in orders))
    tasks = min(len(files), 2 * spark.sparkContext.defaultParallelism)
    listed = spark.createDataFrame(files, f"{_AT} BIGINT, {_FILE} STRING").repartition(tasks)
    read = listed.mapInArrow(task, T.StructType(positions)).toDF(*names)
    return read.selectExpr("*", f"cast(null as string) as {BAD}")


def _schema_of(store: StateStore, name: str) -> T.StructType:
    """The columns of a staged file, which are those of all."""
    return from_arrow_schema(pq.ParquetFile(io.BytesIO(_contents(store, name))).schema_arrow)


def _contents(store: StateStore, name: str) -> bytes:
    data = store.read(name)
    if data is None:
        raise CheckpointGap("a staged file is gone", detail=name, hint="Start the sink again.")
    return data


def _read_files(
    store: StateStore, columns: tuple[str, ...], orders: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            try:
                data = _contents(store, row[_FILE])
            except CalveError as error:
                raise TaskFailed(error.encode()) from error
            for rows in pq.ParquetFile(io.BytesIO(data)).iter_batches():
                ordinal = pa.array([row[_AT]] * rows.num_rows, pa.int64())
                arrays = [*(rows.column(n) for n in columns), ordinal, *(rows.column(n) for n in orders)]
                yield pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
