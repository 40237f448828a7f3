"""The one interface of all writers."""

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from calve.model.files import WriteResult
from calve.model.size import SizeHint
from calve.model.target import WriteTarget
from calve.write.columns import Layout


class BatchTooLarge(Exception):
    """The batch turned out larger than this writer takes; nothing was written, the next writer begins anew."""


@dataclass(frozen=True)
class WriteJob:
    """One batch to be written. The frame was checked: it has no bad record and no null where none may be."""

    frame: DataFrame
    layout: Layout
    target: WriteTarget
    deletes: bool
    """False: the table has no live row, so no key has to be deleted."""
    size: SizeHint
    batch_id: str
    """Nobody else's: names of files are derived from it."""


class Writer(Protocol):
    """Turns a batch into files: of the changes of a key the last one alone, rows sorted by key, keys deleted."""

    def write(self, job: WriteJob) -> WriteResult:
        """All files of the batch. Raises BatchTooLarge before anything was written."""
        ...
