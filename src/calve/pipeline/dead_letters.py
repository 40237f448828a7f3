"""ON BAD ROW = 'dead letter': records that cannot be converted to changes go to a dead letter table.

A checkpoint with bad rows is recorded only after its dead letters are committed, so none is lost. A checkpoint that is
read again adds no duplicates, even if its bounds have changed (see `iceberg.small_tables.dead_letters`). If a run died
before it recorded a checkpoint, and records that were bad are good now, their letters are withdrawn: every letter is a
record that has not been applied.

Spark caches the changes of a checkpoint while bad rows are separated from them, so they are computed once.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import CalveError, TerminalError, UnreadableFile
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.model.change import BAD, ORIGIN_OPEN, Letter, Origin, letter_of
from calve.model.checkpoint import CheckpointIdentity
from calve.model.spec import SinkSpec
from calve.pipeline.monitor import RunMonitor
from calve.spark.failures import CAUGHT, failure_of

T = TypeVar("T")


LETTERS_PER_FILE = 10_000
"""Dead letters that are held in memory and written to one file."""


def checkpoints_of(spec: SinkSpec) -> str:
    """How the checkpoints of letters begin: a sink that is created again, or starts over, reads records again."""
    return f"{spec.sink_id}/{spec.generation}/"


class DeadLetters:
    """Dead letters of one run. Used by the feed's thread."""

    def __init__(self, table: LetterTable, monitor: RunMonitor, spec: SinkSpec) -> None:
        self._table = table
        self._checkpoints = checkpoints_of(spec)
        self._monitor = monitor
        self._kept: list[DataFrame] = []
        self._settled = False
        """Whether letters that a former run left behind are withdrawn."""

    @property
    def table(self) -> LetterTable:
        """Where they are kept."""
        return self._table

    @property
    def settled(self) -> bool:
        """Whether a checkpoint without bad rows has nothing to do here."""
        return self._settled

    def sift(self, changes: DataFrame, identity: CheckpointIdentity) -> DataFrame:
        """Commit bad rows to the dead letter table, and return the changes without them. Raises TransientError.

        A bad row without a record (a view that yields several rows per key) stays: the definition is at fault.
        """
        kept = changes.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(kept)
        is_letter = F.col(BAD).contains(ORIGIN_OPEN)
        found = run_spark(lambda: kept.where(is_letter).select(BAD).toLocalIterator())
        there: set[str] = set()
        while letters := run_spark(lambda: list(islice(_letters(found), LETTERS_PER_FILE))):
            self._add(letters, identity)
            if not self._settled:
                there |= {letter.origin.digest for letter in letters}
        if not self._settled:
            self._table.withdraw(f"{self._checkpoints}{identity}", there)
            self._settled = True
        return kept.where(F.coalesce(~is_letter, F.lit(True)))  # noqa: FBT003 - a literal

    def _add(self, letters: Sequence[Letter], identity: CheckpointIdentity) -> None:
        added = self._table.add(letters, f"{self._checkpoints}{identity}")
        self._monitor.dead_lettered(added, letters[0].error)

    def add_file(self, path: str, error: UnreadableFile, identity: CheckpointIdentity) -> None:
        """Add one dead letter for an unreadable file, without a record. Raises TransientError."""
        self._add([Letter(Origin(file=path), error)], identity)

    def release(self) -> None:
        """Release Spark's cache, once the checkpoint is recorded or before it is computed again."""
        while self._kept:
            self._kept.pop().unpersist()


class ReplayedLetters(DeadLetters):
    """Dead letters of a run that replays some: these have been found good, so none of them can be bad again."""

    def __init__(self, table: LetterTable, monitor: RunMonitor, spec: SinkSpec) -> None:
        super().__init__(table, monitor, spec)
        self._settled = True  # its checkpoints are never read again

    def _add(self, letters: Sequence[Letter], identity: CheckpointIdentity) -> None:
        bad = [letter for letter in letters if letter.origin.placed]
        if bad:
            raise TerminalError(
                "a dead letter that could be converted no longer can",
                detail=f"{bad[0].origin}: {bad[0].error.primary}.",
                hint="Nothing of this replay was applied. Run it again.",
            )
        super()._add(letters, identity)


def _letters(rows: Iterator[Row]) -> Iterator[Letter]:
    return (letter for row in rows if (letter := letter_of(row[0])))


def run_spark(action: Callable[[], T]) -> T:
    """Run a Spark action; its failures become calve's errors."""
    try:
        return action()
    except CalveError:
        raise
    except CAUGHT as error:
        raise failure_of(error, "the changes could not be computed") from error
