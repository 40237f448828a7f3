"""Data files of a table: one set of rolling files, or one after the other for each partition.

Rows come with those of a partition together, so that one file is open at a time however many partitions there are. Rows
that come in another order cost more files, and nothing else: the values of a file are those of its rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, Self

import pyarrow as pa

from calve.iceberg.partitions import Partitioner, Values, partitioner_of, same_partition
from calve.model.files import WrittenFile
from calve.model.target import WriteTarget
from calve.write.rolling import FileKind, FileNames, RollingFiles


def _nothing() -> None:
    pass


def partitioner_for(target: WriteTarget) -> Partitioner | None:
    """None for a table without partitions."""
    return partitioner_of(target.schema_json, target.data_spec_json) if target.data_spec_json else None


class DataFiles(Protocol):
    """Rows in, complete files out: `files` is there after the block was left without an error."""

    files: tuple[WrittenFile, ...]

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows in the columns of the file, by name; others are left out."""
        ...


def data_files(target: WriteTarget, names: FileNames, *, midway: Callable[[], None] = _nothing) -> DataFiles:
    """Where the rows of a table go."""
    kind = FileKind.data(target)
    partitioner = partitioner_for(target)
    if partitioner is None:
        return RollingFiles(kind, target, names, midway=midway)

    def files_of(values: Values) -> RollingFiles:
        of_partition = replace(kind, partition=values, folder=partitioner.folder(values))
        return RollingFiles(of_partition, target, names, midway=midway)

    return PartitionedFiles(partitioner, files_of)


class PartitionedFiles:
    """The files of one partition after the other."""

    def __init__(self, partitioner: Partitioner, files_of: Callable[[Values], RollingFiles]) -> None:
        self.files: tuple[WrittenFile, ...] = ()
        self._partitioner, self._files_of = partitioner, files_of
        self._complete: list[WrittenFile] = []
        self._open: RollingFiles | None = None
        self._values: Values = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(kind)
        if kind is None:
            self.files = tuple(self._complete)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for values, piece in self._partitioner.runs(table):
            if self._open is None or not same_partition(values, self._values):
                self._close(None)
                self._open, self._values = self._files_of(values).__enter__(), values
            self._open.write(piece)

    def _close(self, failure: type[BaseException] | None) -> None:
        done, self._open = self._open, None
        if done is not None:
            done.__exit__(failure)
            self._complete += done.files
