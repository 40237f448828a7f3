"""A bounded DataFrame as a source: one checkpoint, then the end."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.model.checkpoint import Offsets, canonical_offsets
from calve.model.size import UNKNOWN, SizeHint

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
