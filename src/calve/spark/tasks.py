"""Runs pickled work in Spark tasks: every task reports one value or one error.

A task that fails raises, and Spark retries it; its last attempt, and every permanent failure, is reported like a value.
So a job ends with the reports of all its tasks: the driver gets the error unchanged, and knows what the other tasks
made, so that it can remove that (`discard`) before a retry. Only a task that was killed, or died with its executor,
reports nothing; what it made is an orphan.
"""

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.errors import CalveError, TransientError
from calve.spark.failures import CAUGHT, failure_of, told_as

T = TypeVar("T")
W = TypeVar("W")

CHECK_SECONDS = 0.5
"""How often to look whether jobs that run have to end."""

_REPORT = "report"
_SPARKS_ATTEMPTS = 4
_LOCAL = re.compile(r"local(?:\[[^,\]]+(?:,\s*(\d+))?\])?")


class TaskFailed(Exception):
    """Carries an encoded error through Spark, which keeps only the message of a Python error."""


@dataclass(frozen=True)
class Tasks(Generic[T]):
    """A job of tasks: its error message, and how to clean up when a task failed."""

    primary: str
    """Says what could not be done, if nothing better is known."""
    discard: Callable[[T], None] | None = None
    """Removes what a task made; None if tasks make nothing but their values."""

    def run(self, spark: SparkSession, works: Sequence[W], act: Callable[[W, str], T]) -> list[T]:
        """Run one task for each piece of work; the values in the same order. Raises CalveError.

        `act` gets the work and a name that is unique among all attempts of all tasks.
        """
        pickled = tuple(pickle.dumps(work) for work in works)  # a task unpickles only its own
        numbers = spark.range(0, len(works), 1, len(works))
        return self._collected(numbers, partial(_run_numbers, pickled, act))

    def over(self, frame: DataFrame, act: Callable[[Iterator[pa.RecordBatch], str], T]) -> list[T]:
        """Run one task for each partition of a frame; their values. Raises CalveError."""
        return self._collected(frame, partial(_run_partition, act))

    def through(
        self,
        frame: DataFrame,
        act: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: str | StructType,
    ) -> DataFrame:
        """An earlier step of the job: `act` turns the rows of a partition into others. It must have no effects.

        Spark may repeat it at any time, so it reports nothing: its errors fail the job.
        """
        return frame.mapInArrow(partial(_raising, act, self.primary), schema)

    def _collected(self, frame: DataFrame, run: Callable[..., Iterator[tuple[int, T]]]) -> list[T]:
        task = partial(_reports, run, self.primary, _attempts(frame.sparkSession))
        with told_as(self.primary):
            rows = frame.mapInArrow(task, f"{_REPORT} binary").collect()
        reports = [pickle.loads(row[_REPORT]) for row in rows]  # noqa: S301 - of our own tasks
        errors = [report for report in reports if isinstance(report, CalveError)]
        values = sorted((r for r in reports if not isinstance(r, CalveError)), key=lambda numbered: numbered[0])
        if not errors:
            return [value for _, value in values]
        if self.discard is not None:
            for _, value in values:
                self.discard(value)
        raise next((e for e in errors if not isinstance(e, TransientError)), errors[0])


def run_checked(
    make_session: Callable[[], SparkSession], name: str, run: Callable[[SparkSession], T], check: Callable[[], None]
) -> T:
    """Run Spark jobs as a group of this name, in a thread of their own; they are cancelled if `check` raises.

    The pool that `make_session` sets belongs to the thread as the group does.
    """
    context = make_session().sparkContext

    def job() -> T:
        spark = make_session()
        spark.sparkContext.setJobGroup(name, name)
        return run(spark)

    with ThreadPoolExecutor(1, name) as threads:
        running = threads.submit(job)
        try:
            while not wait([running], CHECK_SECONDS).done:
                check()
        except BaseException:
            list(cancelled([running], lambda: context.cancelJobGroup(name)))
            raise
        return running.result()


def cancelled(running: Iterable[Future[T]], cancel_jobs: Callable[[], None]) -> Iterator[Future[T]]:
    """Cancel jobs until the threads that wait for them have ended; yields each that has."""
    left = {future for future in running if not future.cancel()}
    while left:
        with suppress(*CAUGHT):  # Spark may be gone, and its jobs with it
            cancel_jobs()  # again and again: a thread may be about to submit one
        for future in wait(left, CHECK_SECONDS, FIRST_COMPLETED).done:
            left.discard(future)
            yield future


def _attempts(spark: SparkSession) -> int:
    """How often Spark attempts a task."""
    context = spark.sparkContext
    if local := _LOCAL.fullmatch(str(context.master)):
        return int(local[1] or 1)
    return int(context.getConf().get("spark.task.maxFailures") or _SPARKS_ATTEMPTS)


# ---- in a task


def _reports(
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]],
    primary: str,
    attempts: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    values = run(batches)
    while True:
        try:
            value: Any = next(values)
        except StopIteration:
            return
        except CalveError as error:
            value = _last(error, attempts)
        except CAUGHT as error:
            value = _last(failure_of(error, primary), attempts)
        yield pa.RecordBatch.from_pydict({_REPORT: pa.array([pickle.dumps(value)], pa.binary())})


def _raising(
    act: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], primary: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from act(batches)
    except CalveError as error:
        raise TaskFailed(error.encode()) from error
    except CAUGHT as error:
        raise TaskFailed(failure_of(error, primary).encode()) from error


def _last(error: CalveError, attempts: int) -> CalveError:
    """Return an error that is to be reported, or raise it so that Spark retries the task."""
    context = TaskContext.get()
    again = context is not None and context.attemptNumber() + 1 < attempts
    if again and isinstance(error, TransientError):
        raise TaskFailed(error.encode()) from error
    return error


def _attempt() -> str:
    context = TaskContext.get()
    return str(context.taskAttemptId() if context else 0)


def _run_numbers(
    works: Sequence[bytes], act: Callable[[Any, str], Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield number, act(pickle.loads(works[number]), f"{number}/{_attempt()}")  # noqa: S301 - of our own driver


def _run_partition(
    act: Callable[[Iterator[pa.RecordBatch], str], Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int, Any]]:
    yield 0, act(batches, _attempt())
