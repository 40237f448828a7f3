"""The stage's entry: one batch of changes in, its files out."""

from pyspark.sql import DataFrame

from calve.clock import IdSource
from calve.errors import CalveError
from calve.model.files import WriteResult
from calve.model.size import SizeHint
from calve.model.target import WriteTarget
from calve.spark.failures import CAUGHT, failure_of
from calve.write.changes import checked
from calve.write.choose import writers_for
from calve.write.columns import layout_of
from calve.write.job import BatchTooLarge, WriteJob, Writer


def write_batch(frame: DataFrame, target: WriteTarget, *, deletes: bool, size: SizeHint, ids: IdSource) -> WriteResult:
    """Write a frame of changes (see `model/change.py`): per key, its last change.

    An upsert becomes a row of a data file, and its key one of a file of keys whose older rows are deleted; a delete is
    the latter alone. Files of keys have the form of equality deletes, and may be committed as such. `deletes=False`
    says that the table has no live row, so that no key has to be deleted.

    The frame may be computed more than once, so it has to give the same rows every time. Raises BadRow for a record
    that cannot become a row, TransientError where another try may succeed; no file of a failed call is ever returned.
    """
    layout = layout_of(frame.columns, target)
    try:
        job = WriteJob(checked(frame, layout), layout, target, deletes, size, ids.new_id())
        cores = frame.sparkSession.sparkContext.defaultParallelism
        return _first_that_takes(writers_for(layout, target, size, cores), job)
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error, "the batch could not be written") from error


def _first_that_takes(writers: tuple[Writer, ...], job: WriteJob) -> WriteResult:
    *bounded, unbounded = writers
    for writer in bounded:
        try:
            return writer.write(job)
        except BatchTooLarge:
            continue
    return unbounded.write(job)
