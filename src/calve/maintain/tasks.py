"""Groups of files written anew by Spark tasks, one group each: for tables that are too large for one process."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from calve.errors import CalveError, TransientError, decode
from calve.maintain.rewrite import GroupWork, Rewritten, rewrite

_REPORT = "report"


def rewrite_by_tasks(works: Sequence[GroupWork], spark: SparkSession) -> tuple[Rewritten, ...]:
    """In the same order. What tasks wrote that were killed, or ran twice, is an orphan.

    Raises TransientError, TerminalError.
    """
    pickled = tuple(pickle.dumps(work) for work in works)
    numbers = spark.range(0, len(works), 1, len(works))
    try:
        reports = numbers.mapInArrow(partial(_rewrite_partition, pickled), f"{_REPORT} binary").collect()
    except (PySparkException, Py4JError) as error:
        raise decode(str(error)) or TransientError("data files could not be written anew") from error
    found = dict(pickle.loads(row[_REPORT]) for row in reports)  # noqa: S301 - of our own tasks
    return tuple(found[number] for number in range(len(works)))


def _rewrite_partition(works: Sequence[bytes], numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            work: GroupWork = pickle.loads(works[number])  # noqa: S301 - of our own driver
            try:
                done = rewrite(replace(work, name=f"{work.name}/{attempt}"), lambda: None)
            except CalveError as error:
                raise RuntimeError(error.encode()) from error  # Spark keeps nothing of an error but its text
            yield pa.RecordBatch.from_pydict({_REPORT: pa.array([pickle.dumps((number, done))], pa.binary())})
