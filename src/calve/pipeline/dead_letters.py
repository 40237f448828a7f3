"""ON BAD ROW = 'dead letter': records that cannot become changes are kept in a table of their own, first.

A checkpoint with bad rows is recorded only after its letters are in their table, so that none is lost; one that is
read again adds none twice, whatever its bounds are then (see `iceberg.dead_letters`).

The changes of a checkpoint are kept by Spark while they are sifted and written: they are computed once.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import CalveError, UnreadableFile
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.model.change import BAD, ORIGIN_OPEN, Letter, Origin, letter_of
from calve.model.checkpoint import CheckpointIdentity
from calve.pipeline.monitor import RunMonitor
from calve.spark.failures import CAUGHT, failure_of

T = TypeVar("T")

AT_ONCE = 10_000
"""Letters that are held in memory, and go into one file."""


class DeadLetters:
    """Those of one run. Used by the feed's thread."""

    def __init__(self, table: LetterTable, monitor: RunMonitor) -> None:
        self._table = table
        self._monitor = monitor
        self._kept: list[DataFrame] = []

    def sift(self, changes: DataFrame, identity: CheckpointIdentity) -> DataFrame:
        """The changes without the bad rows, which are in their table when this returns. Raises TransientError.

        A bad row that brings no record (a view has several rows of a key) stays: it is an error of the definition.
        """
        kept = changes.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(kept)
        buried = F.col(BAD).contains(ORIGIN_OPEN)
        found = _computed(lambda: kept.where(buried).select(BAD).toLocalIterator())
        while letters := _computed(lambda: list(islice(_letters(found), AT_ONCE))):
            added = self._table.add(letters, str(identity))
            self._monitor.buried(added, letters[0].error)
        return kept.where(F.coalesce(~buried, F.lit(True)))  # noqa: FBT003 - a literal

    def add_file(self, path: str, error: UnreadableFile, identity: CheckpointIdentity) -> None:
        """One letter for a file that cannot be read, without a record. Raises TransientError."""
        self._monitor.buried(self._table.add([Letter(Origin(file=path), error)], str(identity)), error)

    def release(self) -> None:
        """The checkpoint is recorded, or is computed again: nothing of it is needed any more."""
        while self._kept:
            self._kept.pop().unpersist()


def _letters(rows: Iterator[Row]) -> Iterator[Letter]:
    return (letter for row in rows if (letter := letter_of(row[0])))


def _computed(action: Callable[[], T]) -> T:
    """What Spark computes, with its failures in calve's terms."""
    try:
        return action()
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error, "the changes could not be computed") from error
