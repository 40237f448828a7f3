"""Writes the files of a batch again, with the ids that their rows keep: the same rows at the same positions.

Few bytes are written by threads of the driver, more by Spark tasks.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from calve.errors import TerminalError
from calve.iceberg.files.store import remove_new
from calve.iceberg.schema.arrow import arrow_schema, parse_schema
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.row_ids import FileIds
from calve.keylookup.search import SparkJobs
from calve.model.files import WriteTarget, WrittenFile
from calve.model.spec import WriteOptions
from calve.model.table import TableState
from calve.reader.deletes import TaskDeletes
from calve.reader.resources import THREADS
from calve.reader.rows import read_split, whole
from calve.spark.failures import own_file_failure
from calve.spark.tasks import Tasks
from calve.write.data_files import FileKind, FileNames, RollingFiles, partitioner_for

HERE_BYTES = 128 << 20
"""The most bytes of files that the driver writes again."""
_ANY_SIZE = 1 << 62
_FAILED = "rows could not be written with their ids"


@dataclass(frozen=True)
class _Work:
    """One file to write again. Pickled to tasks."""

    rows: FileIds
    reading: ReadTarget
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
        plan = self.table.rows_with_ids(state, self.options)
        works = [
            _Work(rows, plan.reading, plan.targets[rows.file.spec_id], f"{name}/{number}")
            for number, rows in enumerate(files)
        ]
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
    file, names = work.rows.file, FileNames(work.target, work.name, writer)
    with names.removed_on_failure(), _translating_failures(file.path):
        out = RollingFiles(_kind(work), _in_one_file(work.target), names)
        with out:
            for rows in _rows(work):
                out.write(rows)
        if [one.record_count for one in out.files] != [file.rows]:
            raise TerminalError(
                "a file of a batch has another number of rows than its manifest says",
                detail=f'"{file.path}" should have {file.rows:,} rows, {sum(f.record_count for f in out.files):,} were '
                "written with their ids.",
                hint="Nothing was committed.",
            )
        return out.files[0]


def _rows(work: _Work) -> Iterator[pa.RecordBatch]:
    """The rows of the file, each with its id."""
    field = arrow_schema(parse_schema(work.target.schema_json)).field(-1)
    done = 0
    for batch in read_split(whole(work.rows.file), work.reading, TaskDeletes(work.reading, [work.rows.file])):
        yield batch.append_column(field, work.rows.ids.slice(done, batch.num_rows))
        done += batch.num_rows


def _kind(work: _Work) -> FileKind:
    """Files of the same partition."""
    kind, partitioner, values = FileKind.data(work.target), partitioner_for(work.target), work.rows.file.partition
    return replace(kind, partition=values, folder=partitioner.folder(values) if partitioner else "")


def _in_one_file(target: WriteTarget) -> WriteTarget:
    """Positions stay the same only if a file becomes one file; it already has about the right size."""
    return replace(target, options=replace(target.options, target_file_size=_ANY_SIZE))


@contextmanager
def _translating_failures(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise own_file_failure(error, _FAILED, path) from error
