"""Sources that calve drives itself, without Spark's streaming engine: files, generators, bounded frames.

Such a source can be read again from any offsets it has given out, so Spark's checkpoint is not needed: what is recorded
decides where reading goes on. Offsets are small canonical JSON texts (`canonical_offsets`); they are stored with every
commit, so they must not grow with the source.

A bounded DataFrame as a source: one checkpoint, then the end.
"""

from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.clock import Clock
from calve.model.checkpoint import UNKNOWN, Offsets, SizeHint, canonical_offsets
from calve.model.spec import Envelope
from calve.records.frames import Records
from calve.storage.state import StateStore


class Source(Protocol):
    """A source that is open. Called by one thread."""

    @property
    def name(self) -> str:
        """What it reads; stands as query id in the records."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """Columns of its frames."""
        ...

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        """Where a checkpoint that starts at `start` should end; None when nothing is new.

        `whole` asks for everything that is there now, whatever the usual size of a checkpoint.
        """
        ...

    def begin(self) -> Offsets:
        """Where reading begins: None, or offsets that mean the same for ever; decided once."""
        ...

    @property
    def took_all(self) -> bool:
        """True when the last `next_end` left nothing behind of what was there."""
        ...

    @property
    def unread(self) -> int:
        """How much of what was there the last `next_end` left behind: files, rows or offsets, as `counts` says."""
        ...

    @property
    def counts(self) -> str:
        """What `unread` counts."""
        ...

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> Records:
        """The rows after `start` up to `end`, the same ones every time."""
        ...

    def contents(self, spark: SparkSession, end: Offsets) -> Records:
        """Everything up to `end`, as far as the source still has it. Raises SourceLost when it has not."""
        ...

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        """How much that is."""
        ...

    def ended(self, end: Offsets) -> bool:
        """True when a bounded source has nothing after `end`, for ever."""
        ...

    def committed(self, offsets: Offsets) -> None:
        """The table has everything up to `offsets`: what lies before is not asked for again."""
        ...


@runtime_checkable
class SourceDefinition(Protocol):
    """A source that is described and not open."""

    @property
    def envelope(self) -> Envelope:
        """How its rows are to be understood, unless the user says otherwise."""
        ...

    def open(self, store: StateStore, clock: Clock) -> Source:
        """Ready to read; `store` is for what the source has to remember."""
        ...


_ALL = canonical_offsets({"rows": "all"})


class BoundedFrame:
    """All rows of one DataFrame. A restart before they are recorded reads them again."""

    name = "bounded"
    counts = "rows"
    unread = 0

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
