"""Notices of tasks to the driver: what is odd about records, and no error. The driver logs each once per sink.

Tasks cannot log where the user looks, and rows have no place for a notice. So notices travel as updates of a Spark
accumulator, of which each Spark context has one.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext

_MOST = 1000
"""Notices that are kept, and logged, in the life of a process."""
_POOL = "spark.scheduler.pool"

_log = logging.getLogger("calve")


@dataclass(frozen=True, order=True)
class CaseNotice:
    """Records have no field with the name of a column, but one whose name differs in case."""

    sink_id: str
    column: str
    field: str


Notices = frozenset[CaseNotice]


class _Union(AccumulatorParam[Notices]):
    """Adds sets of notices; on the driver it logs those that are new."""

    def zero(self, value: Notices) -> Notices:
        del value
        return frozenset()

    def addInPlace(self, value1: Notices, value2: Notices) -> Notices:  # noqa: N802 - PySpark's name
        new = value2 - value1
        if len(value1) >= _MOST or not new:
            return value1
        if TaskContext.get() is None:
            for notice in sorted(new):
                _log.warning(
                    'column "%s" is null: the records have no such field, but "%s". Names in JSON are case-sensitive; '
                    "declare the column with the same case",
                    notice.column,
                    notice.field,
                    extra={"sink_id": notice.sink_id},
                )
        return value1 | new


_made: list[tuple[SparkContext, Accumulator[Notices]]] = []
"""That of the current Spark context, on the driver."""
_here: list[Accumulator[Notices]] = []
"""That of the running task."""
_driver: ContextVar[tuple[Accumulator[Notices], str] | None] = ContextVar("_driver", default=None)
"""That of a thread of the driver that reads records itself, and the id of its sink."""


def accumulator_of(context: SparkContext) -> Accumulator[Notices]:
    """The accumulator of a Spark context, for `use` in its tasks."""
    if not _made or _made[0][0] is not context:
        _made[:] = [(context, context.accumulator(frozenset[CaseNotice](), _Union()))]
    return _made[0][1]


def use(accumulator: Accumulator[Notices]) -> None:
    """Send the notices of this task there."""
    _here[:] = [accumulator]


@contextmanager
def of_sink(sink_id: str, context: SparkContext) -> Iterator[None]:
    """Keep the notices of what this thread of the driver reads in the block."""
    before = _driver.set((accumulator_of(context), sink_id))
    try:
        yield
    finally:
        _driver.reset(before)


def note(column: str, field: str) -> None:
    """Notice that records have a field whose name differs from that of a column in case.

    Does nothing on the driver outside of `of_sink`.
    """
    task, driver = TaskContext.get(), _driver.get()
    if _here and task is not None:
        _here[0].add(frozenset({CaseNotice(task.getLocalProperty(_POOL) or "", column, field)}))
    elif driver is not None:
        accumulator, sink_id = driver
        accumulator.add(frozenset({CaseNotice(sink_id, column, field)}))
