"""The entry of the stage: writes one batch of changes and returns its files.

Only this module chooses the writer and the number of tasks, as measured by `benchmarks/writers.py`:

| batch | writer | why |
|---|---|---|
| up to DRIVER_ROWS | driver | no Python task, no shuffle |
| larger, keyed, flat, unpartitioned, in a store that Spark accesses itself | Spark's own | rows stay in the JVM |
| everything else | Arrow tasks | nested columns get their ids, any store |

For partitioned tables Spark's own writer is slower: it needs the window that finds the last change per key, as the
tasks do then, and each of its files costs more (4M rows in 16 buckets: 7.8 s against 7.0 s; 100,000 rows of 116 days:
3.8 s against 1.1 s).

If the size is unknown, the driver collects up to PROBE_ROWS rows. If there are more, the next writer starts over, and
reading those rows was wasted. Rows that were stored before, for a window, go to the driver up to TRUSTED_BYTES of their
files.

The driver is by far the fastest writer even for a million rows (half the CPU time of the others on two cores), but it
is one process for all sinks, so its share stays small. With a local master it is all there is: changes that it computes
itself (`write.changes.ArrowChanges`) may then take a part of the machine's memory, one large batch at a time.

Every task writes a file of its own, so the number of tasks follows from the bytes, and the cores only bound it: a
million rows are one task and one file on any cluster (2.3 s on two cores; two tasks and two files take 1.7 s and the
same CPU time). Beyond four tasks per core tasks grow instead, up to a size that a task still handles well.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.sql import DataFrame

from calve.clock import IdSource, Timer, untimed
from calve.errors import CalveError
from calve.model.checkpoint import SizeHint, SizeLimit
from calve.model.files import WriteResult, WriteTarget
from calve.spark.failures import CAUGHT, failure_of, told_as
from calve.spark.session import is_local, machine_memory
from calve.write.changes import ArrowChanges, check_changes
from calve.write.driver_writer import DriverWriter, write_rows
from calve.write.job import BatchTooLarge, ChangeColumns, WriteJob, Writer, layout_of
from calve.write.native_writer import CODECS, NativeWriter
from calve.write.task_writer import TaskWriter

DRIVER_ROWS = 500_000
DRIVER_BYTES = 128 << 20
PROBE_ROWS = 300_000
TRUSTED_BYTES = 32 << 20
"""An estimate in bytes alone may be far off; a batch estimated below this is collected without counting rows.

For rows that were stored before it bounds their stored bytes.
"""
_DECODED = 4
"""Bytes in memory for a stored byte, as a rule; values that repeat take many more."""
_TASK_BYTES = 64 << 20
_LARGEST_TASK_BYTES = 512 << 20
_TASKS_PER_CORE = 4
_ARROW_BYTES = 16 << 20
_ARROW_ROWS = 65_536
_LOCAL_SHARE = 40
_MEMORY_PARTS = 16
_large = threading.Lock()
"""Held while a large batch is in the driver's memory."""
_SPARK_SCHEMES = frozenset({"", "file", "hdfs"})


def writers_for(layout: ChangeColumns, target: WriteTarget, size: SizeHint, cores: int) -> tuple[Writer, ...]:
    """The writers to try in order; the last one takes a batch of any size."""
    expected = _expected_bytes(layout, size)
    partitions = None if expected is None else tasks_for(expected, cores)
    large = NativeWriter(partitions) if _native(layout, target) else TaskWriter(partitions, _arrow_rows(layout))
    if (size.rows or 0) > DRIVER_ROWS or (expected or 0) > DRIVER_BYTES or (size.stored or 0) > TRUSTED_BYTES:
        return (large,)
    known = size.rows is not None or (expected is not None and expected <= TRUSTED_BYTES)
    return DriverWriter(None if known else PROBE_ROWS), large


def tasks_for(size: int, cores: int) -> int:
    """The number of tasks for a batch of `size` bytes; small batches get one."""
    spread = min(-(-size // _TASK_BYTES), _TASKS_PER_CORE * cores)
    return max(1, spread, -(-size // _LARGEST_TASK_BYTES))


def fits_the_driver(size: SizeHint) -> bool:
    """Whether a batch is expected to fit into the driver's memory, whatever its columns are."""
    if size.rows is not None:
        return size.rows <= DRIVER_ROWS and (size.stored or 0) <= TRUSTED_BYTES
    return size.bytes is not None and size.bytes <= TRUSTED_BYTES


@contextmanager
def share_of_driver(size: SizeHint, context: SparkContext) -> Iterator[SizeLimit]:
    """How much of a batch of this size may be in the driver's memory while the block runs."""
    usual = SizeLimit(DRIVER_ROWS, DRIVER_BYTES)
    large = largest_share(context) if _may_be_large(size) else None
    if large is None or not _large.acquire(blocking=False):
        yield usual
        return
    try:
        yield large
    finally:
        _large.release()


def _may_be_large(size: SizeHint) -> bool:
    """Whether a batch may have more rows, or bytes, than the driver usually takes; few bytes may be many rows."""
    if size.rows is None:
        return (size.bytes or 0) > TRUSTED_BYTES
    stored = _DECODED * (size.stored or 0)
    return size.rows > DRIVER_ROWS or (size.bytes or 0) > DRIVER_BYTES or stored > TRUSTED_BYTES


def largest_share(context: SparkContext) -> SizeLimit | None:
    """The most that one batch may have in the memory of a local driver; None on a cluster."""
    if not is_local(context.master or ""):
        return None
    return SizeLimit(_LOCAL_SHARE * DRIVER_ROWS, max(DRIVER_BYTES, machine_memory() // _MEMORY_PARTS))


def largest_batch(context: SparkContext, *, for_driver: bool) -> int:
    """About how many bytes in memory a batch of a backlog should have.

    A local driver reads what fits its share, if it can read it at all. Otherwise there are as many tasks as cores are
    given, of the size that a task still handles well. Raises TransientError, TerminalError.
    """
    share = largest_share(context) if for_driver else None
    if share is not None:
        return share.bytes
    with told_as("the cores could not be counted"):
        return int(context.defaultParallelism) * _TASKS_PER_CORE * _LARGEST_TASK_BYTES


def _native(layout: ChangeColumns, target: WriteTarget) -> bool:
    scheme = urlsplit(target.data_location).scheme
    simple = layout.native and not (target.data_spec_json or target.options.extensions or target.file_schema_json)
    return bool(layout.key) and simple and scheme in _SPARK_SCHEMES and target.options.compression in CODECS


def _expected_bytes(layout: ChangeColumns, size: SizeHint) -> int | None:
    if size.bytes is not None:
        return size.bytes
    return None if size.rows is None else max(size.rows * layout.row_width, size.stored or 0)


def _arrow_rows(layout: ChangeColumns) -> int:
    """Rows per Arrow batch: larger batches are faster until they exceed the CPU caches."""
    return min(_ARROW_ROWS, max(1024, _ARROW_BYTES // layout.row_width))


def write_batch(
    changes: DataFrame | ArrowChanges,
    target: WriteTarget,
    *,
    deletes: bool,
    size: SizeHint,
    ids: IdSource,
    timed: Timer = untimed,
) -> WriteResult:
    """Write the last change of each key of changes: a frame of them (see `model/change.py`), or all in memory.

    An upsert becomes a row of a data file, and its key a row of a key file, which deletes older rows with that key; a
    delete is only a row of a key file. Key files have the format of equality deletes and may be committed as such.
    `deletes=False` says that the table has no live rows, so no keys have to be deleted.

    The frame may be computed more than once, so it has to produce the same rows every time. Raises BadRow for a record
    that cannot become a row, TransientError if a retry may succeed; files of a failed call are never returned.
    """
    layout = layout_of(changes.columns, target)
    try:
        if isinstance(changes, ArrowChanges):
            rows = changes.checked(layout)
            parts = max(1, -(-rows.nbytes // _TASK_BYTES))
            return write_rows(rows, layout, target, ids.new_id(), deletes=deletes, parts=parts)
        job = WriteJob(check_changes(changes, layout), layout, target, deletes, size, ids.new_id(), timed)
        cores = changes.sparkSession.sparkContext.defaultParallelism
        return _write_with_first_fit(writers_for(layout, target, size, cores), job)
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error, "the batch could not be written") from error


def _write_with_first_fit(writers: tuple[Writer, ...], job: WriteJob) -> WriteResult:
    *bounded, unbounded = writers
    for writer in bounded:
        try:
            return writer.write(job)
        except BatchTooLarge:
            continue
    return unbounded.write(job)
