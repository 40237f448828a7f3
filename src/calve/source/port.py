"""The interface of sources that calve drives itself, without Spark's streaming engine; and a bounded frame as one.

Such a source can be read again from any offsets that it has returned, so Spark's checkpoint is not needed: reading
resumes where the records say. Offsets are small canonical JSON texts (`canonical_offsets`); they are stored with every
commit, so they must not grow with the source.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.clock import Clock
from calve.model.change import Origin
from calve.model.checkpoint import UNKNOWN, Offsets, SizeHint, SizeLimit, canonical_offsets
from calve.model.health import SourcePosition
from calve.model.spec import Envelope
from calve.records.frames import Records
from calve.storage.state import StateStore


class Source(Protocol):
    """An open source. Called by one thread."""

    @property
    def name(self) -> str:
        """What it reads; the query id in the records."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """Columns of its frames."""
        ...

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        """The end of a checkpoint that starts at `start`; None when there is nothing new.

        `whole` asks for everything that is available now, whatever the usual size of a checkpoint.
        """
        ...

    def begin(self) -> Offsets:
        """Where reading starts: None, or offsets whose meaning never changes; decided once."""
        ...

    @property
    def took_all(self) -> bool:
        """Whether the last `next_end` took everything that was available."""
        ...

    @property
    def least_poll(self) -> float:
        """Seconds between two polls that find nothing."""
        ...

    @property
    def unread(self) -> int:
        """How much the last `next_end` left for later: files, rows or offsets, as `counts` says."""
        ...

    @property
    def counts(self) -> str:
        """What `unread` counts."""
        ...

    def position(self, at: Offsets) -> SourcePosition:
        """The source as of the last `next_end`, read up to `at`."""
        ...

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> Records:
        """The records after `start` up to `end`, the same ones every time."""
        ...

    def contents(self, spark: SparkSession, end: Offsets) -> Records:
        """All records up to `end`. Raises SourceLost when the source no longer has all of them."""
        ...

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        """The size of a checkpoint."""
        ...

    def ended(self, end: Offsets) -> bool:
        """Whether a bounded source ends at `end`."""
        ...

    def committed(self, offsets: Offsets) -> None:
        """Note that the table has everything up to `offsets`: earlier records are not requested again."""
        ...


@runtime_checkable
class ReadsArrow(Protocol):
    """A source that can read checkpoints in the driver, without a Spark job."""

    def schema(self, spark: SparkSession) -> StructType:
        """Columns of its records."""
        ...

    def arrow_records(
        self, spark: SparkSession, start: Offsets, end: Offsets, columns: StructType, limit: SizeLimit
    ) -> pa.Table | None:
        """The records after `start` up to `end` as they arrived, with some columns, in the types that Spark gives them.

        None if they are too many, or if there may be a problem with them: Spark reads them then.
        """
        ...


@runtime_checkable
class Rereads(Protocol):
    """A source whose dead letters contain the records as they were read, so that they can be read again from there."""

    def check_letters(self) -> None:
        """Raise InvalidInput if letters do not contain everything that its records consist of."""
        ...

    def why_not(self, origin: Origin) -> str:
        """Why a letter of this origin does not contain a record of this source; empty if it does."""
        ...

    def records_of(self, spark: SparkSession, origins: Sequence[Origin]) -> Records:
        """The records of these letters, as `frame` would deliver them, in this order."""
        ...


@runtime_checkable
class SourceDefinition(Protocol):
    """The definition of a source."""

    @property
    def envelope(self) -> Envelope:
        """The envelope of its records, unless the user chooses another."""
        ...

    def open(self, store: StateStore, clock: Clock) -> Source:
        """Open the source, which keeps its state in `store`."""
        ...


LEAST_POLL = 0.2
"""Seconds between two polls of a source that is cheap to ask."""

_ALL = canonical_offsets({"rows": "all"})


class BoundedFrame:
    """All rows of one DataFrame in one checkpoint. A restart before they are recorded reads them again."""

    name = "bounded"
    counts = "rows"
    unread = 0
    least_poll = LEAST_POLL

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def schema(self, _spark: SparkSession) -> StructType:
        return self._frame.schema

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        del whole
        return _ALL if start is None else None

    def begin(self) -> Offsets:
        return None

    @property
    def took_all(self) -> bool:
        return True

    def position(self, _at: Offsets) -> SourcePosition:
        return SourcePosition()

    def frame(self, _spark: SparkSession, _start: Offsets, _end: Offsets) -> DataFrame:
        return self._frame

    def contents(self, _spark: SparkSession, _end: Offsets) -> DataFrame:
        return self._frame

    def size(self, _start: Offsets, _end: Offsets) -> SizeHint:
        return UNKNOWN

    def ended(self, end: Offsets) -> bool:
        return end is not None

    def committed(self, offsets: Offsets) -> None:
        """Nothing is kept."""
