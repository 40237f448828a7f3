"""Writes the files of a batch again, with the ids that their rows keep: the same rows at the same positions.

The bytes of the other columns are copied as they are (`iceberg/files/parquet_column.py`). Few bytes are copied by
threads of the driver, more by Spark tasks.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from calve.iceberg.files.parquet_column import Compression, copy_with_column
from calve.iceberg.files.store import open_input, open_output, remove_new
from calve.iceberg.schema.readable import ROW_ID_COLUMN
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.row_ids import FileIds
from calve.keylookup.search import SparkJobs
from calve.model.files import WriteTarget, WrittenFile
from calve.model.spec import WriteOptions
from calve.model.table import TableState
from calve.reader.resources import THREADS
from calve.spark.failures import own_file_failure
from calve.spark.tasks import Tasks
from calve.write.data_files import FileNames, compression_level, partitioner_for

HERE_BYTES = 128 << 20
"""The most bytes of files that the driver writes again."""
_FAILED = "rows could not be written with their ids"


@dataclass(frozen=True)
class _Work:
    """One file to write again. Pickled to tasks."""

    rows: FileIds
    target: WriteTarget
    name: str


@dataclass(frozen=True)
class RowIdWriter:
    """Writes for one sink. Implements the port `RowWriter`."""

    table: IcebergTable
    options: WriteOptions
    jobs: SparkJobs
    here_bytes: int = HERE_BYTES

    def write(self, state: TableState, files: Sequence[FileIds], name: str) -> tuple[WrittenFile, ...]:
        """Write every file again, with the same rows at the same positions, or none. Raises TransientError."""
        targets = self.table.write_targets(state, self.options, {rows.file.spec_id for rows in files})
        works = [_Work(rows, targets[rows.file.spec_id], f"{name}/{number}") for number, rows in enumerate(files)]
        discard = partial(_discard, works[0].target)
        if sum(rows.file.size for rows in files) > self.here_bytes:
            return tuple(Tasks(_FAILED, discard).run(self.jobs.session(), works, _write_in_task))
        return _write_here(works)


def _write_here(works: Sequence[_Work]) -> tuple[WrittenFile, ...]:
    with ThreadPoolExecutor(min(THREADS, len(works))) as pool:
        running = [pool.submit(_write, work, "driver") for work in works]
    try:
        return tuple(one.result() for one in running)
    except BaseException:
        for one, work in zip(running, works, strict=True):
            if one.exception() is None:
                _discard(work.target, one.result())
        raise


def _write_in_task(work: _Work, attempt: str) -> WrittenFile:
    return _write(work, attempt)


def _discard(target: WriteTarget, file: WrittenFile) -> None:
    remove_new([file.path], target.io_properties, "another file of their batch could not be written")


def _write(work: _Work, writer: str) -> WrittenFile:
    file, target, names = work.rows.file, work.target, FileNames(work.target, work.name, writer)
    partitioner = partitioner_for(target)
    compression = Compression(target.options.compression, compression_level(target.options))
    with names.removed_on_failure(), _translating_failures(file.path):
        location = names.fresh(partitioner.folder(file.partition) if partitioner else "")
        with open_input(file.path, target.io_properties) as source, open_output(location, target.io_properties) as out:
            size = copy_with_column(source, out, ROW_ID_COLUMN, work.rows.ids, compression)
    return replace(file, path=location, size=size)


@contextmanager
def _translating_failures(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise own_file_failure(error, _FAILED, path) from error
