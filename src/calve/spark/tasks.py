"""Work for Spark tasks that reports: one value or one error for every task.

A task that fails raises, and Spark tries it again, until its last attempt; that one, and every failure that is
permanent, is reported like a value. So a job of tasks ends with all their reports: the driver gets the error as it is,
and knows what the other tasks made, so that it can be removed (`discard`) before anybody tries again. Only a task that
was killed, or died with its executor, reports nothing; what it made is an orphan.
"""

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from calve.errors import CalveError, TransientError
from calve.spark.failures import CAUGHT, failure_of, told_as

T = TypeVar("T")
W = TypeVar("W")

_REPORT = "report"
_SPARKS_ATTEMPTS = 4
_LOCAL = re.compile(r"local(?:\[[^,\]]+(?:,\s*(\d+))?\])?")


class TaskFailed(Exception):
    """Carries an encoded error through Spark, which keeps nothing of a Python error but its text."""


@dataclass(frozen=True)
class Tasks(Generic[T]):
    """What a job of tasks is called, and what becomes of the values when one of them failed."""

    primary: str
    """What could not be done, if nothing better is known."""
    discard: Callable[[T], None] | None = None
    """Removes what a task made; None if tasks make nothing but their values."""

    def run(self, spark: SparkSession, works: Sequence[W], act: Callable[[W, str], T]) -> list[T]:
        """One task for each piece of work; the values in the same order. Raises CalveError.

        `act` gets the work and a name that no other task, and no other attempt of it, has.
        """
        pickled = tuple(pickle.dumps(work) for work in works)  # a task unpacks its own alone
        numbers = spark.range(0, len(works), 1, len(works))
        return self._collected(numbers, partial(_run_numbers, pickled, act))

    def over(self, frame: DataFrame, act: Callable[[Iterator[pa.RecordBatch], str], T]) -> list[T]:
        """One value of the rows of each partition of a frame."""
        return self._collected(frame, partial(_run_partition, act))

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


def _attempts(spark: SparkSession) -> int:
    """How often Spark tries a task."""
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


def _last(error: CalveError, attempts: int) -> CalveError:
    """The error, if it is to be reported; else it is raised, and Spark tries the task again."""
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
